/* What the choice of an endpoint costs.
 *
 *   gcc -std=gnu11 -O2 -o build/picker bench/picker.c -lbearssl -linih -lpthread && build/picker
 *
 * Prints nanoseconds of CPU per choice for backends of 3, 100 and 5,000 endpoints, by balancer: a JSON object per line. */
#define RAMJET_NO_MAIN 1
#include "../ramjet.c"

static struct rt_backend *picker_backend(uint32_t n, enum rt_balance balance)
{
    struct rt_backend *b = calloc(1, sizeof *b + n * sizeof b->ep[0]);

    if (!b) exit(1);
    b->name = S("b");
    b->hash = 77;
    b->balance = (uint8_t)balance;
    b->max_fails = 1;
    b->fail_ms = 10000;
    b->n = n;
    for (uint32_t i = 0; i < n; i++) {
        b->ep[i].weight = 1;
        b->ep[i].addr = (struct net_addr){.family = AF_INET, .ip = {[10] = 0xff, [11] = 0xff, 127, 0, (uint8_t)(i >> 8), (uint8_t)i}, .port = 9000};
        b->ep[i].hash = str_hash(str_of(&i, sizeof i));
    }
    return b;
}

static double picker_ns(struct io_loop *loop, uint32_t n, enum rt_balance balance)
{
    struct up up = {0};
    struct rt_backend *b = picker_backend(n, balance);
    struct up_group *g;
    uint64_t times = 0, before, spent;
    volatile int sink = 0;

    up_init(&up, loop);
    up.random = 1;
    g = up_group_for(&up, b, 1);
    before = sys_clock_ns(CLOCK_PROCESS_CPUTIME_ID);
    do {
        for (int k = 0; k < 1000; k++, times++) sink += up_pick(&up, g, b, (struct up_choice){.hash = times * 0x9e3779b97f4a7c15u});
        spent = sys_clock_ns(CLOCK_PROCESS_CPUTIME_ID) - before;
    } while (spent < 100000000);
    (void)sink;
    up_fini(&up);
    free(b);
    return (double)spent / (double)times;
}

int main(void)
{
    static const struct { const char *name; enum rt_balance balance; } rows[] = {
        {"round_robin", RT_ROUND_ROBIN}, {"least_conn", RT_LEAST_CONN}, {"random", RT_RANDOM}, {"ip_hash", RT_IP_HASH}, {"ewma", RT_EWMA}, {"hash", RT_HASH},
    };
    static const uint32_t sizes[] = {3, 100, 5000};
    struct io_loop loop;

    if (io_loop_open(&loop, &ep_ops, 0) < 0) return 1;
    for (size_t i = 0; i < RJ_COUNT(rows); i++)
        for (size_t k = 0; k < RJ_COUNT(sizes); k++)
            printf("{\"name\": \"choice of an endpoint, %s, %u\", \"value\": %.1f, \"unit\": \"ns\"}\n", rows[i].name, sizes[k], picker_ns(&loop, sizes[k], rows[i].balance));
    io_loop_close(&loop);
    return 0;
}
