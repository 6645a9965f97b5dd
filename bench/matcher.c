/* What a route lookup costs, and what a change of a big table costs.
 *
 *   gcc -std=gnu11 -O2 -o build/matcher bench/matcher.c -lbearssl -linih -lpthread && build/matcher
 *
 * Prints, a JSON object per line, nanoseconds per rt_find for 1, 1,000 and 5,000 hosts (the middle one has 10,001 routes; also for a host that is
 * not there and for one of a wildcard), and then the CPU time and the memory of compiling 5,000 Ingresses (two paths, a Service and an
 * EndpointSlice each) and of one change in them. */
#define RAMJET_NO_MAIN 1
#include "../ramjet.c"
#include <malloc.h>

enum { MATCHER_QUERIES = 4096, MATCHER_INGRESSES = 5000 };

enum matcher_ask { MATCHER_HIT, MATCHER_MISS, MATCHER_WILD };

struct matcher_query {
    struct str host, path;
};

static uint64_t matcher_cpu_ns(void) { return sys_clock_ns(CLOCK_PROCESS_CPUTIME_ID); }

static uint32_t matcher_random(uint64_t *seed, uint32_t n)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*seed >> 33) % n;
}

static size_t matcher_resident(void)
{
    char text[256] = {0};
    int fd = sys_open("/proc/self/statm", O_RDONLY, 0);
    unsigned long total = 0, resident = 0;

    sys_read(fd, text, sizeof text - 1);
    sys_close(fd);
    sscanf(text, "%lu %lu", &total, &resident);
    return resident * 4096;
}

static struct cfg *matcher_cfg(void)
{
    struct cfg_input in = {0};
    struct cfg_report report = {.text = str_growing()};

    return cfg_load(&in, &report);
}

/* A table of hosts (wildcards when asked for) with the routes each, and one route for any host. */
static void matcher_table(uint32_t hosts, uint32_t routes, bool wild, const struct cfg *cfg)
{
    static const struct rt_policy policy;
    struct rt_changes c = {0};
    struct rt_backend head = {.name = S("ns/backend:80"), .hash = 1};
    struct rt_endpoint ep = {.weight = 1};
    uint32_t slot = rt_slot_new(1, NULL);
    static char names[5000][64], paths[16][64];

    for (uint32_t i = 0; i < routes; i++) snprintf(paths[i], sizeof paths[i], i ? "/api/v%u/resource-%u" : "", i % 3, i * 37);
    for (uint32_t h = 0; h < hosts; h++) {
        struct rt_rule rules[16];

        snprintf(names[h], sizeof names[h], wild ? "*.service-%u.region-%u.example.com" : "service-%u.region-%u.example.com", h, h % 7);
        for (uint32_t i = 0; i < routes; i++)
            rules[i] = (struct rt_rule){.path = str_z(paths[i]), .type = i % 4 == 3 ? RT_EXACT : RT_PREFIX, .backend = slot, .policy = &policy, .name = S("ns/ingress")};
        rt_changes_add(&c, (struct rt_change){.name = str_z(names[h]), .host = rt_host_new(str_z(names[h]), rules, routes), .slot = RT_NO_BACKEND});
    }
    rt_changes_add(&c, (struct rt_change){.name = S(""), .slot = RT_NO_BACKEND, .host = rt_host_new(S(""),
                   &(struct rt_rule){.type = RT_PREFIX, .backend = slot, .policy = &policy, .name = S("any")}, 1)});
    rt_changes_add(&c, (struct rt_change){.slot = slot, .backend = rt_backend_new(&head, &ep, 1)});
    rt_publish(&c, cfg, 1, 1);
    mem_free(c.v);
}

/* What is asked in turn; the text that the queries point to is returned. */
static char *matcher_queries(struct matcher_query *q, uint32_t hosts, uint32_t routes, enum matcher_ask ask)
{
    static const char *const forms[] = {"service-%u.region-%u.example.com", "absent-%u.region-%u.example.com", "w.service-%u.region-%u.example.com"};
    char *text = mem_need(MATCHER_QUERIES * 128), *at = text;
    uint64_t seed = 1;

    for (uint32_t i = 0; i < MATCHER_QUERIES; i++) {
        uint32_t h = matcher_random(&seed, hosts), r = matcher_random(&seed, routes);
        size_t host = (size_t)sprintf(at, forms[ask], h, h % 7);
        size_t path = (size_t)sprintf(at + host, r ? "/api/v%u/resource-%u%s" : "/", r % 3, r * 37, r % 4 == 3 ? "" : "/items/12345");

        q[i] = (struct matcher_query){str_of(at, host), str_of(at + host, path)};
        at += host + path;
    }
    return text;
}

static void matcher_lookups(const char *name, uint32_t hosts, uint32_t routes, enum matcher_ask ask)
{
    enum { ROUNDS = 200 };
    struct cfg *cfg = matcher_cfg();
    struct matcher_query *q = mem_need(MATCHER_QUERIES * sizeof *q);
    char *text = matcher_queries(q, hosts, routes, ask);
    uint64_t best = UINT64_MAX, own = 0;

    rj.rt.workers = 1;
    matcher_table(hosts, routes, ask == MATCHER_WILD, cfg);
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t start = matcher_cpu_ns(), took;

        for (uint32_t i = 0; i < MATCHER_QUERIES; i++) {
            struct rt_match m;

            own += rt_find(rt_live(), q[i].host, q[i].path, &m) && m.rule->name.n != 3;
        }
        took = matcher_cpu_ns() - start;
        if (took < best) best = took;
    }
    if (own != (ask == MATCHER_MISS ? 0 : ROUNDS * MATCHER_QUERIES)) {
        fprintf(stderr, "%s: %lu answers by a rule of the host\n", name, own);
        exit(1);
    }
    printf("{\"name\": \"%s\", \"value\": %.1f, \"unit\": \"ns\", \"hosts\": %u, \"routes\": %u}\n", name, (double)best / MATCHER_QUERIES, hosts, hosts * routes + 1);
    mem_free(q);
    mem_free(text);
    cfg_put(cfg);
    rt_fini();
}

static int matcher_take(void *arg, const struct obj_found *f)
{
    if (f->o) obj_store_put(arg, f->o);
    return 0;
}

/* One Ingress with two paths, its Service and its EndpointSlice. */
static void matcher_app(struct obj_store *store, unsigned i, const char *path, unsigned addr)
{
    struct log_err err;
    char text[2048];
    int n = snprintf(text, sizeof text,
        "{\"apiVersion\":\"v1\",\"kind\":\"List\",\"items\":["
        "{\"apiVersion\":\"networking.k8s.io/v1\",\"kind\":\"Ingress\",\"metadata\":{\"name\":\"web-%u\",\"namespace\":\"team-%u\"},\"spec\":{\"ingressClassName\":\"ramjet\","
        "\"rules\":[{\"host\":\"app-%u.example.com\",\"http\":{\"paths\":[{\"path\":\"/\",\"pathType\":\"Prefix\",\"backend\":{\"service\":{\"name\":\"web-%u\",\"port\":{\"number\":80}}}},"
        "{\"path\":\"%s\",\"pathType\":\"Prefix\",\"backend\":{\"service\":{\"name\":\"web-%u\",\"port\":{\"number\":80}}}}]}}]}},"
        "{\"apiVersion\":\"v1\",\"kind\":\"Service\",\"metadata\":{\"name\":\"web-%u\",\"namespace\":\"team-%u\"},\"spec\":{\"ports\":[{\"name\":\"http\",\"port\":80}]}},"
        "{\"apiVersion\":\"discovery.k8s.io/v1\",\"kind\":\"EndpointSlice\",\"metadata\":{\"name\":\"web-%u-abcde\",\"namespace\":\"team-%u\",\"labels\":{\"kubernetes.io/service-name\":\"web-%u\"}},"
        "\"addressType\":\"IPv4\",\"ports\":[{\"name\":\"http\",\"port\":8080}],\"endpoints\":[{\"addresses\":[\"10.%u.%u.%u\"],\"conditions\":{\"ready\":true}}]}]}",
        i, i % 50, i, i, path, i, i, i % 50, i, i % 50, i, addr, i / 256, i % 256);

    obj_read(str_of(text, (size_t)n), matcher_take, store, &err);
}

static void matcher_say(const char *name, double value, const char *unit) { printf("{\"name\": \"%s\", \"value\": %.2f, \"unit\": \"%s\"}\n", name, value, unit); }

static void matcher_changes(void)
{
    struct cfg *cfg = matcher_cfg();
    struct obj_store store = {0};
    struct rt_changes c = {0};
    struct rc rc;
    size_t at0, at1, at2;
    uint64_t t, compile = 0, publish = 0;

    rj.rt.workers = 2;
    malloc_trim(0);
    at0 = matcher_resident();
    for (unsigned i = 0; i < MATCHER_INGRESSES; i++) matcher_app(&store, i, "/api", 1);
    malloc_trim(0);
    at1 = matcher_resident();
    t = matcher_cpu_ns();
    rc_init(&rc, &store, cfg);
    for (int kind = 0; kind < OBJ_KIND_COUNT; kind++) {
        const struct obj *o;
        uint32_t at = 0;

        while ((o = map_next(&store.kind[kind], &at))) rc_on_changed(&rc, NULL, o);
    }
    rc_compile(&rc, &c);
    rt_publish(&c, cfg, 1, 1);
    matcher_say("compile and publish 5,000 Ingresses", (double)(matcher_cpu_ns() - t) / 1e6, "ms");
    mem_free(c.v);
    c = (struct rt_changes){0};
    rcu_collect();
    rt_collect();
    malloc_trim(0);
    at2 = matcher_resident();
    matcher_say("memory of the objects of 5,000 Ingresses", (double)(at1 - at0) / 1e6, "MB");
    matcher_say("memory of compiler and table of 5,000 Ingresses", (double)(at2 - at1) / 1e6, "MB");
    store.changed = rc_on_changed;
    store.arg = &rc;
    for (unsigned i = 0; i < 1000; i++) {
        uint64_t start;

        if (i % 2) matcher_app(&store, i, "/changed", 1);
        else matcher_app(&store, i, "/api", 2);
        start = matcher_cpu_ns();
        rc_compile(&rc, &c);
        compile += matcher_cpu_ns() - start;
        start = matcher_cpu_ns();
        if (!rt_publish(&c, cfg, 1, 1)) {
            fprintf(stderr, "nothing published\n");
            exit(1);
        }
        rcu_collect();
        rt_collect();
        publish += matcher_cpu_ns() - start;
    }
    matcher_say("one change among 5,000 Ingresses, compile", (double)compile / 1e6, "us");
    matcher_say("one change among 5,000 Ingresses, publish and free", (double)publish / 1e6, "us");
    rc_fini(&rc);
    store.changed = NULL;
    obj_store_fini(&store);
    mem_free(c.v);
    cfg_put(cfg);
    rt_fini();
}

int main(void)
{
    matcher_lookups("route lookup, 1 host", 1, 10, MATCHER_HIT);
    matcher_lookups("route lookup, 1,000 hosts, 10,001 routes", 1000, 10, MATCHER_HIT);
    matcher_lookups("route lookup, 1,000 hosts, one that is not there", 1000, 10, MATCHER_MISS);
    matcher_lookups("route lookup, 1,000 wildcard hosts", 1000, 10, MATCHER_WILD);
    matcher_lookups("route lookup, 5,000 hosts, 50,001 routes", 5000, 10, MATCHER_HIT);
    matcher_changes();
    return 0;
}
