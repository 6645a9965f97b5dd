/* lm_: what passes at which time, who is counted with whom, what threads do to one another, what a full table forgets. */

enum { LM_UT_S = LM_TICKS_PER_S };

UT(lm_takes)
{
    enum { GIVE = 1 };
    static const struct rt_rate second = {LM_UT_S, 2ull * LM_UT_S}, minute = {60ull * LM_UT_S, 0}, tenth = {LM_UT_S / 10, LM_UT_S};
    static const struct { int line; const struct rt_rate *rate; uint64_t at, wait; int what; } rows[] = {
        UT_ROW(&second, 100ull * LM_UT_S, 0, 0),                   /* a full bucket: two requests ahead, and the one that is due */
        UT_ROW(&second, 100ull * LM_UT_S, 0, 0),
        UT_ROW(&second, 100ull * LM_UT_S, 0, 0),
        UT_ROW(&second, 100ull * LM_UT_S, LM_UT_S, 0),
        UT_ROW(&second, 100ull * LM_UT_S + 1, LM_UT_S - 1, 0),     /* a refusal uses nothing */
        UT_ROW(&second, 99ull * LM_UT_S, 2 * LM_UT_S, 0),          /* a thread whose clock is behind */
        UT_ROW(&second, 101ull * LM_UT_S - 1, 1, 0),
        UT_ROW(&second, 101ull * LM_UT_S, 0, 0),
        UT_ROW(&second, 101ull * LM_UT_S, LM_UT_S, 0),
        UT_ROW(&second, 101ull * LM_UT_S, 0, GIVE),
        UT_ROW(&second, 101ull * LM_UT_S, 0, 0),
        UT_ROW(&second, 101ull * LM_UT_S, LM_UT_S, 0),
        UT_ROW(&second, 5000ull * LM_UT_S, 0, 0),                  /* it never holds more than when it is full */
        UT_ROW(&second, 5000ull * LM_UT_S, 0, 0),
        UT_ROW(&second, 5000ull * LM_UT_S, 0, 0),
        UT_ROW(&second, 5000ull * LM_UT_S, LM_UT_S, 0),
        UT_ROW(&tenth, 5000ull * LM_UT_S, LM_UT_S / 10, 0),        /* another limit since: as much as it can be over that one, no more */
        UT_ROW(&tenth, 5000ull * LM_UT_S + LM_UT_S / 10, 0, 0),
        UT_ROW(&tenth, 5000ull * LM_UT_S + LM_UT_S / 10, LM_UT_S / 10, 0),
        UT_ROW(&minute, 9000ull * LM_UT_S, 0, 0),
        UT_ROW(&minute, 9000ull * LM_UT_S, 60ull * LM_UT_S, 0),
        UT_ROW(&minute, 9059ull * LM_UT_S, LM_UT_S, 0),
        UT_ROW(&minute, 9060ull * LM_UT_S, 0, 0),
    };

    lm_open(RT_LIMITS_RATE);
    UT_REQUIRE(rj.lm.buckets && !rj.lm.places);
    UT_EACH(r, rows) {
        if (r->what == GIVE) lm_give(77, r->rate);
        else UT_INT(lm_take(77, r->rate, r->at), r->wait);
    }
    lm_close();
    UT_CHECK(!rj.lm.buckets);
}

UT(lm_keys)
{
    static const struct { int line; const char *a, *b; bool same; } rows[] = {
        UT_ROW("192.0.2.1", "192.0.2.1", true),
        UT_ROW("192.0.2.1", "192.0.2.2", false),
        UT_ROW("192.0.2.1", "::ffff:192.0.2.1", true),
        UT_ROW("::ffff:192.0.2.1", "::ffff:192.0.2.2", false),
        UT_ROW("2001:db8:0:1::1", "2001:db8:0:1:ffff:ffff:ffff:ffff", true),
        UT_ROW("2001:db8:0:1::1", "2001:db8:0:2::1", false),
        UT_ROW("2001:db8::1", "2001:db8:1::1", false),
        UT_ROW("fe80::1", "fe80::2", true),
    };

    lm_open(RT_LIMITS_RATE);
    UT_EACH(r, rows) {
        struct net_addr a, b;

        UT_CHECK(str_to_ip(str_z(r->a), &a) && str_to_ip(str_z(r->b), &b));
        UT_CHECK((lm_key(&a, 5) == lm_key(&b, 5)) == r->same);
        UT_CHECK(lm_key(&a, 5) != lm_key(&a, 6) && lm_key(&a, 5) & 1);
    }
    lm_close();
}

/* Keys of one set; the ninth takes the place of the bucket that is fullest. */
UT(lm_forgets_the_fullest_bucket)
{
    static const struct rt_rate rate = {LM_UT_S, 10ull * LM_UT_S};
    const uint64_t now = 1000ull * LM_UT_S;

    lm_open(RT_LIMITS_RATE);
    for (uint64_t k = 1; k <= LM_WAYS; k++)
        for (uint64_t n = 0; n < (k == 3 ? 2 : 11); n++) UT_INT(lm_take(7ull << 32 | k, &rate, now), 0);
    UT_INT(lm_take(7ull << 32 | (LM_WAYS + 1), &rate, now), 0);
    UT_INT(lm_take(8ull << 32 | 1, &rate, now), 0);                  /* of another set */
    for (uint64_t k = 1; k <= LM_WAYS + 1; k++) {
        bool kept = k != 3 && k <= LM_WAYS;

        if (k != 3) UT_INT(lm_take(7ull << 32 | k, &rate, now), kept ? LM_UT_S : 0);
    }
    lm_close();
}

UT(lm_places)
{
    _Atomic uint64_t *p[LM_WAYS + 2];
    const uint64_t set = 5;                                          /* keys of one set differ above it */

    lm_open(RT_LIMITS_CONNECTIONS);
    UT_REQUIRE(rj.lm.places && !rj.lm.buckets);
    UT_CHECK(lm_enter(1ull << 40 | set, 2, &p[0]) && lm_enter(1ull << 40 | set, 2, &p[1]));
    UT_CHECK(p[0] == p[1] && !lm_enter(1ull << 40 | set, 2, &p[2]) && !p[2]);
    UT_CHECK(lm_enter(1ull << 40 | set, 3, &p[2]) && p[2] == p[0]);  /* a higher limit since */
    lm_leave(p[0]);
    UT_CHECK(!lm_enter(1ull << 40 | set, 2, &p[3]));
    lm_leave(p[1]);
    UT_CHECK(lm_enter(1ull << 40 | set, 2, &p[1]) && p[1] == p[2]);
    for (uint64_t k = 2; k <= LM_WAYS; k++) UT_CHECK(lm_enter(k << 40 | set, 1, &p[k]) && p[k]);
    UT_CHECK(lm_enter(99ull << 40 | set, 1, &p[9]) && !p[9]);        /* no place left: not counted */
    UT_CHECK(!lm_enter(2ull << 40 | set, 1, &p[9]));                 /* nobody lost his */
    lm_leave(p[4]);
    UT_CHECK(lm_enter(99ull << 40 | set, 1, &p[9]) && p[9] == p[4]);
    UT_CHECK(!lm_enter(99ull << 40 | set, 1, &p[4]));
    UT_CHECK(lm_enter(4ull << 40 | set, 1, &p[4]) && !p[4]);
    lm_close();
}

/* As many clients as there are places: all sets serve, or a part of them would not be counted. */
UT(lm_places_are_all_used)
{
    struct net_addr a = {.family = AF_INET, .ip = {[10] = 0xff, [11] = 0xff, 10}};
    uint32_t used = 0;

    lm_open(RT_LIMITS_CONNECTIONS);
    UT_REQUIRE(rj.lm.places);
    for (uint32_t i = 0; i < LM_ENTRIES; i++) {
        _Atomic uint64_t *place;

        memcpy(a.ip + 12, &i, sizeof i);
        UT_CHECK(lm_enter(lm_key(&a, 5), 2, &place));
        used += place != NULL;
    }
    UT_CHECK(used > LM_ENTRIES / 10 * 8);
    lm_close();
}

struct lm_ut_thread {
    pthread_t id;
    uint64_t passed, most;
    _Atomic uint64_t *inside;
};

static void *lm_ut_work(void *arg)
{
    static const struct rt_rate rate = {LM_UT_S, 999ull * LM_UT_S};
    struct lm_ut_thread *t = arg;

    for (int i = 0; i < 20000; i++) {
        _Atomic uint64_t *place;
        uint64_t n;

        t->passed += !lm_take(4242, &rate, 1000000ull * LM_UT_S);
        if (!lm_enter(4242, 2, &place) || !place) continue;
        n = atomic_fetch_add_explicit(t->inside, 1, memory_order_relaxed) + 1;
        if (n > t->most) t->most = n;
        atomic_fetch_sub_explicit(t->inside, 1, memory_order_relaxed);
        lm_leave(place);
    }
    return NULL;
}

UT(lm_is_exact_between_threads)
{
    static const struct rt_rate rate = {LM_UT_S, 999ull * LM_UT_S};
    struct lm_ut_thread t[4] = {0};
    _Atomic uint64_t inside = 0, *place;
    uint64_t passed = 1, most = 0;

    lm_open(RT_LIMITS_RATE | RT_LIMITS_CONNECTIONS);
    UT_INT(lm_take(4242, &rate, 1000000ull * LM_UT_S), 0);
    UT_CHECK(lm_enter(4242, 2, &place));
    lm_leave(place);
    for (int i = 0; i < 4; i++) {
        t[i].inside = &inside;
        UT_REQUIRE(pthread_create(&t[i].id, NULL, lm_ut_work, &t[i]) == 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(t[i].id, NULL);
        passed += t[i].passed;
        if (t[i].most > most) most = t[i].most;
    }
    UT_INT(passed, 1000);
    UT_CHECK(most >= 1 && most <= 2);
    UT_INT(atomic_load_explicit(place, memory_order_relaxed) & ((1u << LM_COUNT_BITS) - 1), 0);
    lm_close();
}
