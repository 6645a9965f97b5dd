/* up_: pickers on endpoints that never connect, then pools on real sockets of the epoll engine with a clock of our own. */

enum { UP_UT_MAX = 8 };
struct up_ut {
    struct io_loop lp;
    struct up up;
    struct rt_backend *b;
    struct up_group *g;
    uint32_t hits[UP_UT_MAX];
};

static struct rt_backend *up_ut_backend(const uint32_t *weights, uint32_t n, enum rt_balance balance)
{
    struct rt_backend *b = calloc(1, sizeof *b + n * sizeof b->ep[0]);

    b->name = S("b");
    b->hash = 77;
    b->balance = (uint8_t)balance;
    b->keepalive = 4;
    b->keepalive_ms = 1000;
    b->keepalive_life_ms = 60000;
    b->max_fails = 2;
    b->fail_ms = 1000;
    b->n = n;
    for (uint32_t i = 0; i < n; i++) {
        b->ep[i].weight = weights[i];
        b->ep[i].addr = (struct net_addr){.family = AF_INET, .ip = {[10] = 0xff, [11] = 0xff, 127, 0, 0, 1}, .port = (uint16_t)(9000 + i)};
        b->ep[i].hash = 1000 + i;
    }
    return b;
}

static void up_ut_open(struct up_ut *u, const uint32_t *weights, uint32_t n, enum rt_balance balance)
{
    memset(u, 0, sizeof *u);
    UT_CHECK(io_loop_open(&u->lp, &ep_ops, 0) == 0);
    up_init(&u->up, &u->lp);
    u->up.random = 1;
    u->b = up_ut_backend(weights, n, balance);
    u->g = up_group_for(&u->up, u->b, 1);
}

static void up_ut_close(struct up_ut *u)
{
    up_fini(&u->up);
    io_loop_close(&u->lp);
    free(u->b);
}

static int up_ut_pick(struct up_ut *u, struct up_choice c)
{
    int i = up_pick(&u->up, u->g, u->b, c);

    if (i >= 0) u->hits[i]++;
    return i;
}

UT(up_round_robin_is_exact)
{
    static const struct { int line; uint32_t n, w[UP_UT_MAX]; } rows[] = {
        UT_ROW(1, {1}), UT_ROW(3, {1, 1, 1}), UT_ROW(3, {5, 1, 1}), UT_ROW(4, {10, 20, 30, 40}), UT_ROW(3, {0, 1, 2}), UT_ROW(2, {7, 7}), UT_ROW(8, {1, 2, 3, 4, 5, 6, 7, 100}),
        UT_ROW(2, {1, 65535}),
    };

    UT_EACH(r, rows) {
        struct up_ut u;
        uint32_t total = 0;

        up_ut_open(&u, r->w, r->n, RT_ROUND_ROBIN);
        for (uint32_t i = 0; i < r->n; i++) total += r->w[i];
        for (int turn = 0; turn < 3; turn++) {
            memset(u.hits, 0, sizeof u.hits);
            if (u.g->equal) total = r->n;
            u.g->cursor = total * 1000u;                             /* the counter's wrap is not what is tested */
            for (uint32_t k = 0; k < total; k++) up_ut_pick(&u, (struct up_choice){0});
            for (uint32_t i = 0; i < r->n; i++) UT_INT(u.hits[i], u.g->equal ? 1 : r->w[i]);
        }
        up_ut_close(&u);
    }
}

UT(up_round_robin_spreads_heavy_endpoints)
{
    static const uint32_t w[] = {5, 1, 1};
    struct up_ut u;
    int last = -1, run = 0, longest = 0;

    up_ut_open(&u, w, 3, RT_ROUND_ROBIN);
    for (int k = 0; k < 700; k++) {
        int i = up_ut_pick(&u, (struct up_choice){0});

        run = i == last ? run + 1 : 1;
        last = i;
        if (run > longest) longest = run;
    }
    UT_CHECK(longest <= 4);
    up_ut_close(&u);
}

UT(up_tried_endpoints_are_passed_over)
{
    static const uint32_t w[] = {1, 1, 1, 1};
    struct up_ut u;

    for (int balance = RT_ROUND_ROBIN; balance <= RT_HASH; balance++) {
        up_ut_open(&u, w, 4, (enum rt_balance)balance);
        for (uint64_t tried = 0; tried < 16; tried++)
            for (int k = 0; k < 20; k++) {
                int i = up_ut_pick(&u, (struct up_choice){.tried = tried, .hash = (uint64_t)k});

                if (tried == 15) UT_INT(i, -1);
                else UT_CHECK(i >= 0 && !(tried >> i & 1));
            }
        up_ut_close(&u);
    }
}

UT(up_weight_zero_gets_nothing)
{
    static const uint32_t w[] = {0, 3, 0};
    static const uint32_t none[] = {0, 0};
    struct up_ut u;

    for (int balance = RT_ROUND_ROBIN; balance <= RT_HASH; balance++) {
        up_ut_open(&u, w, 3, (enum rt_balance)balance);
        for (int k = 0; k < 100; k++) UT_INT(up_ut_pick(&u, (struct up_choice){.hash = (uint64_t)k}), 1);
        up_ut_close(&u);
        up_ut_open(&u, none, 2, (enum rt_balance)balance);
        UT_INT(up_ut_pick(&u, (struct up_choice){0}), -1);
        up_ut_close(&u);
    }
}

UT(up_least_conn_and_ewma_weigh_what_is_open)
{
    static const uint32_t w[] = {1, 1, 2};
    struct up_ut u;

    up_ut_open(&u, w, 3, RT_LEAST_CONN);
    for (int k = 0; k < 40; k++) up_pool_at(&u.up, u.g, u.b, (uint32_t)up_ut_pick(&u, (struct up_choice){0}))->active_n++;
    UT_INT(u.hits[0], 10);
    UT_INT(u.hits[1], 10);
    UT_INT(u.hits[2], 20);                                           /* twice the weight, twice the connections */
    for (uint32_t i = 0; i < 3; i++) up_pool_at(&u.up, u.g, u.b, i)->active_n = 0;
    up_ut_close(&u);

    up_ut_open(&u, w, 2, RT_EWMA);
    for (uint32_t i = 0; i < 2; i++) up_succeeded(up_pool_at(&u.up, u.g, u.b, i), i ? 100000 : 1000);
    for (int k = 0; k < 1000; k++) up_ut_pick(&u, (struct up_choice){0});
    UT_CHECK(u.hits[0] > 650 && u.hits[0] < 850);                    /* the better of two: three of four */
    up_ut_close(&u);
}

UT(up_random_and_ip_hash)
{
    static const uint32_t w[] = {1, 1, 2};
    struct up_ut u;

    up_ut_open(&u, w, 3, RT_RANDOM);
    for (int k = 0; k < 4000; k++) up_ut_pick(&u, (struct up_choice){0});
    UT_CHECK(u.hits[0] > 500 && u.hits[1] > 500 && u.hits[2] > 1500);
    up_ut_close(&u);
}

/* Hashing: keys are spread by weight, a key stays where it is, and only keys of endpoints that go or come move. */
UT(up_hash_spreads_by_weight_and_moves_few)
{
    enum { KEYS = 20000 };
    static const struct { int line; uint32_t n, w[UP_UT_MAX]; } rows[] = {
        UT_ROW(2, {1, 1}), UT_ROW(5, {1, 1, 1, 1, 1}), UT_ROW(3, {1, 2, 5}), UT_ROW(4, {100, 0, 300, 600}), UT_ROW(8, {1, 2, 3, 4, 5, 6, 7, 100}),
    };

    UT_EACH(r, rows) {
        struct up_ut u, fewer;
        uint32_t total = 0, moved = 0, gone = r->n - 1;

        up_ut_open(&u, r->w, r->n, RT_HASH);
        up_ut_open(&fewer, r->w, gone, RT_HASH);         /* without the last endpoint */
        for (uint32_t i = 0; i < r->n; i++) total += r->w[i];
        for (uint64_t k = 0; k < KEYS; k++) {
            uint64_t key = str_hash(str_of(&k, sizeof k));
            int i = up_ut_pick(&u, (struct up_choice){.hash = key}), j = up_ut_pick(&fewer, (struct up_choice){.hash = key});

            UT_INT(up_pick(&u.up, u.g, u.b, (struct up_choice){.hash = key}), i);
            if (i != (int)gone) moved += i != j;
        }
        UT_INT(moved, 0);
        for (uint32_t i = 0; i < r->n; i++) {
            double share = (double)r->w[i] / total * KEYS, d = u.hits[i] - share;

            UT_CHECK(d * d < 16 * share + 1);            /* four standard deviations */
        }
        up_ut_close(&u);
        up_ut_close(&fewer);
    }
}

/* A large service: by turns each endpoint gets exactly its share; hashing leaves none much behind, and one endpoint more takes keys only to itself. */
UT(up_5000_endpoints)
{
    enum { N = 5000, KEYS = 20000 };
    static uint32_t w[N + 1], hits[N];
    struct up_ut u, more;
    uint32_t most = 0, none = 0, to_new = 0, uneven = 0;

    for (uint32_t i = 0; i <= N; i++) w[i] = 1;
    up_ut_open(&u, w, N, RT_ROUND_ROBIN);
    for (uint32_t k = 0; k < 3 * N; k++) hits[up_pick(&u.up, u.g, u.b, (struct up_choice){0})]++;
    for (uint32_t i = 0; i < N; i++) uneven += hits[i] != 3;
    UT_INT(uneven, 0);
    up_ut_close(&u);
    memset(hits, 0, sizeof hits);
    up_ut_open(&u, w, N, RT_HASH);
    up_ut_open(&more, w, N + 1, RT_HASH);
    for (uint64_t k = 0; k < KEYS; k++) {
        struct up_choice c = {.hash = str_hash(str_of(&k, sizeof k))};
        int i = up_pick(&u.up, u.g, u.b, c), j = up_pick(&more.up, more.g, more.b, c);

        UT_CHECK(i == j || j == N);
        to_new += j == N;
        hits[i]++;
    }
    for (uint32_t i = 0; i < N; i++) {
        if (hits[i] > most) most = hits[i];
        none += !hits[i];
    }
    UT_CHECK(most <= 18 && none > 40 && none < 150 && to_new <= 18); /* Poisson with mean 4: 92 of 5,000 get none */
    up_ut_close(&u);
    up_ut_close(&more);
}

UT(up_hash_passes_a_full_endpoint_over)
{
    static const uint32_t w[] = {1, 1, 1, 1};
    struct up_ut u;
    int first;

    up_ut_open(&u, w, 4, RT_HASH);
    for (int k = 0; k < UP_FULL_MIN * 2; k++) up_pool_at(&u.up, u.g, u.b, (uint32_t)up_ut_pick(&u, (struct up_choice){.hash = 5}))->active_n++;
    first = up_pick(&u.up, u.g, u.b, (struct up_choice){.hash = 5});
    for (uint32_t i = 0; i < 4; i++) UT_CHECK(u.hits[i] <= UP_FULL_MIN);
    UT_CHECK(first >= 0 && u.hits[first] < UP_FULL_MIN);
    up_ut_close(&u);
}

UT(up_hash_by_reads_what_it_names)
{
    static const char head[] = "GET /p%61th?id=7&b=2 HTTP/1.1\r\nHost: A.test\r\nX-User: joe\r\nCookie: a=1; sid=s1\r\nCookie: other=9\r\n\r\n";
    static const struct { int line; const char *by, *same, *value; } rows[] = {
        UT_ROW("$http_x_user", "x", "joe"), UT_ROW("$http_X_User", "x", "joe"), UT_ROW("$cookie_sid", "x", "s1"), UT_ROW("$cookie_other", "x", "9"),
        UT_ROW("$cookie_none", "x", ""), UT_ROW("$http_none", "x", ""), UT_ROW("$arg_id", "x", "7"), UT_ROW("$arg_b", "x", "2"), UT_ROW("$arg_", "x", ""),
        UT_ROW("$request_uri", "x", "/p%61th?id=7&b=2"), UT_ROW("$uri", "x", "/path"), UT_ROW("$host", "x", "a.test"), UT_ROW("text", "x", "text"),
    };
    struct h1_limits limits = {.line_bytes = 8192, .head_bytes = 8192, .fields = 100};
    struct net_addr client = {.family = AF_INET, .ip = {1, 2, 3}};
    struct h1_head h;
    struct up_request q = {.msg = &h.msg, .head = (const uint8_t *)head, .client = &client, .path = S("/path"), .host = S("a.test")};

    h1_head_init(&h, true, 0);
    UT_INT(h1_request_feed(&h, (const uint8_t *)head, sizeof head - 1, &limits), sizeof head - 1);
    UT_EACH(r, rows) UT_CHECK(up_hash_by(str_z(r->by), &q) == str_hash_mix(0, str_hash(str_z(r->value))));
    UT_CHECK(up_hash_by(S("$remote_addr"), &q) == up_hash_by(S("$binary_remote_addr"), &q));
    UT_CHECK(up_hash_by(S("$host$uri"), &q) == str_hash_mix(str_hash_mix(0, str_hash(S("a.test"))), str_hash(S("/path"))));
    UT_CHECK(up_hash_by(S("$host-$uri"), &q) != up_hash_by(S("$host$uri"), &q));
}

UT(up_slow_start_gives_a_share_that_grows)
{
    static const uint32_t w[] = {1, 1};
    static const struct { int line; uint32_t age_ms, low, high; } rows[] = { /* of 10,000 picks of two, half would be 5,000 */
        UT_ROW(1, 400, 650), UT_ROW(2500, 1150, 1350), UT_ROW(5000, 2400, 2600), UT_ROW(7500, 3600, 3900), UT_ROW(10000, 5000, 5000),
    };
    struct up_ut u;
    struct up_pool *p;

    up_ut_open(&u, w, 2, RT_ROUND_ROBIN);
    u.b->slow_ms = 10000;
    p = up_pool_at(&u.up, u.g, u.b, 0);
    up_pool_at(&u.up, u.g, u.b, 1);
    for (uint32_t i = 0; i < u.b->max_fails; i++) up_failed(&u.up, p, u.b);
    u.lp.clk.now_ms += u.b->fail_ms;
    UT_EACH(r, rows) {
        uint64_t now = u.lp.clk.now_ms;

        u.lp.clk.now_ms += r->age_ms;
        memset(u.hits, 0, sizeof u.hits);
        for (int k = 0; k < 10000; k++) up_ut_pick(&u, (struct up_choice){0});
        UT_CHECK(u.hits[0] >= r->low && u.hits[0] <= r->high);
        u.lp.clk.now_ms = now;
    }
    UT_CHECK(up_ut_pick(&u, (struct up_choice){.tried = 2}) == 0);   /* nobody else is left */
    up_ut_close(&u);
}

UT(up_no_endpoint_that_is_out_serves_for_one_that_starts_or_is_full)
{
    static const uint32_t w[] = {1, 1};
    struct up_health *down;
    struct up_ut u;
    struct up_pool *p;

    for (int balance = RT_ROUND_ROBIN; balance <= RT_HASH; balance++)
        for (int checked = 0; checked < 2; checked++) {
            up_ut_open(&u, w, 2, (enum rt_balance)balance);
            u.b->slow_ms = 10000;
            u.b->check_ms = checked ? 1000 : 0;
            down = up_health_add(up_health_key(u.b->hash, u.b->ep[1].hash));
            atomic_store(&down->down, 1);
            UT_CHECK(up_group_for(&u.up, u.b, 1) == u.g);
            p = up_pool_at(&u.up, u.g, u.b, 0);
            p->back_ms = u.lp.clk.now_ms - 1;                        /* just back */
            if (!checked) up_pool_at(&u.up, u.g, u.b, 1)->down_until_ms = u.lp.clk.now_ms + 1000;
            for (int k = 0; k < 200; k++) up_ut_pick(&u, (struct up_choice){.hash = (uint64_t)k});
            p->back_ms = 0;
            p->active_n = UP_FULL_MIN * 10;
            for (int k = 0; k < 200; k++) up_ut_pick(&u, (struct up_choice){.hash = (uint64_t)k});
            UT_INT(u.hits[0], 400);
            UT_INT(up_ut_pick(&u, (struct up_choice){.tried = 1}), 1); /* nobody else is left */
            p->active_n = 0;
            up_health_drop(down);
            up_ut_close(&u);
        }
}

UT(up_checked_endpoints_are_out_while_they_are_down)
{
    static const uint32_t w[] = {1, 1, 1};
    struct up_health *h;
    struct up_ut u;

    up_ut_open(&u, w, 3, RT_ROUND_ROBIN);
    u.b->check_ms = 1000;
    h = up_health_add(up_health_key(u.b->hash, u.b->ep[1].hash));
    UT_CHECK(h && up_health_find(up_health_key(u.b->hash, u.b->ep[1].hash)) == h);
    UT_CHECK(up_group_for(&u.up, u.b, 1) == u.g);                    /* sees that the table has changed */
    atomic_store(&h->down, 1);
    for (int k = 0; k < 30; k++) up_ut_pick(&u, (struct up_choice){0});
    UT_INT(u.hits[1], 0);
    UT_INT(up_pick(&u.up, u.g, u.b, (struct up_choice){.tried = 5}), 1); /* the last one is used */
    atomic_store(&h->down, 0);
    memset(u.hits, 0, sizeof u.hits);
    for (int k = 0; k < 30; k++) up_ut_pick(&u, (struct up_choice){0});
    UT_INT(u.hits[1], 10);
    up_health_drop(h);
    UT_CHECK(!up_health_find(up_health_key(u.b->hash, u.b->ep[1].hash)));
    up_ut_close(&u);
}

UT(up_health_table_ends_where_it_says)
{
    struct up_health *first = up_health_add(up_health_key(1, 0));

    for (uint64_t i = 1; i < UP_HEALTH_MAX; i++) UT_CHECK(up_health_add(up_health_key(1, i)) != NULL);
    UT_CHECK(!up_health_add(up_health_key(2, 0)));
    UT_CHECK(up_health_add(up_health_key(1, 0)) == first);           /* those that are there stay */
    for (uint64_t i = 0; i < UP_HEALTH_MAX; i++) {
        struct up_health *h = up_health_find(up_health_key(1, i));

        UT_CHECK(h != NULL);
        if (h) up_health_drop(h);
    }
    UT_INT(rj.health_n, 0);
    UT_CHECK(up_health_add(up_health_key(3, 0)) != NULL);
    up_health_drop(up_health_find(up_health_key(3, 0)));
}

/* Endpoints that come and go: a place says nothing of the one that had it, and no search has to pass those of all that ever were. */
UT(up_health_forgets_what_is_gone)
{
    struct up_health *h;
    uint32_t marks = 0;

    for (uint64_t i = 0; i < 3 * UP_HEALTH_PLACES; i++) {
        h = up_health_add(up_health_key(9, i));
        UT_REQUIRE(h != NULL);
        UT_INT(atomic_load(&h->back_ms), 0);
        atomic_store(&h->back_ms, 77);
        if (i >= 100) up_health_drop(up_health_find(up_health_key(9, i - 100)));
        UT_CHECK(i < 50 || up_health_find(up_health_key(9, i - 50)) != NULL);
    }
    for (uint64_t i = 3 * UP_HEALTH_PLACES - 100; i < 3 * UP_HEALTH_PLACES; i++) up_health_drop(up_health_find(up_health_key(9, i)));
    for (uint32_t i = 0; i < UP_HEALTH_PLACES; i++) marks += atomic_load(&rj.health[i].key) != 0;
    UT_INT(marks, 0);
    UT_INT(rj.health_n, 0);
}

UT(up_retry_budget_is_a_part_of_the_requests)
{
    static const uint32_t w[] = {1};
    struct up_ut u;
    uint32_t spent = 0;

    up_ut_open(&u, w, 1, RT_ROUND_ROBIN);
    u.b->retry_percent = 20;
    u.lp.clk.now_ms = 5000;
    up_earn(&u.up, u.g, u.b);
    while (up_spend(u.g)) spent++;
    UT_INT(spent, 10);                                               /* a burst that needs no traffic before it */
    for (int k = 0; k < 100; k++) up_earn(&u.up, u.g, u.b);
    for (spent = 0; up_spend(u.g);) spent++;
    UT_INT(spent, 20);
    for (int k = 0; k < 100000; k++) up_earn(&u.up, u.g, u.b);
    for (spent = 0; up_spend(u.g);) spent++;
    UT_INT(spent, UP_BUDGET_MAX);
    u.lp.clk.now_ms += 3000;
    u.b->retry_percent = 0;
    up_earn(&u.up, u.g, u.b);
    for (spent = 0; up_spend(u.g);) spent++;
    UT_INT(spent, 3);                                                /* one a second */
    up_ut_close(&u);
}

UT(up_failures_take_an_endpoint_out_but_never_the_last)
{
    static const uint32_t w[] = {1, 1};
    struct up_ut u;
    struct up_pool *p[2];

    up_ut_open(&u, w, 2, RT_ROUND_ROBIN);
    for (uint32_t i = 0; i < 2; i++) p[i] = up_pool_at(&u.up, u.g, u.b, i);
    up_failed(&u.up, p[0], u.b);
    for (int k = 0; k < 4; k++) up_ut_pick(&u, (struct up_choice){0});
    UT_INT(u.hits[0], 2);                                            /* max-fails is 2 */
    up_failed(&u.up, p[0], u.b);
    for (int k = 0; k < 4; k++) UT_INT(up_ut_pick(&u, (struct up_choice){0}), 1);
    up_failed(&u.up, p[1], u.b);
    up_failed(&u.up, p[1], u.b);
    memset(u.hits, 0, sizeof u.hits);
    for (int k = 0; k < 4; k++) up_ut_pick(&u, (struct up_choice){0});
    UT_INT(u.hits[0], 2);                                            /* all are out: all are used */
    up_succeeded(p[1], 10);
    for (int k = 0; k < 4; k++) UT_INT(up_ut_pick(&u, (struct up_choice){0}), 1);
    u.lp.clk.now_ms += 1001;                                         /* fail-timeout is over */
    memset(u.hits, 0, sizeof u.hits);
    for (int k = 0; k < 4; k++) up_ut_pick(&u, (struct up_choice){0});
    UT_INT(u.hits[0], 2);
    up_failed(&u.up, p[0], u.b);
    u.lp.clk.now_ms += 1001;                                         /* failures far apart do not add up */
    up_failed(&u.up, p[0], u.b);
    UT_CHECK(p[0]->down_until_ms <= u.lp.clk.now_ms);
    u.b->max_fails = 0;
    for (int k = 0; k < 10; k++) up_failed(&u.up, p[0], u.b);
    UT_CHECK(p[0]->down_until_ms <= u.lp.clk.now_ms);
    UT_INT(p[0]->failures, 14);
    up_ut_close(&u);
}

UT(up_state_survives_a_publish)
{
    static const uint32_t w[] = {1, 1, 1};
    struct up_ut u;
    struct up_pool *p;
    struct rt_backend *other;
    struct up_group *g;

    up_ut_open(&u, w, 3, RT_ROUND_ROBIN);
    p = up_pool_at(&u.up, u.g, u.b, 1);
    p->ewma_us = 5;
    other = up_ut_backend(w, 2, RT_ROUND_ROBIN);                     /* one endpoint is gone */
    g = up_group_for(&u.up, other, 2);
    UT_CHECK(g == u.g && g->n == 2 && g->seen == other);
    UT_CHECK(up_pool_at(&u.up, g, other, 1) == p && p->ewma_us == 5);
    mem_fail_at = 1;
    UT_CHECK(up_pool_at(&u.up, g, other, 0) == NULL);                /* no memory: not found, nothing breaks */
    mem_fail_at = 1;
    other->hash = 78;
    UT_CHECK(up_group_for(&u.up, other, 2) == NULL);
    mem_fail_at = 0;
    u.lp.clk.now_ms += UP_FORGET_MS;
    up_on_sweep(&u.up.sweep);                                        /* what nobody used for long goes */
    UT_CHECK(u.up.pools[1001 % UP_TABLE] == NULL && u.up.groups[77 % UP_TABLE] == NULL);
    free(other);
    up_ut_close(&u);
}

/* ---- pools, on real sockets ---- */

static struct { int connected, received; struct up_conn *last; } up_ut_seen;

static void up_ut_event(struct io_sock *s, enum io_event ev, int res, struct mem_buf *b)
{
    (void)b;
    if (ev == IO_CONNECT && res == 0) up_ut_seen.connected++;
    if (ev == IO_RECV) up_ut_seen.received++;
    up_ut_seen.last = RJ_CONTAINER(s, struct up_conn, s);
}

static struct up_conn *up_ut_connect(struct up_ut *u, struct up_pool *p)
{
    int err, had = up_ut_seen.connected;
    struct up_conn *c = up_connect(&u->up, p, up_ut_event, &err);

    for (int i = 0; i < 100 && c && up_ut_seen.connected == had; i++) io_turn(&u->lp, 50);
    UT_INT(up_ut_seen.connected, had + 1);
    return c;
}

static int up_ut_accept(int fd)
{
    struct sockaddr_in6 sa;
    socklen_t n = sizeof sa;

    return sys_accept(fd, &sa, &n, SOCK_CLOEXEC);
}

UT(up_pools_keep_reuse_and_close)
{
    static const uint32_t w[] = {1};
    struct sockaddr_in sa = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof sa;
    struct up_ut u;
    struct up_conn *c[3];
    struct up_pool *p;
    int listener = sys_socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), far[3];

    UT_REQUIRE(sys_bind(listener, &sa, sizeof sa) == 0 && sys_listen(listener, 10) == 0 && sys_getsockname(listener, &sa, &n) == 0);
    up_ut_open(&u, w, 1, RT_ROUND_ROBIN);
    u.b->ep[0].addr.port = ntohs(sa.sin_port);
    u.b->keepalive = 2;
    u.b->keepalive_requests = 3;
    p = up_pool_at(&u.up, u.g, u.b, 0);
    for (int i = 0; i < 3; i++) c[i] = up_ut_connect(&u, p), far[i] = up_ut_accept(listener);
    UT_INT(p->active_n, 3);
    for (int i = 0; i < 3; i++) up_release(c[i], false);
    UT_INT(p->idle_n, 2);                                            /* upstream-keepalive-connections: the third is closed */
    UT_INT(p->active_n, 0);
    UT_CHECK(up_take(&u.up, p) == c[1]);                             /* the newest first */
    up_release(c[1], true);
    UT_CHECK(up_take(&u.up, p) == c[1]);
    up_release(c[1], true);                                          /* its third request: upstream-keepalive-requests */
    UT_INT(p->idle_n, 1);
    for (int i = 0; i < 20 && u.up.conns.used > 1; i++) io_turn(&u.lp, 10);
    UT_INT(u.up.conns.used, 1);
    UT_CHECK(p->idle.next == &c[0]->link);
    sys_send(far[0], "x", 1, MSG_NOSIGNAL);                          /* bytes that nobody asked for: never reused */
    for (int i = 0; i < 50 && u.up.conns.used; i++) io_turn(&u.lp, 10);
    UT_INT(p->idle_n, 0);
    UT_INT(u.up.conns.used, 0);
    UT_CHECK(up_take(&u.up, p) == NULL);
    for (int i = 0; i < 3; i++) sys_close(far[i]);

    c[0] = up_ut_connect(&u, p);
    far[0] = up_ut_accept(listener);
    up_release(c[0], false);
    sys_close(far[0]);                                               /* the peer closes an idle one */
    for (int i = 0; i < 50 && u.up.conns.used; i++) io_turn(&u.lp, 10);
    UT_INT(p->idle_n + u.up.conns.used, 0);

    c[0] = up_ut_connect(&u, p);
    far[0] = up_ut_accept(listener);
    p->keepalive_ms = 40;
    up_release(c[0], false);                                         /* upstream-keepalive-timeout */
    for (int i = 0; i < 100 && u.up.conns.used; i++) io_turn(&u.lp, 20);
    UT_INT(p->idle_n + u.up.conns.used, 0);
    sys_close(far[0]);

    c[0] = up_ut_connect(&u, p);
    far[0] = up_ut_accept(listener);
    c[0]->born_ms -= 60000;
    up_release(c[0], false);                                         /* upstream-keepalive-time */
    UT_INT(p->idle_n, 0);
    c[1] = up_ut_connect(&u, p);
    up_release(c[1], false);
    up_close_all_idle(&u.up);
    for (int i = 0; i < 50 && u.up.conns.used; i++) io_turn(&u.lp, 10);
    UT_INT(p->idle_n + p->active_n + u.up.conns.used, 0);
    sys_close(far[0]);
    sys_close(listener);
    up_ut_close(&u);
}
