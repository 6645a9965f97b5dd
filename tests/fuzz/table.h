/* A store, its compiler and the table that it publishes; and what must be true of a table, found out slowly. */
#ifndef TABLE_H
#define TABLE_H

struct fz_table {
    struct obj_store store;
    struct rc rc;
    const struct cfg *cfg;
    struct rt_changes changes;
    uint32_t warnings;
};

static void fz_on_warning(void *arg, const char *text)
{
    struct fz_table *t = arg;

    FZ_CHECK(text[0]);
    t->warnings++;
}

static void fz_table_open(struct fz_table *t, const struct cfg *cfg)
{
    *t = (struct fz_table){.cfg = cfg};
    rj.log_level = LOG_ERROR;
    proxy_rc_open(&t->rc, &t->store, cfg, fz_on_warning, t);
}

static void fz_table_close(struct fz_table *t) { proxy_rc_close(&t->rc, &t->store, &t->changes); }

static bool fz_table_compile(struct fz_table *t)
{
    bool published;

    rc_compile(&t->rc, &t->changes);
    published = rt_publish(&t->changes, t->cfg, 1, 1);
    mem_free(rt_take_gone().hash);
    rcu_collect();
    rt_collect();
    FZ_CHECK(rt_live() != NULL);
    return published;
}

/* The digest of the table that a new compiler makes of the whole store at once. */
static uint64_t fz_table_whole(struct fz_table *t)
{
    struct rt_state mine = rj.rt;
    struct rt_snapshot *live = atomic_load_explicit(&rj.rt_live, memory_order_relaxed);
    struct rt_changes c = {0};
    struct rc rc;
    uint64_t digest;

    rj.rt = (struct rt_state){.workers = 1};
    rc_init(&rc, &t->store, t->cfg);
    rc.warn = fz_on_warning;
    rc.arg = t;
    for (int kind = OBJ_KIND_COUNT; kind-- > 0;) {
        const struct obj *o;
        uint32_t at = 0;

        while ((o = map_next(&t->store.kind[kind], &at))) rc_on_changed(&rc, NULL, o);
    }
    rc_compile(&rc, &c);
    rt_publish(&c, t->cfg, 1, 1);
    digest = rt_live()->digest;
    rc_fini(&rc);
    rt_fini();
    mem_free(c.v);
    rj.rt = mine;
    atomic_store_explicit(&rj.rt_live, live, memory_order_relaxed);
    return digest;
}

/* ---- lookups by looking at every host and every rule ---- */

static const struct rt_host *fz_slow_host(const struct rt_snapshot *s, struct str host)
{
    const struct rt_host *wild = NULL;
    size_t dot = str_find(host, '.');

    for (uint32_t i = 0; i <= s->hosts->mask; i++) {
        const struct rt_host *h = s->hosts->at[i].host;

        if (!h) continue;
        if (fz_eq(h->name, host)) return h;
        if (dot && dot < host.n && h->name.n > 1 && h->name.p[0] == '*' && fz_eq(str_from(h->name, 1), str_from(host, dot))) wild = h;
    }
    return wild ? wild : s->any;
}

static const struct rt_rule *fz_slow_rule(const struct rt_host *h, struct str path)
{
    const struct rt_rule *best = NULL;

    for (uint32_t i = 0; h && i < h->n; i++) {
        const struct rt_rule *r = &h->rule[i];
        bool fits = r->type == RT_EXACT ? fz_eq(r->path, path) : str_starts(path, r->path) && (path.n == r->path.n || !r->path.n || path.p[r->path.n] == '/');

        if (fits && (!best || r->path.n > best->path.n || (r->path.n == best->path.n && r->type == RT_EXACT))) best = r;
    }
    return best;
}

/* Host and path in normal form: the lookup finds what the slow one finds, and all that it points to is there. */
static const struct rt_rule *fz_check_lookup(struct str host, struct str path)
{
    const struct rt_snapshot *s = rt_live();
    const struct rt_rule *want = fz_slow_rule(fz_slow_host(s, host), path);
    struct rt_match m = {0};
    bool found = rt_find(s, host, path, &m);

    if (!want) want = s->fallback;
    FZ_CHECK(found == (want != NULL) && (!found || m.rule == want));
    if (!found) return NULL;
    FZ_CHECK(m.rule->policy != NULL && m.rule->name.n && (m.rule->type == RT_EXACT || m.rule->type == RT_PREFIX));
    if (!m.backend) return m.rule;
    FZ_CHECK(m.backend->name.n);
    for (uint32_t i = 0; i < m.backend->n; i++) FZ_CHECK(m.backend->ep[i].addr.port && (m.backend->ep[i].addr.family == AF_INET || m.backend->ep[i].addr.family == AF_INET6));
    return m.rule;
}

/* Every rule is asked for by its own host and path, and by a path behind it. */
static void fz_check_table(void)
{
    const struct rt_snapshot *s = rt_live();
    static uint8_t host[HTTP_HOST_MAX + 8], path[8192];

    for (uint32_t i = 0, n = 0; i <= s->hosts->mask && n < 64; i++) {
        const struct rt_host *h = s->hosts->at[i].host;
        struct str name;

        if (!h || (h->name.n == 1 && h->name.p[0] == '*')) continue;
        n++;
        FZ_CHECK(h->name.n <= HTTP_HOST_MAX);
        if (h->name.n) memcpy(host, h->name.p, h->name.n);
        if (h->name.n && host[0] == '*') host[0] = 'q';
        name = h->name.n ? str_of(host, h->name.n) : S("nobody.test");
        for (uint32_t k = 0; k < h->n && k < 40; k++) {
            struct str p = h->rule[k].path;

            if (p.n > sizeof path - 3) continue;
            if (p.n) memcpy(path, p.p, p.n);
            memcpy(path + p.n, "/x", 2);
            fz_check_lookup(name, str_of(path, p.n + 2));
            if (h->rule[k].type == RT_PREFIX) path[p.n ? p.n : p.n++] = '/';
            fz_check_lookup(name, str_of(path, p.n));
            if (p.n > 1) fz_check_lookup(name, str_of(path, p.n - 1));
        }
    }
    fz_check_lookup(S("nobody.test"), S("/"));
}

/* Everything goes, and nothing stays behind: the table is that of the settings alone. */
static void fz_check_emptied(struct fz_table *t)
{
    for (int kind = 0; kind < OBJ_KIND_COUNT; kind++) {
        uint32_t at = 0;
        const struct obj *o;

        while ((o = map_next(&t->store.kind[kind], &at))) obj_store_remove(&t->store, (enum obj_kind)kind, o->key);
    }
    FZ_CHECK(t->store.bytes == 0);
    fz_table_compile(t);
    FZ_CHECK(rt_live()->hosts->n == t->cfg->nroutes + (t->cfg->default_backend_service.n > 0) && rt_live()->digest == fz_table_whole(t));
}

static struct cfg *fz_settings(const char *ini)
{
    struct cfg *c = proxy_cfg(str_z(ini), NULL, 0);

    FZ_CHECK(c != NULL);
    return c;
}

#endif
