/* What a route lookup costs, and what a change of a big table costs.
 *
 *   gcc -std=gnu11 -O2 -o build/matcher bench/matcher.c -lbearssl -linih -lpthread && build/matcher
 *
 * Prints nanoseconds per rt_find for 1, 1,000 and 5,000 hosts (the middle one has 10,001 routes), and then the CPU time and the memory of
 * compiling 5,000 Ingresses (two paths, a Service and an EndpointSlice each) and of one change in them. */
#define RAMJET_NO_MAIN 1
#include "../ramjet.c"
#include <malloc.h>

enum { MATCHER_QUERIES = 4096, MATCHER_INGRESSES = 5000 };

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

/* A table of hosts with the routes each, and one route for any host. */
static void matcher_table(uint32_t hosts, uint32_t routes, const struct cfg *cfg)
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

        snprintf(names[h], sizeof names[h], "service-%u.region-%u.example.com", h, h % 7);
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

static void matcher_lookups(uint32_t hosts, uint32_t routes)
{
    struct cfg *cfg = matcher_cfg();
    struct matcher_query *q = mem_need(MATCHER_QUERIES * sizeof *q);
    char *text = mem_need(MATCHER_QUERIES * 128), *at = text;
    uint64_t seed = 1, best = UINT64_MAX, found = 0;

    rj.rt.workers = 1;
    matcher_table(hosts, routes, cfg);
    for (uint32_t i = 0; i < MATCHER_QUERIES; i++) {
        uint32_t h = matcher_random(&seed, hosts), r = matcher_random(&seed, routes);
        size_t host = (size_t)sprintf(at, "service-%u.region-%u.example.com", h, h % 7);
        size_t path = (size_t)sprintf(at + host, r ? "/api/v%u/resource-%u%s" : "/", r % 3, r * 37, r % 4 == 3 ? "" : "/items/12345");

        q[i] = (struct matcher_query){str_of(at, host), str_of(at + host, path)};
        at += host + path;
    }
    for (int round = 0; round < 200; round++) {
        uint64_t start = matcher_cpu_ns(), took;

        for (uint32_t i = 0; i < MATCHER_QUERIES; i++) {
            struct rt_match m;

            found += rt_find(rt_live(), q[i].host, q[i].path, &m) && m.rule->path.n > 1;
        }
        took = matcher_cpu_ns() - start;
        if (took < best) best = took;
    }
    printf("%5u hosts, %6u routes: %5.1f ns a lookup (%.0f %% by a path)\n", hosts, hosts * routes + 1, (double)best / MATCHER_QUERIES,
           (double)found / (200.0 * MATCHER_QUERIES) * 100);
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
    printf("%d ingresses: first compile and publish %.1f ms of CPU", MATCHER_INGRESSES, (double)(matcher_cpu_ns() - t) / 1e6);
    mem_free(c.v);
    c = (struct rt_changes){0};
    rcu_collect();
    rt_collect();
    malloc_trim(0);
    at2 = matcher_resident();
    printf(", %u routes; objects %.2f MB, compiler and table %.2f MB\n", rj.rt.hosts->routes, (double)(at1 - at0) / 1e6, (double)(at2 - at1) / 1e6);
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
        if (!rt_publish(&c, cfg, 1, 1)) printf("nothing published\n");
        rcu_collect();
        rt_collect();
        publish += matcher_cpu_ns() - start;
    }
    printf("one change among them: compile %.1f us, publish and free %.1f us of CPU\n", (double)compile / 1e6, (double)publish / 1e6);
    rc_fini(&rc);
    store.changed = NULL;
    obj_store_fini(&store);
    mem_free(c.v);
    cfg_put(cfg);
    rt_fini();
}

int main(void)
{
    matcher_lookups(1, 10);
    matcher_lookups(1000, 10);
    matcher_lookups(5000, 2);
    matcher_lookups(5000, 10);
    matcher_changes();
    return 0;
}
