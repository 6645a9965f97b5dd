/* A bare TCP relay: the least that a proxy can cost with an I/O engine. One thread, one connection to the upstream per client connection.
 *
 *   relay epoll|splice|uring PORT UPSTREAM-PORT [BUFFER-SIZE] [BUFFERS]
 *
 * epoll: edge triggered, registered once, read until a short read, written at once. splice: the same with splice(2) through a pipe per direction.
 * uring: multishot accept and receive, a ring of provided buffers, one gathered send in flight per socket. Nothing is parsed, counted or logged. */
#define _GNU_SOURCE
#include "ring.h"
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/uio.h>

enum { FD_MAX = 20000, QUEUE = 1024, GATHER = 16 };  /* QUEUE: no fewer than buffers */

static size_t buffer_size = 4096;
static unsigned buffers = 1024;
static struct sockaddr_in upstream;
static int one = 1;

static int tcp_socket(int flags)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | flags, 0);

    if (fd < 0 || fd >= FD_MAX) die("socket");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return fd;
}

static int tcp_listen(int port, int flags)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = tcp_socket(flags);

    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(fd, (struct sockaddr *)&a, sizeof a) || listen(fd, 8192)) die("listen");
    return fd;
}

/* ---- epoll ------------------------------------------------------------------------------------------------------------------------------ */

/* One socket; what was read from it and does not fit its peer waits in `rest` (or in the pipe), and it is not read until that is gone. */
struct side {
    int fd, peer, pipe[2];
    bool ended, connected;
    uint8_t *rest;
    size_t rest_at, rest_n, piped;
};

static struct side *sides;
static int epoll_fd;
static bool use_splice;
static uint8_t *hot;

static void side_close(struct side *s)
{
    struct side *p = &sides[s->peer];

    for (int i = 0; i < 2; i++, s = p) {
        if (s->fd < 0) continue;
        close(s->fd);
        if (use_splice) close(s->pipe[0]), close(s->pipe[1]);
        free(s->rest);
        *s = (struct side){.fd = -1};
    }
}

static struct side *side_add(int fd, int peer, bool connected)
{
    struct epoll_event e = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, .data.fd = fd};

    sides[fd] = (struct side){.fd = fd, .peer = peer, .connected = connected};
    if (use_splice && (pipe2(sides[fd].pipe, O_NONBLOCK | O_CLOEXEC) || fcntl(sides[fd].pipe[0], F_SETPIPE_SZ, 262144) < 0)) die("pipe");
    epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &e);
    return &sides[fd];
}

/* Returns false when the pair is over. */
static bool side_end(struct side *s)
{
    s->ended = true;
    shutdown(s->peer, SHUT_WR);
    return !sides[s->peer].ended;
}

static bool side_copy(struct side *s)
{
    while (!s->ended) {
        if (s->rest_n) {
            ssize_t w = send(s->peer, s->rest + s->rest_at, s->rest_n, MSG_NOSIGNAL);
            if (w < 0) return errno == EAGAIN;
            s->rest_at += (size_t)w;
            if ((s->rest_n -= (size_t)w)) return true;
        }
        ssize_t n = recv(s->fd, hot, buffer_size, 0);
        if (n < 0) return errno == EAGAIN;
        if (n == 0) return side_end(s);
        ssize_t w = sides[s->peer].connected ? send(s->peer, hot, (size_t)n, MSG_NOSIGNAL) : 0;
        if (w < 0 && errno != EAGAIN) return false;
        if (w < 0) w = 0;
        if (w < n) {
            if (!s->rest && !(s->rest = malloc(buffer_size))) die("memory");
            memcpy(s->rest, hot + w, (size_t)(n - w));
            s->rest_at = 0;
            s->rest_n = (size_t)(n - w);
            return true;
        }
        if ((size_t)n < buffer_size) return true;           /* edge triggered: more makes another event */
    }
    return true;
}

static bool side_splice(struct side *s)
{
    while (!s->ended && sides[s->peer].connected) {
        ssize_t n = splice(s->fd, NULL, s->pipe[1], NULL, 262144, SPLICE_F_MOVE | SPLICE_F_NONBLOCK);
        if (n == 0 && !s->piped) return side_end(s);
        if (n < 0 && errno != EAGAIN) return false;
        if (n > 0) s->piped += (size_t)n;
        if (!s->piped) return true;
        ssize_t w = splice(s->pipe[0], NULL, s->peer, NULL, s->piped, SPLICE_F_MOVE | SPLICE_F_NONBLOCK);
        if (w < 0) return errno == EAGAIN;
        s->piped -= (size_t)w;
    }
    return true;
}

static void epoll_accept(int listener)
{
    int fd;

    while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0) {
        int up = tcp_socket(SOCK_NONBLOCK);
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        bool now = connect(up, (struct sockaddr *)&upstream, sizeof upstream) == 0;
        side_add(up, fd, now);
        side_add(fd, up, true);
    }
}

static void epoll_event(const struct epoll_event *e)
{
    struct side *s = &sides[e->data.fd], *p;
    bool (*copy)(struct side *) = use_splice ? side_splice : side_copy;

    if (s->fd < 0) return;
    p = &sides[s->peer];
    if (e->events & EPOLLOUT) s->connected = true;
    if (e->events & (EPOLLERR | EPOLLHUP)) side_close(s);
    else if ((e->events & (EPOLLIN | EPOLLRDHUP)) && !copy(s)) side_close(s);
    else if ((e->events & EPOLLOUT) && (p->rest_n || p->piped || use_splice) && !copy(p)) side_close(p);
}

static void epoll_main(int port)
{
    int listener = tcp_listen(port, SOCK_NONBLOCK);
    struct epoll_event events[256], e = {.events = EPOLLIN, .data.fd = -1};

    sides = calloc(FD_MAX, sizeof *sides);
    hot = malloc(buffer_size);
    if (!sides || !hot) die("memory");
    for (int i = 0; i < FD_MAX; i++) sides[i].fd = -1;
    epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    epoll_ctl(epoll_fd, EPOLL_CTL_ADD, listener, &e);
    for (;;) {
        int n = epoll_wait(epoll_fd, events, 256, -1);
        for (int i = 0; i < n; i++)
            if (events[i].data.fd < 0) epoll_accept(listener);
            else epoll_event(&events[i]);
    }
}

/* ---- io_uring ----------------------------------------------------------------------------------------------------------------------------- */

enum { OP_ACCEPT = 1, OP_CONNECT, OP_RECV, OP_SEND, OP_CLOSE };

/* One direction: received from fd, sent to peer. Buffers wait in order in `queue`; the first `sending` of them are in flight. */
struct lane {
    int fd, peer;
    uint8_t inflight;
    bool armed, ended, over, starved, connected;
    uint16_t bid[QUEUE];
    uint32_t len[QUEUE];
    unsigned head, n, sending;
    size_t sent_n;
    struct iovec iov[GATHER];
    struct msghdr msg;
};

static struct ring ring;
static struct lane **lanes;
static struct io_uring_buf_ring *pool_ring;
static uint8_t *pool;
static uint16_t pool_tail;
static unsigned pool_free;
static int starved[FD_MAX];
static unsigned starved_n;

static void pool_put(uint16_t bid)
{
    struct io_uring_buf *b = &pool_ring->bufs[pool_tail++ & (buffers - 1)];

    b->addr = (uint64_t)(uintptr_t)(pool + (size_t)bid * buffer_size);
    b->len = (uint32_t)buffer_size;
    b->bid = bid;
    pool_free++;
}

static void pool_init(void)
{
    struct io_uring_buf_reg reg = {.ring_entries = buffers};

    pool_ring = mmap(NULL, buffers * sizeof(struct io_uring_buf), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    pool = mmap(NULL, buffers * buffer_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if ((void *)pool_ring == MAP_FAILED || pool == MAP_FAILED) die("mmap");
    reg.ring_addr = (uint64_t)(uintptr_t)pool_ring;
    if (syscall(__NR_io_uring_register, ring.fd, IORING_REGISTER_PBUF_RING, &reg, 1)) die("IORING_REGISTER_PBUF_RING");
    for (unsigned i = 0; i < buffers; i++) pool_put((uint16_t)i);
    __atomic_store_n(&pool_ring->tail, pool_tail, __ATOMIC_RELEASE);
}

static uint64_t tag(int fd, unsigned op) { return (uint64_t)(unsigned)fd << 8 | op; }

static void lane_recv(struct lane *l)
{
    struct io_uring_sqe *e = ring_sqe(&ring, IORING_OP_RECV, l->fd, NULL, 0, tag(l->fd, OP_RECV));

    e->ioprio = IORING_RECV_MULTISHOT;
    e->flags = IOSQE_BUFFER_SELECT;
    l->armed = true;
    l->inflight++;
}

static void lane_send(struct lane *l)
{
    struct io_uring_sqe *e;

    if (l->sending || l->n == 0 || !lanes[l->peer]->connected) return;
    l->sent_n = 0;
    for (l->sending = 0; l->sending < l->n && l->sending < GATHER; l->sending++) {
        unsigned at = (l->head + l->sending) % QUEUE;
        l->iov[l->sending] = (struct iovec){pool + (size_t)l->bid[at] * buffer_size, l->len[at]};
        l->sent_n += l->len[at];
    }
    if (l->sending == 1) e = ring_sqe(&ring, IORING_OP_SEND, l->peer, l->iov[0].iov_base, (unsigned)l->iov[0].iov_len, tag(l->fd, OP_SEND));
    else {
        l->msg = (struct msghdr){.msg_iov = l->iov, .msg_iovlen = l->sending};
        e = ring_sqe(&ring, IORING_OP_SENDMSG, l->peer, &l->msg, 1, tag(l->fd, OP_SEND));
    }
    e->msg_flags = MSG_NOSIGNAL | MSG_WAITALL;
    l->inflight++;
}

static void lane_drop(struct lane *l)
{
    for (; l->n; l->n--, l->head = (l->head + 1) % QUEUE) pool_put(l->bid[l->head]);
    l->sending = 0;
}

/* Ends a pair: both sockets are shut down, and closed and forgotten when nothing is in flight. */
static void lane_over(struct lane *l)
{
    struct lane *p = lanes[l->peer];

    if (!l->over) {
        l->over = p->over = true;
        shutdown(l->fd, SHUT_RDWR);
        shutdown(p->fd, SHUT_RDWR);
    }
    if (l->inflight || p->inflight) return;
    for (int i = 0; i < 2; i++, l = p) {
        lane_drop(l);
        ring_sqe(&ring, IORING_OP_CLOSE, l->fd, NULL, 0, OP_CLOSE);
        lanes[l->fd] = NULL;
        free(l);
    }
}

static void lane_received(struct lane *l, int res, unsigned flags)
{
    if (!(flags & IORING_CQE_F_MORE)) {
        l->armed = false;
        l->inflight--;
    }
    if (res > 0) {
        unsigned at = (l->head + l->n++) % QUEUE;
        l->bid[at] = (uint16_t)(flags >> IORING_CQE_BUFFER_SHIFT);
        l->len[at] = (uint32_t)res;
        pool_free--;
    } else if (res == 0) l->ended = true;
    if (l->over) return;
    if (res == -ENOBUFS) {
        if (!l->starved) starved[starved_n++] = l->fd;
        l->starved = true;
    } else if (res < 0) lane_over(l);
    else if (res > 0) {
        lane_send(l);
        if (!l->armed) lane_recv(l);
    }
}

static void lane_sent(struct lane *l, int res)
{
    l->inflight--;
    if (res < 0 || (size_t)res < l->sent_n) lane_over(l);
    else {
        for (; l->sending; l->sending--, l->n--, l->head = (l->head + 1) % QUEUE) pool_put(l->bid[l->head]);
        lane_send(l);
    }
}

static struct lane *lane_add(int fd, int peer, bool connected)
{
    struct lane *l = calloc(1, sizeof *l);

    if (!l || fd >= FD_MAX) die("connection");
    *l = (struct lane){.fd = fd, .peer = peer, .connected = connected};
    return lanes[fd] = l;
}

static void uring_event(int listener, uint64_t user_data, int res, unsigned flags)
{
    unsigned op = user_data & 255;
    int fd = (int)(user_data >> 8);
    struct lane *l = op == OP_ACCEPT || op == OP_CLOSE ? NULL : lanes[fd], *p;

    if (op == OP_CLOSE) return;
    if (op == OP_ACCEPT) {
        if (!(flags & IORING_CQE_F_MORE)) ring_sqe(&ring, IORING_OP_ACCEPT, listener, NULL, 0, OP_ACCEPT)->ioprio = IORING_ACCEPT_MULTISHOT;
        if (res < 0) return;
        int up = tcp_socket(0);
        setsockopt(res, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        lane_add(res, up, true);
        lane_add(up, res, false)->inflight++;
        ring_sqe(&ring, IORING_OP_CONNECT, up, &upstream, 0, tag(up, OP_CONNECT))->off = sizeof upstream;
        lane_recv(lanes[res]);
        return;
    }
    p = lanes[l->peer];
    if (op == OP_CONNECT) {
        l->inflight--;
        l->connected = res >= 0;
        if (res < 0) lane_over(l);
        else if (!l->over) {
            lane_recv(l);
            lane_send(p);
        }
    } else if (op == OP_RECV) lane_received(l, res, flags);
    else lane_sent(l, res);
    if (lanes[fd] == l && (l->over || (l->ended && l->n == 0))) lane_over(l);
}

static void uring_main(int port)
{
    int listener = tcp_listen(port, 0);

    lanes = calloc(FD_MAX, sizeof *lanes);
    ring_init(&ring, 4096);
    pool_init();
    ring_sqe(&ring, IORING_OP_ACCEPT, listener, NULL, 0, OP_ACCEPT)->ioprio = IORING_ACCEPT_MULTISHOT;
    for (;;) {
        struct io_uring_cqe *e;
        ring_wait(&ring, 1, NULL);
        while ((e = ring_peek(&ring))) {
            struct io_uring_cqe copy = *e;
            ring_seen(&ring);
            uring_event(listener, copy.user_data, copy.res, copy.flags);
        }
        __atomic_store_n(&pool_ring->tail, pool_tail, __ATOMIC_RELEASE);
        while (starved_n && pool_free) {
            struct lane *l = lanes[starved[--starved_n]];
            if (!l || !l->starved) continue;
            l->starved = false;
            if (!l->armed && !l->over) lane_recv(l);
        }
    }
}

int main(int argc, char **argv)
{
    if (argc < 4) {
        fprintf(stderr, "usage: relay epoll|splice|uring PORT UPSTREAM-PORT [BUFFER-SIZE] [BUFFERS, a power of two]\n");
        return 2;
    }
    if (argc > 4) buffer_size = strtoul(argv[4], NULL, 10);
    if (argc > 5) buffers = (unsigned)strtoul(argv[5], NULL, 10);
    if (buffers == 0 || buffers > QUEUE || buffers & (buffers - 1)) {
        fprintf(stderr, "BUFFERS is a power of two, at most %d\n", QUEUE);
        return 2;
    }
    signal(SIGPIPE, SIG_IGN);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    upstream = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(argv[3])), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    use_splice = !strcmp(argv[1], "splice");
    if (!strcmp(argv[1], "uring")) uring_main(atoi(argv[2]));
    else epoll_main(atoi(argv[2]));
    return 0;
}
