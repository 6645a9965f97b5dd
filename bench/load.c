/* The load generator and the upstream of the benchmarks: HTTP/1.1 and WebSocket over io_uring, one thread each.
 *
 *   load up   --port N [--cpu N]
 *       Answers by the last path segment: /128 is a body of 128 octets with a length, /102400c the same number in chunks of 32 KiB, /ws a WebSocket
 *       echo. A request body is thrown away.
 *   load load --port N [--path P] [--connections N] [--mode keep|new|ws|hold] [--depth N] [--upload N] [--chunked] [--rate N] [--hosts N]
 *             [--warmup S] [--seconds S] [--slot MS] [--pids N,N] [--cpu N] [--cal-cpu N] [--sources N]
 *       Prints one JSON object for one window. `pids` are the proxy's processes (their children and threads are found): their CPU time is read
 *       here, at the edges of the window. `mode hold` makes one request per connection, 32 at a time, prints a line, holds them until its input ends, and
 *       prints how many the proxy closed meanwhile. `slot` adds a time line: per MS milliseconds the requests, p99, failed and lost ones.
 *
 * With --rate, requests are due at fixed times, and a latency counts from the time when the request was due: a stall of the proxy is charged to
 * every request that it delayed (coordinated omission). Without, each connection has `depth` requests in flight (closed loop).
 * Bodies are dropped in the kernel (MSG_TRUNC) by whoever receives them, so that this side of the proxy costs little; bench/run compares every
 * octet of one answer of each kind before it measures. */
#define _GNU_SOURCE
#include "ring.h"
#include <arpa/inet.h>
#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <getopt.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>

enum { IOVS = 16, UNIT = 32768, HEAD_MAX = 4096, BODY_BUFFER = 65536, WS_IN = 136, WS_OUT = 132, FD_MAX = 20000, PIDS = 256, HOLD_WAVE = 32 };
enum { OP_ACCEPT = 1, OP_CONNECT, OP_SEND, OP_RECV, OP_CLOSE, OP_STDIN };

static struct ring ring;

static uint64_t now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void pin(int cpu)
{
    cpu_set_t set;

    if (cpu < 0) return;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    if (sched_setaffinity(0, sizeof set, &set)) die("sched_setaffinity");
}

static void *grow(void *p, size_t n)
{
    if (!(p = realloc(p, n))) die("memory");
    return p;
}

/* ---- Messages: a head, `units` times the same piece, a tail ------------------------------------------------------------------------- */

struct message {
    uint8_t *head, *tail;
    const uint8_t *unit;
    size_t head_n, unit_n, units, tail_n, total;
};

static uint8_t body_unit[UNIT];                             /* the octets of every body: position modulo 251 */
static uint8_t chunk_unit[UNIT + 16];

static void units_init(void)
{
    for (size_t i = 0; i < UNIT; i++) body_unit[i] = (uint8_t)(i % 251);
    size_t n = (size_t)sprintf((char *)chunk_unit, "%x\r\n", UNIT);

    memcpy(chunk_unit + n, body_unit, UNIT);
    memcpy(chunk_unit + n + UNIT, "\r\n", 2);
}

/* Makes a message of `start` (lines that end in CRLF) and a body of n octets; a small one is one piece. */
static struct message message_make(const char *start, bool body, size_t n, bool chunked)
{
    struct message m = {.head = grow(NULL, strlen(start) + 128), .tail = grow(NULL, UNIT + 64), .unit = chunked ? chunk_unit : body_unit};
    size_t rest = n % UNIT;

    m.head_n = (size_t)sprintf((char *)m.head, body ? chunked ? "%sTransfer-Encoding: chunked\r\n\r\n" : "%sContent-Length: %zu\r\n\r\n" : "%s\r\n", start, n);
    if (body) {
        m.units = n / UNIT;
        m.unit_n = chunked ? UNIT + 8 : UNIT;               /* "8000\r\n" before, "\r\n" behind */
        if (chunked && rest) m.tail_n = (size_t)sprintf((char *)m.tail, "%zx\r\n", rest);
        memcpy(m.tail + m.tail_n, body_unit, rest);
        m.tail_n += rest;
        if (chunked) m.tail_n += (size_t)sprintf((char *)m.tail + m.tail_n, "%s0\r\n\r\n", rest ? "\r\n" : "");
    }
    if (m.units == 0) {
        m.head = grow(m.head, m.head_n + m.tail_n);
        memcpy(m.head + m.head_n, m.tail, m.tail_n);
        m.head_n += m.tail_n;
        m.tail_n = 0;
    }
    m.total = m.head_n + m.units * m.unit_n + m.tail_n;
    return m;
}

/* Fills iov with what follows `at`; returns the number of pieces. */
static unsigned message_iov(const struct message *m, size_t at, struct iovec *iov)
{
    unsigned n = 0;
    size_t body = m->units * m->unit_n;

    if (at < m->head_n) {
        iov[n++] = (struct iovec){m->head + at, m->head_n - at};
        at = m->head_n;
    }
    at -= m->head_n;
    while (n < IOVS && at < body) {
        size_t skip = at % m->unit_n;
        iov[n++] = (struct iovec){(void *)(uintptr_t)(m->unit + skip), m->unit_n - skip};
        at += m->unit_n - skip;
    }
    if (n < IOVS && at >= body && at - body < m->tail_n) iov[n++] = (struct iovec){m->tail + (at - body), m->tail_n - (at - body)};
    return n;
}

/* ---- Reading heads and bodies --------------------------------------------------------------------------------------------------------- */

struct head {
    const uint8_t *line;
    size_t line_n;
    int64_t length;
    bool chunked, close, upgrade;
};

static bool field_is(const uint8_t *p, size_t n, const char *name) { return n == strlen(name) && !strncasecmp((const char *)p, name, n); }

static bool value_has(const uint8_t *p, size_t n, const char *word) { return n >= strlen(word) && memmem(p, n, word, strlen(word)); }

static void head_field(struct head *h, const uint8_t *p, size_t name, const uint8_t *value, size_t n)
{
    switch (p[0] | 0x20) {
    case 'c':
        if (field_is(p, name, "content-length")) h->length = strtoll((const char *)value, NULL, 10);
        else if (field_is(p, name, "connection")) h->close = value_has(value, n, "close");
        break;
    case 't':
        if (field_is(p, name, "transfer-encoding")) h->chunked = true;
        break;
    case 'u':
        if (field_is(p, name, "upgrade")) h->upgrade = true;
        break;
    }
}

/* Returns the octets of the head, 0 for more, -1 for nonsense. */
static long head_parse(const uint8_t *p, size_t n, struct head *h)
{
    const uint8_t *end = memmem(p, n, "\r\n\r\n", 4), *at, *eol;

    if (!end) return n >= HEAD_MAX ? -1 : 0;
    *h = (struct head){.line = p, .length = -1};
    eol = memchr(p, '\r', (size_t)(end - p) + 1);
    h->line_n = (size_t)(eol - p);
    for (at = eol + 2; at < end; at = eol + 2) {
        const uint8_t *colon, *value;
        eol = memchr(at, '\r', (size_t)(end - at) + 1);
        if (!(colon = memchr(at, ':', (size_t)(eol - at)))) return -1;
        for (value = colon + 1; value < eol && *value == ' '; value++) {}
        head_field(h, at, (size_t)(colon - at), value, (size_t)(eol - value));
    }
    return end + 4 - p;
}

enum body_state { BODY_DONE, BODY_LENGTH, BODY_SIZE, BODY_DATA, BODY_DATA_END, BODY_TRAILER, BODY_BAD };

struct body {
    enum body_state state;
    uint64_t left;                                          /* of the length, or of the chunk */
    unsigned line;                                          /* octets of the line so far */
    bool extension;
};

static void body_start(struct body *b, const struct head *h)
{
    *b = (struct body){.state = h->chunked ? BODY_SIZE : h->length > 0 ? BODY_LENGTH : BODY_DONE, .left = h->chunked || h->length < 0 ? 0 : (uint64_t)h->length};
}

static size_t body_data(struct body *b, size_t n)
{
    size_t take = n < b->left ? n : (size_t)b->left;

    b->left -= take;
    if (b->left == 0) b->state = b->state == BODY_LENGTH ? BODY_DONE : BODY_DATA_END;
    return take;
}

static void body_octet(struct body *b, uint8_t c)
{
    switch (b->state) {
    case BODY_SIZE:
        if (c == '\n') {
            b->state = b->left ? BODY_DATA : BODY_TRAILER;
            b->line = 0;
            b->extension = false;
        } else if (c == ';' || c == '\r') b->extension = true;
        else if (!b->extension) {
            if (!isxdigit(c)) b->state = BODY_BAD;
            b->left = b->left * 16 + (uint64_t)(c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10);
        }
        break;
    case BODY_DATA_END:
        if (c == '\n') b->state = BODY_SIZE;
        else if (c != '\r') b->state = BODY_BAD;
        break;
    case BODY_TRAILER:
        if (c == '\n') {
            if (b->line == 0) b->state = BODY_DONE;
            b->line = 0;
        } else if (c != '\r') b->line++;
        break;
    default: b->state = BODY_BAD;
    }
}

/* Returns the octets used; stops at the end of the body. */
static size_t body_feed(struct body *b, const uint8_t *p, size_t n)
{
    size_t at = 0;

    while (at < n && b->state != BODY_DONE && b->state != BODY_BAD)
        if (b->state == BODY_LENGTH || b->state == BODY_DATA) at += body_data(b, n - at);
        else body_octet(b, p[at++]);
    return at;
}

/* ---- One connection, of either program ------------------------------------------------------------------------------------------------ */

struct conn {
    int fd;
    uint8_t inflight;                                       /* completions that are still to come */
    bool broken, sending, receiving, in_body, dropping, ws, close_after, waiting;
    bool ready, listed;                                     /* fixed rate: may take a request; stands in the list of idle ones */
    uint32_t id, next_host, left;                           /* left: answers of this round */
    uint64_t start;
    const struct message *message;
    size_t sent;
    uint8_t *buf;
    size_t buf_n, buf_size;
    struct body body;
    struct iovec iov[IOVS];
    struct msghdr msg;
    uint8_t ws_out[WS_OUT];
};

static struct conn *conns;

static uint64_t tag(const struct conn *c, unsigned op) { return (uint64_t)c->id << 8 | op; }

static void conn_send(struct conn *c)
{
    const struct message *m = c->message;
    struct io_uring_sqe *e;

    if (m->units == 0) e = ring_sqe(&ring, IORING_OP_SEND, c->fd, m->head + c->sent, (unsigned)(m->head_n - c->sent), tag(c, OP_SEND));
    else {
        c->msg = (struct msghdr){.msg_iov = c->iov, .msg_iovlen = message_iov(m, c->sent, c->iov)};
        e = ring_sqe(&ring, IORING_OP_SENDMSG, c->fd, &c->msg, 1, tag(c, OP_SEND));
    }
    e->msg_flags = MSG_NOSIGNAL | (m->units == 0 ? MSG_WAITALL : 0);
    c->sending = true;
    c->inflight++;
}

/* Arms a receive. A long run of body is dropped in the kernel; poll_first when nothing can be there yet. */
static void conn_recv(struct conn *c, bool poll_first)
{
    struct io_uring_sqe *e;
    bool run = c->in_body && c->buf_n == 0 && (c->body.state == BODY_LENGTH || c->body.state == BODY_DATA);

    c->dropping = run && c->body.left >= HEAD_MAX;
    if (c->in_body && !c->dropping && c->buf_size < BODY_BUFFER) c->buf = grow(c->buf, c->buf_size = BODY_BUFFER);
    if (!c->buf) c->buf = grow(NULL, c->buf_size = HEAD_MAX);
    if (c->dropping) {
        e = ring_sqe(&ring, IORING_OP_RECV, c->fd, c->buf, c->body.left < 1u << 20 ? (unsigned)c->body.left : 1u << 20, tag(c, OP_RECV));
        e->msg_flags = MSG_TRUNC;
    } else e = ring_sqe(&ring, IORING_OP_RECV, c->fd, c->buf + c->buf_n, (unsigned)(c->buf_size - c->buf_n), tag(c, OP_RECV));
    if (poll_first) e->ioprio = IORING_RECVSEND_POLL_FIRST;
    c->receiving = true;
    c->inflight++;
}

/* Ends a connection; its record is free when nothing is in flight. */
static void conn_break(struct conn *c)
{
    if (c->broken) return;
    c->broken = true;
    shutdown(c->fd, SHUT_RDWR);
}

static void conn_take(struct conn *c, size_t n)
{
    c->buf_n -= n;
    if (c->buf_n) memmove(c->buf, c->buf + n, c->buf_n);
}

static void conn_forget(struct conn *c)
{
    ring_sqe(&ring, IORING_OP_CLOSE, c->fd, NULL, 0, OP_CLOSE);
    c->fd = -1;
    c->broken = c->sending = c->receiving = c->in_body = c->ws = c->close_after = c->waiting = c->ready = false;
    c->buf_n = 0;
    if (c->buf_size > HEAD_MAX) {
        free(c->buf);
        c->buf = NULL;
        c->buf_size = 0;
    }
}

static int tcp_socket(void)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;

    if (fd < 0) die("socket");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return fd;
}

/* ---- The upstream ----------------------------------------------------------------------------------------------------------------------- */

static const char up_ws[] = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n";
static const char up_ok[] = "HTTP/1.1 200 OK\r\nServer: up\r\nDate: Mon, 30 Nov 2026 12:00:00 GMT\r\nContent-Type: application/octet-stream\r\n";

/* The answer of the last path segment, made at its first use. */
static const struct message *up_answer(const struct head *h)
{
    static struct { size_t n; bool chunked; struct message m; } made[64];
    static size_t made_n;
    const uint8_t *end = memrchr(h->line, ' ', h->line_n), *slash = end ? memrchr(h->line, '/', (size_t)(end - h->line)) : NULL;
    char *behind;
    size_t n = slash ? strtoull((const char *)slash + 1, &behind, 10) : 128, i;
    bool chunked = slash && *behind == 'c';

    if (h->line[0] == 'P') n = 128, chunked = false;
    for (i = 0; i < made_n; i++)
        if (made[i].n == n && made[i].chunked == chunked) return &made[i].m;
    if (made_n == 64) made_n = 0, i = 0;
    made[i].n = n;
    made[i].chunked = chunked;
    made[i].m = message_make(up_ok, true, n, chunked);
    made_n++;
    return &made[i].m;
}

static void up_serve(struct conn *c)
{
    static struct message upgrade;

    while (!c->sending && !c->broken && c->buf_n) {
        if (c->ws) {
            static struct message frame = {.head_n = WS_OUT, .total = WS_OUT};
            if (c->buf_n < WS_IN) return;
            memcpy(c->ws_out, "\x82\x7e\0\x80", 4);         /* binary, 16-bit length, 128 */
            memcpy(c->ws_out + 4, c->buf + 8, 128);         /* the mask is 0 */
            conn_take(c, WS_IN);
            struct io_uring_sqe *e = ring_sqe(&ring, IORING_OP_SEND, c->fd, c->ws_out, WS_OUT, tag(c, OP_SEND));
            e->msg_flags = MSG_NOSIGNAL | MSG_WAITALL;
            c->message = &frame;
            c->sent = 0;
            c->sending = true;
            c->inflight++;
            return;
        }
        if (!c->in_body) {
            struct head h;
            long used = head_parse(c->buf, c->buf_n, &h);
            if (used < 0) conn_break(c);
            if (used <= 0) return;
            body_start(&c->body, &h);
            c->in_body = true;
            c->close_after = h.close && !h.upgrade;
            if (h.upgrade) {
                if (!upgrade.head) upgrade = message_make(up_ws, false, 0, false);
                c->message = &upgrade;
                c->ws = true;
            } else c->message = up_answer(&h);
            conn_take(c, (size_t)used);
        }
        conn_take(c, body_feed(&c->body, c->buf, c->buf_n));
        if (c->body.state == BODY_BAD) conn_break(c);
        if (c->body.state != BODY_DONE) return;
        c->in_body = false;
        c->sent = 0;
        conn_send(c);
    }
}

static void up_done(struct conn *c, unsigned op, int res)
{
    c->inflight--;
    if (op == OP_SEND) {
        c->sending = false;
        if (res <= 0) conn_break(c);
        else if ((c->sent += (size_t)res) < c->message->total) conn_send(c);
        else if (c->close_after) conn_break(c);
    } else {
        c->receiving = false;
        if (res <= 0) conn_break(c);
        else if (c->dropping) body_data(&c->body, (size_t)res);
        else c->buf_n += (size_t)res;
        if (!c->broken && c->dropping && c->body.state == BODY_DONE) {
            c->in_body = false;
            c->sent = 0;
            conn_send(c);
        }
    }
    if (!c->broken) up_serve(c);
    if (!c->broken && !c->receiving && c->buf_n < HEAD_MAX) conn_recv(c, !c->in_body);
    if (c->broken && c->inflight == 0) conn_forget(c);
}

static _Noreturn void up_main(int port)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = tcp_socket(), one = 1;

    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(fd, (struct sockaddr *)&a, sizeof a) || listen(fd, 8192)) die("listen");
    conns = grow(NULL, FD_MAX * sizeof *conns);
    memset(conns, 0, FD_MAX * sizeof *conns);
    ring_sqe(&ring, IORING_OP_ACCEPT, fd, NULL, 0, OP_ACCEPT)->ioprio = IORING_ACCEPT_MULTISHOT;
    for (;;) {
        struct io_uring_cqe *e;
        ring_wait(&ring, 1, NULL);
        while ((e = ring_peek(&ring))) {
            unsigned op = e->user_data & 255, flags = e->flags;
            uint32_t id = (uint32_t)(e->user_data >> 8);
            int res = e->res;
            ring_seen(&ring);
            if (op == OP_ACCEPT) {
                if (res >= 0 && res < FD_MAX) {
                    struct conn *c = &conns[res];
                    c->fd = res;
                    c->id = (uint32_t)res;
                    setsockopt(res, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
                    conn_recv(c, false);
                }
                if (!(flags & IORING_CQE_F_MORE)) ring_sqe(&ring, IORING_OP_ACCEPT, fd, NULL, 0, OP_ACCEPT)->ioprio = IORING_ACCEPT_MULTISHOT;
            } else if (op != OP_CLOSE) up_done(&conns[id], op, res);
        }
    }
}

/* ---- CPU time of processes ------------------------------------------------------------------------------------------------------------- */

static int pids[PIDS];
static int pids_n;

static void pid_add(int pid)
{
    char path[320];
    DIR *d;
    struct dirent *e;

    for (int i = 0; i < pids_n; i++)
        if (pids[i] == pid) return;
    if (pid <= 0 || pids_n == PIDS) return;
    pids[pids_n++] = pid;
    snprintf(path, sizeof path, "/proc/%d/task", pid);
    if (!(d = opendir(path))) return;
    while ((e = readdir(d))) {
        char children[4096] = "";
        int fd;
        if (e->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "/proc/%d/task/%s/children", pid, e->d_name);
        if ((fd = open(path, O_RDONLY)) < 0) continue;
        if (read(fd, children, sizeof children - 1) < 0) children[0] = 0;
        close(fd);
        for (char *p = children, *end; ; p = end) {
            long child = strtol(p, &end, 10);
            if (end == p) break;
            pid_add((int)child);
        }
    }
    closedir(d);
}

/* Nanoseconds on a CPU of all threads, from the scheduler. */
static uint64_t pids_cpu_ns(void)
{
    uint64_t sum = 0;

    for (int i = 0; i < pids_n; i++) {
        char path[320], text[64];
        DIR *d;
        struct dirent *e;
        snprintf(path, sizeof path, "/proc/%d/task", pids[i]);
        if (!(d = opendir(path))) continue;
        while ((e = readdir(d))) {
            int fd;
            if (e->d_name[0] == '.') continue;
            snprintf(path, sizeof path, "/proc/%d/task/%s/schedstat", pids[i], e->d_name);
            if ((fd = open(path, O_RDONLY)) < 0) continue;
            ssize_t n = read(fd, text, sizeof text - 1);
            close(fd);
            text[n > 0 ? n : 0] = 0;
            sum += strtoull(text, NULL, 10);
        }
        closedir(d);
    }
    return sum;
}

/* The price of an empty system call on `cpu`, over 15 ms. */
static double calibrate(int cpu)
{
    cpu_set_t old;
    uint64_t start, calls = 0, end;

    if (cpu < 0) return 0;
    sched_getaffinity(0, sizeof old, &old);
    pin(cpu);
    start = now_ns();
    do {
        for (int i = 0; i < 1000; i++) syscall(__NR_getppid);
        calls += 1000;
        end = now_ns();
    } while (end - start < 15000000);
    sched_setaffinity(0, sizeof old, &old);
    return (double)(end - start) / (double)calls;
}

/* ---- Latencies: 64 steps per power of two ----------------------------------------------------------------------------------------------- */

struct latencies {
    uint64_t n, max;
    uint32_t count[64 * 128];
};

static struct latencies whole, slot;                        /* of the window; of a piece of its time line */

static void latency_add(struct latencies *l, uint64_t ns)
{
    unsigned shift = ns < 128 ? 0 : 57 - (unsigned)__builtin_clzll(ns);

    l->count[shift * 128 + (ns >> shift)]++;
    l->n++;
    if (ns > l->max) l->max = ns;
}

static double latency_us(const struct latencies *l, double part)
{
    uint64_t want = (uint64_t)((double)l->n * part), seen = 0;

    for (unsigned i = 0; i < 64 * 128; i++)
        if ((seen += l->count[i]) > want) {
            unsigned shift = i / 128;
            return (double)((uint64_t)(i % 128) << shift) / 1000;
        }
    return (double)l->max / 1000;
}

/* ---- The load ------------------------------------------------------------------------------------------------------------------------------ */

enum mode { MODE_KEEP, MODE_NEW, MODE_WS, MODE_HOLD };

static struct {
    int port, connections, depth, hosts, cpu, cal_cpu, sources;
    enum mode mode;
    const char *path;
    int64_t upload;
    bool chunked;
    double rate, warmup, seconds, slot_ms;
} opt = {.connections = 64, .depth = 1, .hosts = 1, .cpu = -1, .cal_cpu = -1, .sources = 1, .path = "/128", .upload = -1, .warmup = 0.15, .seconds = 0.5};

static struct message *requests;
static struct message ws_hello, ws_frame;
static bool in_window;
static uint64_t turn_ns;                                    /* the time of this turn of the loop */
static uint64_t done_n, errors_n, reconnects_n, bytes_in, bytes_out, held_n;
static uint32_t *idle;                                      /* fixed rate: connections without a request */
static int idle_n, opened_n;
static uint64_t rate_start;
static uint64_t rate_next;                                  /* number of the next request */
static struct { double p99; uint64_t requests, errors, lost; } *line;   /* the time line */
static size_t line_n;
static uint64_t slot_end, slot_errors, slot_lost;           /* counters at its start */

static void requests_init(void)
{
    char start[1024];

    requests = grow(NULL, (size_t)opt.hosts * sizeof *requests);
    for (int i = 0; i < opt.hosts; i++) {
        char host[64] = "bench.test";
        if (opt.hosts > 1) snprintf(host, sizeof host, "host-%d.bench.test", i);
        snprintf(start, sizeof start, "%s %s HTTP/1.1\r\nHost: %s\r\nUser-Agent: bench/1.0 (closed loop)\r\nAccept: */*\r\nAccept-Language: en\r\n",
                 opt.upload >= 0 ? "POST" : "GET", opt.path, host);
        struct message m = message_make(start, opt.upload >= 0, opt.upload >= 0 ? (size_t)opt.upload : 0, opt.chunked);
        if (opt.depth > 1 && m.units == 0) {                /* pipelined: one send of all */
            m.head = grow(m.head, m.head_n * (size_t)opt.depth);
            for (int k = 1; k < opt.depth; k++) memcpy(m.head + (size_t)k * m.head_n, m.head, m.head_n);
            m.head_n *= (size_t)opt.depth;
            m.total = m.head_n;
        }
        requests[i] = m;
    }
    ws_hello = message_make("GET /ws HTTP/1.1\r\nHost: bench.test\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
                            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n", false, 0, false);
    ws_frame = (struct message){.head = grow(NULL, WS_IN), .head_n = WS_IN, .total = WS_IN};
    memcpy(ws_frame.head, "\x82\xfe\0\x80\0\0\0\0", 8);     /* binary, masked with 0, 128 octets */
    memcpy(ws_frame.head + 8, body_unit, 128);
}

static void load_open(struct conn *c)
{
    static uint32_t source;
    static struct sockaddr_in to;
    int one = 1;

    c->fd = tcp_socket();
    if (opt.sources > 1) {
        struct sockaddr_in from = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(0x7f000101u + source++ % (uint32_t)opt.sources)};
        setsockopt(c->fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &one, sizeof one);
        if (bind(c->fd, (struct sockaddr *)&from, sizeof from)) die("bind of a source address");
    }
    to = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons((uint16_t)opt.port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    ring_sqe(&ring, IORING_OP_CONNECT, c->fd, &to, 0, tag(c, OP_CONNECT))->off = sizeof to;
    c->inflight++;
}

static void load_start(struct conn *c, uint64_t start)
{
    c->start = start;
    c->sent = 0;
    c->left = (uint32_t)(c->ws ? 1 : opt.depth);
    c->waiting = true;
    if (c->ws) c->message = &ws_frame;
    else if (opt.mode == MODE_WS) c->message = &ws_hello;
    else {
        c->message = &requests[c->next_host];
        c->next_host = (c->next_host + 1) % (uint32_t)opt.hosts;
    }
    conn_send(c);
    if (!c->receiving) conn_recv(c, true);
}

/* A connection without a request: a receive sees when the other side closes it. */
static void load_idle(struct conn *c)
{
    if (!c->receiving) conn_recv(c, true);
    if (opt.mode == MODE_HOLD) return;
    c->ready = true;
    if (!c->listed) idle[idle_n++] = c->id;
    c->listed = true;
}

/* One round of a connection is over: its answers are there and its request is sent. */
static void load_next(struct conn *c)
{
    c->waiting = false;
    if (opt.mode == MODE_HOLD) {
        if (++held_n == (uint64_t)opt.connections) {
            printf("{\"held\": %d, \"errors\": %lu}\n", opt.connections, errors_n);
            fflush(stdout);
        }
        if (opened_n < opt.connections) load_open(&conns[opened_n++]);
        if (c->close_after) conn_break(c), reconnects_n++;
        else load_idle(c);
        return;
    }
    if (opt.mode == MODE_NEW || c->close_after) {
        if (opt.mode != MODE_NEW) reconnects_n++;
        if (c->inflight) conn_break(c);
        else {
            conn_forget(c);
            load_open(c);
        }
        return;
    }
    if (opt.rate > 0) load_idle(c);
    else load_start(c, turn_ns);
}

static void load_answered(struct conn *c)
{
    c->left--;
    if (!in_window) return;
    done_n++;
    latency_add(&whole, turn_ns - c->start);
    if (line) latency_add(&slot, turn_ns - c->start);
}

/* Reads what is buffered. False: the answer is not one that was wanted. */
static bool load_read(struct conn *c)
{
    while (c->buf_n && c->left) {
        if (c->ws) {
            if (c->buf_n < WS_OUT) return true;
            if (memcmp(c->buf + 4, body_unit, 128)) return false;
            conn_take(c, WS_OUT);
            load_answered(c);
            continue;
        }
        if (!c->in_body) {
            struct head h;
            long used = head_parse(c->buf, c->buf_n, &h);
            if (used < 0) return false;
            if (used == 0) return true;
            if (h.line_n < 12 || memcmp(h.line + 9, opt.mode == MODE_WS ? "101" : "200", 3)) return false;
            if (h.length < 0 && !h.chunked && opt.mode != MODE_WS) return false;
            body_start(&c->body, &h);
            c->in_body = true;
            c->close_after |= h.close;
            conn_take(c, (size_t)used);
            if (opt.mode == MODE_WS) {
                c->in_body = false;
                c->ws = true;
                c->left--;
                continue;
            }
        }
        if (c->buf_n) conn_take(c, body_feed(&c->body, c->buf, c->buf_n));
        if (c->body.state == BODY_BAD) return false;
        if (c->body.state != BODY_DONE) return true;
        c->in_body = false;
        load_answered(c);
    }
    return c->buf_n == 0 || c->left;
}

static void load_fail(struct conn *c)
{
    if (!c->waiting && !c->broken) reconnects_n++;          /* an idle connection was closed: not an error */
    else if (!c->broken && in_window) errors_n++;
    conn_break(c);
}

static void load_received(struct conn *c, int res)
{
    c->receiving = false;
    if (c->broken) return;
    if (res <= 0) {
        load_fail(c);
        return;
    }
    if (in_window) bytes_in += (uint64_t)res;
    if (c->dropping) {
        body_data(&c->body, (size_t)res);
        if (c->body.state == BODY_DONE) {
            c->in_body = false;
            load_answered(c);
        }
    } else {
        c->buf_n += (size_t)res;
        if (!load_read(c)) {
            load_fail(c);
            return;
        }
    }
    if (c->left) conn_recv(c, false);
    else if (!c->sending) load_next(c);
}

static void load_done(struct conn *c, unsigned op, int res)
{
    c->inflight--;
    if (op == OP_CONNECT) {
        if (res < 0) {
            c->waiting = true;
            load_fail(c);
        } else if (opt.rate > 0 && opt.mode == MODE_KEEP) load_idle(c);
        else load_start(c, turn_ns);
    } else if (op == OP_SEND) {
        c->sending = false;
        if (res <= 0) load_fail(c);
        else {
            if (in_window) bytes_out += (uint64_t)res;
            if ((c->sent += (size_t)res) < c->message->total) {
                if (!c->broken) conn_send(c);
            } else if (!c->left && !c->broken) load_next(c);
        }
    } else load_received(c, res);
    if (c->broken && c->inflight == 0) {
        conn_forget(c);
        load_open(c);
    }
}

/* Starts what is due; returns the nanoseconds until the next one. */
static int64_t rate_run(void)
{
    uint64_t now = now_ns(), due;

    for (;;) {
        due = rate_start + (uint64_t)((double)rate_next * 1e9 / opt.rate);
        if (due > now) return (int64_t)(due - now);
        if (idle_n == 0) return 1000000;                    /* all are busy: a completion wakes us */
        struct conn *c = &conns[idle[--idle_n]];
        c->listed = false;
        if (!c->ready || c->broken) continue;               /* closed since; it is listed again when it is open again */
        c->ready = false;
        rate_next++;
        load_start(c, due);
    }
}

/* What has come is read before new requests start: one must not go to a connection whose end is already here. */
static void load_turn(int64_t until_ns)
{
    static uint64_t due;                                    /* fixed rate: when to wake for the next request */
    struct io_uring_cqe *e;
    int64_t wait = until_ns;

    if (opt.rate > 0) {
        int64_t left = (int64_t)(due - now_ns());
        if (left < wait) wait = left;
    }
    ring_wait(&ring, 1, &wait);
    turn_ns = now_ns();
    while ((e = ring_peek(&ring))) {
        unsigned op = e->user_data & 255;
        uint32_t id = (uint32_t)(e->user_data >> 8);
        int res = e->res;
        ring_seen(&ring);
        if (op == OP_STDIN) {
            printf("{\"lost\": %lu}\n", reconnects_n);
            exit(0);
        }
        if (op != OP_CLOSE) load_done(&conns[id], op, res);
    }
    if (opt.rate > 0) due = now_ns() + (uint64_t)rate_run();
}

static void line_start(void)
{
    size_t most = (size_t)(opt.seconds * 1000 / opt.slot_ms) + 8;

    line = grow(NULL, most * sizeof *line);
    slot_end = now_ns() + (uint64_t)(opt.slot_ms * 1e6);
}

/* Closes every piece of the time line that is over. */
static void line_run(void)
{
    while (line && turn_ns >= slot_end && line_n < (size_t)(opt.seconds * 1000 / opt.slot_ms)) {
        line[line_n].p99 = latency_us(&slot, 0.99);
        line[line_n].requests = slot.n;
        line[line_n].errors = errors_n - slot_errors;
        line[line_n++].lost = reconnects_n - slot_lost;
        slot_errors = errors_n;
        slot_lost = reconnects_n;
        memset(&slot, 0, sizeof slot);
        slot_end += (uint64_t)(opt.slot_ms * 1e6);
    }
}

static uint64_t load_run(double seconds)
{
    uint64_t start = now_ns(), end = start + (uint64_t)(seconds * 1e9);

    for (turn_ns = start; turn_ns < end; line_run()) {
        uint64_t stop = line && slot_end > turn_ns && slot_end < end ? slot_end : end;
        load_turn((int64_t)(stop - turn_ns));
    }
    return turn_ns - start;
}

static int load_main(void)
{
    uint64_t cpu, own, took;
    double before, after;
    static char input[16];

    requests_init();
    before = calibrate(opt.cal_cpu);
    conns = grow(NULL, (size_t)opt.connections * sizeof *conns);
    idle = grow(NULL, (size_t)opt.connections * 2 * sizeof *idle);
    memset(conns, 0, (size_t)opt.connections * sizeof *conns);
    turn_ns = rate_start = now_ns();
    for (int i = 0; i < opt.connections; i++) {
        conns[i].id = (uint32_t)i;
        conns[i].next_host = (uint32_t)(i * 7919) % (uint32_t)opt.hosts;
    }
    while (opened_n < opt.connections && !(opt.mode == MODE_HOLD && opened_n == HOLD_WAVE)) {
        load_open(&conns[opened_n++]);
        if (opened_n % 128 == 0) load_turn(0);              /* the backlog of a listener is short */
    }
    if (opt.mode == MODE_HOLD) {
        ring_sqe(&ring, IORING_OP_READ, 0, input, sizeof input, OP_STDIN);
        for (;;) load_run(3600);
    }
    load_run(opt.warmup);
    int first = pids_n;
    for (int i = 0; i < first; i++) pid_add(pids[i]);
    struct timespec t0, t1;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t0);
    cpu = pids_cpu_ns();
    in_window = true;
    reconnects_n = 0;
    if (opt.slot_ms > 0) line_start();
    took = load_run(opt.seconds);
    cpu = pids_cpu_ns() - cpu;
    in_window = false;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t1);
    own = (uint64_t)(t1.tv_sec - t0.tv_sec) * 1000000000u + (uint64_t)t1.tv_nsec - (uint64_t)t0.tv_nsec;
    after = calibrate(opt.cal_cpu);
    printf("{\"requests\": %lu, \"seconds\": %.6f, \"bytes_in\": %lu, \"bytes_out\": %lu, \"cpu_ns\": %lu, \"share\": %.4f, \"load_share\": %.4f, "
           "\"p50_us\": %.1f, \"p99_us\": %.1f, \"p999_us\": %.1f, \"max_us\": %.1f, \"errors\": %lu, \"reconnects\": %lu, \"cal_ns\": [%.1f, %.1f]",
           done_n, (double)took / 1e9, bytes_in, bytes_out, cpu, (double)cpu / (double)took, (double)own / (double)took, latency_us(&whole, 0.5),
           latency_us(&whole, 0.99), latency_us(&whole, 0.999), (double)whole.max / 1000, errors_n, reconnects_n, before, after);
    for (size_t i = 0; i < line_n; i++)
        printf("%s[%lu, %.1f, %lu, %lu]", i ? ", " : ", \"line\": [", line[i].requests, line[i].p99, line[i].errors, line[i].lost);
    printf(line_n ? "]}\n" : "}\n");
    return 0;
}

/* ---- Main ------------------------------------------------------------------------------------------------------------------------------------ */

static const struct option options[] = {
    {"cal-cpu", 1, 0, 'C'}, {"chunked", 0, 0, 'k'}, {"connections", 1, 0, 'c'}, {"cpu", 1, 0, 'u'}, {"depth", 1, 0, 'd'}, {"hosts", 1, 0, 'h'},
    {"mode", 1, 0, 'm'}, {"path", 1, 0, 'a'}, {"pids", 1, 0, 'i'}, {"port", 1, 0, 'p'}, {"rate", 1, 0, 'r'}, {"seconds", 1, 0, 's'},
    {"slot", 1, 0, 'l'}, {"sources", 1, 0, 'S'}, {"upload", 1, 0, 'U'}, {"warmup", 1, 0, 'w'}, {0},
};

static void mode_set(const char *name)
{
    static const char *const names[] = {"keep", "new", "ws", "hold"};

    for (int i = 0; i < 4; i++)
        if (!strcmp(name, names[i])) {
            opt.mode = (enum mode)i;
            return;
        }
    fprintf(stderr, "--mode %s: expected keep, new, ws or hold\n", name);
    exit(2);
}

static void pids_set(char *list)
{
    for (char *p = strtok(list, ","); p; p = strtok(NULL, ",")) pid_add(atoi(p));
}

int main(int argc, char **argv)
{
    int o;
    bool up = argc > 1 && !strcmp(argv[1], "up");

    if (argc < 2 || (!up && strcmp(argv[1], "load"))) {
        fprintf(stderr, "usage: load up|load --port N ... (see the head of bench/load.c)\n");
        return 2;
    }
    optind = 2;
    while ((o = getopt_long(argc, argv, "", options, NULL)) != -1) switch (o) {
        case 'C': opt.cal_cpu = atoi(optarg); break;
        case 'k': opt.chunked = true; break;
        case 'c': opt.connections = atoi(optarg); break;
        case 'u': opt.cpu = atoi(optarg); break;
        case 'd': opt.depth = atoi(optarg); break;
        case 'h': opt.hosts = atoi(optarg); break;
        case 'm': mode_set(optarg); break;
        case 'a': opt.path = optarg; break;
        case 'i': pids_set(optarg); break;
        case 'p': opt.port = atoi(optarg); break;
        case 'r': opt.rate = atof(optarg); break;
        case 'l': opt.slot_ms = atof(optarg); break;
        case 's': opt.seconds = atof(optarg); break;
        case 'S': opt.sources = atoi(optarg); break;
        case 'U': opt.upload = atoll(optarg); break;
        case 'w': opt.warmup = atof(optarg); break;
        default: return 2;
    }
    signal(SIGPIPE, SIG_IGN);
    prctl(PR_SET_TIMERSLACK, 1);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    pin(opt.cpu);
    units_init();
    ring_init(&ring, 4096);
    if (up) up_main(opt.port);
    return load_main();
}
