/* rc_: manifests and files to route tables; one changed object; equal results whatever the order. */

struct rc_ut {
    struct obj_store store;
    struct rc rc;
    struct cfg *cfg;
    struct rt_changes changes;
    struct str_builder warnings;
    uint32_t compiled_hosts;
};

static void rc_ut_warn(void *arg, const char *text)
{
    struct rc_ut *u = arg;

    str_putf(&u->warnings, "%s\n", text);
}

static void rc_ut_open(struct rc_ut *u, const char *ini)
{
    *u = (struct rc_ut){.cfg = proxy_cfg(str_z(ini), NULL, 0), .warnings = str_growing()};
    proxy_rc_open(&u->rc, &u->store, u->cfg, rc_ut_warn, u);
}

static void rc_ut_close(struct rc_ut *u)
{
    proxy_rc_close(&u->rc, &u->store, &u->changes);
    cfg_put(u->cfg);
    str_free(&u->warnings);
}

static int rc_ut_on_object(void *arg, const struct obj_found *f)
{
    struct rc_ut *u = arg;

    if (UT_CHECK(f->o != NULL)) obj_store_put(&u->store, f->o);
    else printf("%s\n", f->why);
    return 0;
}

static void rc_ut_put(struct rc_ut *u, const char *yaml)
{
    struct log_err err;

    if (!UT_CHECK(obj_read(str_z(yaml), rc_ut_on_object, u, &err) == 0)) printf("%s\n", err.text);
}

static bool rc_ut_compile(struct rc_ut *u)
{
    bool done;

    rc_compile(&u->rc, &u->changes);
    u->compiled_hosts = 0;
    for (uint32_t i = 0; i < u->changes.n; i++) u->compiled_hosts += u->changes.v[i].slot == RT_NO_BACKEND;
    done = rt_publish(&u->changes, u->rc.cfg, 1, 1);
    rcu_collect();
    rt_collect();
    return done;
}

static bool rc_ut_warned(struct rc_ut *u, const char *text)
{
    str_put_c(&u->warnings, 0);
    u->warnings.n--;
    return strstr((const char *)u->warnings.p, text) != NULL;
}

/* "ADDRESS:PORT ..." of the backend that answers, "503", or "404". */
static const char *rc_ut_ask(const char *host, const char *path, char *out)
{
    struct str_builder b = str_fixed(out, 511);
    struct rt_match m;

    if (!rt_find(rt_live(), ut_str(host), ut_str(path), &m)) return "404";
    if (!m.backend || !m.backend->n) return "503";
    for (uint32_t i = 0; i < m.backend->n; i++) {
        if (i) str_put_c(&b, ' ');
        str_put_addr(&b, &m.backend->ep[i].addr);
    }
    out[b.n] = 0;
    return out;
}

#define RC_UT_ASK(host, path, want)                                                                                                  \
    do {                                                                                                                             \
        char text_[512];                                                                                                             \
        UT_TEXT(rc_ut_ask(host, path, text_), want);                                                                                 \
    } while (0)

#define RC_SVC "apiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: shop}\nspec: {ports: [{name: http, port: 80}, {name: admin, port: 9000}]}\n---\n"
#define RC_SLICE(name, addr) \
    "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: " name ", namespace: shop, labels: {kubernetes.io/service-name: web}}\n" \
    "addressType: IPv4\nports: [{name: http, port: 8080, protocol: TCP}, {name: admin, port: 8081, protocol: TCP}]\nendpoints: [" addr "]\n---\n"
#define RC_ING(name, extra, spec) \
    "apiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {name: " name ", namespace: shop" extra "}\nspec: {ingressClassName: ramjet" spec "}\n---\n"
#define RC_PATH(path, type, port) "{path: " path ", pathType: " type ", backend: {service: {name: web, port: {" port "}}}}"
#define RC_RULE(host, paths) ", rules: [{host: " host ", http: {paths: [" paths "]}}]"

UT(rc_ports_by_name_and_number)
{
    struct rc_ut u;

    rc_ut_open(&u, "");
    rc_ut_put(&u, RC_SVC RC_SLICE("s1", "{addresses: [10.0.0.1]}"));
    rc_ut_put(&u, RC_ING("web", "", RC_RULE("a.test", RC_PATH("/n", "Prefix", "number: 80") ", " RC_PATH("/t", "Exact", "name: admin") ", "
                                            RC_PATH("/bad", "Prefix", "number: 81") ", " RC_PATH("/metrics", "Prefix", "name: metrics"))));
    rc_ut_compile(&u);
    RC_UT_ASK("a.test", "/n/x", "10.0.0.1:8080");
    RC_UT_ASK("a.test", "/t", "10.0.0.1:8081");
    RC_UT_ASK("a.test", "/t/", "404");
    RC_UT_ASK("a.test", "/bad", "503");
    RC_UT_ASK("a.test", "/metrics", "503");
    RC_UT_ASK("b.test", "/n", "404");
    UT_CHECK(rc_ut_warned(&u, "ingress shop/web: spec.rules[0].http.paths[2].backend: service shop/web has no port 81"));
    UT_CHECK(rc_ut_warned(&u, "service shop/web has no port named \"metrics\""));
    rc_ut_close(&u);
}

/* Endpoints of up to three slices, the answer. */
UT(rc_endpoint_choice)
{
#define E(addr, cond) "{addresses: [\"" addr "\"], conditions: {" cond "}}"
    static const struct { int line; const char *s1, *s2, *want; } rows[] = {
        UT_ROW("{addresses: [10.0.0.1]}", "", "10.0.0.1:8080"),
        UT_ROW(E("10.0.0.1", ""), "", "10.0.0.1:8080"),
        UT_ROW("{addresses: [10.0.0.2]}, {addresses: [10.0.0.1]}", "", "10.0.0.1:8080 10.0.0.2:8080"),
        UT_ROW("{addresses: [10.0.0.1]}, {addresses: [10.0.0.2]}", "{addresses: [10.0.0.2]}, {addresses: [10.0.0.3]}", "10.0.0.1:8080 10.0.0.2:8080 10.0.0.3:8080"),
        UT_ROW("{addresses: [10.0.0.1, 10.0.0.9]}", "", "10.0.0.1:8080"),
        UT_ROW(E("10.0.0.1", "ready: true") ", " E("10.0.0.2", "ready: false, serving: true, terminating: true"), "", "10.0.0.1:8080"),
        UT_ROW(E("10.0.0.1", "ready: false, serving: false") ", " E("10.0.0.2", "ready: false, serving: true, terminating: true"), "", "10.0.0.2:8080"),
        UT_ROW(E("10.0.0.2", "ready: false, serving: true, terminating: true"), E("10.0.0.1", "ready: true"), "10.0.0.1:8080"),
        UT_ROW(E("10.0.0.1", "ready: false, serving: true"), "", "503"),
        UT_ROW(E("10.0.0.1", "ready: false, serving: false, terminating: true"), "", "503"),
        UT_ROW(E("10.0.0.1", "ready: true, terminating: true"), "", "10.0.0.1:8080"),
        UT_ROW("", "", "503"),
    };
    struct rc_ut u;

    rc_ut_open(&u, "");
    rc_ut_put(&u, RC_SVC RC_ING("web", "", RC_RULE("a.test", RC_PATH("/", "Prefix", "number: 80"))));
    UT_EACH(r, rows) {
        char text[2048];

        snprintf(text, sizeof text, RC_SLICE("s1", "%s") RC_SLICE("s2", "%s"), r->s1, r->s2);
        rc_ut_put(&u, text);
        rc_ut_compile(&u);
        RC_UT_ASK("a.test", "/", r->want);
    }
    rc_ut_close(&u);
#undef E
}

UT(rc_services_of_all_kinds)
{
    struct rc_ut u;
    struct net_addr addr;

    rc_ut_open(&u, "");
    rc_ut_put(&u, RC_ING("web", "", RC_RULE("a.test", RC_PATH("/", "Prefix", "number: 80"))));
    rc_ut_compile(&u);
    RC_UT_ASK("a.test", "/", "503");                     /* no service */
    UT_CHECK(rc_ut_warned(&u, "there is no service shop/web"));
    rc_ut_put(&u, RC_SLICE("s1", "{addresses: [10.0.0.1]}"));
    rc_ut_compile(&u);
    RC_UT_ASK("a.test", "/", "503");                     /* still none */
    rc_ut_put(&u, RC_SVC);
    rc_ut_compile(&u);
    RC_UT_ASK("a.test", "/", "10.0.0.1:8080");
    rc_ut_put(&u, "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: s6, namespace: shop, labels: {kubernetes.io/service-name: web}}\n"
                  "addressType: IPv6\nports: [{name: http, port: 8080}]\nendpoints: [{addresses: ['fd00::1']}]\n");
    rc_ut_compile(&u);
    RC_UT_ASK("a.test", "/", "10.0.0.1:8080");           /* one family */
    obj_store_remove(&u.store, OBJ_ENDPOINT_SLICE, S("shop/s1"));
    rc_ut_compile(&u);
    RC_UT_ASK("a.test", "/", "[fd00::1]:8080");
    obj_store_remove(&u.store, OBJ_SERVICE, S("shop/web"));
    rc_ut_compile(&u);
    RC_UT_ASK("a.test", "/", "503");
    rc_ut_put(&u, "apiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: shop}\nspec: {type: ExternalName, externalName: db.outside.test}\n");
    rc_ut_compile(&u);
    RC_UT_ASK("a.test", "/", "503");                     /* not resolved */
    str_to_ip(S("10.9.9.9"), &addr);
    UT_INT(u.rc.names.count, 1);
    UT_CHECK(rc_set_addrs(rc_table_find(&u.rc.names, S("db.outside.test")), &addr, 1));
    UT_CHECK(!rc_set_addrs(rc_table_find(&u.rc.names, S("db.outside.test")), &addr, 1));
    rc_ut_compile(&u);
    RC_UT_ASK("a.test", "/", "10.9.9.9:80");
    rc_ut_put(&u, "apiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: shop}\nspec: {type: ExternalName, externalName: 10.8.8.8, ports: [{port: 80}]}\n");
    rc_ut_compile(&u);
    RC_UT_ASK("a.test", "/", "10.8.8.8:80");
    UT_INT(u.rc.names.count, 0);
    rc_ut_close(&u);
}

UT(rc_conflicts_go_by_age_then_name)
{
    struct rc_ut u;

    rc_ut_open(&u, "");
    rc_ut_put(&u, RC_SVC RC_SLICE("s1", "{addresses: [10.0.0.1]}"));
    rc_ut_put(&u, RC_ING("zz", ", creationTimestamp: '2024-01-01T00:00:00Z'", RC_RULE("a.test", RC_PATH("/x", "Prefix", "number: 80"))));
    rc_ut_put(&u, RC_ING("aa", ", creationTimestamp: '2024-01-01T00:00:01Z'",
                         RC_RULE("a.test", RC_PATH("/x/", "Prefix", "name: admin") ", " RC_PATH("/y", "Prefix", "name: admin"))));
    rc_ut_compile(&u);
    RC_UT_ASK("a.test", "/x", "10.0.0.1:8080");
    RC_UT_ASK("a.test", "/y", "10.0.0.1:8081");
    UT_CHECK(rc_ut_warned(&u, "ingress shop/aa: prefix path /x of host a.test belongs to shop/zz"));
    u.warnings.n = 0;
    rc_ut_put(&u, RC_ING("other", "", RC_RULE("a.test", RC_PATH("/z", "Prefix", "number: 80"))));
    rc_ut_compile(&u);
    UT_CHECK(!rc_ut_warned(&u, "belongs"));              /* said already */
    obj_store_remove(&u.store, OBJ_INGRESS, S("shop/zz"));
    rc_ut_compile(&u);
    RC_UT_ASK("a.test", "/x", "10.0.0.1:8081");
    rc_ut_put(&u, RC_ING("ab", ", creationTimestamp: '2024-01-01T00:00:01Z'", RC_RULE("a.test", RC_PATH("/x", "Prefix", "number: 80"))));
    rc_ut_compile(&u);
    RC_UT_ASK("a.test", "/x", "10.0.0.1:8081");          /* equal age: aa before ab */
    rc_ut_close(&u);
}

UT(rc_bad_rules_harm_no_others)
{
    struct rc_ut u;

    rc_ut_open(&u, "");
    rc_ut_put(&u, RC_SVC RC_SLICE("s1", "{addresses: [10.0.0.1]}"));
    rc_ut_put(&u, RC_ING("web", "", RC_RULE("a.test", "{path: /bucket, pathType: Prefix, backend: {resource: {kind: Bucket, name: x}}}, "
                                            "{path: /a//b, pathType: Prefix, backend: {service: {name: web, port: {number: 80}}}}, "
                                            "{pathType: Exact, backend: {service: {name: web, port: {number: 80}}}}, "
                                            "{pathType: ImplementationSpecific, backend: {service: {name: web, port: {number: 80}}}}")));
    rc_ut_put(&u, RC_ING("half", "", RC_RULE("a.test", "{path: /half, pathType: Prefix, backend: {service: {name: web}}}, " RC_PATH("/half2", "Prefix", "number: 80"))));
    rc_ut_put(&u, RC_ING("ip", "", RC_RULE("'10.0.0.1:80'", RC_PATH("/", "Prefix", "number: 80"))));
    rc_ut_compile(&u);
    RC_UT_ASK("a.test", "/bucket", "503");
    RC_UT_ASK("a.test", "/half", "10.0.0.1:8080");       /* an object with an error in it has no rules */
    RC_UT_ASK("a.test", "/half2", "10.0.0.1:8080");
    RC_UT_ASK("a.test", "/else", "10.0.0.1:8080");
    RC_UT_ASK("a.test", "/a//b", "10.0.0.1:8080");       /* by the rule for everything */
    UT_CHECK(rc_ut_warned(&u, "ingress shop/web: spec.rules[0].http.paths[0].backend.resource is not supported"));
    UT_CHECK(rc_ut_warned(&u, "ingress shop/web: spec.rules[0].http.paths[1].path: found \"/a//b\", expected a path without //"));
    UT_CHECK(rc_ut_warned(&u, "ingress shop/web: spec.rules[0].http.paths[2].path: found \"\", expected a path that begins with /; the rule is not used"));
    UT_CHECK(rc_ut_warned(&u, "ingress shop/half: spec.rules[0].http.paths[0].backend"));
    UT_CHECK(rc_ut_warned(&u, "the object is not used"));
    UT_CHECK(rc_ut_warned(&u, "ingress shop/ip: host \"10.0.0.1:80\" is no DNS name"));
    rc_ut_close(&u);
}

UT(rc_escapes_in_rules_are_normal)
{
    struct rc_ut u;

    rc_ut_open(&u, "");
    rc_ut_put(&u, RC_SVC RC_SLICE("s1", "{addresses: [10.0.0.1]}"));
    rc_ut_put(&u, RC_ING("web", "", RC_RULE("a.test", RC_PATH("'/%61pi/%c3%a9'", "Prefix", "number: 80"))));
    rc_ut_compile(&u);
    RC_UT_ASK("a.test", "/api/%C3%A9/x", "10.0.0.1:8080");
    rc_ut_close(&u);
}

UT(rc_default_backends)
{
    struct rc_ut u;

    rc_ut_open(&u, "");
    rc_ut_put(&u, RC_SVC RC_SLICE("s1", "{addresses: [10.0.0.1]}"));
    rc_ut_put(&u, RC_ING("all", ", creationTimestamp: '2024-01-01T00:00:00Z'", ", defaultBackend: {service: {name: web, port: {number: 80}}}"));
    rc_ut_put(&u, RC_ING("later", ", creationTimestamp: '2024-01-01T00:00:01Z'",
                         ", defaultBackend: {service: {name: web, port: {name: admin}}}" RC_RULE("a.test", RC_PATH("/a", "Exact", "name: admin"))));
    rc_ut_compile(&u);
    RC_UT_ASK("a.test", "/a", "10.0.0.1:8081");
    RC_UT_ASK("a.test", "/b", "10.0.0.1:8080");
    RC_UT_ASK("b.test", "/b", "10.0.0.1:8080");
    obj_store_remove(&u.store, OBJ_INGRESS, S("shop/all"));
    rc_ut_compile(&u);
    RC_UT_ASK("b.test", "/b", "10.0.0.1:8081");
    obj_store_remove(&u.store, OBJ_INGRESS, S("shop/later"));
    rc_ut_compile(&u);
    RC_UT_ASK("a.test", "/a", "404");
    UT_INT(rt_live()->hosts->n, 0);
    rc_ut_close(&u);
}

UT(rc_default_backend_service_option)
{
    const char *flags[] = {"--default-backend-service", "shop/web:9000", "--kubeconfig", "x"};
    struct rc_ut u;
    struct cfg *now;

    rc_ut_open(&u, "");
    rc_ut_put(&u, RC_SVC RC_SLICE("s1", "{addresses: [10.0.0.1]}"));
    rc_ut_compile(&u);
    RC_UT_ASK("x.test", "/", "404");
    now = proxy_cfg(S(""), flags, 4);
    rc_set_config(&u.rc, now);
    rc_ut_compile(&u);
    RC_UT_ASK("x.test", "/", "10.0.0.1:8081");
    cfg_put(now);
    flags[1] = "shop/web";
    now = proxy_cfg(S(""), flags, 4);
    rc_set_config(&u.rc, now);
    rc_ut_compile(&u);
    RC_UT_ASK("x.test", "/", "10.0.0.1:8080");           /* the first port */
    cfg_put(now);
    rc_ut_close(&u);
}

/* Class of the Ingress (or annotation), objects, options; ours or not. */
UT(rc_classes)
{
#define CLASS(name, ctl, extra) "apiVersion: networking.k8s.io/v1\nkind: IngressClass\nmetadata: {name: " name extra "}\nspec: {controller: " ctl "}\n---\n"
#define DEFAULT ", annotations: {ingressclass.kubernetes.io/is-default-class: 'true'}"
#define OURS "ramjet.io/ingress-controller"
    static const struct { int line; const char *class, *annotation, *objects; bool without; const char *want; } rows[] = {
        UT_ROW("ramjet", NULL, "", false, "yes"),                                /* by name where no class is known */
        UT_ROW("other", NULL, "", false, "no"),
        UT_ROW("blue", NULL, CLASS("blue", OURS, ""), false, "yes"),
        UT_ROW("blue", NULL, CLASS("blue", "k8s.io/ingress-nginx", ""), false, "no"),
        UT_ROW("ramjet", NULL, CLASS("ramjet", "k8s.io/ingress-nginx", ""), false, "no"),
        UT_ROW(NULL, NULL, "", false, "no"),
        UT_ROW(NULL, NULL, "", true, "yes"),
        UT_ROW(NULL, NULL, CLASS("blue", OURS, ""), false, "no"),
        UT_ROW(NULL, NULL, CLASS("blue", OURS, DEFAULT), false, "yes"),
        UT_ROW(NULL, NULL, CLASS("blue", "someone.else/x", DEFAULT), false, "no"),
        UT_ROW(NULL, "ramjet", "", false, "yes"),
        UT_ROW(NULL, "nginx", "", true, "no"),
        UT_ROW(NULL, "blue", CLASS("blue", OURS, ""), false, "yes"),
        UT_ROW("ramjet", "nginx", "", false, "no"),                              /* the annotation counts first */
    };

    UT_EACH(r, rows) {
        struct rc_ut u;
        char text[1024], class[64] = "", annotation[128] = "";

        rc_ut_open(&u, r->without ? "[ramjet]\nwatch-ingress-without-class = true\n" : "");
        if (r->class) snprintf(class, sizeof class, "ingressClassName: %s, ", r->class);
        if (r->annotation) snprintf(annotation, sizeof annotation, ", annotations: {kubernetes.io/ingress.class: %s}", r->annotation);
        snprintf(text, sizeof text, "apiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {name: w, namespace: shop%s}\nspec: {%srules: [{host: a.test, "
                 "http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: web, port: {number: 80}}}}]}}]}\n", annotation, class);
        rc_ut_put(&u, text);
        rc_ut_compile(&u);
        if (r->objects[0]) rc_ut_put(&u, r->objects);
        rc_ut_compile(&u);
        RC_UT_ASK("a.test", "/", strcmp(r->want, "yes") == 0 ? "503" : "404");
        rc_ut_close(&u);
    }
#undef CLASS
#undef DEFAULT
#undef OURS
}

UT(rc_annotations)
{
    struct rc_ut u;
    struct rt_match m;

    rc_ut_open(&u, "");
    rc_ut_put(&u, RC_SVC RC_SLICE("s1", "{addresses: [10.0.0.1]}"));
    rc_ut_put(&u, RC_ING("web", ", annotations: {nginx.ingress.kubernetes.io/proxy-body-size: 8m, nginx.ingress.kubernetes.io/proxy-read-timeout: '3600', "
                         "nginx.ingress.kubernetes.io/proxy-connect-timeout: '7', ramjet.io/proxy-connect-timeout: 250ms, "
                         "nginx.ingress.kubernetes.io/proxy-next-upstream: 'error http_502 non_idempotent', nginx.ingress.kubernetes.io/load-balance: ewma, "
                         "nginx.ingress.kubernetes.io/rewrite-target: /$1, nginx.ingress.kubernetes.io/proxy-send-timeout: soon, "
                         "nginx.ingress.kubernetes.io/proxy-buffer-size: ''}", RC_RULE("a.test", RC_PATH("/", "Prefix", "number: 80"))));
    rc_ut_put(&u, RC_ING("plain", "", RC_RULE("b.test", RC_PATH("/", "Prefix", "number: 80"))));
    rc_ut_compile(&u);
    UT_REQUIRE(rt_find(rt_live(), S("a.test"), S("/"), &m));
    UT_INT(m.rule->policy->body_bytes, 8 << 20);
    UT_INT(m.rule->policy->read_ms, 3600000);
    UT_INT(m.rule->policy->connect_ms, 250);
    UT_INT(m.rule->policy->send_ms, 60000);
    UT_INT(m.rule->policy->head_bytes, 16384);
    UT_INT(m.rule->policy->next, RT_NEXT_ERROR | RT_NEXT_502);
    UT_CHECK(m.rule->policy->retry_non_idempotent);
    UT_INT(m.backend->balance, RT_EWMA);
    UT_CHECK(rc_ut_warned(&u, "ingress shop/web: annotation nginx.ingress.kubernetes.io/rewrite-target is not supported"));
    UT_CHECK(rc_ut_warned(&u, "annotation nginx.ingress.kubernetes.io/proxy-send-timeout: found \"soon\", expected a duration"));
    UT_REQUIRE(rt_find(rt_live(), S("b.test"), S("/"), &m));
    UT_INT(m.backend->balance, RT_ROUND_ROBIN);
    UT_INT(m.rule->policy->body_bytes, 1 << 20);
    UT_SLICE(m.backend->name, "shop/web:80");
    UT_INT(rt_live()->backends->used, 2);
    rc_ut_close(&u);
}

#define RC_ANNOTATED(text) RC_ING("web", ", annotations: {" text "}", RC_RULE("a.test", RC_PATH("/", "Prefix", "number: 80")))

/* What manifests say that were written for a proxy whose other timeouts cut tunnels, and what they mean here. */
UT(rc_tunnel_timeout)
{
    static const struct { int line; const char *ingress; uint32_t tunnel_ms; } rows[] = {
        UT_ROW(RC_ANNOTATED(""), 3600000),
        UT_ROW(RC_ANNOTATED("nginx.ingress.kubernetes.io/proxy-read-timeout: '5'"), 3600000),
        UT_ROW(RC_ANNOTATED("nginx.ingress.kubernetes.io/proxy-read-timeout: '3600', nginx.ingress.kubernetes.io/proxy-send-timeout: '3600'"), 3600000),
        UT_ROW(RC_ANNOTATED("nginx.ingress.kubernetes.io/proxy-read-timeout: '86400'"), 86400000),
        UT_ROW(RC_ANNOTATED("nginx.ingress.kubernetes.io/proxy-send-timeout: '7200'"), 7200000),
        UT_ROW(RC_ANNOTATED("nginx.ingress.kubernetes.io/proxy-read-timeout: '86400', ramjet.io/proxy-tunnel-timeout: 90s"), 90000),
        UT_ROW(RC_ANNOTATED("ramjet.io/proxy-tunnel-timeout: '0'"), 3600000),
        UT_ROW(RC_ANNOTATED("ramjet.io/proxy-tunnel-timeout: 48h"), 172800000),
    };

    UT_EACH(r, rows) {
        struct rc_ut u;
        struct rt_match m;

        rc_ut_open(&u, "");
        rc_ut_put(&u, RC_SVC RC_SLICE("s1", "{addresses: [10.0.0.1]}"));
        rc_ut_put(&u, r->ingress);
        rc_ut_compile(&u);
        if (UT_CHECK(rt_find(rt_live(), S("a.test"), S("/"), &m))) UT_INT(m.rule->policy->tunnel_ms, r->tunnel_ms);
        rc_ut_close(&u);
    }
}

#define RC_FILE                                                                                                                      \
    "[ramjet]\nproxy-read-timeout = 7\n"                                                                                             \
    "[backend api]\nendpoint = 10.0.0.1:80\nendpoint = 10.0.0.2:80 weight=3\nmax-fails = 7\n"                                          \
    "[backend name]\nendpoint = db.test:5432\nendpoint = 10.0.0.9:1\n"                                                               \
    "[route one]\nhost = A.test\npath = /api/\nbackend = api\nproxy-body-size = 5\n"                                                 \
    "[route two]\nhost = *.a.test\npath = /x\ntype = exact\nbackend = name\n"                                                         \
    "[route any]\nbackend = api\nload-balance = least_conn\n"

/* Request rules as annotations: both spellings of a name, ramjet.io/ over nginx's, a bad list closes, another bad value does nothing. */
UT(rc_rules_of_annotations)
{
#define CLOSED "403 all"
    static const struct { int line; const char *annotations, *rules, *warning; } rows[] = {
        UT_ROW("ramjet.io/limit-rps: '5'", "rate", NULL),
        UT_ROW("nginx.ingress.kubernetes.io/whitelist-source-range: '10.0.0.0/8,192.168.0.0/16'", "allow 2", NULL),
        UT_ROW("nginx.ingress.kubernetes.io/allowlist-source-range: 10.0.0.0/8", "allow 1", NULL),
        UT_ROW("nginx.ingress.kubernetes.io/whitelist-source-range: '10.0.0.0/8,192.168.0.0/16', ramjet.io/whitelist-source-range: 10.0.0.0/8", "allow 1", NULL),
        UT_ROW("nginx.ingress.kubernetes.io/whitelist-source-range: 10.0.0.0/99", CLOSED, "whitelist-source-range: found \"10.0.0.0/99\""),
        UT_ROW("nginx.ingress.kubernetes.io/denylist-source-range: 'me, you', ramjet.io/whitelist-source-range: 10.0.0.0/8", CLOSED, "all clients get 403"),
        UT_ROW("nginx.ingress.kubernetes.io/limit-whitelist: '10.0.0.1, x', nginx.ingress.kubernetes.io/limit-rpm: '5'", "rate", "it is not used"),
        UT_ROW("nginx.ingress.kubernetes.io/permanent-redirect: 'https://new.test/', nginx.ingress.kubernetes.io/permanent-redirect-code: '308'", "308", NULL),
        UT_ROW("nginx.ingress.kubernetes.io/permanent-redirect: '$scheme://new.test/'", "none", "it is not used"),
        UT_ROW("nginx.ingress.kubernetes.io/custom-headers: shop/fields", "none", "it is not used"),
        UT_ROW("nginx.ingress.kubernetes.io/x-forwarded-prefix: /a", "none", NULL),
    };

    UT_EACH(r, rows) {
        char text[2048], got[64] = "none";
        const struct rt_rules *rules;
        struct rt_match m;
        struct rc_ut u;

        rc_ut_open(&u, "");
        snprintf(text, sizeof text, RC_SVC RC_SLICE("s1", "{addresses: [10.0.0.1]}")
                 "apiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {name: web, namespace: shop, annotations: {%s}}\nspec: {ingressClassName: ramjet"
                 RC_RULE("a.test", RC_PATH("/", "Prefix", "number: 80")) "}\n", r->annotations);
        rc_ut_put(&u, text);
        rc_ut_compile(&u);
        if (UT_CHECK(rt_find(rt_live(), S("a.test"), S("/"), &m)) && (rules = m.rule->policy->rules)) {
            static const struct net_addr nobody = {.family = AF_INET, .ip = {[10] = 0xff, [11] = 0xff, [12] = 10, [15] = 1}};

            if (rules->uses & RT_REDIRECTS) snprintf(got, sizeof got, "%u", rules->redirect_status);
            else if (rules->uses & RT_LIMITS_RATE) snprintf(got, sizeof got, "rate%s", rules->exempt.n ? ", exempt" : "");
            else if (!rt_rules_hold(rules, rules->allowed, &nobody)) snprintf(got, sizeof got, CLOSED);
            else snprintf(got, sizeof got, "allow %u", rules->allowed.n);
        }
        UT_TEXT(got, r->rules);
        if (r->warning) UT_CHECK(rc_ut_warned(&u, r->warning));
        else UT_INT(u.warnings.n, 0);
        rc_ut_close(&u);
    }
#undef CLOSED
}

static const struct rt_rules *rc_ut_rules(const char *path)
{
    struct rt_match m;

    return UT_CHECK(rt_find(rt_live(), S("a.test"), str_z(path), &m)) ? m.rule->policy->rules : NULL;
}

/* Takes other text as the file. True when that published something. */
static bool rc_ut_reload(struct rc_ut *u, const char *ini)
{
    struct cfg *c = proxy_cfg(str_z(ini), NULL, 0);

    if (!UT_CHECK(c != NULL)) return false;
    rc_set_config(&u->rc, c);
    cfg_put(u->cfg);
    u->cfg = c;
    return rc_ut_compile(u);
}

/* Equal rules are one block; a list of a route replaces the usual one; a change shows in the table and in the difference. */
UT(rc_rules_of_files)
{
#define TOP "[ramjet]\ndenylist-source-range = 10.0.0.1\ncustom-headers = X-A: 1\n[backend s]\nendpoint = 10.0.0.1:80\n"
#define ROUTE(name, lines) "[route " name "]\nhost = a.test\npath = /" name "\n" lines
    static const char first[] = TOP ROUTE("a", "backend = s\n") ROUTE("b", "backend = s\n") ROUTE("none", "backend = s\ndenylist-source-range =\ncustom-headers =\n")
        ROUTE("own", "backend = s\ndenylist-source-range = 10.0.0.2, 10.0.0.4\ndenylist-source-range = 10.0.0.3\n") ROUTE("go", "permanent-redirect = /x\n")
        ROUTE("l", "backend = s\nlimit-rps = 1\n") ROUTE("m", "backend = s\nlimit-rps = 1\n");
    static const char second[] = TOP ROUTE("a", "backend = s\n") ROUTE("b", "backend = s\n") ROUTE("none", "backend = s\ndenylist-source-range =\ncustom-headers =\n")
        ROUTE("own", "backend = s\ndenylist-source-range = 10.0.0.2, 10.0.0.4\ndenylist-source-range = 10.0.0.3\n") ROUTE("go", "permanent-redirect = /y\n")
        ROUTE("l", "backend = s\nlimit-rps = 1\n") ROUTE("m", "backend = s\nlimit-rps = 1\n");
    const struct rt_rules *go;
    struct rc_ut u;

    rc_ut_open(&u, first);
    UT_CHECK(rc_ut_compile(&u));
    UT_CHECK(rc_ut_rules("/a") && rc_ut_rules("/a") == rc_ut_rules("/b") && !rc_ut_rules("/none"));
    UT_INT(rc_ut_rules("/a")->uses, RT_DENIES | RT_SETS_FIELDS);
    UT_SLICE(rt_rules_text(rc_ut_rules("/a"), rc_ut_rules("/a")->fields), "X-A: 1\r\n");
    UT_INT(rc_ut_rules("/own")->denied.n, 3);
    UT_CHECK(rc_ut_rules("/l") != rc_ut_rules("/m") && rc_ut_rules("/l")->route != rc_ut_rules("/m")->route && rj.lm.buckets && !rj.lm.places);
    UT_CHECK(!rc_ut_reload(&u, first));
    go = rc_ut_rules("/go");
    UT_CHECK(rc_ut_reload(&u, second));
    UT_CHECK(go != rc_ut_rules("/go"));
    UT_SLICE(rj.rt.newest->diff, "host a.test: ~/go prefix -> 301 /y");
    UT_CHECK(rt_rollback(1, &(struct log_err){0}) == 0 && rc_ut_rules("/go") == go);
    rc_ut_close(&u);
#undef ROUTE
#undef TOP
}

UT(rc_files)
{
    struct rc_ut u;
    struct rt_match m;
    struct net_addr addr[2];
    struct cfg *now;

    rc_ut_open(&u, RC_FILE);
    rc_ut_compile(&u);
    RC_UT_ASK("a.test", "/api/x", "10.0.0.1:80 10.0.0.2:80");
    RC_UT_ASK("a.test", "/", "404");
    RC_UT_ASK("q.a.test", "/x", "10.0.0.9:1");
    RC_UT_ASK("else.test", "/", "10.0.0.1:80 10.0.0.2:80");
    UT_REQUIRE(rt_find(rt_live(), S("a.test"), S("/api"), &m));
    UT_SLICE(m.rule->name, "one");
    UT_INT(m.rule->policy->body_bytes, 5);
    UT_INT(m.rule->policy->read_ms, 7000);
    UT_INT(m.backend->ep[1].weight, 3);
    UT_INT(m.backend->max_fails, 7);
    UT_INT(m.backend->balance, RT_ROUND_ROBIN);
    UT_REQUIRE(rt_find(rt_live(), S("else.test"), S("/api"), &m));
    UT_INT(m.backend->balance, RT_LEAST_CONN);
    UT_INT(m.backend->max_fails, 7);
    UT_SLICE(m.backend->name, "api");
    str_to_ip(S("10.1.1.1"), &addr[0]);
    str_to_ip(S("fd00::5"), &addr[1]);
    rc_set_addrs(rc_table_find(&u.rc.names, S("db.test")), addr, 2);
    rc_ut_compile(&u);
    RC_UT_ASK("q.a.test", "/x", "10.1.1.1:5432 10.0.0.9:1");
    now = proxy_cfg(S(RC_FILE), NULL, 0);                   /* the same again */
    rc_set_config(&u.rc, now);
    UT_CHECK(!rc_ut_compile(&u));
    cfg_put(now);
    now = proxy_cfg(S("[backend api]\nendpoint = 10.0.0.7:80\n[route any]\nbackend = api\n"), NULL, 0);
    rc_set_config(&u.rc, now);
    UT_CHECK(rc_ut_compile(&u));
    cfg_put(now);
    RC_UT_ASK("a.test", "/api/x", "10.0.0.7:80");
    UT_INT(rt_live()->hosts->n, 1);
    rc_ut_close(&u);
}

UT(rc_text_table)
{
    struct rc_ut u;
    struct str_builder b = str_growing();

    rc_ut_open(&u, RC_FILE);
    rc_ut_compile(&u);
    rt_render_text(&b);
    UT_SLICE(str_built(&b), "HOST      PATH  TYPE     BACKEND  SOURCE\n"
                            "*         /     prefix   api      any\n"
                            "*.a.test  /x    exact    name     two\n"
                            "a.test    /api  prefix   api      one\n");
    str_free(&b);
    b = str_growing();
    rt_render_routes(&b);
    UT_CHECK(str_starts(str_built(&b), S("{\"generation\":1,\"routes\":[{\"host\":\"*\",\"path\":\"/\",\"type\":\"prefix\",\"backend\":\"api\",\"source\":\"any\",\"endpoints\":2},")));
    str_free(&b);
    rc_ut_close(&u);
}

UT(rc_one_change_compiles_one_host)
{
    struct rc_ut u;
    char text[1024];
    uint64_t before;

    rc_ut_open(&u, "");
    rc_ut_put(&u, RC_SVC RC_SLICE("s1", "{addresses: [10.0.0.1]}"));
    for (int i = 0; i < 200; i++) {
        snprintf(text, sizeof text, RC_ING("w%d", "", RC_RULE("h%d.test", RC_PATH("/", "Prefix", "number: 80"))), i, i);
        rc_ut_put(&u, text);
    }
    rc_ut_compile(&u);
    UT_INT(u.compiled_hosts, 201);
    before = rj.rt.generation;
    rc_ut_put(&u, RC_ING("w7", ", labels: {a: b}", RC_RULE("h7.test", RC_PATH("/", "Prefix", "number: 80"))));
    UT_CHECK(!rc_ut_compile(&u));
    rc_ut_put(&u, RC_ING("w7", "", RC_RULE("h7.test", RC_PATH("/seven", "Prefix", "number: 80"))));
    UT_CHECK(rc_ut_compile(&u));
    UT_INT(u.compiled_hosts, 1);
    UT_INT(rj.rt.generation, before + 1);
    UT_SLICE(rj.rt.newest->diff, "host h7.test: +/seven prefix -> shop/web:80, -/ prefix");
    rc_ut_put(&u, RC_SLICE("s1", "{addresses: [10.0.0.2]}"));
    UT_CHECK(rc_ut_compile(&u));
    UT_INT(u.compiled_hosts, 0);
    RC_UT_ASK("h9.test", "/", "10.0.0.2:8080");
    rc_ut_close(&u);
}

/* ---- property: changes one by one give the table that everything at once gives ---- */

static void rc_ut_text(uint64_t *seed, char *text, size_t n)
{
    static const char *const hosts[] = {"a.test", "b.test", "'*.b.test'", "''", "c.test"}, *const paths[] = {"/", "/x", "/x/y", "/z"};
    uint32_t k = ut_random(seed, 6), svc = ut_random(seed, 4);

    switch (ut_random(seed, 5)) {
    case 0:
        snprintf(text, n, "apiVersion: v1\nkind: Service\nmetadata: {name: s%u, namespace: ns}\nspec: {ports: [{name: p%u, port: 80}, {port: %u}]}\n", svc, k % 2, 81 + k);
        break;
    case 1:
        snprintf(text, n, "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: e%u, namespace: ns, labels: {kubernetes.io/service-name: s%u}}\n"
                 "addressType: IPv4\nports: [{name: p%u, port: 80%u}]\nendpoints: [{addresses: [10.0.0.%u], conditions: {ready: %s, terminating: true}}]\n", k, svc,
                 ut_random(seed, 2), ut_random(seed, 2), k, ut_random(seed, 2) ? "true" : "false");
        break;
    case 2:
        if (ut_random(seed, 3) == 0) {
            snprintf(text, n, "apiVersion: networking.k8s.io/v1\nkind: IngressClass\nmetadata: {name: c%u}\nspec: {controller: %s}\n", k % 2,
                     ut_random(seed, 2) ? "ramjet.io/ingress-controller" : "else");
            break;
        }
        /* fall through */
    default:
        snprintf(text, n, "apiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {name: i%u, namespace: ns, creationTimestamp: '2024-01-01T00:00:0%uZ', "
                 "annotations: {ramjet.io/load-balance: %s}}\nspec: {ingressClassName: %s%s, rules: [{host: %s, http: {paths: [{path: %s, pathType: %s, backend: "
                 "{service: {name: s%u, port: {%s}}}}, {path: %s, pathType: Prefix, backend: {service: {name: s%u, port: {number: 80}}}}]}}]}\n",
                 ut_random(seed, 12), ut_random(seed, 3), ut_random(seed, 4) ? "round_robin" : "ewma",
                 ut_random(seed, 3) ? "ramjet" : ut_random(seed, 2) ? "c0" : "c1",
                 ut_random(seed, 5) ? "" : ", defaultBackend: {service: {name: s1, port: {number: 80}}}", hosts[ut_random(seed, 5)],
                 paths[ut_random(seed, 4)], ut_random(seed, 2) ? "Exact" : "Prefix", svc, ut_random(seed, 2) ? "name: p1" : "number: 80",
                 paths[ut_random(seed, 4)], ut_random(seed, 4));
    }
}

static void rc_ut_remove_one(struct rc_ut *u, uint64_t *seed)
{
    uint32_t kind = ut_random(seed, OBJ_KIND_COUNT), at = 0, skip;
    const struct obj *o = NULL;

    if (!u->store.kind[kind].count) return;
    for (skip = ut_random(seed, u->store.kind[kind].count) + 1; skip; skip--) o = map_next(&u->store.kind[kind], &at);
    obj_store_remove(&u->store, (enum obj_kind)kind, o->key);
}

/* Digest of the table that a compiler makes from the whole store at once. */
static uint64_t rc_ut_whole(struct obj_store *store, const struct cfg *cfg)
{
    struct rt_state mine = rj.rt;
    struct rt_snapshot *live = atomic_load_explicit(&rj.rt_live, memory_order_relaxed);
    struct rt_changes c = {0};
    struct rc rc;
    uint64_t digest;

    rj.rt = (struct rt_state){.workers = 1};
    rc_init(&rc, store, cfg);
    for (int kind = OBJ_KIND_COUNT; kind-- > 0;) {
        const struct obj *o;
        uint32_t at = 0;

        while ((o = map_next(&store->kind[kind], &at))) rc_on_changed(&rc, NULL, o);
    }
    rc_compile(&rc, &c);
    rt_publish(&c, cfg, 1, 1);
    digest = rt_live()->digest;
    rc_fini(&rc);
    rt_fini();
    mem_free(c.v);
    rj.rt = mine;
    atomic_store_explicit(&rj.rt_live, live, memory_order_relaxed);
    return digest;
}

UT(rc_steps_give_what_the_whole_gives)
{
    uint64_t seed = 11;

    for (int round = 0; round < 12; round++) {
        struct rc_ut u;

        rc_ut_open(&u, "[backend f]\nendpoint = 10.3.3.3:80\n[route f]\nhost = c.test\npath = /x\nbackend = f\n");
        for (int i = 0; i < 150; i++) {
            char text[2048];

            if (ut_random(&seed, 4) == 0) {
                rc_ut_remove_one(&u, &seed);
            } else {
                rc_ut_text(&seed, text, sizeof text);
                rc_ut_put(&u, text);
            }
            if (ut_random(&seed, 3) == 0) continue;   /* several changes in one compile */
            rc_ut_compile(&u);
            if (!UT_CHECK(rt_live()->digest == rc_ut_whole(&u.store, u.cfg))) break;
        }
        for (int kind = 0; kind < OBJ_KIND_COUNT; kind++) {
            uint32_t at = 0;
            const struct obj *o;

            while ((o = map_next(&u.store.kind[kind], &at))) obj_store_remove(&u.store, (enum obj_kind)kind, o->key);
        }
        rc_ut_compile(&u);
        UT_INT(rt_live()->hosts->n, 1);                  /* the file's */
        UT_INT(rt_live()->backends->used, 1);
        for (int i = 0; i < 30; i++) {                   /* the history forgets, and so does the compiler */
            rc_ut_put(&u, i % 2 ? RC_ING("flip", "", RC_RULE("f.test", RC_PATH("/1", "Prefix", "number: 80")))
                                : RC_ING("flip", "", RC_RULE("f.test", RC_PATH("/2", "Prefix", "number: 80"))));
            rc_ut_compile(&u);
        }
        UT_INT(u.rc.backends.count, 2);
        UT_INT(u.rc.services.count, 1);
        UT_INT(u.rc.hosts.count, 3);
        rc_ut_close(&u);
    }
}

/* A table that is made while memory runs out is the right one, or the process ends: never half a block of rules. */
UT(rc_without_memory_makes_the_whole_table_or_none)
{
    static const char ini[] = "[backend s]\nendpoint = 10.0.0.1:80\n[route r]\nbackend = s\nhide-headers = X-One, X-Two, X-Three\ncustom-headers = X-Four: "
                              "a text that is longer than what the builder begins with, so that it has to grow once more for it\ndenylist-source-range = 10.0.0.0/8\n";
    struct rc_ut u;
    uint64_t want;
    int whole = 0;

    rc_ut_open(&u, ini);
    rc_ut_compile(&u);
    want = rt_live()->digest;
    rc_ut_close(&u);
    fflush(stdout);
    for (int k = 1; k <= 24; k++) {
        int status = 0, child = fork();

        if (child == 0) {
            signal(SIGABRT, SIG_DFL);
            dup2(open("/dev/null", O_WRONLY), 2);
            rc_ut_open(&u, ini);
            mem_fail_at = k;
            rc_compile(&u.rc, &u.changes);
            mem_fail_at = 0;
            rt_publish(&u.changes, u.rc.cfg, 1, 1);
            _exit(rt_live()->digest == want ? 0 : 3);
        }
        UT_REQUIRE(child > 0 && waitpid(child, &status, 0) == child);
        whole += status == 0;
        UT_CHECK(status == 0 || (WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT));
    }
    UT_CHECK(whole > 0);
}
