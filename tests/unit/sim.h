/* A simulated engine: the promises of struct io_ops kept in memory, on a virtual clock, from a seed.
 *
 *   struct sim sim;  sim_init(&sim, seed);  lp->sim = &sim;  io_loop_open(lp, &sim_ops, 0);
 *
 * What the proxy sends comes to `on_bytes` of the peer in pieces of any size; what the peer puts into `rx` of its socket is received in pieces
 * of any size. Completions come late and in any order that io_ops allows. Checked on the way:
 *   - one completion for every request, none after io_close but one IO_CLOSED, no second send or receive while one runs;
 *   - bytes given to a send stay what they were until IO_SENT or IO_CLOSED, as the kernel may read them until then;
 *   - a receive buffer that nobody kept is overwritten behind the call-back.
 * The descriptors are real socket pairs that carry nothing: the far end tells that the proxy has shut its sending side. */
#ifndef SIM_H
#define SIM_H

enum { SIM_BIG_WINDOW = 1 << 30 };

struct sim_bytes {
    uint8_t *p;
    size_t n, at, cap;                                               /* filled, taken, room */
};

struct sim;
struct sim_sock;

/* Who is at the far end. Every call-back may be called once the socket is there. */
struct sim_peer {
    void (*on_open)(struct sim_peer *p);                             /* upstreams: connected */
    void (*on_bytes)(struct sim_peer *p, const uint8_t *bytes, size_t n);
    void (*on_fin)(struct sim_peer *p);                              /* the proxy sends no more */
    void (*on_gone)(struct sim_peer *p);                             /* the proxy has closed; k is gone */
    struct sim_sock *k;                                              /* NULL: not open */
    bool was_reset;                                                  /* in on_gone: the proxy's end was a reset */
    char name[16];                                                   /* for the trace */
};

struct sim_sock {
    struct sim *sim;
    struct io_sock *s;
    struct sim_peer *peer;
    int far_fd;
    struct sim_bytes rx;                                             /* towards the proxy */
    bool rx_eof, rx_reset;                                           /* behind rx; at once */
    size_t window;                                                   /* bytes the peer still takes */
    bool fin;                                                        /* the proxy has shut its side down */
    bool recv, big, stop, connect, closing;                          /* what the proxy waits for */
    int connect_res;
    struct io_outq *q;                                               /* a send is under way */
    struct iovec iov[IO_OUTQ_SEND];
    uint32_t iovs;
    struct sim_bytes sent;                                           /* what iov held when the send began */
};

struct sim {
    uint64_t seed;
    struct io_loop *lp;
    struct sim_sock **socks;
    uint32_t n, cap;
    struct sim_peer *next_peer;                                      /* of the next descriptor that is taken in */
    struct sim_peer *(*on_connect)(struct sim *sim, uint16_t port, int *res); /* res: 0, -errno, 1 = never */
    void (*on_turn)(struct sim *sim);                                /* the peers act */
    void (*on_event)(struct sim *sim);                               /* before each completion; may be NULL */
    uint32_t delay;                                                  /* of 8: how often a completion comes later */
    bool all_big;                                                    /* every receive fills a big buffer, as with epoll */
    bool add_fails;                                                  /* now and then a descriptor is not taken in */
    bool moved;                                                      /* something was delivered in this turn */
    bool failed;
    char why[256];
    bool trace;
};

static uint32_t sim_random(struct sim *sim, uint32_t n) { return ut_random(&sim->seed, n); }
static bool sim_chance(struct sim *sim, uint32_t of) { return ut_random(&sim->seed, of) == 0; }

RJ_PRINTF(2, 3) static void sim_fail(struct sim *sim, const char *fmt, ...)
{
    va_list ap;

    if (sim->failed) return;
    sim->failed = true;
    va_start(ap, fmt);
    vsnprintf(sim->why, sizeof sim->why, fmt, ap);
    va_end(ap);
}

static void sim_put(struct sim_bytes *b, const void *p, size_t n)
{
    if (b->at && b->at == b->n) b->at = b->n = 0;
    if (b->cap - b->n < n) {
        b->cap = (b->n + n) * 2;
        b->p = realloc(b->p, b->cap);
    }
    if (n) memcpy(b->p + b->n, p, n);
    b->n += n;
}

RJ_PRINTF(2, 3) static void sim_print(struct sim_bytes *b, const char *fmt, ...)
{
    char text[2048];
    va_list ap;
    int n;

    va_start(ap, fmt);
    n = vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    sim_put(b, text, (size_t)n);
}

static void sim_bytes_free(struct sim_bytes *b)
{
    free(b->p);
    *b = (struct sim_bytes){0};
}

/* ---- the engine ---- */

static void sim_event(struct sim_sock *k, enum io_event ev, int res, struct mem_buf *b)
{
    static const char *const names[] = {"ACCEPT", "CONNECT", "RECV", "SENT", "READY", "STOPPED", "CLOSED"};

    k->sim->moved = true;
    if (k->sim->trace) printf("  %8llu ms  fd %d (%s)  %s %d\n", (unsigned long long)k->sim->lp->clk.now_ms, k->s->fd, k->peer ? k->peer->name : "-", names[ev], res);
    if (k->sim->on_event) k->sim->on_event(k->sim);
    k->s->handle(k->s, ev, res, b);
}

static int sim_open(struct io_loop *lp)
{
    lp->nonblocking = true;
    lp->clk.now_ms = 1000000;
    lp->clk.now_ns = lp->clk.now_ms * 1000000;
    lp->clk.tick = lp->clk.now_ms / CLK_TICK_MS;
    return 0;
}

static void sim_close(struct io_loop *lp)
{
    struct sim *sim = lp->sim;

    if (sim->n) sim_fail(sim, "%u sockets are open at the end", sim->n);
    free(sim->socks);
}

static int sim_add(struct io_loop *lp, struct io_sock *s)
{
    struct sim *sim = lp->sim;
    struct sim_sock *k;
    int fd[2];

    if (sim->add_fails && sim_chance(sim, 10)) return sim_chance(sim, 2) ? -ENOMEM : -EMFILE;
    if (sys_socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fd) < 0) return -EMFILE;
    dup2(fd[0], s->fd);
    sys_close(fd[0]);
    k = calloc(1, sizeof *k);
    *k = (struct sim_sock){.sim = sim, .s = s, .far_fd = fd[1], .window = SIM_BIG_WINDOW, .peer = sim->next_peer};
    if (k->peer) k->peer->k = k;
    sim->next_peer = NULL;
    if (sim->n == sim->cap) {
        sim->cap = sim->cap * 2 + 16;
        sim->socks = realloc(sim->socks, sim->cap * sizeof *sim->socks);
    }
    s->slot = sim->n;
    sim->socks[sim->n++] = k;
    return 0;
}

static struct sim_sock *sim_of(struct io_loop *lp, struct io_sock *s) { return ((struct sim *)lp->sim)->socks[s->slot]; }

static void sim_accept_start(struct io_loop *lp, struct io_sock *s) { sim_fail(lp->sim, "accept on fd %d: listeners are not simulated", s->fd); }

static void sim_connect(struct io_loop *lp, struct io_sock *s, const void *sa, socklen_t n)
{
    struct sim_sock *k = sim_of(lp, s);
    struct net_addr a;

    (void)n;
    str_from_sockaddr(sa, &a);
    k->peer = k->sim->on_connect(k->sim, a.port, &k->connect_res);
    if (k->peer) k->peer->k = k;
    k->connect = true;
}

static void sim_recv_start(struct io_loop *lp, struct io_sock *s)
{
    struct sim_sock *k = sim_of(lp, s);

    if (k->closing) sim_fail(k->sim, "receive on a closing socket");
    k->recv = true;
}

static void sim_recv_big(struct io_loop *lp, struct io_sock *s)
{
    struct sim_sock *k = sim_of(lp, s);

    if (k->closing || k->recv || k->big || k->stop) sim_fail(k->sim, "big receive while another receive runs");
    k->big = true;
}

static void sim_recv_stop(struct io_loop *lp, struct io_sock *s)
{
    struct sim_sock *k = sim_of(lp, s);

    if (k->closing) sim_fail(k->sim, "stop of a closing socket");
    if (!k->recv && !k->big && !k->stop) sim_fail(k->sim, "stop without a receive");
    k->recv = k->big = false;
    k->stop = true;                                                  /* a second stop is answered with the first */
}

static void sim_send(struct io_loop *lp, struct io_sock *s, struct io_outq *q)
{
    struct sim_sock *k = sim_of(lp, s);

    if (k->closing || k->connect || k->q) sim_fail(k->sim, "send on a socket that cannot send now");
    if (k->fin) sim_fail(k->sim, "send behind the end");
    k->q = q;
    k->iovs = q->flight;
    k->sent.n = k->sent.at = 0;
    for (uint32_t i = 0; i < q->flight; i++) {
        k->iov[i] = q->iov[i];
        if (!q->iov[i].iov_len) sim_fail(k->sim, "an empty slot is sent");
        sim_put(&k->sent, q->iov[i].iov_base, q->iov[i].iov_len);
    }
}

static void sim_poll(struct io_loop *lp, struct io_sock *s, int what) { sim_fail(lp->sim, "poll %d on fd %d: pumps are not simulated", what, s->fd); }

/* The buffers of a send that ends now are what they were when it began. */
static void sim_check_sent(struct sim_sock *k)
{
    size_t at = 0;

    for (uint32_t i = 0; i < k->iovs; i++) {
        if (memcmp(k->iov[i].iov_base, k->sent.p + at, k->iov[i].iov_len) != 0) sim_fail(k->sim, "bytes changed while the kernel may read them");
        at += k->iov[i].iov_len;
    }
}

/* What the proxy did to the descriptor itself: bytes written past the engine, the end of its side. */
static void sim_look(struct sim_sock *k)
{
    uint8_t raw[512];
    long n;

    while ((n = sys_recv(k->far_fd, raw, sizeof raw, MSG_DONTWAIT)) > 0)
        if (k->peer) k->peer->on_bytes(k->peer, raw, (size_t)n);
    if (n == 0 && !k->fin) {
        k->fin = true;
        if (k->q) sim_fail(k->sim, "shut down during a send");
        if (k->peer) k->peer->on_fin(k->peer);
    }
}

static void sim_close_sock(struct io_loop *lp, struct io_sock *s)
{
    struct sim_sock *k = sim_of(lp, s);
    struct sim_peer *p = k->peer;
    struct linger linger = {0};
    socklen_t n = sizeof linger;

    if (k->closing) return;
    sim_look(k);
    getsockopt(s->fd, SOL_SOCKET, SO_LINGER, &linger, &n);
    k->closing = true;
    k->recv = k->big = k->stop = k->connect = false;
    s->flags |= IO_S_CLOSING;
    k->peer = NULL;
    if (!p) return;
    p->k = NULL;
    p->was_reset = linger.l_onoff;
    p->on_gone(p);
}

static void sim_closed(struct sim_sock *k)
{
    struct sim *sim = k->sim;
    struct io_sock *s = k->s;

    if (k->q) sim_check_sent(k);
    sys_close(s->fd);
    sys_close(k->far_fd);
    sim->socks[s->slot] = sim->socks[--sim->n];
    sim->socks[s->slot]->s->slot = s->slot;
    s->fd = -1;
    sim_event(k, IO_CLOSED, 0, NULL);
    sim_bytes_free(&k->rx);
    sim_bytes_free(&k->sent);
    free(k);
}

/* Delivers up to a random number of bytes, the end, or an error. */
static void sim_do_recv(struct sim_sock *k, bool big)
{
    struct sim *sim = k->sim;
    size_t left = k->rx.n - k->rx.at, n;
    struct mem_buf *b;
    long fail_at = mem_fail_at;

    if (k->rx_reset || !left) {
        k->recv = big && k->recv && sim_chance(sim, 2);              /* the end may be told to a subscription behind a big receive, too */
        k->big = false;
        sim_event(k, IO_RECV, k->rx_reset ? -ECONNRESET : 0, NULL);
        return;
    }
    mem_fail_at = 0;
    b = big || sim->all_big ? io_buf_in(sim->lp) : mem_buf_new(&sim->lp->small);
    mem_fail_at = fail_at;
    if (!b) return;
    n = left < b->cap ? left : b->cap;
    if (sim_chance(sim, 3)) n = 1 + sim_random(sim, n < 8 ? (uint32_t)n : 8);
    else if (sim_chance(sim, 3)) n = 1 + sim_random(sim, (uint32_t)n);
    memcpy(b->data, k->rx.p + k->rx.at, n);
    b->len = (uint32_t)n;
    k->rx.at += n;
    if (big) k->big = false;
    sim_event(k, IO_RECV, (int)n, b);
    if (b->refs == 1) memset(b->data, 0xdd, b->cap);
    mem_buf_put(b);
}

static void sim_do_sent(struct sim_sock *k)
{
    size_t n = k->sent.n < k->window ? k->sent.n : k->window;
    struct sim_peer *p = k->peer;

    sim_check_sent(k);
    k->q = NULL;
    if (k->rx_reset || !p) {
        sim_event(k, IO_SENT, sim_chance(k->sim, 2) ? -EPIPE : -ECONNRESET, NULL);
        return;
    }
    if (n > 1 && sim_chance(k->sim, 3)) n = 1 + sim_random(k->sim, (uint32_t)n);
    k->window -= n;
    p->on_bytes(p, k->sent.p, n);
    sim_event(k, IO_SENT, (int)n, NULL);
}

static void sim_do_connect(struct sim_sock *k)
{
    k->connect = false;
    if (k->connect_res == 0 && k->peer && k->peer->on_open) k->peer->on_open(k->peer);
    sim_event(k, IO_CONNECT, k->connect_res, NULL);
}

static bool sim_can_recv(const struct sim_sock *k) { return k->rx_reset || k->rx_eof || k->rx.at < k->rx.n; }

/* Bit per kind of completion that is due: connect, sent, stopped, receive, closed. */
static uint32_t sim_due(const struct sim_sock *k)
{
    return (uint32_t)(k->connect && k->connect_res <= 0) | (uint32_t)(k->q && (k->window || k->rx_reset)) << 1 | (uint32_t)k->stop << 2 |
           (uint32_t)((k->recv || k->big) && !k->stop && sim_can_recv(k)) << 3 | (uint32_t)k->closing << 4;
}

/* One completion of k, if one is due; k may be gone behind it. */
static void sim_step(struct sim_sock *k)
{
    struct sim *sim = k->sim;
    uint32_t due = sim_due(k), first = sim_random(sim, 4);

    if (k->closing) {
        sim_closed(k);
        return;
    }
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t what = (first + i) % 4;

        if (!(due >> what & 1)) continue;
        if (what == 0) sim_do_connect(k);
        else if (what == 1) sim_do_sent(k);
        else if (what == 3) sim_do_recv(k, k->big);
        else if (k->rx.at < k->rx.n && !k->rx_reset && sim_chance(sim, 2)) sim_do_recv(k, false); /* it came before the stop took effect */
        else {
            k->stop = false;
            sim_event(k, IO_STOPPED, 0, NULL);
        }
        return;
    }
}

static uint32_t sim_turn(struct io_loop *lp, uint32_t timeout_ms)
{
    struct sim *sim = lp->sim;
    uint32_t n;

    io_sleeps();
    if (!sim->moved) lp->clk.now_ns += (timeout_ms ? timeout_ms : 1) * 1000000ull;
    else if (sim_chance(sim, 4)) lp->clk.now_ns += sim_random(sim, 3000000);
    lp->clk.now_ms = lp->clk.now_ns / 1000000;
    if (rj_me) rcu_enter(rj_me);
    sim->moved = false;
    sim->on_turn(sim);
    for (n = sim->n * 2; n-- && sim->n;) {
        struct sim_sock *k = sim->socks[sim_random(sim, sim->n)];

        if (!k->closing) sim_look(k);
        if (!sim_due(k)) continue;
        sim->moved = true;
        if (sim_random(sim, 8) >= sim->delay) sim_step(k);
    }
    for (n = sim->n; n--;)                                           /* nothing is left behind for want of luck */
        if (n < sim->n && !sim->moved) {
            if (!sim->socks[n]->closing) sim_look(sim->socks[n]);
            sim_step(sim->socks[n]);
        }
    return sim->moved;
}

static const struct io_ops sim_ops = {
    .name = "sim", .open = sim_open, .close = sim_close, .turn = sim_turn, .add = sim_add, .accept_start = sim_accept_start,
    .accept_stop = sim_accept_start, .connect = sim_connect, .recv_start = sim_recv_start, .recv_big = sim_recv_big, .recv_stop = sim_recv_stop,
    .send = sim_send, .poll = sim_poll, .close_sock = sim_close_sock,
};

/* ---- a strict reader of messages, written apart from the proxy's ---- */

enum sim_state { SIM_HEAD, SIM_LENGTH, SIM_SIZE, SIM_DATA, SIM_DATA_END, SIM_TRAILER, SIM_EOF, SIM_DONE, SIM_BAD };

struct sim_reader {
    bool response, bodyless;                                         /* bodyless: of a HEAD request */
    enum sim_state state;
    char head[20000];
    uint32_t head_n;
    char line[256];
    uint32_t line_n;
    uint64_t left, got;
    uint32_t pattern;                                                /* seed of the bytes that are expected; 0: any */
    int status, minor;
    int id;                                                          /* of X-Id or of the path; -1: none */
    char route;                                                      /* of the path: /r/1 */
    char from[48];                                                   /* X-Forwarded-For */
    bool close, chunked, has_length, expect, upgrade, has_host;
    uint64_t length;
    char method[16];
    char start[64];                                                  /* of the content */
    const char *bad;
};

static uint8_t sim_pattern(uint32_t seed, uint64_t at) { return (uint8_t)(seed * 131 + at * 7 + (at >> 8) * 13); }

static void sim_reader_init(struct sim_reader *r, bool response)
{
    r->response = response;
    r->bodyless = false;
    r->state = SIM_HEAD;
    r->head_n = r->line_n = 0;
    r->left = r->got = r->length = 0;
    r->pattern = 0;
    r->id = -1;
    r->status = 0;
    r->close = r->chunked = r->has_length = r->expect = r->upgrade = r->has_host = false;
    r->start[0] = r->from[0] = r->route = 0;
    r->bad = NULL;
}

static void sim_bad(struct sim_reader *r, const char *why)
{
    r->state = SIM_BAD;
    if (!r->bad) r->bad = why;
}

static void sim_read_field(struct sim_reader *r, char *line)
{
    char *colon = strchr(line, ':'), *v;

    if (!colon || colon == line) return sim_bad(r, "a field without a name");
    *colon = 0;
    for (const char *c = line; *c; c++)
        if (*c <= ' ' || *c == 0x7f || strchr("()<>@,;\\\"/[]?={}", *c)) sim_bad(r, "a field name that is no token");
    v = colon + 1 + (colon[1] == ' ');
    if (strcasecmp(line, "content-length") == 0) {
        if (r->has_length || r->chunked || !*v || strspn(v, "0123456789") != strlen(v)) sim_bad(r, "framing");
        r->has_length = true;
        r->length = strtoull(v, NULL, 10);
    } else if (strcasecmp(line, "transfer-encoding") == 0) {
        if (r->has_length || r->chunked || strcmp(v, "chunked") != 0) sim_bad(r, "framing");
        r->chunked = true;
    } else if (strcasecmp(line, "connection") == 0) {
        r->close = r->close || strcasecmp(v, "close") == 0;
    } else if (strcasecmp(line, "x-id") == 0) {
        r->id = atoi(v);
    } else if (strcasecmp(line, "host") == 0) {
        if (r->has_host) sim_bad(r, "two hosts");
        r->has_host = true;
    } else if (strcasecmp(line, "expect") == 0) {
        r->expect = true;
    } else if (strcasecmp(line, "upgrade") == 0) {
        r->upgrade = true;
    } else if (strcasecmp(line, "x-hop") == 0 || strcasecmp(line, "keep-alive") == 0 || strcasecmp(line, "proxy-connection") == 0) {
        sim_bad(r, "a hop-by-hop field came through");
    } else if (strcasecmp(line, "x-forwarded-for") == 0) {
        if (r->from[0]) sim_bad(r, "two X-Forwarded-For");
        snprintf(r->from, sizeof r->from, "%s", v);
    }
}

static void sim_read_start(struct sim_reader *r, const char *line)
{
    char path[128];

    if (r->response) {
        if (sscanf(line, "HTTP/1.%1d %3d ", &r->minor, &r->status) != 2 || strlen(line) < 13) sim_bad(r, "status line");
    } else if (sscanf(line, "%15s %127s HTTP/1.%1d", r->method, path, &r->minor) != 3 || sscanf(path, "/%c/%d", &r->route, &r->id) != 2) {
        sim_bad(r, "request line");
    }
}

/* The head is complete: what follows it? */
static void sim_read_head(struct sim_reader *r)
{
    char *at = r->head, *end;
    bool first = true;

    r->head[r->head_n - 2] = 0;
    while (*at) {
        if (!(end = strstr(at, "\r\n"))) return sim_bad(r, "a line without CRLF");
        *end = 0;
        if (strpbrk(at, "\r\n")) return sim_bad(r, "a bare CR or LF");
        if (first) sim_read_start(r, at);
        else sim_read_field(r, at);
        first = false;
        at = end + 2;
    }
    if (r->state == SIM_BAD) return;
    if (!r->response && !r->has_host) return sim_bad(r, "no host");
    if (r->response && (r->status < 200 || r->status == 204) && (r->has_length || r->chunked)) return sim_bad(r, "content where there is none");
    if (r->chunked) r->state = SIM_SIZE;
    else if (r->has_length && r->length) r->state = SIM_LENGTH, r->left = r->length;
    else if (r->response && !r->has_length) r->state = SIM_EOF;
    else r->state = SIM_DONE;
    if (r->response && (r->bodyless || r->status < 200 || r->status == 204 || r->status == 304)) r->state = SIM_DONE;
}

static void sim_read_content(struct sim_reader *r, const uint8_t *p, size_t n)
{
    for (size_t i = 0; i < n; i++, r->got++) {
        if (r->got + 1 < sizeof r->start) r->start[r->got] = (char)p[i], r->start[r->got + 1] = 0;
        if (r->pattern && p[i] != sim_pattern(r->pattern, r->got)) return sim_bad(r, "other content");
    }
}

/* A line of the chunked coding without its CRLF stands in r->line. */
static void sim_read_line(struct sim_reader *r)
{
    char *end;

    r->line[r->line_n - 2] = 0;
    if (r->state == SIM_TRAILER) {
        if (r->line_n == 2) r->state = SIM_DONE;
    } else {
        r->left = strtoull(r->line, &end, 16);
        if (*end || end == r->line) return sim_bad(r, "chunk size");
        r->state = r->left ? SIM_DATA : SIM_TRAILER;
    }
    r->line_n = 0;
}

/* Reads up to the end of the head (stops there once, so that the owner can set pattern), or of the message. Returns bytes used. */
static size_t sim_read(struct sim_reader *r, const uint8_t *p, size_t n)
{
    size_t i = 0;

    while (i < n && r->state < SIM_DONE) {
        size_t k = n - i;

        switch (r->state) {
        case SIM_HEAD:
            if (r->head_n + 1 >= sizeof r->head || !p[i]) return sim_bad(r, "head"), n;
            r->head[r->head_n++] = (char)p[i++];
            if (r->head_n < 4 || memcmp(r->head + r->head_n - 4, "\r\n\r\n", 4) != 0) break;
            sim_read_head(r);
            return i;
        case SIM_LENGTH:
        case SIM_DATA:
            if (k > r->left) k = (size_t)r->left;
            sim_read_content(r, p + i, k);
            i += k;
            r->left -= k;
            if (!r->left && r->state != SIM_BAD) r->state = r->state == SIM_LENGTH ? SIM_DONE : SIM_DATA_END;
            break;
        case SIM_DATA_END:
        case SIM_SIZE:
        case SIM_TRAILER:
            if (r->line_n + 1 >= sizeof r->line) return sim_bad(r, "line"), n;
            r->line[r->line_n++] = (char)p[i++];
            if (r->state == SIM_DATA_END && r->line[r->line_n - 1] != "\r\n"[r->line_n - 1]) return sim_bad(r, "chunk end"), n;
            if (r->state == SIM_DATA_END && r->line_n == 2) r->state = SIM_SIZE, r->line_n = 0;
            else if (r->line_n >= 2 && memcmp(r->line + r->line_n - 2, "\r\n", 2) == 0) sim_read_line(r);
            break;
        case SIM_EOF:
            sim_read_content(r, p + i, k);
            i = n;
            break;
        case SIM_DONE:
        case SIM_BAD: break;
        }
    }
    return i;
}

#endif
