/* mem_: arenas, pools under their ceiling, counted buffers. */

UT(mem_arena_is_aligned_and_counts)
{
    struct mem_arena a = {0};
    uint64_t seed = 2;
    struct str copy;

    for (int i = 0; i < 2000; i++) {
        size_t n = ut_random(&seed, 2000);
        uint8_t *p = mem_arena_zero(&a, n);

        UT_CHECK(((uintptr_t)p & 15) == 0);
        for (size_t k = 0; k < n; k++)
            if (p[k]) ut_result(false, __FILE__, __LINE__, "not zeroed");
        memset(p, 0xee, n);
    }
    UT_CHECK(a.total >= 1000000 && a.total < 3000000);
    copy = str_dup(&a, ut_str("copy"));
    UT_SLICE(copy, "copy");
    UT_INT(copy.p[4], 0);
    mem_arena_free(&a);
    UT_CHECK(a.total == 0 && a.chunks == NULL);
}

UT(mem_pool_hands_out_distinct_objects_and_gives_slabs_back)
{
    enum { N = 1000 };
    struct mem_pool pool;
    size_t mapped = 0;
    void *p[N] = {0};
    uint64_t seed = 3;
    uint32_t used = 0;

    mem_pool_init(&pool, 100, MEM_SLAB_BYTES, &mapped, 0);
    for (int i = 0; i < 50000; i++) {
        uint32_t k = ut_random(&seed, N);

        if (p[k]) {
            for (size_t b = 0; b < 100; b++)
                if (((uint8_t *)p[k])[b] != (uint8_t)k) UT_CHECK(!"an object was handed out twice");
            mem_pool_put(&pool, p[k]);
            p[k] = NULL;
            used--;
        } else if (i / 10000 % 2 == 0 || ut_random(&seed, 4) == 0) {
            p[k] = mem_pool_get(&pool);
            memset(p[k], (int)k, 100);
            used++;
        }
        UT_INT(pool.used, used);
        UT_CHECK(((uintptr_t)p[k] & 15) == 0);
    }
    for (uint32_t k = 0; k < N; k++)
        if (p[k]) mem_pool_put(&pool, p[k]);
    UT_INT(pool.used, 0);
    UT_CHECK(mapped > 0 && mapped <= 4 * MEM_SLAB_BYTES);            /* empty slabs are kept for the next burst */
    mem_pool_fini(&pool);
    UT_INT(mapped, 0);
}

UT(mem_pool_stops_at_the_ceiling)
{
    struct mem_pool a, b;
    size_t mapped = 0;
    void *first = NULL, *p;
    int n = 0;

    mem_pool_init(&a, 4096, MEM_SLAB_BYTES, &mapped, 2 * MEM_SLAB_BYTES);
    mem_pool_init(&b, 4096, MEM_SLAB_BYTES, &mapped, 2 * MEM_SLAB_BYTES);
    while ((p = mem_pool_get(&a))) {
        *(void **)p = first;
        first = p;
        n++;
    }
    UT_CHECK(n >= 28 && n <= 32);
    UT_CHECK(mem_pool_get(&b) == NULL);                              /* the ceiling is shared */
    for (; first; first = p) {
        p = *(void **)first;
        mem_pool_put(&a, first);
    }
    UT_CHECK((p = mem_pool_get(&b)) != NULL);
    mem_pool_put(&b, p);
    mem_pool_fini(&a);
    mem_pool_fini(&b);
    UT_INT(mapped, 0);
}

UT(mem_buffers_live_until_the_last_put)
{
    struct mem_pool pool;
    size_t mapped = 0;
    struct mem_buf *b, *c;

    mem_pool_init(&pool, MEM_SMALL_BYTES, 262144, &mapped, 0);
    b = mem_buf_new(&pool);
    UT_INT(b->cap, MEM_SMALL_BYTES - sizeof *b);
    memset(b->data, 1, b->cap);
    UT_CHECK(mem_buf_get(b) == b && b->refs == 2);
    mem_buf_put(b);
    UT_INT(pool.used, 1);
    mem_buf_put(b);
    UT_INT(pool.used, 0);
    c = mem_buf_alloc(100000);
    memset(c->data, 1, c->cap);
    mem_buf_put(c);
    mem_fail_at = 1;
    UT_CHECK(mem_buf_alloc(10) == NULL);
    mem_fail_at = 2;
    UT_CHECK((c = mem_buf_alloc(10)) != NULL);
    UT_CHECK(mem_buf_alloc(10) == NULL);
    UT_INT(mem_fail_at, 0);
    mem_buf_put(c);
    mem_pool_fini(&pool);
}
