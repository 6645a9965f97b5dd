/* ep_, ur_: the promises of struct io_ops on real sockets: one table of scenarios, run on both engines. */

#include "faults.h"

enum { EN_SOCKS = 4, EN_LOG = 64, EN_KEPT = 512 };

struct en_sock {
    struct io_sock s;
    struct en *e;
    int count[IO_CLOSED + 1];                                        /* events so far */
    int last;                                                        /* res of the newest event but IO_SENT */
    int sent;                                                        /* bytes */
    size_t bytes;                                                    /* received */
    uint8_t sum;
    uint64_t expect;                                                 /* position in the pattern */
    bool wrong;                                                      /* other bytes, or an event behind IO_CLOSED or io_close */
    bool closed_by_us;
    bool keep, stop_inside, close_inside, again;
    int fd;                                                          /* accepted */
    struct mem_buf *kept[EN_KEPT];
    uint32_t nkept;
    struct io_outq q;
};

struct en {
    struct io_loop lp;
    struct en_sock k[EN_SOCKS];
    int far[EN_SOCKS];
    struct rj_thread thread;                                         /* for its counters */
};

static const struct io_ops *const en_ops[] = {&ep_ops, &ur_ops};

static uint8_t en_pattern(uint64_t at) { return (uint8_t)(at * 7 + (at >> 9)); }

static void en_event(struct io_sock *s, enum io_event ev, int res, struct mem_buf *b)
{
    struct en_sock *k = RJ_CONTAINER(s, struct en_sock, s);

    if (k->count[IO_CLOSED] || (k->closed_by_us && ev != IO_CLOSED)) k->wrong = true;
    k->count[ev]++;
    if (ev == IO_SENT) {
        io_outq_sent(&k->q, res);
        k->sent = res;
        return;
    }
    k->last = res;
    if (ev == IO_ACCEPT && res >= 0) k->fd = res;
    if (ev != IO_RECV || res <= 0) return;
    if (!b || b->len != (uint32_t)res || b->refs != 1) k->wrong = true;
    for (int i = 0; i < res; i++)
        if (b->data[i] != en_pattern(k->expect++)) k->wrong = true;
    k->bytes += (size_t)res;
    if (k->keep && k->nkept < EN_KEPT) k->kept[k->nkept++] = mem_buf_get(b);
    if (k->stop_inside) {
        k->stop_inside = false;
        io_recv_stop(&k->e->lp, s);
    }
    if (k->again) io_recv_big(&k->e->lp, s);
    if (k->close_inside) {
        k->closed_by_us = true;
        io_close(&k->e->lp, s);
    }
}

/* A socket pair: our end in the loop as k. Returns the far one. */
static int en_open(struct en *e, struct en_sock *k)
{
    int fd[2];

    memset(k, 0, sizeof *k);
    k->e = e;
    k->fd = -1;
    io_sock_init(&k->s, en_event);
    UT_CHECK(sys_socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fd) == 0);
    if (e->lp.nonblocking) sys_fcntl(fd[0], F_SETFL, O_RDWR | O_NONBLOCK);
    sys_fcntl(fd[1], F_SETFL, O_RDWR | O_NONBLOCK);
    UT_CHECK(io_adopt(&e->lp, &k->s, fd[0]) == 0);
    return fd[1];
}

/* The same as socket i, with the far end in far[i]. */
static struct en_sock *en_pair(struct en *e, int i)
{
    e->far[i] = en_open(e, &e->k[i]);
    return &e->k[i];
}

#define EN_UNTIL(cond) do { for (int en_i = 0; en_i < 400 && !(cond); en_i++) io_turn(&e->lp, 10); UT_CHECK(cond); } while (0)
static void en_some_turns(struct en *e) { for (int i = 0; i < 5; i++) io_turn(&e->lp, 1); }

static size_t en_put(int fd, uint64_t from, size_t n)
{
    uint8_t piece[65536];
    size_t at = 0;

    while (at < n) {
        size_t want = n - at < sizeof piece ? n - at : sizeof piece;
        long k;

        for (size_t i = 0; i < want; i++) piece[i] = en_pattern(from + at + i);
        if ((k = sys_send(fd, piece, want, MSG_NOSIGNAL)) <= 0) break;
        at += (size_t)k;
    }
    return at;
}

static void en_close(struct en *e, struct en_sock *k)
{
    if (!k->closed_by_us) {
        k->closed_by_us = true;
        io_close(&e->lp, &k->s);
        UT_INT(k->count[IO_CLOSED], 0);                              /* never from inside the call */
    }
    EN_UNTIL(k->count[IO_CLOSED]);
    en_some_turns(e);
    UT_INT(k->count[IO_CLOSED], 1);
    UT_CHECK(!k->wrong);
    for (uint32_t i = 0; i < k->nkept; i++) mem_buf_put(k->kept[i]);
    io_outq_clear(&k->q);
}

/* ---- scenarios ---- */

static void en_receive(struct en *e)
{
    struct en_sock *k = en_pair(e, 0);
    size_t put = en_put(e->far[0], 0, 10);

    en_some_turns(e);
    UT_INT(k->count[IO_RECV], 0);                                    /* not asked for */
    io_recv_start(&e->lp, &k->s);
    UT_INT(k->count[IO_RECV], 0);
    EN_UNTIL(k->bytes == put);
    for (int i = 0; i < 200; i++) {
        put += en_put(e->far[0], put, 30000);
        EN_UNTIL(k->bytes == put);
    }
    sys_shutdown(e->far[0], SHUT_WR);
    EN_UNTIL(k->last == 0);
    en_some_turns(e);
    UT_CHECK(k->bytes == put);
    UT_INT(k->count[IO_STOPPED], 0);
    en_close(e, k);
    sys_close(e->far[0]);
}

static void en_stop_and_start(struct en *e)
{
    struct en_sock *k = en_pair(e, 0);
    size_t put = 0, before;

    for (int i = 1; i <= 50; i++) {
        io_recv_start(&e->lp, &k->s);
        put += en_put(e->far[0], put, 100);
        if (i % 3 == 0) EN_UNTIL(k->bytes == put);
        if (i % 3 == 1) io_turn(&e->lp, 0);
        io_recv_stop(&e->lp, &k->s);
        UT_INT(k->count[IO_STOPPED], i - 1);
        EN_UNTIL(k->count[IO_STOPPED] == i);
        before = k->bytes;
        put += en_put(e->far[0], put, 50);
        en_some_turns(e);
        UT_CHECK(k->bytes == before);                                /* nothing behind IO_STOPPED */
    }
    io_recv_start(&e->lp, &k->s);
    EN_UNTIL(k->bytes == put);                                       /* and nothing is lost */
    UT_INT(k->count[IO_STOPPED], 50);
    k->stop_inside = true;
    put += en_put(e->far[0], put, 100);
    EN_UNTIL(k->count[IO_STOPPED] == 51);
    io_recv_stop(&e->lp, &k->s);                                     /* of nothing: answered as well */
    EN_UNTIL(k->count[IO_STOPPED] == 52);
    io_recv_start(&e->lp, &k->s);
    io_recv_stop(&e->lp, &k->s);
    io_recv_start(&e->lp, &k->s);                                    /* asked for again before the stop is there */
    put += en_put(e->far[0], put, 100);
    EN_UNTIL(k->bytes == put && k->count[IO_STOPPED] == 53);
    en_close(e, k);
    sys_close(e->far[0]);
}

static void en_end_during_a_stop(struct en *e)
{
    struct en_sock *k = en_pair(e, 0);

    io_recv_start(&e->lp, &k->s);
    en_some_turns(e);
    io_recv_stop(&e->lp, &k->s);
    sys_close(e->far[0]);
    EN_UNTIL(k->count[IO_STOPPED] == 1);
    en_some_turns(e);
    UT_INT(k->count[IO_RECV], 0);
    io_recv_start(&e->lp, &k->s);                                    /* the end is told when it is asked for */
    EN_UNTIL(k->count[IO_RECV] == 1 && k->last == 0);
    en_close(e, k);
}

static void en_big_receives(struct en *e)
{
    struct en_sock *k = en_pair(e, 0);
    size_t put = en_put(e->far[0], 0, 20000);

    io_recv_big(&e->lp, &k->s);
    UT_INT(k->count[IO_RECV], 0);
    EN_UNTIL(k->count[IO_RECV] == 1);
    en_some_turns(e);
    UT_INT(k->count[IO_RECV], 1);                                    /* exactly one */
    UT_INT(k->bytes, 20000);
    put += en_put(e->far[0], put, 1000);
    k->again = true;
    io_recv_big(&e->lp, &k->s);
    EN_UNTIL(k->bytes == put);
    for (int i = 0; i < 50; i++) {
        put += en_put(e->far[0], put, 100000);
        EN_UNTIL(k->bytes == put);
    }
    k->again = false;
    put += en_put(e->far[0], put, 10);
    EN_UNTIL(k->bytes == put);
    io_recv_start(&e->lp, &k->s);                                    /* and on with the subscription */
    put += en_put(e->far[0], put, 10);
    EN_UNTIL(k->bytes == put);
    io_recv_stop(&e->lp, &k->s);
    EN_UNTIL(k->count[IO_STOPPED] == 1);
    sys_close(e->far[0]);
    io_recv_big(&e->lp, &k->s);
    EN_UNTIL(k->last == 0);
    en_close(e, k);
    UT_CHECK(e->lp.big.used <= 1);                                   /* epoll keeps one for the next receive */
}

static void en_kept_buffers(struct en *e)
{
    struct en_sock *k = en_pair(e, 0);
    uint64_t at = 0;
    size_t put = 0;

    k->keep = true;
    io_recv_start(&e->lp, &k->s);
    for (int i = 0; i < 300; i++) {                                  /* more than the ring of io_uring holds */
        put += en_put(e->far[0], put, 100);
        EN_UNTIL(k->bytes == put);
    }
    for (uint32_t i = 0; i < k->nkept; i++)
        for (uint32_t j = 0; j < k->kept[i]->len; j++)
            if (k->kept[i]->data[j] != en_pattern(at++)) k->wrong = true;
    UT_INT(at, put);
    en_close(e, k);
    sys_close(e->far[0]);
}

static void en_add(struct en_sock *k, const uint8_t *p, uint32_t n, uint32_t slots)
{
    for (uint32_t i = 0; i < slots; i++) io_outq_add(&k->q, p + (size_t)n * i, n, NULL);
}

static void en_send_to_a_full_socket(struct en *e)
{
    static uint8_t text[IO_OUTQ_MAX * 40000], back[sizeof text];
    struct en_sock *k = en_pair(e, 0);
    size_t sent = 0, got = 0, total = 0;
    long n;

    for (size_t i = 0; i < sizeof text; i++) text[i] = en_pattern(i);
    for (int round = 0; round < 6; round++) {
        en_add(k, text, round % 2 ? 40000 : 7, IO_OUTQ_MAX);
        total = k->q.bytes;
        got = sent = 0;
        while (sent < total) {
            int had = k->count[IO_SENT];

            io_send(&e->lp, &k->s, &k->q);
            UT_INT(k->count[IO_SENT], had);
            for (int i = 0; i < 400 && k->count[IO_SENT] == had; i++) {
                if (i) n = sys_recv(e->far[0], back + got, sizeof back - got < 10000 ? sizeof back - got : 10000, MSG_DONTWAIT);
                else n = 0;
                if (n > 0) got += (size_t)n;
                io_turn(&e->lp, 1);
            }
            UT_REQUIRE(k->count[IO_SENT] == had + 1 && k->sent > 0);
            sent += (size_t)k->sent;
        }
        UT_INT(k->q.bytes, 0);
        while (got < total && (n = sys_recv(e->far[0], back + got, sizeof back - got, MSG_DONTWAIT)) > 0) got += (size_t)n;
        UT_INT(got, total);
        UT_CHECK(memcmp(back, text, total) == 0);
    }
    en_close(e, k);
    sys_close(e->far[0]);
}

static void en_send_to_nobody(struct en *e)
{
    struct en_sock *k = en_pair(e, 0);

    sys_close(e->far[0]);
    en_add(k, (const uint8_t *)"text", 4, 1);
    io_send(&e->lp, &k->s, &k->q);
    EN_UNTIL(k->count[IO_SENT] == 1);
    UT_CHECK(k->sent == -EPIPE || k->sent == -ECONNRESET);
    en_close(e, k);
}

/* Listens on a port of the kernel's choice. */
static uint16_t en_listen(struct en *e, int i)
{
    struct net_addr a = {.family = AF_INET, .ip = {[10] = 0xff, [11] = 0xff, 127, 0, 0, 1}};
    struct sockaddr_in sa;
    socklen_t n = sizeof sa;
    struct en_sock *k = &e->k[i];

    memset(k, 0, sizeof *k);
    k->e = e;
    k->fd = -1;
    io_sock_init(&k->s, en_event);
    UT_CHECK(io_listen(&e->lp, &k->s, &a, false) == 0);
    UT_CHECK(sys_getsockname(k->s.fd, &sa, &n) == 0);
    return ntohs(sa.sin_port);
}

static int en_connect(struct en *e, int i, uint16_t port)
{
    static struct sockaddr_in sa;
    struct en_sock *k = &e->k[i];

    sa = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    memset(k, 0, sizeof *k);
    k->e = e;
    io_sock_init(&k->s, en_event);
    return io_connect_sa(&e->lp, &k->s, &sa, sizeof sa);
}

static void en_accept_and_connect(struct en *e)
{
    uint16_t port = en_listen(e, 0);

    io_accept_start(&e->lp, &e->k[0].s);
    for (int i = 1; i <= 20; i++) {
        struct en_sock *k = &e->k[1];

        UT_INT(en_connect(e, 1, port), 0);
        UT_INT(k->count[IO_CONNECT], 0);
        EN_UNTIL(k->count[IO_CONNECT] == 1 && e->k[0].count[IO_ACCEPT] == i);
        UT_INT(k->last, 0);
        UT_CHECK(e->k[0].fd >= 0);
        io_recv_start(&e->lp, &k->s);
        UT_INT(en_put(e->k[0].fd, 0, 5), 5);
        EN_UNTIL(k->bytes == 5);
        if (i % 2) {                                                 /* a reset, or an orderly end */
            struct linger l = {.l_onoff = 1, .l_linger = 0};

            SYS_CALL(SYS_setsockopt, e->k[0].fd, SOL_SOCKET, SO_LINGER, &l, sizeof l);
        }
        sys_close(e->k[0].fd);
        EN_UNTIL(k->count[IO_RECV] >= 2 && k->last <= 0);
        UT_INT(k->last, i % 2 ? -ECONNRESET : 0);
        en_close(e, k);
    }
    io_accept_stop(&e->lp, &e->k[0].s);
    EN_UNTIL(e->k[0].count[IO_STOPPED] == 1);
    UT_INT(en_connect(e, 1, port), 0);
    EN_UNTIL(e->k[1].count[IO_CONNECT] == 1);                        /* by the kernel's backlog */
    en_some_turns(e);
    UT_INT(e->k[0].count[IO_ACCEPT], 20);
    io_accept_start(&e->lp, &e->k[0].s);
    EN_UNTIL(e->k[0].count[IO_ACCEPT] == 21);
    sys_close(e->k[0].fd);
    en_close(e, &e->k[1]);
    en_close(e, &e->k[0]);
    UT_INT(en_connect(e, 1, port), 0);
    EN_UNTIL(e->k[1].count[IO_CONNECT] == 1);
    UT_INT(e->k[1].last, -ECONNREFUSED);
    en_close(e, &e->k[1]);
}

static void en_poll(struct en *e)
{
    struct en_sock *k = en_pair(e, 0);
    uint8_t room[100];

    io_poll(&e->lp, &k->s, IO_OUT | IO_AGAIN);
    UT_INT(k->count[IO_READY], 0);
    EN_UNTIL(k->count[IO_READY] == 1);
    UT_INT(k->last, IO_OUT);
    UT_CHECK(e->lp.nonblocking ? sys_recv(k->s.fd, room, sizeof room, 0) == -EAGAIN : true);
    io_poll(&e->lp, &k->s, IO_IN);
    en_some_turns(e);
    UT_INT(k->count[IO_READY], 1);
    en_put(e->far[0], 0, 10);
    EN_UNTIL(k->count[IO_READY] == 2);
    UT_INT(k->last, IO_IN);
    UT_INT(sys_recv(k->s.fd, room, sizeof room, MSG_DONTWAIT), 10);
    io_poll(&e->lp, &k->s, IO_IN);
    sys_close(e->far[0]);                                            /* the end is something to read, too */
    EN_UNTIL(k->count[IO_READY] == 3);
    en_close(e, k);
}

static void en_close_with_everything_in_flight(struct en *e)
{
    static uint8_t text[IO_OUTQ_SEND * 100000];

    for (int round = 0; round < 40; round++) {
        struct en_sock *k = en_pair(e, 0);

        if (round & 1) io_recv_start(&e->lp, &k->s);
        if (round & 2) {
            en_add(k, text, 100000, IO_OUTQ_SEND);
            io_send(&e->lp, &k->s, &k->q);
        }
        if (round & 4) io_poll(&e->lp, &k->s, IO_IN);
        if (round & 8) io_turn(&e->lp, 0);
        if (round & 16) en_put(e->far[0], 0, 100);
        if (round & 1 && round % 5 == 0) io_recv_stop(&e->lp, &k->s);
        en_close(e, k);
        sys_close(e->far[0]);
    }
    for (int round = 0; round < 10; round++) {                       /* from inside a call-back */
        struct en_sock *k = en_pair(e, 0);

        k->close_inside = true;
        if (round & 1) io_recv_big(&e->lp, &k->s);
        else io_recv_start(&e->lp, &k->s);
        en_put(e->far[0], 0, 20000);
        EN_UNTIL(k->count[IO_CLOSED] == 1);
        UT_INT(k->count[IO_RECV], 1);
        en_close(e, k);
        sys_close(e->far[0]);
    }
}

static void en_reused_slots(struct en *e)
{
    for (int i = 0; i < 3000; i++) {                                 /* stale completions must not reach who has the slot now */
        struct en_sock *k = en_pair(e, 0);

        io_recv_start(&e->lp, &k->s);
        if (i % 3) en_put(e->far[0], 0, 3);
        if (i % 7 == 0) sys_close(e->far[0]);
        if (i % 5) io_turn(&e->lp, 0);
        k->closed_by_us = true;
        io_close(&e->lp, &k->s);
        for (int t = 0; t < 1000 && !k->count[IO_CLOSED]; t++) io_turn(&e->lp, 1);
        if (k->count[IO_CLOSED] != 1 || k->wrong || k->s.fd != -1) UT_CHECK(!"a close went wrong");
        if (i % 7) sys_close(e->far[0]);
    }
}

/* Another process has a copy of the descriptor for a while, as one that is being started: nothing comes for a socket that is closed. */
static void en_close_with_a_copy_elsewhere(struct en *e)
{
    struct en_sock *k = en_pair(e, 0);
    int copy = sys_fcntl(k->s.fd, F_DUPFD_CLOEXEC, 3);

    UT_CHECK(copy >= 3);
    io_recv_start(&e->lp, &k->s);
    en_some_turns(e);
    en_close(e, k);
    en_put(e->far[0], 0, 10);
    en_some_turns(e);
    sys_close(e->far[0]);
    en_some_turns(e);
    UT_INT(k->count[IO_CLOSED], 1);
    UT_CHECK(!k->wrong);
    sys_close(copy);
}

/* No buffer is left: what was received waits in the kernel, and comes when there is one again. */
static void en_receive_without_a_buffer(struct en *e)
{
    struct en_sock *k = en_pair(e, 0), *other = en_pair(e, 1);
    struct mem_pool *pools[] = {&e->lp.small, &e->lp.medium, &e->lp.big};
    uint64_t starved = 0;
    size_t put, more;

    k->keep = true;                                                  /* all that the loop has goes into k's hands */
    io_recv_start(&e->lp, &k->s);
    put = en_put(e->far[0], 0, 100000);
    EN_UNTIL(k->bytes == put);
    for (size_t i = 0; i < RJ_COUNT(pools); i++) pools[i]->limit = 1;
    rj_me = &e->thread;
    for (int i = 0; i < 200 && !starved; i++) {
        put += en_put(e->far[0], put, 50000);
        io_turn(&e->lp, 1);
        starved = e->thread.mtr.counter[MTR_ENGINE_STARVED];
    }
    UT_CHECK(starved > 0 && k->bytes < put);
    io_recv_big(&e->lp, &other->s);                                  /* neither is there one for a receive of the other kind */
    more = en_put(e->far[1], 0, 1000);
    en_some_turns(e);
    UT_INT(other->bytes, 0);
    for (size_t i = 0; i < RJ_COUNT(pools); i++) pools[i]->limit = 0;
    EN_UNTIL(other->bytes == more);
    EN_UNTIL(k->bytes == put);
    rj_me = NULL;
    en_close(e, k);
    en_close(e, other);
    sys_close(e->far[0]);
    sys_close(e->far[1]);
}

/* Somebody whose bytes are waited for with a limit of time. */
struct en_awaited {
    struct en_sock k;
    struct clk_timer t;
    int blamed;                                                      /* the limit passed before bytes came: how often */
};

static void en_blame(struct clk_timer *t) { RJ_CONTAINER(t, struct en_awaited, t)->blamed += !RJ_CONTAINER(t, struct en_awaited, t)->k.bytes; }

/* The wait in the kernel takes until long after the limits, and a signal ends it. */
static long en_stall(long nr)
{
    struct timespec ts = {.tv_nsec = 300 * 1000000};

    if (nr != SYS_epoll_pwait && nr != SYS_URING_ENTER) return 0;
    sys_refuse = NULL;
    nanosleep(&ts, NULL);
    return -EINTR;
}

/* The thread stands still while bytes come in time: more than one look delivers, and nobody is blamed but who sent nothing. */
static void en_stall_past_a_limit(struct en *e)
{
    enum { N = 700, SILENT = 3 };
    static struct en_awaited a[N];
    static int far[N];
    int came = 0;

    for (int i = 0; i < N; i++) {
        far[i] = en_open(e, &a[i].k);
        io_recv_start(&e->lp, &a[i].k.s);
        a[i].t = (struct clk_timer){.fire = en_blame};
        a[i].blamed = 0;
    }
    en_some_turns(e);
    for (int i = 0; i < N; i++) {
        clk_arm(&e->lp.clk, &a[i].t, 100);
        if (i != SILENT) en_put(far[i], 0, 100);
    }
    sys_refuse = en_stall;
    io_turn(&e->lp, 1000);
    UT_CHECK(sys_refuse == NULL);
    EN_UNTIL(a[SILENT].blamed);
    for (int i = 0; i < N; i++) {
        came += a[i].k.bytes == 100;
        UT_INT(a[i].blamed, i == SILENT);
        clk_drop(&e->lp.clk, &a[i].t);
        io_close(&e->lp, &a[i].k.s);
        sys_close(far[i]);
    }
    UT_INT(came, N - 1);
    for (int i = 0; i < N; i++) EN_UNTIL(a[i].k.count[IO_CLOSED]);
}

UT(engines_keep_the_promises_of_io_ops)
{
    static const struct { int line; const char *name; void (*run)(struct en *e); } rows[] = {
        UT_ROW("receive", en_receive),
        UT_ROW("stop and start", en_stop_and_start),
        UT_ROW("end during a stop", en_end_during_a_stop),
        UT_ROW("big receives", en_big_receives),
        UT_ROW("kept buffers", en_kept_buffers),
        UT_ROW("send to a full socket", en_send_to_a_full_socket),
        UT_ROW("send to nobody", en_send_to_nobody),
        UT_ROW("accept and connect", en_accept_and_connect),
        UT_ROW("poll", en_poll),
        UT_ROW("close with everything in flight", en_close_with_everything_in_flight),
        UT_ROW("close with a copy elsewhere", en_close_with_a_copy_elsewhere),
        UT_ROW("reused slots", en_reused_slots),
        UT_ROW("receive without a buffer", en_receive_without_a_buffer),
        UT_ROW("stall past a limit", en_stall_past_a_limit),
    };

    for (size_t i = 0; i < RJ_COUNT(en_ops); i++) {
        UT_EACH(r, rows) {
            static struct en e;
            long before = ut.failures;
            int rc;

            memset(&e, 0, sizeof e);
            if ((rc = io_loop_open(&e.lp, en_ops[i], 0)) < 0) {
                if (en_ops[i] == &ep_ops) UT_INT(rc, 0);
                continue;                                            /* a kernel without io_uring: ramjet takes epoll there */
            }
            r->run(&e);
            if (ut.failures != before) printf("  in \"%s\" on %s\n", r->name, en_ops[i]->name);
            en_some_turns(&e);
            UT_CHECK(e.lp.ready == NULL);
            io_loop_close(&e.lp);
            UT_INT(e.lp.mapped, 0);
        }
    }
}

UT(engines_probe_names_what_is_missing)
{
    const char *what = NULL;
    int rc = ur_probe(&what);

    UT_CHECK(rc <= 0 && what != NULL);
}

/* A server and a client in one loop; whatever the kernel refuses, each socket that was taken in is closed once and nothing is lost. */
static void en_refused(struct en *e, const struct io_ops *ops)
{
    struct net_addr at = {.family = AF_INET, .ip = {[10] = 0xff, 0xff, 127, 0, 0, 1}};
    struct en_sock *listener = &e->k[0], *client = &e->k[1], *server = &e->k[2];
    struct sockaddr_in6 sa;
    socklen_t n = sizeof sa;

    memset(e, 0, sizeof *e);
    for (int i = 0; i < 3; i++) {
        e->k[i].e = e;
        e->k[i].fd = -1;
        io_sock_init(&e->k[i].s, en_event);
    }
    if (io_loop_open(&e->lp, ops, 0) < 0) return;
    if (io_listen(&e->lp, &listener->s, &at, false) == 0 && sys_getsockname(listener->s.fd, &sa, &n) == 0) {
        io_accept_start(&e->lp, &listener->s);
        if (io_connect_sa(&e->lp, &client->s, &sa, n) == 0) {
            for (int i = 0; i < 200 && !(client->count[IO_CONNECT] && listener->count[IO_ACCEPT]); i++) io_turn(&e->lp, 1);
            UT_INT(client->count[IO_CONNECT], 1);
            if (listener->fd >= 0 && io_adopt(&e->lp, &server->s, listener->fd) == 0 && client->last == 0) {
                io_recv_start(&e->lp, &server->s);
                en_add(client, (const uint8_t *)"\0\7\16", 3, 1);
                io_send(&e->lp, &client->s, &client->q);
                for (int i = 0; i < 200 && !(client->count[IO_SENT] && server->count[IO_RECV]) && client->sent >= 0; i++) io_turn(&e->lp, 1);
                UT_INT(client->count[IO_SENT], 1);
                UT_CHECK(client->sent < 0 || server->bytes == 3 || server->last < 0);
            }
        }
    }
    for (int i = 0; i < 3; i++) {
        if (e->k[i].s.fd < 0) continue;
        e->k[i].closed_by_us = true;
        io_close(&e->lp, &e->k[i].s);
        EN_UNTIL(e->k[i].count[IO_CLOSED]);
        UT_INT(e->k[i].count[IO_CLOSED], 1);
        UT_CHECK(!e->k[i].wrong);
        io_outq_clear(&e->k[i].q);
    }
    io_loop_close(&e->lp);
    UT_INT(e->lp.mapped, 0);
}

UT(engines_lose_nothing_when_a_call_is_refused)
{
    static const enum ft_kind kinds[] = {FT_CALLS, FT_MEMORY};
    static struct en e;

    for (size_t i = 0; i < RJ_COUNT(en_ops) * RJ_COUNT(kinds); i++) {
        int64_t before = adm_count_fds();
        long k;

        for (k = 1; ft_arm(kinds[i % 2], k); k++) {
            long failures = ut.failures;

            en_refused(&e, en_ops[i / 2]);
            ft_disarm();
            UT_INT(adm_count_fds(), before);
            if (ut.failures != failures) printf("  %s %ld refused at %ld on %s\n", i % 2 ? "allocation" : "call", ft.hit, k, en_ops[i / 2]->name);
        }
        UT_CHECK(k > 2);
    }
}
