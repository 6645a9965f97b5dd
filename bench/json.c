/* What reading a list of the API server costs.
 *
 *   gcc -std=gnu11 -O2 -o build/bench/json bench/json.c -lbearssl -linih -lpthread && build/bench/json
 *
 * An IngressList of 5,000 items with what a real one carries along (labels, annotations, managedFields, status), in pieces of 16 KiB as they come
 * from a connection: once read as JSON with nothing made of it, once into objects of the store as the controller does. Prints MB of text a second. */
#define RAMJET_NO_MAIN 1
#include "../ramjet.c"

enum { LIST_ITEMS = 5000, LIST_PIECE = 16384, LIST_ROUNDS = 7 };

static void list_item(struct str_builder *b, unsigned i)
{
    str_putf(b,
        "%s{\"metadata\":{\"name\":\"web-%u\",\"namespace\":\"team-%u\",\"uid\":\"6f1c2b9e-0d5a-4d86-9a53-%012u\",\"resourceVersion\":\"%u\",\"generation\":1,"
        "\"creationTimestamp\":\"2026-11-30T12:00:00Z\",\"labels\":{\"app.kubernetes.io/name\":\"web-%u\",\"app.kubernetes.io/managed-by\":\"Helm\"},"
        "\"annotations\":{\"meta.helm.sh/release-name\":\"web-%u\",\"nginx.ingress.kubernetes.io/proxy-read-timeout\":\"60\"},"
        "\"managedFields\":[{\"manager\":\"helm\",\"operation\":\"Update\",\"apiVersion\":\"networking.k8s.io/v1\",\"time\":\"2026-11-30T12:00:00Z\",\"fieldsType\":\"FieldsV1\","
        "\"fieldsV1\":{\"f:metadata\":{\"f:annotations\":{\".\":{},\"f:meta.helm.sh/release-name\":{}},\"f:labels\":{\".\":{},\"f:app.kubernetes.io/name\":{}}},"
        "\"f:spec\":{\"f:ingressClassName\":{},\"f:rules\":{}}}}]},",
        i ? "," : "", i, i % 50, i, 100000 + i, i, i);
    str_putf(b,
        "\"spec\":{\"ingressClassName\":\"ramjet\",\"rules\":[{\"host\":\"app-%u.example.com\",\"http\":{\"paths\":["
        "{\"path\":\"/\",\"pathType\":\"Prefix\",\"backend\":{\"service\":{\"name\":\"web-%u\",\"port\":{\"number\":80}}}},"
        "{\"path\":\"/api\",\"pathType\":\"Prefix\",\"backend\":{\"service\":{\"name\":\"api-%u\",\"port\":{\"name\":\"http\"}}}}]}}]},"
        "\"status\":{\"loadBalancer\":{\"ingress\":[{\"ip\":\"192.0.2.10\"}]}}}",
        i, i, i);
}

/* Reads the list in pieces; with a store the items become objects in it. Returns the number of events, or of objects. */
static unsigned list_read(struct str text, struct obj_store *store)
{
    struct json_reader r;
    struct json_event ev;
    struct obj_reader item;
    bool in_items = false;
    size_t at = 0;
    unsigned n = 0;
    int rc;

    json_init(&r, 1 << 20, false);
    obj_reader_init(&item, OBJ_INGRESS, &r);
    for (;;) {
        if ((rc = json_next(&r, &ev)) == RJ_MORE) {
            size_t piece = text.n - at < LIST_PIECE ? text.n - at : LIST_PIECE;
            if (piece) json_feed(&r, str_of(text.p + at, piece));
            else json_finish(&r);
            at += piece;
            continue;
        }
        if (rc != 1 || ev.type == JSON_END) break;
        if (!store) n++;
        else if (!in_items) in_items = ev.type == JSON_ARRAY && ev.depth == 1;
        else if ((item.begun && !item.done) || ev.type == JSON_OBJECT) {
            if ((rc = obj_reader_event(&item, &ev)) < 0) break;
            if (rc == 1) obj_store_put(store, obj_reader_take(&item)), n++;
        }
    }
    if (rc != 1) {
        struct log_err err;
        json_fail(&r, &err);
        fprintf(stderr, "%s\n", err.text);
        n = 0;
    }
    obj_reader_fini(&item);
    json_fini(&r);
    return n;
}

static void list_time(const char *name, struct str text, bool objects)
{
    uint64_t best = UINT64_MAX;

    for (int round = 0; round < LIST_ROUNDS; round++) {
        struct obj_store store = {0};
        uint64_t start = sys_clock_ns(CLOCK_PROCESS_CPUTIME_ID), took;
        unsigned n = list_read(text, objects ? &store : NULL);

        took = sys_clock_ns(CLOCK_PROCESS_CPUTIME_ID) - start;
        if (objects ? n != LIST_ITEMS : n < LIST_ITEMS * 50) {
            fprintf(stderr, "%s: %u\n", name, n);
            exit(1);
        }
        if (took < best) best = took;
        obj_store_fini(&store);
    }
    printf("{\"name\": \"%s\", \"value\": %.0f, \"unit\": \"MB/s\", \"octets\": %zu, \"ms\": %.2f}\n", name, (double)text.n * 1000 / (double)best, text.n, (double)best / 1e6);
}

int main(void)
{
    struct str_builder b = str_growing();

    str_putf(&b, "{\"kind\":\"IngressList\",\"apiVersion\":\"networking.k8s.io/v1\",\"metadata\":{\"resourceVersion\":\"200000\"},\"items\":[");
    for (unsigned i = 0; i < LIST_ITEMS; i++) list_item(&b, i);
    str_putf(&b, "]}\n");
    list_time("JSON list of 5,000 Ingresses, read only", str_built(&b), false);
    list_time("JSON list of 5,000 Ingresses, into the store", str_built(&b), true);
    str_free(&b);
    return 0;
}
