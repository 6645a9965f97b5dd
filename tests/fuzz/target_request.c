/* A request head: the verdict does not depend on the cuts; what is taken is what a strict reader reads; what goes upstream is well-formed, says
 * the same, and is taken again. Input: a byte of options, then the head. */

#include "heads.h"

static const struct h1_limits fz_limits[] = {
    {.line_bytes = 8192, .head_bytes = 32768, .fields = 100},
    {.line_bytes = 64, .head_bytes = 200, .fields = 6},
    {.line_bytes = 8192, .head_bytes = 32768, .fields = 100, .underscores = true},
    {.line_bytes = 20, .head_bytes = 32768, .fields = 3},
};

struct fz_writing {
    struct cfg cfg;
    bool trusted;
    uint8_t path[40000];
    uint8_t out[40000];
    uint8_t client[64];                                  /* who speaks, as text */
    size_t client_n;
};

/* Writes the head that goes upstream, as px_ does it, and in its room. Empty: the path has no normal form. */
static struct str fz_write_request(struct fz_writing *w, struct h1_head *h, struct str s, struct str *path)
{
    static struct net_cidr nets[] = {{{0x20, 1, 0xd, 0xb8}, 32}, {{[10] = 0xff, [11] = 0xff, 10}, 104}};
    struct net_addr peer = {.family = AF_INET6, .ip = {0x20, 1, 0xd, w->trusted ? 0xb8 : 0xb9, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}};
    struct http_msg *m = &h->msg;
    struct str raw = str_of(s.p + m->path_at, m->path_n), host = str_of(s.p + m->host_at, m->host_n);
    struct str_builder sb = str_fixed(w->out, s.n + 640), ip = str_fixed(w->client, sizeof w->client);
    struct mw_ctx c = {.cfg = &w->cfg, .msg = m, .head = s.p, .peer = &peer};
    struct fw_request fw = {.cfg = &w->cfg, .msg = m, .head = s.p, .host = host, .client = &c.client, .peer = &peer};
    long n = m->path_n ? http_path_normalize(raw, w->path) : 0;

    *path = (struct str){0};
    if (n < 0) return (struct str){0};
    FZ_CHECK(m->path_plain == (m->path_n && fz_eq(str_of(w->path, (size_t)n), raw) && !memchr(raw.p, '%', raw.n)));
    w->cfg.use_forwarded_headers = true;
    w->cfg.proxy_real_ip = (struct cfg_cidrs){RJ_COUNT(nets), nets};
    mw_client(&c);
    FZ_CHECK(c.trusted == w->trusted && (c.trusted || (!c.named && !c.scheme.n && !c.host.n && !c.port && str_addr_eq(&c.client, &peer))));
    FZ_CHECK(c.client.family == AF_INET || c.client.family == AF_INET6);
    fw.scheme = c.scheme.n ? c.scheme : S("https");
    fw.said_host = c.host.n ? c.host : host;
    fw.port = c.port ? c.port : 65535;
    fw.trusted = c.trusted;
    fw.named = c.named;
    fw.hop_field = c.hop_field;
    fw.hop_at = c.hop_at;
    fw.path = *path = str_of(w->path, (size_t)n);
    memset(fw.id, 0xff, sizeof fw.id);
    str_put_ip(&ip, &c.client);
    w->client_n = ip.n;
    fw_put_request(&sb, &fw);
    FZ_CHECK(!sb.failed);
    return str_built(&sb);
}

/* Who speaks stands there once in each spelling, and from a stranger nothing else does. */
static void fz_check_forwarding(const struct fz_writing *w, struct fz_head *out)
{
    static const char *const once[] = {"x-real-ip", "x-forwarded-for", "x-forwarded-proto", "x-forwarded-scheme"};
    struct str client = str_of(w->client, w->client_n);

    for (size_t k = 0; k < RJ_COUNT(once); k++) {
        unsigned n = 0;

        for (unsigned i = 0; i < out->n; i++) n += fz_is(out->field[i].name, once[k]);
        if (n != 1) FZ_FAIL("%u fields %s", n, once[k]);
    }
    FZ_CHECK(fz_eq(fz_field(out, "x-real-ip")->value, client) && str_starts(fz_field(out, "x-forwarded-for")->value, client));
    if (!w->cfg.compute_full_forwarded_for) FZ_CHECK(fz_eq(fz_field(out, "x-forwarded-for")->value, client));
    for (unsigned i = 0; i < out->n && !w->trusted; i++) {
        struct str name = out->field[i].name;
        enum http_field_id id = http_field_find(name);
        bool ours = fz_is(name, "x-forwarded-host") || fz_is(name, "x-forwarded-port");

        for (size_t k = 0; k < RJ_COUNT(once); k++) ours = ours || fz_is(name, once[k]);
        if (id && http_field_flags(id) & HTTP_OWN && !ours) FZ_FAIL("a stranger's %.*s goes on", STR_ARG(name));
    }
}

static void fz_check_request_out(struct fz_writing *w, struct h1_head *h, struct str s)
{
    static const struct h1_limits wide = {.line_bytes = 40000, .head_bytes = 40000, .fields = HTTP_FIELDS_MAX, .underscores = true};
    static struct h1_head again;
    static struct fz_head ref;
    struct str path, out = fz_write_request(w, h, s, &path), first;
    struct http_msg *m = &h->msg, *a = &again.msg;
    const char *why;
    int rc;

    if (!out.n) return;
    first = fz_copy_of(3, out);
    why = fz_read_head(first, true, &ref);
    if (why) FZ_FAIL("the strict reader refuses what goes upstream: %s\n%.*s", why, STR_ARG(first));
    FZ_CHECK(ref.hosts == 1 && ref.minor == 1);
    fz_check_fields(m, s, &ref, m->upgrade);
    fz_check_forwarding(w, &ref);
    if (!m->host_n) {                                    /* of HTTP/1.0: RFC 9112 section 3.2 wants an empty Host, and Ramjet as an upstream would refuse it */
        FZ_CHECK(!m->minor && !fz_field(&ref, "host")->value.n);
        return;
    }
    h1_head_init(&again, true, 0);
    rc = h1_request_feed(&again, first.p, first.n, &wide);
    if (m->nfields > HTTP_FIELDS_MAX - 12 && rc == -431) return;
    if (rc != (int)first.n) FZ_FAIL("what goes upstream is refused: %d %s\n%.*s", rc, again.why ? again.why : "", STR_ARG(first));
    FZ_CHECK(a->method == m->method && a->framing == m->framing && a->has_length == m->has_length && a->length == m->length && a->expect == m->expect);
    FZ_CHECK(a->upgrade == m->upgrade && a->keep_alive && a->has_query == m->has_query);
    FZ_CHECK(fz_eq(str_of(first.p + a->path_at, a->path_n), path.n ? path : m->method == HTTP_OPTIONS && !m->has_query ? S("*") : S("/")));
    FZ_CHECK(!m->has_query || fz_eq(str_of(first.p + a->query_at, a->query_n), str_of(s.p + m->query_at, m->query_n)));
    FZ_CHECK(fz_eq(str_of(first.p + a->host_at, a->host_n), str_of(s.p + m->host_at, m->host_n)));
    w->cfg.generate_request_id = false;
    if (w->trusted || fz_field(&ref, "x-request-id")) return;
    out = fz_write_request(w, &again, first, &path);
    FZ_CHECK(fz_eq(out, first));
}

FZ(request, 8192)
{
    static struct h1_head h;
    static struct fz_head ref;
    static struct fz_writing w;
    struct fz_in in = {p, n};
    uint8_t option = fz_take(&in);
    const struct h1_limits *limits = &fz_limits[option & 3];
    struct str s = fz_copy(0, in.p, in.n), head;
    uint64_t seed = fz_seed(p, n);
    int rc;

    memset(&h, 0xa5, sizeof h);
    h1_head_init(&h, true, 0);
    rc = h1_request_feed(&h, s.p, s.n, limits);
    FZ_CHECK(rc == 0 || (rc > 0 && (size_t)rc <= s.n) || rc == -400 || rc == -405 || rc == -414 || rc == -417 || rc == -431);
    for (int round = 0; round < 3; round++) fz_feed_in_pieces(s, true, 0, limits, &h, rc, seed + (uint64_t)round);
    if (rc <= 0) return;
    FZ_CHECK((uint32_t)rc <= limits->head_bytes && h.msg.nfields <= limits->fields);
    fz_check_slices(&h.msg, (uint32_t)rc);
    head = fz_copy(1, s.p, (size_t)rc);
    fz_check_reading(head, h.skip, true, &h.msg, &ref);
    w.trusted = option & 4;
    w.cfg.compute_full_forwarded_for = option & 8;
    w.cfg.generate_request_id = option & 16;
    fz_check_request_out(&w, &h, head);
}
