/* adm_: texts as pure rows; then requests byte by byte over a real connection. What it asks of ctl_ and wrk_ is tested with the binary. */

#include "faults.h"

UT(adm_label_rows)
{
    static const struct { int line; const char *in, *out; } rows[] = {
        UT_ROW("", ""),
        UT_ROW("shop/web", "shop/web"),
        UT_ROW("a\"b", "a\\\"b"),
        UT_ROW("a\\", "a\\\\"),
        UT_ROW("a\nb", "a\\nb"),
    };

    UT_EACH(r, rows) {
        uint8_t text[64];
        struct str_builder b = str_fixed(text, sizeof text);

        adm_put_label(&b, ut_str(r->in));
        UT_SLICE(str_built(&b), r->out);
    }
}

UT(adm_seconds_rows)
{
    static const struct { int line; uint64_t us; const char *out; } rows[] = {
        UT_ROW(0, "0"), UT_ROW(500, "0.0005"), UT_ROW(1000000, "1"), UT_ROW(2500000, "2.5"), UT_ROW(1, "0.000001"), UT_ROW(100000000000, "100000"),
    };

    UT_EACH(r, rows) {
        uint8_t text[64];
        struct str_builder b = str_fixed(text, sizeof text);

        adm_put_us(&b, r->us);
        UT_SLICE(str_built(&b), r->out);
    }
}

UT(adm_rollback_body_rows)
{
    static const struct { int line; const char *text; bool good; uint64_t generation; } rows[] = {
        UT_ROW("{\"generation\":7}", true, 7),
        UT_ROW(" { \"generation\"\t:\r\n 12 } \n", true, 12),
        UT_ROW("{\"generation\":0}", true, 0),
        UT_ROW("{\"generation\":18446744073709551615}", true, UINT64_MAX),
        UT_ROW("{\"generation\":18446744073709551616}", false, 0),
        UT_ROW("{\"generation\":07}", false, 0),
        UT_ROW("{\"generation\":-1}", false, 0),
        UT_ROW("{\"generation\":1.5}", false, 0),
        UT_ROW("{\"generation\":1e1}", false, 0),
        UT_ROW("{\"generation\":\"7\"}", false, 0),
        UT_ROW("{\"generation\":7,\"x\":1}", false, 0),
        UT_ROW("{\"generation\":7}x", false, 0),
        UT_ROW("{\"generation\":}", false, 0),
        UT_ROW("{\"generation\"}", false, 0),
        UT_ROW("{}", false, 0),
        UT_ROW("7", false, 0),
        UT_ROW("", false, 0),
    };

    UT_EACH(r, rows) {
        uint64_t v = 0;

        UT_INT(adm_read_generation(ut_str(r->text), &v), r->good);
        if (r->good) UT_INT(v, r->generation);
        for (size_t k = 0; r->good && k < strlen(r->text) - 3; k++) UT_CHECK(!adm_read_generation(ut_bytes(r->text, k), &v));
    }
}

UT(adm_paths_are_sorted_and_found)
{
    for (size_t i = 1; i < RJ_COUNT(adm_paths); i++) UT_CHECK(strcmp(adm_paths[i - 1].path, adm_paths[i].path) < 0);
    for (size_t i = 0; i < RJ_COUNT(adm_paths); i++) UT_CHECK(adm_find_path(str_z(adm_paths[i].path)) == &adm_paths[i]);
    UT_CHECK(!adm_find_path(S("/healthz/")));
    UT_CHECK(!adm_find_path(S("/HEALTHZ")));
    UT_CHECK(!adm_find_path(S("")));
}

/* One worker's numbers: every family once, buckets that grow to the count. */
UT(adm_metrics_text)
{
    static struct rj_thread thread;
    struct rj_thread *threads[] = {&thread}, *me = rj_me;
    struct rj_thread **old = rj.threads;
    int old_count = rj.thread_count;
    static const char *const wanted[] = {
        "# HELP ramjet_requests_total ", "# TYPE ramjet_requests_total counter\n",
        "ramjet_requests_total{route=\"shop\\\"x\",code=\"2xx\"} 2\n", "ramjet_requests_total{route=\"shop\\\"x\",code=\"5xx\"} 1\n",
        "ramjet_request_duration_seconds_bucket{route=\"shop\\\"x\",le=\"0.0005\"} 1\n",
        "ramjet_request_duration_seconds_bucket{route=\"shop\\\"x\",le=\"1\"} 2\n",
        "ramjet_request_duration_seconds_bucket{route=\"shop\\\"x\",le=\"+Inf\"} 3\n",
        "ramjet_request_duration_seconds_sum{route=\"shop\\\"x\"} 7.5005\n", "ramjet_request_duration_seconds_count{route=\"shop\\\"x\"} 3\n",
        "ramjet_connections_accepted_total 4\n", "ramjet_connections{side=\"client\",state=\"idle\"} 3\n",
        "ramjet_refused_total{reason=\"bad_request\"} 0\n", "ramjet_worker_connections{worker=\"0\"} 3\n",
    };
    struct str_builder b = str_growing();
    uint32_t id;

    rj.threads = threads;
    rj.thread_count = 1;
    rj_me = &thread;
    id = mtr_route_id(S("shop\"x"));
    mtr_request(id, 200, 500);
    mtr_request(id, 204, 500000);
    mtr_request(id, 502, 7000000);
    mtr_add(MTR_ACCEPTED, 4);
    mtr_move(MTR_CLIENT_IDLE, 5);
    mtr_move(MTR_CLIENT_IDLE, -2);
    adm_put_counters(&b);
    adm_put_routes(&b);
    adm_put_workers(&b);
    str_put_c(&b, 0);
    for (size_t i = 0; i < RJ_COUNT(wanted); i++)
        if (!strstr((char *)b.p, wanted[i])) UT_TEXT((char *)b.p, wanted[i]);
    for (char *at = (char *)b.p; (at = strstr(at, "# TYPE ")); at++) {
        char line[128];

        snprintf(line, sizeof line, "%.*s", (int)(strchr(at, '\n') - at), at);
        UT_CHECK(!strstr(at + 1, line));                 /* once only */
    }
    str_free(&b);
    mem_free(atomic_load_explicit(&thread.mtr.route[id], memory_order_relaxed));
    rj_me = me;
    rj.threads = old;
    rj.thread_count = old_count;
}

/* ---- over a connection ---- */

struct adm_bench {
    struct io_loop loop;
    struct adm adm;
    struct cfg_listener listener;
};

static void adm_bench_open(struct adm_bench *t, const char *token_file)
{
    struct sockaddr_in sa;
    socklen_t n = sizeof sa;

    memset(t, 0, sizeof *t);
    UT_CHECK(io_loop_open(&t->loop, &ep_ops, 0) == 0);
    adm_init(&t->adm, &t->loop, str_z(token_file));
    str_to_ip(S("127.0.0.1"), &t->listener.addr);
    UT_CHECK(adm_listen(&t->adm, &t->listener) == 0);
    getsockname(t->adm.listener[0].sock.fd, (struct sockaddr *)&sa, &n);
    t->listener.addr.port = ntohs(sa.sin_port);
}

static void adm_bench_close(struct adm_bench *t)
{
    adm_close(&t->adm);
    for (int i = 0; i < 5; i++) io_turn(&t->loop, 1);
    UT_INT(t->adm.nconns, 0);
    UT_INT(t->loop.clk.queued, 0);
    io_loop_close(&t->loop);
}

static int adm_bench_connect(struct adm_bench *t)
{
    struct sockaddr_in6 sa;
    socklen_t n = str_to_sockaddr(&t->listener.addr, &sa);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    UT_CHECK(connect(fd, (struct sockaddr *)&sa, n) == 0);
    return fd;
}

/* Turns until the peer has closed or until is in out; returns bytes read. */
static size_t adm_bench_read(struct adm_bench *t, int fd, char *out, size_t size, const char *until)
{
    uint64_t end = sys_clock_ns(CLOCK_MONOTONIC) + 3000000000u;
    size_t at = 0;

    out[0] = 0;
    while (sys_clock_ns(CLOCK_MONOTONIC) < end && at < size - 1) {
        ssize_t n;

        io_turn(&t->loop, 1);
        n = recv(fd, out + at, size - 1 - at, MSG_DONTWAIT);
        if (n == 0) return at;
        if (n < 0) continue;
        at += (size_t)n;
        out[at] = 0;
        if (until && strstr(out, until)) return at;
    }
    UT_CHECK(!"an answer in time");
    return at;
}

static const struct { int line; const char *request, *status, *end; } adm_requests[] = {
    UT_ROW("GET /healthz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", "HTTP/1.1 200 OK\r\n", "\r\n\r\nok\n"),
    UT_ROW("HEAD /healthz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", "HTTP/1.1 200 OK\r\n", "Content-Length: 3\r\n"),
    UT_ROW("GET /healthz?x=1 HTTP/1.0\r\n\r\n", "HTTP/1.1 200 OK\r\n", "\r\n\r\nok\n"),
    UT_ROW("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", "HTTP/1.1 200 OK\r\n", "</html>\n"),
    UT_ROW("GET /nothing HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", "HTTP/1.1 404 Not Found\r\n", "\r\n\r\n404 Not Found\n"),
    UT_ROW("PUT /healthz HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 2\r\n\r\nhi", "HTTP/1.1 405 Method Not Allowed\r\n", "Allow: GET, HEAD\r\n"),
    UT_ROW("GET /admin/rollback HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", "HTTP/1.1 405 Method Not Allowed\r\n", "Allow: DELETE, POST\r\n"),
    UT_ROW("POST /admin/rollback HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 16\r\n\r\n{\"generation\":1}", "HTTP/1.1 401 ", "WWW-Authenticate: Bearer\r\n"),
    UT_ROW("POST /admin/rollback HTTP/1.1\r\nHost: a\r\nConnection: close\r\nAuthorization: Bearer sesam\r\nContent-Length: 0\r\n\r\n", "HTTP/1.1 401 ", "401 "),
    UT_ROW("POST /admin/rollback HTTP/1.1\r\nHost: a\r\nConnection: close\r\nAuthorization: Basic sesame\r\nContent-Length: 0\r\n\r\n", "HTTP/1.1 401 ", "401 "),
    UT_ROW("POST /admin/rollback HTTP/1.1\r\nHost: a\r\nConnection: close\r\nAuthorization: Bearer sesame\r\nAuthorization: Bearer sesame\r\nContent-Length: 0\r\n\r\n",
           "HTTP/1.1 401 ", "401 "),
    UT_ROW("DELETE /admin/rollback HTTP/1.1\r\nHost: a\r\nConnection: close\r\nAuthorization: Bearer\r\n\r\n", "HTTP/1.1 401 ", "401 "),
    UT_ROW("POST /admin/rollback HTTP/1.1\r\nHost: a\r\nConnection: close\r\nAuthorization: bearer sesame\r\nContent-Length: 2\r\n\r\n{}", "HTTP/1.1 400 ", "400 "),
    UT_ROW("POST /admin/rollback HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "HTTP/1.1 411 ", "Connection: close\r\n"),
    UT_ROW("POST /admin/rollback HTTP/1.1\r\nHost: a\r\nContent-Length: 4097\r\n\r\n", "HTTP/1.1 413 ", "Connection: close\r\n"),
    UT_ROW("POST /admin/rollback HTTP/1.1\r\nHost: a\r\nExpect: a-pony\r\nContent-Length: 1\r\n\r\n", "HTTP/1.1 417 ", "Connection: close\r\n"),
    UT_ROW("nonsense\r\n\r\n", "HTTP/1.1 400 Bad Request\r\n", "Connection: close\r\n"),
    UT_ROW("GET /healthz HTTP/1.1\r\n\r\n", "HTTP/1.1 400 Bad Request\r\n", "Connection: close\r\n"),
};

static void adm_token_file(char path[64])
{
    int fd;

    snprintf(path, 64, "/tmp/ramjet-unit-XXXXXX");
    fd = mkstemp(path);
    UT_CHECK(fd >= 0 && write(fd, "sesame\n", 7) == 7);
    close(fd);
}

UT(adm_request_rows_whole_and_byte_by_byte)
{
    static struct adm_bench t;
    static char got[16384];
    char token[64];

    adm_token_file(token);
    adm_bench_open(&t, token);
    UT_EACH(r, adm_requests) {
        for (int piecewise = 0; piecewise < 2; piecewise++) {
            int fd = adm_bench_connect(&t);
            size_t n = strlen(r->request);

            for (size_t k = 0; k < n; k += piecewise ? 1 : n) {
                UT_CHECK(send(fd, r->request + k, piecewise ? 1 : n, MSG_NOSIGNAL) > 0);
                if (piecewise) io_turn(&t.loop, 0);      /* a refusal may come before the last byte */
            }
            adm_bench_read(&t, fd, got, sizeof got, NULL);
            UT_CHECK(strncmp(got, r->status, strlen(r->status)) == 0 ? true : (UT_TEXT(got, r->status), false));
            UT_CHECK(strstr(got, r->end) ? true : (UT_TEXT(got, r->end), false));
            if (strncmp(r->request, "HEAD", 4) == 0) UT_CHECK(strcmp(got + strlen(got) - 4, "\r\n\r\n") == 0);
            close(fd);
        }
    }
    adm_bench_close(&t);
    unlink(token);
}

UT(adm_writes_need_a_token_file)
{
    static const char request[] = "DELETE /admin/rollback HTTP/1.1\r\nHost: a\r\nConnection: close\r\nAuthorization: Bearer x\r\n\r\n";
    static const char *const files[] = {"", "/nonexistent/token", "/dev/null"};
    static struct adm_bench t;
    static char got[4096];

    rj.log_level = LOG_ERROR;
    for (size_t i = 0; i < RJ_COUNT(files); i++) {
        int fd;

        adm_bench_open(&t, files[i]);
        fd = adm_bench_connect(&t);
        UT_CHECK(send(fd, request, sizeof request - 1, 0) > 0);
        adm_bench_read(&t, fd, got, sizeof got, NULL);
        UT_CHECK(strncmp(got, "HTTP/1.1 403 Forbidden\r\n", 24) == 0);
        close(fd);
        adm_bench_close(&t);
    }
}

/* Requests one after the other and two in one piece, on one connection. */
UT(adm_keep_alive_and_pipelining)
{
    static const char one[] = "GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n", two[] = "GET /healthz HTTP/1.1\r\nHost: a\r\n\r\nGET /x HTTP/1.1\r\nHost: a\r\n\r\n";
    static struct adm_bench t;
    static char got[4096];
    int fd;

    adm_bench_open(&t, "");
    fd = adm_bench_connect(&t);
    for (int i = 0; i < 3; i++) {
        UT_CHECK(send(fd, one, sizeof one - 1, 0) > 0);
        adm_bench_read(&t, fd, got, sizeof got, "ok\n");
    }
    UT_CHECK(send(fd, two, sizeof two - 1, 0) > 0);
    adm_bench_read(&t, fd, got, sizeof got, "404 Not Found\n");
    UT_CHECK(strstr(got, "ok\n") != NULL);
    close(fd);
    adm_bench_close(&t);
}

/* The connection that is idle longest makes room for a new one; when all are busy the new one is refused. */
UT(adm_connections_at_the_limit_and_above)
{
    static struct adm_bench t;
    static char got[4096];
    int fd[ADM_CONNS_MAX + 2];
    static const char part[] = "GET /healthz HT", rest[] = "TP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";

    adm_bench_open(&t, "");
    for (int i = 0; i < ADM_CONNS_MAX; i++) fd[i] = adm_bench_connect(&t);
    for (int i = 0; i < 5; i++) io_turn(&t.loop, 1);
    UT_INT(t.adm.nconns, ADM_CONNS_MAX);
    fd[ADM_CONNS_MAX] = adm_bench_connect(&t);
    UT_INT(adm_bench_read(&t, fd[0], got, sizeof got, NULL), 0);
    UT_INT(t.adm.nconns, ADM_CONNS_MAX);
    for (int i = 1; i <= ADM_CONNS_MAX; i++) UT_CHECK(send(fd[i], part, sizeof part - 1, 0) > 0);
    for (int i = 0; i < 5; i++) io_turn(&t.loop, 1);
    fd[ADM_CONNS_MAX + 1] = adm_bench_connect(&t);
    UT_INT(adm_bench_read(&t, fd[ADM_CONNS_MAX + 1], got, sizeof got, NULL), 0);
    for (int i = 1; i <= ADM_CONNS_MAX; i++) {
        UT_CHECK(send(fd[i], rest, sizeof rest - 1, 0) > 0);
        adm_bench_read(&t, fd[i], got, sizeof got, NULL);
        UT_CHECK(strstr(got, "\r\n\r\nok\n") != NULL);
    }
    for (int i = 0; i < ADM_CONNS_MAX + 2; i++) close(fd[i]);
    adm_bench_close(&t);
}

/* Whichever call is refused while a client is served: it is answered or cut, the next one is answered, and nothing is left open. */
UT(adm_serves_on_when_a_call_is_refused)
{
    static const enum ft_kind kinds[] = {FT_CALLS, FT_MEMORY};
    static const char request[] = "GET /healthz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    static struct adm_bench t;
    static char got[4096];

    rj.log_level = LOG_ERROR;
    adm_bench_open(&t, "");
    for (size_t i = 0; i < RJ_COUNT(kinds); i++) {
        for (long k = 1; k == 1 || ft.hit >= 0; k++) {
            int64_t before = adm_count_fds();
            int fd = adm_bench_connect(&t);
            ssize_t n = 0;

            UT_CHECK(send(fd, request, sizeof request - 1, MSG_NOSIGNAL) > 0);
            ft_arm(kinds[i], k);
            for (int turns = 0; turns < 50 && n <= 0; turns++) {
                io_turn(&t.loop, 1);
                n = recv(fd, got, sizeof got - 1, MSG_DONTWAIT);
                if (n == 0 || (n < 0 && errno != EAGAIN)) break;     /* cut */
            }
            ft_disarm();
            got[n > 0 ? n : 0] = 0;
            UT_CHECK(n <= 0 || strstr(got, "\r\n\r\nok\n") || (kinds[i] == FT_MEMORY && strncmp(got, "HTTP/1.1 503 ", 13) == 0));
            close(fd);
            fd = adm_bench_connect(&t);
            UT_CHECK(send(fd, request, sizeof request - 1, MSG_NOSIGNAL) > 0);
            adm_bench_read(&t, fd, got, sizeof got, NULL);
            if (!UT_CHECK(strstr(got, "\r\n\r\nok\n"))) printf("  %s %ld refused at %ld\n", i ? "allocation" : "call", ft.hit, k);
            close(fd);
            for (int turns = 0; turns < 5; turns++) io_turn(&t.loop, 1);
            UT_INT(adm_count_fds(), before);
            UT_INT(t.adm.nconns, 0);
            if (k > 40) break;
        }
    }
    adm_bench_close(&t);
    rj.log_level = LOG_INFO;
}
