/* mw_: who is trusted, who is speaking; the steps and their verdicts. */

static struct cfg *mw_ut_cfg(const char *ini)
{
    struct cfg_input in = {.file_name = "edge.ini", .text = str_z(ini)};
    struct cfg_report report = {.text = str_growing()};
    struct cfg *c = cfg_load(&in, &report);

    if (!c) printf("%.*s", STR_ARG(str_built(&report.text)));
    str_free(&report.text);
    return c;
}

/* Reads a request head into h. */
static bool mw_ut_head(struct h1_head *h, struct str text)
{
    static const struct h1_limits limits = {.line_bytes = 8192, .head_bytes = 32768, .fields = 100};

    h1_head_init(h, true, 0);
    return UT_CHECK(h1_request_feed(h, text.p, text.n, &limits) == (int)text.n);
}

UT(mw_client_address)
{
    static const struct { int line; const char *peer, *fields, *client; bool trusted; } rows[] = {
        UT_ROW("192.0.2.9", "X-Forwarded-For: 1.1.1.1\r\n", "192.0.2.9", false),              /* not trusted: nothing is believed */
        UT_ROW("10.0.0.1", "", "10.0.0.1", true),
        UT_ROW("10.0.0.1", "X-Forwarded-For: 1.1.1.1\r\n", "1.1.1.1", true),
        UT_ROW("10.0.0.1", "x-forwarded-for: 6.6.6.6, 1.1.1.1\r\n", "1.1.1.1", true),         /* the last one that is not trusted */
        UT_ROW("10.0.0.1", "X-Forwarded-For: 1.1.1.1 ,\t10.0.0.7\r\n", "1.1.1.1", true),
        UT_ROW("10.0.0.1", "X-Forwarded-For: 1.1.1.1\r\nX-Forwarded-For: 10.0.0.2\r\n", "1.1.1.1", true),
        UT_ROW("10.0.0.1", "X-Forwarded-For: 2.2.2.2\r\nX-Forwarded-For: 1.1.1.1\r\n", "1.1.1.1", true),
        UT_ROW("10.0.0.1", "X-Forwarded-For: 10.0.0.3, 10.0.0.2\r\n", "10.0.0.3", true),      /* all trusted: the first */
        UT_ROW("10.0.0.1", "X-Forwarded-For: 6.6.6.6, unknown\r\n", "10.0.0.1", true),        /* what is no address ends the walk */
        UT_ROW("10.0.0.1", "X-Forwarded-For: 6.6.6.6, unknown, 10.0.0.5\r\n", "10.0.0.5", true),
        UT_ROW("10.0.0.1", "X-Forwarded-For: 2001:db8::1\r\n", "2001:db8::1", true),
        UT_ROW("10.0.0.1", "X-Forwarded-For: [2001:db8::1]\r\n", "2001:db8::1", true),
        UT_ROW("fd00::5", "X-Forwarded-For: 1.1.1.1\r\n", "1.1.1.1", true),
        UT_ROW("fe00::5", "X-Forwarded-For: 1.1.1.1\r\n", "fe00::5", false),
        UT_ROW("10.0.0.1", "X-Real-IP: 1.1.1.1\r\nForwarded: for=1.1.1.1\r\n", "10.0.0.1", true),
        UT_ROW("10.0.0.1", "X_Forwarded_For: 1.1.1.1\r\n", "10.0.0.1", true),
    };
    struct cfg *on = mw_ut_cfg("[ramjet]\nuse-forwarded-headers = true\nproxy-real-ip-cidr = 10.0.0.0/8\nproxy-real-ip-cidr = fd00::/8\n");
    struct cfg *off = mw_ut_cfg("[ramjet]\nproxy-real-ip-cidr = 10.0.0.0/8\n");

    UT_REQUIRE(on && off);
    UT_EACH(r, rows) {
        char text[512];
        struct h1_head *h = malloc(sizeof *h);
        struct net_addr peer, want;
        struct mw_ctx m = {.cfg = on, .msg = &h->msg, .peer = &peer};
        struct str head;

        snprintf(text, sizeof text, "GET / HTTP/1.1\r\nHost: a\r\n%s\r\n", r->fields);
        head = ut_str(text);
        UT_CHECK(str_to_ip(str_z(r->peer), &peer) && str_to_ip(str_z(r->client), &want));
        if (mw_ut_head(h, head)) {
            m.head = head.p;
            UT_INT(mw_client(&m), MW_CONTINUE);
            UT_CHECK(memcmp(m.client.ip, want.ip, 16) == 0 && m.client.family == want.family);
            UT_INT(m.trusted, r->trusted);
            m.cfg = off;                                             /* nobody is trusted without use-forwarded-headers */
            mw_client(&m);
            UT_CHECK(!m.trusted && memcmp(m.client.ip, peer.ip, 16) == 0);
        }
        free(h);
    }
    cfg_put(on);
    cfg_put(off);
}

UT(mw_steps_answer_before_an_upstream_is_asked)
{
    static const struct { int line; const char *head; uint64_t limit; bool backend; unsigned endpoints; int verdict, error; } rows[] = {
        UT_ROW("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n", 100, true, 1, MW_CONTINUE, 0),
        UT_ROW("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 101\r\n\r\n", 100, true, 1, MW_ANSWER, PX_BODY_LIMIT),
        UT_ROW("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 101\r\n\r\n", 0, true, 1, MW_CONTINUE, 0),
        UT_ROW("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n", 1, true, 1, MW_CONTINUE, 0), /* counted while it comes */
        UT_ROW("GET / HTTP/1.1\r\nHost: a\r\n\r\n", 1, true, 0, MW_ANSWER, PX_NO_ENDPOINT),
        UT_ROW("GET / HTTP/1.1\r\nHost: a\r\n\r\n", 1, false, 0, MW_ANSWER, PX_NO_ENDPOINT),
        UT_ROW("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 101\r\n\r\n", 100, false, 0, MW_ANSWER, PX_BODY_LIMIT), /* the first step that objects */
    };
    struct cfg *cfg = mw_ut_cfg("[ramjet]\n");

    UT_REQUIRE(cfg != NULL);
    UT_EACH(r, rows) {
        struct h1_head *h = malloc(sizeof *h);
        struct rt_policy policy = {.body_bytes = r->limit};
        struct rt_rule rule = {.policy = &policy};
        struct rt_backend backend = {.n = r->endpoints};
        struct net_addr peer = {.family = AF_INET};
        struct str head = ut_str(r->head);
        struct mw_ctx m = {.cfg = cfg, .msg = &h->msg, .head = head.p, .rule = &rule, .backend = r->backend ? &backend : NULL, .peer = &peer};
        uint32_t at = 0;

        if (mw_ut_head(h, head)) {
            UT_INT(mw_run(&m, &at), r->verdict);
            UT_INT(m.error, r->error);
            UT_INT(at == RJ_COUNT(mw_steps), r->verdict == MW_CONTINUE);
        }
        free(h);
    }
    cfg_put(cfg);
}
