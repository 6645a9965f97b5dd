/* Plays streams of octets against a running proxy and says what came of them: hundreds of clients and the upstream, in one process.
 *
 *   driver [-a] [-c CONNECTIONS] [-t SECONDS]
 *
 * The first line on stdout is the port of the upstream; the first line on stdin is the port of the proxy. Then stdin holds streams (see
 * read_stream: the octets, how they are cut, and the transcripts that are right), and stdout gets the transcript of every stream that has
 * none of them (-a: of every stream): seed (8 octets), length (4), transcript. The last line on stderr has the counts.
 *
 * Every stream comes from an address of its own (127.x.y.z), which the proxy tells in X-Real-IP: so the upstream knows whose request it reads.
 * A transcript has a line for every complete request that the upstream read, in order, and then the answers that the client read:
 *
 *   >POST /x a.test 5:hello
 *   |200#0 404 400! .
 *
 * #0 is the request that the answer is of, `!` is Connection: close, and the end is `.` (closed), R (reset) or T (given up, see look_at_clock).
 * What must never be: `~` a request that was begun and not ended where that is not expected, `X` octets that are no request, `?` no answer. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { PIECES_MAX = 255, ALTS_MAX = 16, SERIALS = 1 << 21, AFTER = 4096, QUEUE = 1024, PASSED_BY = 20000 };

struct bytes {
    char *p;
    size_t n, cap;
};

static void put(struct bytes *b, const void *p, size_t n)
{
    if (b->cap - b->n < n) {
        b->cap = (b->n + n) * 2 + 64;
        b->p = realloc(b->p, b->cap);
        if (!b->p) abort();
    }
    if (n) memcpy(b->p + b->n, p, n);
    b->n += n;
}

static void put_text(struct bytes *b, const char *s) { put(b, s, strlen(s)); }

static void drop(struct bytes *b, size_t n)
{
    if (n) memmove(b->p, b->p + n, b->n - n);
    b->n -= n;
}

struct alt {
    uint32_t at, n;
    uint16_t await;                                      /* answers that come before the client ends its side */
    bool partial;                                        /* a request may be begun and not ended */
};

struct stream {
    uint64_t seed;
    uint32_t serial;
    char *data;                                          /* all octets: pieces, then transcripts */
    uint32_t piece[PIECES_MAX], pieces, next, at, sent;
    struct alt alt[ALTS_MAX];
    uint32_t alts, await;
    bool fin_at_once, fin, closing, over, partial, begun, queued;
    int fd;
    uint64_t since;                                      /* streams that had been over when the last thing happened */
    struct bytes in;                                     /* from the proxy, not read yet */
    struct bytes seen, answers;                          /* the transcript */
    uint32_t requests, answered;
    struct stream *newer;                                /* of those that are over */
};

struct upstream {
    int fd;
    struct bytes in;
    struct stream *of;                                   /* whose request is begun */
};

static struct {
    int ep, listener;
    struct sockaddr_in proxy;
    struct stream *by_serial[SERIALS], *first_over, **last_over;
    uint32_t serial, active, overs;
    uint32_t *seq;                                       /* of every request: its number within its stream */
    uint64_t seqs, streams, ended, wrong, orphans, complete, refused;
    uint64_t last_ns;                                    /* of the last thing that happened to any stream */
    bool all;
    double seconds;
    struct stream **ready;
    uint32_t readies, ready_cap;
} d = {.last_over = &d.first_over, .seconds = 30};

static uint64_t now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void moved(struct stream *s)
{
    s->since = d.ended;
    d.last_ns = now_ns();
}

static void die(const char *what)
{
    perror(what);
    exit(1);
}

static void watch(int op, int fd, uint32_t events, void *who)
{
    struct epoll_event e = {.events = events, .data.ptr = who};

    if (epoll_ctl(d.ep, op, fd, &e) < 0) die("epoll_ctl");
}

/* ---- the strict reader of what reaches the upstream ---- */

/* Index behind the CRLF of the line at i, 0 when there is none yet, -1 for a bare CR or LF. */
static long line_end(const struct bytes *b, size_t i)
{
    for (; i < b->n; i++) {
        if (b->p[i] == '\n') return -1;
        if (b->p[i] != '\r') continue;
        if (i + 1 == b->n) return 0;
        return b->p[i + 1] == '\n' ? (long)i + 2 : -1;
    }
    return 0;
}

static bool is_token(const char *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!isalnum((unsigned char)p[i]) && (p[i] == 0 || !strchr("!#$%&'*+-.^_`|~", p[i]))) return false;
    return n > 0;
}

struct head {
    const char *method, *target, *host, *ip;
    size_t method_n, target_n, host_n, ip_n;
    uint32_t hosts, lengths, codings, ips;
    uint64_t length;
    bool record;
};

/* A field line of n octets without its CRLF. */
static bool read_field(struct head *h, const char *p, size_t n)
{
    const char *colon = memchr(p, ':', n), *v, *end = p + n;
    size_t name_n = colon ? (size_t)(colon - p) : 0;

    if (!colon || !is_token(p, name_n)) return false;
    for (v = colon + 1; v < end; v++)
        if (((unsigned char)*v < ' ' && *v != '\t') || *v == 0x7f) return false;
    for (v = colon + 1; v < end && (*v == ' ' || *v == '\t'); v++) {}
    while (end > v && (end[-1] == ' ' || end[-1] == '\t')) end--;
    if (!h) return true;
#define IS(name) (name_n == sizeof(name) - 1 && strncasecmp(p, name, name_n) == 0)
    if (IS("host")) h->hosts++, h->host = v, h->host_n = (size_t)(end - v);
    if (IS("x-real-ip")) h->ips++, h->ip = v, h->ip_n = (size_t)(end - v);
    if (IS("x-record")) h->record = true;
    if (IS("transfer-encoding")) {
        h->codings++;
        if (end - v != 7 || memcmp(v, "chunked", 7) != 0) return false;
    }
    if (IS("content-length")) {
        h->lengths++;
        if (end == v || end - v > 12) return false;
        for (h->length = 0; v < end; v++) {
            if (!isdigit((unsigned char)*v)) return false;
            h->length = h->length * 10 + (uint64_t)(*v - '0');
        }
    }
#undef IS
    return true;
}

/* 1 and *used: a whole head; 0: more is needed; -1: no request. */
static int read_head(const struct bytes *b, struct head *h, size_t *used)
{
    long end = line_end(b, 0);
    const char *sp1, *sp2;
    size_t at;

    memset(h, 0, sizeof *h);
    if (end <= 0) return (int)end;
    sp1 = memchr(b->p, ' ', (size_t)end - 2);
    sp2 = sp1 ? memchr(sp1 + 1, ' ', (size_t)(b->p + end - 2 - sp1 - 1)) : NULL;
    if (!sp2 || b->p + end - 2 - sp2 != 9 || memcmp(sp2, " HTTP/1.1", 9) != 0) return -1;
    h->method = b->p;
    h->method_n = (size_t)(sp1 - b->p);
    h->target = sp1 + 1;
    h->target_n = (size_t)(sp2 - sp1 - 1);
    if (!is_token(h->method, h->method_n) || !h->target_n || (*h->target != '/' && *h->target != '*')) return -1;
    for (size_t i = 0; i < h->target_n; i++)
        if (h->target[i] <= ' ' || h->target[i] == 0x7f || h->target[i] == '#') return -1;
    for (at = (size_t)end;; at = (size_t)end) {
        end = line_end(b, at);
        if (end <= 0) return (int)end;
        if ((size_t)end == at + 2) break;
        if (!read_field(h, b->p + at, (size_t)end - 2 - at)) return -1;
    }
    if (h->hosts != 1 || h->ips > 1 || h->lengths + h->codings > 1) return -1;
    *used = (size_t)end;
    return 1;
}

/* 1 and the body, *used; 0: more is needed; -1: no body of the chunked coding. */
static int read_chunked(const struct bytes *b, size_t at, struct bytes *body, size_t *used)
{
    for (;;) {
        long end = line_end(b, at);
        uint64_t size = 0;

        if (end <= 0) return (int)end;
        if ((size_t)end == at + 2 || (size_t)end > at + 12) return -1;
        for (; at < (size_t)end - 2; at++) {
            if (!isxdigit((unsigned char)b->p[at])) return -1;
            size = size * 16 + (uint64_t)(isdigit((unsigned char)b->p[at]) ? b->p[at] - '0' : (b->p[at] | 32) - 'a' + 10);
        }
        at = (size_t)end;
        if (!size) break;
        if (b->n - at < size + 2) return 0;
        if (memcmp(b->p + at + size, "\r\n", 2) != 0) return -1;
        put(body, b->p + at, size);
        at += size + 2;
    }
    for (;;) {
        long end = line_end(b, at);

        if (end <= 0) return (int)end;
        *used = (size_t)end;
        if ((size_t)end == at + 2) return 1;
        if (!read_field(NULL, b->p + at, (size_t)end - 2 - at)) return -1;
        at = (size_t)end;
    }
}

static struct stream *stream_of(const struct head *h)
{
    unsigned a, b, c;
    char text[20];

    if (h->ip_n >= sizeof text || h->ips != 1) return NULL;
    memcpy(text, h->ip, h->ip_n);
    text[h->ip_n] = 0;
    if (sscanf(text, "127.%u.%u.%u", &a, &b, &c) != 3 || a < 1 || b > 255 || c > 255) return NULL;
    a = ((a - 1) << 16) + (b << 8) + c;
    return a < SERIALS ? d.by_serial[a] : NULL;
}

static void upstream_close(struct upstream *u, bool wrong)
{
    if (wrong && u->of) put_text(&u->of->seen, "X"), put(&u->of->seen, u->in.p, u->in.n), put_text(&u->of->seen, "\n");
    else if (wrong) {
        d.orphans++;
        fprintf(stderr, "driver: no request, of nobody: %.*s\n", (int)u->in.n, u->in.p);
    } else if (u->of) u->of->partial = true;
    close(u->fd);
    free(u->in.p);
    u->in = (struct bytes){0};
    u->fd = -1;
}

static void take_request(struct upstream *u, const struct head *h, const char *body, size_t n)
{
    static uint64_t cap;
    struct stream *s = u->of;
    char text[200];
    bool bare = h->record || (h->method_n == 4 && memcmp(h->method, "HEAD", 4) == 0);
    int len;

    d.complete++;
    if (d.seqs == cap) {
        cap = cap * 2 + 1024;
        d.seq = realloc(d.seq, cap * sizeof *d.seq);
        if (!d.seq) abort();
    }
    if (s) {
        d.seq[d.seqs] = s->requests++;
        put_text(&s->seen, ">");
        put(&s->seen, h->method, h->method_n);
        put_text(&s->seen, " ");
        put(&s->seen, h->target, h->target_n);
        put_text(&s->seen, " ");
        put(&s->seen, h->host, h->host_n);
        snprintf(text, sizeof text, " %zu:", n);
        put_text(&s->seen, text);
        put(&s->seen, body, n);
        put_text(&s->seen, "\n");
        moved(s);
    } else {
        d.seq[d.seqs] = 0;
        d.orphans++;
        fprintf(stderr, "driver: a request of nobody: %.*s\n", (int)u->in.n, u->in.p);
    }
    len = snprintf(text, sizeof text, "HTTP/1.1 200 OK\r\nX-Seq: %llu\r\nContent-Length: %d\r\n\r\n%s", (unsigned long long)d.seqs++, h->record ? 0 : 2, bare ? "" : "ok");
    if (send(u->fd, text, (size_t)len, MSG_NOSIGNAL) != len) d.orphans += errno != EPIPE && errno != ECONNRESET;
}

static void upstream_readable(struct upstream *u)
{
    char buf[65536];
    ssize_t n = recv(u->fd, buf, sizeof buf, 0);

    if (n < 0 && errno == EAGAIN) return;
    if (n <= 0) return upstream_close(u, false);
    put(&u->in, buf, (size_t)n);
    while (u->in.n) {
        struct bytes body = {0};
        struct head h;
        size_t used = 0;
        int rc = read_head(&u->in, &h, &used);

        if (rc > 0) {
            u->of = stream_of(&h);
            if (u->of) u->of->begun = true;
        }
        if (rc > 0 && h.codings) rc = read_chunked(&u->in, used, &body, &used);
        else if (rc > 0 && u->in.n - used < h.length) rc = 0;
        else if (rc > 0) put(&body, u->in.p + used, h.length), used += h.length;
        if (rc > 0) take_request(u, &h, body.p, body.n);
        free(body.p);
        if (rc < 0) return upstream_close(u, true);
        if (!rc) return;
        u->of = NULL;
        drop(&u->in, used);
    }
}

static void accept_upstreams(void)
{
    int fd, one = 1;

    while ((fd = accept4(d.listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0) {
        struct upstream *u = calloc(1, sizeof *u);

        if (!u) abort();
        u->fd = fd;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        watch(EPOLL_CTL_ADD, fd, EPOLLIN, (char *)u + 1);           /* odd: an upstream */
    }
}

/* ---- clients ---- */

static bool need(void *p, size_t n)
{
    size_t k = fread(p, 1, n, stdin);

    if (k && k < n) die("a stream that is cut off");
    return k == n;
}

/* seed u64, flags u8 (1: ends its side at once), pieces u8, transcripts u16, length of each piece u32, of each transcript: length u32,
 * await u16, partial u16; then the octets and the transcripts. */
static struct stream *stream_new(void)
{
    struct { uint64_t seed; uint8_t flags, pieces; uint16_t alts; } __attribute__((packed)) head;
    struct stream *s;
    size_t total = 0;

    if (!need(&head, sizeof head)) return NULL;
    s = calloc(1, sizeof *s);
    if (!s || head.alts > ALTS_MAX) abort();
    s->seed = head.seed;
    s->fin_at_once = head.flags & 1;
    s->pieces = head.pieces;
    s->alts = head.alts;
    if (head.pieces && !need(s->piece, head.pieces * sizeof *s->piece)) abort();
    for (uint32_t i = 0; i < s->pieces; i++) total += s->piece[i];
    for (uint32_t i = 0; i < s->alts; i++) {
        struct { uint32_t n; uint16_t await, partial; } a;

        if (!need(&a, sizeof a)) abort();
        s->alt[i] = (struct alt){.at = (uint32_t)total, .n = a.n, .await = a.await, .partial = a.partial};
        if (a.await > s->await) s->await = a.await;
        total += a.n;
    }
    s->data = malloc(total + 1);
    if (!s->data || (total && !need(s->data, total))) abort();
    return s;
}

/* A thread of its own reads stdin, so that a pause of who writes there stops no stream that runs. */
static struct {
    pthread_mutex_t lock;
    pthread_cond_t told;
    struct stream *v[QUEUE];
    uint32_t n, at;
    bool end;
} q = {.lock = PTHREAD_MUTEX_INITIALIZER, .told = PTHREAD_COND_INITIALIZER};

static void *read_streams(void *unused)
{
    struct stream *s;

    (void)unused;
    do {
        s = stream_new();
        pthread_mutex_lock(&q.lock);
        while (s && q.n == QUEUE) pthread_cond_wait(&q.told, &q.lock);
        if (s) q.v[(q.at + q.n++) % QUEUE] = s;
        else q.end = true;
        pthread_mutex_unlock(&q.lock);
    } while (s);
    return NULL;
}

/* The next stream, or NULL when none is there yet. *more is false when none will come. */
static struct stream *stream_take(bool *more)
{
    struct stream *s = NULL;

    pthread_mutex_lock(&q.lock);
    if (q.n) {
        s = q.v[q.at++ % QUEUE];
        q.n--;
        pthread_cond_signal(&q.told);
    }
    *more = q.n || !q.end;
    pthread_mutex_unlock(&q.lock);
    return s;
}

static void stream_ready(struct stream *s)
{
    if (s->queued) return;
    if (d.readies == d.ready_cap) {
        d.ready_cap = d.ready_cap * 2 + 256;
        d.ready = realloc(d.ready, d.ready_cap * sizeof *d.ready);
        if (!d.ready) abort();
    }
    s->queued = true;
    d.ready[d.readies++] = s;
}

static void stream_open(struct stream *s)
{
    struct sockaddr_in from = {.sin_family = AF_INET};
    int one = 1;

    do s->serial = d.serial++ % SERIALS;
    while (d.by_serial[s->serial]);
    d.by_serial[s->serial] = s;
    d.active++;
    d.streams++;
    from.sin_addr.s_addr = htonl(0x7f010000u + s->serial);
    s->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (s->fd < 0) die("socket");
    setsockopt(s->fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &one, sizeof one);
    setsockopt(s->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (bind(s->fd, (struct sockaddr *)&from, sizeof from) < 0) die("bind");
    if (connect(s->fd, (struct sockaddr *)&d.proxy, sizeof d.proxy) < 0) die("connect");
    fcntl(s->fd, F_SETFL, O_NONBLOCK);
    watch(EPOLL_CTL_ADD, s->fd, EPOLLIN, s);
    moved(s);
    stream_ready(s);
}

static void stream_end(struct stream *s, const char *how)
{
    struct linger now = {.l_onoff = 1};

    if (s->over) return;
    if (s->in.n) put_text(&s->answers, "?"), put(&s->answers, s->in.p, s->in.n);
    put_text(&s->answers, how);
    setsockopt(s->fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);      /* both sides have ended: no TIME_WAIT here */
    close(s->fd);
    s->over = true;
    d.active--;
    d.ended++;
    d.overs++;
    *d.last_over = s;
    d.last_over = &s->newer;
}

static void stream_fin(struct stream *s)
{
    if (s->fin || s->over || s->next < s->pieces) return;
    if (!s->fin_at_once && (s->closing || s->answered < s->await)) return;
    s->fin = true;
    shutdown(s->fd, SHUT_WR);
}

/* Sends one piece. */
static void stream_send(struct stream *s)
{
    s->queued = false;
    if (s->over) return;
    if (s->next < s->pieces) {
        uint32_t left = s->piece[s->next] - s->sent;
        ssize_t n = left ? send(s->fd, s->data + s->at, left, MSG_NOSIGNAL) : 0;

        if (n < 0 && errno != EAGAIN) {
            s->next = s->pieces;                                     /* the proxy has closed: what it said can still be read */
            s->fin = true;
            return;
        }
        if (n < 0) n = 0;
        s->at += (uint32_t)n;
        s->sent += (uint32_t)n;
        if (s->sent == s->piece[s->next]) s->next++, s->sent = 0;
        if (s->next < s->pieces) stream_ready(s);
        moved(s);
    }
    stream_fin(s);
}

static char *find_field(char *head, size_t n, const char *name)
{
    size_t k = strlen(name);

    for (char *p = head; (p = memchr(p, '\n', n - (size_t)(p - head))) != NULL; p++)
        if (n - (size_t)(p - head) > k + 1 && strncasecmp(p + 1, name, k) == 0 && p[1 + k] == ':') return p + 2 + k;
    return NULL;
}

/* The octets of a chunked body, 0 when it is not whole. */
static size_t answer_chunks(const char *p, size_t n)
{
    for (size_t at = 0;;) {
        const char *end = memmem(p + at, n - at, "\r\n", 2);
        size_t size = end ? strtoul(p + at, NULL, 16) : 0;

        if (!end || n - (size_t)(end - p) < size + 4) return 0;
        at = (size_t)(end - p) + size + 4;
        if (!size) return at;
    }
}

/* Takes the answers that are whole. A body that is announced and does not come is that of a HEAD request. */
static void stream_answers(struct stream *s, bool end)
{
    while (s->in.n) {
        char *stop = memmem(s->in.p, s->in.n, "\r\n\r\n", 4), *f, text[64];
        size_t head_n = stop ? (size_t)(stop - s->in.p) + 4 : 0, body = 0, left;
        bool close_after;
        int status;

        if (!stop || head_n < 16 || memcmp(s->in.p, "HTTP/1.1 ", 9) != 0) return;
        status = atoi(s->in.p + 9);
        if (status < 200) {
            drop(&s->in, head_n);
            continue;
        }
        if ((f = find_field(s->in.p, head_n, "content-length"))) body = (size_t)atol(f);
        left = s->in.n - head_n;
        f = find_field(s->in.p, head_n, "transfer-encoding");
        if (f && !(body = answer_chunks(s->in.p + head_n, left))) return;
        if (body && left >= 7 && memcmp(s->in.p + head_n, "HTTP/1.", 7) == 0) body = 0;
        else if (body && !left && end) body = 0;
        else if (left < body && (left || !(s->answered + 1 >= s->await))) return;
        else if (left < body) body = 0;
        f = find_field(s->in.p, head_n, "connection");
        close_after = f && strncasecmp(f, " close", 6) == 0;
        f = find_field(s->in.p, head_n, "x-seq");
        if (f && (uint64_t)atoll(f) < d.seqs) snprintf(text, sizeof text, "%d#%u%s ", status, d.seq[atoll(f)], close_after ? "!" : "");
        else snprintf(text, sizeof text, "%d%s ", status, close_after ? "!" : "");
        put_text(&s->answers, text);
        s->answered++;
        d.refused += status >= 400;
        s->closing = s->closing || close_after;
        drop(&s->in, head_n + body);
    }
}

static void stream_readable(struct stream *s)
{
    char buf[65536];
    ssize_t n = recv(s->fd, buf, sizeof buf, 0);

    if (s->over || (n < 0 && errno == EAGAIN)) return;
    moved(s);
    if (n > 0) put(&s->in, buf, (size_t)n);
    stream_answers(s, n <= 0);
    if (n <= 0) stream_end(s, n < 0 ? "R" : ".");
    else stream_fin(s);
}

/* Compares and forgets the stream that has been over for the longest time. */
static void stream_free(void)
{
    struct stream *s = d.first_over;
    bool right = false;

    d.first_over = s->newer;
    if (!d.first_over) d.last_over = &d.first_over;
    d.overs--;
    d.by_serial[s->serial] = NULL;
    put_text(&s->seen, "|");
    put(&s->seen, s->answers.p, s->answers.n);
    for (uint32_t i = 0; i < s->alts && !right; i++)
        right = (s->alt[i].partial || !s->partial) && s->alt[i].n == s->seen.n && memcmp(s->data + s->alt[i].at, s->seen.p, s->seen.n) == 0;
    if (s->partial) put_text(&s->seen, "~");
    d.wrong += !right;
    if (!right || d.all) {
        uint32_t n = (uint32_t)s->seen.n;

        fwrite(&s->seed, 1, sizeof s->seed, stdout);
        fwrite(&n, 1, sizeof n, stdout);
        fwrite(s->seen.p, 1, n, stdout);
        fflush(stdout);
    }
    free(s->data);
    free(s->in.p);
    free(s->seen.p);
    free(s->answers.p);
    free(s);
}

/* Gives up streams in which nothing happens while thousands of others begin and end, or while nothing happens at all for -t seconds. A machine
 * that is busy with other work is no reason. */
static void look_at_clock(void)
{
    bool silence = now_ns() - d.last_ns > (uint64_t)(d.seconds * 1e9);

    for (uint32_t i = 0; i < SERIALS && d.active; i++) {
        struct stream *s = d.by_serial[i];

        if (s && !s->over && (silence || d.ended - s->since > PASSED_BY)) stream_end(s, "T");
    }
}

static void turn(int timeout_ms)
{
    struct epoll_event e[512];
    uint32_t readies = d.readies;
    int n;

    for (uint32_t i = 0; i < readies; i++) stream_send(d.ready[i]);
    memmove(d.ready, d.ready + readies, (d.readies - readies) * sizeof *d.ready);
    d.readies -= readies;
    n = epoll_wait(d.ep, e, 512, d.readies ? 0 : timeout_ms);
    for (int pass = 0; pass < 2; pass++)                             /* upstreams first: an answer is never read before its request */
        for (int i = 0; i < n; i++) {
            uintptr_t who = (uintptr_t)e[i].data.ptr;

            if (!pass && !who) accept_upstreams();
            else if (!pass && who & 1) {
                struct upstream *u = (struct upstream *)(who - 1);

                upstream_readable(u);
                if (u->fd < 0) free(u);
            } else if (pass && who && !(who & 1)) stream_readable((struct stream *)who);
        }
}

int main(int argc, char **argv)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof at;
    uint32_t connections = 256;
    uint64_t start, looked;
    unsigned port = 0;
    bool more = true;
    pthread_t reader;
    char line[32];
    int opt;

    while ((opt = getopt(argc, argv, "ac:t:")) != -1) {
        if (opt == 'a') d.all = true;
        else if (opt == 'c') connections = (uint32_t)atoi(optarg);
        else if (opt == 't') d.seconds = atof(optarg);
        else return 2;
    }
    d.ep = epoll_create1(EPOLL_CLOEXEC);
    d.listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (bind(d.listener, (struct sockaddr *)&at, sizeof at) < 0 || listen(d.listener, 4096) < 0 || getsockname(d.listener, (struct sockaddr *)&at, &len) < 0) die("listen");
    watch(EPOLL_CTL_ADD, d.listener, EPOLLIN, NULL);
    printf("%u\n", ntohs(at.sin_port));
    fflush(stdout);
    if (!fgets(line, sizeof line, stdin) || sscanf(line, "%u", &port) != 1) return 2;
    d.proxy = at;
    d.proxy.sin_port = htons((uint16_t)port);
    if (pthread_create(&reader, NULL, read_streams, NULL)) return 1;
    start = looked = d.last_ns = now_ns();
    while (more || d.active) {
        while (more && d.active < connections) {
            struct stream *s = stream_take(&more);

            if (!s) break;
            stream_open(s);
        }
        turn(more && d.active < connections ? 2 : 100);
        while (d.overs > AFTER) stream_free();
        if (now_ns() - looked < 1000000000u) continue;
        looked = now_ns();
        look_at_clock();
    }
    for (looked = now_ns(); now_ns() - looked < 300000000u;) turn(20); /* what still comes belongs to somebody */
    while (d.first_over) stream_free();
    fprintf(stderr, "{\"streams\": %llu, \"wrong\": %llu, \"orphans\": %llu, \"forwarded\": %llu, \"refused\": %llu, \"seconds\": %.1f}\n", (unsigned long long)d.streams,
            (unsigned long long)d.wrong, (unsigned long long)d.orphans, (unsigned long long)d.complete, (unsigned long long)d.refused, (double)(now_ns() - start) / 1e9);
    return 0;
}
