/* px_: the whole proxy on the simulated engine of sim.h: scripted clients and upstreams, faults by seed, invariants after every run.
 *
 * Every request has a plan that says what the client sends, what the upstream answers, and what goes wrong. Modes of a run (seed % 5):
 *   0 nothing goes wrong: every request is answered exactly as planned, with the connection kept where both sides keep it;
 *   1 upstreams close idle connections: requests that can be sent again must not notice;
 *   2 resets, ends in the middle, silence, garbage, refused connects, clients that leave or stall, drains;
 *   3 the same, and allocations fail and descriptors run out;
 *   4 as 0, run once to count the allocations, then again with some of them failing, one in each run: one client notices at most.
 * In all of them routes and endpoints come and go while requests run, and a third of the runs speaks through PROXY headers.
 * RAMJET_SIM_FIRST and RAMJET_SIM_SEEDS choose the seeds, RAMJET_SIM_ALLOC=N the allocation that fails in mode 4, RAMJET_SIM_TRACE=1 prints
 * what happens; tests/sim/run sets them. */

#include "sim.h"

enum { PS_CLIENTS = 6, PS_REQUESTS = 6, PS_ENDPOINTS = 5, PS_TURNS = 60000, PS_VERSIONS = 4, PS_ALLOCS = 3 };
enum ps_framing { PS_LENGTH, PS_CHUNKED, PS_EOF, PS_NONE };
enum ps_fault {
    PS_FINE,
    PS_UP_RESET, PS_UP_RESET_MID, PS_UP_FIN_MID, PS_UP_SILENT, PS_UP_GARBAGE, PS_UP_STALL, PS_UP_LAST = PS_UP_STALL,
    PS_CLIENT_RESET, PS_CLIENT_FIN, PS_CLIENT_STALL, PS_CLIENT_SILENT, PS_FAULTS,
};

/* What a route does to its requests. */
static const struct ps_kind {
    char path, upstream_path;                                        /* /r/7: the seventh plan, on the route of /r */
    uint16_t own;                                                    /* every request is answered by the proxy itself with this */
    uint16_t may;                                                    /* or some are */
    uint32_t body_max;                                               /* 413 above; 0: no limit */
    bool twice, statuses, faulty;                                    /* retry-non-idempotent; proxy-next-upstream http_500 ...; only in modes with faults */
    const char *rules;                                               /* of the route; NULL: there is none */
} ps_kinds[] = {
    {.path = 'r', .rules = ""},
    {.path = 'd', .own = 403, .rules = "denylist-source-range = 0.0.0.0/0\n"},
    {.path = 'e', .faulty = true, .rules = "proxy-read-timeout = 1s\nproxy-send-timeout = 1s\nproxy-connect-timeout = 1s\nproxy-tunnel-timeout = 2s\nproxy-next-upstream-timeout = 3s\n"},
    {.path = 'g', .may = 404, .rules = NULL},                        /* it comes and goes */
    {.path = 'i', .twice = true, .rules = "retry-non-idempotent = true\nproxy-next-upstream-tries = 2\n"},
    {.path = 'l', .may = 429, .rules = "limit-connections = 1\n"},
    {.path = 'm', .own = 308, .rules = "permanent-redirect = https://other.test/x\npermanent-redirect-code = 308\n"},
    {.path = 'n', .statuses = true, .rules = "proxy-next-upstream = error timeout invalid_header http_500 http_502 http_503 http_504 http_403 http_404 http_429\nproxy-next-upstream-tries = 0\n"},
    {.path = 'p', .upstream_path = 'v', .rules = "path-replace-prefix = /v\n"},
    {.path = 'q', .may = 429, .rules = "limit-rps = 1\nlimit-burst-multiplier = 2\n"},
    {.path = 'u', .own = 404, .rules = NULL},
    {.path = 'w', .own = 403, .rules = "whitelist-source-range = 203.0.113.0/24\n"},
    {.path = 'z', .body_max = 2000, .rules = "proxy-body-size = 2000\n"},
};

struct ps_plan {
    uint32_t id;
    const struct ps_kind *kind;
    uint16_t own, may;                                               /* of the kind; own also for content that is too large */
    uint16_t bad_status;                                             /* of the first bad_tries answers */
    uint32_t bad_tries;
    uint32_t think_ms;                                               /* of the upstream, before it answers */
    const char *from;                                                /* the client's address */
    const char *method;
    uint32_t up_len, down_len;                                       /* content of the request, of the response */
    uint8_t up_framing, down_framing;
    uint16_t status;
    uint8_t minor, interim;
    bool expect, go_on;                                              /* the client waits for 100; the upstream sends one */
    bool upgrade, refused, eager, early;                             /* refused: the upstream does not switch; eager: the client does not wait for it */
    bool client_close, up_close;                                     /* says Connection: close */
    bool spoiled;                                                    /* it may be answered by the proxy itself, or not at all */
    enum ps_fault fault;
    uint32_t fault_at, fault_tries;
    uint32_t heads;                                                  /* that upstreams have seen */
    bool answered, cut;                                              /* by an upstream, as far as the client knows; an upstream has ended it early */
    uint32_t lines;                                                  /* in the access log */
};

struct ps_world;
struct ps_client {
    struct sim_peer peer;
    struct ps_world *x;
    bool opened, done, pipelines, half_close, slow, stalled;
    bool closing;                                                    /* the last answer ends the connection */
    bool head_seen, continued, tunnel;
    char from[24];
    bool stranger;                                                   /* its PROXY header is none */
    uint64_t idle_until_ms;
    uint32_t first, count, sent, answered;                           /* plans; requests begun; answers complete */
    struct sim_bytes out;                                            /* of the request that is being sent */
    size_t body_at;                                                  /* in out */
    struct sim_reader reader;
};

struct ps_server {
    struct sim_peer peer;
    struct ps_world *x;
    struct ps_server *next;
    struct sim_reader reader;
    struct sim_bytes out;
    struct ps_plan *plan;                                            /* of the request that comes in */
    bool answered, closes, fin, reset, silent, slow, left, stalled;  /* left: closed an idle connection */
    uint32_t served;
    uint64_t think_until_ms;
};

struct ps_world {
    struct sim sim;
    struct wrk *w;
    uint32_t seed, mode;
    bool bad_connects, drains, drained, alloc_fails, proxied, limits;
    bool storm;                                                      /* upstreams fail whatever they are asked, and every failure is to be tried elsewhere */
    uint64_t start_ms, last_head_ms;                                 /* of the run; of the last request that came to an upstream */
    uint32_t busy, noticed, losses_max;                                         /* answers without a request to log; in mode 4: clients' losses */
    long allocs;                                                     /* that the run made */
    struct ps_client client[PS_CLIENTS];
    uint32_t clients, gone;
    struct ps_plan plan[PS_CLIENTS * PS_REQUESTS];
    uint32_t plans, answers, logged;
    struct ps_server *servers;
};

/* The table that is served: versions of the settings, published in turn while requests run; [1]: behind PROXY headers. */
static struct {
    struct obj_store store;
    struct rc rc;
    struct rt_changes changes;
    struct cfg *cfg[2][PS_VERSIONS];
    struct cfg *now;
} ps_table;

static void ps_publish(struct wrk *w, struct cfg *cfg)
{
    long fail_at = mem_fail_at;
    struct rt_gone gone;

    mem_fail_at = 0;                                                 /* the control thread's allocations are not counted */
    ps_table.now = cfg;
    rc_set_config(&ps_table.rc, cfg);
    rc_compile(&ps_table.rc, &ps_table.changes);
    rt_publish(&ps_table.changes, cfg, 1, 1);
    gone = rt_take_gone();
    if (w) up_leave(&w->up, &gone);
    mem_free(gone.hash);
    rcu_collect();
    rt_collect();
    mem_fail_at = fail_at;
}

static struct cfg *ps_cfg(bool proxied, int version)
{
    static const char *const settings[PS_VERSIONS] = {
        "",
        "server-tokens = true\nload-balance = least_conn\nproxy-request-buffering = on\n",
        "load-balance = ewma\nretry-budget = 0\nkeep-alive-requests = 3\nupstream-keepalive-requests = 2\n",
        "load-balance = ip_hash\nupstream-keepalive-connections = 1\nallow-backend-server-header = true\nproxy-request-buffering = on\n",
    };
    static const char *const endpoints[PS_VERSIONS] = {
        "endpoint = 10.0.0.1:8001\nendpoint = 10.0.0.1:8002\nendpoint = 10.0.0.1:8003 weight=2\n",
        "endpoint = 10.0.0.1:8001\nendpoint = 10.0.0.1:8002\nendpoint = 10.0.0.1:8003\nendpoint = 10.0.0.1:8004\nendpoint = 10.0.0.1:8005\n",
        "endpoint = 10.0.0.1:8004\nendpoint = 10.0.0.1:8002 weight=3\n",
        "endpoint = 10.0.0.1:8005\n",
    };
    struct sim_bytes text = {0};
    struct cfg *c;

    sim_print(&text, "[ramjet]\nadmin = off\naccess-log-path = /dev/null\nkeep-alive = 30s\nproxy-body-size = 0\nproxy-connect-timeout = 2s\n"
                     "upstream-keepalive-timeout = 20s\nmax-fails = 2\nfail-timeout = 3s\nhistory-size = 3\n%s%s[backend b]\n%s",
              proxied ? "use-proxy-protocol = true\nproxy-protocol-header-timeout = 40s\nproxy-real-ip-cidr = 192.0.2.0/24\n" : "", settings[version], endpoints[version]);
    for (size_t i = 0; i < RJ_COUNT(ps_kinds); i++) {
        const char *rules = ps_kinds[i].may == 404 && version % 2 ? "" : ps_kinds[i].rules;

        if (rules) sim_print(&text, "[route %c]\nhost = sim.test\npath = /%c\nbackend = b\n%s", ps_kinds[i].path, ps_kinds[i].path, rules);
    }
    c = proxy_cfg(str_of(text.p, text.n), NULL, 0);
    sim_bytes_free(&text);
    return c;
}

static bool ps_open(void)
{
    for (int i = 0; i < 2 * PS_VERSIONS; i++)
        if (!(ps_table.cfg[i / PS_VERSIONS][i % PS_VERSIONS] = ps_cfg(i >= PS_VERSIONS, i % PS_VERSIONS))) return false;
    rj.rt.workers = 1;
    rj.log_level = LOG_ERROR;
    rc_init(&ps_table.rc, &ps_table.store, ps_table.cfg[0][0]);
    ps_publish(NULL, ps_table.cfg[0][0]);
    lm_open(RT_LIMITS_RATE | RT_LIMITS_CONNECTIONS);
    return true;
}

static void ps_close(void)
{
    rc_fini(&ps_table.rc);
    obj_store_fini(&ps_table.store);
    for (int i = 0; i < 2 * PS_VERSIONS; i++) cfg_put(ps_table.cfg[i / PS_VERSIONS][i % PS_VERSIONS]);
    mem_free(ps_table.changes.v);
    memset(&ps_table, 0, sizeof ps_table);
    rt_fini();
    lm_close();
}

/* ---- plans ---- */

static uint32_t ps_length(struct sim *sim)
{
    switch (sim_random(sim, 12)) {
    case 0: return 1 + sim_random(sim, 250000);
    case 1: case 2: return 1 + sim_random(sim, 40000);
    case 3: return 1;
    default: return 1 + sim_random(sim, 3000);
    }
}

static void ps_plan_fault(struct ps_world *x, struct ps_plan *p)
{
    struct sim *sim = &x->sim;

    if ((x->mode != 2 && x->mode != 3) || sim_random(sim, 4)) return;
    p->fault = (enum ps_fault)(1 + sim_random(sim, PS_FAULTS - 1));
    p->fault_at = sim_random(sim, 1 + sim_random(sim, 3000));
    p->fault_tries = 1 + sim_random(sim, 4);
    p->spoiled = true;
}

/* What the route makes of p. */
static void ps_plan_kind(struct ps_world *x, struct ps_plan *p)
{
    static const uint16_t bad[] = {500, 502, 503, 504, 403, 404, 429};
    struct sim *sim = &x->sim;
    const struct ps_kind *k = &ps_kinds[sim_chance(sim, 2) ? 0 : sim_random(sim, RJ_COUNT(ps_kinds))];

    for (size_t i = 0; i < RJ_COUNT(ps_kinds) && x->storm; i++)
        if (ps_kinds[i].statuses) k = &ps_kinds[i];
    if (k->faulty && x->mode != 2 && x->mode != 3) k = ps_kinds;
    if (k->may == 429) x->limits = true;
    p->kind = k;
    p->own = k->own;
    p->may = k->may;
    if (k->body_max && p->up_framing != PS_NONE && p->up_len > k->body_max) {
        if (p->up_framing == PS_LENGTH) p->own = 413;
        else p->may = 413;
    }
    if (k->statuses && !p->upgrade && (sim_chance(sim, 2) || x->storm)) {
        p->bad_status = bad[sim_random(sim, RJ_COUNT(bad))];
        p->bad_tries = x->storm ? UINT32_MAX : 1 + sim_random(sim, 4);
    }
    if (k->faulty) p->spoiled = true;
    if (sim_chance(sim, 8)) p->think_ms = sim_random(sim, 3000);
}

static void ps_plan(struct ps_world *x, struct ps_plan *p, bool last)
{
    static const struct { const char *name; bool body; } methods[] = {{"GET", false}, {"GET", false}, {"HEAD", false}, {"POST", true}, {"PUT", true}, {"DELETE", false}};
    static const uint16_t statuses[] = {200, 200, 200, 201, 204, 304, 404, 500};
    struct sim *sim = &x->sim;
    uint32_t m = sim_random(sim, 6);
    bool safe;

    *p = (struct ps_plan){.id = (uint32_t)(p - x->plan), .method = methods[m].name, .minor = 1, .up_framing = PS_NONE};
    if (methods[m].body) p->up_framing = sim_chance(sim, 3) ? PS_CHUNKED : PS_LENGTH;
    if (methods[m].body) p->up_len = ps_length(sim);
    p->expect = methods[m].body && sim_chance(sim, 6);
    p->go_on = sim_chance(sim, 2);
    p->status = statuses[sim_random(sim, RJ_COUNT(statuses))];
    p->down_framing = p->status == 204 ? PS_NONE : (uint8_t)sim_random(sim, 3);
    p->down_len = sim_chance(sim, 8) ? 0 : ps_length(sim);
    p->interim = sim_chance(sim, 8) ? (uint8_t)(1 + sim_random(sim, 3)) : 0;
    p->client_close = last && sim_chance(sim, 3);
    p->up_close = p->down_framing == PS_EOF || sim_chance(sim, 8);
    if (last && sim_chance(sim, 8)) p->minor = 0, p->up_framing = p->up_framing == PS_CHUNKED ? PS_LENGTH : p->up_framing, p->expect = false;
    if (last && p->minor && m == 0 && sim_chance(sim, 2)) {
        p->upgrade = true;
        p->client_close = false;
        p->refused = sim_chance(sim, 3);
        p->eager = sim_chance(sim, 3);
        p->up_len = p->eager ? 1 + sim_random(sim, 3000) : ps_length(sim);
        if (!p->refused) p->interim = 0, p->status = 101;
    }
    p->early = x->mode && x->mode < 4 && !p->upgrade && p->up_len && sim_chance(sim, 8);
    safe = !strcmp(p->method, "GET") || !strcmp(p->method, "HEAD") || !strcmp(p->method, "DELETE");
    p->spoiled = (x->mode && x->mode < 4 && !safe) || x->bad_connects || x->alloc_fails;
    ps_plan_kind(x, p);
    ps_plan_fault(x, p);
}

/* ---- clients ---- */

static void ps_put_content(struct sim_bytes *b, struct sim *sim, uint32_t pattern, uint32_t n, bool chunked)
{
    uint8_t piece[8192];

    for (uint32_t at = 0; at < n;) {
        uint32_t k = n - at < sizeof piece ? n - at : (uint32_t)sizeof piece;

        if (sim_chance(sim, 2)) k = 1 + sim_random(sim, k);
        for (uint32_t i = 0; i < k; i++) piece[i] = sim_pattern(pattern, at + i);
        if (chunked) sim_print(b, "%x%s\r\n", k, sim_chance(sim, 8) ? ";ext=\"a;b\"" : "");
        sim_put(b, piece, k);
        if (chunked) sim_print(b, "\r\n");
        at += k;
    }
    if (chunked) sim_print(b, "0\r\n%s\r\n", sim_chance(sim, 4) ? "X-Sum: 1\r\n" : "");
}

/* The PROXY header of a client: of both versions, with an address, without one, or none at all. */
static void ps_write_hello(struct ps_client *c)
{
    struct sim *sim = &c->x->sim;
    struct sim_bytes *b = &c->out;
    uint32_t n = 1 + sim_random(sim, 250), what = sim_random(sim, c->x->mode == 2 ? 5 : 4);
    uint8_t v2[] = {192, 0, 2, 7, 10, 0, 0, 9, 0x9c, 0x40, 0, 80, 4, 0, 3, 1, 2, 3};

    if (what < 3) snprintf(c->from, sizeof c->from, "198.51.100.%u", n);
    if (what < 2) {
        sim_print(b, "PROXY TCP4 %s 10.0.0.9 40000 80\r\n", c->from);
    } else if (what == 2) {
        memcpy(v2, (uint8_t[]){198, 51, 100, (uint8_t)n}, 4);
        sim_put(b, "\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x12", 16);
        sim_put(b, v2, sizeof v2);
    } else if (what == 3) {
        sim_put(b, "\r\n\r\n\0\r\nQUIT\n\x20\0\0\0", 16);
    } else {
        sim_print(b, "PROXY TCP4 %s 10.0.0.9 40000 80 \r\n", c->from);
        c->stranger = true;
    }
}

static void ps_write_request(struct ps_client *c, const struct ps_plan *p)
{
    struct sim *sim = &c->x->sim;
    struct sim_bytes *b = &c->out;

    b->n = b->at = 0;
    if (c->x->proxied && !c->sent) ps_write_hello(c);
    sim_print(b, "%s %s/%c/%u HTTP/1.%u\r\nHost: sim.test\r\n", p->method, sim_chance(sim, 8) ? "/x/.." : "", p->kind->path, p->id, p->minor);
    if (sim_chance(sim, 3)) sim_print(b, "X-Forwarded-For: 6.6.6.6\r\n");
    if (sim_chance(sim, 3)) sim_print(b, "Connection: x-hop\r\nX-Hop: 1\r\nKeep-Alive: 5\r\n");
    if (sim_chance(sim, 8)) sim_print(b, "X-Long: %0*d\r\n", (int)(1 + sim_random(sim, 1900)), 7);
    if (p->client_close) sim_print(b, "Connection: close\r\n");
    if (p->up_framing == PS_LENGTH) sim_print(b, "Content-Length: %u\r\n", p->up_len);
    if (p->up_framing == PS_CHUNKED) sim_print(b, "Transfer-Encoding: chunked\r\n");
    if (p->expect) sim_print(b, "Expect: 100-continue\r\n");
    if (p->upgrade) sim_print(b, "Connection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n");
    sim_print(b, "\r\n");
    c->body_at = b->n;
    if (p->up_framing != PS_NONE || p->upgrade) ps_put_content(b, sim, p->id + 1, p->up_len, p->up_framing == PS_CHUNKED);
    c->continued = false;
}

static struct ps_plan *ps_expected(struct ps_client *c) { return c->answered < c->count ? &c->x->plan[c->first + c->answered] : NULL; }

/* The proxy itself has answered p. */
static void ps_check_own(struct ps_client *c, const struct ps_plan *p)
{
    const struct sim_reader *r = &c->reader;
    struct ps_world *x = c->x;

    if (r->status == 503 && r->has_length && !r->length) x->busy++;
    if (!r->bodyless && r->has_length && r->length && atoi(r->start) != r->status)
        sim_fail(&x->sim, "request %u: a refusal %d with the text %s", p->id, r->status, r->start);
    if (r->status == p->own || r->status == p->may || p->spoiled || x->drained) return;
    if (x->mode == 4) x->noticed++;
    else sim_fail(&x->sim, "request %u (%c, %s, tries %u) was refused: %d %s", p->id, p->kind->path, p->method, p->heads, r->status, r->start);
}

/* A complete answer to p stands in the reader; at_end: the end of the connection has completed it. */
static void ps_check_answer(struct ps_client *c, struct ps_plan *p, bool at_end)
{
    struct sim_reader *r = &c->reader;
    struct ps_world *x = c->x;
    bool bare = !strcmp(p->method, "HEAD") || r->status == 204 || r->status == 304, tunnel = p->upgrade && r->status == 101;
    uint64_t want = bare ? 0 : p->down_len;

    x->answers++;
    if (r->id < 0) {
        ps_check_own(c, p);
    } else {
        p->answered = true;
        if (c->stranger || p->own) sim_fail(&x->sim, "request %u was let through", p->id);
        if ((uint32_t)r->id != p->id) sim_fail(&x->sim, "request %u got the answer to %d", p->id, r->id);
        else if (r->status != p->status && r->status != p->bad_status) sim_fail(&x->sim, "request %u got status %d, planned is %u", p->id, r->status, p->status);
        else if (r->got != want && !(p->down_framing == PS_EOF && p->cut) && !(at_end && tunnel && (p->spoiled || x->drained)))
            sim_fail(&x->sim, "request %u: %llu bytes look like the whole answer of %llu", p->id, (unsigned long long)r->got, (unsigned long long)want);
    }
    if (r->close || !p->minor || p->client_close || p->upgrade || (!r->has_length && !r->chunked && !bare)) c->closing = true;
}

/* The proxy has ended the connection, or its side of it. */
static void ps_client_end(struct ps_client *c, bool by_reset)
{
    struct ps_plan *p = ps_expected(c);
    struct sim_reader *r = &c->reader;
    bool lost = false;

    if (p && r->state == SIM_EOF && !by_reset) {
        ps_check_answer(c, p, true);
        c->answered++;
    } else if (p && (r->state != SIM_HEAD || r->head_n)) {
        lost = true;
        if (!p->spoiled && !c->x->drained && c->x->mode != 4) sim_fail(&c->x->sim, "request %u: the answer ends in the middle (state %d, %llu bytes)", p->id, r->state, (unsigned long long)r->got);
    } else if (p && c->sent > c->answered && !c->closing) {
        lost = true;
        if (!p->spoiled && !c->x->drained && c->x->mode != 4 && !c->stranger) sim_fail(&c->x->sim, "request %u was not answered", p->id);
    }
    if (lost && c->x->mode == 4) c->x->noticed++;
    c->closing = true;
    sim_reader_init(r, true);
}

static void ps_client_head(struct ps_client *c, struct ps_plan *p)
{
    struct sim_reader *r = &c->reader;

    c->head_seen = true;
    if (r->id >= 0) r->pattern = p->id + 1000;
    if (r->status == 100) c->continued = true;
    if (r->status < 200 && !p->minor) sim_fail(&c->x->sim, "an interim answer for a client of 1.0");
    if (r->status == 101 && (!p->upgrade || p->refused)) sim_fail(&c->x->sim, "101 that was not asked for");
    if (r->status == 101) r->state = SIM_EOF, c->tunnel = true;
    if (r->status != p->status && r->status != p->bad_status && r->id >= 0 && r->status >= 200) sim_fail(&c->x->sim, "request %u got status %d", p->id, r->status);
}

/* The last answer was a refusal of a HEAD request of which the proxy has not read the method. */
static bool ps_is_half_head(const struct ps_client *c)
{
    const struct ps_plan *p = &c->x->plan[c->first + c->answered - 1];

    return (p->fault == PS_CLIENT_SILENT || c->x->mode >= 3) && !strcmp(p->method, "HEAD");
}

static void ps_client_bytes(struct sim_peer *peer, const uint8_t *bytes, size_t n)
{
    struct ps_client *c = RJ_CONTAINER(peer, struct ps_client, peer);
    struct sim_reader *r = &c->reader;

    for (size_t at = 0; at < n && !c->x->sim.failed;) {
        struct ps_plan *p = ps_expected(c);

        if (c->closing && !c->head_seen && c->answered && ps_is_half_head(c)) return; /* the text behind a refusal */
        if (!p && c->x->plan[c->first + c->count - 1].eager) return; /* it was read as a request: the answer said that this is no tunnel */
        if (!p || c->answered >= c->sent + 1) {
            sim_fail(&c->x->sim, "%zu bytes that nobody asked for", n - at);
            return;
        }
        if (c->closing && r->state == SIM_HEAD) sim_fail(&c->x->sim, "an answer behind the last one");
        r->bodyless = !strcmp(p->method, "HEAD");
        at += sim_read(r, bytes + at, n - at);
        if (r->state == SIM_BAD) sim_fail(&c->x->sim, "request %u: bad answer: %s", p->id, r->bad);
        if (r->state != SIM_HEAD && !c->head_seen) ps_client_head(c, p);
        if (r->state != SIM_DONE) continue;
        if (r->status >= 200) {
            ps_check_answer(c, p, false);
            c->answered++;
            if (sim_chance(&c->x->sim, 6)) c->idle_until_ms = c->x->w->loop.clk.now_ms + sim_random(&c->x->sim, 22000);
        }
        sim_reader_init(r, true);
        c->head_seen = false;
    }
}

/* The proxy's side ends without an answer to a request that it has read to its end: it was dropped. */
static void ps_client_fin(struct sim_peer *peer)
{
    struct ps_client *c = RJ_CONTAINER(peer, struct ps_client, peer);
    const struct sim_sock *k = peer->k;

    if (!c->closing && !c->x->drained && c->sent > c->answered && c->out.at == c->out.n && k->rx.at == k->rx.n && c->reader.state == SIM_HEAD && !c->reader.head_n)
        sim_fail(&c->x->sim, "request %u was swallowed", c->first + c->answered);
    ps_client_end(c, false);
}

static void ps_client_gone(struct sim_peer *peer)
{
    struct ps_client *c = RJ_CONTAINER(peer, struct ps_client, peer);

    if (!c->done) ps_client_end(c, peer->was_reset);
    c->done = true;
}

/* Moves a piece of the bytes to the proxy. */
static void ps_move(struct sim *sim, struct sim_bytes *from, size_t end, struct sim_sock *k)
{
    size_t n = end - from->at;

    if (k->rx.n - k->rx.at > 100000 || !n) return;
    if (sim_chance(sim, 3)) n = 1 + sim_random(sim, n < 100 ? (uint32_t)n : 100);
    else if (sim_chance(sim, 2)) n = 1 + sim_random(sim, (uint32_t)n);
    sim_put(&k->rx, from->p + from->at, n);
    from->at += n;
}

static void ps_client_fault(struct ps_client *c, struct ps_plan *p)
{
    struct sim_sock *k = c->peer.k;
    struct sim *sim = &c->x->sim;

    if (c->out.at < p->fault_at && c->out.at < c->out.n) return;
    if (p->fault == PS_CLIENT_STALL) {
        c->stalled = true;
        k->window = 0;
    } else if (p->fault == PS_CLIENT_RESET && sim_chance(sim, 4)) {
        k->rx_reset = true;
        c->done = true;
    } else if (p->fault == PS_CLIENT_FIN && sim_chance(sim, 4)) {
        k->rx_eof = true;
        c->done = true;
    } else if (p->fault == PS_CLIENT_SILENT) {
        c->done = true;                                              /* sends no more; the proxy ends it */
    }
}

static void ps_client_turn(struct ps_client *c)
{
    struct sim *sim = &c->x->sim;
    struct sim_sock *k = c->peer.k;
    struct ps_plan *p = ps_expected(c);
    bool all;

    if (!k || !sim_random(sim, 4)) return;
    if (c->slow && !c->stalled && k->window < 100000) k->window += sim_random(sim, 5000);
    if (!c->tunnel && (k->fin || (c->closing && c->answered && sim_chance(sim, 4)))) k->rx_eof = true;
    if (k->rx_eof || k->rx_reset || c->done) {
        if (c->done && c->x->drained && sim_chance(sim, 4)) k->rx_eof = true;
        return;
    }
    if (c->out.at == c->out.n && c->sent < c->count && !c->closing && (c->sent == c->answered || c->pipelines) && c->idle_until_ms <= sim->lp->clk.now_ms) {
        ps_write_request(c, &c->x->plan[c->first + c->sent]);
        c->sent++;
    }
    if (c->sent) {
        struct ps_plan *now = &c->x->plan[c->first + c->sent - 1];
        size_t end = now->expect && !c->continued && c->answered < c->sent ? c->body_at : c->out.n;

        if (now->upgrade && !c->tunnel && !now->eager) end = c->body_at;
        if (now->fault > PS_UP_LAST) ps_client_fault(c, now);
        if (c->done || c->out.at > end) return;
        ps_move(sim, &c->out, end, k);
        all = c->out.at == c->out.n && c->sent == c->count;
        if (all && (c->half_close || c->tunnel) && sim_chance(sim, 3)) k->rx_eof = true;
    }
    if (!p && !c->tunnel && sim_chance(sim, 8)) k->rx_eof = true;                  /* or the proxy closes it in its time */
}

static void ps_client_open(struct ps_client *c)
{
    static const struct net_addr peer = {.family = AF_INET, .ip = {[10] = 0xff, [11] = 0xff, 192, 0, 2, 1}, .port = 40000};
    struct sim *sim = &c->x->sim;
    int fd = sys_socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    c->opened = true;
    c->peer = (struct sim_peer){.on_bytes = ps_client_bytes, .on_fin = ps_client_fin, .on_gone = ps_client_gone};
    snprintf(c->peer.name, sizeof c->peer.name, "client %u", (unsigned)(c - c->x->client));
    sim_reader_init(&c->reader, true);
    sim->next_peer = &c->peer;
    atomic_fetch_add(&c->x->w->conns, 1);
    wrk_serve(c->x->w, fd, &peer, 80);
    if (!c->peer.k) {
        c->done = true;
        c->x->noticed++;
        sim->next_peer = NULL;
        return;
    }
    if (c->slow) c->peer.k->window = 1000;
}

/* ---- upstreams ---- */

static void ps_server_answer(struct ps_server *s)
{
    struct ps_plan *p = s->plan;
    struct sim *sim = &s->x->sim;
    struct sim_bytes *b = &s->out;
    size_t from = b->n;
    uint16_t status = p->heads <= p->bad_tries ? p->bad_status : p->status;
    bool bare = !strcmp(p->method, "HEAD") || status == 204 || status == 304, faulty = p->fault && p->fault <= PS_UP_LAST && p->heads <= p->fault_tries;
    uint8_t framing = p->down_framing;

    s->answered = true;
    s->think_until_ms = sim->lp->clk.now_ms + p->think_ms;
    if (faulty && p->fault == PS_UP_SILENT) {
        s->silent = true;
        return;
    }
    for (uint32_t i = 0; i < p->interim; i++) sim_print(b, "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n");
    if (faulty && p->fault == PS_UP_GARBAGE) sim_print(b, "HTTP/1.1 2x0 What\r\n\r\n");
    sim_print(b, "HTTP/1.1 %u Some Reason\r\nX-Id: %u\r\nServer: sim\r\n", status, p->id);
    if (sim_chance(sim, 4)) sim_print(b, "Connection: x-hop\r\nX-Hop: 1\r\nKeep-Alive: timeout=5\r\n");
    if (sim_chance(sim, 8)) sim_print(b, "X-Long: %0*d\r\n", (int)(1 + sim_random(sim, 1900)), 7);
    if (status == 101) framing = PS_EOF;
    if (status == 101) sim_print(b, "Connection: upgrade\r\nUpgrade: websocket\r\n");
    else if (p->up_close && !(framing == PS_EOF && !bare && sim_chance(sim, 2))) sim_print(b, "Connection: close\r\n");
    if (framing == PS_NONE && status != 204) framing = PS_LENGTH;
    if (framing == PS_LENGTH) sim_print(b, "Content-Length: %u\r\n", p->down_len);
    if (framing == PS_CHUNKED) sim_print(b, "Transfer-Encoding: chunked\r\n");
    sim_print(b, "\r\n");
    if (!bare) ps_put_content(b, sim, p->id + 1000, p->down_len, framing == PS_CHUNKED);
    if (p->up_close || status == 101) s->closes = s->fin = true;
    if (faulty && (p->fault == PS_UP_RESET_MID || p->fault == PS_UP_FIN_MID) && b->n > from + p->fault_at) {
        b->n = from + p->fault_at;
        s->fin = p->cut = p->fault == PS_UP_FIN_MID;
        s->reset = !s->fin;
    }
}

static void ps_server_head(struct ps_server *s)
{
    struct sim_reader *r = &s->reader;
    struct ps_world *x = s->x;
    struct ps_plan *p;

    if (s->closes) sim_fail(&x->sim, "a request on a connection that the upstream closes");
    if (r->id < 0 || (uint32_t)r->id >= x->plans) {
        sim_fail(&x->sim, "a request that nobody sent: %d", r->id);
        return;
    }
    s->plan = p = &x->plan[r->id];
    s->answered = false;
    r->pattern = p->id + 1;
    p->heads++;
    x->last_head_ms = x->sim.lp->clk.now_ms;
    if (strcmp(p->method, r->method) != 0) sim_fail(&x->sim, "request %u comes as %s", p->id, r->method);
    if (r->route != (p->kind->upstream_path ? p->kind->upstream_path : p->kind->path)) sim_fail(&x->sim, "request %u comes to /%c", p->id, r->route);
    if (strcmp(p->from, r->from) != 0) sim_fail(&x->sim, "request %u comes from %s, not %s", p->id, r->from, p->from);
    if (p->own) sim_fail(&x->sim, "request %u was not to come here", p->id);
    if (p->heads > 1 && !p->kind->twice && !strcmp(p->method, "POST")) sim_fail(&x->sim, "request %u: POST is sent twice", p->id);
    if (p->heads > PS_ENDPOINTS + 3) sim_fail(&x->sim, "request %u is sent for the %u. time", p->id, p->heads);
    if (r->chunked != (p->up_framing == PS_CHUNKED) || r->has_length != (p->up_framing == PS_LENGTH)) sim_fail(&x->sim, "request %u: other framing", p->id);
    if (r->has_length && r->length != p->up_len) sim_fail(&x->sim, "request %u: other length", p->id);
    if (r->expect && p->expect && p->go_on) sim_print(&s->out, "HTTP/1.1 100 Continue\r\n\r\n");
    if (p->fault == PS_UP_RESET && p->heads <= p->fault_tries) s->peer.k->rx_reset = true;
    if (p->fault == PS_UP_STALL && p->heads <= p->fault_tries) {
        s->stalled = s->silent = true;
        s->peer.k->window = 0;
        return;
    }
    if (p->early) ps_server_answer(s);
    if (p->upgrade != r->upgrade) sim_fail(&x->sim, "request %u: other upgrade", p->id);
    if (p->upgrade && !p->refused) {
        ps_server_answer(s);
        r->state = SIM_EOF;
    }
}

static void ps_server_bytes(struct sim_peer *peer, const uint8_t *bytes, size_t n)
{
    struct ps_server *s = RJ_CONTAINER(peer, struct ps_server, peer);
    struct sim_reader *r = &s->reader;

    for (size_t at = 0; at < n && !s->x->sim.failed;) {
        if (s->silent || s->left) return;
        at += sim_read(r, bytes + at, n - at);
        if (r->state == SIM_BAD) sim_fail(&s->x->sim, "upstream: bad request: %s", r->bad);
        else if (r->state != SIM_HEAD && !s->plan) ps_server_head(s);
        if (r->state != SIM_DONE) continue;
        if (r->got != (s->plan->upgrade ? 0 : s->plan->up_len)) sim_fail(&s->x->sim, "request %u: %llu bytes of %u", s->plan->id, (unsigned long long)r->got, s->plan->up_len);
        if (!s->answered) ps_server_answer(s);
        s->plan = NULL;
        s->served++;
        sim_reader_init(r, false);
    }
}

static void ps_server_fin(struct sim_peer *peer)
{
    struct ps_server *s = RJ_CONTAINER(peer, struct ps_server, peer);

    if (!s->plan || s->plan->status != 101) sim_fail(&s->x->sim, "a request connection is half-closed");
    else if (s->reader.got != s->plan->up_len && !s->plan->spoiled && !s->x->drained) sim_fail(&s->x->sim, "tunnel %u: %llu bytes up", s->plan->id, (unsigned long long)s->reader.got);
}

static void ps_server_gone(struct sim_peer *peer) { (void)peer; }

static struct sim_peer *ps_server_new(struct sim *sim, uint16_t port, int *res)
{
    struct ps_world *x = RJ_CONTAINER(sim, struct ps_world, sim);
    struct ps_server *s = calloc(1, sizeof *s);

    *res = 0;
    if (port < 8001 || port >= 8001 + PS_ENDPOINTS) sim_fail(sim, "a connect to port %u", port);
    if (x->bad_connects && sim_chance(sim, 3)) *res = sim_chance(sim, 4) ? 1 : sim_chance(sim, 2) ? -ECONNREFUSED : -EHOSTUNREACH;
    *s = (struct ps_server){.x = x, .next = x->servers, .slow = sim_chance(sim, 4)};
    s->peer = (struct sim_peer){.on_bytes = ps_server_bytes, .on_fin = ps_server_fin, .on_gone = ps_server_gone};
    snprintf(s->peer.name, sizeof s->peer.name, "upstream %u", port % 100u);
    sim_reader_init(&s->reader, false);
    x->servers = s;
    return &s->peer;
}

static void ps_server_turn(struct ps_server *s)
{
    struct sim *sim = &s->x->sim;
    struct sim_sock *k = s->peer.k;

    if (!k || k->connect || !sim_random(sim, 4)) return;
    if (s->slow && !s->stalled && k->window > 200000) k->window = sim_random(sim, 5000);
    if (s->slow && !s->stalled) k->window += sim_random(sim, 5000);
    if (s->think_until_ms > sim->lp->clk.now_ms) return;
    if (s->out.at < s->out.n) {
        ps_move(sim, &s->out, s->out.n, k);
        return;
    }
    if (s->answered && s->reset && sim_chance(sim, 2)) k->rx_reset = true;
    if (s->answered && s->fin) k->rx_eof = true;
    if (s->x->mode && s->x->mode < 4 && !s->fin && !s->reset && !s->plan && s->served && !s->reader.head_n && sim_chance(sim, 12)) {
        s->left = true;
        if (k->rx.at < k->rx.n || sim_chance(sim, 2)) k->rx_eof = true;
        else k->rx_reset = true;
    }
}

/* ---- a run ---- */

/* No request holds more than its share, however slow the other side is; a stop may come behind some receives of a big buffer each. */
static void ps_check_bounds(struct ps_world *x)
{
    for (struct map_link *l = x->w->px.all.next; l != &x->w->px.all; l = l->next) {
        const struct px_req *r = RJ_CONTAINER(l, struct px_conn, link)->req;

        if (!r || r->held) continue;
        if (r->up_flow.q.bytes > PX_HIGH + 8 * MEM_BIG_BYTES || r->down_flow.q.bytes > PX_HIGH + 8 * MEM_BIG_BYTES)
            sim_fail(&x->sim, "a request holds %u and %u bytes", (unsigned)r->up_flow.q.bytes, (unsigned)r->down_flow.q.bytes);
    }
}

static void ps_turn(struct sim *sim)
{
    struct ps_world *x = RJ_CONTAINER(sim, struct ps_world, sim);

    for (uint32_t i = 0; i < x->clients; i++) {
        struct ps_client *c = &x->client[i];

        if (!c->opened && sim_chance(sim, 4)) ps_client_open(c);
        else ps_client_turn(c);
    }
    for (struct ps_server *s = x->servers; s; s = s->next) ps_server_turn(s);
    if (sim_chance(sim, 40)) ps_publish(x->w, ps_table.cfg[x->proxied][sim_random(sim, PS_VERSIONS)]);
    if (x->alloc_fails && !mem_fail_at && sim_chance(sim, 6)) {
        mem_fail_at = 1 + (long)sim_random(sim, 12);
        mem_fail_more = sim_chance(sim, 2) ? (long)sim_random(sim, 8) : 0;
    }
    if (x->drains && !x->w->px.leaving && x->answers > 3 && sim_chance(sim, 20)) wrk_on_drain(&x->w->drain_msg);
    x->drained = x->w->draining;
    ps_check_bounds(x);
}

static const struct px_transport ps_transport = {.name = "sim", .scheme = "http", .raw = false, .feed = tp_plain_feed, .send = tp_plain_send};

/* Pumps are not simulated: no connection may begin one. */
static void ps_on_event(struct sim *sim)
{
    struct px *px = &RJ_CONTAINER(sim, struct ps_world, sim)->w->px;

    for (struct map_link *l = px->all.next; l != &px->all; l = l->next) {
        struct px_conn *c = RJ_CONTAINER(l, struct px_conn, link);

        if (c->transport == &tp_plain) c->transport = &ps_transport;
    }
}

static void ps_start_clients(struct ps_world *x)
{
    struct sim *sim = &x->sim;

    x->clients = 1 + sim_random(sim, PS_CLIENTS);
    for (uint32_t i = 0; i < x->clients; i++) {
        struct ps_client *c = &x->client[i];

        *c = (struct ps_client){.x = x, .first = x->plans, .count = 1 + sim_random(sim, PS_REQUESTS), .pipelines = sim_chance(sim, 3),
                                .half_close = sim_chance(sim, 4), .slow = sim_chance(sim, 4), .from = "192.0.2.1"};
        for (uint32_t k = 0; k < c->count; k++) {
            ps_plan(x, &x->plan[x->plans], k + 1 == c->count);
            x->plan[x->plans++].from = c->from;
        }
        for (uint32_t k = 0; k < c->count; k++)                      /* an early answer may come before the fault */
            for (uint32_t j = c->pipelines ? 0 : k; j < c->count && x->plan[c->first + k].fault > PS_UP_LAST; j++) x->plan[c->first + j].spoiled = true;
    }
}

static void ps_start(struct ps_world *x, uint32_t seed)
{
    struct sim *sim = &x->sim;
    struct wrk *w = x->w = mem_need(sizeof *w);

    *sim = (struct sim){.seed = (uint64_t)seed * 0x9e3779b97f4a7c15u + 1, .lp = &w->loop, .on_turn = ps_turn, .on_event = ps_on_event, .on_connect = ps_server_new};
    for (int i = 0; i < 4; i++) sim_random(sim, 2);
    sim->trace = getenv("RAMJET_SIM_TRACE") != NULL;
    sim->delay = sim_random(sim, 7);
    sim->all_big = sim_chance(sim, 2);
    x->proxied = sim_chance(sim, 3);
    ps_publish(NULL, ps_table.cfg[x->proxied][0]);
    rj.lm.seed[0] = rj.lm.seed[1] = seed;
    x->seed = seed;
    x->mode = seed % 5;
    x->bad_connects = (x->mode == 2 || x->mode == 3) && sim_chance(sim, 3);
    x->alloc_fails = x->mode == 3;
    x->drains = x->mode == 2 && sim_chance(sim, 4);
    sim->add_fails = x->mode == 3;
    x->storm = x->mode == 0 && sim_chance(sim, 6);
    ps_start_clients(x);
    if (x->limits) memset(rj.lm.buckets, 0, LM_ENTRIES * sizeof *rj.lm.buckets);
    w->thread.access.cap = 1 << 20;
    w->thread.log.cap = 1 << 16;
    w->px.access_log = true;
    w->px.combined = sim_chance(sim, 8);
    w->loop.sim = sim;
    w->max_conns = 1000;
    w->delay_ms = sim_chance(sim, 2) ? 0 : sim_random(sim, 3000);
    w->drain_ms = sim_random(sim, 30000);
    w->delay.fire = wrk_on_delay;
    w->deadline.fire = wrk_on_deadline;
    proxy_set_thread(&w->thread);
    io_loop_open(&w->loop, &sim_ops, x->mode == 3 && sim_chance(sim, 2) ? (384 << 10) + sim_random(sim, 512 << 10) : 0); /* many of them have to give way */
    up_init(&w->up, &w->loop);
    w->up.random = seed;
    px_init(w, wrk_on_gone, sh_relieve);
    w->px.id_state[0] = w->px.id_state[1] = seed;
    x->start_ms = w->loop.clk.now_ms;
}

static bool ps_is_running(const struct ps_world *x)
{
    for (uint32_t i = 0; i < x->clients; i++)
        if (!x->client[i].opened) return true;
    return x->w->px.conns.used > 0;
}

/* Counts the lines of the access log, and those of each request: its path ends in its number. */
static void ps_read_log(struct ps_world *x)
{
    const struct log_ring *log = &x->w->thread.access;
    uint64_t n = atomic_load(&log->head);
    char line[1024];
    uint32_t k = 0;

    for (uint64_t at = 0; at < n; at++) {
        char c = (char)log->p[at & (log->cap - 1)], route;
        uint32_t id;

        if (c != '\n') {
            if (k + 1 < sizeof line) line[k++] = c;
            continue;
        }
        x->logged++;
        line[k] = 0;
        k = 0;
        for (const char *p = line; (p = strchr(p, '/')); p++)
            if (sscanf(p, "/%c/%u", &route, &id) == 2 && id < x->plans && route == x->plan[id].kind->path) {
                x->plan[id].lines++;
                break;
            }
    }
}

/* retry-budget: 20 % of the requests (none in one version of the settings), and one a second up to ten. Free of it is what was sent again because
 * an idle connection had ended meanwhile, once for each request, which only some modes have. */
static void ps_check_budget(struct ps_world *x)
{
    uint32_t again = 0, asked = 0;
    uint64_t most;

    for (uint32_t i = 0; i < x->plans; i++) {
        asked += x->plan[i].heads > 0;
        again += x->plan[i].heads > 1u + (x->mode != 0) ? x->plan[i].heads - 1 - (x->mode != 0) : 0;
    }
    if (!asked) return;
    most = 10 * 100 + asked * 20 + (1 + (x->last_head_ms - x->start_ms + 999) / 1000) * 100;
    if (again * 100ull > most) sim_fail(&x->sim, "%u of %u requests were sent again, %llu hundredths are allowed", again, asked, (unsigned long long)most);
}

/* What must be true once every client is gone and idle connections are closed. */
static void ps_check_end(struct ps_world *x)
{
    struct wrk *w = x->w;
    struct sim *sim = &x->sim;
    uint32_t sent = 0;

    if (w->px.conns.used || w->px.reqs.used || w->up.conns.used)
        sim_fail(sim, "left: %u connections, %u requests, %u upstream connections", w->px.conns.used, w->px.reqs.used, w->up.conns.used);
    if (w->loop.tiny.used || w->loop.small.used || w->loop.medium.used || w->loop.large.used || w->loop.big.used || w->loop.big.alone || w->px.trailers.used)
        sim_fail(sim, "left: %u tiny buffers, %u small, %u medium, %u large, %u big and %zu bytes alone; %u trailer sections", w->loop.tiny.used,
                 w->loop.small.used, w->loop.medium.used, w->loop.large.used, w->loop.big.used, w->loop.big.alone, w->px.trailers.used);
    for (const struct rt_snapshot *s = rj.rt.first; s; s = s->newer)
        if (atomic_load(&s->lease[0].n)) sim_fail(sim, "left: %u leases", (unsigned)atomic_load(&s->lease[0].n));
    for (int i = 0; i < MTR_GAUGE_COUNT; i++)
        if (w->thread.mtr.gauge[i]) sim_fail(sim, "gauge %d stands at %lld", i, (long long)w->thread.mtr.gauge[i]);
    for (size_t i = 0; i < UP_TABLE; i++)
        for (struct up_pool *p = w->up.pools[i]; p; p = p->next)
            if (p->active_n || p->idle_n) sim_fail(sim, "pool %u counts %u active, %u idle", p->addr.port, p->active_n, p->idle_n);
    for (size_t i = 0; x->limits && i < LM_ENTRIES; i++)
        if (rj.lm.places[i] & ((1u << LM_COUNT_BITS) - 1)) sim_fail(sim, "a place counts requests that have ended");
    if (w->conns) sim_fail(sim, "%u clients are counted", (unsigned)w->conns);
    ps_check_budget(x);
    clk_drop(&w->loop.clk, &w->delay);
    clk_drop(&w->loop.clk, &w->deadline);
    if (w->loop.clk.queued > 1) sim_fail(sim, "%u timers are left", w->loop.clk.queued);
    for (uint32_t i = 0; i < x->clients; i++) sent += x->client[i].sent;
    ps_read_log(x);
    if (x->logged + x->busy < x->answers || x->logged > sent) sim_fail(sim, "%u log lines for %u answers to %u requests", x->logged, x->answers, sent);
    if (x->mode == 0 && x->logged != x->answers) sim_fail(sim, "%u log lines for %u answers", x->logged, x->answers);
    for (uint32_t i = 0; i < x->plans; i++)
        if (x->plan[i].lines > 1 || (x->plan[i].answered && !x->plan[i].lines)) sim_fail(sim, "request %u is logged %u times", i, x->plan[i].lines);
    if (x->mode == 4 && x->noticed > x->losses_max) sim_fail(sim, "%u losses for %u allocations", x->noticed, x->losses_max);
}

static void ps_finish(struct ps_world *x)
{
    struct wrk *w = x->w;

    mem_fail_at = 0;
    up_fini(&w->up);
    px_fini(w);
    io_loop_close(&w->loop);
    if (w->loop.mapped) sim_fail(&x->sim, "left: %zu bytes by the books", w->loop.mapped);
    for (int i = 0; i < MTR_ROUTES_MAX; i++) mem_free(atomic_load(&w->thread.mtr.route[i]));
    if (w->thread.access.p) sys_unmap(w->thread.access.p, w->thread.access.cap);
    if (w->thread.log.p) sys_unmap(w->thread.log.p, w->thread.log.cap);
    for (struct ps_server *s = x->servers, *next; s; s = next) {
        next = s->next;
        sim_bytes_free(&s->out);
        free(s);
    }
    for (uint32_t i = 0; i < x->clients; i++) sim_bytes_free(&x->client[i].out);
    proxy_set_thread(NULL);
    mem_free(w);
}

/* What a failed run was about, for who replays it. */
static void ps_print(const struct ps_world *x)
{
    const struct log_ring *log = &x->w->thread.access;

    for (uint32_t i = 0; i < x->plans; i++) {
        const struct ps_plan *p = &x->plan[i];

        printf("  plan %u: %c %s HTTP/1.%u up %u (%u) status %u down %u (%u)%s%s%s%s%s%s fault %d at %u, seen %u times\n", p->id, p->kind->path, p->method, p->minor, p->up_len,
               p->up_framing, p->status, p->down_len, p->down_framing, p->expect ? " expect" : "", p->upgrade ? " upgrade" : "", p->early ? " early" : "",
               p->client_close ? " client-close" : "", p->up_close ? " up-close" : "", p->spoiled ? " spoiled" : "", p->fault, p->fault_at, p->heads);
    }
    for (uint32_t i = 0; i < x->clients; i++)
        printf("  client %u: plans from %u, %u sent, %u answered of %u%s%s%s\n", i, x->client[i].first, x->client[i].sent, x->client[i].answered, x->client[i].count,
               x->client[i].pipelines ? " pipelines" : "", x->client[i].half_close ? " half-close" : "", x->client[i].slow ? " slow" : "");
    for (const struct map_link *l = x->w->px.all.next; l != &x->w->px.all; l = l->next) {
        const struct px_conn *c = RJ_CONTAINER(l, struct px_conn, link);
        const struct px_req *r = c->req;

        printf("  connection fd %d state %d ended %d, request state %d, error %d, aborted %d, up %d, sources %d %d, queued %u %u, timer %llu, now %llu\n", c->s.fd, c->state,
               c->ended, r ? r->state : -1, r ? r->error : -1, r ? r->aborted : -1, r && r->up ? r->up->s.fd : -1, r ? r->up_flow.src : -1, r ? r->down_flow.src : -1,
               r ? r->up_flow.q.bytes : 0, r ? r->down_flow.q.bytes : 0, (unsigned long long)c->timer.deadline_ms, (unsigned long long)x->w->loop.clk.now_ms);
    }
    if (log->p) printf("%.*s", (int)atomic_load(&log->head), (const char *)log->p);
}

/* Runs one seed, in mode 4 with the fail_at-th allocation failing. Returns whether every promise was kept; what not stands in x->sim.why. */
static bool ps_run(struct ps_world *x, uint32_t seed, long fail_at)
{
    struct wrk *w;
    uint32_t turns = 0;

    memset(x, 0, sizeof *x);
    ps_start(x, seed);
    w = x->w;
    mem_fail_at = x->mode == 4 ? fail_at : 0;
    mem_fail_more = x->mode == 4 && fail_at % 2 ? fail_at / 2 % 5 : 0; /* every other one alone */
    x->losses_max = 1 + (uint32_t)mem_fail_more;
    while (ps_is_running(x) && !x->sim.failed && turns++ < PS_TURNS) {
        io_turn(&w->loop, 1000);
        sh_check(w);
    }
    if (!x->sim.failed && ps_is_running(x)) sim_fail(&x->sim, "still running after %d turns", PS_TURNS);
    x->allocs = fail_at - mem_fail_at;
    mem_fail_at = mem_fail_more = 0;
    x->alloc_fails = false;
    up_close_all_idle(&w->up);
    for (turns = 0; !x->sim.failed && (w->up.conns.used || w->px.reqs.used) && turns < 2000; turns++) {
        io_turn(&w->loop, 1000);
        up_close_all_idle(&w->up);
    }
    if (!x->sim.failed) ps_check_end(x);
    if (x->sim.failed) return false;                                 /* what is left is not given back */
    ps_finish(x);
    return !x->sim.failed;
}

/* One seed; in mode 4 every allocation that it makes fails in turn (all), or some. */
static bool ps_seed(struct ps_world *x, uint32_t seed, bool all)
{
    const char *only = getenv("RAMJET_SIM_ALLOC");
    const long never = LONG_MAX / 2;
    uint64_t random = seed;
    long n, fail_at = only ? atol(only) : never;

    alarm(UT_SECONDS_MAX);
    if (ps_run(x, seed, fail_at)) {
        if (x->mode != 4 || only) return true;
        if (x->noticed) sim_fail(&x->sim, "%u losses without any fault", x->noticed);
        n = x->allocs;
        for (long k = 0; k < (all ? n : n ? PS_ALLOCS : 0) && !x->sim.failed; k++) {
            fail_at = all ? k + 1 : 1 + (long)ut_random(&random, (uint32_t)n);
            ut.checks++;
            ps_run(x, seed, fail_at);
        }
    }
    if (!x->sim.failed) return true;
    if (x->mode == 4 && fail_at != never) ut_result(false, __FILE__, __LINE__, "seed %u, allocation %ld (tests/sim/run %u %ld replays it): %s", seed, fail_at, seed, fail_at, x->sim.why);
    else ut_result(false, __FILE__, __LINE__, "seed %u (tests/sim/run %u replays it): %s", seed, seed, x->sim.why);
    return false;
}

UT(px_simulated_runs_keep_every_promise)
{
    static struct ps_world x;
    const char *first = getenv("RAMJET_SIM_FIRST"), *count = getenv("RAMJET_SIM_SEEDS");
    uint32_t from = first ? (uint32_t)atoi(first) : 1, n = count ? (uint32_t)atoi(count) : 400, answers = 0, requests = 0;

    UT_REQUIRE(ps_open());
    for (uint32_t seed = from; seed < from + n; seed++) {
        if (!ps_seed(&x, seed, false)) {
            if (first && n == 1) ps_print(&x);
            return;
        }
        ut.checks++;
        answers += x.answers;
        requests += x.plans;
    }
    if (first) printf("%u seeds, %u answers to %u planned requests\n", n, answers, requests);
    UT_CHECK(n < 4 || answers > 0);
    ps_close();
}

UT(px_every_allocation_of_a_run_may_fail)
{
    static struct ps_world x;
    uint32_t seeds = getenv("RAMJET_SIM_FIRST") ? 0 : 8;

    UT_REQUIRE(ps_open());
    for (uint32_t i = 0; i < seeds; i++)
        if (!ps_seed(&x, 4 + 5 * i, true)) return;
    UT_CHECK(!seeds || x.seed);
    ps_close();
}

static void ps_send_nothing(struct io_loop *lp, struct io_sock *s, struct io_outq *q) { (void)lp, (void)s, q->sending = true; }

/* An exchange at rest at 100 s on the clock, with nothing to send: enough for the deadlines. */
struct ps_rest {
    struct wrk w;
    struct io_ops ops;
    struct px_conn c;
    struct up_conn u;
    struct px_req r;
};

static bool ps_no_relief(struct wrk *w, const struct px_conn *spared) { return (void)w, (void)spared, false; }

static struct ps_rest *ps_rest_new(enum px_state state)
{
    struct ps_rest *x = calloc(1, sizeof *x);

    x->ops.send = ps_send_nothing;
    x->w.loop.ops = &x->ops;
    x->w.loop.clk.now_ms = 100000;
    x->w.px.relieve = ps_no_relief;
    mem_pool_init(&x->w.px.trailers, sizeof(struct h1_head), MEM_SLAB_BYTES, &x->w.loop.mapped, 0);
    x->c = (struct px_conn){.w = &x->w, .req = &x->r, .transport = &ps_transport};
    x->r.w = &x->w;
    x->r.c = &x->c;
    x->r.up = &x->u;
    x->r.state = (uint8_t)state;
    x->r.policy = (struct rt_policy){.send_ms = 7000, .read_ms = 8000, .tunnel_ms = 3600000};
    x->r.client_send_ms = 9000;
    x->r.up_flow.done = state != PX_TUNNEL;
    return x;
}

UT(px_tunnel_deadlines)
{
    enum { HOUR = 3600000, DAY = 24 * HOUR };
    static const struct { int line; uint32_t tunnel_ms; uint32_t moved[4]; bool up_done, down_done; uint64_t at; } rows[] = {
        UT_ROW(HOUR, {1000, 0, 0, 0}, false, false, 1000 + HOUR), /* any of the four moves puts it off: in and out, up and down */
        UT_ROW(HOUR, {1000, 2000, 0, 0}, false, false, 2000 + HOUR),
        UT_ROW(HOUR, {1000, 2000, 3000, 0}, false, false, 3000 + HOUR),
        UT_ROW(HOUR, {1000, 2000, 3000, 4000}, false, false, 4000 + HOUR),
        UT_ROW(500, {1000, 2000, 3000, 4000}, false, false, 4500),
        UT_ROW(DAY, {1000, 2000, 3000, 4000}, false, false, 4000 + DAY),
        UT_ROW(HOUR, {9000, 0, 0, 0}, true, false, 9000 + PX_TUNNEL_GRACE_MS), /* one side has ended */
        UT_ROW(HOUR, {0, 0, 0, 9000}, false, true, 9000 + PX_TUNNEL_GRACE_MS),
        UT_ROW(500, {0, 0, 9000, 0}, false, true, 9500),
    };

    UT_EACH(r, rows) {
        struct ps_rest *x = ps_rest_new(PX_TUNNEL);
        enum px_error error = PX_OK;

        x->r.policy.tunnel_ms = r->tunnel_ms;
        x->r.up_flow.in_ms = r->moved[0], x->r.up_flow.out_ms = r->moved[1], x->r.down_flow.in_ms = r->moved[2], x->r.down_flow.out_ms = r->moved[3];
        x->r.up_flow.done = r->up_done, x->r.down_flow.done = r->down_done;
        UT_INT(fl_deadline(&x->r, &error), r->at);
        UT_INT(error, PX_TUNNEL_TIMEOUT);
        free(x);
    }
}

/* send-timeout and proxy-send-timeout run from the moment at which something is to be taken, not from the last octet before a silence:
 * the first message of a tunnel or of an event stream after it has the same time as any other. */
UT(px_silence_is_not_the_destinations_fault)
{
    static const struct { int line; enum px_state state; bool down; uint64_t at; enum px_error error; } rows[] = {
        UT_ROW(PX_TUNNEL, false, 107000, PX_SEND_TIMEOUT), UT_ROW(PX_TUNNEL, true, 109000, PX_CLIENT_TIMEOUT), UT_ROW(PX_RELAY, true, 109000, PX_CLIENT_TIMEOUT),
    };

    UT_EACH(r, rows) {
        struct ps_rest *x = ps_rest_new(r->state);
        struct px_flow *f = r->down ? &x->r.down_flow : &x->r.up_flow;
        enum px_error error = PX_OK;

        x->r.up_flow.in_ms = x->r.up_flow.out_ms = x->r.down_flow.in_ms = x->r.down_flow.out_ms = 1000;
        io_outq_add(&f->q, (uint8_t *)(uintptr_t)"x", 1, NULL);
        px_flush(&x->r, f);
        UT_CHECK(f->q.sending);
        UT_INT(fl_deadline(&x->r, &error), r->at);
        UT_INT(error, r->error);
        free(x);
    }
}

/* A head that comes in pieces and finds no memory is answered and logged as any other request that is refused. */
UT(px_heads_without_memory_are_logged)
{
    static const struct { int line; const char *pieces[2]; const char *method; } rows[] = {
        UT_ROW({"GET /r/1 HTTP/1.1\r\nHo", NULL}, "GET"),
        UT_ROW({"PUT /r/1 HTTP/1.1\r\nHo", "st: a\r\n"}, "PUT"),
        UT_ROW({"PO", "ST /r/1 HTTP/1.1\r\nHo"}, ""),
    };

    UT_REQUIRE(ps_open());
    UT_EACH(r, rows) {
        struct ps_rest *x = ps_rest_new(PX_WAIT_HEAD);
        struct io_loop *lp = &x->w.loop;

        clk_init(&lp->clk);
        io_pools_init(lp, 0);
        h1_head_init(&x->r.head, true, 0);
        x->r.up = NULL;
        for (int i = 0; i < 2 && r->pieces[i]; i++) {
            uint32_t n = (uint32_t)strlen(r->pieces[i]);
            struct mem_buf *b = mem_buf_alloc(n);

            memcpy(b->data, r->pieces[i], n);
            if (x->r.in) x->r.in->cap = x->r.in->len;                /* full */
            mem_fail_at = i == 1 || !r->pieces[1];
            px_head_in(&x->r, b, 0, n);
            mem_fail_at = mem_fail_more = 0;
            mem_buf_put(b);
        }
        UT_INT(x->r.state, PX_REFUSED);
        UT_INT(x->r.status, 503);
        UT_INT(x->r.minor, 1);
        UT_CHECK(x->r.policy.access_log);
        UT_SLICE(x->r.log_method, r->method);
        clk_drop(&lp->clk, &x->c.timer);
        fl_put(&x->r.in);
        fl_fini(&x->r, &x->r.down_flow);
        io_pools_fini(lp);
        free(x);
    }
    ps_close();
}

/* Content for which there is no memory is dropped with what stands behind it, so that nothing there may be read as a request. */
UT(px_content_without_memory_ends_its_connection)
{
    static const struct { int line; const char *bytes; uint64_t length; bool holding; long fail_at, more; bool refused; } rows[] = {
        UT_ROW("0\r\n\r\nGET /r/2 HTTP/1.1\r\n\r\n", 0, false, 3, 2, true), /* the third allocation is that of the last chunk */
        UT_ROW("0\r\nX-Sum: 1\r\n\r\nGET /r/2 HTTP/1.1\r\n\r\n", 0, false, 3, 2, true),
        UT_ROW("0\r\n\r\n", 0, false, 3, 3, true),
        UT_ROW("0\r\n\r\n", 0, false, 3, 0, false),                /* when it is asked for again */
        UT_ROW("0\r\n\r\n", 0, false, 3, 1, false),                /* from outside the pool */
        UT_ROW("0\r\n\r\n", 0, false, 1, 0, true),
        UT_ROW("abcGET /r/2 HTTP/1.1\r\n\r\n", 3, false, 1, 0, true), /* of fewer slots in the queue */
        UT_ROW("abc", 3, false, 1, 0, true),
        UT_ROW("ab", 3, false, 1, 0, true),
        UT_ROW("abcGET /r/2 HTTP/1.1\r\n\r\n", 3, true, 1, 0, true),
        UT_ROW("abc", 3, true, 1, 0, true),
        UT_ROW("ab", 3, true, 1, 0, true),
        UT_ROW("3\r\nabc\r\n", 0, true, 1, 0, true),
    };

    UT_REQUIRE(ps_open());
    UT_EACH(row, rows) {
        struct ps_rest *x = ps_rest_new(PX_WAIT_RESPONSE);
        struct px_req *r = &x->r;
        struct io_loop *lp = &x->w.loop;
        uint32_t n = (uint32_t)strlen(row->bytes);
        struct mem_buf *b = mem_buf_alloc(n);

        clk_init(&lp->clk);
        io_pools_init(lp, 0);
        memcpy(b->data, row->bytes, n);
        r->up = NULL;
        r->keep = true;
        r->minor = 1;
        r->holding = row->holding;
        r->up_flow.done = false;
        r->up_flow.chunked = !row->length;
        h1_body_init(&r->up_flow.body, row->length ? HTTP_BODY_LENGTH : HTTP_BODY_CHUNKED, row->length);
        for (int i = 0; i < IO_OUTQ_MAX - 3 && row->length; i++) io_outq_add(&r->up_flow.q, (uint8_t *)(uintptr_t)"x", 1, NULL);
        mem_fail_at = row->fail_at;
        mem_fail_more = row->more;
        UT_INT(px_content_in(r, b, 0, n), n);
        mem_fail_at = mem_fail_more = 0;
        mem_buf_put(b);
        UT_INT(r->state, row->refused ? PX_REFUSED : PX_WAIT_RESPONSE);
        UT_INT(r->keep, !row->refused);
        fl_put(&r->held);
        fl_fini(r, &r->up_flow);
        fl_fini(r, &r->down_flow);
        io_pools_fini(lp);
        free(x);
    }
    ps_close();
}

/* How long a client has kept us waiting: who waits for us is never late. */
UT(sh_counts_who_keeps_us_waiting)
{
    static const struct { int line; enum px_state state; bool holding, expect, continued, up_done; uint32_t up_bytes, down_bytes; uint64_t late_ms; } rows[] = {
        UT_ROW(PX_WAIT_HEAD, false, false, false, false, 0, 0, 60000),
        UT_ROW(PX_WAIT_UPSTREAM, false, false, false, false, 0, 0, 3000),
        UT_ROW(PX_WAIT_UPSTREAM, true, false, false, false, 5, 0, 3000),
        UT_ROW(PX_WAIT_RESPONSE, false, false, false, false, 0, 0, 3000),
        UT_ROW(PX_WAIT_RESPONSE, false, false, false, false, 5, 0, 0), /* the upstream does not take it */
        UT_ROW(PX_WAIT_RESPONSE, false, false, false, true, 0, 0, 0),
        UT_ROW(PX_WAIT_RESPONSE, false, true, false, false, 0, 0, 0),  /* it waits for a 100 */
        UT_ROW(PX_WAIT_RESPONSE, false, true, true, false, 0, 0, 3000),
        UT_ROW(PX_RELAY, false, false, false, true, 0, 0, 0),
        UT_ROW(PX_RELAY, false, false, false, true, 0, 5, 2000),
        UT_ROW(PX_TUNNEL, false, false, false, false, 0, 5, 2000),
        UT_ROW(PX_TUNNEL, false, false, false, false, 5, 0, 0),
        UT_ROW(PX_REFUSED, false, false, false, false, 0, 5, 2000),
        UT_ROW(PX_FINISHED, false, false, false, false, 0, 5, 0),
    };
    static const struct { int line; uint64_t late_ms; unsigned age; } ages[] = {
        UT_ROW(0, 0), UT_ROW(1, 1), UT_ROW(2, 2), UT_ROW(3, 2), UT_ROW(4, 3), UT_ROW(1023, 10), UT_ROW(1024, 11), UT_ROW(UINT64_MAX, SH_AGES - 1),
    };

    UT_EACH(row, rows) {
        struct ps_rest *x = ps_rest_new(row->state);
        struct px_req *r = &x->r;

        r->t_start_ns = 40000 * 1000000ull;                          /* now is 100000 */
        r->up_flow.in_ms = 97000;
        r->down_flow.out_ms = 98000;
        r->holding = row->holding;
        r->expect = row->expect;
        r->continued = row->continued;
        r->up_flow.done = row->up_done;
        r->up_flow.q.bytes = row->up_bytes;
        r->down_flow.q.bytes = row->down_bytes;
        UT_INT(sh_late_ms(r), row->late_ms);
        free(x);
    }
    UT_EACH(row, ages) UT_INT(sh_age(row->late_ms), row->age);
}
