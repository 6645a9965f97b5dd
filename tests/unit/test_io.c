/* io_: output queues against a naive model; pumps over real socket pairs. */

static struct mem_buf *io_ut_buf(const uint8_t *p, uint32_t n)
{
    struct mem_buf *b = mem_buf_alloc(n);

    memcpy(b->data, p, n);
    b->len = n;
    return b;
}

UT(io_outq_does_what_a_naive_one_does)
{
    static const uint8_t fixed[] = "static text";
    static uint8_t want[1 << 20], text[3000];
    struct io_outq q = {.n = 0};
    size_t from = 0, to = 0;
    struct io_loop pools = {.mapped = 0}, *lp = &pools;
    uint64_t seed = 8;

    io_pools_init(lp, 8 << 20);

    for (size_t i = 0; i < sizeof text; i++) text[i] = (uint8_t)(i * 31 >> 2);
    for (int i = 0; i < 20000 && to + sizeof text < sizeof want; i++) {
        uint32_t n = 1 + ut_random(&seed, ut_random(&seed, 4) ? 50 : sizeof text), at = 0;

        if (q.n < IO_OUTQ_MAX && ut_random(&seed, 3)) {
            if (n > sizeof fixed) n = ut_random(&seed, 2) ? n : (uint32_t)sizeof fixed;
            struct mem_buf *b = n <= sizeof fixed ? NULL : io_ut_buf(text, n);

            memcpy(want + to, b ? text : fixed, n);
            to += n;
            io_outq_add(&q, b ? b->data : fixed, n, b);
        } else if (q.n > q.flight + 1 && ut_random(&seed, 3) == 0) {
            uint8_t before = q.n;

            if (ut_random(&seed, 4) == 0) {
                mem_fail_at = 1;
                UT_CHECK(!io_outq_squeeze(&q, lp) && q.n == before);
            } else {
                UT_CHECK(io_outq_squeeze(&q, lp) && q.n == q.flight + 1);
            }
        } else if (q.n && !q.flight) {
            q.flight = q.n < IO_OUTQ_SEND ? q.n : IO_OUTQ_SEND;      /* as io_send does */
            q.sending = true;
        } else if (q.flight) {
            uint32_t all = 0, sent;

            for (uint8_t k = 0; k < q.flight; k++) all += (uint32_t)q.iov[k].iov_len;
            sent = ut_random(&seed, 3) ? 1 + ut_random(&seed, all) : all;
            io_outq_sent(&q, ut_random(&seed, 8) ? (int)sent : -EAGAIN);
            if (q.bytes != to - from) from += sent;
        }
        UT_INT(q.bytes, to - from);
        for (uint8_t k = 0; k < q.n; at += (uint32_t)q.iov[k++].iov_len)
            if (memcmp(q.iov[k].iov_base, want + from + at, q.iov[k].iov_len) != 0) UT_CHECK(!"other bytes");
        UT_INT(at, to - from);
    }
    io_outq_clear(&q);
    UT_CHECK(q.n == 0 && q.bytes == 0 && !q.sending);
    io_pools_fini(lp);
    UT_INT(lp->mapped, 0);
}

struct io_ut_pump {
    struct io_loop lp;
    struct io_pump p;
    int from[2], to[2];                                              /* the pump reads from[0] and writes to[1] */
};

static void io_ut_pump_open(struct io_ut_pump *u, uint64_t left)
{
    memset(u, 0, sizeof *u);
    UT_CHECK(sys_socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, u->from) == 0);
    UT_CHECK(sys_socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, u->to) == 0);
    UT_CHECK(io_loop_open(&u->lp, &ep_ops, 0) == 0);
    UT_CHECK(io_pump_open(&u->lp, &u->p, left) == 0);
}

static void io_ut_pump_close(struct io_ut_pump *u)
{
    io_pump_close(&u->lp, &u->p);
    UT_INT(u->p.pipe[0], -1);
    io_pump_close(&u->lp, &u->p);                                    /* a second time: nothing */
    io_loop_close(&u->lp);
    for (int i = 0; i < 2; i++) {
        sys_close(u->from[i]);
        sys_close(u->to[i]);
    }
}

UT(io_pump_moves_every_byte_with_slow_ends)
{
    enum { TOTAL = 3000000 };
    struct io_ut_pump u;
    uint64_t seed = 10, put = 0, got = 0, moved, total = 0;
    enum io_pump_state st = IO_PUMP_AGAIN;
    int res = 0, waited_in = 0, waited_out = 0;
    static uint8_t piece[100000];

    io_ut_pump_open(&u, TOTAL);
    for (int i = 0; i < 100000 && (st != IO_PUMP_DONE || got < TOTAL); i++) {
        if (ut_random(&seed, 2) && put < TOTAL + 5) {
            uint64_t n = 1 + ut_random(&seed, sizeof piece);
            long k;

            if (n > TOTAL + 5 - put) n = TOTAL + 5 - put;            /* five bytes more than the pump may take */
            for (uint64_t j = 0; j < n; j++) piece[j] = (uint8_t)((put + j) * 7 >> 3);
            k = sys_send(u.from[1], piece, n, MSG_NOSIGNAL);
            if (k > 0) put += (uint64_t)k;
        }
        if (st != IO_PUMP_DONE) {
            st = io_pump_run(&u.p, u.from[0], u.to[1], &moved, &res);
            total += moved;
            waited_in += st == IO_PUMP_WAIT_IN;
            waited_out += st == IO_PUMP_WAIT_OUT;
            UT_CHECK(st <= IO_PUMP_WAIT_OUT);
        }
        if (ut_random(&seed, 3) == 0) {
            long k = sys_recv(u.to[0], piece, 1 + ut_random(&seed, sizeof piece), 0);

            for (long j = 0; j < k; j++)
                if (piece[j] != (uint8_t)((got + (uint64_t)j) * 7 >> 3)) UT_CHECK(!"other bytes");
            if (k > 0) got += (uint64_t)k;
        }
    }
    UT_INT(st, IO_PUMP_DONE);
    UT_INT(total, TOTAL);
    UT_INT(got, TOTAL);
    UT_CHECK(waited_in > 0 && waited_out > 0);
    UT_INT(sys_recv(u.from[0], piece, sizeof piece, 0), 5);          /* what stands behind the content was not touched */
    io_ut_pump_close(&u);
}

UT(io_pump_tells_which_side_ended)
{
    struct io_ut_pump u;
    uint64_t moved;
    int res = 0;

    io_ut_pump_open(&u, 100);
    UT_INT(io_pump_run(&u.p, u.from[0], u.to[1], &moved, &res), IO_PUMP_WAIT_IN);
    sys_send(u.from[1], "abc", 3, MSG_NOSIGNAL);
    UT_INT(io_pump_run(&u.p, u.from[0], u.to[1], &moved, &res), IO_PUMP_WAIT_IN);
    UT_INT(moved, 3);
    UT_INT(u.p.left, 97);
    sys_shutdown(u.from[1], SHUT_WR);
    UT_INT(io_pump_run(&u.p, u.from[0], u.to[1], &moved, &res), IO_PUMP_EOF);
    io_ut_pump_close(&u);

    io_ut_pump_open(&u, 100);
    sys_send(u.from[1], "abc", 3, MSG_NOSIGNAL);
    sys_close(u.to[0]);
    UT_INT(io_pump_run(&u.p, u.from[0], u.to[1], &moved, &res), IO_PUMP_FAILED_OUT);
    UT_INT(res, -EPIPE);
    u.to[0] = -1;
    io_ut_pump_close(&u);
}

UT(io_pump_pipes_are_kept_when_they_are_empty)
{
    struct io_ut_pump u;
    struct io_pump more[IO_PIPES_KEPT + 4];
    int first;

    io_ut_pump_open(&u, 100);
    first = u.p.pipe[0];
    io_pump_close(&u.lp, &u.p);
    UT_CHECK(io_pump_open(&u.lp, &u.p, 100) == 0 && u.p.pipe[0] == first);
    u.p.in_pipe = 1;                                                 /* somebody else's bytes: never given to another pump */
    io_pump_close(&u.lp, &u.p);
    UT_INT(u.lp.pipes_n, 0);
    for (size_t i = 0; i < RJ_COUNT(more); i++) UT_CHECK(io_pump_open(&u.lp, &more[i], 1) == 0);
    for (size_t i = 0; i < RJ_COUNT(more); i++) io_pump_close(&u.lp, &more[i]);
    UT_INT(u.lp.pipes_n, IO_PIPES_KEPT);
    io_ut_pump_close(&u);
}
