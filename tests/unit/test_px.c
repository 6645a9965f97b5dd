/* px_: the whole proxy on the simulated engine of sim.h: scripted clients and upstreams, faults by seed, invariants after every run.
 *
 * Every request has a plan that says what the client sends, what the upstream answers, and what goes wrong. Modes of a run (seed % 4):
 *   0 nothing goes wrong: every request is answered exactly as planned, with the connection kept where both sides keep it;
 *   1 upstreams close idle connections: requests that can be sent again must not notice;
 *   2 resets, ends in the middle, silence, garbage, refused connects, clients that leave or stall;
 *   3 the same, and allocations fail.
 * RAMJET_SIM_FIRST and RAMJET_SIM_SEEDS choose the seeds, RAMJET_SIM_TRACE=1 prints what happens; tests/sim/run sets them. */

#include "sim.h"

enum { PS_CLIENTS = 6, PS_REQUESTS = 6, PS_ENDPOINTS = 3, PS_TURNS = 60000 };
enum ps_framing { PS_LENGTH, PS_CHUNKED, PS_EOF, PS_NONE };
enum ps_fault {
    PS_FINE,
    PS_UP_RESET, PS_UP_RESET_MID, PS_UP_FIN_MID, PS_UP_SILENT, PS_UP_GARBAGE, PS_UP_LAST = PS_UP_GARBAGE,
    PS_CLIENT_RESET, PS_CLIENT_FIN, PS_CLIENT_STALL, PS_CLIENT_SILENT, PS_FAULTS,
};

struct ps_plan {
    uint32_t id;
    const char *method;
    uint32_t up_len, down_len;                                       /* content of the request, of the response */
    uint8_t up_framing, down_framing;
    uint16_t status;
    uint8_t minor, interim;
    bool expect, go_on;                                              /* the client waits for 100; the upstream sends one */
    bool upgrade, early;
    bool client_close, up_close;                                     /* says Connection: close */
    bool spoiled;                                                    /* it may be answered by the proxy itself, or not at all */
    enum ps_fault fault;
    uint32_t fault_at, fault_tries;
    uint32_t heads;                                                  /* that upstreams have seen */
};

struct ps_world;
struct ps_client {
    struct sim_peer peer;
    struct ps_world *x;
    bool opened, done, pipelines, half_close, slow, stalled;
    bool closing;                                                    /* the last answer ends the connection */
    bool head_seen, continued, tunnel;
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
    bool answered, closes, fin, reset, silent, slow, left;               /* left: closed an idle connection */
    uint32_t served;
};

struct ps_world {
    struct sim sim;
    struct wrk *w;
    uint32_t seed, mode;
    bool bad_connects, drained, alloc_fails;
    struct ps_client client[PS_CLIENTS];
    uint32_t clients, gone;
    struct ps_plan plan[PS_CLIENTS * PS_REQUESTS];
    uint32_t plans, answers, logged;
    struct ps_server *servers;
};

/* The table that is served: two versions of the settings, published in turn while requests run. */
static struct {
    struct obj_store store;
    struct rc rc;
    struct rt_changes changes;
    struct cfg *cfg[2];
    uint32_t version;
} ps_table;

static void ps_publish(uint32_t version)
{
    ps_table.version = version;
    rc_set_config(&ps_table.rc, ps_table.cfg[version]);
    rc_compile(&ps_table.rc, &ps_table.changes);
    rt_publish(&ps_table.changes, ps_table.cfg[version], 1, 1);
    rcu_collect();
    rt_collect();
}

static struct cfg *ps_cfg(const char *extra)
{
    char text[1024] = "";
    struct cfg_input in = {.file_name = "edge.ini", .text = str_of(text, 0)};
    struct cfg_report report = {.text = str_growing()};
    struct cfg *c;

    in.text.n = (size_t)snprintf(text, sizeof text,
                                 "[ramjet]\nadmin = off\naccess-log-path = /dev/null\nkeep-alive = 30s\nproxy-body-size = 0\nproxy-connect-timeout = 2s\n"
                                 "upstream-keepalive-timeout = 20s\nmax-fails = 2\nfail-timeout = 3s\n%s[backend b]\nendpoint = 10.0.0.1:8001\n"
                                 "endpoint = 10.0.0.1:8002\nendpoint = 10.0.0.1:8003 weight=2\n[route r]\nhost = sim.test\nbackend = b\n", extra);
    c = cfg_load(&in, &report);
    if (!c) printf("%.*s", STR_ARG(str_built(&report.text)));
    str_free(&report.text);
    return c;
}

static bool ps_open(void)
{
    ps_table.cfg[0] = ps_cfg("");
    ps_table.cfg[1] = ps_cfg("server-tokens = true\nload-balance = least_conn\nproxy-request-buffering = on\naccess-log-format = combined\n");
    if (!ps_table.cfg[0] || !ps_table.cfg[1]) return false;
    rj.rt.workers = 1;
    rj.log_level = LOG_ERROR;
    rc_init(&ps_table.rc, &ps_table.store, ps_table.cfg[0]);
    ps_publish(0);
    return true;
}

static void ps_close(void)
{
    rc_fini(&ps_table.rc);
    obj_store_fini(&ps_table.store);
    cfg_put(ps_table.cfg[0]);
    cfg_put(ps_table.cfg[1]);
    mem_free(ps_table.changes.v);
    memset(&ps_table, 0, sizeof ps_table);
    rt_fini();
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

    if (x->mode < 2 || sim_random(sim, 4)) return;
    p->fault = (enum ps_fault)(1 + sim_random(sim, PS_FAULTS - 1));
    p->fault_at = sim_random(sim, 1 + sim_random(sim, 3000));
    p->fault_tries = 1 + sim_random(sim, 4);
    p->spoiled = true;
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
    if (last && p->minor && m == 0 && sim_chance(sim, 2)) p->upgrade = true, p->client_close = false, p->interim = 0, p->status = 101, p->up_len = ps_length(sim);
    p->early = x->mode && !p->upgrade && p->up_len && sim_chance(sim, 8);
    safe = !strcmp(p->method, "GET") || !strcmp(p->method, "HEAD") || !strcmp(p->method, "DELETE");
    p->spoiled = (x->mode && !safe) || x->bad_connects || x->alloc_fails;
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

static void ps_write_request(struct ps_client *c, const struct ps_plan *p)
{
    struct sim *sim = &c->x->sim;
    struct sim_bytes *b = &c->out;

    b->n = b->at = 0;
    sim_print(b, "%s %s/r/%u HTTP/1.%u\r\nHost: sim.test\r\n", p->method, sim_chance(sim, 8) ? "/x/.." : "", p->id, p->minor);
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

/* A complete answer to p stands in the reader. */
static void ps_check_answer(struct ps_client *c, struct ps_plan *p)
{
    struct sim_reader *r = &c->reader;
    struct ps_world *x = c->x;
    bool bare = !strcmp(p->method, "HEAD") || p->status == 204 || p->status == 304;
    uint64_t want = bare ? 0 : p->down_len;

    x->answers++;
    if (r->id >= 0) {
        if ((uint32_t)r->id != p->id) sim_fail(&x->sim, "request %u got the answer to %d", p->id, r->id);
        else if (r->status != p->status) sim_fail(&x->sim, "request %u got status %d, planned is %u", p->id, r->status, p->status);
        else if (r->got != want && !((p->spoiled || x->drained) && (p->down_framing == PS_EOF || r->minor == 0 || !p->minor || p->upgrade)))
            sim_fail(&x->sim, "request %u: %llu bytes look like the whole answer of %llu", p->id, (unsigned long long)r->got, (unsigned long long)want);
    } else if (!p->spoiled && !x->drained) {
        sim_fail(&x->sim, "request %u (%s, tries %u) was refused: %s", p->id, p->method, p->heads, r->start);
    } else if (!r->bodyless && r->has_length && r->length && atoi(r->start) != r->status) {
        sim_fail(&x->sim, "request %u: a refusal %d with the text %s", p->id, r->status, r->start);
    }
    if (r->close || !p->minor || p->client_close || p->upgrade || (!r->has_length && !r->chunked && !bare)) c->closing = true;
}

static void ps_client_end(struct ps_client *c)
{
    struct ps_plan *p = ps_expected(c);
    struct sim_reader *r = &c->reader;

    if (p && r->state == SIM_EOF) {
        ps_check_answer(c, p);
        c->answered++;
    } else if (p && (r->state != SIM_HEAD || r->head_n) && !p->spoiled && !c->x->drained) {
        sim_fail(&c->x->sim, "request %u: the answer ends in the middle (state %d, %llu bytes)", p->id, r->state, (unsigned long long)r->got);
    } else if (p && c->sent > c->answered && !c->closing && !p->spoiled && !c->x->drained) {
        sim_fail(&c->x->sim, "request %u was not answered", p->id);
    }
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
    if (r->status == 101 && !p->upgrade) sim_fail(&c->x->sim, "101 that was not asked for");
    if (r->status == 101) r->state = SIM_EOF, c->tunnel = true;
    if (r->status != p->status && r->id >= 0 && r->status >= 200) sim_fail(&c->x->sim, "request %u got status %d", p->id, r->status);
}

/* The last answer was a refusal of a HEAD request of which the proxy has not read the method. */
static bool ps_is_half_head(const struct ps_client *c)
{
    const struct ps_plan *p = &c->x->plan[c->first + c->answered - 1];

    return (p->fault == PS_CLIENT_SILENT || c->x->mode == 3) && !strcmp(p->method, "HEAD");
}

static void ps_client_bytes(struct sim_peer *peer, const uint8_t *bytes, size_t n)
{
    struct ps_client *c = RJ_CONTAINER(peer, struct ps_client, peer);
    struct sim_reader *r = &c->reader;

    for (size_t at = 0; at < n && !c->x->sim.failed;) {
        struct ps_plan *p = ps_expected(c);

        if (c->closing && !c->head_seen && c->answered && ps_is_half_head(c)) return; /* the text behind a refusal */
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
            ps_check_answer(c, p);
            c->answered++;
        }
        sim_reader_init(r, true);
        c->head_seen = false;
    }
}

static void ps_client_fin(struct sim_peer *peer) { ps_client_end(RJ_CONTAINER(peer, struct ps_client, peer)); }

static void ps_client_gone(struct sim_peer *peer)
{
    struct ps_client *c = RJ_CONTAINER(peer, struct ps_client, peer);

    if (!c->done) ps_client_end(c);
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
    if (c->out.at == c->out.n && c->sent < c->count && !c->closing && (c->sent == c->answered || c->pipelines)) {
        ps_write_request(c, &c->x->plan[c->first + c->sent]);
        c->sent++;
    }
    if (c->sent) {
        struct ps_plan *now = &c->x->plan[c->first + c->sent - 1];
        size_t end = now->expect && !c->continued && c->answered < c->sent ? c->body_at : c->out.n;

        if (now->upgrade && !c->tunnel) end = c->body_at;
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
    if (px_serve(c->x->w, fd, &peer, 80) < 0) {
        c->done = true;
        sim->next_peer = NULL;
        c->peer.k = NULL;
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
    bool bare = !strcmp(p->method, "HEAD") || p->status == 204 || p->status == 304, faulty = p->fault && p->fault <= PS_UP_LAST && p->heads <= p->fault_tries;

    s->answered = true;
    if (faulty && p->fault == PS_UP_SILENT) {
        s->silent = true;
        return;
    }
    for (uint32_t i = 0; i < p->interim; i++) sim_print(b, "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n");
    if (faulty && p->fault == PS_UP_GARBAGE) sim_print(b, "HTTP/1.1 2x0 What\r\n\r\n");
    sim_print(b, "HTTP/1.1 %u Some Reason\r\nX-Id: %u\r\nServer: sim\r\n", p->status, p->id);
    if (sim_chance(sim, 4)) sim_print(b, "Connection: x-hop\r\nX-Hop: 1\r\nKeep-Alive: timeout=5\r\n");
    if (sim_chance(sim, 8)) sim_print(b, "X-Long: %0*d\r\n", (int)(1 + sim_random(sim, 1900)), 7);
    if (p->upgrade) sim_print(b, "Connection: upgrade\r\nUpgrade: websocket\r\n");
    else if (p->up_close && !(p->down_framing == PS_EOF && !bare && sim_chance(sim, 2))) sim_print(b, "Connection: close\r\n");
    if (p->down_framing == PS_LENGTH && !p->upgrade) sim_print(b, "Content-Length: %u\r\n", p->down_len);
    if (p->down_framing == PS_CHUNKED && !p->upgrade) sim_print(b, "Transfer-Encoding: chunked\r\n");
    sim_print(b, "\r\n");
    if (p->upgrade || (!bare && p->down_framing != PS_NONE)) ps_put_content(b, sim, p->id + 1000, p->down_len, p->down_framing == PS_CHUNKED && !p->upgrade);
    if (p->up_close || p->upgrade) s->closes = s->fin = true;
    if (faulty && (p->fault == PS_UP_RESET_MID || p->fault == PS_UP_FIN_MID) && b->n > from + p->fault_at) {
        b->n = from + p->fault_at;
        s->fin = p->fault == PS_UP_FIN_MID;
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
    if (strcmp(p->method, r->method) != 0) sim_fail(&x->sim, "request %u comes as %s", p->id, r->method);
    if (p->heads > 1 && !strcmp(p->method, "POST")) sim_fail(&x->sim, "request %u: POST is sent twice", p->id);
    if (p->heads > 5) sim_fail(&x->sim, "request %u is sent for the %u. time", p->id, p->heads);
    if (r->chunked != (p->up_framing == PS_CHUNKED) || r->has_length != (p->up_framing == PS_LENGTH)) sim_fail(&x->sim, "request %u: other framing", p->id);
    if (r->has_length && r->length != p->up_len) sim_fail(&x->sim, "request %u: other length", p->id);
    if (r->expect && p->expect && p->go_on) sim_print(&s->out, "HTTP/1.1 100 Continue\r\n\r\n");
    if (p->fault == PS_UP_RESET && p->heads <= p->fault_tries) s->peer.k->rx_reset = true;
    if (p->early) ps_server_answer(s);
    if (p->upgrade != r->upgrade) sim_fail(&x->sim, "request %u: other upgrade", p->id);
    if (p->upgrade) {
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
        if (r->got != s->plan->up_len) sim_fail(&s->x->sim, "request %u: %llu bytes of %u", s->plan->id, (unsigned long long)r->got, s->plan->up_len);
        if (!s->answered) ps_server_answer(s);
        s->plan = NULL;
        s->served++;
        sim_reader_init(r, false);
    }
}

static void ps_server_fin(struct sim_peer *peer)
{
    struct ps_server *s = RJ_CONTAINER(peer, struct ps_server, peer);

    if (!s->plan || !s->plan->upgrade) sim_fail(&s->x->sim, "a request connection is half-closed");
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
    if (s->slow && k->window > 200000) k->window = sim_random(sim, 5000);
    if (s->slow) k->window += sim_random(sim, 5000);
    if (s->out.at < s->out.n) {
        ps_move(sim, &s->out, s->out.n, k);
        return;
    }
    if (s->answered && s->reset && sim_chance(sim, 2)) k->rx_reset = true;
    if (s->answered && s->fin) k->rx_eof = true;
    if (s->x->mode && !s->fin && !s->reset && !s->plan && s->served && !s->reader.head_n && sim_chance(sim, 12)) {
        s->left = true;
        if (k->rx.at < k->rx.n || sim_chance(sim, 2)) k->rx_eof = true;
        else k->rx_reset = true;
    }
}

/* ---- a run ---- */

static void ps_turn(struct sim *sim)
{
    struct ps_world *x = RJ_CONTAINER(sim, struct ps_world, sim);

    for (uint32_t i = 0; i < x->clients; i++) {
        struct ps_client *c = &x->client[i];

        if (!c->opened && sim_chance(sim, 4)) ps_client_open(c);
        else ps_client_turn(c);
    }
    for (struct ps_server *s = x->servers; s; s = s->next) ps_server_turn(s);
    if (sim_chance(sim, 40)) ps_publish(!ps_table.version);
    if (x->alloc_fails && !mem_fail_at && sim_chance(sim, 6)) mem_fail_at = 1 + (long)sim_random(sim, 12);
    if (x->mode == 2 && x->seed % 32 == 2 && !x->drained && x->answers > 3 && sim_chance(sim, 20)) {
        x->drained = true;
        px_drain(x->w, false);
    } else if (x->drained && sim_chance(sim, 300)) {
        px_drain(x->w, true);
    }
}

static void ps_on_gone(struct wrk *w) { RJ_CONTAINER(w->loop.sim, struct ps_world, sim)->gone++; }

static const struct px_transport ps_transport = {.name = "sim", .scheme = "http", .raw = false, .feed = tp_plain_feed, .send = tp_plain_send};

static void ps_start(struct ps_world *x, uint32_t seed)
{
    struct sim *sim = &x->sim;
    struct wrk *w = x->w = mem_need(sizeof *w);

    *sim = (struct sim){.seed = (uint64_t)seed * 0x9e3779b97f4a7c15u + 1, .lp = &w->loop, .on_turn = ps_turn, .on_connect = ps_server_new};
    for (int i = 0; i < 4; i++) sim_random(sim, 2);
    sim->trace = getenv("RAMJET_SIM_TRACE") != NULL;
    sim->delay = sim_random(sim, 7);
    sim->all_big = sim_chance(sim, 2);
    ps_publish(0);
    x->seed = seed;
    x->mode = seed % 4;
    x->bad_connects = x->mode >= 2 && sim_chance(sim, 3);
    x->alloc_fails = x->mode == 3;
    sim->add_fails = x->mode == 3;
    x->clients = 1 + sim_random(sim, PS_CLIENTS);
    for (uint32_t i = 0; i < x->clients; i++) {
        struct ps_client *c = &x->client[i];

        *c = (struct ps_client){.x = x, .first = x->plans, .count = 1 + sim_random(sim, PS_REQUESTS), .pipelines = sim_chance(sim, 3),
                                .half_close = sim_chance(sim, 4), .slow = sim_chance(sim, 4)};
        for (uint32_t k = 0; k < c->count; k++) ps_plan(x, &x->plan[x->plans++], k + 1 == c->count);
        for (uint32_t k = 0; k < c->count && c->pipelines; k++)
            for (uint32_t j = 0; j < k && x->plan[c->first + k].fault > PS_UP_LAST; j++) x->plan[c->first + j].spoiled = true;
    }
    w->thread.access.cap = 1 << 20;
    w->thread.log.cap = 1 << 16;
    w->px.access_log = true;
    w->loop.sim = sim;
    rj_me = &w->thread;
    rj.threads = mem_need(sizeof *rj.threads);
    rj.threads[0] = &w->thread;
    rj.thread_count = 1;
    io_loop_open(&w->loop, &sim_ops, 0);
    up_init(&w->up, &w->loop);
    w->up.random = seed;
    px_init(w, ps_on_gone);
}

static bool ps_is_running(const struct ps_world *x)
{
    for (uint32_t i = 0; i < x->clients; i++)
        if (!x->client[i].opened) return true;
    return x->w->px.conns.used > 0;
}

/* What must be true once every client is gone and idle connections are closed. */
static void ps_check_end(struct ps_world *x)
{
    struct wrk *w = x->w;
    struct sim *sim = &x->sim;
    uint32_t sent = 0;

    if (w->px.conns.used || w->px.reqs.used || w->up.conns.used)
        sim_fail(sim, "left: %u connections, %u requests, %u upstream connections", w->px.conns.used, w->px.reqs.used, w->up.conns.used);
    if (w->loop.small.used || w->loop.big.used) sim_fail(sim, "left: %u small buffers, %u big ones", w->loop.small.used, w->loop.big.used);
    for (const struct rt_snapshot *s = rj.rt.first; s; s = s->newer)
        if (atomic_load(&s->lease[0].n)) sim_fail(sim, "left: %u leases", (unsigned)atomic_load(&s->lease[0].n));
    for (int i = MTR_CLIENT_ACTIVE; i <= MTR_UP_IDLE; i++)
        if (w->thread.mtr.gauge[i]) sim_fail(sim, "gauge %d stands at %lld", i, (long long)w->thread.mtr.gauge[i]);
    for (size_t i = 0; i < UP_TABLE; i++)
        for (struct up_pool *p = w->up.pools[i]; p; p = p->next)
            if (p->active_n || p->idle_n) sim_fail(sim, "pool %u counts %u active, %u idle", p->addr.port, p->active_n, p->idle_n);
    if (w->loop.clk.queued > 1) sim_fail(sim, "%u timers are left", w->loop.clk.queued);
    for (uint64_t at = 0; at < atomic_load(&w->thread.access.head); at++) x->logged += w->thread.access.p[at & (w->thread.access.cap - 1)] == '\n';
    for (uint32_t i = 0; i < x->clients; i++) sent += x->client[i].sent;
    if ((x->logged < x->answers && x->mode != 3) || x->logged > sent) sim_fail(sim, "%u log lines for %u answers to %u requests", x->logged, x->answers, sent);
    if (x->mode == 0 && x->logged != x->answers) sim_fail(sim, "%u log lines for %u answers", x->logged, x->answers);
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
    rj_me = NULL;
    mem_free(rj.threads);
    rj.threads = NULL;
    rj.thread_count = 0;
    mem_free(w);
}

/* What a failed run was about, for who replays it. */
static void ps_print(const struct ps_world *x)
{
    const struct log_ring *log = &x->w->thread.access;

    for (uint32_t i = 0; i < x->plans; i++) {
        const struct ps_plan *p = &x->plan[i];

        printf("  plan %u: %s HTTP/1.%u up %u (%u) status %u down %u (%u)%s%s%s%s%s%s fault %d at %u, seen %u times\n", p->id, p->method, p->minor, p->up_len,
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

/* Runs one seed. Returns whether every promise was kept; what not stands in x->sim.why. */
static bool ps_run(struct ps_world *x, uint32_t seed)
{
    struct wrk *w;
    uint32_t turns = 0;

    memset(x, 0, sizeof *x);
    ps_start(x, seed);
    w = x->w;
    while (ps_is_running(x) && !x->sim.failed && turns++ < PS_TURNS) {
        for (struct map_link *l = w->px.all.next; l != &w->px.all; l = l->next) RJ_CONTAINER(l, struct px_conn, link)->transport = &ps_transport;
        io_turn(&w->loop, 1000);
    }
    if (!x->sim.failed && ps_is_running(x)) sim_fail(&x->sim, "still running after %d turns", PS_TURNS);
    mem_fail_at = 0;
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

UT(px_simulated_runs_keep_every_promise)
{
    static struct ps_world x;
    const char *first = getenv("RAMJET_SIM_FIRST"), *count = getenv("RAMJET_SIM_SEEDS");
    uint32_t from = first ? (uint32_t)atoi(first) : 1, n = count ? (uint32_t)atoi(count) : 400, answers = 0, requests = 0;

    UT_REQUIRE(ps_open());
    for (uint32_t seed = from; seed < from + n; seed++) {
        alarm(UT_SECONDS_MAX);
        if (!ps_run(&x, seed)) {
            ut_result(false, __FILE__, __LINE__, "seed %u (tests/sim/run %u replays it): %s", seed, seed, x.sim.why);
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

static void ps_send_nothing(struct io_loop *lp, struct io_sock *s, struct io_outq *q) { (void)lp, (void)s, q->sending = true; }

/* An exchange at rest at 100 s on the clock, with nothing to send: enough for the deadlines. */
struct ps_rest {
    struct wrk w;
    struct io_ops ops;
    struct px_conn c;
    struct up_conn u;
    struct px_req r;
};

static struct ps_rest *ps_rest_new(enum px_state state)
{
    struct ps_rest *x = calloc(1, sizeof *x);

    x->ops.send = ps_send_nothing;
    x->w.loop.ops = &x->ops;
    x->w.loop.clk.now_ms = 100000;
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
