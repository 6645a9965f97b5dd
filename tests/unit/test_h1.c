/* Unit tests of h1_: heads, trailers and bodies at every split point and octet by octet, directly before an unmapped page. */

enum h1t_kind { H1T_REQUEST, H1T_RESPONSE, H1T_TRAILER, H1T_TRAILER_OF_RESPONSE };
static const struct h1_limits h1t_limits = {.line_bytes = 8192, .head_bytes = 32768, .fields = 100};

static void h1t_init(struct h1_head *h, enum h1t_kind kind, uint8_t method)
{
    memset(h, 0xa5, sizeof *h);
    h1_head_init(h, kind == H1T_REQUEST || kind == H1T_TRAILER, method);
}

static int h1t_feed(struct h1_head *h, enum h1t_kind kind, const uint8_t *p, size_t n, const struct h1_limits *limits)
{
    switch (kind) {
    case H1T_REQUEST: return h1_request_feed(h, p, n, limits);
    case H1T_RESPONSE: return h1_response_feed(h, p, n, limits);
    default: return h1_trailer_feed(h, p, n, limits);
    }
}

static bool h1t_same(const struct h1_head *a, const struct h1_head *b)
{
    return a->at == b->at && a->skip == b->skip && a->msg.nfields == b->msg.nfields &&
           memcmp(&a->msg, &b->msg, offsetof(struct http_msg, field) + a->msg.nfields * sizeof a->msg.field[0]) == 0;
}

/* Feeds the octets whole, in two parts at every point, and one by one: the answer is the same. Returns it; *h holds the whole one's result and
 * *decided how many octets decided it. */
static int h1t_run(struct h1_head *h, enum h1t_kind kind, uint8_t method, const void *bytes, size_t n, const struct h1_limits *limits, size_t *decided)
{
    static struct h1_head part;
    int whole, rc = 0;

    h1t_init(h, kind, method);
    whole = h1t_feed(h, kind, ut_guard(0, bytes, n), n, limits);
    h1t_init(&part, kind, method);
    for (*decided = 0; *decided <= n && rc == 0;) {
        rc = h1t_feed(&part, kind, ut_guard(1, bytes, *decided), *decided, limits);
        if (rc == 0) ++*decided;
    }
    UT_INT(rc, whole);
    if (whole > 0) UT_CHECK(h1t_same(h, &part));
    for (size_t k = 0; k < n && n < 3000; k++) {
        h1t_init(&part, kind, method);
        rc = h1t_feed(&part, kind, ut_guard(1, bytes, k), k, limits);
        if (rc != 0 && k >= *decided && rc == whole) continue;
        UT_INT(rc, 0);
        rc = h1t_feed(&part, kind, ut_guard(2, bytes, n), n, limits);
        UT_INT(rc, whole);
        if (whole > 0) UT_CHECK(h1t_same(h, &part));
    }
    return whole;
}

#define B(lit) lit, sizeof(lit) - 1
#define GET_(fields) B("GET / HTTP/1.1\r\nHost: a.test\r\n" fields "\r\n")
#define POST_(fields) B("POST / HTTP/1.1\r\nHost: a.test\r\n" fields "\r\n")
#define TE_ "Transfer-Encoding: chunked\r\n"
#define CL_ "Content-Length: 5\r\n"

UT(h1_request_is_taken)
{
    static const struct { int line; const char *in; size_t n; int framing; uint64_t length; } rows[] = {
        UT_ROW(GET_(""), HTTP_BODY_NONE, 0),
        UT_ROW(B("\r\nGET / HTTP/1.1\r\nHost: a.test\r\n\r\n"), HTTP_BODY_NONE, 0),
        UT_ROW(B("GET / HTTP/1.0\r\n\r\n"), HTTP_BODY_NONE, 0),
        UT_ROW(B("GET / HTTP/1.2\r\nHost: a.test\r\n\r\n"), HTTP_BODY_NONE, 0),
        UT_ROW(B("get / HTTP/1.1\r\nHost: a.test\r\n\r\n"), HTTP_BODY_NONE, 0),
        UT_ROW(B("M-SEARCH / HTTP/1.1\r\nHost: a.test\r\n\r\n"), HTTP_BODY_NONE, 0),
        UT_ROW(B("!#$%&'*+-.^_`|~09azAZ / HTTP/1.1\r\nHost: a.test\r\n\r\n"), HTTP_BODY_NONE, 0),
        UT_ROW(B("OPTIONS * HTTP/1.1\r\nHost: a.test\r\n\r\n"), HTTP_BODY_NONE, 0),
        UT_ROW(B("GET http://a.test HTTP/1.1\r\nHost: b.test\r\n\r\n"), HTTP_BODY_NONE, 0),
        UT_ROW(B("GET http://a.test/ HTTP/1.0\r\n\r\n"), HTTP_BODY_NONE, 0),
        UT_ROW(B("GET hTTps://a.test:1/x?y HTTP/1.1\r\nHost: a.test\r\n\r\n"), HTTP_BODY_NONE, 0),
        UT_ROW(B("GET http://[::1]:80?y HTTP/1.1\r\nHost: a.test\r\n\r\n"), HTTP_BODY_NONE, 0),
        UT_ROW(B("GET /%41%2f%5c%7e?%41=%2F&b\\|^ HTTP/1.1\r\nHost: a.test\r\n\r\n"), HTTP_BODY_NONE, 0),
        UT_ROW(B("GET /-._~!$&'()*+,;=:@/?-._~!$&'()*+,;=:@/? HTTP/1.1\r\nHost: a.test\r\n\r\n"), HTTP_BODY_NONE, 0),
        UT_ROW(POST_(CL_), HTTP_BODY_LENGTH, 5),
        UT_ROW(GET_(CL_), HTTP_BODY_LENGTH, 5),
        UT_ROW(POST_("Content-Length: 0\r\n"), HTTP_BODY_LENGTH, 0),
        UT_ROW(POST_("cOnTent-lengtH:\t 5 \t\r\n"), HTTP_BODY_LENGTH, 5),
        UT_ROW(POST_("Content-Length: 9223372036854775807\r\n"), HTTP_BODY_LENGTH, INT64_MAX),
        UT_ROW(POST_(TE_), HTTP_BODY_CHUNKED, 0),
        UT_ROW(GET_(TE_), HTTP_BODY_CHUNKED, 0),
        UT_ROW(POST_("transfer-ENCODING:\t Chunked \t\r\n"), HTTP_BODY_CHUNKED, 0),
        UT_ROW(POST_("Transfer-Encoding:chunked\r\n"), HTTP_BODY_CHUNKED, 0),
        UT_ROW(POST_("Expect: 100-Continue\r\n" CL_), HTTP_BODY_LENGTH, 5),
        UT_ROW(POST_("Content_Length: 37\r\n"), HTTP_BODY_NONE, 0),
        UT_ROW(POST_("Transfer_Encoding: chunked\r\n" CL_), HTTP_BODY_LENGTH, 5),
        UT_ROW(POST_("Connection: Content-Length, Transfer-Encoding, Host\r\n" CL_), HTTP_BODY_LENGTH, 5),
        UT_ROW(GET_("X:\r\nY: \r\nZ: \t \r\n"), HTTP_BODY_NONE, 0),
        UT_ROW(GET_("X: a\tb\xe4\xff\x80 c\r\n"), HTTP_BODY_NONE, 0),
        UT_ROW(GET_("!#$%&'*+-.^`|~09azAZ: v\r\n"), HTTP_BODY_NONE, 0),
        UT_ROW(GET_("Connection: ,, x ,\r\nConnection: \"odd\"\r\n"), HTTP_BODY_NONE, 0),
        UT_ROW(B("GET / HTTP/1.1\r\nHost: A.test.:80\r\n\r\nGET"), HTTP_BODY_NONE, 0),
    };
    static struct h1_head h;
    size_t decided;

    UT_EACH(r, rows) {
        int rc = h1t_run(&h, H1T_REQUEST, 0, r->in, r->n, &h1t_limits, &decided);
        const char *end = strstr(r->in + 2, "\r\n\r\n");

        UT_INT(rc, end - r->in + 4);
        UT_INT(decided, rc);
        UT_INT(h.msg.framing, r->framing);
        UT_INT(h.msg.length, r->length);
        UT_INT(h.msg.has_length, r->framing == HTTP_BODY_LENGTH);
    }
}

/* Every one is refused, and by its last octet: nothing behind that is waited for. */
UT(h1_request_is_refused_at_the_first_octet_that_cannot_be_right)
{
    static const struct { int line; const char *in; size_t n; int status; } rows[] = {
        /* H8 */
        UT_ROW(B("\n"), 400), UT_ROW(B("\rG"), 400), UT_ROW(B(" "), 400), UT_ROW(B("\r\n\r"), 400), UT_ROW(B("\r\n\n"), 400), UT_ROW(B("\r\n "), 400),
        /* H9 */
        UT_ROW(B("GET  "), 400), UT_ROW(B("GET\t"), 400), UT_ROW(B("GET\r"), 400), UT_ROW(B("GET / \x20"), 400), UT_ROW(B("GET /\t"), 400), UT_ROW(B("GET /\x0b"), 400),
        UT_ROW(B("GET /a b"), 400), UT_ROW(B("GET / HTTP/1.1 "), 400), UT_ROW(B("GET/"), 400), UT_ROW(B("GET / x"), 400), UT_ROW(B("GET HTTP/"), 400), UT_ROW(B("GET /\r"), 400),
        UT_ROW(B("GET /\n"), 400),
        /* H10 */
        UT_ROW(B("GET / HTTP/1.10"), 400), UT_ROW(B("GET / HTTP/2"), 400), UT_ROW(B("GET / HTTP/0"), 400), UT_ROW(B("GET / h"), 400), UT_ROW(B("GET / Ht"), 400),
        UT_ROW(B("GET / HTTP/1.\r"), 400), UT_ROW(B("GET / HTTP/1\r"), 400), UT_ROW(B("GET / HTTP/."), 400), UT_ROW(B("GET / HTTP/11"), 400), UT_ROW(B("GET / HTTP/1.1x"), 400),
        UT_ROW(B("GET / HTTP/-"), 400), UT_ROW(B("GET / HTTP\\"), 400), UT_ROW(B("GET / HTTPS"), 400), UT_ROW(B("GET / I"), 400),
        UT_ROW(B("GET / HTTP/1,"), 400), UT_ROW(B("GET / HTTP/1.\xb2"), 400), UT_ROW(B("GET / HTTP/1.1\0"), 400), UT_ROW(B("GET / 1"), 400), UT_ROW(B("PRI *"), 400),
        /* H11 */
        UT_ROW(B("GE("), 400), UT_ROW(B("GE\0"), 400), UT_ROW(B("G\xc3"), 400), UT_ROW(B("GET:"), 400),
        UT_ROW(B("TRACE / HTTP/1.1\r\n"), 405), UT_ROW(B("PRI / HTTP/1.1\r\n"), 400), UT_ROW(B("PRI *"), 400), UT_ROW(B("CONNECT a.test:80 HTTP/1.1\r\n"), 405), UT_ROW(B("CONNECT / HTTP/1.1\r\n"), 405), UT_ROW(B("\x16"), 400), UT_ROW(B("CONNECT  "), 400),
        /* H13 */
        UT_ROW(B("GET http://u@"), 400), UT_ROW(B("GET http:///"), 400), UT_ROW(B("GET http:// "), 400), UT_ROW(B("GET f"), 400), UT_ROW(B("GET http://a.test/#"), 400),
        UT_ROW(B("GET http://a.test#"), 400), UT_ROW(B("GET http:/a"), 400), UT_ROW(B("GET httpss"), 400), UT_ROW(B("GET http://a..b/"), 400), UT_ROW(B("GET http://a:x/"), 400),
        UT_ROW(B("GET http://a.test%"), 400), UT_ROW(B("GET http://a.test\\"), 400),
        /* H15 */
        UT_ROW(B("GET /a#"), 400), UT_ROW(B("GET /a\x01"), 400), UT_ROW(B("GET /a\0"), 400), UT_ROW(B("GET /a\x7f"), 400), UT_ROW(B("GET /\xc3"), 400), UT_ROW(B("GET /\x80"), 400),
        UT_ROW(B("GET /% "), 400), UT_ROW(B("GET /%z"), 400), UT_ROW(B("GET /%4g"), 400), UT_ROW(B("GET /%4 "), 400), UT_ROW(B("GET /%00"), 400), UT_ROW(B("GET /a?%00"), 400),
        UT_ROW(B("GET /a?%z"), 400), UT_ROW(B("GET \\"), 400), UT_ROW(B("GET a"), 400), UT_ROW(B("GET ?"), 400), UT_ROW(B("GET #"), 400), UT_ROW(B("GET /?#"), 400), UT_ROW(B("GET /?a\xff"), 400),
        UT_ROW(B("GET /a\\"), 400), UT_ROW(B("GET /a\""), 400), UT_ROW(B("GET /<"), 400), UT_ROW(B("GET /?>"), 400), UT_ROW(B("GET /aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\x80"), 400),
        /* H16 */
        UT_ROW(B("GET *"), 400), UT_ROW(B("OPTIONS *x"), 400),
        /* H5, H6 */
        UT_ROW(B("GET / HTTP/1.1\n"), 400), UT_ROW(B("GET / HTTP/1.1\rH"), 400), UT_ROW(B("GET / HTTP/1.1\r\nX: y\n"), 400), UT_ROW(B("GET / HTTP/1.1\r\nX: y\rZ"), 400),
        UT_ROW(B("GET / HTTP/1.1\r\nX: y\r\n\n"), 400), UT_ROW(B("GET / HTTP/1.1\r\nX: y\r\n\rX"), 400), UT_ROW(B("GET / HTTP/1.1\r\nX: y\r\r"), 400),
        /* H1, H7 */
        UT_ROW(B("GET / HTTP/1.1\r\n "), 400), UT_ROW(B("GET / HTTP/1.1\r\n\t"), 400), UT_ROW(B("GET / HTTP/1.1\r\nX: y\r\n "), 400), UT_ROW(B("GET / HTTP/1.1\r\nX: y\r\n\t"), 400),
        UT_ROW(B("GET / HTTP/1.1\r\nX:\r\n "), 400),
        /* H2, H3 */
        UT_ROW(B("GET / HTTP/1.1\r\nHost "), 400), UT_ROW(B("GET / HTTP/1.1\r\nX\t"), 400), UT_ROW(B("GET / HTTP/1.1\r\nNoColon\r"), 400), UT_ROW(B("GET / HTTP/1.1\r\n:"), 400),
        UT_ROW(B("GET / HTTP/1.1\r\nX\0"), 400), UT_ROW(B("GET / HTTP/1.1\r\nX\x85"), 400), UT_ROW(B("GET / HTTP/1.1\r\nX("), 400), UT_ROW(B("GET / HTTP/1.1\r\nX\x7f"), 400),
        UT_ROW(B("GET / HTTP/1.1\r\nX\n"), 400), UT_ROW(B("GET / HTTP/1.1\r\nX@"), 400), UT_ROW(B("GET / HTTP/1.1\r\nX["), 400), UT_ROW(B("GET / HTTP/1.1\r\nX`{"), 400),
        /* H4 */
        UT_ROW(B("GET / HTTP/1.1\r\nX: a\0"), 400), UT_ROW(B("GET / HTTP/1.1\r\nX: a\x01"), 400), UT_ROW(B("GET / HTTP/1.1\r\nX: a\x0b"), 400), UT_ROW(B("GET / HTTP/1.1\r\nX: a\x0c"), 400),
        UT_ROW(B("GET / HTTP/1.1\r\nX: a\x1f"), 400), UT_ROW(B("GET / HTTP/1.1\r\nX: a\x7f"), 400), UT_ROW(B("GET / HTTP/1.1\r\nX: a\rb"), 400),
        UT_ROW(B("GET / HTTP/1.1\r\nX: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\x08"), 400),
        /* F1, F2, F7, F8: at the end of the second line */
        UT_ROW(B("POST / HTTP/1.1\r\nHost: a\r\n" CL_ TE_), 400), UT_ROW(B("POST / HTTP/1.1\r\nHost: a\r\n" TE_ CL_), 400), UT_ROW(B("POST / HTTP/1.1\r\n" TE_ TE_), 400),
        UT_ROW(B("POST / HTTP/1.1\r\n" CL_ CL_), 400), UT_ROW(B("POST / HTTP/1.1\r\n" CL_ "X: y\r\nContent-Length: 6\r\n"), 400), UT_ROW(B("POST / HTTP/1.1\r\nContent-Length: 5,"), 400),
        UT_ROW(B("POST / HTTP/1.1\r\n" TE_ "Content-Length: 0\r\n"), 400), UT_ROW(B("POST / HTTP/1.1\r\n" TE_ "Transfer-Encoding: i"), 400),
        /* F3, F4, F6 */
        UT_ROW(B("POST / HTTP/1.1\r\nTransfer-Encoding: x"), 400), UT_ROW(B("POST / HTTP/1.1\r\nTransfer-Encoding: chunked;"), 400), UT_ROW(B("POST / HTTP/1.1\r\nTransfer-Encoding: ,"), 400),
        UT_ROW(B("POST / HTTP/1.1\r\nTransfer-Encoding: chunked,"), 400), UT_ROW(B("POST / HTTP/1.1\r\nTransfer-Encoding: \x0b"), 400), UT_ROW(B("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\0"), 400),
        UT_ROW(B("POST / HTTP/1.1\r\nTransfer-Encoding: \""), 400), UT_ROW(B("POST / HTTP/1.1\r\nTransfer-Encoding: chunked x"), 400), UT_ROW(B("POST / HTTP/1.1\r\nTransfer-Encoding: \xa0"), 400),
        UT_ROW(B("POST / HTTP/1.1\r\nTransfer-Encoding: chunkedd"), 400), UT_ROW(B("POST / HTTP/1.1\r\nTransfer-Encoding: chunke\r\n"), 400), UT_ROW(B("POST / HTTP/1.1\r\nTransfer-Encoding: g"), 400),
        UT_ROW(B("POST / HTTP/1.1\r\nTransfer-Encoding:\r\n"), 400), UT_ROW(B("POST / HTTP/1.1\r\nTransfer-Encoding:  \r\n"), 400), UT_ROW(B("POST / HTTP/1.1\r\nTransfer-Encoding "), 400),
        UT_ROW(B("POST / HTTP/1.1\r\nTransfer-Encoding: c\th"), 400),
        /* F5 */
        UT_ROW(B("POST / HTTP/1.0\r\n" TE_), 400),
        /* F9, F10 */
        UT_ROW(B("POST / HTTP/1.1\r\nContent-Length: +"), 400), UT_ROW(B("POST / HTTP/1.1\r\nContent-Length: -"), 400), UT_ROW(B("POST / HTTP/1.1\r\nContent-Length: 0x"), 400),
        UT_ROW(B("POST / HTTP/1.1\r\nContent-Length: 5 5"), 400), UT_ROW(B("POST / HTTP/1.1\r\nContent-Length: 5_"), 400), UT_ROW(B("POST / HTTP/1.1\r\nContent-Length: \r\n"), 400),
        UT_ROW(B("POST / HTTP/1.1\r\nContent-Length: 5a"), 400), UT_ROW(B("POST / HTTP/1.1\r\nContent-Length: 5."), 400), UT_ROW(B("POST / HTTP/1.1\r\nContent-Length: 5\x0b"), 400),
        UT_ROW(B("POST / HTTP/1.1\r\nContent-Length: 5\0"), 400), UT_ROW(B("POST / HTTP/1.1\r\nContent-Length: \xef"), 400), UT_ROW(B("POST / HTTP/1.1\r\nContent-Length: 9223372036854775808\r\n"), 400),
        UT_ROW(B("POST / HTTP/1.1\r\nContent-Length: 18446744073709551621\r\n"), 400), UT_ROW(B("POST / HTTP/1.1\r\nContent-Length: 99999999999999999999999\r\n"), 400),
        UT_ROW(B("POST / HTTP/1.1\r\nContent-Length: 0005\r\n"), 400), UT_ROW(B("POST / HTTP/1.1\r\nContent-Length: 00\r\n"), 400), UT_ROW(B("POST / HTTP/1.1\r\nContent-Length "), 400),
        /* F12, H21 */
        UT_ROW(B("POST / HTTP/1.1\r\nExpect: x 100-continue\r\n"), 417), UT_ROW(B("POST / HTTP/1.1\r\nExpect: 100-continue, x\r\n"), 417), UT_ROW(B("POST / HTTP/1.1\r\nExpect: 200-ok\r\n"), 417),
        UT_ROW(B("POST / HTTP/1.1\r\nExpect: 100-continuex\r\n"), 417), UT_ROW(B("POST / HTTP/1.1\r\nExpect: 100-continue\r\nExpect: x\r\n"), 417), UT_ROW(B("POST / HTTP/1.1\r\nExpect:\r\n"), 417),
        /* H12 */
        UT_ROW(B("GET / HTTP/1.1\r\n\r\n"), 400), UT_ROW(B("GET http://a.test/ HTTP/1.1\r\n\r\n"), 400), UT_ROW(B("GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n"), 400),
        UT_ROW(B("GET / HTTP/1.1\r\nHost: a\r\nhOST: b\r\n"), 400), UT_ROW(B("GET / HTTP/1.1\r\nHost: a,"), 400), UT_ROW(B("GET / HTTP/1.1\r\nHost: a/"), 400), UT_ROW(B("GET / HTTP/1.1\r\nHost: u@"), 400),
        UT_ROW(B("GET / HTTP/1.1\r\nHost: a b"), 400), UT_ROW(B("GET / HTTP/1.1\r\nHost:\r\n"), 400), UT_ROW(B("GET / HTTP/1.1\r\nHost: :80\r\n"), 400), UT_ROW(B("GET / HTTP/1.1\r\nHost: [::1\r\n"), 400),
        UT_ROW(B("GET / HTTP/1.1\r\nHost: a:8x\r\n"), 400), UT_ROW(B("GET / HTTP/1.1\r\nHost: a..\r\n"), 400), UT_ROW(B("GET http://a.test/ HTTP/1.1\r\nHost:\r\n"), 400),
        UT_ROW(B("GET http://a.test/ HTTP/1.1\r\nHost: b b"), 400), UT_ROW(B("GET / HTTP/1.0\r\nHost: a\r\nHost: a\r\n"), 400), UT_ROW(B("GET / HTTP/1.1\r\nHost: a\xc3"), 400),
    };
    static struct h1_head h;
    size_t decided;

    UT_EACH(r, rows) {
        int rc = h1t_run(&h, H1T_REQUEST, 0, r->in, r->n, &h1t_limits, &decided);

        UT_INT(rc, -r->status);
        UT_CHECK(h.why != NULL);
        UT_INT(decided, r->n);
        /* What comes behind changes nothing. */
        static uint8_t more[4096];
        memcpy(more, r->in, r->n);
        memcpy(more + r->n, "\r\nHost: a.test\r\n\r\n", 18);
        UT_INT(h1t_run(&h, H1T_REQUEST, 0, more, r->n + 18, &h1t_limits, &decided), -r->status);
    }
}

UT(h1_request_target_parts)
{
    static const struct { int line; const char *target, *path, *query, *host; bool plain; } rows[] = {
        UT_ROW("/", "/", NULL, "h", true),
        UT_ROW("/a/b.c", "/a/b.c", NULL, "h", true),
        UT_ROW("/a?", "/a", "", "h", true),
        UT_ROW("/a?b?c", "/a", "b?c", "h", true),
        UT_ROW("/a?%41/../b", "/a", "%41/../b", "h", true),
        UT_ROW("/%41", "/%41", NULL, "h", false),
        UT_ROW("/a/../b", "/a/../b", NULL, "h", false),
        UT_ROW("/a/..", "/a/..", NULL, "h", false),
        UT_ROW("/.", "/.", NULL, "h", false),
        UT_ROW("/a/..;/b", "/a/..;/b", NULL, "h", false),
        UT_ROW("/.well-known/...", "/.well-known/...", NULL, "h", true),
        UT_ROW("//x", "//x", NULL, "h", true),
        UT_ROW("http://A.test:80/x?y", "/x", "y", "A.test:80", true),
        UT_ROW("http://a.test", "", NULL, "a.test", false),
        UT_ROW("https://a.test?y", "", "y", "a.test", false),
        UT_ROW("HTTP://[::1]/", "/", NULL, "[::1]", true),
    };
    static struct h1_head h;
    char head[256];
    size_t decided;

    UT_EACH(r, rows) {
        int n = snprintf(head, sizeof head, "GET %s HTTP/1.1\r\nHost: h\r\n\r\n", r->target);
        const uint8_t *p = (const uint8_t *)head;
        const struct http_msg *m = &h.msg;

        UT_INT(h1t_run(&h, H1T_REQUEST, 0, head, (size_t)n, &h1t_limits, &decided), n);
        UT_SLICE(str_of(p + m->target_at, m->target_n), r->target);
        UT_SLICE(str_of(p + m->path_at, m->path_n), r->path);
        UT_INT(m->has_query, r->query != NULL);
        if (r->query) UT_SLICE(str_of(p + m->query_at, m->query_n), r->query);
        UT_SLICE(str_of(p + m->host_at, m->host_n), r->host);
        UT_INT(m->path_plain, r->plain);
    }
}

/* The names of the fields that are sent on, each with ';'. */
static const char *h1t_kept(const struct http_msg *m, const char *head)
{
    static char out[4096];
    size_t n = 0;

    for (size_t i = 0; i < m->nfields; i++) {
        if (m->field[i].drop) continue;
        n += (size_t)snprintf(out + n, sizeof out - n, "%.*s;", (int)m->field[i].name_n, head + m->field[i].name_at);
    }
    out[n] = 0;
    return out;
}

/* What the writer of the next head does not copy. */
static void h1t_drop_made_anew(struct http_msg *m)
{
    for (size_t i = 0; i < m->nfields; i++)
        if (m->field[i].id == HTTP_F_HOST || http_field_flags((enum http_field_id)m->field[i].id) & HTTP_FRAME) m->field[i].drop = true;
}

UT(h1_request_fields_that_are_sent_on)
{
    static const struct { int line; const char *in; size_t n; const char *kept; bool keep_alive, upgrade, expect, te; } rows[] = {
        UT_ROW(GET_("X: y\r\n"), "X;", true, false, false, false),
        UT_ROW(GET_("Connection: close\r\n"), "", false, false, false, false),
        UT_ROW(GET_("Connection: x, CLOSE\r\nX: 1\r\nY: 1\r\n"), "Y;", false, false, false, false),
        UT_ROW(GET_("Connection: keep-alive, close\r\n"), "", false, false, false, false),
        UT_ROW(B("GET / HTTP/1.0\r\nX: y\r\n\r\n"), "X;", false, false, false, false),
        UT_ROW(B("GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n"), "", true, false, false, false),
        UT_ROW(B("GET / HTTP/1.0\r\nConnection: Keep-Alive\r\nConnection: close\r\n\r\n"), "", false, false, false, false),
        /* An option that is no token leaves the end of the connection in doubt. */
        UT_ROW(GET_("Connection: close;x\r\n"), "", false, false, false, false),
        /* H18, H23 */
        UT_ROW(GET_("X-A: 1\r\nX-a: 2\r\nConnection: ,, x-A ,\r\nConnection: X-B\r\nX-B: 3\r\nX-C: 4\r\n"), "X-C;", true, false, false, false),
        UT_ROW(GET_("Connection: close, X-Forwarded-For, X-Real-IP, Host, Content-Length, Cookie, Authorization, X-Request-ID, X-Foo, User-Agent\r\nX-Forwarded-For: 6\r\n"
                    "X-Real-IP: 6\r\nContent-Length: 5\r\nCookie: a\r\nAuthorization: b\r\nX-Request-ID: c\r\nX-Foo: d\r\nUser-Agent: e\r\n"),
               "X-Forwarded-For;X-Real-IP;Cookie;Authorization;X-Request-ID;", false, false, false, false),
        UT_ROW(GET_("Keep-Alive: timeout=5\r\nProxy-Connection: keep-alive\r\nProxy: http://evil.test/\r\nTE: gzip\r\nUpgrade: h2c\r\nHTTP2-Settings: AAAA\r\n"
                    "Connection: Upgrade, HTTP2-Settings\r\nX: y\r\n"), "X;", true, false, false, false),
        UT_ROW(GET_("TE: gzip;q=0.5, Trailers\r\n"), "", true, false, false, true),
        /* H17 */
        UT_ROW(GET_("X_Forwarded_For: 6\r\nX-Forwarded_For: 6\r\n_: 1\r\nX: y\r\n"), "X;", true, false, false, false),
        UT_ROW(GET_("X.Forwarded.For: 6\r\nContent~Length: 7\r\nTransfer!Encoding: chunked\r\nUpgrade: h2c\r\nssl.client.verify: 1\r\nX.Y: 2\r\nX.Forwarded: 3\r\n"), "X.Y;",
               true, false, false, false),
        /* Expect goes on only where there is a body to wait for. */
        UT_ROW(POST_("Expect: 100-continue\r\n" CL_), "Expect;", true, false, true, false),
        UT_ROW(POST_("Expect: 100-continue\r\n" TE_), "Expect;", true, false, true, false),
        UT_ROW(POST_("Expect: 100-continue\r\n"), "", true, false, false, false),
        UT_ROW(POST_("Expect: 100-continue\r\nContent-Length: 0\r\n"), "", true, false, false, false),
        UT_ROW(B("POST / HTTP/1.0\r\nExpect: 100-continue\r\n" CL_ "\r\n"), "", false, false, false, false),
        /* 7.4 */
        UT_ROW(GET_("Upgrade: WebSocket\r\nConnection: keep-alive, Upgrade\r\nSec-WebSocket-Key: x\r\n"), "Sec-WebSocket-Key;", true, true, false, false),
        UT_ROW(GET_("Upgrade: websocket\r\n"), "", true, false, false, false),
        UT_ROW(GET_("Connection: upgrade\r\n"), "", true, false, false, false),
        UT_ROW(GET_("Upgrade: websocket, h2c\r\nConnection: upgrade\r\n"), "", true, false, false, false),
        UT_ROW(GET_("Upgrade: websocket\r\nUpgrade: h2c\r\nConnection: upgrade\r\n"), "", true, false, false, false),
        UT_ROW(GET_("Upgrade: h2c\r\nUpgrade: websocket\r\nConnection: upgrade\r\n"), "", true, false, false, false),
        UT_ROW(GET_("Upgrade: websocket\r\nConnection: upgrade\r\nContent-Length: 1\r\n"), "", true, false, false, false),
        UT_ROW(GET_("Upgrade: websocket\r\nConnection: upgrade\r\n" TE_), "", true, false, false, false),
        UT_ROW(POST_("Upgrade: websocket\r\nConnection: upgrade\r\n"), "", true, false, false, false),
        UT_ROW(B("GET / HTTP/1.0\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n"), "", false, false, false, false),
    };
    static struct h1_head h;
    uint8_t out[4096];
    size_t decided;

    UT_EACH(r, rows) {
        struct str_builder sb = str_fixed(out, sizeof out);
        static struct h1_head again;
        int rc = h1t_run(&h, H1T_REQUEST, 0, r->in, r->n, &h1t_limits, &decided);

        UT_INT(rc, r->n);
        h1t_drop_made_anew(&h.msg);
        UT_TEXT(h1t_kept(&h.msg, r->in), r->kept);
        UT_INT(h.msg.keep_alive, r->keep_alive);
        UT_INT(h.msg.upgrade, r->upgrade);
        UT_INT(h.msg.expect, r->expect);
        UT_INT(h.msg.te_trailers, r->te);
        /* What is copied reads the same. */
        UT_CHECK(h1_put_kept(&sb, &h.msg, (const uint8_t *)r->in));
        str_put(&sb, S("\r\n"));
        h1t_init(&again, H1T_TRAILER, 0);
        UT_INT(h1_trailer_feed(&again, sb.p, sb.n, &h1t_limits), sb.n);
        for (size_t i = 0; i < again.msg.nfields; i++) again.msg.field[i].drop = false;
        UT_TEXT(h1t_kept(&again.msg, (const char *)sb.p), r->kept);
    }
    struct h1_limits wide = h1t_limits;

    wide.underscores = true;
    h1t_run(&h, H1T_REQUEST, 0, GET_("X_Y: 6\r\nContent_Length: 7\r\n"), &wide, &decided);
    h1t_drop_made_anew(&h.msg);
    UT_TEXT(h1t_kept(&h.msg, "GET / HTTP/1.1\r\nHost: a.test\r\nX_Y: 6\r\nContent_Length: 7\r\n"), "X_Y;");
    UT_INT(h.msg.framing, HTTP_BODY_NONE);
}

/* Every octet in every place, against the RFCs' own lists. */
UT(h1_every_octet)
{
    static const char token[] = "!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    static const char target[] = "!$&'()*+,-./0123456789:;=@ABCDEFGHIJKLMNOPQRSTUVWXYZ[]^_`abcdefghijklmnopqrstuvwxyz{|}~";
    static const char *const forms[] = {
        "G?T / HTTP/1.1\r\nHost: a\r\n\r\n", "GET / HTTP/1.1\r\nHost: a\r\nX?Y: z\r\n\r\n", "GET / HTTP/1.1\r\nHost: a\r\nX: a?b\r\n\r\n",
        "GET /a?b HTTP/1.1\r\nHost: a\r\n\r\n", "GET /\1a?b HTTP/1.1\r\nHost: a\r\n\r\n",
    };
    static struct h1_head h;
    char text[128];

    for (int form = 0; form < 5; form++) {
        for (int c = 0; c < 256; c++) {
            size_t n = strlen(forms[form]), at = (size_t)(strchr(forms[form], '?') - forms[form]);
            bool is_token = c && strchr(token, c), is_target = c && strchr(target, c), is_value = c == '\t' || (c >= 0x20 && c != 0x7f);
            bool want = form == 0 ? is_token || c == ' ' : form == 1 ? is_token || c == ':' : form == 2 ? is_value : form == 3 ? is_target || c == '?' : is_target || strchr("?\\", c);

            if (form == 0 && c == ' ') want = false;     /* `G T / ...` */
            if (form == 4 && c == 0) want = false;
            memcpy(text, forms[form], n);
            text[at] = (char)c;
            if (form == 4) text[5] = '?';
            h1t_init(&h, H1T_REQUEST, 0);
            UT_INT(h1_request_feed(&h, ut_guard(0, text, n), n, &h1t_limits), want ? (int)n : -400);
        }
    }
}

UT(h1_field_values_are_trimmed)
{
    static const char head[] = "GET / HTTP/1.1\r\nHost: a.test\r\nX: \t a b \t \r\nY:\r\nZ:c\r\nW: \t\r\n\r\n";
    static const char *const want[] = {"a.test", "a b", "", "c", ""};
    static struct h1_head h;
    size_t decided;

    UT_INT(h1t_run(&h, H1T_REQUEST, 0, B(head), &h1t_limits, &decided), sizeof head - 1);
    UT_REQUIRE(h.msg.nfields == 5);
    for (int i = 0; i < 5; i++) UT_SLICE(str_of(head + h.msg.field[i].value_at, h.msg.field[i].value_n), want[i]);
}

/* A request of a request line of `line` octets and a whole head of `head` octets. */
static size_t h1t_build(char *out, size_t line, size_t head, size_t fields)
{
    size_t n = 0;

    n += (size_t)sprintf(out + n, "GET /");
    while (n < line - 9) out[n++] = 'a';
    n += (size_t)sprintf(out + n, " HTTP/1.1\r\nHost: a.test\r\n");
    for (size_t i = 1; i < fields; i++) n += (size_t)sprintf(out + n, "X: y\r\n");
    if (head) {
        n += (size_t)sprintf(out + n, "X: ");
        while (n < head - 4) out[n++] = 'b';
        n += (size_t)sprintf(out + n, "\r\n");
    }
    n += (size_t)sprintf(out + n, "\r\n");
    return n;
}

UT(h1_limits_at_limit_and_one_more)
{
    static const struct h1_limits limits = {.line_bytes = 64, .head_bytes = 400, .fields = 10};
    static const struct { int line; size_t line_n, head, fields; int want; } rows[] = {
        UT_ROW(64, 0, 1, 1),
        UT_ROW(65, 0, 1, -414),
        UT_ROW(66, 0, 1, -414),
        UT_ROW(300, 0, 1, -414),
        UT_ROW(30, 400, 1, 1),
        UT_ROW(30, 401, 1, -431),
        UT_ROW(30, 402, 1, -431),
        UT_ROW(30, 403, 1, -431),
        UT_ROW(30, 404, 1, -431),
        UT_ROW(30, 1000, 1, -431),
        UT_ROW(30, 0, 10, 1),
        UT_ROW(30, 0, 11, -431),
        UT_ROW(500, 1000, 1, -414),
    };
    static char text[100000];
    static struct h1_head h;
    size_t decided;

    UT_EACH(r, rows) {
        size_t n = h1t_build(text, r->line_n, r->head, r->fields);

        UT_INT(h1t_run(&h, H1T_REQUEST, 0, text, n, &limits, &decided), r->want < 0 ? r->want : (int)n);
        /* The limit is of the head, not of what follows it. */
        memset(text + n, 'x', 1000);
        UT_INT(h1t_run(&h, H1T_REQUEST, 0, text, n + 1000, &limits, &decided), r->want < 0 ? r->want : (int)n);
    }
    /* A name does not outgrow its 16 bits (a length that wraps once hid a Content-Length). */
    struct h1_limits big = {.line_bytes = 64, .head_bytes = 99000, .fields = 10};
    static const struct { int line; size_t name_n; int want; } names[] = {UT_ROW(300, 1), UT_ROW(65535, 1), UT_ROW(65536, -431), UT_ROW(65536 + 14, -431)};

    UT_EACH(r, names) {
        size_t n = (size_t)sprintf(text, "GET / HTTP/1.1\r\nHost: a.test\r\n");
        int rc;

        memset(text + n, 'X', r->name_n);
        n += r->name_n;
        n += (size_t)sprintf(text + n, ": a\r\n\r\n");
        h1t_init(&h, H1T_REQUEST, 0);
        rc = h1_request_feed(&h, ut_guard(0, text, n), n, &big);
        UT_INT(rc, r->want < 0 ? r->want : (int)n);
        if (rc > 0) UT_INT(h.msg.field[1].name_n, r->name_n);
    }
    /* Storage bounds the fields whatever the limit says. */
    struct h1_limits many = {.line_bytes = 64, .head_bytes = 99000, .fields = 100000};

    UT_INT(h1t_run(&h, H1T_REQUEST, 0, text, h1t_build(text, 30, 0, HTTP_FIELDS_MAX), &many, &decided) > 0, 1);
    UT_INT(h1t_run(&h, H1T_REQUEST, 0, text, h1t_build(text, 30, 0, HTTP_FIELDS_MAX + 1), &many, &decided), -431);
}

UT(h1_connection_options_are_bounded)
{
    static char text[4096];
    static struct h1_head h;
    size_t decided;

    for (int extra = 0; extra < 2; extra++) {
        size_t n = (size_t)sprintf(text, "GET / HTTP/1.1\r\nHost: a.test\r\nConnection: close");

        for (int i = 0; i < HTTP_NOMINATED_MAX + extra; i++) n += (size_t)sprintf(text + n, ",a%d", i);
        n += (size_t)sprintf(text + n, "\r\n\r\n");
        UT_INT(h1t_run(&h, H1T_REQUEST, 0, text, n, &h1t_limits, &decided), extra ? -400 : (int)n);
    }
}

#define OK_(fields) B("HTTP/1.1 200 OK\r\n" fields "\r\n")

UT(h1_response_is_taken)
{
    static const struct { int line; const char *in; size_t n; uint8_t method; int status, framing; uint64_t length; bool keep_alive; } rows[] = {
        UT_ROW(OK_("Content-Length: 2\r\n"), HTTP_GET, 200, HTTP_BODY_LENGTH, 2, true),
        UT_ROW(OK_("Content-Length: \t2 \r\n"), HTTP_GET, 200, HTTP_BODY_LENGTH, 2, true),
        UT_ROW(OK_("Content-Length: 0\r\n"), HTTP_GET, 200, HTTP_BODY_LENGTH, 0, true),
        UT_ROW(OK_(TE_), HTTP_GET, 200, HTTP_BODY_CHUNKED, 0, true),
        UT_ROW(OK_(""), HTTP_GET, 200, HTTP_BODY_EOF, 0, false),
        UT_ROW(OK_("Connection: close\r\n" CL_), HTTP_GET, 200, HTTP_BODY_LENGTH, 5, false),
        UT_ROW(OK_("Connection: x, CLOSE\r\n" CL_), HTTP_GET, 200, HTTP_BODY_LENGTH, 5, false),
        UT_ROW(OK_("Host: a b\r\nHost: c\r\nExpect: x\r\n" CL_), HTTP_GET, 200, HTTP_BODY_LENGTH, 5, true),
        UT_ROW(OK_("X: \xe4\xff\r\n" CL_), HTTP_GET, 200, HTTP_BODY_LENGTH, 5, true),
        UT_ROW(B("HTTP/1.0 200 OK\r\n" CL_ "\r\n"), HTTP_GET, 200, HTTP_BODY_LENGTH, 5, false),
        UT_ROW(B("HTTP/1.0 200 OK\r\nConnection: keep-alive\r\n" CL_ "\r\n"), HTTP_GET, 200, HTTP_BODY_LENGTH, 5, true),
        UT_ROW(B("HTTP/1.0 200 OK\r\nConnection: keep-alive\r\n\r\n"), HTTP_GET, 200, HTTP_BODY_EOF, 0, false),
        UT_ROW(B("HTTP/1.1 200 \r\n" CL_ "\r\n"), HTTP_GET, 200, HTTP_BODY_LENGTH, 5, true),
        UT_ROW(B("HTTP/1.1 200\r\n" CL_ "\r\n"), HTTP_GET, 200, HTTP_BODY_LENGTH, 5, true),
        UT_ROW(B("HTTP/1.1 200 \xe4 a\tb\r\n" CL_ "\r\n"), HTTP_GET, 200, HTTP_BODY_LENGTH, 5, true),
        UT_ROW(B("HTTP/1.1 299 Strange\r\n" CL_ "\r\n"), HTTP_GET, 299, HTTP_BODY_LENGTH, 5, true),
        UT_ROW(B("HTTP/1.1 599 Strange\r\n" CL_ "\r\n"), HTTP_GET, 599, HTTP_BODY_LENGTH, 5, true),
        /* F23 */
        UT_ROW(OK_(CL_), HTTP_HEAD, 200, HTTP_BODY_NONE, 5, true),
        UT_ROW(OK_(TE_), HTTP_HEAD, 200, HTTP_BODY_NONE, 0, true),
        UT_ROW(OK_(""), HTTP_HEAD, 200, HTTP_BODY_NONE, 0, true),
        UT_ROW(B("HTTP/1.1 204 No Content\r\n\r\n"), HTTP_GET, 204, HTTP_BODY_NONE, 0, true),
        UT_ROW(B("HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n"), HTTP_GET, 204, HTTP_BODY_NONE, 0, true),
        UT_ROW(B("HTTP/1.1 204 No Content\r\n" CL_ "\r\n"), HTTP_GET, 204, HTTP_BODY_NONE, 5, false),
        UT_ROW(B("HTTP/1.1 204 No Content\r\n" CL_ "\r\n"), HTTP_HEAD, 204, HTTP_BODY_NONE, 5, false),
        UT_ROW(B("HTTP/1.1 204 No Content\r\n" TE_ "\r\n"), HTTP_GET, 204, HTTP_BODY_NONE, 0, false),
        UT_ROW(B("HTTP/1.1 304 Not Modified\r\n" CL_ "\r\n"), HTTP_GET, 304, HTTP_BODY_NONE, 5, true),
        UT_ROW(B("HTTP/1.1 100 Continue\r\n\r\n"), HTTP_POST, 100, HTTP_BODY_NONE, 0, true),
        UT_ROW(B("HTTP/1.1 103 Early Hints\r\nContent-Length: 0\r\n\r\n"), HTTP_GET, 103, HTTP_BODY_NONE, 0, true),
        UT_ROW(B("HTTP/1.1 205 Reset Content\r\nContent-Length: 0\r\n\r\n"), HTTP_GET, 205, HTTP_BODY_LENGTH, 0, true),
    };
    static struct h1_head h;
    size_t decided;

    UT_EACH(r, rows) {
        int rc = h1t_run(&h, H1T_RESPONSE, r->method, r->in, r->n, &h1t_limits, &decided);

        UT_INT(rc, r->n);
        UT_INT(decided, r->n);
        UT_INT(h.msg.status, r->status);
        UT_INT(h.msg.framing, r->framing);
        UT_INT(h.msg.length, r->length);
        UT_INT(h.msg.keep_alive, r->keep_alive);
        UT_CHECK(!h.msg.upgrade);
        if (r->status < 200 || r->status == 204) UT_CHECK(!h.msg.has_length);
    }
}

UT(h1_response_fields_and_upgrade)
{
    static const struct { int line; const char *in; size_t n; const char *kept; bool upgrade; } rows[] = {
        UT_ROW(OK_("Connection: keep-alive, X-A\r\nX-A: 1\r\nKeep-Alive: timeout=5\r\nProxy-Connection: x\r\nX-B: 2\r\nX_C: 3\r\n" CL_), "X-B;X_C;", false),
        UT_ROW(OK_("Set-Cookie: a=1\r\nSet-Cookie: b=2\r\nConnection: Set-Cookie\r\n" CL_), "Set-Cookie;Set-Cookie;", false),
        UT_ROW(B("HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nX: y\r\n\r\n"), "X;", true),
        UT_ROW(B("HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n"), "", false),
        UT_ROW(B("HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n"), "", false),
        UT_ROW(B("HTTP/1.1 101 Switching Protocols\r\n\r\n"), "", false),
        UT_ROW(B("HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nContent-Length: 0\r\n\r\n"), "", false),
        UT_ROW(OK_("Upgrade: websocket\r\nConnection: Upgrade\r\n" CL_), "", false),
    };
    static struct h1_head h;
    size_t decided;

    UT_EACH(r, rows) {
        UT_INT(h1t_run(&h, H1T_RESPONSE, HTTP_GET, r->in, r->n, &h1t_limits, &decided), r->n);
        h1t_drop_made_anew(&h.msg);
        UT_TEXT(h1t_kept(&h.msg, r->in), r->kept);
        UT_INT(h.msg.upgrade, r->upgrade);
    }
}

UT(h1_response_is_refused_at_the_first_octet_that_cannot_be_right)
{
    static const struct { int line; const char *in; size_t n; } rows[] = {
        UT_ROW(B("HTTP/1.1 20 ")), UT_ROW(B("HTTP/1.1 2000")), UT_ROW(B("HTTP/2")), UT_ROW(B("HTTP/1.1  ")), UT_ROW(B("HTTP/1.1 2x")), UT_ROW(B("HTTP/1.1 0")), UT_ROW(B("HTTP/1.12")),
        UT_ROW(B("h")), UT_ROW(B("I")), UT_ROW(B("HTTP/1.1 200 O\0")), UT_ROW(B("S")), UT_ROW(B("HTTP/1.1 -")), UT_ROW(B("HTTP/1.1 +")), UT_ROW(B(" ")), UT_ROW(B("\r")), UT_ROW(B("\n")),
        UT_ROW(B("HTTP/1.1 6")), UT_ROW(B("HTTP/1.1 9")), UT_ROW(B("HTTP/1.1\t")), UT_ROW(B("HTTP/1.1\r")), UT_ROW(B("HTTP/1.1 200\n")), UT_ROW(B("HTTP/1.1 200 OK\n")), UT_ROW(B("HTTP/1.1 200 OK\rX")),
        UT_ROW(B("HTTP/1.1 200 O\x7f")), UT_ROW(B("HTTP/1.1 200x")), UT_ROW(B("\x16")), UT_ROW(B("<")), UT_ROW(B("HTTP/0")),
        UT_ROW(B("HTTP/1.1 200 OK\r\n ")), UT_ROW(B("HTTP/1.1 200 OK\r\nX: y\r\n ")), UT_ROW(B("HTTP/1.1 200 OK\r\nContent-Length ")), UT_ROW(B("HTTP/1.1 200 OK\r\nNoColon\r")),
        UT_ROW(B("HTTP/1.1 200 OK\r\n:")), UT_ROW(B("HTTP/1.1 200 OK\r\nX\0")), UT_ROW(B("HTTP/1.1 200 OK\r\nX: a\0")), UT_ROW(B("HTTP/1.1 200 OK\r\nX: a\rb")), UT_ROW(B("HTTP/1.1 200 OK\r\nX: a\n")),
        UT_ROW(B("HTTP/1.1 200 OK\r\n" CL_ TE_)), UT_ROW(B("HTTP/1.1 200 OK\r\n" TE_ CL_)), UT_ROW(B("HTTP/1.1 200 OK\r\n" CL_ "Content-Length: 6\r\n")), UT_ROW(B("HTTP/1.1 200 OK\r\n" CL_ CL_)),
        UT_ROW(B("HTTP/1.1 200 OK\r\nContent-Length: 2,")), UT_ROW(B("HTTP/1.1 200 OK\r\n" TE_ TE_)), UT_ROW(B("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked,")),
        UT_ROW(B("HTTP/1.1 200 OK\r\nTransfer-Encoding: g")), UT_ROW(B("HTTP/1.1 200 OK\r\nTransfer-Encoding: x")), UT_ROW(B("HTTP/1.1 200 OK\r\nTransfer-Encoding: i")), UT_ROW(B("HTTP/1.0 200 OK\r\n" TE_)),
        UT_ROW(B("HTTP/1.1 200 OK\r\nContent-Length: +")), UT_ROW(B("HTTP/1.1 200 OK\r\nContent-Length: -")), UT_ROW(B("HTTP/1.1 200 OK\r\nContent-Length: 0x")), UT_ROW(B("HTTP/1.1 200 OK\r\nContent-Length:\r\n")),
        UT_ROW(B("HTTP/1.1 100 Continue\r\n" CL_ "\r\n")), UT_ROW(B("HTTP/1.1 103 Early Hints\r\n" TE_ "\r\n")), UT_ROW(B("HTTP/1.1 101 Switching Protocols\r\n" CL_ "\r\n")), UT_ROW(B("HTTP/1.1 199 x\r\n" TE_ "\r\n")),
        UT_ROW(B("HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n" TE_ "Connection: Upgrade\r\n\r\n")),
        UT_ROW(B("HTTP/1.0 100 Continue\r\n\r\n")), UT_ROW(B("HTTP/1.0 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n")),
        UT_ROW(B("HTTP/1.1 200 OK\r\nContent-Length: 2 2")), UT_ROW(B("HTTP/1.1 200 OK\r\nContent-Length: 2\x0b")), UT_ROW(B("HTTP/1.1 200 OK\r\nContent-Length: 18446744073709551618\r\n")),
    };
    static struct h1_head h;
    size_t decided;

    UT_EACH(r, rows) {
        for (int method = HTTP_GET; method <= HTTP_HEAD; method++) {
            UT_INT(h1t_run(&h, H1T_RESPONSE, (uint8_t)method, r->in, r->n, &h1t_limits, &decided), -502);
            UT_INT(decided, r->n);
            UT_CHECK(h.why != NULL);
        }
    }
    struct h1_limits small = {.line_bytes = 1, .head_bytes = 50, .fields = 2};

    UT_INT(h1t_run(&h, H1T_RESPONSE, HTTP_GET, B("HTTP/1.1 200 OK\r\nX: y\r\nContent-Length: 1234567\r\n\r\n"), &small, &decided), 50);
    UT_INT(h1t_run(&h, H1T_RESPONSE, HTTP_GET, B("HTTP/1.1 200 OK\r\nX: y\r\nContent-Length: 12345678\r\n\r\n"), &small, &decided), -502);
    UT_INT(h1t_run(&h, H1T_RESPONSE, HTTP_GET, B("HTTP/1.1 200 OK\r\nX: y\r\nX: y\r\nX: y\r\n\r\n"), &small, &decided), -502);
}

UT(h1_trailers)
{
    static const struct { int line; const char *in; size_t n; int want; const char *kept; } rows[] = {
        UT_ROW(B("\r\n"), 2, ""),
        UT_ROW(B("\r\nGET"), 2, ""),
        UT_ROW(B("X-Sum: 1\r\n\r\n"), 12, "X-Sum;"),
        UT_ROW(B("X-Sum: 1\r\nContent-Length: 100\r\nX-Forwarded-For: 6.6.6.6\r\nGrpc-Status: 0\r\n\r\n"), 75, "X-Sum;Grpc-Status;"),
        UT_ROW(B("Transfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n\r\n"), 52, ""),
        UT_ROW(B("Host: a b\r\nAuthorization: c\r\nCookie: d\r\nConnection: X\r\nContent-Type: e\r\nTE: f\r\nTrailer: g\r\nX: 1\r\n\r\n"), 99, "X;"),
        UT_ROW(B("X-Bad : v\r\n\r\n"), -400, NULL),
        UT_ROW(B("nocolon\r\n\r\n"), -400, NULL),
        UT_ROW(B("X: y\nZ: 1\r\n\r\n"), -400, NULL),
        UT_ROW(B("X: y\rZ: 1\r\n\r\n"), -400, NULL),
        UT_ROW(B("X: y\0\r\n\r\n"), -400, NULL),
        UT_ROW(B("X: y\r\n z\r\n\r\n"), -400, NULL),
        UT_ROW(B(": y\r\n\r\n"), -400, NULL),
        UT_ROW(B("\n"), -400, NULL),
        UT_ROW(B("\rX"), -400, NULL),
        UT_ROW(B("X_Y: 1\r\n\r\n"), 10, ""),
        UT_ROW(B("X-Forwarded-User: a\r\nssl-client-verify: SUCCESS\r\nTrue-Client-IP: 6\r\nX-Rewrite-URL: /\r\nX.Real.IP: 6\r\nX.Y: 1\r\n\r\n"), 110, "X.Y;"),
    };
    static const struct h1_limits small = {.line_bytes = 1, .head_bytes = 20, .fields = 2};
    static struct h1_head h;
    size_t decided;

    UT_EACH(r, rows) {
        UT_INT(h1t_run(&h, H1T_TRAILER, 0, r->in, r->n, &h1t_limits, &decided), r->want);
        if (r->want > 0) UT_TEXT(h1t_kept(&h.msg, r->in), r->kept);
        UT_INT(h1t_run(&h, H1T_TRAILER_OF_RESPONSE, 0, r->in, r->n, &h1t_limits, &decided), r->want < 0 ? -502 : r->want);
    }
    UT_INT(h1t_run(&h, H1T_TRAILER, 0, B("X: 3456789012345\r\n\r\n"), &small, &decided), 20);
    UT_INT(h1t_run(&h, H1T_TRAILER, 0, B("X: 34567890123456\r\n\r\n"), &small, &decided), -431);
    UT_INT(h1t_run(&h, H1T_TRAILER, 0, B("X:\r\nX:\r\nX:\r\n\r\n"), &small, &decided), -431);
}

/* Feeds a body in pieces of `size` octets; the content goes to out. Returns octets used, or -1; *done tells whether it is complete. */
static long h1t_body(struct h1_body *b, const void *bytes, size_t n, size_t first, size_t size, char *out, size_t *out_n)
{
    const uint8_t *in = bytes;
    size_t at = 0;

    *out_n = 0;
    while (at < n && !b->done) {
        size_t want = at == 0 && first ? first : size, k = n - at < want ? n - at : want, from = 0;
        const uint8_t *p = ut_guard(3, in + at, k);

        while (from < k && !b->done) {
            struct str data;
            long used = h1_body_feed(b, p + from, k - from, &data);

            if (used < 0) return -1;
            if (!UT_CHECK(used > 0 && (size_t)used <= k - from && data.n <= (size_t)used)) return -2;
            if (data.n) {
                UT_CHECK(data.p >= p + from && data.p + data.n <= p + k);
                memcpy(out + *out_n, data.p, data.n);
            }
            *out_n += data.n;
            from += (size_t)used;
        }
        at += from;
    }
    return (long)at;
}

static void h1t_body_row(int framing, uint64_t length, const char *in, size_t n, long want, const char *content)
{
    static char out[20000];
    size_t out_n;

    for (size_t k = 0; k <= n + 2; k++) {
        struct h1_body b;
        long used;

        h1_body_init(&b, (enum http_framing)framing, length);
        used = h1t_body(&b, in, n, k < n ? k : 0, k < n ? n : k == n ? 1 : 3, out, &out_n);
        if (want < 0) {
            UT_INT(used, -1);
            UT_CHECK(b.why != NULL);
            continue;
        }
        UT_INT(used, want);
        UT_BYTES(out, out_n, content, strlen(content));
        UT_INT(b.in_trailer, b.done && framing == HTTP_BODY_CHUNKED);
    }
}

UT(h1_body_by_length_and_to_the_end)
{
    struct h1_body b;
    struct str data;

    h1t_body_row(HTTP_BODY_LENGTH, 5, B("hello"), 5, "hello");
    h1t_body_row(HTTP_BODY_LENGTH, 5, B("helloGET"), 5, "hello");
    h1t_body_row(HTTP_BODY_LENGTH, 0, B("GET"), 0, "");
    h1t_body_row(HTTP_BODY_NONE, 0, B("GET"), 0, "");
    h1t_body_row(HTTP_BODY_EOF, 0, B("hello"), 5, "hello");
    h1_body_init(&b, HTTP_BODY_LENGTH, 5);
    UT_CHECK(!b.done);
    UT_INT(h1_body_feed(&b, (const uint8_t *)"hell", 4, &data), 4);
    UT_CHECK(!b.done);
    h1_body_init(&b, HTTP_BODY_LENGTH, 0);
    UT_CHECK(b.done);
    h1_body_init(&b, HTTP_BODY_EOF, 0);
    UT_INT(h1_body_feed(&b, (const uint8_t *)"x", 1, &data), 1);
    UT_CHECK(!b.done);
}

UT(h1_body_in_chunks)
{
    static const struct { int line; const char *in; size_t n; long want; const char *content; } rows[] = {
        UT_ROW(B("0\r\n\r\n"), 3, ""),
        UT_ROW(B("000\r\n\r\n"), 5, ""),
        UT_ROW(B("5\r\nhello\r\n0\r\n\r\n"), 13, "hello"),
        UT_ROW(B("0005\r\nhello\r\n0\r\nX: y\r\n\r\n"), 16, "hello"),
        UT_ROW(B("a\r\n0123456789\r\nA\r\n0123456789\r\n0\r\n\r\n"), 33, "01234567890123456789"),
        UT_ROW(B("1\r\na\r\n1\r\nb\r\n1\r\nc\r\n0\r\n\r\n"), 21, "abc"),
        UT_ROW(B("5;a=b\r\nhello\r\n0;c\r\n\r\n"), 19, "hello"),
        UT_ROW(B("5;a=\"b;c\"\r\nhello\r\n0\r\n\r\n"), 21, "hello"),
        UT_ROW(B("5\r\nhel"), 6, "hel"),
        UT_ROW(B("0000000000000005\r\nhello\r\n0\r\n\r\n"), 28, "hello"),
        UT_ROW(B("7fffffffffffffff\r\nhello"), 23, "hello"),
        UT_ROW(B("2\r\n\r\n\r\n0\r\n\r\n"), 10, "\r\n"),
        /* F13: refused by the octet that is wrong */
        UT_ROW(B("0x"), -1, ""), UT_ROW(B("+"), -1, ""), UT_ROW(B("-"), -1, ""), UT_ROW(B("5_"), -1, ""), UT_ROW(B("0_"), -1, ""), UT_ROW(B(" "), -1, ""), UT_ROW(B("\t"), -1, ""), UT_ROW(B("5 "), -1, ""),
        UT_ROW(B("5\t"), -1, ""), UT_ROW(B("\r"), -1, ""), UT_ROW(B("g"), -1, ""), UT_ROW(B("5g"), -1, ""), UT_ROW(B("\0"), -1, ""), UT_ROW(B("5\0"), -1, ""), UT_ROW(B("5,"), -1, ""), UT_ROW(B("5."), -1, ""),
        UT_ROW(B("\""), -1, ""), UT_ROW(B(";"), -1, ""), UT_ROW(B("00000000000000005"), -1, ""), UT_ROW(B("10000000000000005"), -1, ""), UT_ROW(B("8000000000000000"), -1, ""),
        UT_ROW(B("ffffffffffffffff"), -1, ""), UT_ROW(B("hello"), -1, ""), UT_ROW(B("\xb5"), -1, ""),
        UT_ROW(B("5\r\nhello\r\n5x"), -1, ""), UT_ROW(B("5\r\nhello\r\n-"), -1, ""), UT_ROW(B("5\r\nhello\r\n\r"), -1, ""),
        /* F14, F15 */
        UT_ROW(B("5;\n"), -1, ""), UT_ROW(B("5;a\n"), -1, ""), UT_ROW(B("5;a\rb"), -1, ""), UT_ROW(B("5\r\r"), -1, ""), UT_ROW(B("5\n"), -1, ""), UT_ROW(B("5\rx"), -1, ""), UT_ROW(B("0;\n"), -1, ""),
        UT_ROW(B("5;a\0"), -1, ""), UT_ROW(B("5;\x01"), -1, ""), UT_ROW(B("5;\x7f"), -1, ""), UT_ROW(B("5;\xff"), -1, ""), UT_ROW(B("5;a=\"\0"), -1, ""), UT_ROW(B("5;a=\"\\\x01"), -1, ""),
        UT_ROW(B("5;\r"), -1, ""), UT_ROW(B("0;\r"), -1, ""), UT_ROW(B("5; \r"), -1, ""), UT_ROW(B("5;;"), -1, ""), UT_ROW(B("5;a;\r"), -1, ""), UT_ROW(B("5;="), -1, ""), UT_ROW(B("5;a=\r"), -1, ""), UT_ROW(B("5;a= \r"), -1, ""),
        UT_ROW(B("5;a=;"), -1, ""), UT_ROW(B("5;a=b="), -1, ""), UT_ROW(B("5;a b"), -1, ""), UT_ROW(B("5;a=b c"), -1, ""), UT_ROW(B("5;a \r"), -1, ""), UT_ROW(B("5;a=b \r"), -1, ""), UT_ROW(B("5;a,"), -1, ""), UT_ROW(B("5;["), -1, ""),
        UT_ROW(B("5;\""), -1, ""), UT_ROW(B("5;a\""), -1, ""), UT_ROW(B("5;a=b\""), -1, ""), UT_ROW(B("5;a=\"\r"), -1, ""), UT_ROW(B("5;a=\"\\\r"), -1, ""), UT_ROW(B("5;a=\"\n"), -1, ""), UT_ROW(B("5;a=\"b\"c"), -1, ""),
        UT_ROW(B("5;a=\"b\"="), -1, ""), UT_ROW(B("5;a=\"b\" \r"), -1, ""), UT_ROW(B("5;a=\"b\" c"), -1, ""), UT_ROW(B("5;a=\"b\"\""), -1, ""),
        UT_ROW(B("5; a = b ; c;d=\"e;\\\"\x80\t\" ;f\r\nhello\r\n0;g=h\r\n\r\n"), 42, "hello"),
        /* F16, F17 */
        UT_ROW(B("5\r\nhelloX"), -1, ""), UT_ROW(B("5\r\nhello\n"), -1, ""), UT_ROW(B("5\r\nhello\rX"), -1, ""), UT_ROW(B("5\r\nhello\r0"), -1, ""), UT_ROW(B("6\r\nhello\r\n"), -1, ""),
        UT_ROW(B("5\r\nhello\r\n0\n"), -1, ""), UT_ROW(B("5\r\nhello\r\n0\rX"), -1, ""),
    };

    UT_EACH(r, rows) h1t_body_row(HTTP_BODY_CHUNKED, 0, r->in, r->n, r->want, r->content);
}

UT(h1_chunk_extensions_are_bounded_by_content)
{
    static char in[40000];
    static char out[40000];
    struct h1_body b;
    size_t out_n, n;

    for (int extra = 0; extra < 2; extra++) {
        n = (size_t)sprintf(in, "5;");
        memset(in + n, 'a', (size_t)(H1_EXT_MAX - 1 + extra));
        n += (size_t)(H1_EXT_MAX - 1 + extra);
        n += (size_t)sprintf(in + n, "\r\nhello\r\n0\r\n");
        h1_body_init(&b, HTTP_BODY_CHUNKED, 0);
        UT_INT(h1t_body(&b, in, n, 0, 1000, out, &out_n), extra ? -1 : (long)n);
    }
    /* Many small ones add up, and are forgiven by content. */
    for (int content = 1; content <= 85; content += 84) {
        n = 0;
        for (int i = 0; i < 150; i++) {
            n += (size_t)sprintf(in + n, "%x;chunk-signature=%064d\r\n", content, i);
            memset(in + n, 'b', (size_t)content);
            n += (size_t)content;
            n += (size_t)sprintf(in + n, "\r\n");
        }
        h1_body_init(&b, HTTP_BODY_CHUNKED, 0);
        UT_INT(h1t_body(&b, in, n, 0, 1000, out, &out_n), content == 1 ? -1 : (long)n);
    }
}

UT(h1_chunks_beyond_the_room_are_refused_by_their_size)
{
    static const struct { int line; uint64_t room; const char *in; size_t n; bool too_large; } rows[] = {
        UT_ROW(5, B("5\r\nhello\r\n0\r\n"), false),
        UT_ROW(6, B("5\r\nhello\r\n1\r\n!\r\n0\r\n"), false),
        UT_ROW(0, B("0\r\n"), false),
        UT_ROW(4, B("5\r\n"), true),
        UT_ROW(5, B("5\r\nhello\r\n1\r\n"), true),
        UT_ROW(1 << 20, B("7fffffffffffffff\r\n"), true),
        UT_ROW(0, B("1;a\r\n"), true),
    };
    static char out[64];
    struct h1_body b;
    size_t out_n;

    UT_EACH(r, rows)
        for (size_t cut = 0; cut <= r->n; cut++) {
            h1_body_init(&b, HTTP_BODY_CHUNKED, 0);
            b.room = r->room;
            UT_INT(h1t_body(&b, r->in, r->n, 0, cut ? cut : 1, out, &out_n), r->too_large ? -1 : (long)r->n);
            UT_INT(b.too_large, r->too_large);
        }
}

UT(h1_writers_emit_what_the_parser_takes)
{
    static const struct { int line; const char *method, *path, *query, *want; } lines[] = {
        UT_ROW("GET", "/", NULL, "GET / HTTP/1.1\r\n"),
        UT_ROW("GET", "/a%2F.b", "", "GET /a%2F.b? HTTP/1.1\r\n"),
        UT_ROW("M-SEARCH", "/", "a=%20?b", "M-SEARCH /?a=%20?b HTTP/1.1\r\n"),
        UT_ROW("OPTIONS", "*", NULL, "OPTIONS * HTTP/1.1\r\n"),
        UT_ROW("GET", "*", NULL, NULL), UT_ROW("OPTIONS", "*", "x", NULL), UT_ROW("", "/", NULL, NULL), UT_ROW("G T", "/", NULL, NULL), UT_ROW("GET", "", NULL, NULL), UT_ROW("GET", "a", NULL, NULL),
        UT_ROW("GET", "/a b", NULL, NULL), UT_ROW("GET", "/a\r\nX: y", NULL, NULL), UT_ROW("GET", "/%", NULL, NULL), UT_ROW("GET", "/%4", NULL, NULL), UT_ROW("GET", "/%00", NULL, NULL),
        UT_ROW("GET", "/a?b", NULL, NULL), UT_ROW("GET", "/a#b", NULL, NULL), UT_ROW("GET", "/", "a b", NULL), UT_ROW("GET", "/", "#", NULL), UT_ROW("GET", "/", "\xff", NULL), UT_ROW("GET", "/\\", NULL, NULL),
    };
    uint8_t out[256];
    struct str_builder sb;

    UT_EACH(r, lines) {
        sb = str_fixed(out, sizeof out);
        bool ok = h1_put_request_line(&sb, ut_str(r->method), S(""), ut_str(r->path), r->query ? ut_str(r->query) : (struct str){0}, r->query != NULL);

        UT_INT(ok, r->want != NULL);
        UT_INT(sb.failed, !ok);
        UT_SLICE(str_built(&sb), r->want ? r->want : "");
        if (ok) {
            static struct h1_head h;
            size_t decided;

            str_put(&sb, S("Host: a.test\r\n\r\n"));
            UT_INT(h1t_run(&h, H1T_REQUEST, 0, sb.p, sb.n, &h1t_limits, &decided), sb.n);
        }
    }
    sb = str_fixed(out, sizeof out);
    UT_CHECK(h1_put_status_line(&sb, 404, S("Not Found")));
    UT_CHECK(h1_put_status_line(&sb, 599, S("")));
    UT_CHECK(h1_put_chunk_size(&sb, 0x1aF));
    UT_CHECK(h1_put_chunk_size(&sb, 0));
    UT_SLICE(str_built(&sb), "HTTP/1.1 404 Not Found\r\nHTTP/1.1 599 \r\n1af\r\n0\r\n");
    UT_CHECK(!h1_put_status_line(&sb, 99, S("x")));
    sb = str_fixed(out, sizeof out);
    UT_CHECK(!h1_put_status_line(&sb, 600, S("x")));
    sb = str_fixed(out, sizeof out);
    UT_CHECK(!h1_put_status_line(&sb, 200, S("a\r\nb")));
    for (size_t cap = 0; cap < 16; cap++) {
        sb = str_fixed(ut_guard(4, out, cap), cap);
        UT_CHECK(!h1_put_request_line(&sb, S("GET"), S(""), S("/"), S(""), true));
        UT_CHECK(sb.failed && sb.n == 0);
    }
}

/* The vector scanners stop where the portable ones and the table stop, whatever the distance to the end. */
UT(h1_scanners_agree)
{
    static uint8_t buf[80];
    uint32_t seed = 1;

    for (int round = 0; round < 40000; round++) {
        size_t n = (size_t)(round % (int)sizeof buf), want;
        const uint8_t *p;

        for (size_t i = 0; i < n; i++) {
            seed = seed * 1664525 + 1013904223;
            buf[i] = (uint8_t)(seed >> 24);
            if (seed >> 8 & 31) buf[i] = (uint8_t)("abcXYZ019-/=~\xe4"[buf[i] % 14]);
        }
        if (n && round % 3 == 0) buf[seed % n] = (uint8_t)(round / 3);
        p = ut_guard(0, buf, n);
        want = h1_scan_class(p, 0, n, HTTP_C_VALUE);
        if (h1_scan_value(p, 0, n) != want || h1_scan_value_portable(p, 0, n) != want) UT_INT(h1_scan_value(p, 0, n), want);
        if (h1_scan_name(p, 0, n) != h1_scan_class(p, 0, n, HTTP_C_NAME)) UT_INT(h1_scan_name(p, 0, n), h1_scan_class(p, 0, n, HTTP_C_NAME));
        if (h1_scan_target(p, 0, n, true) != h1_scan_class(p, 0, n, HTTP_C_PATH)) UT_INT(h1_scan_target(p, 0, n, true), h1_scan_class(p, 0, n, HTTP_C_PATH));
        if (h1_scan_target(p, 0, n, false) != h1_scan_class(p, 0, n, HTTP_C_QUERY)) UT_INT(h1_scan_target(p, 0, n, false), h1_scan_class(p, 0, n, HTTP_C_QUERY));
    }
    for (int c = 0; c < 256; c++) {
        for (int k = 0; k < 17; k++) {
            memset(buf, 'a', 33);
            buf[k] = (uint8_t)c;
            UT_INT(h1_scan_value(buf, 0, 33) == 33, http_is((uint8_t)c, HTTP_C_VALUE));
            UT_INT(h1_scan_name(buf, 0, 33) == 33, http_is((uint8_t)c, HTTP_C_NAME));
            UT_INT(h1_scan_target(buf, 0, 33, true) == 33, http_is((uint8_t)c, HTTP_C_PATH));
            UT_INT(h1_scan_target(buf, 0, 33, false) == 33, http_is((uint8_t)c, HTTP_C_QUERY));
        }
    }
}

/* 0 .. n - 1. */
static uint32_t h1t_random(uint32_t *x, size_t n)
{
    *x ^= *x << 13;
    *x ^= *x >> 17;
    *x ^= *x << 5;
    return *x % (uint32_t)n;
}

/* Mutated heads: whole and in two random parts, the same answer and the same message; nothing is read behind the end. */
UT(h1_mutated_messages_read_the_same_in_parts)
{
    static const char *const seeds[] = {
        "GET /a/b.c?d=%20e HTTP/1.1\r\nHost: a.test\r\nUser-Agent: x/1 (y; z)\r\nAccept: */*\r\nConnection: keep-alive, X-A\r\nX-A: 1\r\n\r\n",
        "POST http://a.test:80/x HTTP/1.1\r\nHost: b.test\r\nContent-Length: 5\r\nExpect: 100-continue\r\nX_Y: z\r\nCookie: a=b; c=d\r\n\r\nhello",
        "\r\nPUT /%41/../b HTTP/1.1\r\nhost: [::1]:8080\r\nTransfer-Encoding: chunked\r\nTE: trailers\r\n\r\n5;a=b\r\nhello\r\n0\r\nX: y\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a.test\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nSet-Cookie: a=b\r\nServer: x\r\nDate: Thu\r\n\r\nok",
        "HTTP/1.0 304 Not Modified\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n",
        "X-Sum: 1\r\nContent-Length: 3\r\nGrpc-Status: 0\r\n\r\n",
    };
    static const uint8_t odd[] = {0, '\r', '\n', ' ', '\t', ':', ',', ';', '%', '#', '/', '.', '0', '5', 'a', 'Z', '_', '-', '@', '[', 0x7f, 0x80, 0xff, '\\', '*', '?'};
    static struct h1_head whole, part;
    static const struct h1_limits tight = {.line_bytes = 40, .head_bytes = 120, .fields = 4};
    uint8_t buf[512];
    uint32_t x = 2463534242u;
    int taken = 0;

    for (int round = 0; round < 100000; round++) {
        int s = round % (int)UT_COUNT(seeds), cuts = (int)h1t_random(&x, 4);
        enum h1t_kind kind = s < 4 ? H1T_REQUEST : s < 6 ? H1T_RESPONSE : H1T_TRAILER;
        const struct h1_limits *limits = h1t_random(&x, 8) ? &h1t_limits : &tight;
        size_t n = strlen(seeds[s]), k;
        int rc, rc2;

        memcpy(buf, seeds[s], n);
        for (; cuts > 0; cuts--) {
            size_t at = h1t_random(&x, n), len = h1t_random(&x, 8);

            switch (h1t_random(&x, 4)) {
            case 0: buf[at] = (uint8_t)h1t_random(&x, 256); break;
            case 1: buf[at] = odd[h1t_random(&x, sizeof odd)]; break;
            case 2:
                if (at + len >= n) break;
                memmove(buf + at, buf + at + len, n - at - len);
                n -= len;
                break;
            default:
                if (at + len > n) break;
                memmove(buf + at + len, buf + at, n - at);
                n += len;
            }
        }
        k = h1t_random(&x, n + 1);
        h1t_init(&whole, kind, HTTP_GET);
        h1t_init(&part, kind, HTTP_GET);
        rc = h1t_feed(&whole, kind, ut_guard(0, buf, n), n, limits);
        rc2 = h1t_feed(&part, kind, ut_guard(1, buf, k), k, limits);
        if (rc2 == 0) rc2 = h1t_feed(&part, kind, ut_guard(2, buf, n), n, limits);
        if (rc != rc2) UT_INT(rc2, rc);
        if (rc > 0 && !h1t_same(&whole, &part)) UT_INT(round, -1);
        taken += rc > 0;
        if (rc > 0 && kind == H1T_REQUEST) {
            const struct http_msg *m = &whole.msg;
            uint8_t out[512];
            long len = http_path_normalize(str_of(buf + m->path_at, m->path_n), out);

            if (m->path_plain && len != (long)m->path_n && len != -400) UT_INT(len, m->path_n);
            if (len > 0 && out[0] == '/' && strstr((char *)memcpy(out + len, "/", 2) - len, "/../")) UT_INT(round, -2);
        }
    }
    UT_CHECK(taken > 10000);
    for (int round = 0; round < 100000; round++) {
        static const char seed[] = "5\r\nhello\r\nA;x=y\r\n0123456789\r\n0\r\n\r\n";
        size_t n = sizeof seed - 1, one_n, two_n;
        char one[64], two[64];
        struct h1_body a, b;
        long rc, rc2;

        memcpy(buf, seed, n);
        for (uint32_t i = h1t_random(&x, 3); i > 0; i--) {
            uint8_t c = h1t_random(&x, 2) ? odd[h1t_random(&x, sizeof odd)] : (uint8_t)h1t_random(&x, 256);

            buf[h1t_random(&x, n)] = c;
        }
        h1_body_init(&a, HTTP_BODY_CHUNKED, 0);
        h1_body_init(&b, HTTP_BODY_CHUNKED, 0);
        rc = h1t_body(&a, buf, n, 0, n, one, &one_n);
        size_t first = h1t_random(&x, n);

        rc2 = h1t_body(&b, buf, n, first, 1 + h1t_random(&x, 5), two, &two_n);
        if (rc != rc2 || (rc >= 0 && (one_n != two_n || memcmp(one, two, one_n) != 0))) UT_INT(round, -3);
    }
}

#undef B
#undef GET_
#undef POST_
#undef TE_
#undef CL_
#undef OK_
