/* The machine of a watch fed with scripted bytes at every split point. */
#include "pki.h"

/* A folder for one test, and its files. */
static char tk_dir[64];
static const char *tk_path(const char *name)
{
    static char path[2][160];
    static int turn;
    char *p = path[turn ^= 1];

    snprintf(p, sizeof path[0], "%s/%s", tk_dir, name);
    return p;
}
static void tk_dir_new(void)
{
    snprintf(tk_dir, sizeof tk_dir, "/tmp/ramjet-unit-XXXXXX");
    if (!mkdtemp(tk_dir)) exit(1);
}
static void tk_put(const char *name, const char *text)
{
    FILE *f = fopen(tk_path("new"), "w");

    fputs(text, f);
    fclose(f);
    rename(tk_path("new"), tk_path(name));
}
static void tk_dir_drop(void)
{
    static const char *const names[] = {"token", "ca.crt", "namespace", "tls.crt", "tls.key"};

    for (size_t i = 0; i < UT_COUNT(names); i++) unlink(tk_path(names[i]));
    rmdir(tk_dir);
}

/* What the store told, one line each. */
static char tk_told[4096];
static void tk_changed(void *arg, const struct obj *old, const struct obj *now)
{
    size_t n = strlen(tk_told);

    (void)arg;
    snprintf(tk_told + n, sizeof tk_told - n, "%s" STR_FMT " ", !old ? "+" : !now ? "-" : "~", STR_ARG(now ? now->key : old->key));
}
static int tk_synced;
static void tk_on_synced(void *arg) { (void)arg; tk_synced++; }

struct tk_bed {
    struct k8s k;
    struct kc_config cfg;
    struct obj_store store;
    struct k8s_watch *w;                                 /* of Services */
};

static void tk_init(struct tk_bed *t)
{
    memset(t, 0, sizeof *t);
    rj.log_level = LOG_ERROR;
    t->cfg.host = S("api");
    t->cfg.port = 80;
    t->cfg.token = str_growing();
    str_put(&t->cfg.token, S("t0k"));
    t->store.changed = tk_changed;
    tk_told[0] = 0;
    tk_synced = 0;
    k8s_init(&t->k, &t->cfg, &t->store, NULL, 0);
    t->k.missing = 1;
    t->k.synced = tk_on_synced;
    t->k.now_ms = 1000000;
    for (uint32_t i = 0; i < t->k.nwatches; i++)
        if (t->k.watches[i].kind == OBJ_SERVICE) t->w = &t->k.watches[i];
    k8s_watch_due(t->w);
    k8s_watch_opened(t->w);
}

static void tk_fini(struct tk_bed *t)
{
    k8s_fini(&t->k);
    obj_store_fini(&t->store);
    str_free(&t->cfg.token);
    rj.log_level = LOG_INFO;
}

/* The request line of the request that waits, and forgets the request. */
static const char *tk_request(struct tk_bed *t)
{
    static char line[512];
    struct str s = str_built(&t->w->request);

    s.n = str_find(s, '\r');
    snprintf(line, sizeof line, STR_FMT, STR_ARG(s));
    if (strstr(line, "timeoutSeconds=")) *strstr(line, "timeoutSeconds=") = 0;
    t->w->request.n = 0;
    return line;
}

/* The connection that was asked for is there. */
static void tk_reconnect(struct tk_bed *t)
{
    UT_CHECK(t->w->drop);
    t->w->drop = false;
    t->w->request.n = 0;
    if (t->w->state == K8S_WAIT_RETRY) k8s_watch_due(t->w);
    UT_INT(t->w->state, K8S_WAIT_LINK);
    k8s_watch_opened(t->w);
}

#define TK_SVC(name, v) "{\"metadata\":{\"name\":\"" name "\",\"namespace\":\"a\",\"resourceVersion\":\"" v "\"},\"spec\":{\"ports\":[{\"port\":80}]}}"
#define TK_LIST(v, cont, items) "{\"kind\":\"ServiceList\",\"apiVersion\":\"v1\",\"metadata\":{\"resourceVersion\":\"" v "\"" cont "},\"items\":[" items "]}"
#define TK_EVENT(type, object) "{\"type\":\"" type "\",\"object\":" object "}\n"
#define TK_STATUS(code) "{\"kind\":\"Status\",\"apiVersion\":\"v1\",\"metadata\":{},\"status\":\"Failure\",\"message\":\"no\",\"reason\":\"X\",\"code\":" code "}"
#define TK_BOOKMARK(v) TK_EVENT("BOOKMARK", "{\"kind\":\"Service\",\"apiVersion\":\"v1\",\"metadata\":{\"resourceVersion\":\"" v "\",\"creationTimestamp\":null},\"spec\":{}}")

/* A response with that body: by length, or in chunks. */
static size_t tk_response(char *out, size_t cap, const char *status, const char *fields, const char *body, size_t chunk)
{
    size_t n = strlen(body);
    struct str_builder b = str_fixed(out, cap);

    str_putf(&b, "HTTP/1.1 %s\r\nContent-Type: application/json\r\n%s", status, fields);
    if (!chunk) {
        str_putf(&b, "Content-Length: %zu\r\n\r\n", n);
        str_put(&b, str_of(body, n));
        return b.n;
    }
    str_put(&b, S("Transfer-Encoding: chunked\r\n\r\n"));
    for (size_t at = 0; at < n; at += chunk) {
        size_t k = n - at < chunk ? n - at : chunk;

        str_putf(&b, "%zx\r\n", k);
        str_put(&b, str_of(body + at, k));
        str_put(&b, S("\r\n"));
    }
    str_put(&b, S("0\r\n\r\n"));
    return b.n;
}

static void tk_feed(struct tk_bed *t, const char *status, const char *fields, const char *body, size_t chunk)
{
    static char text[32768];
    size_t n = tk_response(text, sizeof text, status, fields, body, chunk);

    k8s_watch_feed(t->w, str_of(text, n));
}

/* Lists, watches with every kind of event, lists again by another version: the same at every split point, in chunks of every size. */
static void tk_script(const uint8_t *list, size_t list_n, const uint8_t *watch, size_t watch_n, size_t cut)
{
    struct tk_bed t;

    tk_init(&t);
    UT_TEXT(tk_request(&t), "GET /api/v1/services?limit=500 HTTP/1.1");
    if (cut < list_n) k8s_watch_feed(t.w, str_of(ut_guard(0, list, cut), cut));
    if (cut < list_n) k8s_watch_feed(t.w, str_of(ut_guard(0, list + cut, list_n - cut), list_n - cut));
    else k8s_watch_feed(t.w, str_of(ut_guard(0, list, list_n), list_n));
    UT_INT(t.w->state, K8S_WAIT_WATCH_HEAD);
    UT_INT(tk_synced, 1);
    UT_TEXT(tk_told, "+a/one +a/two ");
    UT_TEXT(tk_request(&t), "GET /api/v1/services?watch=true&allowWatchBookmarks=true&resourceVersion=10&");
    t.k.now_ms += 500;
    if (cut > list_n) k8s_watch_feed(t.w, str_of(ut_guard(0, watch, cut - list_n), cut - list_n));
    if (cut > list_n) k8s_watch_feed(t.w, str_of(ut_guard(0, watch + (cut - list_n), watch_n - (cut - list_n)), watch_n - (cut - list_n)));
    else k8s_watch_feed(t.w, str_of(ut_guard(0, watch, watch_n), watch_n));
    UT_TEXT(tk_told, "+a/one +a/two +a/three ~a/one -a/two ");
    UT_INT(t.w->state, K8S_WAIT_WATCH_HEAD);
    UT_TEXT(tk_request(&t), "GET /api/v1/services?watch=true&allowWatchBookmarks=true&resourceVersion=20&");
    UT_INT(t.k.kind[OBJ_SERVICE].events, 3);
    UT_CHECK(!t.w->drop);
    tk_fini(&t);
}

#define TK_ONE_CHANGED "{\"metadata\":{\"name\":\"one\",\"namespace\":\"a\",\"resourceVersion\":\"13\"},\"spec\":{\"ports\":[{\"port\":81}]}}"
UT(k8s_list_and_watch_at_every_split_point)
{
    static const size_t chunks[] = {0, 1, 7, 64, 4096};
    static char list[16384], watch[16384];

    for (size_t i = 0; i < UT_COUNT(chunks); i++) {
        size_t ln = tk_response(list, sizeof list, "200 OK", "", TK_LIST("10", "", TK_SVC("one", "3") "," TK_SVC("two", "4")), chunks[i]);
        size_t wn = tk_response(watch, sizeof watch, "200 OK", "",
                                TK_EVENT("ADDED", TK_SVC("three", "12")) TK_EVENT("MODIFIED", TK_ONE_CHANGED) TK_EVENT("DELETED", TK_SVC("two", "14")) TK_BOOKMARK("20"),
                                chunks[i]);

        for (size_t cut = 0; cut <= ln + wn; cut += chunks[i] == 1 ? 17 : 1) tk_script((uint8_t *)list, ln, (uint8_t *)watch, wn, cut);
    }
}

UT(k8s_pages_are_followed_and_what_vanished_is_taken_out)
{
    struct tk_bed t;

    tk_init(&t);
    tk_request(&t);
    tk_feed(&t, "200 OK", "", TK_LIST("10", ",\"continue\":\"p/2+\"", TK_SVC("one", "1")), 0);
    UT_TEXT(tk_request(&t), "GET /api/v1/services?limit=500&continue=p%2f2%2b HTTP/1.1");
    UT_INT(tk_synced, 0);
    tk_feed(&t, "200 OK", "", TK_LIST("10", ",\"continue\":\"p3\"", TK_SVC("two", "2")), 0);
    tk_request(&t);
    k8s_watch_ended(t.w, "reset");                       /* a kept connection that is dead: the same page again */
    tk_reconnect(&t);
    UT_TEXT(tk_request(&t), "GET /api/v1/services?limit=500&continue=p3 HTTP/1.1");
    tk_feed(&t, "200 OK", "", TK_LIST("10", "", TK_SVC("three", "3")), 5);
    UT_TEXT(tk_told, "+a/one +a/two +a/three ");
    UT_INT(tk_synced, 1);
    tk_request(&t);
    tk_feed(&t, "410 Gone", "", TK_STATUS("410"), 0);    /* as a status */
    UT_INT(t.w->wait_ms, 1);
    tk_reconnect(&t);
    UT_TEXT(tk_request(&t), "GET /api/v1/services?limit=500 HTTP/1.1");
    tk_feed(&t, "200 OK", "", TK_LIST("30", ",\"continue\":\"x\"", TK_SVC("two", "2")), 0);
    UT_TEXT(tk_request(&t), "GET /api/v1/services?limit=500&continue=x HTTP/1.1");
    tk_feed(&t, "410 Gone", "", TK_STATUS("410"), 0);    /* the token has expired: begin again */
    tk_reconnect(&t);
    UT_TEXT(tk_request(&t), "GET /api/v1/services?limit=500 HTTP/1.1");
    tk_feed(&t, "200 OK", "", TK_LIST("31", "", TK_SVC("two", "2") "," TK_SVC("four", "5")), 0);
    UT_TEXT(tk_told, "+a/one +a/two +a/three +a/four -a/one -a/three ");
    UT_TEXT(tk_request(&t), "GET /api/v1/services?watch=true&allowWatchBookmarks=true&resourceVersion=31&");
    tk_feed(&t, "200 OK", "", TK_EVENT("ERROR", TK_STATUS("410")), 0); /* as an event */
    tk_reconnect(&t);
    UT_TEXT(tk_request(&t), "GET /api/v1/services?limit=500 HTTP/1.1");
    UT_INT(t.k.kind[OBJ_SERVICE].relists, 3);
    UT_INT(tk_synced, 1);
    tk_feed(&t, "200 OK", "", TK_LIST("40", "", ""), 0);
    UT_TEXT(tk_told, "+a/one +a/two +a/three +a/four -a/one -a/three -a/two -a/four ");
    tk_fini(&t);
}

/* What has no name, or is no object, is left out; what stands beside it is kept. */
UT(k8s_nameless_items_are_left_out)
{
    static const struct { int line; const char *item; } rows[] = {
        UT_ROW("null"), UT_ROW("\"text\""), UT_ROW("7"), UT_ROW("[[{}],1]"), UT_ROW("{}"), UT_ROW("{\"spec\":{}}"), UT_ROW("{\"metadata\":null}"),
        UT_ROW("{\"metadata\":{\"name\":\"\"}}"), UT_ROW("{\"metadata\":{\"name\":5,\"resourceVersion\":\"9\"}}"),
    };
    UT_EACH(r, rows) {
        for (size_t chunk = 0; chunk < 4; chunk++) {
            char text[1024];
            struct tk_bed t;

            tk_init(&t);
            snprintf(text, sizeof text, TK_LIST("5", "", TK_SVC("one", "1") ",%s," TK_SVC("two", "2")), r->item);
            tk_feed(&t, "200 OK", "", text, chunk);
            UT_INT(t.w->state, K8S_WAIT_WATCH_HEAD);
            UT_INT(t.store.kind[OBJ_SERVICE].count, 2);
            if (r->item[0] == '{') {
                snprintf(text, sizeof text, TK_EVENT("ADDED", "%s") TK_EVENT("ADDED", TK_SVC("three", "8")), r->item);
                tk_feed(&t, "200 OK", "", text, chunk);
                UT_INT(t.w->state, K8S_WAIT_WATCH_HEAD);
                UT_INT(t.store.kind[OBJ_SERVICE].count, 3);
            }
            tk_fini(&t);
        }
    }
}

/* Everything that is wrong ends in a back-off with a reason, and the store stays. */
UT(k8s_garbage_is_refused)
{
    static const struct { int line; bool watch; const char *status, *body, *why; } rows[] = {
        UT_ROW(false, "200 OK", "hello", "list: line 1, column 1: a byte that begins nothing"),
        UT_ROW(false, "200 OK", "", "list: line 1, column 1: the text ends too early"),
        UT_ROW(false, "200 OK", "[]", "list: found something else than an object"),
        UT_ROW(false, "200 OK", "{}", "list: no metadata.resourceVersion"),
        UT_ROW(false, "200 OK", "{\"items\":{}}", "list: items: expected an array"),
        UT_ROW(false, "200 OK", "{\"items\":[1]}", "list: no metadata.resourceVersion"),
        UT_ROW(false, "200 OK", "{\"metadata\":[]}", "list: metadata: expected an object"),
        UT_ROW(false, "200 OK", "{\"metadata\":{\"resourceVersion\":1}}", "list: metadata: expected a short string"),
        UT_ROW(false, "200 OK", TK_LIST("1", "", "{\"metadata\":{\"name\":\"x\",\"namespace\":\"a\"}}"), "list: an object without metadata.resourceVersion"),
        UT_ROW(false, "200 OK", TK_LIST("1", "", "{\"kind\":\"Pod\",\"metadata\":{\"name\":\"x\",\"resourceVersion\":\"1\"}}"), "list: kind Pod is not used"),
        UT_ROW(false, "200 OK", TK_LIST("1", "", "{\"kind\":\"IngressClass\",\"metadata\":{\"name\":\"x\",\"resourceVersion\":\"1\"}}"), "list: an object of another kind"),
        UT_ROW(false, "200 OK", TK_LIST("1", "", TK_SVC("x", "1")) "{}", "list: line 1, column "),
        UT_ROW(false, "200 OK", "{\"metadata\":{\"resourceVersion\":\"1\"},\"items\":[{\"metadata\":{\"name\":\"x\"", "list: line 1, column "),
        UT_ROW(false, "403 Forbidden", TK_STATUS("403"), "list: 403 no"),
        UT_ROW(false, "500 Internal Server Error", "<html>", "list: 500"),
        UT_ROW(false, "302 Found", "", "list: 302"),
        UT_ROW(true, "200 OK", TK_EVENT("ADDED", TK_SVC("x", "1")) "{\"type\":\"MODI", "watch: line 2, column "),
        UT_ROW(true, "200 OK", "{\"object\":{},\"type\":\"ADDED\"}", "watch: object: expected an object behind type"),
        UT_ROW(true, "200 OK", "{\"type\":\"ADDED\",\"object\":[]}", "watch: object: expected an object behind type"),
        UT_ROW(true, "200 OK", "{\"type\":1}", "watch: type: expected a string"),
        UT_ROW(true, "200 OK", "{\"type\":\"ADDED\",\"type\":\"DELETED\"}", "watch: an event with two types"),
        UT_ROW(true, "200 OK", "[]", "watch: found something else than an object"),
        UT_ROW(true, "200 OK", TK_BOOKMARK(""), "watch: a bookmark without metadata.resourceVersion"),
        UT_ROW(true, "200 OK", TK_EVENT("ERROR", TK_STATUS("500")), "watch: error 500 no"),
        UT_ROW(true, "200 OK", TK_EVENT("ERROR", "{\"code\":\"410\"}"), "watch: error 0 "),
        UT_ROW(true, "429 Too Many Requests", TK_STATUS("429"), "watch: 429 no"),
    };
    UT_EACH(r, rows) {
        for (size_t chunk = 0; chunk < 4; chunk++) {
            struct tk_bed t;

            tk_init(&t);
            if (r->watch) tk_feed(&t, "200 OK", "", TK_LIST("5", "", TK_SVC("kept", "1")), 0);
            tk_feed(&t, r->status, "", r->body, chunk);
            if (strncmp(t.w->why, r->why, strlen(r->why))) UT_TEXT(t.w->why, r->why);
            UT_INT(t.w->state, K8S_WAIT_RETRY);
            UT_CHECK(t.w->drop && t.w->wait_ms >= 50 && t.w->wait_ms <= 100);
            UT_INT(t.w->version.n > 0, r->watch);
            UT_INT(map_find(&t.store.kind[OBJ_SERVICE], S("a/kept")) != NULL, r->watch);
            tk_fini(&t);
        }
    }
}

UT(k8s_unknown_events_and_fields_are_passed_over)
{
    struct tk_bed t;

    tk_init(&t);
    tk_feed(&t, "200 OK", "", "{\"x\":[{\"items\":[1]}],\"items\":null,\"metadata\":{\"selfLink\":\"\",\"remainingItemCount\":7,\"resourceVersion\":\"5\",\"y\":{}},\"z\":{}}", 0);
    UT_INT(t.w->state, K8S_WAIT_WATCH_HEAD);
    tk_feed(&t, "200 OK", "", TK_EVENT("FUTURE", "{\"a\":[[]],\"metadata\":{\"b\":1}}") "{\"extra\":{},\"type\":\"ADDED\",\"more\":[1],\"object\":" TK_SVC("x", "7") ",\"z\":0}\n", 3);
    UT_TEXT(tk_told, "+a/x ");
    UT_INT(t.w->state, K8S_WAIT_WATCH_HEAD);
    UT_SLICE(str_built(&t.w->version), "7");
    tk_fini(&t);
}

UT(k8s_backs_off_and_honours_retry_after)
{
    struct tk_bed t;
    uint32_t max = 100;

    tk_init(&t);
    for (int i = 0; i < 14; i++) {
        tk_feed(&t, "500 Internal Server Error", "", "", 0);
        UT_CHECK(t.w->wait_ms >= max / 2 && t.w->wait_ms <= max);
        max = max * 2 < 10000 ? max * 2 : 10000;
        tk_reconnect(&t);
    }
    tk_feed(&t, "429 Too Many Requests", "Retry-After: 7\r\n", TK_STATUS("429"), 0);
    UT_CHECK(t.w->wait_ms >= 7000 && t.w->wait_ms <= 7250);
    tk_reconnect(&t);
    tk_feed(&t, "503 Service Unavailable", "retry-after: 100000\r\n", TK_STATUS("503"), 0);
    UT_CHECK(t.w->wait_ms >= 60000 && t.w->wait_ms <= 60250);
    tk_reconnect(&t);
    tk_feed(&t, "503 Service Unavailable", "Retry-After: Fri, 31 Dec 1999 23:59:59 GMT\r\n", TK_STATUS("503"), 0);
    UT_CHECK(t.w->wait_ms <= 10000);
    t.w->drop = false;
    max = 100;
    for (int i = 0; i < 8; i++) {                        /* while there is no server at all, it is looked for often */
        k8s_watch_due(t.w);
        k8s_watch_unreachable(t.w, false, "connect: refused");
        UT_CHECK(t.w->wait_ms >= max / 2 && t.w->wait_ms <= max);
        max = max * 2 < 800 ? max * 2 : 800;
    }
    tk_reconnect(&t);
    tk_feed(&t, "503 Service Unavailable", "", "", 0);   /* and what it says while it starts is a new story */
    UT_CHECK(t.w->wait_ms >= 50 && t.w->wait_ms <= 100);
    tk_reconnect(&t);
    t.k.watches[0].state = K8S_WAIT_RETRY;
    t.k.watches[0].trouble = K8S_NO_LINK;
    t.k.watches[0].link_tries = 5;
    t.w->link_tries = 1;
    tk_feed(&t, "200 OK", "", TK_LIST("5", "", ""), 0);
    UT_CHECK(t.k.watches[0].wake);                       /* the others need not wait on */
    tk_fini(&t);
}

/* What happens to two watches at which millisecond, and what stands in the log then: L a line of its own, q spoken for by the other's, . no spell. */
UT(k8s_a_spell_of_trouble_is_told_once)
{
    static const struct { int line; uint32_t at_ms; int watch; enum k8s_trouble trouble; const char *why, *told; uint32_t calm_ms; } rows[] = {
        UT_ROW(0, 2, K8S_NO_TROUBLE, "", "..", 0),
        UT_ROW(10, 2, K8S_LOST, "reset", "L.", 0),
        UT_ROW(11, 3, K8S_LOST, "reset", "Lq", 0),       /* the same for all: one line */
        UT_ROW(200, 3, K8S_NO_LINK, "refused", "Lq", 0),
        UT_ROW(210, 2, K8S_NO_LINK, "refused", "Lq", 0),
        UT_ROW(300, 2, K8S_NO_TROUBLE, "", "Lq", K8S_HEALTHY_MS),
        UT_ROW(400, 2, K8S_LOST, "reset", "Lq", 0),      /* it flaps: the same spell */
        UT_ROW(500, 2, K8S_NO_TROUBLE, "", "Lq", K8S_HEALTHY_MS),
        UT_ROW(5499, 2, K8S_NO_TROUBLE, "", "Lq", 1),
        UT_ROW(5500, 2, K8S_NO_TROUBLE, "", ".L", 0),    /* told as over; the other speaks for itself now */
        UT_ROW(5600, 2, K8S_REFUSED, "403", "LL", 0),
        UT_ROW(5700, 3, K8S_NO_TROUBLE, "", "LL", K8S_HEALTHY_MS),
        UT_ROW(7700, 2, K8S_NO_TROUBLE, "", "LL", K8S_HEALTHY_MS),
        UT_ROW(10700, 3, K8S_NO_TROUBLE, "", "LL", 2000), /* one line for both */
        UT_ROW(12700, 2, K8S_NO_TROUBLE, "", "..", 0),
    };
    struct tk_bed t;
    uint64_t from;

    tk_init(&t);
    from = t.k.now_ms;
    t.k.watches[2].told = t.k.watches[3].told = 0;
    t.k.watches[2].up = t.k.watches[3].up = true;
    UT_EACH(r, rows) {
        struct k8s_watch *w = &t.k.watches[r->watch];
        char told[3] = "..";

        t.k.now_ms = from + r->at_ms;
        if (r->trouble) k8s_fail(w, r->trouble, "%s", r->why);
        else if (!w->up) w->up_ms = t.k.now_ms;
        if (!r->trouble) w->up = true;
        UT_INT(k8s_calm(&t.k), r->calm_ms);
        for (int i = 0; i < 2; i++)
            if (t.k.watches[2 + i].told) told[i] = t.k.watches[2 + i].is_quiet ? 'q' : 'L';
        UT_TEXT(told, r->told);
    }
    tk_fini(&t);
}

UT(k8s_a_refused_token_is_retried_when_it_changes)
{
    struct tk_bed t;

    tk_dir_new();
    tk_put("token", "old");
    tk_init(&t);
    t.cfg.token_file.path = strdup(tk_path("token"));
    tk_feed(&t, "200 OK", "", TK_LIST("5", "", ""), 0);
    UT_SLICE(str_built(&t.cfg.token), "old");            /* read before the watch was asked for */
    for (int i = 0; i < 4; i++) {
        tk_feed(&t, "401 Unauthorized", "", TK_STATUS("401"), 0);
        if (i < 3) {
            t.k.now_ms = t.w->retry_at_ms;
            tk_reconnect(&t);
        }
    }
    UT_INT(t.w->wait_ms, K8S_FILE_POLL_MS);
    t.k.now_ms += K8S_FILE_POLL_MS;
    t.w->wait_ms = 0;
    k8s_watch_due(t.w);
    UT_INT(t.w->state, K8S_WAIT_RETRY);
    UT_CHECK(t.w->wait_ms > 0 && t.w->wait_ms <= K8S_FILE_POLL_MS);
    tk_put("token", "new");
    k8s_watch_due(t.w);
    UT_INT(t.w->state, K8S_WAIT_LINK);
    t.w->request.n = 0;
    k8s_watch_opened(t.w);
    UT_CHECK(memmem(t.w->request.p, t.w->request.n, "\r\nAuthorization: Bearer new\r\n", 29));
    free((void *)(uintptr_t)t.cfg.token_file.path);
    tk_fini(&t);
    tk_dir_drop();
}

UT(k8s_ends_are_told_apart)
{
    struct tk_bed t;

    tk_init(&t);
    tk_feed(&t, "200 OK", "Connection: close\r\n", TK_LIST("5", "", ""), 0);
    UT_INT(t.w->state, K8S_WAIT_LINK);                   /* the watch needs a new connection, at once */
    tk_reconnect(&t);
    k8s_watch_feed(t.w, S("HTTP/1.1 200 OK\r\n\r\n" TK_BOOKMARK("6")));
    UT_INT(t.w->state, K8S_WAIT_WATCH_BODY);
    UT_CHECK(t.w->up && t.w->wait_ms >= 30000 && t.w->wait_ms <= 36000);
    t.k.now_ms += 30000;
    k8s_watch_ended(t.w, "closed");                      /* a body without length ends so */
    UT_INT(t.w->state, K8S_WAIT_LINK);
    tk_reconnect(&t);
    k8s_watch_feed(t.w, S("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n\n\r\n"));
    UT_INT(t.w->state, K8S_WAIT_WATCH_BODY);
    k8s_watch_ended(t.w, "closed");
    UT_INT(t.w->state, K8S_WAIT_RETRY);
    UT_TEXT(t.w->why, "watch: closed");
    UT_CHECK(!t.w->up && t.w->wait_ms <= 100);
    tk_reconnect(&t);
    UT_CHECK(strstr(tk_request(&t), "resourceVersion=6&"));
    k8s_watch_feed(t.w, S("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"));
    k8s_watch_due(t.w);
    UT_TEXT(t.w->why, "watch: silent beyond its end");
    tk_reconnect(&t);
    k8s_watch_due(t.w);
    UT_TEXT(t.w->why, "no response within 15 s");
    tk_reconnect(&t);
    for (int i = 0; i < 3; i++) {
        tk_feed(&t, "200 OK", "", "", 9);                /* three empty watches are taken, the fourth is a fault */
        UT_INT(t.w->state, K8S_WAIT_WATCH_HEAD);
    }
    tk_feed(&t, "200 OK", "", "", 9);
    UT_TEXT(t.w->why, "the server ends watches at once");
    tk_reconnect(&t);
    k8s_watch_feed(t.w, S("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: y\r\n\r\nextra"));
    UT_INT(t.w->state, K8S_WAIT_RETRY);                  /* bytes that answer nothing */
    tk_fini(&t);
}

/* Deadlines and ends in every state of a watch: a reason, and a back-off or a new connection. */
UT(k8s_deadlines_and_ends_of_every_state)
{
    static const struct { int line; const char *in; uint64_t wait_ms; bool ended; const char *why; enum k8s_state state; } rows[] = {
        UT_ROW("", 0, false, "no response within 15 s", K8S_WAIT_RETRY),
        UT_ROW("", 0, true, "list: gone", K8S_WAIT_RETRY),
        UT_ROW("HTTP/1.1 101 Switching Protocols\r\n\r\n", 0, true, "101 to a plain GET", K8S_WAIT_RETRY),
        UT_ROW("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", 0, false, "list: nothing for 15 s", K8S_WAIT_RETRY),
        UT_ROW("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", 0, true, "list: gone", K8S_WAIT_RETRY),
        UT_ROW("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{\"met", K8S_PAGE_MS, false, "list: nothing for 15 s", K8S_WAIT_RETRY),
        UT_ROW("HTTP/1.1 403 Forbidden\r\nContent-Length: 100\r\n\r\n{\"kind\"", 0, false, "list: 403", K8S_WAIT_RETRY),
        UT_ROW("HTTP/1.1 403 Forbidden\r\nContent-Length: 100\r\n\r\n{\"kind\"", 0, true, "list: 403", K8S_WAIT_RETRY),
    };
    UT_EACH(r, rows) {
        struct tk_bed t;

        tk_init(&t);
        tk_request(&t);
        k8s_watch_feed(t.w, ut_str(r->in));
        t.k.now_ms += r->wait_ms;
        if (r->ended) k8s_watch_ended(t.w, "gone");
        else k8s_watch_due(t.w);
        if (strncmp(t.w->why, r->why, strlen(r->why))) UT_TEXT(t.w->why, r->why);
        UT_INT(t.w->state, r->state);
        UT_CHECK(t.w->drop && t.w->wait_ms > 0);
        if (t.w->state == K8S_WAIT_RETRY) {                  /* what comes of the old connection changes nothing */
            uint64_t wait_ms = t.w->wait_ms;

            k8s_watch_ended(t.w, "late");
            UT_CHECK(t.w->state == K8S_WAIT_RETRY && t.w->wait_ms == wait_ms && !strstr(t.w->why, "late"));
        }
        tk_reconnect(&t);
        tk_feed(&t, "200 OK", "", TK_LIST("5", "", TK_SVC("one", "1")), 0);
        UT_TEXT(tk_told, "+a/one ");
        tk_fini(&t);
    }
}

/* A page may trickle, but not for ever; a connection that does not come about is given up. */
UT(k8s_pages_and_connections_have_an_end)
{
    struct tk_bed t;

    tk_init(&t);
    k8s_watch_feed(t.w, S("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"));
    for (int i = 0; i < 3 && !t.w->drop; i++) {
        t.k.now_ms += K8S_PAGE_MS / 2;
        k8s_watch_feed(t.w, S(" "));
    }
    UT_CHECK(strstr(t.w->why, "list: a page that takes more than "));
    UT_INT(t.w->state, K8S_WAIT_RETRY);
    t.w->drop = false;
    k8s_watch_due(t.w);
    UT_INT(t.w->state, K8S_WAIT_LINK);
    k8s_watch_due(t.w);
    UT_CHECK(strstr(t.w->why, "no connection within "));
    t.w->drop = false;
    k8s_watch_due(t.w);
    k8s_watch_ended(t.w, "refused");
    UT_TEXT(t.w->why, "connect: refused");
    UT_INT(t.w->state, K8S_WAIT_RETRY);
    tk_fini(&t);
}

UT(k8s_objects_are_limited)
{
    struct tk_bed t;
    static char text[K8S_OBJECT_BYTES_MAX + 4096];
    size_t n;

    for (int over = 0; over < 2; over++) {
        tk_init(&t);
        n = (size_t)snprintf(text, sizeof text, "HTTP/1.1 200 OK\r\n\r\n{\"metadata\":{\"resourceVersion\":\"1\"},\"items\":[{\"metadata\":"
                             "{\"name\":\"x\",\"namespace\":\"a\",\"resourceVersion\":\"1\"},\"status\":\"");
        memset(text + n, 'x', K8S_OBJECT_BYTES_MAX + 200);
        n += K8S_OBJECT_BYTES_MAX - 84 + (over ? 64 : 0);
        n += (size_t)sprintf(text + n, "\"}]}");
        for (size_t at = 0; at < n && !t.w->drop; at += 4096) k8s_watch_feed(t.w, str_of(text + at, n - at < 4096 ? n - at : 4096));
        if (!over) k8s_watch_ended(t.w, "closed");
        UT_TEXT(t.w->why, over ? "list: an object over the limit" : "");
        UT_TEXT(tk_told, over ? "" : "+a/x ");
        tk_fini(&t);
    }
}

UT(k8s_renders_state_and_metrics)
{
    struct tk_bed t;
    struct str_builder b = str_growing();

    tk_init(&t);
    tk_feed(&t, "403 Forbidden", "", TK_STATUS("403"), 0);
    k8s_render_state(&t.k, &b);
    str_put_c(&b, 0);
    UT_TEXT((char *)b.p, "Ingress: not listed yet\nIngressClass: not listed yet\nService: not listed yet: list: 403 no\nEndpointSlice: not listed yet\n");
    b.n = 0;
    k8s_render_metrics(&t.k, &b);
    str_put_c(&b, 0);
    UT_CHECK(strstr((char *)b.p, "ramjet_kube_watch_up{kind=\"Service\"} 0\n"));
    UT_CHECK(strstr((char *)b.p, "ramjet_kube_relists_total{kind=\"EndpointSlice\"} 0\n"));
    str_free(&b);
    tk_fini(&t);
}

/* Any byte of a whole exchange replaced by another: never a crash, never a read out of bounds, always a state that goes on. */
UT(k8s_survives_damaged_responses)
{
    static char text[16384];
    size_t n = tk_response(text, sizeof text, "200 OK", "", TK_LIST("10", "", TK_SVC("one", "3") "," TK_SVC("two", "4")), 50);
    uint32_t seed = 1;

    n += tk_response(text + n, sizeof text - n, "200 OK", "", TK_EVENT("ADDED", TK_SVC("three", "12")) TK_EVENT("ERROR", TK_STATUS("500")), 40);
    for (size_t at = 0; at < n; at++) {
        struct tk_bed t;
        char was = text[at];

        tk_init(&t);
        seed = seed * 1664525 + 1013904223;
        text[at] = (char)(seed >> 24);
        for (size_t k = 0; k < n && !t.w->drop; k += 100) k8s_watch_feed(t.w, str_of(ut_guard(0, text + k, n - k < 100 ? n - k : 100), n - k < 100 ? n - k : 100));
        if (!t.w->drop) k8s_watch_ended(t.w, "closed");
        UT_CHECK(t.w->drop);
        text[at] = was;
        tk_fini(&t);
    }
}
