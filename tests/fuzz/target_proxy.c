/* The whole proxy on the simulated engine: a script of what clients and upstreams send, in pieces, with resets, ends, delays, full windows, publishes,
 * failing allocations and a drain. Judged when the run is over:
 *   - what every upstream saw is a row of well-formed requests, one at a time, each of them what its client sent (a slow reader's reading of it);
 *   - what every client got is a row of well-formed answers, none more than requests, none of another client;
 *   - every completion came once (sim.h), nothing is left: connections, requests, buffers, leases, timers, gauges, memory.
 * Input: two bytes of a seed, a byte of options, sixteen bytes of what upstreams do with the requests that come, then the script. */

#include "heads.h"
#include "table.h"

enum { FZP_CLIENTS = 4, FZP_UPS = 64, FZP_SEEN = 200, FZP_DOES = 16, FZP_TURNS = 20000, FZP_SENT_MAX = 60000 };

struct fzp_world;

struct fzp_client {
    struct sim_peer peer;
    struct fzp_world *x;
    bool opened;
    struct sim_bytes sent, got;
};

/* What a reader made of one message. */
struct fzp_message {
    struct fz_head head;
    struct sim_bytes body;
    size_t used;
    bool whole;
};

struct fzp_up {
    struct sim_peer peer;
    struct fzp_world *x;
    struct sim_bytes in;
    size_t at;                                           /* octets of in that were read */
    bool tunnel, deaf;                                   /* opaque octets follow; it takes no interest any more */
    bool unasked;                                        /* it answered before it was asked: which request that answer met is not known here */
    int answering;                                       /* requests that no octet was sent for */
    size_t noted_at;                                     /* at + 1 when the request at `at` was noted */
    uint32_t noted;                                      /* as that number of seen */
};

/* A request that an upstream saw: a copy of what matters. */
struct fzp_seen {
    int client;                                          /* by X-Real-IP; -1: another */
    char method[24];
    struct sim_bytes body;
    bool whole;
};

struct fzp_world {
    struct sim sim;
    struct wrk *w;
    struct fzp_client client[FZP_CLIENTS];
    struct fzp_up up[FZP_UPS];
    struct fzp_seen seen[FZP_SEEN];
    uint32_t ups, nseen, ndoes, connects;
    uint8_t does[FZP_DOES], options;
    bool blurred;                                        /* peers name the client: who is who is not known here */
    bool alloc_fails;
    bool unasked;                                        /* an upstream answered twice: the second may meet the next request, whoever sent it */
};

static struct {
    struct obj_store store;
    struct rc rc;
    struct rt_changes changes;
    struct cfg *cfg[4];
} fzp_table;

static void fzp_publish(uint32_t version)
{
    long fail_at = mem_fail_at;

    mem_fail_at = 0;                                     /* the control path ends the process instead */
    rc_set_config(&fzp_table.rc, fzp_table.cfg[version]);
    rc_compile(&fzp_table.rc, &fzp_table.changes);
    rt_publish(&fzp_table.changes, fzp_table.cfg[version], 1, 1);
    mem_free(rt_take_gone().hash);
    rcu_collect();
    rt_collect();
    mem_fail_at = fail_at;
}

/* ---- a slow reader of messages ---- */

static const uint8_t *fzp_find(const uint8_t *p, size_t n, const char *what)
{
    size_t k = strlen(what);

    for (size_t i = 0; i + k <= n; i++)
        if (memcmp(p + i, what, k) == 0) return p + i;
    return NULL;
}

/* The trailer section at the begin of s. Octets with the empty line, 0: cut off, -1: malformed. */
static long fzp_trailers(struct str s)
{
    static struct fz_head h;
    struct str line, rest = s;

    h.n = h.hosts = h.lengths = h.codings = 0;
    while (fz_cut(&rest, "\r\n", &line)) {
        if (!line.n) return (long)(s.n - rest.n);
        if (memchr(line.p, '\n', line.n) || memchr(line.p, '\r', line.n) || memchr(line.p, 0, line.n)) return -1;
        if (h.n >= FZ_FIELDS || fz_read_field(line, &h)) return -1;
    }
    return 0;
}

/* Reads a chunked body into m. 1: whole, 0: cut off, -1: malformed. */
static int fzp_chunked(struct str s, struct fzp_message *m)
{
    size_t i = 0;

    for (;;) {
        struct str rest = str_from(s, i), line;
        uint64_t size = 0;
        size_t digits = 0;

        if (!fz_cut(&rest, "\r\n", &line)) return 0;
        for (; digits < line.n && fz_is_hex(line.p[digits]); digits++) size = size * 16 + (uint64_t)(line.p[digits] <= '9' ? line.p[digits] - '0' : (line.p[digits] | 32) - 'a' + 10);
        if (!digits || digits > 16 || size > INT64_MAX || (digits < line.n && line.p[digits] != ';') || !fz_is_text(line)) return -1;
        i += line.n + 2;
        if (!size) {
            long n = fzp_trailers(str_from(s, i));

            m->used += i + (n > 0 ? (size_t)n : 0);
            return n < 0 ? -1 : n > 0;
        }
        if (s.n - i < size) return sim_put(&m->body, s.p + i, s.n - i), 0;
        sim_put(&m->body, s.p + i, (size_t)size);
        i += (size_t)size;
        if (s.n - i < 2) return 0;
        if (s.p[i] != '\r' || s.p[i + 1] != '\n') return -1;
        i += 2;
    }
}

/* Reads one message at the begin of s; method: of the request that a response answers. 1: whole; 0: cut off (head.n is set when the head is
 * there: used > 0); -1: malformed, with why. */
static int fzp_read(struct str s, bool request, const char *method, bool at_end, struct fzp_message *m, const char **why)
{
    const uint8_t *end;
    struct fz_head *h = &m->head;
    size_t skip = request && s.n >= 2 && s.p[0] == '\r' && s.p[1] == '\n' ? 2 : 0;
    int rc;

    m->body.n = m->body.at = 0;
    m->used = 0;
    m->whole = false;
    s = str_from(s, skip);
    end = fzp_find(s.p, s.n, "\r\n\r\n");
    if (!end) return 0;
    *why = fz_read_head(str_of(s.p, (size_t)(end - s.p) + 4), request, h);
    if (*why) return -1;
    m->used = skip + (size_t)(end - s.p) + 4;
    s = str_from(s, (size_t)(end - s.p) + 4);
    if (!request && (h->status < 200 || h->status == 204 || h->status == 304 || strcmp(method, "HEAD") == 0)) {
        m->whole = true;
        return 1;
    }
    if (h->codings) {
        *why = "chunks";
        rc = fzp_chunked(s, m);
        m->whole = rc == 1;
        return rc;
    }
    if (!request && !h->lengths) {
        sim_put(&m->body, s.p, s.n);
        m->used += s.n;
        m->whole = at_end;
        return at_end;
    }
    if (h->lengths && s.n < h->length) return sim_put(&m->body, s.p, s.n), 0;
    if (h->lengths) sim_put(&m->body, s.p, (size_t)h->length);
    m->used += h->lengths ? (size_t)h->length : 0;
    m->whole = true;
    return 1;
}

/* ---- upstreams ---- */

static void fzp_up_put(struct fzp_up *u, const char *text)
{
    if (u->peer.k && !u->peer.k->rx_eof && !u->peer.k->rx_reset) sim_put(&u->peer.k->rx, text, strlen(text));
    u->answering = 0;
}

static void fzp_up_fin(struct fzp_up *u, bool reset)
{
    if (!u->peer.k) return;
    if (reset) u->peer.k->rx_reset = true;
    else u->peer.k->rx_eof = true;
    u->deaf = true;
}

/* One of the things that an upstream does with a request, or unasked (client -1). early: its content has not come. */
static void fzp_up_act(struct fzp_up *u, uint8_t what, int client, bool upgrade, bool early)
{
    char head[128], big[5000];

    snprintf(head, sizeof head, client < 0 ? "X-Nobody: 1\r\n" : "X-Id: %d\r\n", client);
    if (early && what % 18 < 16) return;
    memset(big, 'b', sizeof big);
    switch (what % 18) {
    default: fzp_up_put(u, "HTTP/1.1 200 OK\r\n"), fzp_up_put(u, head), fzp_up_put(u, "Content-Length: 5\r\n\r\nhello"); return;
    case 1: fzp_up_put(u, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n"), fzp_up_put(u, head), fzp_up_put(u, "\r\n5;a=b\r\nhello\r\n3\r\n...\r\n0\r\nX-T: 1\r\n\r\n"); return;
    case 2: fzp_up_put(u, "HTTP/1.1 200 OK\r\n"), fzp_up_put(u, head), fzp_up_put(u, "\r\nto the end"), fzp_up_fin(u, false); return;
    case 3: fzp_up_put(u, "HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n"), fzp_up_put(u, head), fzp_up_put(u, "\r\n"); return;
    case 4: fzp_up_put(u, "HTTP/1.1 304 Not Modified\r\nContent-Length: 7\r\n"), fzp_up_put(u, head), fzp_up_put(u, "\r\n"); return;
    case 5:
        if (!upgrade) break;
        fzp_up_put(u, "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n"), fzp_up_put(u, head);
        fzp_up_put(u, "\r\nfirst"), u->tunnel = true;
        return;
    case 6: fzp_up_put(u, "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n"), fzp_up_put(u, head), fzp_up_put(u, "Content-Length: 2\r\n\r\nok"); return;
    case 7: return;                                      /* silence */
    case 8: fzp_up_fin(u, true); return;
    case 9: fzp_up_put(u, "HTTP/1.1 2x0 What\r\n\r\n"); return;
    case 10: fzp_up_put(u, "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n"), fzp_up_put(u, head), fzp_up_put(u, "\r\nhalf"), fzp_up_fin(u, false); return;
    case 11: fzp_up_put(u, "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 5\r\n"), fzp_up_put(u, head), fzp_up_put(u, "\r\nhello"), fzp_up_fin(u, false); return;
    case 12: fzp_up_put(u, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n"), fzp_up_put(u, head), fzp_up_put(u, "\r\n5\r\nhel"), fzp_up_fin(u, true); return;
    case 13: fzp_up_put(u, "HTTP/1.0 200 OK\r\n"), fzp_up_put(u, head), fzp_up_put(u, "Content-Length: 5\r\n\r\nhelloHTTP/1.1 200 more\r\n\r\n"); return;
    case 14: case 17:
        fzp_up_put(u, "HTTP/1.1 413 Too Large\r\nContent-Length: 30000\r\n"), fzp_up_put(u, head), fzp_up_put(u, "\r\n");
        if (u->peer.k && !u->deaf)
            for (int i = 0; i < 6; i++) sim_put(&u->peer.k->rx, big, sizeof big);
        return;
    case 15: fzp_up_fin(u, false); return;
    case 16: fzp_up_put(u, "HTTP/1.1 500 No\r\n"), fzp_up_put(u, head), fzp_up_put(u, "Content-Length: 0\r\n\r\n"); return;
    }
    fzp_up_put(u, "HTTP/1.1 200 OK\r\n"), fzp_up_put(u, head), fzp_up_put(u, "Content-Length: 0\r\n\r\n");
}

static struct fzp_seen *fzp_note(struct fzp_world *x, struct fzp_message *m)
{
    struct fz_field *ip = fz_field(&m->head, "x-real-ip");
    struct fzp_seen *s;

    if (x->nseen == FZP_SEEN) return NULL;
    s = &x->seen[x->nseen++];
    if (!ip) FZ_FAIL("no X-Real-IP");
    s->client = ip->value.n == 9 && memcmp(ip->value.p, "192.0.2.", 8) == 0 && ip->value.p[8] - '1' < FZP_CLIENTS ? ip->value.p[8] - '1' : -1;
    if (s->client < 0 && !x->blurred) FZ_FAIL("X-Real-IP: %.*s", STR_ARG(ip->value));
    snprintf(s->method, sizeof s->method, "%.*s", STR_ARG(m->head.method));
    return s;
}

static void fzp_up_read(struct fzp_up *u)
{
    static struct fzp_message m;
    struct fzp_world *x = u->x;

    while (!u->tunnel && u->at < u->in.n) {
        const char *why = NULL;
        struct str rest = str_of(u->in.p + u->at, u->in.n - u->at);
        int rc = fzp_read(rest, true, "", false, &m, &why);
        bool upgrade = rc >= 0 && m.used && fz_field(&m.head, "upgrade"), first = u->noted_at != u->at + 1;
        struct fzp_seen *s;

        if (rc < 0) FZ_FAIL("an upstream saw a malformed request (%s):\n%.*s", why, STR_ARG(rest));
        if (rest.p[0] == '\r') FZ_FAIL("an upstream saw an empty line");
        if (!m.used) return;
        if (first) {
            if (u->answering && !u->deaf && !u->unasked) FZ_FAIL("a request behind one that is not answered");
            if (!fzp_note(x, &m)) return;
            u->noted = x->nseen - 1;
            u->noted_at = u->at + 1;
            u->answering = 1;
        }
        s = &x->seen[u->noted];
        s->body.n = 0;
        sim_put(&s->body, m.body.p, m.body.n);
        s->whole = rc == 1;
        if (rc == 0 && first) fzp_up_act(u, x->does[x->ndoes % FZP_DOES], s->client, upgrade, true);
        if (rc == 0) return;
        u->at += m.used;
        fzp_up_act(u, x->does[x->ndoes++ % FZP_DOES], s->client, upgrade, false);
    }
}

static void fzp_up_bytes(struct sim_peer *peer, const uint8_t *p, size_t n)
{
    struct fzp_up *u = RJ_CONTAINER(peer, struct fzp_up, peer);

    sim_put(&u->in, p, n);
    fzp_up_read(u);
}

static void fzp_ignore(struct sim_peer *peer) { (void)peer; }

static struct sim_peer *fzp_up_new(struct sim *sim, uint16_t port, int *res)
{
    struct fzp_world *x = RJ_CONTAINER(sim, struct fzp_world, sim);
    uint8_t how = x->does[x->connects++ % FZP_DOES];
    struct fzp_up *u;

    FZ_CHECK(port >= 8001 && port <= 8003);
    *res = how >> 5 == 7 ? -ECONNREFUSED : how >> 5 == 6 ? 1 : 0;
    if (x->ups == FZP_UPS) {
        *res = -ECONNREFUSED;
        return NULL;
    }
    u = &x->up[x->ups++];
    u->x = x;
    u->peer = (struct sim_peer){.on_bytes = fzp_up_bytes, .on_fin = fzp_ignore, .on_gone = fzp_ignore, .name = "upstream"};
    return &u->peer;
}

/* ---- clients ---- */

static void fzp_client_bytes(struct sim_peer *peer, const uint8_t *p, size_t n) { sim_put(&RJ_CONTAINER(peer, struct fzp_client, peer)->got, p, n); }

static void fzp_client_put(struct fzp_client *c, struct str s)
{
    struct sim_sock *k = c->peer.k;

    if (!k || k->rx_eof || k->rx_reset || c->sent.n > FZP_SENT_MAX) return;
    sim_put(&k->rx, s.p, s.n);
    sim_put(&c->sent, s.p, s.n);
}

static void fzp_client_open(struct fzp_client *c)
{
    struct fzp_world *x = c->x;
    struct net_addr peer = {.family = AF_INET, .ip = {[10] = 0xff, [11] = 0xff, 192, 0, 2, (uint8_t)(1 + (c - x->client))}, .port = 40000};
    int fd = sys_socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (c->opened) {
        sys_close(fd);
        return;
    }
    c->opened = true;
    c->peer = (struct sim_peer){.on_bytes = fzp_client_bytes, .on_fin = fzp_ignore, .on_gone = fzp_ignore, .name = "client"};
    x->sim.next_peer = &c->peer;
    if (px_serve(x->w, fd, &peer, 80) < 0) c->peer.k = NULL, x->sim.next_peer = NULL;
}

/* Requests that are written out, so that the fuzzer need not find them. */
static void fzp_client_say(struct fzp_client *c, uint8_t what)
{
    static const char *const words[] = {
        "GET /a HTTP/1.1\r\nHost: sim.test\r\n\r\n",
        "HEAD /b?x HTTP/1.1\r\nHost: sim.test\r\nConnection: x-hop\r\nX-Hop: 1\r\n\r\n",
        "POST /c HTTP/1.1\r\nHost: sim.test\r\nContent-Length: 5\r\n\r\nhello",
        "PUT /d HTTP/1.1\r\nHost: sim.test\r\nTransfer-Encoding: chunked\r\n\r\n5;x=y\r\nhello\r\na\r\n0123456789\r\n0\r\nX-Sum: 1\r\n\r\n",
        "GET /ws HTTP/1.1\r\nHost: sim.test\r\nConnection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\nframes",
        "POST /e HTTP/1.1\r\nHost: sim.test\r\nExpect: 100-continue\r\nContent-Length: 12\r\n\r\n",
        "GET /f HTTP/1.0\r\nHost: sim.test\r\n\r\n",
        "GET /g HTTP/1.1\r\nHost: sim.test\r\nConnection: close\r\n\r\n",
        "POST /h HTTP/1.1\r\nHost: sim.test\r\nContent-Length: 3000\r\n\r\n",
        "GET http://sim.test/x/../i HTTP/1.1\r\nHost: other.test\r\n\r\n",
        "hello, world",
        "PROXY TCP4 203.0.113.7 192.0.2.99 1234 443\r\n",
        "5\r\nhello\r\n",
        "0\r\n\r\n",
        "OPTIONS * HTTP/1.1\r\nHost: sim.test\r\n\r\n",
        "GET /old HTTP/1.1\r\nHost: rules.test\r\n\r\n",
        "DELETE /strip/x HTTP/1.1\r\nHost: rules.test\r\nX-Forwarded-For: 6.6.6.6\r\nX-Real-IP: 6.6.6.6\r\n\r\n",
    };

    fzp_client_put(c, str_z(words[what % RJ_COUNT(words)]));
}

/* ---- the script ---- */

/* Transports that splice are not simulated. */
static const struct px_transport fzp_plain = {.name = "sim", .scheme = "http", .raw = false, .feed = tp_plain_feed, .send = tp_plain_send};

static void fzp_turns(struct fzp_world *x, uint32_t n)
{
    struct wrk *w = x->w;

    while (n--) {
        for (struct map_link *l = w->px.all.next; l != &w->px.all; l = l->next) {
            struct px_conn *c = RJ_CONTAINER(l, struct px_conn, link);

            if (c->transport != &tp_proxied) c->transport = &fzp_plain;
        }
        io_turn(&w->loop, 1000);
        if (x->sim.failed) FZ_FAIL("%s", x->sim.why);
    }
}

static void fzp_turn(struct sim *sim)
{
    struct fzp_world *x = RJ_CONTAINER(sim, struct fzp_world, sim);

    if (x->alloc_fails && !mem_fail_at && sim_chance(sim, 5)) mem_fail_at = 1 + (long)sim_random(sim, 12);
}

static void fzp_socket(struct fzp_world *x, struct sim_sock *k, uint8_t what)
{
    if (!k) return;
    switch (what % 5) {
    case 0: k->rx_eof = true; break;
    case 1: k->rx_reset = true; break;
    case 2: k->window = 0; break;
    case 3: k->window = sim_random(&x->sim, 2000); break;
    case 4: k->window = SIM_BIG_WINDOW; break;
    }
}

static void fzp_step(struct fzp_world *x, struct fz_in *in)
{
    uint8_t op = fz_take(in), who = fz_take(in);
    struct fzp_client *c = &x->client[who % FZP_CLIENTS];
    struct fzp_up *u = x->ups ? &x->up[x->ups - 1 - who / 4 % x->ups] : NULL;

    switch (op & 7) {
    case 0:
    case 1:
        fzp_client_open(c);
        fzp_client_say(c, op >> 3);
        break;
    case 2: {
        size_t n = 1u + (op >> 3) * 2u;

        if (n > in->n) n = in->n;
        fzp_client_open(c);
        fzp_client_put(c, str_of(in->p, n));
        in->p += n, in->n -= n;
        break;
    }
    case 3: fzp_socket(x, c->peer.k, op >> 3); break;
    case 4:
        if (u && op >> 3 < 8) fzp_socket(x, u->peer.k, op >> 3), u->deaf = u->deaf || op >> 3 < 2;
        else if (u) fzp_up_act(u, op >> 3, -1, false, false), u->unasked = x->unasked = true;
        break;
    case 5: {
        size_t n = 1u + (op >> 3) * 2u;

        if (n > in->n) n = in->n;
        x->unasked = true;
        if (u) u->unasked = true;
        if (u && u->peer.k && !u->deaf) sim_put(&u->peer.k->rx, in->p, n), u->answering = 0, u->tunnel = u->tunnel || memchr(in->p, '1', n);
        in->p += n, in->n -= n;
        break;
    }
    case 6:
        if (op >> 3 < 8) fzp_publish(op >> 3 & 3), x->blurred = x->blurred || (op >> 3 & 3) == 2;
        else if (op >> 3 == 30) px_drain(x->w, who & 1);
        break;
    case 7: fzp_turns(x, 1u + (op >> 3) * (who & 1 ? 20u : 1u)); break;
    }
    fzp_turns(x, 1);
}

/* ---- what must be true ---- */

/* The requests of a client as the slow reader reads them, up to the first malformed octet. */
static unsigned fzp_requests(const struct fzp_client *c, struct fzp_seen *v, unsigned max)
{
    static struct fzp_message m;
    unsigned n = 0;

    for (size_t at = 0; at < c->sent.n && n < max;) {
        const char *why = NULL;
        struct str rest = str_of(c->sent.p + at, c->sent.n - at), line;
        int rc;

        if (str_starts(rest, S("PROXY ")) && at == 0 && fz_cut(&rest, "\r\n", &line)) {
            at = c->sent.n - rest.n;
            continue;
        }
        rc = fzp_read(rest, true, "", false, &m, &why);
        if (!m.used) break;
        v[n] = (struct fzp_seen){.client = 0, .whole = rc == 1};
        snprintf(v[n].method, sizeof v[n].method, "%.*s", STR_ARG(m.head.method));
        sim_put(&v[n++].body, m.body.p, m.body.n);
        if (rc != 1) break;
        at += m.used;
    }
    return n;
}

/* Every request that upstreams saw of the client is one of its own, in their order; one may come again when it was tried twice. */
static void fzp_check_seen(const struct fzp_world *x, int client, const struct fzp_seen *v, unsigned n)
{
    unsigned at = 0;

    for (uint32_t i = 0; i < x->nseen; i++) {
        const struct fzp_seen *s = &x->seen[i];
        unsigned k = at;

        if (s->client != client) continue;
        for (; k < n; k++) {
            const struct fzp_seen *r = &v[k];

            if (strcmp(r->method, s->method) != 0 || s->body.n > r->body.n || (s->body.n && memcmp(s->body.p, r->body.p, s->body.n) != 0)) continue;
            if (!s->whole || (r->whole && s->body.n == r->body.n)) break;
        }
        if (k == n) FZ_FAIL("an upstream saw a request (%s, %zu octets of content, %s) that client %d did not send there", s->method, s->body.n, s->whole ? "whole" : "cut off", client);
        at = k;
    }
}

static void fzp_check_answers(const struct fzp_world *x, const struct fzp_client *c, int client, const struct fzp_seen *v, unsigned n)
{
    static struct fzp_message m;
    unsigned finals = 0;

    for (size_t at = 0; at < c->got.n;) {
        const char *why = NULL;
        struct str rest = str_of(c->got.p + at, c->got.n - at);
        int rc = fzp_read(rest, false, finals < n ? v[finals].method : "", true, &m, &why);
        struct fz_field *id;

        if (finals == n + 1) {                           /* behind a refusal of something that is no request, whose method is not known */
            if (!fzp_find(rest.p, rest.n, "HTTP/1.")) return;
            FZ_FAIL("client %d got more answers than it sent requests (%u):\n%.*s", client, n, STR_ARG(str_of(c->got.p, c->got.n)));
        }
        if (rc < 0) FZ_FAIL("client %d got a malformed answer (%s):\n%.*s", client, why, STR_ARG(rest));
        if (!m.used) return;                             /* cut off within the head */
        id = fz_field(&m.head, "x-id");
        if (id && !x->blurred && !x->unasked && (id->value.n != 1 || id->value.p[0] != '0' + client)) FZ_FAIL("client %d got the answer of client %.*s", client, STR_ARG(id->value));
        if (m.head.status == 101) return;
        if (m.head.status >= 200) finals++;
        if (rc == 0) return;
        at += m.used;
    }
}

static void fzp_check_end(struct fzp_world *x)
{
    struct wrk *w = x->w;

    if (w->px.conns.used || w->px.reqs.used || w->up.conns.used)
        FZ_FAIL("left: %u connections, %u requests, %u upstream connections", w->px.conns.used, w->px.reqs.used, w->up.conns.used);
    if (w->loop.small.used || w->loop.big.used) FZ_FAIL("left: %u small buffers, %u big ones", w->loop.small.used, w->loop.big.used);
    for (const struct rt_snapshot *s = rj.rt.first; s; s = s->newer)
        if (atomic_load(&s->lease[0].n)) FZ_FAIL("left: %u leases", (unsigned)atomic_load(&s->lease[0].n));
    for (int i = MTR_CLIENT_ACTIVE; i <= MTR_UP_IDLE; i++)
        if (w->thread.mtr.gauge[i]) FZ_FAIL("gauge %d stands at %lld", i, (long long)w->thread.mtr.gauge[i]);
    for (size_t i = 0; i < UP_TABLE; i++)
        for (struct up_pool *p = w->up.pools[i]; p; p = p->next)
            if (p->active_n || p->idle_n) FZ_FAIL("pool %u counts %u active, %u idle", p->addr.port, p->active_n, p->idle_n);
    if (w->loop.clk.queued > 1) FZ_FAIL("%u timers are left", w->loop.clk.queued);
    for (int i = 0; i < FZP_CLIENTS; i++) {
        static struct fzp_seen v[400];
        unsigned n = fzp_requests(&x->client[i], v, RJ_COUNT(v));

        if (!x->blurred) fzp_check_seen(x, i, v, n);
        if (!x->blurred && n < RJ_COUNT(v)) fzp_check_answers(x, &x->client[i], i, v, n);
        for (unsigned k = 0; k < n; k++) sim_bytes_free(&v[k].body);
    }
}

/* ---- a run ---- */

static void fzp_on_gone(struct wrk *w) { (void)w; }

static void fzp_start(struct fzp_world *x, struct fz_in *in)
{
    struct wrk *w = x->w = mem_need(sizeof *w);
    uint64_t seed = fz_take(in);

    seed = seed << 8 | fz_take(in);
    x->options = fz_take(in);
    for (int i = 0; i < FZP_DOES; i++) x->does[i] = fz_take(in);
    x->sim = (struct sim){.seed = seed * 0x9e3779b97f4a7c15u + 1, .lp = &w->loop, .on_turn = fzp_turn, .on_connect = fzp_up_new, .delay = x->options & 3, .all_big = x->options & 4,
                          .trace = getenv("RAMJET_SIM_TRACE") != NULL};
    for (int i = 0; i < 4; i++) sim_random(&x->sim, 2);
    x->alloc_fails = (x->options & 24) == 24;
    x->sim.add_fails = x->alloc_fails;
    x->blurred = (x->options >> 5 & 3) == 2;
    rj.rt.workers = 1;
    rj.log_level = LOG_ERROR;
    rc_init(&fzp_table.rc, &fzp_table.store, fzp_table.cfg[0]);
    fzp_publish(x->options >> 5 & 3);
    for (int i = 0; i < FZP_CLIENTS; i++) x->client[i].x = x;
    w->thread.access.cap = 1 << 16;
    w->thread.log.cap = 1 << 14;
    w->px.access_log = true;
    w->loop.sim = &x->sim;
    proxy_set_thread(&w->thread);
    io_loop_open(&w->loop, &sim_ops, 0);
    up_init(&w->up, &w->loop);
    w->up.random = (uint32_t)seed;
    px_init(w, fzp_on_gone, sh_relieve);
}

/* Clients say no more; whatever is under way ends by itself, sooner or later. */
static void fzp_end(struct fzp_world *x)
{
    struct wrk *w = x->w;
    uint32_t turns = 0;

    for (int i = 0; i < FZP_CLIENTS; i++) {
        struct sim_sock *k = x->client[i].peer.k;

        if (k && !k->rx_reset) k->rx_eof = true;
        if (k) k->window = SIM_BIG_WINDOW;
    }
    while (w->px.conns.used && turns++ < FZP_TURNS) fzp_turns(x, 1);
    if (w->px.conns.used) FZ_FAIL("still running after %d turns", FZP_TURNS);
    mem_fail_at = 0;
    x->alloc_fails = false;
    up_close_all_idle(&w->up);
    for (turns = 0; (w->up.conns.used || w->px.reqs.used) && turns < 2000; turns++) {
        fzp_turns(x, 1);
        up_close_all_idle(&w->up);
    }
}

static void fzp_finish(struct fzp_world *x)
{
    struct wrk *w = x->w;

    up_fini(&w->up);
    px_fini(w);
    io_loop_close(&w->loop);
    if (x->sim.failed) FZ_FAIL("%s", x->sim.why);
    if (w->loop.mapped) FZ_FAIL("left: %zu bytes by the books", w->loop.mapped);
    for (int i = 0; i < MTR_ROUTES_MAX; i++) mem_free(atomic_load(&w->thread.mtr.route[i]));
    if (w->thread.access.p) sys_unmap(w->thread.access.p, w->thread.access.cap);
    if (w->thread.log.p) sys_unmap(w->thread.log.p, w->thread.log.cap);
    for (uint32_t i = 0; i < x->ups; i++) sim_bytes_free(&x->up[i].in);
    for (uint32_t i = 0; i < x->nseen; i++) sim_bytes_free(&x->seen[i].body);
    for (int i = 0; i < FZP_CLIENTS; i++) sim_bytes_free(&x->client[i].sent), sim_bytes_free(&x->client[i].got);
    proxy_set_thread(NULL);
    mem_free(w);
    rc_fini(&fzp_table.rc);
    mem_free(fzp_table.changes.v);
    fzp_table.changes = (struct rt_changes){0};
    rt_fini();
}

FZ(proxy, 1024)
{
    static struct fzp_world x;
    struct fz_in in = {p, n};
    unsigned steps = 0;

    memset(&x, 0, sizeof x);
    fzp_start(&x, &in);
    while (in.n && steps++ < 120) fzp_step(&x, &in);
    fzp_end(&x);
    fzp_check_end(&x);
    fzp_finish(&x);
}

static struct cfg *fzp_settings(const char *more)
{
    char text[2048];

    snprintf(text, sizeof text,
             "[ramjet]\nadmin = off\naccess-log-path = /dev/null\nproxy-connect-timeout = 2s\nupstream-keepalive-timeout = 20s\nmax-fails = 2\n"
             "fail-timeout = 3s\nproxy-body-size = 20k\n%s[backend b]\nendpoint = 10.0.0.1:8001\nendpoint = 10.0.0.1:8002\nendpoint = 10.0.0.1:8003 weight=2\n"
             "[route r]\nbackend = b\n[route s]\nhost = rules.test\npath = /strip\npath-strip-prefix = true\nhide-headers = X-T\ncustom-headers = X-A: b\nbackend = b\n"
             "[route t]\nhost = rules.test\npath = /old\npermanent-redirect = https://new.test/x\n", more);
    return fz_settings(text);
}

FZ_OPEN(proxy)
{
    fzp_table.cfg[0] = fzp_settings("keep-alive = 30s\n");
    fzp_table.cfg[1] = fzp_settings("server-tokens = true\nload-balance = least_conn\nproxy-request-buffering = on\naccess-log-format = combined\n");
    fzp_table.cfg[2] = fzp_settings("use-proxy-protocol = true\nproxy-real-ip-cidr = 192.0.2.0/24\n");
    fzp_table.cfg[3] = fzp_settings("keep-alive = 0\nproxy-next-upstream = error timeout http_502 http_500 non_idempotent\nclient-header-timeout = 1s\nclient-body-timeout = 1s\n");
}
