/* log_: rings that wrap and drop, error texts that are wrapped. */

UT(log_ring_wraps_and_keeps_records_whole)
{
    static struct log_ring r = {.cap = 256};
    char want[65536], got[65536];
    size_t nwant = 0, ngot = 0;
    uint64_t seed = 6, dropped = 0;
    int fd[2];

    UT_REQUIRE(sys_pipe(fd, O_NONBLOCK) == 0);
    for (int i = 0; i < 1500; i++) {
        char line[128];
        int n = snprintf(line, sizeof line, "%d%.*s\n", i, (int)ut_random(&seed, 60), "............................................................");
        uint64_t before = atomic_load(&r.dropped);

        log_ring_put(&r, str_of(line, (size_t)n));
        if (atomic_load(&r.dropped) != before) {
            dropped++;
            UT_CHECK((uint64_t)n > r.cap - (atomic_load(&r.head) - atomic_load(&r.tail)));
        } else if (nwant + (size_t)n < sizeof want) {
            memcpy(want + nwant, line, (size_t)n);
            nwant += (size_t)n;
        }
        while (ut_random(&seed, 3) == 0) {
            long k = log_ring_drain(&r, fd[1]);

            if (k > 0) UT_CHECK(sys_read(fd[0], got + ngot, (size_t)k) == k);
            if (k > 0) ngot += (size_t)k;
        }
    }
    for (long k; (k = log_ring_drain(&r, fd[1])) > 0; ngot += (size_t)k) UT_CHECK(sys_read(fd[0], got + ngot, (size_t)k) == k);
    UT_CHECK(dropped > 10 && nwant > 10 * r.cap && nwant < sizeof want - 128);
    UT_INT(atomic_load(&r.dropped), dropped);
    UT_BYTES(got, ngot, want, nwant);
    UT_INT(log_ring_drain(&r, fd[1]), 0);
    sys_unmap(r.p, r.cap);
    sys_close(fd[0]);
    sys_close(fd[1]);
}

UT(log_ring_loses_nothing_when_the_reader_stops)
{
    static struct log_ring r = {.cap = 256};
    uint8_t text[256];
    int fd[2];

    UT_REQUIRE(sys_pipe(fd, O_NONBLOCK) == 0);
    while (sys_write(fd[1], text, sizeof text) > 0) {}
    memset(text, 'x', sizeof text);
    log_ring_put(&r, str_of(text, 256));                             /* exactly full */
    UT_INT(atomic_load(&r.dropped), 0);
    log_ring_put(&r, str_of(text, 1));
    UT_INT(atomic_load(&r.dropped), 1);
    UT_INT(log_ring_drain(&r, fd[1]), -EAGAIN);
    UT_INT(atomic_load(&r.head) - atomic_load(&r.tail), 256);
    sys_unmap(r.p, r.cap);
    sys_close(fd[0]);
    sys_close(fd[1]);
}

UT(log_lines_of_a_worker_go_to_its_ring)
{
    static struct rj_thread t = {.index = 0, .log.cap = 8192};
    enum log_level level = rj.log_level;
    struct str line;

    rj_me = &t;
    rj.log_level = LOG_INFO;
    log_info("px", "one\ntwo\x1b %d", 3);
    log_debug("px", "not seen");
    rj.log_level = LOG_ERROR;
    log_warn("px", "not seen");
    rj_me = NULL;
    rj.log_level = level;
    line = str_of(t.log.p, atomic_load(&t.log.head));
    UT_CHECK(line.n > 24 && str_ends(line, S(" info px: one?two? 3\n")) && line.p[23] == 'Z');
    UT_INT(str_find(line, '\n'), line.n - 1);
    sys_unmap(t.log.p, t.log.cap);
}

UT(log_errors_are_wrapped_and_bounded)
{
    struct log_err e;
    char big[600];

    UT_INT(log_fail(&e, "found %d", 7), -1);
    UT_INT(log_wrap(&e, "field %s", "x"), -1);
    UT_INT(log_wrap(&e, "object"), -1);
    UT_TEXT(e.text, "object: field x: found 7");
    memset(big, 'b', sizeof big - 1);
    big[sizeof big - 1] = 0;
    log_fail(&e, "%s", big);
    UT_INT(strlen(e.text), sizeof e.text - 1);
    log_wrap(&e, "%.20s", big);
    UT_INT(strlen(e.text), sizeof e.text - 1);
    UT_CHECK(strncmp(e.text + 20, ": bbb", 5) == 0);
    log_wrap(&e, "%s", big);
    UT_INT(strlen(e.text), sizeof e.text - 1);
    UT_INT(log_fail(NULL, "x"), -1);
    UT_INT(log_wrap(NULL, "x"), -1);
}
