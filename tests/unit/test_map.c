/* map_: against a naive model; insertion order; lists. */

enum { MAP_UT_KEYS = 300 };

static struct str map_ut_key(uint32_t k)
{
    static char text[MAP_UT_KEYS][16];

    if (!text[k][0]) snprintf(text[k], sizeof text[k], "key-%u", k);
    return str_z(text[k]);
}

UT(map_does_what_a_naive_one_does)
{
    static int values[MAP_UT_KEYS * 2];
    void *model[MAP_UT_KEYS] = {0};
    uint32_t order[MAP_UT_KEYS * 200], n = 0;                        /* keys as inserted; holes stay */
    struct map m = {0};
    uint64_t seed = 1;

    for (int i = 0; i < 40000; i++) {
        uint32_t k = ut_random(&seed, MAP_UT_KEYS), phase = (uint32_t)i / 5000 % 2;
        void *v = &values[k * 2 + ut_random(&seed, 2)];

        UT_CHECK(map_find(&m, map_ut_key(k)) == model[k]);
        if (ut_random(&seed, 3) > phase) {
            if (!model[k]) order[n++] = k;
            UT_CHECK(map_put(&m, map_ut_key(k), v) == model[k]);
            model[k] = v;
        } else {
            UT_CHECK(map_remove(&m, map_ut_key(k)) == model[k]);
            model[k] = NULL;
            for (uint32_t j = 0; j < n; j++)
                if (order[j] == k) memmove(order + j, order + j + 1, (--n - j) * sizeof *order);
        }
        if (i % 500) continue;
        uint32_t at = 0, seen = 0;
        void *found;

        while ((found = map_next(&m, &at))) UT_CHECK(seen < n && found == model[order[seen]]), seen++;
        UT_INT(seen, n);
        UT_INT(m.count, n);
    }
    map_free(&m);
    UT_CHECK(map_find(&m, map_ut_key(0)) == NULL && m.count == 0);
}

UT(map_endless_turnover_stays_small)
{
    static char keys[64][16];
    struct map m = {0};

    for (uint32_t i = 0; i < 100000; i++) {                          /* every put is a new key: deleted places must be found again */
        if (i >= 64) UT_CHECK(map_remove(&m, str_z(keys[i % 64])) != NULL);
        snprintf(keys[i % 64], sizeof keys[0], "%u", i);
        UT_CHECK(map_put(&m, str_z(keys[i % 64]), &m) == NULL);
    }
    UT_INT(m.count, 64);
    UT_CHECK(m.cap <= 256 && m.mask < 1024);
    map_free(&m);
}

UT(map_removal_during_iteration)
{
    struct map m = {0};
    uint32_t at = 0;
    static int values[MAP_UT_KEYS];
    int *v, n = 0;

    for (uint32_t i = 0; i < MAP_UT_KEYS; i++) map_put(&m, map_ut_key(i), &values[i]);
    while ((v = map_next(&m, &at))) {
        UT_CHECK(v == &values[n]);
        map_remove(&m, map_ut_key((uint32_t)n++));
    }
    UT_INT(n, MAP_UT_KEYS);
    UT_INT(m.count, 0);
    map_free(&m);
}

UT(map_trim_gives_back_what_is_far_too_much)
{
    static int values[MAP_UT_KEYS];
    struct map m = {0};
    uint32_t at = 0, cap;

    UT_CHECK(!map_trim(&m));
    for (uint32_t k = 0; k < MAP_UT_KEYS; k++) map_put(&m, map_ut_key(k), &values[k]);
    cap = m.cap;
    UT_CHECK(!map_trim(&m));
    for (uint32_t k = 0; k < MAP_UT_KEYS; k++)
        if (k % 10 != 3) map_remove(&m, map_ut_key(k));
    UT_CHECK(map_trim(&m) && m.cap < cap / 4);
    UT_CHECK(!map_trim(&m));
    for (uint32_t k = 3; k < MAP_UT_KEYS; k += 10) {                 /* all there, in their order */
        UT_CHECK(map_find(&m, map_ut_key(k)) == &values[k]);
        UT_CHECK(map_next(&m, &at) == &values[k]);
    }
    UT_CHECK(!map_next(&m, &at));
    for (uint32_t k = 0; k < MAP_UT_KEYS; k++) map_remove(&m, map_ut_key(k));
    while (map_trim(&m)) {}
    UT_CHECK(m.cap < 64 && !m.count);
    for (uint32_t k = 0; k < MAP_UT_KEYS; k++) map_put(&m, map_ut_key(k), &values[k]);
    UT_INT(m.count, MAP_UT_KEYS);
    map_free(&m);
}

UT(map_lists)
{
    struct map_link head, l[3];

    map_list_init(&head);
    UT_CHECK(map_list_empty(&head));
    for (int i = 0; i < 3; i++) map_list_add(&head, &l[i]);
    UT_CHECK(head.next == &l[0] && head.prev == &l[2] && l[1].next == &l[2]);
    map_list_remove(&l[1]);
    UT_CHECK(l[0].next == &l[2] && l[2].prev == &l[0] && l[1].next == NULL);
    map_list_remove(&l[0]);
    map_list_remove(&l[2]);
    UT_CHECK(map_list_empty(&head));
}
