/* fw_: heads as they leave, bytes in to bytes out. Uses the readers of test_mw.c. */

/* Who sends: an address, whether use-forwarded-headers trusts 10.0.0.0/8, compute-full-forwarded-for, no generate-request-id. */
struct fw_ut_peer {
    const char *peer;
    bool trusting, full, no_id;
};

/* The request head that goes upstream for the one in `text`. */
static bool fw_ut_request(const char *text, const struct fw_ut_peer *p, struct str_builder *out)
{
    struct h1_head *h = malloc(sizeof *h);
    struct str head = ut_str(text);
    static struct net_cidr tens; /* allow global: lent to cfg */
    struct cfg cfg = {.compute_full_forwarded_for = p->full, .generate_request_id = !p->no_id, .use_forwarded_headers = p->trusting,
                      .proxy_real_ip = {.n = 1, .v = &tens}};
    struct net_addr peer;
    struct mw_ctx m = {.cfg = &cfg, .msg = &h->msg, .head = head.p, .peer = &peer};
    struct fw_request fw = {.cfg = &cfg, .msg = &h->msg, .head = head.p, .client = &m.client, .peer = &peer};
    bool ok = h1_request_feed((h1_head_init(h, true, 0), h), head.p, head.n,
                              &(struct h1_limits){.line_bytes = 8192, .head_bytes = 32768, .fields = 100, .underscores = p->full}) > 0;
    uint8_t path[256];
    long n;

    if (UT_CHECK(ok)) {
        str_to_ip(str_z(p->peer), &peer);
        str_to_cidr(str_z("10.0.0.0/8"), &tens);
        mw_client(&m);
        fw.trusted = m.trusted, fw.named = m.named, fw.hop_field = m.hop_field, fw.hop_at = m.hop_at;
        fw.scheme = m.scheme.n ? m.scheme : S("http");
        fw.port = m.port ? m.port : 8080;
        memset(fw.id, 0xff, sizeof fw.id);
        n = h->msg.path_n ? http_path_normalize(str_of(head.p + h->msg.path_at, h->msg.path_n), path) : 0;
        fw.path = str_of(path, n > 0 ? (size_t)n : 0);
        fw.host = str_of(head.p + h->msg.host_at, h->msg.host_n);
        fw.said_host = m.host.n ? m.host : fw.host;
        fw_put_request(out, &fw);
        UT_CHECK(!out->failed);
    }
    free(h);
    return ok;
}

#define FW_UT_OWN "X-Real-IP: 192.0.2.1\r\nX-Forwarded-For: 192.0.2.1\r\nX-Forwarded-Host: a.test\r\nX-Forwarded-Port: 8080\r\nX-Forwarded-Proto: http\r\n" \
                  "X-Forwarded-Scheme: http\r\nX-Request-ID: ffffffffffffffffffffffffffffffff\r\n\r\n"

UT(fw_requests)
{
    static const struct fw_ut_peer stranger = {"192.0.2.1", true, false, false};
    static const struct { int line; const char *in, *out; } rows[] = {
        UT_ROW("GET / HTTP/1.1\r\nHost: a.test\r\n\r\n", "GET / HTTP/1.1\r\nHost: a.test\r\n" FW_UT_OWN),
        UT_ROW("GET /a/../b?x=1 HTTP/1.1\r\nHost: a.test\r\n\r\n", "GET /b?x=1 HTTP/1.1\r\nHost: a.test\r\n" FW_UT_OWN),
        UT_ROW("GET /? HTTP/1.0\r\nHost: a.test\r\n\r\n", "GET /? HTTP/1.1\r\nHost: a.test\r\n" FW_UT_OWN),
        UT_ROW("OPTIONS * HTTP/1.1\r\nHost: a.test\r\n\r\n", "OPTIONS * HTTP/1.1\r\nHost: a.test\r\n" FW_UT_OWN),
        UT_ROW("GET http://a.test HTTP/1.1\r\nHost: a.test\r\n\r\n", "GET / HTTP/1.1\r\nHost: a.test\r\n" FW_UT_OWN),
        UT_ROW("OPTIONS http://a.test HTTP/1.1\r\nHost: a.test\r\n\r\n", "OPTIONS * HTTP/1.1\r\nHost: a.test\r\n" FW_UT_OWN),
        UT_ROW("OPTIONS http://a.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n", "OPTIONS / HTTP/1.1\r\nHost: a.test\r\n" FW_UT_OWN),
        UT_ROW("OPTIONS http://a.test?x HTTP/1.1\r\nHost: a.test\r\n\r\n", "OPTIONS /?x HTTP/1.1\r\nHost: a.test\r\n" FW_UT_OWN),
        /* content */
        UT_ROW("POST / HTTP/1.1\r\ncontent-length: 7\r\nHost: a.test\r\n\r\n", "POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 7\r\n" FW_UT_OWN),
        UT_ROW("POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 0\r\n\r\n", "POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 0\r\n" FW_UT_OWN),
        UT_ROW("POST / HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\nTrailer: x\r\n\r\n",
               "POST / HTTP/1.1\r\nHost: a.test\r\nTrailer: x\r\nTransfer-Encoding: chunked\r\n" FW_UT_OWN),
        /* hop by hop: the fields, and what Connection names */
        UT_ROW("GET / HTTP/1.1\r\nHost: a.test\r\nConnection: keep-alive, X-Secret\r\nKeep-Alive: 5\r\nProxy-Connection: x\r\nTE: trailers\r\nX-Secret: 1\r\nAccept: */*\r\n\r\n",
               "GET / HTTP/1.1\r\nHost: a.test\r\nAccept: */*\r\n" FW_UT_OWN),
        UT_ROW("GET / HTTP/1.1\r\nHost: a.test\r\nProxy: http://evil\r\nHTTP2-Settings: AAA\r\nUpgrade: h2c\r\n\r\n", "GET / HTTP/1.1\r\nHost: a.test\r\n" FW_UT_OWN),
        /* what a Connection field must not take away: what the proxy adds */
        UT_ROW("GET / HTTP/1.1\r\nHost: a.test\r\nConnection: X-Real-IP, X-Forwarded-For, X-Forwarded-Proto\r\n\r\n", "GET / HTTP/1.1\r\nHost: a.test\r\n" FW_UT_OWN),
        /* forwarding fields of a stranger, in all their spellings */
        UT_ROW("GET / HTTP/1.1\r\nHost: a.test\r\nX-Forwarded-For: 6.6.6.6\r\nx-forwarded-for: 6.6.6.6\r\nX-FORWARDED-FOR: 6.6.6.6\r\n\r\n", "GET / HTTP/1.1\r\nHost: a.test\r\n" FW_UT_OWN),
        UT_ROW("GET / HTTP/1.1\r\nHost: a.test\r\nX-Real-IP: 6.6.6.6\r\nX-Forwarded-Host: evil\r\nX-Forwarded-Port: 1\r\nX-Forwarded-Proto: https\r\nX-Forwarded-Scheme: https\r\n"
               "X-Scheme: https\r\nX-Original-URI: /admin\r\nX-Original-Forwarded-For: 6.6.6.6\r\nForwarded: for=6.6.6.6\r\n\r\n", "GET / HTTP/1.1\r\nHost: a.test\r\n" FW_UT_OWN),
        UT_ROW("GET / HTTP/1.1\r\nHost: a.test\r\nX_Forwarded_For: 6.6.6.6\r\nX_Real_IP: 6.6.6.6\r\n\r\n", "GET / HTTP/1.1\r\nHost: a.test\r\n" FW_UT_OWN),
        /* fields that go on as they are */
        UT_ROW("GET / HTTP/1.1\r\nHost: a.test\r\nCookie: a=b\r\nAuthorization: x\r\nX-Any:  spaced \t\r\n\r\n",
               "GET / HTTP/1.1\r\nHost: a.test\r\nCookie: a=b\r\nAuthorization: x\r\nX-Any:  spaced \t\r\n" FW_UT_OWN),
    };

    UT_EACH(r, rows) {
        struct str_builder out = str_growing();

        if (fw_ut_request(r->in, &stranger, &out)) UT_SLICE(str_built(&out), r->out);
        str_free(&out);
    }
}

#define FW_UT_GET(fields) "GET / HTTP/1.1\r\nHost: a.test\r\n" fields "\r\n"
#define FW_UT_SAYS(client, list, host, port, scheme) "X-Real-IP: " client "\r\nX-Forwarded-For: " list "\r\nX-Forwarded-Host: " host "\r\nX-Forwarded-Port: " port \
    "\r\nX-Forwarded-Proto: " scheme "\r\nX-Forwarded-Scheme: " scheme "\r\n"
#define FW_UT_PLAIN(client) FW_UT_SAYS(client, client, "a.test", "8080", "http")

UT(fw_requests_of_other_peers)
{
    static const struct fw_ut_peer trusted = {"10.0.0.1", true, false, true}, full = {"10.0.0.1", true, true, true},
                                   stranger = {"192.0.2.1", true, true, true}, off = {"10.0.0.1", false, true, true};
    static const struct { int line; const struct fw_ut_peer *peer; const char *in, *out; } rows[] = {
        /* of a trusted peer one well-formed value goes on; the client is whom it names */
        UT_ROW(&trusted, FW_UT_GET("X-Forwarded-For: 1.1.1.1\r\nX-Forwarded-Proto: https\r\nX-Forwarded-Host: shop\r\nX-Forwarded-Port: 443\r\nX-Forwarded-Scheme: https\r\nForwarded: for=2.2.2.2\r\n"),
               FW_UT_GET(FW_UT_SAYS("1.1.1.1", "1.1.1.1", "shop", "443", "https"))),
        UT_ROW(&trusted, FW_UT_GET("X-Forwarded-For: 9.9.9.9\r\nX-Forwarded-For: 1.1.1.1\r\n"), FW_UT_GET(FW_UT_PLAIN("1.1.1.1"))),
        UT_ROW(&trusted, FW_UT_GET("X-Forwarded-For: 1.1.1.1, 10.0.0.7\r\n"), FW_UT_GET(FW_UT_PLAIN("1.1.1.1"))),
        UT_ROW(&trusted, FW_UT_GET("X-Forwarded-For: 1.1.1.1, unknown\r\n"), FW_UT_GET(FW_UT_PLAIN("10.0.0.1"))),
        UT_ROW(&trusted, FW_UT_GET("X-Real-IP: 6.6.6.6\r\nX-Original-URI: /x\r\n"), FW_UT_GET(FW_UT_PLAIN("10.0.0.1"))),
        UT_ROW(&trusted, FW_UT_GET("X-Forwarded-Proto: HTTPS\r\n"), FW_UT_GET(FW_UT_SAYS("10.0.0.1", "10.0.0.1", "a.test", "8080", "https"))),
        UT_ROW(&trusted, FW_UT_GET("X-Forwarded-Proto: wss\r\nX-Forwarded-Scheme: http\r\n"), FW_UT_GET(FW_UT_SAYS("10.0.0.1", "10.0.0.1", "a.test", "8080", "wss"))),
        UT_ROW(&trusted, FW_UT_GET("X-Forwarded-Scheme: https\r\n"), FW_UT_GET(FW_UT_SAYS("10.0.0.1", "10.0.0.1", "a.test", "8080", "https"))),
        UT_ROW(&trusted, FW_UT_GET("X-Forwarded-Host: shop.test:8443\r\nX-Forwarded-Port: 65535\r\n"), FW_UT_GET(FW_UT_SAYS("10.0.0.1", "10.0.0.1", "shop.test:8443", "65535", "http"))),
        /* what is no value, or more than one, does not */
        UT_ROW(&trusted, FW_UT_GET("X-Forwarded-Proto: ftp\r\nX-Forwarded-Host: a b\r\nX-Forwarded-Port: 65536\r\n"), FW_UT_GET(FW_UT_PLAIN("10.0.0.1"))),
        UT_ROW(&trusted, FW_UT_GET("X-Forwarded-Proto: https, http\r\nX-Forwarded-Host: a, b\r\nX-Forwarded-Port: 80, 443\r\n"), FW_UT_GET(FW_UT_PLAIN("10.0.0.1"))),
        UT_ROW(&trusted, FW_UT_GET("X-Forwarded-Proto: https\r\nX-Forwarded-Proto: https\r\nX-Forwarded-Host: b\r\nX-Forwarded-Host: b\r\n"), FW_UT_GET(FW_UT_PLAIN("10.0.0.1"))),
        UT_ROW(&trusted, FW_UT_GET("X-Forwarded-Proto:\r\nX-Forwarded-Host:\r\nX-Forwarded-Port:\r\n"), FW_UT_GET(FW_UT_PLAIN("10.0.0.1"))),
        UT_ROW(&trusted, FW_UT_GET("X-Forwarded-Host: user@evil\r\nX-Forwarded-Port: 0\r\n"), FW_UT_GET(FW_UT_PLAIN("10.0.0.1"))),
        UT_ROW(&trusted, FW_UT_GET("X-Forwarded-Host: evil/path\r\nX-Forwarded-Port: 080\r\n"), FW_UT_GET(FW_UT_PLAIN("10.0.0.1"))),
        UT_ROW(&trusted, FW_UT_GET("X-Forwarded-Port: +80\r\n"), FW_UT_GET(FW_UT_PLAIN("10.0.0.1"))),
        /* Forwarded counts when X-Forwarded-For is missing, and never goes on */
        UT_ROW(&trusted, FW_UT_GET("Forwarded: for=1.1.1.1;proto=https;host=shop\r\n"), FW_UT_GET(FW_UT_SAYS("1.1.1.1", "1.1.1.1", "shop", "8080", "https"))),
        UT_ROW(&trusted, FW_UT_GET("Forwarded: for=1.1.1.1;proto=https;host=shop\r\nX-Forwarded-Proto: http\r\nX-Forwarded-Host: x\r\n"), FW_UT_GET(FW_UT_SAYS("1.1.1.1", "1.1.1.1", "x", "8080", "http"))),
        UT_ROW(&trusted, FW_UT_GET("Forwarded: for=1.1.1.1;proto=gopher;host=\"a b\"\r\n"), FW_UT_GET(FW_UT_PLAIN("1.1.1.1"))),
        UT_ROW(&trusted, FW_UT_GET("Forwarded: for=6.6.6.6;host=evil, for=1.1.1.1;host=shop, for=10.0.0.7;host=inner\r\n"), FW_UT_GET(FW_UT_SAYS("1.1.1.1", "1.1.1.1", "shop", "8080", "http"))),
        UT_ROW(&trusted, FW_UT_GET("Forwarded: for=1.1.1.1;host=shop;;for\r\n"), FW_UT_GET(FW_UT_PLAIN("10.0.0.1"))),
        UT_ROW(&trusted, FW_UT_GET("Forwarded: for=1.1.1.1;host=shop, for=unknown\r\n"), FW_UT_GET(FW_UT_PLAIN("10.0.0.1"))),
        /* compute-full-forwarded-for: the client and what stands behind it */
        UT_ROW(&full, FW_UT_GET("X-Forwarded-For: 1.1.1.1\r\nX-Request-ID: mine\r\n"), FW_UT_GET("X-Request-ID: mine\r\n" FW_UT_SAYS("1.1.1.1", "1.1.1.1, 10.0.0.1", "a.test", "8080", "http"))),
        UT_ROW(&full, FW_UT_GET("X-Forwarded-For: 6.6.6.6, 1.1.1.1,10.0.0.7\r\nX-Forwarded-For: 10.0.0.8\r\n"), FW_UT_GET(FW_UT_SAYS("1.1.1.1", "1.1.1.1,10.0.0.7, 10.0.0.8, 10.0.0.1", "a.test", "8080", "http"))),
        UT_ROW(&full, FW_UT_GET("X-Forwarded-For: 6.6.6.6\r\nX-Forwarded-For: x, [1::1]:99\r\n"), FW_UT_GET(FW_UT_SAYS("1::1", "1::1, 10.0.0.1", "a.test", "8080", "http"))),
        UT_ROW(&full, FW_UT_GET("X-Forwarded-For: 10.0.0.3, 10.0.0.1\r\n"), FW_UT_GET(FW_UT_SAYS("10.0.0.3", "10.0.0.3, 10.0.0.1, 10.0.0.1", "a.test", "8080", "http"))),
        UT_ROW(&full, FW_UT_GET("X-Forwarded-For: x\r\n"), FW_UT_GET(FW_UT_PLAIN("10.0.0.1"))),
        UT_ROW(&full, FW_UT_GET(""), FW_UT_GET(FW_UT_PLAIN("10.0.0.1"))),
        UT_ROW(&full, FW_UT_GET("Forwarded: for=\"[1::1]:99\", for=10.0.0.7\r\n"), FW_UT_GET(FW_UT_SAYS("1::1", "1::1, 10.0.0.1", "a.test", "8080", "http"))),
        /* a stranger, and a peer of the network while use-forwarded-headers is off */
        UT_ROW(&stranger, FW_UT_GET("X-Forwarded-For: 6.6.6.6\r\nX-Request-ID: mine\r\n"), FW_UT_GET("X-Request-ID: mine\r\n" FW_UT_PLAIN("192.0.2.1"))),
        UT_ROW(&stranger, FW_UT_GET("Forwarded: for=6.6.6.6;host=evil;proto=https\r\nX-Forwarded-Proto: https\r\nX-Forwarded-Host: evil\r\nX-Forwarded-Port: 1\r\n"), FW_UT_GET(FW_UT_PLAIN("192.0.2.1"))),
        UT_ROW(&off, FW_UT_GET("X-Forwarded-For: 6.6.6.6\r\nX-Forwarded-Proto: https\r\nForwarded: for=6.6.6.6\r\n"), FW_UT_GET(FW_UT_PLAIN("10.0.0.1"))),
        UT_ROW(&stranger, "GET /chat HTTP/1.1\r\nHost: a.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n",
               "GET /chat HTTP/1.1\r\nHost: a.test\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\nConnection: upgrade\r\nUpgrade: websocket\r\n"
               FW_UT_PLAIN("192.0.2.1") "\r\n"),
        /* no other sign hides a name, not even where underscores pass */
        UT_ROW(&full, FW_UT_GET("X_Forwarded_For: 6.6.6.6\r\nX.Real-IP: 6.6.6.6\r\nssl_client_verify: SUCCESS\r\nContent_Length: 5\r\nTransfer~Encoding: x\r\nHo_st: x\r\nX_Mine: 1\r\n"),
               FW_UT_GET("Ho_st: x\r\nX_Mine: 1\r\n" FW_UT_PLAIN("10.0.0.1"))),
    };

    UT_EACH(r, rows) {
        struct str_builder out = str_growing();

        if (fw_ut_request(r->in, r->peer, &out)) UT_SLICE(str_built(&out), r->out);
        str_free(&out);
    }
}

/* Each row of HTTP_FORWARDING does what it says, in any letter case and with signs that some servers take for hyphens. */
UT(fw_forwarding_table)
{
    static const struct fw_ut_peer stranger = {"192.0.2.1", true, false, true}, trusted = {"10.0.0.1", true, false, true}, loose = {"192.0.2.1", true, true, true};
    static const struct { int line; const char *name; enum http_fate fate; } rows[] = {
#define X(name, fate) UT_ROW(name, HTTP_FATE_##fate),
        HTTP_FORWARDING(X)
#undef X
    };
    static const char nothing[] = FW_UT_GET(FW_UT_PLAIN("192.0.2.1"));

    UT_EACH(r, rows) {
        char name[64], text[256], line[128];
        size_t n = strlen(r->name);
        static const char *const values[] = {"1.1.1.1", "10.0.0.1", "https", "443"};

        snprintf(name, sizeof name, "%.*s%s", (int)(n - (r->name[n - 1] == '*')), r->name, r->name[n - 1] == '*' ? "any-thing" : "");
        for (size_t v = 0; v < UT_COUNT(values); v++)
            for (int spelling = 0; spelling < 4; spelling++) {  /* as it is, in capitals, with underscores, with dots */
                struct str_builder by_stranger = str_growing(), by_trusted = str_growing();
                bool veiled = spelling >= 2 && strchr(name, '-');

                for (size_t i = 0; i <= strlen(name); i++)
                    line[i] = spelling == 1 && name[i] >= 'a' && name[i] <= 'z' ? (char)(name[i] - 32) : spelling == 2 && name[i] == '-' ? '_'
                            : spelling == 3 && name[i] == '-' ? '.' : name[i];
                strcat(line, ": ");
                strcat(line, values[v]);
                strcat(line, "\r\n");
                snprintf(text, sizeof text, FW_UT_GET("%s"), line);
                if (fw_ut_request(text, spelling == 2 ? &loose : &stranger, &by_stranger)) UT_SLICE(str_built(&by_stranger), nothing);
                if (fw_ut_request(text, &trusted, &by_trusted)) {
                    bool kept = !veiled && (r->fate == HTTP_FATE_KEPT || (r->fate == HTTP_FATE_AGREES && v == 1));
                    bool differs = !veiled && r->fate == HTTP_FATE_BELIEVED && (strstr(name, "port") ? v == 3 : strstr(name, "host") ? true : v == 2);
                    bool named = !veiled && !strcmp(name, "x-forwarded-for") && v == 0;

                    str_put_c(&by_trusted, 0);
                    UT_INT(strstr((char *)by_trusted.p, line) != NULL, kept);
                    UT_INT(strstr((char *)by_trusted.p, FW_UT_PLAIN("10.0.0.1")) != NULL, !differs && !named);
                    UT_INT(strstr((char *)by_trusted.p, FW_UT_PLAIN("1.1.1.1")) != NULL, named);
                }
                str_free(&by_stranger);
                str_free(&by_trusted);
            }
    }
}

/* A head that was written is accepted by the reader that it was made with. */
UT(fw_requests_are_read_again)
{
    static const struct fw_ut_peer stranger = {"192.0.2.1", true, false, false};
    struct str_builder out = str_growing(), again = str_growing();

    UT_REQUIRE(fw_ut_request("PUT /a%20b/./c?q HTTP/1.1\r\nHost: a.test:81\r\nContent-Length: 3\r\nX-A: 1\r\n\r\n", &stranger, &out));
    str_put_c(&out, 0);
    UT_CHECK(fw_ut_request((const char *)out.p, &stranger, &again));
    str_free(&out);
    str_free(&again);
}

UT(fw_responses)
{
    static const struct { int line; const char *in; struct fw_response fw; const char *out; } rows[] = {
        UT_ROW("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-A: 1\r\n\r\n", {.framing = HTTP_BODY_LENGTH, .length = 5, .minor = 1, .keep = true},
               "HTTP/1.1 200 OK\r\nX-A: 1\r\nContent-Length: 5\r\n\r\n"),
        UT_ROW("HTTP/1.1 200 Fine then\r\nTransfer-Encoding: chunked\r\n\r\n", {.framing = HTTP_BODY_CHUNKED, .minor = 1, .keep = true},
               "HTTP/1.1 200 Fine then\r\nTransfer-Encoding: chunked\r\n\r\n"),
        UT_ROW("HTTP/1.0 200 OK\r\n\r\n", {.framing = HTTP_BODY_EOF, .minor = 0, .keep = false}, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"),
        UT_ROW("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", {.framing = HTTP_BODY_LENGTH, .length = 5, .minor = 0, .keep = true},
               "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: keep-alive\r\n\r\n"),
        UT_ROW("HTTP/1.1 200 OK\r\nConnection: close, X-B\r\nX-B: 2\r\nKeep-Alive: 3\r\nContent-Length: 0\r\n\r\n", {.framing = HTTP_BODY_LENGTH, .minor = 1, .keep = true},
               "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"),
        UT_ROW("HTTP/1.1 304 Not Modified\r\nContent-Length: 77\r\nETag: x\r\n\r\n", {.framing = HTTP_BODY_NONE, .minor = 1, .keep = true, .pass_length = true},
               "HTTP/1.1 304 Not Modified\r\nContent-Length: 77\r\nETag: x\r\n\r\n"),
        UT_ROW("HTTP/1.1 204 No Content\r\nX-A: 1\r\n\r\n", {.framing = HTTP_BODY_NONE, .minor = 1, .keep = true, .no_length = true}, "HTTP/1.1 204 No Content\r\nX-A: 1\r\n\r\n"),
        UT_ROW("HTTP/1.1 204 No Content\r\nContent-Length: 0\r\nX-A: 1\r\n\r\n", {.framing = HTTP_BODY_NONE, .minor = 1, .keep = true, .no_length = true, .pass_length = true},
               "HTTP/1.1 204 No Content\r\nX-A: 1\r\n\r\n"), /* to HEAD */
        UT_ROW("HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n", {.framing = HTTP_BODY_NONE, .minor = 1, .keep = false, .no_length = true}, "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"),
        UT_ROW("HTTP/1.1 200 OK\r\nServer: nginx\r\nContent-Length: 0\r\n\r\n", {.framing = HTTP_BODY_LENGTH, .minor = 1, .keep = true}, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"),
        UT_ROW("HTTP/1.1 200 OK\r\nServer: nginx\r\nContent-Length: 0\r\n\r\n", {.framing = HTTP_BODY_LENGTH, .minor = 1, .keep = true, .server_field = true},
               "HTTP/1.1 200 OK\r\nServer: nginx\r\nContent-Length: 0\r\n\r\n"),
        UT_ROW("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: y\r\n\r\n", {.framing = HTTP_BODY_NONE, .minor = 1, .upgrade = true},
               "HTTP/1.1 101 Switching Protocols\r\nSec-WebSocket-Accept: y\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n"),
        UT_ROW("HTTP/1.1 426 Upgrade Required\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nContent-Length: 0\r\n\r\n", {.framing = HTTP_BODY_LENGTH, .minor = 1, .keep = true},
               "HTTP/1.1 426 Upgrade Required\r\nConnection: upgrade\r\nUpgrade: websocket\r\nContent-Length: 0\r\n\r\n"),
        UT_ROW("HTTP/1.1 426 Upgrade Required\r\nConnection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 0\r\n\r\n", {.framing = HTTP_BODY_LENGTH, .minor = 1, .keep = true},
               "HTTP/1.1 426 Upgrade Required\r\nContent-Length: 0\r\n\r\n"),
        UT_ROW("HTTP/1.1 200 OK\r\nSet-Cookie: a=1\r\nSet-Cookie: b=2\r\nContent-Length: 1\r\n\r\n", {.framing = HTTP_BODY_LENGTH, .length = 1, .minor = 1, .keep = true},
               "HTTP/1.1 200 OK\r\nSet-Cookie: a=1\r\nSet-Cookie: b=2\r\nContent-Length: 1\r\n\r\n"),
    };

    UT_EACH(r, rows) {
        struct h1_head *h = malloc(sizeof *h);
        struct str head = ut_str(r->in);
        struct str_builder out = str_growing();
        struct fw_response fw = r->fw;

        h1_head_init(h, false, HTTP_GET);
        if (UT_CHECK(h1_response_feed(h, head.p, head.n, &(struct h1_limits){.line_bytes = 8192, .head_bytes = 8192, .fields = 100, .underscores = true}) == (int)head.n)) {
            fw.msg = &h->msg;
            fw.head = head.p;
            fw_put_response(&out, &fw);
            UT_SLICE(str_built(&out), r->out);
        }
        str_free(&out);
        free(h);
    }
}

UT(fw_answers_and_dates)
{
    static const struct { int line; uint64_t ms; const char *out; } dates[] = {
        UT_ROW(784111777000, "Date: Sun, 06 Nov 1994 08:49:37 GMT\r\n"), UT_ROW(0, "Date: Thu, 01 Jan 1970 00:00:00 GMT\r\n"), UT_ROW(951782400000, "Date: Tue, 29 Feb 2000 00:00:00 GMT\r\n"),
        UT_ROW(1798761599999, "Date: Thu, 31 Dec 2026 23:59:59 GMT\r\n"),
    };
    static const struct { int line; unsigned status; bool head_only, keep; int minor; bool tokens; const char *rest; } answers[] = { /* behind the Date */
        UT_ROW(404, false, true, 1, false, "Content-Type: text/plain; charset=utf-8\r\nContent-Length: 14\r\n\r\n404 Not Found\n"),
        UT_ROW(404, true, true, 1, false, "Content-Type: text/plain; charset=utf-8\r\nContent-Length: 14\r\n\r\n"),
        UT_ROW(400, false, false, 1, true, "Server: ramjet\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: 16\r\nConnection: close\r\n\r\n400 Bad Request\n"),
        UT_ROW(502, false, true, 0, false, "Content-Type: text/plain; charset=utf-8\r\nContent-Length: 16\r\nConnection: keep-alive\r\n\r\n502 Bad Gateway\n"),
        UT_ROW(405, true, true, 1, false, "Content-Type: text/plain; charset=utf-8\r\nAllow: GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS\r\nContent-Length: 23\r\n\r\n"),
    };

    UT_EACH(r, dates) {
        uint8_t room[64];
        struct str_builder b = str_fixed(room, sizeof room);

        fw_put_date(&b, r->ms);
        UT_SLICE(str_built(&b), r->out);
    }
    UT_EACH(r, answers) {
        uint8_t room[512];
        struct str_builder b = str_fixed(room, sizeof room);
        struct str all, first;

        fw_put_answer(&b, &(struct fw_answer){.status = (uint16_t)r->status, .head_only = r->head_only, .keep = r->keep, .minor = (uint8_t)r->minor,
                                              .server_tokens = r->tokens});
        all = str_built(&b);
        UT_CHECK(str_cut(&all, '\n', &first) && str_cut(&all, '\n', &first) && str_starts(first, S("Date: ")));
        UT_SLICE(all, r->rest);
    }
}
