/* clk_: a wheel on a virtual clock. */

struct clk_ut_timer {
    struct clk_timer t;
    uint64_t due;                                                    /* 0: not armed */
    struct clk_wheel *w;
    uint32_t fired;
    bool again;
};

static uint64_t clk_ut_early, clk_ut_late, clk_ut_unasked;

static void clk_ut_fire(struct clk_timer *t)
{
    struct clk_ut_timer *u = RJ_CONTAINER(t, struct clk_ut_timer, t);

    if (!u->due) clk_ut_unasked++;
    else if (u->w->now_ms < u->due) clk_ut_early++;
    u->fired++;
    u->due = 0;
    if (!u->again) return;
    clk_arm(u->w, t, 50);                                            /* from inside: fires in a later run */
    u->due = u->w->now_ms + 50;
}

static void clk_ut_init(struct clk_wheel *w)
{
    clk_init(w);
    w->now_ms = 5000000;
    w->tick = w->now_ms / CLK_TICK_MS;
}

static void clk_ut_to(struct clk_wheel *w, uint64_t ms)
{
    w->now_ms = ms;
    w->now_ns = ms * 1000000;
    clk_run(w, ms);
}

UT(clk_fires_once_never_early_at_most_two_ticks_late)
{
    enum { N = 200 };
    static struct clk_wheel w;
    static struct clk_ut_timer t[N];
    uint64_t seed = 4;

    memset(t, 0, sizeof t);
    clk_ut_early = clk_ut_late = clk_ut_unasked = 0;
    clk_ut_init(&w);
    for (int i = 0; i < N; i++) t[i] = (struct clk_ut_timer){.t.fire = clk_ut_fire, .w = &w, .again = i % 50 == 0};
    for (int i = 0; i < 60000; i++) {
        struct clk_ut_timer *u = &t[ut_random(&seed, N)];
        uint64_t delay = ut_random(&seed, 10) ? ut_random(&seed, 3000) : ut_random(&seed, 100000); /* also beyond one turn of the wheel */

        switch (ut_random(&seed, 6)) {
        case 0: clk_disarm(&u->t); u->due = 0; break;
        case 1: clk_drop(&w, &u->t); u->due = 0; UT_CHECK(u->t.link.next == NULL); break;
        case 2: case 3:
            clk_arm(&w, &u->t, delay);
            u->due = w.now_ms + (delay ? delay : 1);
            break;
        default: clk_ut_to(&w, w.now_ms + ut_random(&seed, 40)); break;
        }
        for (int k = 0; k < N && i % 16 == 0; k++)
            if (t[k].due && w.now_ms > t[k].due + 2 * CLK_TICK_MS + 40) clk_ut_late++;
    }
    UT_INT(clk_ut_early, 0);
    UT_INT(clk_ut_late, 0);
    UT_INT(clk_ut_unasked, 0);
    UT_CHECK(t[0].fired > 100);
    for (int i = 0; i < N; i++) clk_drop(&w, &t[i].t);
    UT_INT(w.queued, 0);
}

UT(clk_moving_later_is_lazy_and_earlier_is_not)
{
    static struct clk_wheel w;
    struct clk_ut_timer u = {.t.fire = clk_ut_fire, .w = &w};
    uint64_t start, slot;

    clk_ut_init(&w);
    start = w.now_ms;
    clk_arm(&w, &u.t, 1000);
    slot = u.t.look_ms;
    clk_arm(&w, &u.t, 5000);
    UT_CHECK(u.t.look_ms == slot);                                   /* costs a store */
    u.due = start + 5000;
    clk_ut_to(&w, start + 1100);
    UT_INT(u.fired, 0);
    clk_arm(&w, &u.t, 10);                                           /* earlier: moves at once */
    u.due = w.now_ms + 10;
    clk_ut_to(&w, w.now_ms + 10 + 2 * CLK_TICK_MS);
    UT_INT(u.fired, 1);
    clk_ut_to(&w, w.now_ms + 10000);
    UT_INT(u.fired, 1);
    UT_INT(w.queued, 0);
}

UT(clk_a_long_sleep_fires_everything_due)
{
    static struct clk_wheel w;
    static struct clk_ut_timer t[100];

    memset(t, 0, sizeof t);
    clk_ut_init(&w);
    for (int i = 0; i < 100; i++) {
        t[i] = (struct clk_ut_timer){.t.fire = clk_ut_fire, .w = &w};
        clk_arm(&w, &t[i].t, (uint64_t)i * 1000);
        t[i].due = w.now_ms + (uint64_t)i * 1000;
    }
    clk_ut_to(&w, w.now_ms + 24ull * 3600 * 1000);                   /* the machine was asleep */
    for (int i = 0; i < 100; i++) UT_INT(t[i].fired, 1);
}

UT(clk_sleep_ends_at_the_first_slot)
{
    static struct clk_wheel w;
    struct clk_ut_timer u = {.t.fire = clk_ut_fire, .w = &w};
    uint32_t ms;

    clk_ut_init(&w);
    UT_INT(clk_sleep_ms(&w, 777), 777);
    clk_arm(&w, &u.t, 100);
    u.due = w.now_ms + 100;
    ms = clk_sleep_ms(&w, 5000);
    UT_CHECK(ms >= 100 && ms <= 100 + CLK_TICK_MS);
    UT_INT(clk_sleep_ms(&w, 20), 20);
    clk_ut_to(&w, w.now_ms + ms);
    UT_INT(u.fired, 1);
    clk_arm(&w, &u.t, 1000000);                                      /* beyond one turn: the sleep is long, but not for ever */
    UT_CHECK(clk_sleep_ms(&w, 5000) <= 5000);
    clk_drop(&w, &u.t);
}
