/* fw_: heads as they leave, bytes in to bytes out. Uses the readers of test_mw.c. */

struct fw_ut_peer {
    const char *peer, *client;
    bool trusted, full, no_id;
};

/* The request head that goes upstream for the one in `text`. */
static bool fw_ut_request(const char *text, const struct fw_ut_peer *p, struct str_builder *out)
{
    struct h1_head *h = malloc(sizeof *h);
    struct str head = ut_str(text);
    struct cfg cfg = {.compute_full_forwarded_for = p->full, .generate_request_id = !p->no_id};
    struct net_addr peer, client;
    struct fw_request fw = {.cfg = &cfg, .msg = &h->msg, .head = head.p, .client = &client, .peer = &peer, .port = 8080, .scheme = "http", .trusted = p->trusted};
    bool ok = h1_request_feed((h1_head_init(h, true, 0), h), head.p, head.n, &(struct h1_limits){.line_bytes = 8192, .head_bytes = 32768, .fields = 100}) > 0;
    uint8_t path[256];
    long n;

    if (UT_CHECK(ok)) {
        str_to_ip(str_z(p->peer), &peer);
        str_to_ip(str_z(p->client), &client);
        memset(fw.id, 'f', sizeof fw.id);
        n = h->msg.path_n ? http_path_normalize(str_of(head.p + h->msg.path_at, h->msg.path_n), path) : 0;
        fw.path = str_of(path, n > 0 ? (size_t)n : 0);
        fw.host = str_of(head.p + h->msg.host_at, h->msg.host_n);
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
    static const struct fw_ut_peer stranger = {"192.0.2.1", "192.0.2.1", false, false, false};
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

UT(fw_requests_of_other_peers)
{
    static const struct fw_ut_peer trusted = {"10.0.0.1", "1.1.1.1", true, false, true}, full = {"10.0.0.1", "1.1.1.1", true, true, true},
                                   plain = {"192.0.2.1", "192.0.2.1", false, true, true};
    static const struct { int line; const struct fw_ut_peer *peer; const char *in, *out; } rows[] = {
        UT_ROW(&trusted, "GET / HTTP/1.1\r\nHost: a.test\r\nX-Forwarded-For: 1.1.1.1\r\nX-Forwarded-Proto: https\r\nX-Forwarded-Host: shop\r\nX-Forwarded-Port: 443\r\nX-Forwarded-Scheme: https\r\nForwarded: for=1.1.1.1\r\n\r\n",
               "GET / HTTP/1.1\r\nHost: a.test\r\nX-Forwarded-Proto: https\r\nX-Forwarded-Host: shop\r\nX-Forwarded-Port: 443\r\nX-Forwarded-Scheme: https\r\nForwarded: for=1.1.1.1\r\n"
               "X-Real-IP: 1.1.1.1\r\nX-Forwarded-For: 1.1.1.1\r\n\r\n"),
        UT_ROW(&trusted, "GET / HTTP/1.1\r\nHost: a.test\r\nX-Forwarded-For: 9.9.9.9\r\nX-Forwarded-For: 1.1.1.1\r\n\r\n",
               "GET / HTTP/1.1\r\nHost: a.test\r\nX-Real-IP: 1.1.1.1\r\nX-Forwarded-For: 9.9.9.9, 1.1.1.1\r\nX-Forwarded-Host: a.test\r\nX-Forwarded-Port: 8080\r\nX-Forwarded-Proto: http\r\nX-Forwarded-Scheme: http\r\n\r\n"),
        UT_ROW(&trusted, "GET / HTTP/1.1\r\nHost: a.test\r\nX-Real-IP: 6.6.6.6\r\nX-Original-URI: /x\r\n\r\n",
               "GET / HTTP/1.1\r\nHost: a.test\r\nX-Real-IP: 1.1.1.1\r\nX-Forwarded-For: 1.1.1.1\r\nX-Forwarded-Host: a.test\r\nX-Forwarded-Port: 8080\r\nX-Forwarded-Proto: http\r\nX-Forwarded-Scheme: http\r\n\r\n"),
        UT_ROW(&full, "GET / HTTP/1.1\r\nHost: a.test\r\nX-Forwarded-For: 1.1.1.1\r\nX-Request-ID: mine\r\n\r\n",
               "GET / HTTP/1.1\r\nHost: a.test\r\nX-Request-ID: mine\r\nX-Real-IP: 1.1.1.1\r\nX-Forwarded-For: 1.1.1.1, 10.0.0.1\r\nX-Forwarded-Host: a.test\r\nX-Forwarded-Port: 8080\r\nX-Forwarded-Proto: http\r\nX-Forwarded-Scheme: http\r\n\r\n"),
        UT_ROW(&plain, "GET / HTTP/1.1\r\nHost: a.test\r\nX-Forwarded-For: 6.6.6.6\r\nX-Request-ID: mine\r\n\r\n",
               "GET / HTTP/1.1\r\nHost: a.test\r\nX-Request-ID: mine\r\nX-Real-IP: 192.0.2.1\r\nX-Forwarded-For: 192.0.2.1\r\nX-Forwarded-Host: a.test\r\nX-Forwarded-Port: 8080\r\nX-Forwarded-Proto: http\r\nX-Forwarded-Scheme: http\r\n\r\n"),
        UT_ROW(&plain, "GET /chat HTTP/1.1\r\nHost: a.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n",
               "GET /chat HTTP/1.1\r\nHost: a.test\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\nConnection: upgrade\r\nUpgrade: websocket\r\n"
               "X-Real-IP: 192.0.2.1\r\nX-Forwarded-For: 192.0.2.1\r\nX-Forwarded-Host: a.test\r\nX-Forwarded-Port: 8080\r\nX-Forwarded-Proto: http\r\nX-Forwarded-Scheme: http\r\n\r\n"),
    };

    UT_EACH(r, rows) {
        struct str_builder out = str_growing();

        if (fw_ut_request(r->in, r->peer, &out)) UT_SLICE(str_built(&out), r->out);
        str_free(&out);
    }
}

/* A head that was written is accepted by the reader that it was made with. */
UT(fw_requests_are_read_again)
{
    static const struct fw_ut_peer stranger = {"192.0.2.1", "192.0.2.1", false, false, false};
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
