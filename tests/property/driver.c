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
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "transcript.h"

enum { SERIALS = 1 << 21, AFTER = 4096, QUEUE = 1024, PASSED_BY = 20000 };

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
    uint64_t streams, ended, wrong, orphans;
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

static void upstream_answer(struct upstream *u, const struct head *h, const struct bytes *body)
{
    char answer[200];
    size_t n = take_request(u->of, h, body->p, body->n, answer);

    if (u->of) moved(u->of);
    else d.orphans++, fprintf(stderr, "driver: a request of nobody: %.*s\n", (int)u->in.n, u->in.p);
    if (send(u->fd, answer, n, MSG_NOSIGNAL) != (ssize_t)n) d.orphans += errno != EPIPE && errno != ECONNRESET;
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
        if (rc > 0) upstream_answer(u, &h, &body);
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
    setsockopt(s->fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);      /* both sides have ended: no TIME_WAIT here */
    close(s->fd);
    stream_ended(s, how);
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

static void stream_readable(struct stream *s)
{
    char buf[65536];
    ssize_t n = recv(s->fd, buf, sizeof buf, 0);

    if (s->over || (n < 0 && errno == EAGAIN)) return;
    moved(s);
    if (n > 0) put(&s->in, buf, (size_t)n);
    stream_answers(s);
    if (n <= 0) stream_end(s, n < 0 ? "R" : ".");
    else stream_fin(s);
}

/* Compares and forgets the stream that has been over for the longest time. */
static void stream_free(void)
{
    struct stream *s = d.first_over;
    bool right;

    d.first_over = s->newer;
    if (!d.first_over) d.last_over = &d.first_over;
    d.overs--;
    d.by_serial[s->serial] = NULL;
    right = stream_is_right(s);
    d.wrong += !right;
    if (!right || d.all) stream_tell(s);
    stream_drop(s);
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
    fprintf(stderr, "{\"streams\": %llu, \"wrong\": %llu, \"orphans\": %llu, \"forwarded\": %llu, \"seconds\": %.1f}\n", (unsigned long long)d.streams,
            (unsigned long long)d.wrong, (unsigned long long)d.orphans, (unsigned long long)seqs.n, (double)(now_ns() - start) / 1e9);
    return 0;
}
