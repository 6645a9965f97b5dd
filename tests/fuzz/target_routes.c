/* The route compiler on objects that always parse: puts, removals and compiles in any order. After each compile the table is the one that the whole
 * store gives, lookups are those of a slow matcher, and what did not change stays. Input: operations of a few bytes each. */

#include "table.h"

static const char *const fz_hosts[] = {"", "a.test", "b.test", "*.b.test", "x.b.test", "*.test", "*", "A.test", "a.test.", "-", "*.*.test", "a..test", "1.2.3.4", "c.test"};
static const char *const fz_paths[] = {"/", "/x", "/x/", "/x/y", "/x/y/z", "/%78", "/a/../x", "/x//y", "x", "", "/(a|b)", "/\\u00e9", "/x?y", "/X", "/aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"};
static const char *const fz_types[] = {"Prefix", "Exact", "ImplementationSpecific", "Prefix", "prefix"};
static const char *const fz_classes[] = {"ramjet", "c0", "c1", "nginx"};
static const char *const fz_annotations[] = {
    "nginx.ingress.kubernetes.io/proxy-body-size\":\"1m", "nginx.ingress.kubernetes.io/proxy-body-size\":\"x", "ramjet.io/load-balance\":\"ewma", "ramjet.io/load-balance\":\"least_conn",
    "nginx.ingress.kubernetes.io/proxy-connect-timeout\":\"5", "nginx.ingress.kubernetes.io/rewrite-target\":\"/$1", "ramjet.io/nonsense\":\"1", "kubernetes.io/ingress.class\":\"ramjet",
    "nginx.ingress.kubernetes.io/whitelist-source-range\":\"10.0.0.0/8", "nginx.ingress.kubernetes.io/permanent-redirect\":\"/y", "nginx.ingress.kubernetes.io/limit-rps\":\"5",
    "nginx.ingress.kubernetes.io/proxy-next-upstream\":\"error timeout", "ramjet.io/max-fails\":\"3", "nginx.ingress.kubernetes.io/canary\":\"true", "ramjet.io/proxy-body-size\":\"2m",
};

static const char *fz_one(struct fz_in *in, const char *const *table, size_t n) { return table[fz_take(in) % n]; }
#define FZ_ONE(in, table) fz_one(in, table, RJ_COUNT(table))

static void fz_put_backend(struct str_builder *b, struct fz_in *in)
{
    uint8_t k = fz_take(in);

    str_putf(b, "{\"service\":{\"name\":\"s%u\",\"port\":{", k % 4);
    if (k & 4) str_putf(b, "\"name\":\"p%u\"}}}", k >> 3 & 1);
    else str_putf(b, "\"number\":%u}}}", 80u + (k >> 3 & 3));
}

static void fz_put_ingress(struct str_builder *b, struct fz_in *in)
{
    uint8_t k = fz_take(in);

    str_putf(b, "{\"kind\":\"Ingress\",\"metadata\":{\"name\":\"i%u\",\"namespace\":\"n%u\",\"creationTimestamp\":\"2024-01-01T00:00:0%uZ\",\"annotations\":{", k % 8, k >> 3 & 1, k >> 4 & 3);
    for (unsigned i = 0, n = k >> 6; i < n; i++) str_putf(b, "%s\"%s\"", i ? "," : "", FZ_ONE(in, fz_annotations));
    k = fz_take(in);
    str_put_z(b, "}},\"spec\":{");
    if (k & 3) str_putf(b, "\"ingressClassName\":\"%s\",", k & 2 ? "ramjet" : FZ_ONE(in, fz_classes));
    if (k & 4) {
        str_put_z(b, "\"defaultBackend\":");
        fz_put_backend(b, in);
        str_put_c(b, ',');
    }
    str_put_z(b, "\"rules\":[");
    for (unsigned i = 0, n = k >> 3 & 3; i < n; i++) {
        str_putf(b, "%s{\"host\":\"%s\",\"http\":{\"paths\":[", i ? "," : "", FZ_ONE(in, fz_hosts));
        for (unsigned j = 0, m = fz_take(in) % 4; j < m; j++) {
            str_putf(b, "%s{\"path\":\"%s\",\"pathType\":\"%s\",\"backend\":", j ? "," : "", FZ_ONE(in, fz_paths), FZ_ONE(in, fz_types));
            fz_put_backend(b, in);
            str_put_c(b, '}');
        }
        str_put_z(b, "]}}");
    }
    str_put_z(b, "]}}");
}

static void fz_put_service(struct str_builder *b, struct fz_in *in)
{
    uint8_t k = fz_take(in);

    str_putf(b, "{\"kind\":\"Service\",\"metadata\":{\"name\":\"s%u\",\"namespace\":\"n%u\"},\"spec\":{", k % 4, k >> 2 & 1);
    if ((k >> 3 & 7) == 7) str_put_z(b, "\"type\":\"ExternalName\",\"externalName\":\"x.test\",");
    str_putf(b, "\"ports\":[{\"name\":\"p%u\",\"port\":%u},{\"name\":\"p%u\",\"port\":%u,\"protocol\":\"%s\"}]}}", k >> 3 & 1, 80u + (k >> 4 & 1), k >> 5 & 1, 80u + (k >> 6 & 3), k & 8 ? "UDP" : "TCP");
}

static void fz_put_slice(struct str_builder *b, struct fz_in *in)
{
    uint8_t k = fz_take(in), n = fz_take(in);

    str_putf(b, "{\"kind\":\"EndpointSlice\",\"metadata\":{\"name\":\"e%u\",\"namespace\":\"n%u\",\"labels\":{\"kubernetes.io/service-name\":\"s%u\"}},\"addressType\":\"%s\",", k % 8, k >> 3 & 1,
             k >> 4 & 3, k >> 6 == 3 ? "IPv6" : "IPv4");
    str_putf(b, "\"ports\":[{\"name\":\"p%u\",\"port\":%u}],\"endpoints\":[", n & 1, 8080u + (n >> 1 & 1));
    for (unsigned i = 0, m = n >> 2 & 3; i < m; i++) {
        uint8_t e = fz_take(in);

        str_putf(b, "%s{\"addresses\":[\"%s%u\"],\"conditions\":{\"ready\":%s,\"serving\":%s,\"terminating\":%s}}", i ? "," : "", k >> 6 == 3 ? "fd00::" : "10.0.0.", e % 8u + 1,
                 e & 8 ? "true" : "false", e & 16 ? "true" : "false", e & 32 ? "true" : "false");
    }
    str_put_z(b, "]}");
}

static void fz_put_class(struct str_builder *b, struct fz_in *in)
{
    uint8_t k = fz_take(in);

    str_putf(b, "{\"kind\":\"IngressClass\",\"metadata\":{\"name\":\"%s\",\"annotations\":{\"ingressclass.kubernetes.io/is-default-class\":\"%s\"}},\"spec\":{\"controller\":\"%s\"}}",
             fz_classes[k % 4], k & 4 ? "true" : "false", k & 8 ? "ramjet.io/ingress-controller" : "else");
}

static int fz_on_route_object(void *arg, const struct obj_found *f)
{
    struct fz_table *t = arg;

    if (!f->o) FZ_FAIL("an object is refused: %s", f->why);
    obj_store_put(&t->store, f->o);
    return 0;
}

static void fz_put_object(struct fz_table *t, unsigned what, struct fz_in *in)
{
    static void (*const put[])(struct str_builder *, struct fz_in *) = {fz_put_ingress, fz_put_ingress, fz_put_service, fz_put_slice, fz_put_class};
    struct str_builder b = str_growing();
    struct log_err err;

    put[what](&b, in);
    if (obj_read(str_built(&b), fz_on_route_object, t, &err)) FZ_FAIL("%s: %.*s", err.text, STR_ARG(str_built(&b)));
    str_free(&b);
}

static void fz_remove_object(struct fz_table *t, struct fz_in *in)
{
    unsigned kind = fz_take(in) % OBJ_KIND_COUNT, n = fz_take(in), k = 0;
    uint32_t at = 0;
    const struct obj *o = NULL;

    if (!t->store.kind[kind].count) return;
    for (n %= t->store.kind[kind].count; k <= n; k++) o = map_next(&t->store.kind[kind], &at);
    obj_store_remove(&t->store, (enum obj_kind)kind, o->key);
}

static void fz_check_compile(struct fz_table *t)
{
    fz_table_compile(t);
    FZ_CHECK(!fz_table_compile(t));
    FZ_CHECK(rt_live()->digest == fz_table_whole(t));
    fz_check_table();
}

static const struct cfg *fz_routes_cfg[3];

FZ(routes, 512)
{
    struct fz_in in = {p, n};
    struct fz_table t;
    unsigned compiles = 0;

    fz_table_open(&t, fz_routes_cfg[fz_take(&in) % 3]);
    while (in.n) {
        unsigned what = fz_take(&in) % 8;

        if (what < 5) fz_put_object(&t, what, &in);
        else if (what == 5) fz_remove_object(&t, &in);
        else if (what == 6 && compiles++ < 12) fz_check_compile(&t);
        else if (what == 7 && fz_take(&in) % 4 == 0) {
            t.cfg = fz_routes_cfg[fz_take(&in) % 3];     /* a reload of the settings */
            rc_set_config(&t.rc, t.cfg);
        }
    }
    fz_check_compile(&t);
    fz_check_emptied(&t);
    fz_table_close(&t);
}

FZ_OPEN(routes)
{
    fz_routes_cfg[0] = fz_settings("");
    fz_routes_cfg[1] = fz_settings("[ramjet]\nwatch-ingress-without-class = true\nload-balance = least_conn\n[backend f]\nendpoint = 10.3.3.3:80\n[route f]\nhost = a.test\npath = /x\nbackend = f\n");
    fz_routes_cfg[2] = fz_settings("[ramjet]\ndefault-backend-service = f\n[backend f]\nendpoint = 10.3.3.3:80 weight=2\n[route f]\nhost = *.b.test\nbackend = f\n");
}
