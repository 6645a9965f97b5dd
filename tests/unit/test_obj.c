/* Kubernetes objects: a manifest or an API answer in, one line per object out, at every split point of the JSON. */

static void ot_put_backend(struct str_builder *b, const struct obj_backend *e)
{
    if (!e->present) {
        str_put_c(b, '-');
        return;
    }
    if (e->resource)
        str_put(b, S("resource"));
    str_put(b, e->service);
    str_put_c(b, ':');
    if (e->port)
        str_put_u64(b, e->port);
    str_put(b, e->port_name);
}

static void ot_put_ports(struct str_builder *b, const struct obj_port *p, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        str_put(b, i ? S(",") : S(" ports="));
        str_put(b, p[i].name);
        str_put_c(b, ':');
        str_put_u64(b, p[i].port);
    }
}

static void ot_put_ingress(struct str_builder *b, const struct obj_ingress *ing)
{
    static const char *const types[] = { "prefix", "exact", "impl" };

    if (ing->has_class_name)
        str_putf(b, " class=" STR_FMT, STR_ARG(ing->class_name));
    if (ing->class_annotation.n)
        str_putf(b, " old-class=" STR_FMT, STR_ARG(ing->class_annotation));
    if (ing->fallback.present) {
        str_put(b, S(" default="));
        ot_put_backend(b, &ing->fallback);
    }
    for (uint32_t i = 0; i < ing->nrules; i++) {
        str_putf(b, " [" STR_FMT, STR_ARG(ing->rules[i].host));
        for (uint32_t k = 0; k < ing->rules[i].npaths; k++) {
            const struct obj_path *p = &ing->rules[i].paths[k];
            str_putf(b, " " STR_FMT " %s ", STR_ARG(p->path), p->type < 3 ? types[p->type] : "?");
            ot_put_backend(b, &p->backend);
        }
        str_put_c(b, ']');
    }
    for (uint32_t i = 0; i < ing->nannotations; i++)
        str_putf(b, " " STR_FMT "=" STR_FMT, STR_ARG(ing->annotations[i].name), STR_ARG(ing->annotations[i].value));
}

static void ot_put(struct str_builder *b, const struct obj *o)
{
    const struct obj_slice *slice = (const struct obj_slice *)o;

    str_putf(b, "%s " STR_FMT, obj_kinds[o->kind].name, STR_ARG(o->key));
    if (o->created)
        str_putf(b, " created=%u", o->created);
    if (o->bad.n) {
        str_putf(b, " BAD " STR_FMT, STR_ARG(o->bad));
        return;
    }
    switch (o->kind) {
    case OBJ_INGRESS:
        ot_put_ingress(b, (const struct obj_ingress *)o);
        break;
    case OBJ_INGRESS_CLASS:
        str_putf(b, " " STR_FMT "%s", STR_ARG(((const struct obj_class *)o)->controller), ((const struct obj_class *)o)->is_default ? " default" : "");
        break;
    case OBJ_SERVICE:
        if (((const struct obj_service *)o)->external_name.n)
            str_putf(b, " external=" STR_FMT, STR_ARG(((const struct obj_service *)o)->external_name));
        ot_put_ports(b, ((const struct obj_service *)o)->ports, ((const struct obj_service *)o)->nports);
        break;
    case OBJ_ENDPOINT_SLICE:
        str_putf(b, " of " STR_FMT " %s", STR_ARG(slice->service), slice->family == AF_INET ? "v4" : slice->family == AF_INET6 ? "v6" : "fqdn");
        ot_put_ports(b, slice->ports, slice->nports);
        for (uint32_t i = 0; i < slice->nendpoints; i++) {
            str_put_c(b, ' ');
            str_put_ip(b, &slice->endpoints[i].addr);
            str_putf(b, "%s%s%s", slice->endpoints[i].ready ? "+ready" : "", slice->endpoints[i].serving ? "+serving" : "", slice->endpoints[i].terminating ? "+term" : "");
        }
        break;
    }
}

static int ot_found(void *arg, const struct obj_found *f)
{
    struct str_builder *b = arg;

    if (b->n)
        str_put_c(b, '\n');
    if (f->o)
        ot_put(b, f->o);
    else
        str_putf(b, "%s line %u " STR_FMT ": %s", f->error ? "error" : "unused", f->line, STR_ARG(f->kind), f->why);
    obj_free(f->o);
    return 0;
}

/* Every row names a whole object, its apiVersion and kind; OT_* give the usual head. */
#define OT_ING "\"apiVersion\":\"networking.k8s.io/v1\",\"kind\":\"Ingress\",\"metadata\":{\"name\":\"a\",\"namespace\":\"n\"}"
#define OT_SVC "\"apiVersion\":\"v1\",\"kind\":\"Service\",\"metadata\":{\"name\":\"a\",\"namespace\":\"n\"}"
#define OT_SLICE "\"apiVersion\":\"discovery.k8s.io/v1\",\"kind\":\"EndpointSlice\",\"metadata\":{\"name\":\"a\",\"namespace\":\"n\",\"labels\":{\"x\":\"y\",\"kubernetes.io/service-name\":\"s\"}}"
#define OT_RULE(path) "{" OT_ING ",\"spec\":{\"rules\":[{\"http\":{\"paths\":[" path "]}}]}}"

static const struct ot_row { int line; const char *in, *want; } ot_rows[] = {
    UT_ROW("{" OT_ING "}", "Ingress n/a"),
    UT_ROW("{\"kind\":\"Ingress\",\"metadata\":{\"name\":\"a\"}}", "Ingress default/a"),
    UT_ROW("{\"spec\":{\"ingressClassName\":\"x\"},\"metadata\":{\"name\":\"a\"},\"kind\":\"Ingress\",\"apiVersion\":\"networking.k8s.io/v1\"}", "Ingress default/a class=x"),
    UT_ROW("{" OT_ING ",\"spec\":{\"ingressClassName\":\"\",\"defaultBackend\":{\"service\":{\"name\":\"s\",\"port\":{\"name\":\"http\"}}}}}", "Ingress n/a class= default=s:http"),
    UT_ROW("{" OT_ING ",\"spec\":{\"defaultBackend\":{\"resource\":{\"kind\":\"Bucket\",\"name\":\"x\"}},\"tls\":[{\"hosts\":[\"h\"]}],\"rules\":null},\"status\":{\"loadBalancer\":{}}}",
           "Ingress n/a default=resource:"),
    UT_ROW("{\"kind\":\"Ingress\",\"apiVersion\":\"networking.k8s.io/v1\",\"metadata\":{\"name\":\"a\",\"namespace\":\"n\",\"creationTimestamp\":\"2026-11-30T17:00:00Z\",\"resourceVersion\":\"7\","
           "\"annotations\":{\"x/y\":\"z\",\"nginx.ingress.kubernetes.io/a\":\"1\",\"kubernetes.io/ingress.class\":\"old\",\"ramjet.io/b\":\"\",\"nginx.ingress.kubernetes.iox\":\"2\"},"
           "\"managedFields\":[{\"spec\":{\"rules\":7}}]},\"spec\":{\"rules\":[{\"host\":\"h\",\"http\":{\"paths\":[{\"path\":\"/\",\"pathType\":\"Prefix\",\"backend\":{\"service\":{\"name\":\"s\","
           "\"port\":{\"number\":80}}}},{\"pathType\":\"ImplementationSpecific\",\"backend\":{\"service\":{\"name\":\"t\",\"port\":{\"name\":\"p\"}}}}]}},{\"host\":\"i\"},"
           "{\"http\":{\"paths\":[{\"path\":\"/x\",\"pathType\":\"Exact\",\"backend\":{\"service\":{\"name\":\"u\",\"port\":{\"number\":65535}}}}]}}]}}",
           "Ingress n/a created=1796058000 old-class=old [h / prefix s:80  impl t:p] [i] [ /x exact u:65535] nginx.ingress.kubernetes.io/a=1 ramjet.io/b="),
    UT_ROW("{" OT_ING ",\"spec\":{\"rules\":[{\"host\":\"x\",\"http\":{\"paths\":[{\"path\":\"/a\",\"pathType\":\"Exact\",\"backend\":{\"resource\":{}}}],\"paths\":[{\"path\":\"/b\",\"pathType\":\"Exact\","
           "\"backend\":{\"resource\":{}}}]}}]}}", "Ingress n/a [x /b exact resource:]"),
    /* a wrong field makes the object bad */
    UT_ROW("{" OT_ING ",\"spec\":[]}", "Ingress n/a BAD spec: found array, expected object"),
    UT_ROW("{" OT_ING ",\"spec\":{\"rules\":[{},{\"http\":\"x\"}]}}", "Ingress n/a BAD spec.rules[1].http: found string, expected object"),
    UT_ROW("{" OT_ING ",\"spec\":{\"rules\":[{},[{\"http\":{}}]]}}", "Ingress n/a BAD spec.rules[1]: found array, expected object"),
    UT_ROW("{" OT_ING ",\"spec\":{\"rules\":[null]}}", "Ingress n/a BAD spec.rules[0]: found null, expected object"),
    UT_ROW("{" OT_ING ",\"spec\":{\"rules\":[{\"host\":[{\"x\":1}]},{\"host\":1}]}}", "Ingress n/a BAD spec.rules[0].host: found array, expected string"),
    UT_ROW(OT_RULE("{\"path\":\"/\",\"pathType\":\"Regex\",\"backend\":{\"resource\":{}}}"),
           "Ingress n/a BAD spec.rules[0].http.paths[0].pathType: found \"Regex\", expected Exact, Prefix or ImplementationSpecific"),
    UT_ROW(OT_RULE("{\"path\":\"/\",\"backend\":{\"resource\":{}}}"), "Ingress n/a BAD spec.rules[0].http.paths[0]: pathType is absent, expected Exact, Prefix or ImplementationSpecific"),
    UT_ROW(OT_RULE("{\"path\":\"/\",\"pathType\":\"Exact\"}"), "Ingress n/a BAD spec.rules[0].http.paths[0]: backend is absent"),
    UT_ROW(OT_RULE("{\"pathType\":\"Exact\",\"backend\":{\"service\":{\"name\":\"s\",\"port\":{\"number\":70000}}}}"),
           "Ingress n/a BAD spec.rules[0].http.paths[0].backend.service.port.number: found 70000, expected a port of 1 to 65535"),
    UT_ROW(OT_RULE("{\"pathType\":\"Exact\",\"backend\":{\"service\":{\"name\":\"s\",\"port\":{\"number\":0}}}}"),
           "Ingress n/a BAD spec.rules[0].http.paths[0].backend.service.port.number: found 0, expected a port of 1 to 65535"),
    UT_ROW(OT_RULE("{\"pathType\":\"Exact\",\"backend\":{\"service\":{\"name\":\"s\",\"port\":{\"number\":\"80\"}}}}"),
           "Ingress n/a BAD spec.rules[0].http.paths[0].backend.service.port.number: found string, expected number"),
    UT_ROW(OT_RULE("{\"pathType\":\"Exact\",\"backend\":{\"service\":{\"name\":\"s\"}}}"),
           "Ingress n/a BAD spec.rules[0].http.paths[0].backend: expected either a name or a number as port of the service"),
    UT_ROW(OT_RULE("{\"pathType\":\"Exact\",\"backend\":{\"service\":{\"name\":\"s\",\"port\":{\"number\":1,\"name\":\"x\"}}}}"),
           "Ingress n/a BAD spec.rules[0].http.paths[0].backend: expected either a name or a number as port of the service"),
    UT_ROW(OT_RULE("{\"pathType\":\"Exact\",\"backend\":{}}"), "Ingress n/a BAD spec.rules[0].http.paths[0].backend: expected either a service with a name, or a resource"),
    UT_ROW("{\"kind\":\"Ingress\",\"metadata\":{\"name\":\"a\",\"annotations\":{\"other/x\":true,\"ramjet.io/x\":true}}}", "Ingress default/a BAD metadata.annotations[ramjet.io/x]: found bool, expected string"),
    UT_ROW("{\"kind\":\"Ingress\",\"metadata\":{\"name\":\"a\",\"creationTimestamp\":\"yesterday\"}}",
           "Ingress default/a BAD metadata.creationTimestamp: found \"yesterday\", expected a time as of RFC 3339"),
    UT_ROW("{\"kind\":\"Ingress\",\"metadata\":{\"name\":\"a\",\"creationTimestamp\":null}}", "Ingress default/a"),
    UT_ROW("{\"kind\":\"Ingress\",\"metadata\":{\"name\":\"a\",\"creationTimestamp\":\"1970-01-01T00:00:01.5+00:00\"}}", "Ingress default/a created=1"),
    UT_ROW("{\"kind\":\"Ingress\",\"metadata\":{\"name\":\"a\",\"creationTimestamp\":\"2000-02-29T23:59:59+02:00\"}}", "Ingress default/a created=951861599"),
    /* classes */
    UT_ROW("{\"apiVersion\":\"networking.k8s.io/v1\",\"kind\":\"IngressClass\",\"metadata\":{\"name\":\"c\",\"namespace\":\"ignored\",\"annotations\":"
           "{\"ingressclass.kubernetes.io/is-default-class\":\"true\"}},\"spec\":{\"controller\":\"ramjet.io/controller\",\"parameters\":{\"kind\":\"x\"}}}",
           "IngressClass c ramjet.io/controller default"),
    UT_ROW("{\"kind\":\"IngressClass\",\"metadata\":{\"name\":\"c\",\"annotations\":{\"ingressclass.kubernetes.io/is-default-class\":\"false\"}},\"spec\":{\"controller\":\"x\"}}", "IngressClass c x"),
    UT_ROW("{\"kind\":\"IngressClass\",\"metadata\":{\"name\":\"c\"},\"spec\":{\"controller\":1}}", "IngressClass c BAD spec.controller: found number, expected string"),
    /* services */
    UT_ROW("{" OT_SVC ",\"spec\":{\"ports\":[{\"port\":80,\"targetPort\":\"http\"}],\"selector\":{\"a\":\"b\"},\"clusterIP\":\"None\"}}", "Service n/a ports=:80"),
    UT_ROW("{" OT_SVC ",\"spec\":{\"ports\":[{\"name\":\"dns\",\"protocol\":\"UDP\",\"port\":53},{\"name\":\"dns-tcp\",\"protocol\":\"TCP\",\"port\":53},{\"name\":\"s\",\"port\":9,\"protocol\":\"SCTP\"}]}}",
           "Service n/a ports=dns-tcp:53"),
    UT_ROW("{" OT_SVC ",\"spec\":{\"type\":\"ExternalName\",\"externalName\":\"x.example.com\"}}", "Service n/a external=x.example.com"),
    UT_ROW("{" OT_SVC ",\"spec\":{\"externalName\":\"x.example.com\",\"type\":\"ClusterIP\"}}", "Service n/a"),
    UT_ROW("{" OT_SVC ",\"spec\":{\"ports\":{}}}", "Service n/a BAD spec.ports: found object, expected array"),
    UT_ROW("{" OT_SVC ",\"spec\":{\"ports\":[{\"port\":8.5}]}}", "Service n/a BAD spec.ports[0].port: found 8.5, expected a port of 1 to 65535"),
    /* slices */
    UT_ROW("{" OT_SLICE ",\"addressType\":\"IPv4\",\"endpoints\":[{\"addresses\":[\"10.0.0.1\",\"10.0.0.9\"],\"conditions\":{\"ready\":true,\"serving\":true,\"terminating\":false},\"nodeName\":\"x\"},"
           "{\"addresses\":[\"10.0.0.2\"]},{\"addresses\":[\"10.0.0.3\"],\"conditions\":{}},{\"addresses\":[\"10.0.0.4\"],\"conditions\":{\"ready\":false}},"
           "{\"addresses\":[\"10.0.0.5\"],\"conditions\":{\"ready\":false,\"serving\":true,\"terminating\":true}},{\"addresses\":[\"10.0.0.6\"],\"conditions\":{\"ready\":null,\"serving\":null}},"
           "{\"addresses\":[]},{}],\"ports\":[{\"name\":\"\",\"port\":8080,\"protocol\":\"TCP\"}]}",
           "EndpointSlice n/a of s v4 ports=:8080 10.0.0.1+ready+serving 10.0.0.2+ready+serving 10.0.0.3+ready+serving 10.0.0.4+serving 10.0.0.5+serving+term 10.0.0.6+ready+serving"),
    UT_ROW("{" OT_SLICE ",\"addressType\":\"IPv6\",\"endpoints\":[{\"addresses\":[\"fd00::1\"]}],\"ports\":[{\"name\":\"p\",\"port\":null}]}", "EndpointSlice n/a of s v6 ports=p:0 fd00::1+ready+serving"),
    UT_ROW("{" OT_SLICE ",\"addressType\":\"IPv4\",\"endpoints\":[{\"addresses\":[\"10.0.0.1\"]}],\"ports\":null}", "EndpointSlice n/a of s v4 10.0.0.1+ready+serving"),
    UT_ROW("{" OT_SLICE ",\"addressType\":\"IPv4\",\"endpoints\":[{\"addresses\":[\"10.0.0.1\"]}],\"ports\":[{\"port\":53,\"protocol\":\"UDP\"}]}", "EndpointSlice n/a of s v4"),
    UT_ROW("{" OT_SLICE ",\"addressType\":\"IPv4\",\"endpoints\":null,\"ports\":[{\"port\":1}]}", "EndpointSlice n/a of s v4 ports=:1"),
    UT_ROW("{\"endpoints\":[{\"addresses\":[\"x.example.com\"]}],\"addressType\":\"FQDN\"," OT_SLICE "}", "EndpointSlice n/a of s fqdn"),
    UT_ROW("{" OT_SLICE ",\"endpoints\":[{\"addresses\":[\"x\"]}],\"addressType\":\"IPv4\"}", "EndpointSlice n/a BAD endpoints: found x, expected an IP address"),
    UT_ROW("{" OT_SLICE ",\"addressType\":\"IPv4\",\"endpoints\":[{\"addresses\":[\"::1\"]}]}", "EndpointSlice n/a BAD endpoints[0]: found an address of the other family, expected IPv4"),
    UT_ROW("{" OT_SLICE ",\"addressType\":\"IPX\"}", "EndpointSlice n/a BAD addressType: found \"IPX\", expected IPv4, IPv6 or FQDN"),
    UT_ROW("{" OT_SLICE ",\"addressType\":\"IPv4\",\"endpoints\":[{\"addresses\":\"10.0.0.1\"}]}", "EndpointSlice n/a BAD endpoints[0].addresses: found string, expected array"),
    UT_ROW("{" OT_SLICE ",\"addressType\":\"IPv4\",\"endpoints\":[{\"addresses\":[\"10.0.0.1\",2]}]}", "EndpointSlice n/a BAD endpoints[0].addresses[1]: found number, expected string"),
    UT_ROW("{" OT_SLICE ",\"addressType\":\"IPv4\",\"endpoints\":[{\"conditions\":{\"ready\":\"true\"}}]}", "EndpointSlice n/a BAD endpoints[0].conditions.ready: found string, expected bool"),
    /* lists */
    UT_ROW("{\"kind\":\"List\",\"apiVersion\":\"v1\",\"items\":[{" OT_ING "},{" OT_SVC "},{\"kind\":\"Pod\",\"apiVersion\":\"v1\",\"metadata\":{\"name\":\"p\"}}],\"metadata\":{\"resourceVersion\":\"\"}}",
           "Ingress n/a\nService n/a\nunused line 1 Pod: kind Pod is not used"),
    UT_ROW("{\"kind\":\"IngressList\",\"apiVersion\":\"networking.k8s.io/v1\",\"items\":[{\"metadata\":{\"name\":\"a\"}},{\"metadata\":{\"name\":\"b\"}}]}", "Ingress default/a\nIngress default/b"),
    UT_ROW("{\"apiVersion\":\"v1\",\"items\":[{" OT_ING "}],\"kind\":\"List\"}", "Ingress n/a"),
    UT_ROW("{\"apiVersion\":\"v1\",\"items\":[],\"kind\":\"List\"}", ""),
    UT_ROW("{\"apiVersion\":\"v1\",\"items\":[{\"metadata\":{\"name\":\"a\"}},3,[1,[2]],{" OT_ING "}],\"kind\":\"List\"}",
           "error line 1 : kind is absent\nerror line 1 : found number, expected an object\nerror line 1 : found array, expected an object\nIngress n/a"),
    UT_ROW("{\"kind\":\"List\",\"items\":{\"items\":[1]}}", "unused line 1 List: kind List is not used"),
    UT_ROW("{\"kind\":\"List\",\"items\":null}", "unused line 1 List: kind List is not used"),
    UT_ROW("{" OT_ING "}\n{" OT_SVC "}", "Ingress n/a\nService n/a"),
    /* what is not used, what is no object */
    UT_ROW("{\"kind\":\"Ingress\",\"apiVersion\":\"extensions/v1beta1\",\"metadata\":{\"name\":\"a\"}}", "unused line 1 Ingress: apiVersion extensions/v1beta1 is not used, expected networking.k8s.io/v1"),
    UT_ROW("{\"kind\":\"Service\",\"apiVersion\":\"serving.knative.dev/v1\",\"metadata\":{\"name\":\"a\"}}", "unused line 1 Service: apiVersion serving.knative.dev/v1 is not used, expected v1"),
    UT_ROW("{\"kind\":\"Deployment\",\"spec\":{\"rules\":7,\"template\":{\"items\":[1]}}}", "unused line 1 Deployment: kind Deployment is not used"),
    UT_ROW("{\"kind\":\"Ingress\",\"metadata\":{\"generateName\":\"a\"}}", "error line 1 Ingress: metadata.name is absent"),
    UT_ROW("{\"kind\":\"Ingress\"}", "error line 1 Ingress: metadata.name is absent"),
    UT_ROW("{\"kind\":7,\"metadata\":{\"name\":\"a\"}}", "error line 1 : kind is absent"),
    UT_ROW("{}", "error line 1 : kind is absent"),
    UT_ROW("[{" OT_ING "}]", "error line 1 : found array, expected an object"),
    UT_ROW("[]", "error line 1 : found array, expected an object"),
};

UT(obj_fields_stand_in_order)
{
    for (size_t i = 1; i < UT_COUNT(obj_fields); i++)
        if (obj_fields[i - 1].at > obj_fields[i].at)
            UT_TEXT(obj_fields[i - 1].key, obj_fields[i].key);
}

UT(obj_reads_json_and_the_same_as_yaml)
{
    UT_EACH(r, ot_rows)
        for (int yaml = 0; yaml < 2; yaml++) {
            struct str_builder out = str_growing();
            struct obj_doc d = { .on = ot_found, .arg = &out };
            struct log_err err = { "" };

            if (yaml && (strstr(r->in, "\"paths\":[{\"path\":\"/a\"") || strstr(r->in, "}\n{")))
                continue;                                /* equal keys; values in a row */
            obj_reader_init(&d.whole, OBJ_KIND_COUNT, NULL);
            if (yaml)
                UT_INT(yml_read(ut_str(r->in), obj_doc_on, &d, &err), 0);
            else
                UT_INT(obj_read(ut_str(r->in), ot_found, &out, &err), 0);
            obj_reader_fini(&d.whole);
            obj_reader_fini(&d.item);
            UT_TEXT(err.text, "");
            UT_SLICE(str_built(&out), r->want);
            str_free(&out);
        }
}

/* As the client of the API server does it: pieces, one object, the JSON reader told to skip. */
static void ot_split(void *ctx, const uint8_t *a, size_t an, const uint8_t *b, size_t bn)
{
    const struct ot_row *row = ctx;
    struct str pieces[2] = { { a, an }, { b, bn } };
    struct json_reader json;
    struct obj_reader r;
    struct json_event ev;
    struct str_builder out = str_growing();
    int rc = 0, done = 0;

    json_init(&json, 1 << 20, true);
    obj_reader_init(&r, OBJ_KIND_COUNT, &json);
    for (int i = 0; i < 3 && rc >= 0; i++) {
        if (i < 2)
            json_feed(&json, pieces[i]);
        else
            json_finish(&json);
        while ((rc = json_next(&json, &ev)) == 1 && ev.type != JSON_END) {
            done = obj_reader_event(&r, &ev);
            if (!done)
                continue;
            struct obj_found f = { .kind = r.kind_name, .why = r.err.text, .error = done < 0, .line = r.line, .o = done > 0 ? obj_reader_take(&r) : NULL };
            UT_CHECK(obj_reader_take(&r) == NULL);
            ot_found(&out, &f);
        }
    }
    UT_INT(rc, 1);
    UT_SLICE(str_built(&out), row->want);
    obj_reader_fini(&r);
    json_fini(&json);
    str_free(&out);
}

UT(obj_reads_at_every_split)
{
    UT_EACH(r, ot_rows)
        if (!strstr(r->in, "items"))
            ut_split(r->in, strlen(r->in), ot_split, (void *)(uintptr_t)r);
}

UT(obj_reads_manifests)
{
    static const struct { int line; const char *in, *want; } rows[] = {
        UT_ROW("", ""),
        UT_ROW("apiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata:\n  name: web\n  namespace: shop\n  annotations:\n    nginx.ingress.kubernetes.io/rewrite-target: /$1\n"
               "spec:\n  ingressClassName: ramjet\n  rules:\n  - host: '*.example.com'\n    http:\n      paths:\n      - path: /\n        pathType: Prefix\n        backend:\n          service:\n"
               "            name: web\n            port:\n              number: 80\n---\n---\nkind: ConfigMap\nmetadata: {name: x}\n---\nkind: Service\nmetadata: {name: web, namespace: shop}\n"
               "spec: {ports: [{port: 80}]}\n",
               "Ingress shop/web class=ramjet [*.example.com / prefix web:80] nginx.ingress.kubernetes.io/rewrite-target=/$1\n"
               "unused line 23 ConfigMap: kind ConfigMap is not used\nService shop/web ports=:80"),
        UT_ROW("apiVersion: v1\nitems:\n- apiVersion: v1\n  kind: Service\n  metadata:\n    name: a\n- apiVersion: networking.k8s.io/v1\n  kind: Ingress\n  metadata:\n    name: b\nkind: List\nmetadata:\n"
               "  resourceVersion: \"\"\n",
               "Service default/a\nIngress default/b"),
        UT_ROW("kind: Ingress\nmetadata: {name: a}\nspec: {rules: x}\n---\nhello\n", "Ingress default/a BAD spec.rules: found string, expected array\nerror line 5 : found string, expected an object"),
        UT_ROW("kind: Ingress\nmetadata: {name: a, annotations: {ramjet.io/x: 5}}\n", "Ingress default/a BAD metadata.annotations[ramjet.io/x]: found number, expected string"),
        UT_ROW("{kind: Ingress, metadata: {name: a}}", "Ingress default/a"),
        UT_ROW("kind: Ingress\nmetadata: {name: a}\n---\na: *b\n", "Ingress default/a\nline 4, column 4: an alias (*): aliases are not supported; put a text that begins with * into quotes"),
        UT_ROW("{\"kind\": \"Ingress\",\n \"metadata\": {\"name\" \"a\"}}", "line 2, column 22: a string where none may be"),
    };
    UT_EACH(r, rows) {
        struct str_builder out = str_growing();
        struct log_err err = { "" };

        if (obj_read(ut_str(r->in), ot_found, &out, &err) && !strncmp(r->want, "line", 4))
            out.n = 0;
        if (err.text[0])
            str_putf(&out, "%s%s", out.n ? "\n" : "", err.text);
        UT_SLICE(str_built(&out), r->want);
        str_free(&out);
    }
}

/* One object of JSON text for the store. */
static struct obj *ot_object(const char *text)
{
    struct obj_reader r;
    struct json_reader json;
    struct json_event ev;
    struct obj *o = NULL;

    json_init(&json, 1 << 20, false);
    json_feed(&json, str_z(text));
    json_finish(&json);
    obj_reader_init(&r, OBJ_KIND_COUNT, &json);
    while (json_next(&json, &ev) == 1 && ev.type != JSON_END)
        if (obj_reader_event(&r, &ev) == 1)
            o = obj_reader_take(&r);
    obj_reader_fini(&r);
    json_fini(&json);
    return o;
}

static void ot_changed(void *arg, const struct obj *old, const struct obj *now)
{
    struct str_builder *b = arg;

    str_putf(b, "%s" STR_FMT " ", !old ? "+" : !now ? "-" : "~", STR_ARG(now ? now->key : old->key));
    if (old && now)
        UT_CHECK(str_eq(old->key, now->key));
}

#define OT_PUT(text, number) ({ struct obj *ot_o = ot_object(text); ot_o->mark = (number); obj_store_put(&store, ot_o); })
#define OT_NAMED(ns, name, version, class) \
    "{\"kind\":\"Ingress\",\"metadata\":{\"name\":\"" name "\",\"namespace\":\"" ns "\",\"resourceVersion\":\"" version "\"},\"spec\":{\"ingressClassName\":\"" class "\"}}"

UT(obj_store_tells_differences)
{
    struct str_builder out = str_growing();
    struct obj_store store = { .changed = ot_changed, .arg = &out };

    UT_CHECK(OT_PUT(OT_NAMED("n", "a", "1", "x"), 1));
    UT_CHECK(OT_PUT(OT_NAMED("n", "b", "1", "x"), 1));
    UT_CHECK(OT_PUT(OT_NAMED("m", "a", "1", "x"), 1));
    UT_CHECK(!OT_PUT(OT_NAMED("n", "a", "2", "x"), 2));
    UT_CHECK(OT_PUT(OT_NAMED("n", "b", "2", "y"), 2));
    UT_CHECK(OT_PUT("{\"kind\":\"Service\",\"metadata\":{\"name\":\"a\",\"namespace\":\"n\"}}", 1));
    UT_SLICE(str_built(&out), "+n/a +n/b +m/a ~n/b +n/a ");
    out.n = 0;
    UT_SLICE(((const struct obj_ingress *)((const struct obj *)map_find(&store.kind[OBJ_INGRESS], S("n/b"))))->class_name, "y");
    UT_CHECK(((const struct obj *)map_find(&store.kind[OBJ_INGRESS], S("n/c"))) == NULL);
    UT_CHECK(((const struct obj *)map_find(&store.kind[OBJ_SERVICE], S("n/b"))) == NULL);
    UT_INT(obj_store_sweep(&store, OBJ_INGRESS, S("n"), 2), 0);
    UT_INT(obj_store_sweep(&store, OBJ_INGRESS, S(""), 2), 1);
    UT_INT(obj_store_sweep(&store, OBJ_INGRESS, S(""), 2), 0);
    UT_SLICE(str_built(&out), "-m/a ");
    out.n = 0;
    UT_CHECK(!obj_store_remove(&store, OBJ_INGRESS, S("m/a")));
    UT_CHECK(obj_store_remove(&store, OBJ_INGRESS, ((const struct obj *)map_find(&store.kind[OBJ_INGRESS], S("n/a")))->key));
    UT_CHECK(OT_PUT("{\"kind\":\"Ingress\",\"metadata\":{\"name\":\"b\",\"namespace\":\"n\"},\"spec\":7}", 3));
    UT_CHECK(((const struct obj *)map_find(&store.kind[OBJ_INGRESS], S("n/b")))->bad.n > 0);
    UT_SLICE(str_built(&out), "-n/a ~n/b ");
    UT_CHECK(OT_PUT(OT_NAMED("n", "b", "1", "a-longer-class-name-than-before"), 4) && OT_PUT(OT_NAMED("n", "b", "1", "x"), 4));
    UT_CHECK(obj_store_remove(&store, OBJ_INGRESS, S("n/b")) && obj_store_remove(&store, OBJ_SERVICE, S("n/a")));
    UT_INT(store.bytes, 0);                              /* a smaller object in the place of a larger one */
    obj_store_fini(&store);
    UT_INT(store.bytes, 0);
    str_free(&out);
}

/* Rows of objects of which none says the same as another. */
UT(obj_same_sees_every_field)
{
    static const char *const texts[] = {
        OT_NAMED("n", "a", "1", "x"),
        OT_NAMED("n", "a", "1", "y"),
        "{" OT_ING "}",
        "{" OT_ING ",\"spec\":{\"ingressClassName\":\"\"}}",
        "{\"kind\":\"Ingress\",\"metadata\":{\"name\":\"a\",\"namespace\":\"n\",\"creationTimestamp\":\"2026-11-30T17:00:00Z\"}}",
        "{\"kind\":\"Ingress\",\"metadata\":{\"name\":\"a\",\"namespace\":\"n\",\"annotations\":{\"ramjet.io/x\":\"1\"}}}",
        "{\"kind\":\"Ingress\",\"metadata\":{\"name\":\"a\",\"namespace\":\"n\",\"annotations\":{\"ramjet.io/x\":\"2\"}}}",
        "{\"kind\":\"Ingress\",\"metadata\":{\"name\":\"a\",\"namespace\":\"n\",\"annotations\":{\"ramjet.io/y\":\"1\"}}}",
        "{\"kind\":\"Ingress\",\"metadata\":{\"name\":\"a\",\"namespace\":\"n\",\"annotations\":{\"kubernetes.io/ingress.class\":\"1\"}}}",
        "{" OT_ING ",\"spec\":{\"defaultBackend\":{\"resource\":{}}}}",
        "{" OT_ING ",\"spec\":{\"defaultBackend\":{\"service\":{\"name\":\"s\",\"port\":{\"number\":1}}}}}",
        "{" OT_ING ",\"spec\":{\"defaultBackend\":{\"service\":{\"name\":\"s\",\"port\":{\"number\":2}}}}}",
        "{" OT_ING ",\"spec\":{\"defaultBackend\":{\"service\":{\"name\":\"t\",\"port\":{\"number\":2}}}}}",
        "{" OT_ING ",\"spec\":{\"defaultBackend\":{\"service\":{\"name\":\"t\",\"port\":{\"name\":\"p\"}}}}}",
        "{" OT_ING ",\"spec\":{\"rules\":[{}]}}",
        "{" OT_ING ",\"spec\":{\"rules\":[{\"host\":\"x\"}]}}",
        "{" OT_ING ",\"spec\":{\"rules\":[{\"host\":\"y\"}]}}",
        OT_RULE("{\"path\":\"/a\",\"pathType\":\"Exact\",\"backend\":{\"resource\":{}}}"),
        OT_RULE("{\"path\":\"/b\",\"pathType\":\"Exact\",\"backend\":{\"resource\":{}}}"),
        OT_RULE("{\"path\":\"/b\",\"pathType\":\"Prefix\",\"backend\":{\"resource\":{}}}"),
        "{" OT_ING ",\"spec\":1}",
        "{" OT_ING ",\"spec\":\"\"}",
        "{" OT_SVC "}",
        "{" OT_SVC ",\"spec\":{\"ports\":[{\"port\":1}]}}",
        "{" OT_SVC ",\"spec\":{\"ports\":[{\"port\":2}]}}",
        "{" OT_SVC ",\"spec\":{\"ports\":[{\"port\":2,\"name\":\"x\"}]}}",
        "{" OT_SVC ",\"spec\":{\"type\":\"ExternalName\",\"externalName\":\"x\"}}",
        "{" OT_SLICE ",\"addressType\":\"IPv4\"}",
        "{" OT_SLICE ",\"addressType\":\"IPv6\"}",
        "{" OT_SLICE ",\"addressType\":\"IPv4\",\"ports\":[{\"port\":1}]}",
        "{" OT_SLICE ",\"addressType\":\"IPv4\",\"endpoints\":[{\"addresses\":[\"10.0.0.1\"]}]}",
        "{" OT_SLICE ",\"addressType\":\"IPv4\",\"endpoints\":[{\"addresses\":[\"10.0.0.2\"]}]}",
        "{" OT_SLICE ",\"addressType\":\"IPv4\",\"endpoints\":[{\"addresses\":[\"10.0.0.2\"],\"conditions\":{\"ready\":false}}]}",
        "{" OT_SLICE ",\"addressType\":\"IPv4\",\"endpoints\":[{\"addresses\":[\"10.0.0.2\"],\"conditions\":{\"serving\":false}}]}",
        "{" OT_SLICE ",\"addressType\":\"IPv4\",\"endpoints\":[{\"addresses\":[\"10.0.0.2\"],\"conditions\":{\"terminating\":true}}]}",
        "{\"kind\":\"IngressClass\",\"metadata\":{\"name\":\"c\"}}",
        "{\"kind\":\"IngressClass\",\"metadata\":{\"name\":\"c\"},\"spec\":{\"controller\":\"x\"}}",
        "{\"kind\":\"IngressClass\",\"metadata\":{\"name\":\"c\",\"annotations\":{\"ingressclass.kubernetes.io/is-default-class\":\"true\"}}}",
    };
    struct obj *a[UT_COUNT(texts)];

    for (size_t i = 0; i < UT_COUNT(texts); i++)
        UT_REQUIRE((a[i] = ot_object(texts[i])) != NULL);
    for (size_t i = 0; i < UT_COUNT(texts); i++)
        for (size_t k = 0; k < UT_COUNT(texts); k++) {
            struct obj *again = ot_object(texts[k]);

            if (obj_same(a[i], again) != (i == k))
                UT_TEXT(texts[i], texts[k]);
            obj_free(again);
        }
    for (size_t i = 0; i < UT_COUNT(texts); i++)
        obj_free(a[i]);
}

/* Reads a list the way the client does, in pieces, into the store; returns events. */
static long ot_read_list(struct obj_store *store, struct str text, uint8_t kind, size_t piece, size_t *peak)
{
    struct json_reader json;
    struct obj_reader r;
    struct json_event ev;
    long n = 0;
    int rc = 0;

    json_init(&json, 1 << 20, false);
    obj_reader_init(&r, kind, &json);
    for (size_t at = 0; at < text.n; at += piece) {
        json_feed(&json, str_of(text.p + at, text.n - at < piece ? text.n - at : piece));
        while ((rc = json_next(&json, &ev)) == 1) {
            n++;
            if (ev.depth < 2)
                continue;
            if (obj_reader_event(&r, &ev) == 1)
                obj_store_put(store, obj_reader_take(&r));
            if (r.scratch.total + json.buf.cap > *peak)
                *peak = r.scratch.total + json.buf.cap;
        }
        UT_INT(rc, RJ_MORE);
    }
    json_finish(&json);
    UT_INT(json_next(&json, &ev), 1);
    obj_reader_fini(&r);
    json_fini(&json);
    return n;
}

static void ot_put_item(struct str_builder *b, int kind, int i)
{
    str_putf(b, "%s{\"metadata\":{\"name\":\"web-%d\",\"namespace\":\"shop-%d\",\"uid\":\"0d2e1f5e-3b6b-4c55-9c1f-%012d\",\"resourceVersion\":\"%d\",\"creationTimestamp\":\"2026-11-30T17:00:00Z\"", i ? "," : "",
             i, i % 50, i, 100000 + i);
    if (kind == OBJ_INGRESS) {
        str_put(b, S(",\"annotations\":{"));
        for (int k = 0; k < 10; k++)
            str_putf(b, "%s\"other.example.com/key-%d\":\"value %d of object %d, with some text behind it\"", k ? "," : "", k, k, i);
        str_put(b, S("}"));
    }
    if (kind == OBJ_ENDPOINT_SLICE)
        str_putf(b, ",\"labels\":{\"kubernetes.io/service-name\":\"web-%d\"}", i);
    str_put(b, S(",\"managedFields\":[{\"manager\":\"kubectl\",\"fieldsV1\":{\"f:spec\":{\"f:rules\":{}}}}]}"));
    if (kind == OBJ_INGRESS)
        str_putf(b, ",\"spec\":{\"ingressClassName\":\"ramjet\",\"rules\":[{\"host\":\"app-%d.example.com\",\"http\":{\"paths\":["
                 "{\"path\":\"/\",\"pathType\":\"Prefix\",\"backend\":{\"service\":{\"name\":\"web-%d\",\"port\":{\"number\":80}}}},"
                 "{\"path\":\"/api\",\"pathType\":\"Exact\",\"backend\":{\"service\":{\"name\":\"web-%d\",\"port\":{\"number\":80}}}}]}}]},\"status\":{\"loadBalancer\":{}}}", i, i, i);
    else if (kind == OBJ_SERVICE)
        str_putf(b, ",\"spec\":{\"ports\":[{\"name\":\"http\",\"protocol\":\"TCP\",\"port\":80,\"targetPort\":8080}],\"selector\":{\"app\":\"web-%d\"},\"type\":\"ClusterIP\"},\"status\":{\"loadBalancer\":{}}}", i);
    else
        str_putf(b, ",\"addressType\":\"IPv4\",\"endpoints\":[{\"addresses\":[\"10.%d.%d.1\"],\"conditions\":{\"ready\":true,\"serving\":true,\"terminating\":false},\"nodeName\":\"node-1\"},"
                 "{\"addresses\":[\"10.%d.%d.2\"],\"conditions\":{\"ready\":true}}],\"ports\":[{\"name\":\"http\",\"port\":8080,\"protocol\":\"TCP\"}]}", i / 250, i % 250, i / 250, i % 250);
}

UT(obj_keeps_5000_ingresses_small)
{
    static const uint8_t kinds[] = { OBJ_INGRESS, OBJ_SERVICE, OBJ_ENDPOINT_SLICE };
    struct obj_store store = { 0 };
    size_t all = 0, peak = 0;

    for (size_t k = 0; k < UT_COUNT(kinds); k++) {
        struct str_builder b = str_growing();
        struct map *m = &store.kind[kinds[k]];

        str_putf(&b, "{\"kind\":\"%sList\",\"apiVersion\":\"x\",\"metadata\":{\"resourceVersion\":\"1\"},\"items\":[", obj_kinds[kinds[k]].name);
        for (int i = 0; i < 5000; i++)
            ot_put_item(&b, kinds[k], i);
        str_put(&b, S("]}"));
        ot_read_list(&store, str_built(&b), kinds[k], 16384, &peak);
        UT_INT(m->count, 5000);
        all += m->count * (size_t)16;                    /* what an allocator adds to a block */
        all += m->cap * sizeof *m->entries + ((size_t)m->mask + 1) * sizeof *m->index;
        str_free(&b);
    }
    all += store.bytes;
    if (all >= 4700000)
        UT_INT(all, 4700000);
    UT_CHECK(peak < 16384);
    if (getenv("UT_VERBOSE"))
        printf("5000 ingresses, services, slices: %zu bytes of blocks, %zu in all; reading took %zu\n", store.bytes, all, peak);
    obj_store_fini(&store);
}

UT(obj_bounds_one_object)
{
    struct str_builder b = str_growing();
    struct obj *o;

    str_put(&b, S("{\"kind\":\"EndpointSlice\",\"metadata\":{\"name\":\"a\"},\"addressType\":\"IPv4\",\"endpoints\":["));
    for (int i = 0; i < 300000; i++)
        str_put(&b, i ? S(",{\"addresses\":[\"10.0.0.1\"]}") : S("{\"addresses\":[\"10.0.0.1\"]}"));
    str_put(&b, S("]}"));
    str_put_c(&b, 0);
    o = ot_object((const char *)b.p);
    UT_REQUIRE(o != NULL);
    UT_SLICE(o->bad, "endpoints[65536]: more than 4 MiB of text that matters");
    obj_free(o);
    str_free(&b);
}
