/* rcu_: what is retired goes only when every worker has passed. */

struct rcu_ut_item {
    struct rcu_item item;
    int freed;
};

static void rcu_ut_free(struct rcu_item *item) { RJ_CONTAINER(item, struct rcu_ut_item, item)->freed++; }

UT(rcu_frees_after_every_worker_passed)
{
    static struct rj_thread a, b;
    struct rj_thread *threads[] = {&a, &b}, **old = rj.threads;
    struct rcu_ut_item x = {.freed = 0}, y = {.freed = 0}, z = {.freed = 0};
    int old_count = rj.thread_count;

    rj.threads = threads;
    rj.thread_count = 2;
    if (!atomic_load(&rj.epoch)) atomic_store(&rj.epoch, 1);
    rcu_leave(&a);
    rcu_leave(&b);
    rcu_retire(&x.item, rcu_ut_free);
    UT_INT(x.freed, 0);                                              /* never from inside */
    rcu_collect();
    UT_INT(x.freed, 1);                                              /* nobody reads */

    rcu_enter(&a);
    rcu_retire(&x.item, rcu_ut_free);
    rcu_enter(&b);                                                   /* began later: cannot have seen it */
    rcu_collect();
    UT_INT(x.freed, 1);
    rcu_retire(&y.item, rcu_ut_free);
    rcu_enter(&a);                                                   /* a's next turn passes both */
    rcu_collect();
    UT_INT(x.freed, 2);
    UT_INT(y.freed, 0);                                              /* b's turn began before y went */
    rcu_retire(&z.item, rcu_ut_free);
    rcu_leave(&b);
    rcu_collect();
    UT_INT(y.freed, 1);
    UT_INT(z.freed, 0);
    rcu_leave(&a);
    rcu_collect();
    UT_INT(z.freed, 1);
    UT_CHECK(rj.rcu_head == NULL && rj.rcu_tail == NULL);
    rj.threads = old;
    rj.thread_count = old_count;
}

/* Readers on threads of their own: a freed item is marked, and no reader may meet the mark in what it loaded in this turn. */
static struct { struct rcu_ut_item *_Atomic live; _Atomic bool stop; _Atomic int bad; struct rj_thread thread[2]; } rcu_ut_race;

static void *rcu_ut_reader(void *arg)
{
    struct rj_thread *t = arg;
    uint32_t turn = 0;

    while (!atomic_load_explicit(&rcu_ut_race.stop, memory_order_acquire)) {
        struct rcu_ut_item *i;

        rcu_enter(t);
        i = atomic_load_explicit(&rcu_ut_race.live, memory_order_acquire);
        for (int k = 0; k < 50; k++)
            if (__atomic_load_n(&i->freed, __ATOMIC_RELAXED)) atomic_fetch_add(&rcu_ut_race.bad, 1);
        if (turn++ % 8 == 0) rcu_leave(t);
    }
    rcu_leave(t);
    return NULL;
}

UT(rcu_readers_on_other_threads_never_see_what_was_freed)
{
    enum { N = 20000 };
    static struct rcu_ut_item items[N];
    struct rj_thread *threads[] = {&rcu_ut_race.thread[0], &rcu_ut_race.thread[1]}, **old = rj.threads;
    int old_count = rj.thread_count;
    pthread_t id[2];

    memset(items, 0, sizeof items);
    rj.threads = threads;
    rj.thread_count = 2;
    atomic_store(&rcu_ut_race.stop, false);
    atomic_store(&rcu_ut_race.live, &items[0]);
    for (int i = 0; i < 2; i++) pthread_create(&id[i], NULL, rcu_ut_reader, threads[i]);
    for (int i = 1; i < N; i++) {
        atomic_store_explicit(&rcu_ut_race.live, &items[i], memory_order_release);
        rcu_retire(&items[i - 1].item, rcu_ut_free);
        rcu_collect();
    }
    atomic_store_explicit(&rcu_ut_race.stop, true, memory_order_release);
    for (int i = 0; i < 2; i++) pthread_join(id[i], NULL);
    rcu_collect();
    UT_INT(atomic_load(&rcu_ut_race.bad), 0);
    for (int i = 0; i + 1 < N; i++)
        if (items[i].freed != 1) UT_INT(items[i].freed, 1);
    UT_INT(items[N - 1].freed, 0);
    rj.threads = old;
    rj.thread_count = old_count;
}
