/* Kubernetes objects: responses of an API server to a list and watches, or a manifest, into the store and the compiler. The store does not depend on
 * the cuts; changes one by one give the table that the whole store gives; lookups in it are right; when everything goes, nothing stays.
 * Input: a byte of options, then a manifest, or bodies of responses parted by NUL (a body that begins with `HTTP/` is a response with its head). */

#include "table.h"

static struct cfg *fz_objects_cfg[2];

static int fz_on_object(void *arg, const struct obj_found *f)
{
    struct fz_table *t = arg;

    FZ_CHECK(f->o || f->why);
    if (f->o) obj_store_put(&t->store, f->o);
    return 0;
}

/* ---- an API server that says anything ---- */

struct fz_api {
    struct k8s k;
    struct kc_config cfg;
    struct k8s_watch *w;
    struct str_builder told;                             /* what the store told */
    struct fz_table *t;
};

static void fz_api_changed(void *arg, const struct obj *old, const struct obj *now)
{
    struct fz_api *a = arg;

    FZ_CHECK(old || now);
    FZ_CHECK(!old || !now || fz_eq(old->key, now->key));
    str_putf(&a->told, "%c" STR_FMT " ", !old ? '+' : !now ? '-' : '~', STR_ARG(now ? now->key : old->key));
    rc_on_changed(&a->t->rc, old, now);
}

static void fz_api_synced(void *arg) { (void)arg; }

/* The connection is made anew when it has to be: nothing waits for ever. */
static void fz_api_ready(struct fz_api *a)
{
    if (a->w->drop || a->w->state == K8S_WAIT_RETRY || a->w->state == K8S_WAIT_LINK) {
        a->w->drop = false;
        a->k.now_ms += 100000;
        if (a->w->state == K8S_WAIT_RETRY) k8s_watch_due(a->w);
        FZ_CHECK(a->w->state == K8S_WAIT_LINK);
        k8s_watch_opened(a->w);
    }
    FZ_CHECK(a->w->state >= K8S_WAIT_LIST_HEAD);
    if (a->w->request.n) FZ_CHECK(str_starts(str_built(&a->w->request), S("GET /")) && str_ends(str_built(&a->w->request), S("\r\n\r\n")));
    a->w->request.n = 0;
}

static void fz_api_open(struct fz_api *a, struct fz_table *t, unsigned kind)
{
    *a = (struct fz_api){.t = t, .told = str_growing()};
    a->cfg.host = S("api");
    a->cfg.port = 80;
    a->cfg.token = str_growing();
    t->store.changed = fz_api_changed;
    t->store.arg = a;
    k8s_init(&a->k, &a->cfg, &t->store, NULL, 0);
    a->k.synced = fz_api_synced;
    a->k.now_ms = 1000000;
    for (uint32_t i = 0; i < a->k.nwatches; i++)
        if (a->k.watches[i].kind == kind) a->w = &a->k.watches[i];
    k8s_watch_due(a->w);
    k8s_watch_opened(a->w);
}

static void fz_api_close(struct fz_api *a)
{
    k8s_fini(&a->k);
    str_free(&a->cfg.token);
    str_free(&a->told);
    a->t->store.changed = rc_on_changed;
    a->t->store.arg = &a->t->rc;
}

/* One response, in pieces cut where seed says. */
static void fz_api_answer(struct fz_api *a, struct str body, uint64_t seed)
{
    struct str_builder sb = str_growing();
    struct str s;
    uint32_t step = 1 + ut_random(&seed, 100);
    bool whole = str_starts(body, S("HTTP/"));

    fz_api_ready(a);
    if (!whole) str_putf(&sb, "HTTP/1.1 200 OK\r\nContent-Length: %zu\r\n\r\n", body.n);
    str_put(&sb, body);
    s = str_built(&sb);
    for (size_t at = 0, k; at < s.n && !a->w->drop; at += k) {
        k = 1 + ut_random(&seed, step);
        if (k > s.n - at) k = s.n - at;
        k8s_watch_feed(a->w, fz_copy(1, s.p + at, k));
    }
    if (whole && !a->w->drop) k8s_watch_ended(a->w, "closed");
    str_free(&sb);
}

static void fz_api_script(struct fz_api *a, struct str script, uint64_t seed)
{
    while (script.n) {
        struct str body;

        if (!str_cut(&script, 0, &body)) break;
        fz_api_answer(a, body, seed++);
        fz_table_compile(a->t);
    }
}

/* The same script cut in another way tells the same story. */
static void fz_check_story(struct fz_api *a, struct str script, unsigned kind, uint64_t seed)
{
    struct rt_state mine = rj.rt;
    struct rt_snapshot *live = atomic_load_explicit(&rj.rt_live, memory_order_relaxed);
    struct fz_table t;
    struct fz_api b;

    rj.rt = (struct rt_state){.workers = 1};
    fz_table_open(&t, a->t->cfg);
    fz_api_open(&b, &t, kind);
    fz_api_script(&b, script, seed);
    if (!fz_eq(str_built(&a->told), str_built(&b.told))) FZ_FAIL("%.*s\nand cut otherwise %.*s", STR_ARG(str_built(&a->told)), STR_ARG(str_built(&b.told)));
    FZ_CHECK(a->w->state == b.w->state && fz_eq(str_built(&a->w->version), str_built(&b.w->version)));
    fz_api_close(&b);
    fz_table_close(&t);
    rj.rt = mine;
    atomic_store_explicit(&rj.rt_live, live, memory_order_relaxed);
}

FZ(objects, 4096)
{
    struct fz_in in = {p, n};
    uint8_t option = fz_take(&in);
    struct str s = fz_copy(0, in.p, in.n);
    uint64_t seed = fz_seed(p, n);
    unsigned kind = option >> 2 & 3;
    struct fz_table t;
    struct log_err err;

    fz_table_open(&t, fz_objects_cfg[option >> 4 & 1]);
    if (option & 1) {
        struct fz_api a;

        fz_api_open(&a, &t, kind);
        fz_api_script(&a, s, seed);
        fz_check_story(&a, s, kind, seed / 3);
        fz_api_close(&a);
    } else {
        (void)obj_read(s, fz_on_object, &t, &err);
    }
    fz_table_compile(&t);
    FZ_CHECK(!fz_table_compile(&t));
    FZ_CHECK(rt_live()->digest == fz_table_whole(&t));
    fz_check_table();
    fz_check_emptied(&t);
    fz_table_close(&t);
}

FZ_OPEN(objects)
{
    fz_objects_cfg[0] = fz_settings("");
    fz_objects_cfg[1] = fz_settings("[ramjet]\nwatch-ingress-without-class = true\n[backend f]\nendpoint = 10.3.3.3:80\n[route f]\nhost = a.test\npath = /f\nbackend = f\n");
}
