/* What reading a head costs: nanoseconds and reference cycles per head, without a kernel.
 *
 *   gcc -std=gnu11 -O2 -o build/bench/parser bench/parser.c -lbearssl -linih -lpthread && build/bench/parser [KIND [HEADS]]
 *
 * Without arguments all kinds are timed. With KIND and HEADS that many are read and nothing is printed: bench/guard counts their instructions so.
 * `browser` is a request of 703 octets with nine fields, the usual sample of parser benchmarks. */
#define RAMJET_NO_MAIN 1
#include "../ramjet.c"

static const struct h1_limits parser_limits = {.line_bytes = 8192, .head_bytes = 32768, .fields = 100};

static const char parser_small[] = "GET /128 HTTP/1.1\r\nHost: bench.test\r\nUser-Agent: bench/1.0 (closed loop)\r\nAccept: */*\r\nAccept-Language: en\r\n\r\n";
static const char parser_browser[] =
    "GET /wp-content/uploads/2010/03/hello-kitty-darth-vader-pink.jpg HTTP/1.1\r\nHost: www.kittyhell.com\r\n"
    "User-Agent: Mozilla/5.0 (Macintosh; U; Intel Mac OS X 10.6; ja-JP-mac; rv:1.9.2.3) Gecko/20100401 Firefox/3.6.3 Pathtraq/0.9\r\n"
    "Accept: text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8\r\nAccept-Language: ja,en-us;q=0.7,en;q=0.3\r\n"
    "Accept-Encoding: gzip,deflate\r\nAccept-Charset: Shift_JIS,utf-8;q=0.7,*;q=0.7\r\nKeep-Alive: 115\r\nConnection: keep-alive\r\n"
    "Cookie: wp_ozh_wsa_visits=2; wp_ozh_wsa_visit_lasttime=xxxxxxxxxx; __utma=xxxxxxxxx.xxxxxxxxxx.xxxxxxxxxx.xxxxxxxxxx.xxxxxxxxxx.x; "
    "__utmz=xxxxxxxxx.xxxxxxxxxx.x.x.utmccn=(referral)|utmcsr=reader.livedoor.com|utmcct=/reader/|utmcmd=referral\r\n\r\n";
static const char parser_response[] = "HTTP/1.1 200 OK\r\nServer: up\r\nDate: Mon, 30 Nov 2026 12:00:00 GMT\r\nContent-Type: application/octet-stream\r\nContent-Length: 128\r\n\r\n";

struct parser_kind {
    const char *name, *bytes;
    size_t n;
    bool request;
};

static const struct parser_kind parser_kinds[] = {
    {"small", parser_small, sizeof parser_small - 1, true},
    {"browser", parser_browser, sizeof parser_browser - 1, true},
    {"response", parser_response, sizeof parser_response - 1, false},
};

static void parser_run(const struct parser_kind *k, uint64_t heads)
{
    static struct h1_head head;

    for (uint64_t i = 0; i < heads; i++) {
        h1_head_init(&head, k->request, 0);
        int rc = k->request ? h1_request_feed(&head, (const uint8_t *)k->bytes, k->n, &parser_limits)
                            : h1_response_feed(&head, (const uint8_t *)k->bytes, k->n, &parser_limits);
        if (rc != (int)k->n) {
            printf("%s: %d, expected %zu\n", k->name, rc, k->n);
            exit(1);
        }
        __asm__ volatile("" ::: "memory");
    }
}

static void parser_time(const struct parser_kind *k)
{
    enum { HEADS = 200000, ROUNDS = 9 };
    uint64_t best_ns = UINT64_MAX, best_cycles = UINT64_MAX;

    for (int round = 0; round < ROUNDS; round++) {
        uint64_t start = sys_clock_ns(CLOCK_MONOTONIC), cycles = 0;
#if defined(__x86_64__)
        cycles = __builtin_ia32_rdtsc();
        parser_run(k, HEADS);
        cycles = __builtin_ia32_rdtsc() - cycles;
#else
        parser_run(k, HEADS);
#endif
        uint64_t ns = sys_clock_ns(CLOCK_MONOTONIC) - start;
        if (ns < best_ns) best_ns = ns;
        if (cycles < best_cycles) best_cycles = cycles;
    }
    printf("{\"name\": \"parser, %s head of %zu octets\", \"value\": %.1f, \"unit\": \"ns\", \"reference_cycles\": %.0f, \"mib_per_second\": %.0f}\n", k->name, k->n,
           (double)best_ns / HEADS, (double)best_cycles / HEADS, (double)k->n * HEADS * 1e9 / (double)best_ns / 1048576);
}

int main(int argc, char **argv)
{
    for (size_t i = 0; i < RJ_COUNT(parser_kinds); i++)
        if (argc == 1) parser_time(&parser_kinds[i]);
        else if (argc == 2) puts(parser_kinds[i].name);
        else if (!strcmp(argv[1], parser_kinds[i].name)) parser_run(&parser_kinds[i], strtoull(argv[2], NULL, 10));
    return 0;
}
