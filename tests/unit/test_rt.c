/* rt_: lookup against a naive matcher, publication, leases, history, rollback. */

struct rt_ut_rule {
    const char *path;
    int type;
    const char *name;
};

static const struct rt_policy rt_ut_policy = {.body_bytes = 1, .tries = 3};
static struct cfg *rt_ut_cfg;

static void rt_ut_open(int workers)
{
    struct cfg_input in = {0};
    struct cfg_report report = {.text = str_growing()};

    rj.rt.workers = workers;
    rt_ut_cfg = cfg_load(&in, &report);
    str_free(&report.text);
}

static void rt_ut_close(void)
{
    cfg_put(rt_ut_cfg);
    rt_fini();
}

/* A host of rules "path" to the slot. */
static struct rt_host *rt_ut_host(const char *name, const struct rt_ut_rule *rules, size_t n, uint32_t slot)
{
    struct rt_rule v[600];

    for (size_t i = 0; i < n; i++)
        v[i] = (struct rt_rule){.path = str_z(rules[i].path), .type = (uint8_t)rules[i].type, .backend = slot, .policy = &rt_ut_policy, .name = str_z(rules[i].name)};
    return rt_host_new(str_z(name), v, (uint32_t)n);
}

static struct rt_backend *rt_ut_backend(const char *name, unsigned endpoints)
{
    struct rt_backend head = {.name = str_z(name), .hash = str_hash(str_z(name))};
    struct rt_endpoint ep[8] = {0};

    for (unsigned i = 0; i < endpoints; i++) {
        ep[i].weight = 1;
        ep[i].addr = (struct net_addr){.family = AF_INET, .port = (uint16_t)(8000 + i)};
    }
    return rt_backend_new(&head, ep, endpoints);
}

static bool rt_ut_publish_host(const char *name, struct rt_host *h)
{
    struct rt_changes c = {0};
    bool done;

    rt_changes_add(&c, (struct rt_change){.name = str_z(name), .host = h, .slot = RT_NO_BACKEND});
    done = rt_publish(&c, rt_ut_cfg, 1, 1);
    mem_free(c.v);
    rcu_collect();
    rt_collect();
    return done;
}

static bool rt_ut_publish_backend(uint32_t slot, struct rt_backend *b)
{
    struct rt_changes c = {0};
    bool done;

    rt_changes_add(&c, (struct rt_change){.slot = slot, .backend = b});
    done = rt_publish(&c, rt_ut_cfg, 1, 1);
    mem_free(c.v);
    rcu_collect();
    rt_collect();
    return done;
}

/* The name of the rule that answers, "-" for none. */
static const char *rt_ut_ask(const char *host, const char *path)
{
    static const char *const none = "-";
    struct rt_match m;
    static const char *found;

    if (!rt_find(rt_live(), ut_str(host), ut_str(path), &m)) return none;
    found = NULL;
    for (const char *const *n = (const char *const[]){"a", "b", "c", "d", "w", "any", "rest", "old", "new", NULL}; *n; n++)
        if (str_eq(m.rule->name, str_z(*n))) found = *n;
    return found;
}

UT(rt_find_follows_the_ingress_rules)
{
    static const struct rt_ut_rule exact[] = {{"/only", RT_PREFIX, "b"}}, wild[] = {{"", RT_PREFIX, "w"}}, any[] = {{"/any", RT_PREFIX, "any"}};
    static const struct { int line; const char *host, *path, *name; } rows[] = {
        UT_ROW("x.b.test", "/only", "b"),
        UT_ROW("x.b.test", "/only/deeper", "b"),
        UT_ROW("x.b.test", "/onlyx", "rest"),            /* no fall-through from an exact host */
        UT_ROW("x.b.test", "/", "rest"),
        UT_ROW("y.b.test", "/only", "w"),
        UT_ROW("*.b.test", "/", "w"),
        UT_ROW("b.test", "/", "rest"),                   /* a wildcard is one label, no less */
        UT_ROW("q.y.b.test", "/any", "any"),             /* and no more */
        UT_ROW(".b.test", "/any", "any"),
        UT_ROW("other.test", "/any/x", "any"),
        UT_ROW("other.test", "/x", "rest"),
        UT_ROW("*", "/any", "any"),
        UT_ROW("*", "/x", "rest"),
        UT_ROW("", "/any", "any"),
        UT_ROW("", "", "rest"),
        UT_ROW("10.0.0.1", "/any", "any"),
        UT_ROW("[::1]", "/any", "any"),
        UT_ROW("localhost", "/any", "any"),
        UT_ROW("b.test.", "/any", "any"),
        UT_ROW("x.b.test", "*", "rest"),
    };
    struct rt_match m;

    rt_ut_open(1);
    rt_ut_publish_host("x.b.test", rt_ut_host("x.b.test", exact, 1, RT_NO_BACKEND));
    rt_ut_publish_host("*.b.test", rt_ut_host("*.b.test", wild, 1, RT_NO_BACKEND));
    rt_ut_publish_host("", rt_ut_host("", any, 1, RT_NO_BACKEND));
    UT_CHECK(!rt_find(rt_live(), S("other.test"), S("/x"), &m));
    rt_ut_publish_host("*", rt_ut_host("*", (const struct rt_ut_rule[]){{"", RT_PREFIX, "rest"}}, 1, RT_NO_BACKEND));
    UT_EACH(r, rows) UT_TEXT(rt_ut_ask(r->host, r->path), r->name);
    rt_ut_close();
}

/* kubernetes.io's table of path types: rules of one host, request, the rule that answers. */
UT(rt_find_follows_the_conformance_table)
{
    static const struct { int line; struct rt_ut_rule rules[3]; const char *path, *name; } rows[] = {
        UT_ROW({{"", RT_PREFIX, "a"}}, "/any/thing", "a"),
        UT_ROW({{"/foo", RT_EXACT, "a"}}, "/foo", "a"),
        UT_ROW({{"/foo", RT_EXACT, "a"}}, "/bar", "-"),
        UT_ROW({{"/foo", RT_EXACT, "a"}}, "/foo/", "-"),
        UT_ROW({{"/foo/", RT_EXACT, "a"}}, "/foo", "-"),
        UT_ROW({{"/foo/", RT_EXACT, "a"}}, "/foo/", "a"),
        UT_ROW({{"/foo", RT_PREFIX, "a"}}, "/foo", "a"),
        UT_ROW({{"/foo", RT_PREFIX, "a"}}, "/foo/", "a"),
        UT_ROW({{"/foo", RT_PREFIX, "a"}}, "/foo/x", "a"),
        UT_ROW({{"/foo", RT_PREFIX, "a"}}, "/foobar", "-"),
        UT_ROW({{"/aaa/bb", RT_PREFIX, "a"}}, "/aaa/bbb", "-"),
        UT_ROW({{"/aaa/bbb", RT_PREFIX, "a"}}, "/aaa/bbb", "a"),
        UT_ROW({{"/aaa/bbb", RT_PREFIX, "a"}}, "/aaa/bbb/", "a"),
        UT_ROW({{"/aaa/bbb", RT_PREFIX, "a"}}, "/aaa/bbb/ccc", "a"),
        UT_ROW({{"/aaa/bbb", RT_PREFIX, "a"}}, "/aaa/bbbxyz", "-"),
        UT_ROW({{"", RT_PREFIX, "a"}, {"/aaa", RT_PREFIX, "b"}}, "/aaa/ccc", "b"),
        UT_ROW({{"", RT_PREFIX, "a"}, {"/aaa", RT_PREFIX, "b"}, {"/aaa/bbb", RT_PREFIX, "c"}}, "/aaa/bbb", "c"),
        UT_ROW({{"", RT_PREFIX, "a"}, {"/aaa", RT_PREFIX, "b"}, {"/aaa/bbb", RT_PREFIX, "c"}}, "/ccc", "a"),
        UT_ROW({{"/aaa", RT_PREFIX, "a"}}, "/ccc", "-"),
        UT_ROW({{"/foo", RT_PREFIX, "a"}, {"/foo", RT_EXACT, "b"}}, "/foo", "b"),
        UT_ROW({{"/foo", RT_PREFIX, "a"}, {"/foo", RT_EXACT, "b"}}, "/foo/", "a"),
        UT_ROW({{"/foo", RT_PREFIX, "a"}, {"/foo/", RT_EXACT, "b"}}, "/foo/", "b"),
        UT_ROW({{"", RT_PREFIX, "a"}, {"/", RT_EXACT, "b"}}, "/", "b"),
        UT_ROW({{"", RT_PREFIX, "a"}, {"/", RT_EXACT, "b"}}, "/x", "a"),
        UT_ROW({{"/Foo", RT_PREFIX, "a"}, {"/foo", RT_PREFIX, "b"}}, "/Foo", "a"),
    };

    rt_ut_open(1);
    UT_EACH(r, rows) {
        struct rt_ut_rule many[40];
        size_t n = 0;

        while (n < 3 && r->rules[n].path) n++;
        rt_ut_publish_host("h", rt_ut_host("h", r->rules, n, RT_NO_BACKEND));
        UT_TEXT(rt_ut_ask("h", r->path), r->name);
        memcpy(many, r->rules, n * sizeof *many);        /* the same among many: a host with an index */
        for (size_t i = n; i < 40; i++) many[i] = (struct rt_ut_rule){&"/zz/zz/zz/zz/zz/zz/zz/zz/zz/zz/zz/zz/zz/zz/zz/zz/zz/zz/zz/zz/zz/zz/zz/zz/zz/zz"[i], RT_EXACT, "d"};
        rt_ut_publish_host("h", rt_ut_host("h", many, 40, RT_NO_BACKEND));
        UT_TEXT(rt_ut_ask("h", r->path), r->name);
    }
    rt_ut_close();
}

/* ---- property: the same answer as a matcher that looks at every rule ---- */

static const struct rt_rule *rt_ut_naive(const struct rt_host *h, struct str path)
{
    const struct rt_rule *best = NULL;

    for (uint32_t i = 0; i < h->n; i++) {
        const struct rt_rule *r = &h->rule[i];
        bool fits;

        if (r->type == RT_EXACT) fits = r->path.n == path.n && memcmp(r->path.p, path.p, path.n) == 0;
        else fits = r->path.n == 0 || (path.n >= r->path.n && memcmp(r->path.p, path.p, r->path.n) == 0 && (path.n == r->path.n || path.p[r->path.n] == '/'));
        if (!fits) continue;
        if (!best || r->path.n > best->path.n || (r->path.n == best->path.n && r->type == RT_EXACT)) best = r;
    }
    return best;
}

static size_t rt_ut_path(uint64_t *seed, char *out)
{
    size_t n = 0, elements = ut_random(seed, 7);

    for (size_t i = 0; i < elements; i++) {
        static const char *const words[] = {"a", "b", "ab", "aa", "api", "v1", "", "a-rather-long-element-of-a-path-that-fills-more-than-a-word"};

        n += (size_t)sprintf(out + n, "/%s", words[ut_random(seed, 8)]);
    }
    if (ut_random(seed, 4) == 0 || !n) out[n++] = '/';
    out[n] = 0;
    return n;
}

UT(rt_find_agrees_with_a_naive_matcher)
{
    static char text[600][512];
    uint64_t seed = 7;

    rt_ut_open(1);
    for (int round = 0; round < 300; round++) {
        struct rt_ut_rule rules[600];
        uint32_t n = 0, want = 1 + ut_random(&seed, round % 10 == 0 ? 500 : 12);
        const struct rt_host *h;

        for (uint32_t i = 0; i < want; i++) {
            size_t len = rt_ut_path(&seed, text[n]);
            bool seen = false;

            rules[n] = (struct rt_ut_rule){text[n], (int)ut_random(&seed, 2), "a"};
            if (rules[n].type == RT_PREFIX && text[n][len - 1] == '/') text[n][len - 1] = 0;
            for (uint32_t k = 0; k < n; k++) seen |= rules[k].type == rules[n].type && strcmp(rules[k].path, text[n]) == 0;
            n += !seen;
        }
        rt_ut_publish_host("h.test", rt_ut_host("h.test", rules, n, RT_NO_BACKEND));
        h = rt_hosts_get(rt_live()->hosts, S("h.test"));
        for (int i = 0; i < 300; i++) {
            char path[512];
            size_t len = rt_ut_path(&seed, path);
            const uint8_t *p = ut_guard(0, path, len);
            const struct rt_rule *want_rule = rt_ut_naive(h, str_of(p, len));
            struct rt_match m = {0};
            bool found = rt_find(rt_live(), S("h.test"), str_of(p, len), &m);

            if (!UT_CHECK(found == (want_rule != NULL) && (!found || m.rule == want_rule))) printf("path %s, round %d\n", path, round);
        }
    }
    rt_ut_close();
}

/* ---- publication ---- */

UT(rt_equal_tables_publish_nothing)
{
    static const struct rt_ut_rule one[] = {{"/a", RT_PREFIX, "a"}}, other[] = {{"/a", RT_PREFIX, "b"}};
    uint32_t slot;

    rt_ut_open(1);
    slot = rt_slot_new(1, NULL);
    UT_CHECK(rt_ut_publish_backend(slot, rt_ut_backend("s", 2)));       /* the first table, empty as it is */
    UT_INT(rj.rt.generation, 1);
    UT_INT(rt_live()->backends->used, 0);
    UT_CHECK(rt_ut_publish_host("h", rt_ut_host("h", one, 1, slot)));
    UT_INT(rj.rt.generation, 2);
    UT_INT(rt_live()->backends->used, 1);
    UT_CHECK(!rt_ut_publish_host("h", rt_ut_host("h", one, 1, slot)));
    UT_CHECK(!rt_ut_publish_backend(slot, rt_ut_backend("s", 2)));
    UT_CHECK(!rt_ut_publish_host("absent", NULL));
    UT_INT(rj.rt.generation, 2);
    UT_CHECK(rt_ut_publish_backend(slot, rt_ut_backend("s", 3)));
    UT_SLICE(rj.rt.newest->diff, "backend s: 2 -> 3 endpoints");
    UT_CHECK(rt_ut_publish_host("h", rt_ut_host("h", other, 1, slot)));
    UT_SLICE(rj.rt.newest->diff, "host h: ~/a prefix -> s");
    UT_CHECK(rt_ut_publish_host("h", NULL));
    UT_SLICE(rj.rt.newest->diff, "-host h");
    UT_INT(rt_live()->backends->used, 0);
    UT_CHECK(!rt_ut_publish_backend(slot, rt_ut_backend("s", 1)));      /* nobody uses it */
    rt_ut_close();
}

UT(rt_leases_keep_what_was_found)
{
    static const struct rt_ut_rule one[] = {{"/a", RT_PREFIX, "old"}}, other[] = {{"/a", RT_PREFIX, "new"}};
    const struct rt_snapshot *held;
    struct rt_match m;
    uint32_t slot;

    rt_ut_open(2);
    slot = rt_slot_new(1, NULL);
    rt_ut_publish_backend(slot, rt_ut_backend("s", 2));
    rt_ut_publish_host("h", rt_ut_host("h", one, 1, slot));
    held = rt_live();
    UT_REQUIRE(rt_find(held, S("h"), S("/a"), &m));
    rt_lease(held, 1);
    rt_lease(held, 1);
    rt_served(held);
    for (int i = 0; i < 100; i++) {                      /* far beyond the history */
        rt_ut_publish_host("h", rt_ut_host("h", i % 2 ? one : other, 1, slot));
        rt_ut_publish_backend(slot, rt_ut_backend("s", 1 + (unsigned)i % 2));
    }
    UT_SLICE(m.rule->name, "old");
    UT_SLICE(m.backend->name, "s");
    UT_INT(m.backend->n, 2);
    UT_INT(m.rule->policy->tries, 3);
    UT_CHECK(rj.rt.first == held && held->cfg == rt_ut_cfg);
    rt_release(held, 1);
    rt_collect();
    UT_CHECK(rj.rt.first == held);
    rt_release(held, 1);
    rt_collect();
    UT_CHECK(rj.rt.first != held && rj.rt.first == rj.rt.last);
    UT_CHECK(rj.rt.waiting == NULL || rj.rt.waiting->next == NULL);
    rt_ut_close();
}

UT(rt_readers_hold_back_tables)
{
    static const struct rt_ut_rule one[] = {{"/a", RT_PREFIX, "old"}}, other[] = {{"/a", RT_PREFIX, "new"}};
    struct rj_thread worker = {0}, *list[1] = {&worker};
    const struct rt_snapshot *seen;
    struct rt_match m;

    rt_ut_open(1);
    rj.threads = list;
    rj.thread_count = 1;
    if (!atomic_load_explicit(&rj.epoch, memory_order_relaxed)) atomic_store_explicit(&rj.epoch, 1, memory_order_relaxed);
    rt_ut_publish_host("h", rt_ut_host("h", one, 1, RT_NO_BACKEND));
    rcu_enter(&worker);
    seen = rt_live();
    rt_ut_publish_host("h", rt_ut_host("h", other, 1, RT_NO_BACKEND));
    UT_CHECK(rt_find(seen, S("h"), S("/a"), &m) && str_eq(m.rule->name, S("old")));
    UT_CHECK(!seen->passed);
    rcu_enter(&worker);
    rcu_collect();
    UT_CHECK(seen->passed);
    rcu_leave(&worker);
    rj.threads = NULL;
    rj.thread_count = 0;
    rt_ut_close();
}

/* ---- history ---- */

static void rt_ut_numbered(uint64_t generation)
{
    char path[32];
    struct rt_ut_rule rules[2] = {{path, RT_PREFIX, "a"}, {"/same", RT_EXACT, "b"}};

    sprintf(path, "/g%llu", (unsigned long long)generation);
    rt_ut_publish_host("h", rt_ut_host("h", rules, 2, RT_NO_BACKEND));
    if (generation % 3 == 0) rt_ut_publish_host("odd", rt_ut_host("odd", rules, 1, RT_NO_BACKEND));
}

UT(rt_rollback_pins_rules)
{
    struct rt_match m;
    struct log_err err;
    struct str_builder b = str_growing();
    uint32_t slot;
    static const struct rt_ut_rule svc[] = {{"/", RT_PREFIX, "c"}};

    rt_ut_open(1);
    slot = rt_slot_new(9, NULL);
    rt_ut_publish_backend(slot, rt_ut_backend("s", 1));              /* 1 */
    rt_ut_publish_host("svc", rt_ut_host("svc", svc, 1, slot));      /* 2 */
    for (uint64_t g = 3; g <= 20; g += g % 3 == 0 ? 2 : 1) rt_ut_numbered(g);
    UT_INT(rj.rt.generation, 20);
    UT_INT(rj.rt.nrecords, 10);
    UT_INT(rt_rollback(10, &err), -ENOENT);
    UT_TEXT(err.text, "generation 10 is not kept; those from 11 to 20 are");
    UT_INT(rt_rollback(21, &err), -ENOENT);
    UT_INT(rt_rollback(14, &err), 0);
    UT_INT(rt_live()->generation, 14);
    UT_CHECK(rt_find(rt_live(), S("h"), S("/g14"), &m));
    UT_CHECK(!rt_find(rt_live(), S("h"), S("/g20"), &m));
    rt_ut_numbered(21);                                              /* recorded, not served; 22 is for the other host */
    UT_INT(rj.rt.generation, 22);
    UT_INT(rt_live()->generation, 14);
    UT_CHECK(rt_find(rt_live(), S("h"), S("/g14"), &m) && !rt_find(rt_live(), S("h"), S("/g21"), &m));
    rt_ut_publish_backend(slot, rt_ut_backend("s", 4));              /* backends follow */
    UT_INT(rt_live()->generation, 14);
    UT_CHECK(rt_find(rt_live(), S("svc"), S("/"), &m) && m.backend && m.backend->n == 4);
    UT_INT(rt_rollback(20, &err), 0);                                /* another one, while pinned */
    UT_CHECK(rt_find(rt_live(), S("h"), S("/g20"), &m));
    rt_ut_publish_host("svc", NULL);                                 /* gone from the newest, kept alive by the pinned table */
    UT_CHECK(rt_find(rt_live(), S("svc"), S("/"), &m) && m.backend && m.backend->n == 4);
    for (uint64_t g = 30; g < 60; g++) rt_ut_numbered(g);            /* the pinned generation leaves the history */
    UT_CHECK(rt_find(rt_live(), S("h"), S("/g20"), &m) && rt_find(rt_live(), S("svc"), S("/"), &m) && m.backend->n == 4);
    rt_render_generations(&b);
    UT_CHECK(str_starts(str_built(&b), S("{\"pinned\":20,\"serving\":20,\"generations\":[{\"generation\":")));
    rt_unpin();
    UT_INT(rt_live()->generation, rj.rt.generation);
    UT_CHECK(rt_find(rt_live(), S("h"), S("/g59"), &m) && !rt_find(rt_live(), S("svc"), S("/"), &m));
    rcu_collect();
    rt_collect();
    str_free(&b);
    rt_ut_close();
}

UT(rt_random_churn_leaves_nothing_behind)
{
    static const struct rt_ut_rule rules[] = {{"/a", RT_PREFIX, "a"}, {"/b", RT_EXACT, "b"}, {"", RT_PREFIX, "c"}};
    const struct rt_snapshot *held[8] = {0};
    uint32_t slots[5];
    uint64_t seed = 3;
    struct log_err err;

    rt_ut_open(1);
    for (int i = 0; i < 5; i++) {
        slots[i] = rt_slot_new((uint64_t)i + 1, NULL);
        rt_ut_publish_backend(slots[i], rt_ut_backend("s", 1));
    }
    for (int i = 0; i < 5000; i++) {
        char name[16];
        uint32_t k = ut_random(&seed, 8);

        sprintf(name, "h%u", ut_random(&seed, 40));
        switch (ut_random(&seed, 10)) {
        case 0: rt_ut_publish_host(name, NULL); break;
        case 1: rt_ut_publish_backend(slots[k % 5], rt_ut_backend("s", ut_random(&seed, 4))); break;
        case 2: if (rj.rt.newest) (void)rt_rollback(rj.rt.generation - ut_random(&seed, 12), &err); break;
        case 3: rt_unpin(); break;
        case 4:
            if (held[k]) rt_release(held[k], 0);
            else rt_lease(rt_live(), 0);
            held[k] = held[k] ? NULL : rt_live();
            break;
        default: rt_ut_publish_host(name, rt_ut_host(name, rules, 1 + ut_random(&seed, 3), slots[k % 5])); break;
        }
        rcu_collect();
        rt_collect();
        if (i % 100) continue;
        uint64_t digest = 0;
        uint32_t routes = 0, n = 0;

        for (uint32_t at = 0; at <= rj.rt.hosts->mask; at++) {
            const struct rt_host *h = rj.rt.hosts->at[at].host;

            if (!h) continue;
            digest += h->block.digest;
            routes += h->n;
            n++;
            UT_CHECK(rt_hosts_get(rj.rt.hosts, h->name) == h);
        }
        UT_CHECK(digest == rj.rt.hosts->digest && routes == rj.rt.hosts->routes && n == rj.rt.hosts->n);
        for (int s = 0; s < 5; s++) {
            uint32_t uses = 0;

            for (uint32_t at = 0; at <= rj.rt.hosts->mask; at++)
                for (uint32_t r = 0; rj.rt.hosts->at[at].host && r < rj.rt.hosts->at[at].host->n; r++) uses += rj.rt.hosts->at[at].host->rule[r].backend == slots[s];
            UT_INT(rj.rt.slots[slots[s]].uses, uses);
        }
    }
    for (int k = 0; k < 8; k++)
        if (held[k]) rt_release(held[k], 0);
    rt_ut_close();
}

UT(rt_diff_is_bounded)
{
    struct rt_changes c = {0};
    static char names[500][16];
    static const struct rt_ut_rule one[] = {{"/a", RT_PREFIX, "a"}};

    rt_ut_open(1);
    for (int i = 0; i < 500; i++) {
        sprintf(names[i], "host%d.test", i);
        rt_changes_add(&c, (struct rt_change){.name = str_z(names[i]), .host = rt_ut_host(names[i], one, 1, RT_NO_BACKEND), .slot = RT_NO_BACKEND});
    }
    rt_publish(&c, rt_ut_cfg, 1, 1);
    UT_CHECK(rj.rt.newest->diff.n < 1600);
    UT_CHECK(str_ends(rj.rt.newest->diff, S(" more")));
    UT_INT(rt_live()->hosts->n, 500);
    mem_free(c.v);
    rt_ut_close();
}

UT(rt_free_slots_at_the_end_go_back)
{
    uint32_t slots[200];

    for (uint32_t i = 0; i < 200; i++) slots[i] = rt_slot_new(i + 1, NULL);
    UT_CHECK(!rt_trim_slots());
    for (uint32_t i = 199; i > 40; i--) rt_slot_free(slots[i]);
    for (uint32_t i = 0; i < 30; i += 2) rt_slot_free(slots[i]);
    UT_CHECK(rt_trim_slots());
    UT_INT(rj.rt.nslots, 41);
    UT_INT(rj.rt.nfree, 15);
    UT_CHECK(!rt_trim_slots());
    for (uint32_t i = 0; i <= 30; i += 2) {                          /* the lowest first, then new ones */
        uint32_t got = rt_slot_new(i + 1, NULL);

        UT_INT(got, i < 30 ? slots[i] : 41);
    }
    UT_INT(rj.rt.slots[slots[29]].ident, 30);
    rt_fini();
}
