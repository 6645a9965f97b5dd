/* mtr_: counters of a thread, requests by route. */

UT(mtr_counts_requests_by_class_and_duration)
{
    static const struct { int line; unsigned status; uint64_t us; int klass, bucket; } rows[] = {
        UT_ROW(200, 0, 2, 0), UT_ROW(204, 500, 2, 0), UT_ROW(301, 501, 3, 1), UT_ROW(404, 25000, 4, 5), UT_ROW(599, 5000000, 5, 10), UT_ROW(101, 5000001, 1, 11),
        UT_ROW(0, 1, 0, 0), UT_ROW(600, 1, 0, 0), UT_ROW(999, UINT32_MAX, 0, 11),
    };
    static struct rj_thread t;

    rj_me = &t;
    UT_EACH(r, rows) {
        struct mtr_route before = {0}, *m = atomic_load(&t.mtr.route[3]);

        if (m) before = *m;
        mtr_request(3, r->status, r->us);
        m = atomic_load(&t.mtr.route[3]);
        if (!UT_CHECK(m != NULL)) continue;
        UT_INT(m->by_class[r->klass], before.by_class[r->klass] + 1);
        UT_INT(m->bucket[r->bucket], before.bucket[r->bucket] + 1);
        UT_CHECK(m->sum_us == before.sum_us + r->us);
    }
    mtr_request(MTR_ROUTES_MAX, 200, 1);                             /* out of the table: not counted, nothing breaks */
    mem_fail_at = 1;
    mtr_request(4, 200, 1);
    UT_CHECK(atomic_load(&t.mtr.route[4]) == NULL);
    mtr_add(MTR_ACCEPTED, 2);
    mtr_add(MTR_ACCEPTED, 3);
    mtr_move(MTR_UP_IDLE, 1);
    mtr_move(MTR_UP_IDLE, -2);
    UT_INT(mtr_read(&t.mtr.counter[MTR_ACCEPTED]), 5);
    UT_INT((int64_t)mtr_read(&t.mtr.gauge[MTR_UP_IDLE]), -1);
    mem_free(atomic_load(&t.mtr.route[3]));
    rj_me = NULL;
    mtr_add(MTR_ACCEPTED, 1);                                        /* without a thread: nowhere */
    mtr_request(3, 200, 1);
}
