/* mw_: who is trusted, who is speaking; the steps and their verdicts. */

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
        UT_ROW("10.0.0.1", "X-Real-IP: 1.1.1.1\r\nCF-Connecting-IP: 1.1.1.1\r\nTrue-Client-IP: 1.1.1.1\r\n", "10.0.0.1", true),
        /* ports */
        UT_ROW("10.0.0.1", "X-Forwarded-For: 1.1.1.1:567\r\n", "1.1.1.1", true),
        UT_ROW("10.0.0.1", "X-Forwarded-For: [2001:db8::1]:80, 10.0.0.9:1\r\n", "2001:db8::1", true),
        UT_ROW("10.0.0.1", "X-Forwarded-For: 1.1.1.1:0, 10.0.0.9:65535\r\n", "1.1.1.1", true),
        UT_ROW("10.0.0.1", "X-Forwarded-For: 1.1.1.1:65536\r\n", "10.0.0.1", true),
        UT_ROW("10.0.0.1", "X-Forwarded-For: 1.1.1.1:\r\n", "10.0.0.1", true),
        UT_ROW("10.0.0.1", "X-Forwarded-For: 1.1.1.1:x\r\n", "10.0.0.1", true),
        UT_ROW("10.0.0.1", "X-Forwarded-For: 1.1.1.1:-1\r\n", "10.0.0.1", true),
        UT_ROW("10.0.0.1", "X-Forwarded-For: 1.1.1.1:000080\r\n", "10.0.0.1", true),
        UT_ROW("10.0.0.1", "X-Forwarded-For: [::1]80\r\n", "10.0.0.1", true),
        UT_ROW("10.0.0.1", "X-Forwarded-For: [1.1.1.1]:80\r\n", "10.0.0.1", true),
        UT_ROW("10.0.0.1", "X-Forwarded-For: [::1\r\n", "10.0.0.1", true),
        UT_ROW("10.0.0.1", "X-Forwarded-For: ::1]\r\n", "10.0.0.1", true),
        UT_ROW("10.0.0.1", "X-Forwarded-For: ::1:80\r\n", "::1:80", true),                  /* an address: only brackets tell a port */
        /* IPv4 in IPv6 clothes is IPv4, on all sides */
        UT_ROW("10.0.0.1", "X-Forwarded-For: ::ffff:1.1.1.1\r\n", "1.1.1.1", true),
        UT_ROW("10.0.0.1", "X-Forwarded-For: [::ffff:101:101]:80\r\n", "1.1.1.1", true),
        UT_ROW("10.0.0.1", "X-Forwarded-For: 1.1.1.1, ::ffff:10.0.0.9\r\n", "1.1.1.1", true),
        UT_ROW("10.0.0.1", "X-Forwarded-For: 1.1.1.1, ::10.0.0.9\r\n", "::a00:9", true),
        /* what is no address ends the list, an empty element too */
        UT_ROW("10.0.0.1", "X-Forwarded-For:\r\n", "10.0.0.1", true),
        UT_ROW("10.0.0.1", "X-Forwarded-For: ,\r\n", "10.0.0.1", true),
        UT_ROW("10.0.0.1", "X-Forwarded-For: 6.6.6.6,\r\n", "10.0.0.1", true),
        UT_ROW("10.0.0.1", "X-Forwarded-For: 6.6.6.6,,10.0.0.9\r\n", "10.0.0.9", true),
        UT_ROW("10.0.0.1", "X-Forwarded-For: ,1.1.1.1\r\n", "1.1.1.1", true),
        UT_ROW("10.0.0.1", "X-Forwarded-For: 6.6.6.6\r\nX-Forwarded-For:\r\n", "10.0.0.1", true),
        UT_ROW("10.0.0.1", "X-Forwarded-For: 6.6.6.6\r\nX-Forwarded-For: \r\nX-Forwarded-For: 10.0.0.9\r\n", "10.0.0.9", true),
        UT_ROW("10.0.0.1", "X-Forwarded-For: 1.1.1.01\r\n", "10.0.0.1", true),
        UT_ROW("10.0.0.1", "X-Forwarded-For: 1.1.1.1 2.2.2.2\r\n", "10.0.0.1", true),
        UT_ROW("10.0.0.1", "X-Forwarded-For: 1.1.1.1;2.2.2.2\r\n", "10.0.0.1", true),
        UT_ROW("10.0.0.1", "X-Forwarded-For: \"1.1.1.1\"\r\n", "10.0.0.1", true),
        UT_ROW("10.0.0.1", "X-Forwarded-For: localhost\r\n", "10.0.0.1", true),
        UT_ROW("10.0.0.1", "X-Forwarded-For: 16843009\r\n", "10.0.0.1", true),
        UT_ROW("10.0.0.1", "X-Forwarded-For: fe80::1%eth0\r\n", "10.0.0.1", true),
        /* Forwarded, when X-Forwarded-For is missing */
        UT_ROW("10.0.0.1", "Forwarded: for=1.1.1.1\r\n", "1.1.1.1", true),
        UT_ROW("192.0.2.9", "Forwarded: for=1.1.1.1\r\n", "192.0.2.9", false),
        UT_ROW("10.0.0.1", "Forwarded: for=1.1.1.1\r\nX-Forwarded-For: 2.2.2.2\r\n", "2.2.2.2", true),
        UT_ROW("10.0.0.1", "Forwarded: for=1.1.1.1\r\nX-Forwarded-For: x\r\n", "10.0.0.1", true),
        UT_ROW("10.0.0.1", "Forwarded: For=\"1.1.1.1:80\"\r\n", "1.1.1.1", true),
        UT_ROW("10.0.0.1", "Forwarded: FOR=\"[2001:db8::1]\";by=10.0.0.9\r\n", "2001:db8::1", true),
        UT_ROW("10.0.0.1", "Forwarded: proto=https;for=\"[2001:db8::1]:80\";ext=\"a,b;c\"\r\n", "2001:db8::1", true),
        UT_ROW("10.0.0.1", "Forwarded: for=6.6.6.6 , for=1.1.1.1,\tfor=10.0.0.9\r\n", "1.1.1.1", true),
        UT_ROW("10.0.0.1", "Forwarded: for=6.6.6.6\r\nForwarded: for=1.1.1.1\r\nForwarded: for=10.0.0.9\r\n", "1.1.1.1", true),
        UT_ROW("10.0.0.1", "Forwarded: for=10.0.0.8, for=10.0.0.9\r\n", "10.0.0.8", true),
        UT_ROW("10.0.0.1", "Forwarded: for=\"[::ffff:1.1.1.1]\"\r\n", "1.1.1.1", true),
        UT_ROW("10.0.0.1", "Forwarded: for=6.6.6.6, for=unknown\r\n", "10.0.0.1", true),
        UT_ROW("10.0.0.1", "Forwarded: for=6.6.6.6, for=_hidden, for=10.0.0.9\r\n", "10.0.0.9", true),
        UT_ROW("10.0.0.1", "Forwarded: for=6.6.6.6, proto=https\r\n", "10.0.0.1", true),
        UT_ROW("10.0.0.1", "Forwarded: for=6.6.6.6,\r\n", "10.0.0.1", true),
        UT_ROW("10.0.0.1", "Forwarded: for=6.6.6.6, , for=10.0.0.9\r\n", "10.0.0.9", true),
        UT_ROW("10.0.0.1", "Forwarded:\r\n", "10.0.0.1", true),
        UT_ROW("10.0.0.1", "Forwarded: for=\"2001:db8::1\"\r\n", "10.0.0.1", true),          /* brackets are a must */
        UT_ROW("10.0.0.1", "Forwarded: for=\"\"\r\n", "10.0.0.1", true),
        /* of a malformed one nothing is believed, whatever stands behind it */
        UT_ROW("10.0.0.1", "Forwarded: for=1.1.1.1:80\r\n", "10.0.0.1", true),                /* a colon needs quotes */
        UT_ROW("10.0.0.1", "Forwarded: for=[::1]\r\n", "10.0.0.1", true),
        UT_ROW("10.0.0.1", "Forwarded: for=1.1.1.1;for=2.2.2.2\r\n", "10.0.0.1", true),
        UT_ROW("10.0.0.1", "Forwarded: for =1.1.1.1\r\n", "10.0.0.1", true),
        UT_ROW("10.0.0.1", "Forwarded: for= 1.1.1.1\r\n", "10.0.0.1", true),
        UT_ROW("10.0.0.1", "Forwarded: for=1.1.1.1 ;proto=https\r\n", "10.0.0.1", true),
        UT_ROW("10.0.0.1", "Forwarded: for=1.1.1.1; proto=https\r\n", "10.0.0.1", true),
        UT_ROW("10.0.0.1", "Forwarded: for\r\n", "10.0.0.1", true),
        UT_ROW("10.0.0.1", "Forwarded: for=\r\n", "10.0.0.1", true),
        UT_ROW("10.0.0.1", "Forwarded: =1.1.1.1\r\n", "10.0.0.1", true),
        UT_ROW("10.0.0.1", "Forwarded: \"for\"=1.1.1.1\r\n", "10.0.0.1", true),
        UT_ROW("10.0.0.1", "Forwarded: 1.1.1.1\r\n", "10.0.0.1", true),
        UT_ROW("10.0.0.1", "Forwarded: for=\"1.1.1.1\r\n", "10.0.0.1", true),
        UT_ROW("10.0.0.1", "Forwarded: for=\"1.1.1.1\"x\r\n", "10.0.0.1", true),
        UT_ROW("10.0.0.1", "Forwarded: for=\"1.1.1.\\1\"\r\n", "10.0.0.1", true),
        UT_ROW("10.0.0.1", "Forwarded: for=1.1.1.1 x\r\n", "10.0.0.1", true),
        UT_ROW("10.0.0.1", "Forwarded: for=\"open, for=1.1.1.1\r\n", "10.0.0.1", true),
        UT_ROW("10.0.0.1", "Forwarded: garbage\r\nForwarded: for=1.1.1.1\r\n", "10.0.0.1", true),
        UT_ROW("10.0.0.1", "X_Forwarded_For: 1.1.1.1\r\n", "10.0.0.1", true),
    };
    struct cfg *on = proxy_cfg(S("[ramjet]\nuse-forwarded-headers = true\nproxy-real-ip-cidr = 10.0.0.0/8\nproxy-real-ip-cidr = fd00::/8\n"), NULL, 0);
    struct cfg *off = proxy_cfg(S("[ramjet]\nproxy-real-ip-cidr = 10.0.0.0/8\n"), NULL, 0);

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
            mw_client(&m);
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

UT(mw_trust_by_family)
{
    static const struct { int line; const char *cidr, *peer; bool trusted; } rows[] = {
        UT_ROW("0.0.0.0/0", "192.0.2.9", true),
        UT_ROW("0.0.0.0/0", "::192.0.2.9", false),
        UT_ROW("0.0.0.0/0", "2001:db8::1", false),
        UT_ROW("::/0", "2001:db8::1", true),
        UT_ROW("::/0", "::", true),
        UT_ROW("::/0", "192.0.2.9", false),
        UT_ROW("::/0", "unix", false),
        UT_ROW("::/96", "unix", false),
        UT_ROW("::ffff:192.0.2.0/120", "192.0.2.9", true),
        UT_ROW("::ffff:0:0/96", "192.0.2.9", true),
        UT_ROW("192.0.2.9", "192.0.2.9", true),
        UT_ROW("192.0.2.9", "192.0.2.8", false),
        UT_ROW("192.0.2.0/31", "192.0.2.1", true),
        UT_ROW("192.0.2.0/31", "192.0.2.2", false),
        UT_ROW("fd00::/9", "fd7f::1", true),
        UT_ROW("fd00::/9", "fd80::1", false),
    };

    UT_EACH(r, rows) {
        struct net_cidr cidr;
        struct cfg cfg = {.proxy_real_ip = {.n = 1, .v = &cidr}};
        struct net_addr peer = {.family = AF_UNIX};

        UT_CHECK(str_to_cidr(ut_str(r->cidr), &cidr) && (!strcmp(r->peer, "unix") || str_to_ip(ut_str(r->peer), &peer)));
        UT_INT(mw_is_trusted(&cfg, &peer), r->trusted);
    }
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
    struct cfg *cfg = proxy_cfg(S("[ramjet]\n"), NULL, 0);

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

/* The rule of path / or /a with these lines, compiled and published. */
struct mw_ut_table {
    struct cfg *cfg;
    struct rc rc;
    struct rt_changes changes;
};

static bool mw_ut_open(struct mw_ut_table *t, const char *path, const char *lines)
{
    char ini[2048];

    *t = (struct mw_ut_table){0};
    snprintf(ini, sizeof ini, "[backend s]\nendpoint = 10.0.0.1:80\n[route r]\npath = %s\nbackend = s\n%s", path, lines);
    rj.rt.workers = 1;
    if (!(t->cfg = proxy_cfg(str_z(ini), NULL, 0))) return false;
    rc_init(&t->rc, NULL, t->cfg);
    rc_compile(&t->rc, &t->changes);
    return rt_publish(&t->changes, t->cfg, 0, 0);
}

static void mw_ut_close(struct mw_ut_table *t)
{
    if (t->rc.cfg) rc_fini(&t->rc);
    if (t->cfg) cfg_put(t->cfg);
    mem_free(t->changes.v);
    rt_fini();
}

/* Runs all steps for a request of the client to the path at a time. */
static enum mw_verdict mw_ut_run(struct mw_ut_table *t, struct mw_ctx *m, const char *client, const char *path, uint64_t at_ms)
{
    static struct h1_head h;
    static struct net_addr peer;
    struct rt_match match;
    uint32_t at = 0;

    UT_CHECK(mw_ut_head(&h, ut_str("GET / HTTP/1.1\r\nHost: a\r\n\r\n")) && str_to_ip(str_z(client), &peer));
    *m = (struct mw_ctx){.cfg = t->cfg, .msg = &h.msg, .peer = &peer, .path = str_z(path), .now_ns = at_ms * 1000000};
    if (!UT_CHECK(rt_find(rt_live(), S("a"), m->path, &match))) return MW_WAIT;
    m->rule = match.rule;
    m->backend = match.backend;
    mw_client(m);
    return mw_run(m, &at);
}

UT(mw_rules)
{
    static const struct { int line; const char *lines, *client; int error; const char *why; } rows[] = {
        UT_ROW("", "192.0.2.1", 0, NULL),
        UT_ROW("whitelist-source-range = 192.0.2.0/24\n", "192.0.2.1", 0, NULL),
        UT_ROW("whitelist-source-range = 192.0.2.0/24\n", "192.0.3.1", PX_DENIED, "whitelist-source-range"),
        UT_ROW("whitelist-source-range = 192.0.2.0/24\ndenylist-source-range = 192.0.2.1\n", "192.0.2.1", PX_DENIED, "denylist-source-range"),
        UT_ROW("denylist-source-range = 192.0.2.1\npermanent-redirect = /x\nlimit-rps = 1\n", "192.0.2.1", PX_DENIED, "denylist-source-range"),
        UT_ROW("denylist-source-range = 192.0.2.2\npermanent-redirect = /x\nlimit-rps = 1\n", "192.0.2.1", PX_REDIRECT, NULL),
        UT_ROW("denylist-source-range = ::/0\n", "192.0.2.1", 0, NULL),
        UT_ROW("denylist-source-range = ::/0\n", "::1", PX_DENIED, "denylist-source-range"),
        UT_ROW("denylist-source-range = ::/0\n", "ffff::", PX_DENIED, "denylist-source-range"),
        UT_ROW("denylist-source-range = ::/80\n", "::fffe:ffff:ffff", PX_DENIED, "denylist-source-range"),
        UT_ROW("denylist-source-range = ::/80\n", "255.255.255.255", 0, NULL),
        UT_ROW("denylist-source-range = ::/80\n", "0:0:0:0:1::", 0, NULL),
        UT_ROW("denylist-source-range = ::ffff:0:0/96\n", "192.0.2.1", PX_DENIED, "denylist-source-range"),
        UT_ROW("denylist-source-range = 0.0.0.0/0\n", "0.0.0.0", PX_DENIED, "denylist-source-range"),
        UT_ROW("denylist-source-range = 0.0.0.0/0\n", "2001:db8::1", 0, NULL),
        UT_ROW("denylist-source-range = 10.0.0.9/8, 10.1.0.0/16, 9.255.255.255, 11.0.0.0/32\n", "10.255.255.255", PX_DENIED, "denylist-source-range"),
        UT_ROW("denylist-source-range = 10.0.0.9/8, 10.1.0.0/16, 9.255.255.255, 11.0.0.0/32\n", "11.0.0.1", 0, NULL),
        UT_ROW("denylist-source-range = 10.0.0.9/8, 10.1.0.0/16, 9.255.255.255, 11.0.0.0/32\n", "9.255.255.254", 0, NULL),
        UT_ROW("denylist-source-range = 2001:db8:8000::/33\n", "2001:db8:7fff:ffff::", 0, NULL),
        UT_ROW("denylist-source-range = 2001:db8:8000::/33\n", "2001:db8:8000::", PX_DENIED, "denylist-source-range"),
        UT_ROW("denylist-source-range = 2001:db8::/65\n", "2001:db8::8000:0:0:0", 0, NULL),
        UT_ROW("denylist-source-range = 2001:db8::/64\n", "2001:db8::ffff:0:0:0", PX_DENIED, "denylist-source-range"),
        UT_ROW("temporal-redirect = /y\npermanent-redirect = /x\nproxy-body-size = 1\n", "192.0.2.1", PX_REDIRECT, NULL),
    };

    UT_EACH(r, rows) {
        struct mw_ut_table t;
        struct mw_ctx m;

        if (UT_CHECK(mw_ut_open(&t, "/", r->lines))) {
            UT_INT(mw_ut_run(&t, &m, r->client, "/", 1000), r->error ? MW_ANSWER : MW_CONTINUE);
            UT_INT(m.error, r->error);
            UT_CHECK(r->why ? m.why && !strcmp(m.why, r->why) : !m.why);
        }
        mw_ut_close(&t);
    }
}

UT(mw_peers_without_an_address_are_in_no_list)
{
    struct mw_ut_table t;
    struct rt_match match;
    const struct net_addr local = {.family = AF_UNIX};
    struct mw_ctx m;

    UT_REQUIRE(mw_ut_open(&t, "/", "whitelist-source-range = ::/0, 0.0.0.0/0\ndenylist-source-range = ::/0\n"));
    UT_CHECK(rt_find(rt_live(), S("a"), S("/"), &match));
    m = (struct mw_ctx){.rule = match.rule, .client = local};
    UT_INT(mw_access(&m), MW_ANSWER);
    UT_CHECK(!strcmp(m.why, "whitelist-source-range"));
    mw_ut_close(&t);
}

UT(mw_limits)
{
    static const struct { int line; uint64_t at_ms; const char *client; int error; uint32_t retry_after_s; const char *why; } rows[] = {
        UT_ROW(100000, "192.0.2.1", 0, 0, NULL),
        UT_ROW(100000, "192.0.2.1", 0, 0, NULL),
        UT_ROW(100000, "192.0.2.1", 0, 0, NULL),
        UT_ROW(100000, "192.0.2.1", PX_LIMIT_RATE, 1, "limit-rps"),          /* half a second */
        UT_ROW(100499, "192.0.2.1", PX_LIMIT_RATE, 1, "limit-rps"),
        UT_ROW(100500, "192.0.2.1", 0, 0, NULL),
        UT_ROW(200000, "192.0.2.1", 0, 0, NULL),                             /* 4 of the minute's are used by now, 5 have come back: it is full */
        UT_ROW(201000, "192.0.2.1", 0, 0, NULL),
        UT_ROW(202000, "192.0.2.1", 0, 0, NULL),
        UT_ROW(203000, "192.0.2.1", 0, 0, NULL),
        UT_ROW(204000, "192.0.2.1", PX_LIMIT_RATE, 16, "limit-rpm"),         /* due at 220 s */
        UT_ROW(204001, "192.0.2.1", PX_LIMIT_RATE, 16, "limit-rpm"),
        UT_ROW(219999, "192.0.2.1", PX_LIMIT_RATE, 1, "limit-rpm"),
        UT_ROW(220000, "192.0.2.1", 0, 0, NULL),
        UT_ROW(220000, "192.0.2.2", 0, 0, NULL),
        UT_ROW(220000, "192.0.3.1", 0, 0, NULL),                             /* exempt */
        UT_ROW(220000, "192.0.3.1", 0, 0, NULL),
        UT_ROW(220000, "192.0.3.1", 0, 0, NULL),
        UT_ROW(220000, "192.0.3.1", 0, 0, NULL),
        UT_ROW(220000, "192.0.3.1", 0, 0, NULL),
    };
    struct mw_ut_table t;

    UT_REQUIRE(mw_ut_open(&t, "/", "limit-rps = 2\nlimit-rpm = 3\nlimit-burst-multiplier = 1\nlimit-allowlist = 192.0.3.0/24\n"));
    UT_EACH(r, rows) {
        struct mw_ctx m;

        UT_INT(mw_ut_run(&t, &m, r->client, "/", r->at_ms), r->error ? MW_ANSWER : MW_CONTINUE);
        UT_INT(m.error, r->error);
        UT_INT(m.retry_after_s, r->retry_after_s);
        UT_CHECK(r->why ? m.why && !strcmp(m.why, r->why) : !m.why);
    }
    mw_ut_close(&t);
}

UT(mw_paths)
{
    static const struct { int line; const char *rule, *lines, *path, *prefix, *rest; } rows[] = {
        UT_ROW("/a", "", "/a/b", NULL, "/a/b"),
        UT_ROW("/a", "path-strip-prefix = true\n", "/a/b", "", "/b"),
        UT_ROW("/a/", "path-strip-prefix = true\n", "/a", "", "/"),
        UT_ROW("/a", "path-strip-prefix = true\n", "/a/", "", "/"),
        UT_ROW("/a", "path-strip-prefix = true\n", "/a//b", NULL, NULL),
        UT_ROW("/", "path-strip-prefix = true\n", "/x", "", "/x"),
        UT_ROW("/", "path-strip-prefix = true\n", "//x", NULL, NULL),
        UT_ROW("/a", "path-replace-prefix = /\n", "/a/b", "", "/b"),
        UT_ROW("/a", "path-replace-prefix = /\n", "/a//b", NULL, NULL),
        UT_ROW("/a", "path-replace-prefix = /n/m/\n", "/a/b", "/n/m", "/b"),
        UT_ROW("/a", "path-replace-prefix = /n\npath-strip-prefix = true\n", "/a", "/n", ""),
        UT_ROW("/a", "path-replace-prefix = /n\n", "/a//", "/n", "//"),
        UT_ROW("/a\ntype = exact", "path-strip-prefix = true\n", "/a", "", "/"),
        UT_ROW("/%61%7e", "path-strip-prefix = true\n", "/a~/x", "", "/x"),
        UT_ROW("/", "path-replace-prefix = /%61\n", "/", "/a", "/"),
    };

    UT_EACH(r, rows) {
        struct mw_ut_table t;
        struct mw_ctx m;

        if (UT_CHECK(mw_ut_open(&t, r->rule, r->lines))) {
            UT_INT(mw_ut_run(&t, &m, "192.0.2.1", r->path, 1000), r->rest ? MW_CONTINUE : MW_ANSWER);
            UT_INT(m.error, r->rest ? 0 : PX_BAD_REQUEST);
            UT_INT(m.rewritten, r->prefix != NULL);
            if (r->prefix) UT_SLICE(m.prefix, r->prefix);
            if (r->rest) UT_SLICE(m.path, r->rest);
        }
        mw_ut_close(&t);
    }
}
