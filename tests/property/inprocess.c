/* Plays the streams of the driver against the proxy in this process, on the simulated engine of tests/unit/sim.h: no kernel, a virtual clock, receives
 * and sends of any size and in any order. One client at a time; upstream connections are kept from stream to stream.
 *
 *   inprocess [-a]
 *
 * stdin and stdout are those of driver.c, without the ports. */
#define RAMJET_NO_MAIN 1
#define RJ_FAULTS 1
#include "../../ramjet.c"

#include "../unit/unit.h"

#include "../unit/sim.h"

#include "transcript.h"

enum { TURNS_MAX = 20000, QUIET = 4 };

struct server {
    struct sim_peer peer;
    struct server *next;
    struct bytes in;
    struct sim_bytes out;
    bool begun, gone;                                                /* begun: a head was read whose body is not whole */
};

static struct {
    struct sim sim;
    struct wrk *w;
    struct sim_peer client;
    struct stream *s;
    struct server *servers;
    bool fin;
    struct obj_store store;
    struct rc rc;
    struct rt_changes changes;
    struct cfg *cfg;
} x;

static void fail(const char *why)
{
    printf("seed %llu: %s\n", x.s ? (unsigned long long)x.s->seed : 0, why);
    fprintf(stderr, "inprocess: seed %llu: %s\n", x.s ? (unsigned long long)x.s->seed : 0, why);
    exit(1);
}

/* ---- upstreams ---- */

static void server_bytes(struct sim_peer *peer, const uint8_t *p, size_t n)
{
    struct server *u = RJ_CONTAINER(peer, struct server, peer);

    put(&u->in, p, n);
    while (u->in.n) {
        struct bytes body = {0};
        struct head h;
        size_t used = 0, k;
        char answer[200];
        int rc = read_head(&u->in, &h, &used);

        u->begun = rc > 0;
        if (rc > 0 && h.codings) rc = read_chunked(&u->in, used, &body, &used);
        else if (rc > 0 && u->in.n - used < h.length) rc = 0;
        else if (rc > 0) put(&body, u->in.p + used, h.length), used += h.length;
        if (rc < 0) put_text(&x.s->seen, "X"), put(&x.s->seen, u->in.p, u->in.n), put_text(&x.s->seen, "\n"), drop(&u->in, u->in.n), u->begun = false;
        if (rc > 0) {
            k = take_request(x.s, &h, body.p, body.n, answer);
            sim_put(&u->out, answer, k);
            drop(&u->in, used);
            u->begun = false;
        }
        free(body.p);
        if (rc <= 0) return;
    }
}

static void server_fin(struct sim_peer *peer) { (void)peer; }

static void server_gone(struct sim_peer *peer)
{
    struct server *u = RJ_CONTAINER(peer, struct server, peer);

    if (u->begun && x.s) x.s->partial = true;
    u->gone = true;
}

static struct sim_peer *server_new(struct sim *sim, uint16_t port, int *res)
{
    struct server *u = calloc(1, sizeof *u);

    (void)sim;
    (void)port;
    if (!u) abort();
    *res = 0;
    u->peer = (struct sim_peer){.on_bytes = server_bytes, .on_fin = server_fin, .on_gone = server_gone, .name = "upstream"};
    u->next = x.servers;
    x.servers = u;
    return &u->peer;
}

/* Moves answers to the proxy, and forgets connections that are gone. */
static void servers_turn(void)
{
    for (struct server **at = &x.servers, *u; (u = *at);) {
        if (u->gone) {
            *at = u->next;
            free(u->in.p);
            sim_bytes_free(&u->out);
            free(u);
            continue;
        }
        if (u->peer.k && u->out.at < u->out.n && sim_random(&x.sim, 3)) {
            sim_put(&u->peer.k->rx, u->out.p + u->out.at, u->out.n - u->out.at);
            u->out.at = u->out.n = 0;
        }
        at = &u->next;
    }
}

/* ---- the client ---- */

static void client_bytes(struct sim_peer *peer, const uint8_t *p, size_t n)
{
    (void)peer;
    put(&x.s->in, p, n);
    stream_answers(x.s);
}

static void client_fin(struct sim_peer *peer)
{
    (void)peer;
    if (!x.s->over) stream_ended(x.s, ".");
}

static void client_gone(struct sim_peer *peer)
{
    client_fin(peer);
    x.fin = true;
}

/* The next piece when the one before was taken, or the end. */
static void client_turn(void)
{
    struct stream *s = x.s;
    struct sim_sock *k = x.client.k;

    if (!k || k->rx_eof || k->rx.at < k->rx.n) return;
    if (s->next < s->pieces) {
        sim_put(&k->rx, s->data + s->at, s->piece[s->next]);
        s->at += s->piece[s->next++];
    }
    if (s->next == s->pieces && (s->fin_at_once || s->over || (!s->closing && s->answered >= s->await))) k->rx_eof = true;
}

static void on_turn(struct sim *sim)
{
    (void)sim;
    client_turn();
    servers_turn();
}

static void on_gone(struct wrk *w) { (void)w; }

static const struct px_transport transport = {.name = "sim", .scheme = "http", .raw = false, .feed = tp_plain_feed, .send = tp_plain_send};

static void turn(void)
{
    for (struct map_link *l = x.w->px.all.next; l != &x.w->px.all; l = l->next) RJ_CONTAINER(l, struct px_conn, link)->transport = &transport;
    io_turn(&x.w->loop, 10);
    if (x.sim.failed) fail(x.sim.why);
}

/* Whether an upstream holds half a request, or a whole one is still on its way. */
static bool is_quiet(void)
{
    for (struct server *u = x.servers; u; u = u->next)
        if (!u->gone && (u->begun || u->out.at < u->out.n)) return false;
    return x.w->px.conns.used == 0 && !x.sim.moved;
}

static void play(struct stream *s)
{
    static const struct net_addr peer = {.family = AF_INET, .ip = {[10] = 0xff, [11] = 0xff, 192, 0, 2, 1}, .port = 40000};
    uint32_t turns = 0, quiet = 0;

    x.s = s;
    x.fin = false;
    x.sim.seed = s->seed * 0x9e3779b97f4a7c15u + 1;
    for (int i = 0; i < 4; i++) sim_random(&x.sim, 2);
    x.sim.delay = sim_random(&x.sim, 7);
    x.sim.all_big = sim_chance(&x.sim, 2);
    x.client = (struct sim_peer){.on_bytes = client_bytes, .on_fin = client_fin, .on_gone = client_gone, .name = "client"};
    x.sim.next_peer = &x.client;
    if (px_serve(x.w, sys_socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), &peer, 80) < 0) fail("px_serve");
    while (quiet < QUIET && turns++ < TURNS_MAX) {
        turn();
        quiet = is_quiet() ? quiet + 1 : 0;
    }
    if (!s->over) stream_ended(s, "T");
    if (x.client.k) {                          /* the connection must not speak to a stream that is gone */
        x.client.k->rx_reset = true;
        for (turns = 0; !x.fin && turns < TURNS_MAX; turns++) turn();
    }
}

/* ---- the proxy ---- */

static void open_proxy(void)
{
    static const char text[] = "[ramjet]\nadmin = off\ndisable-access-log = true\nlarge-client-header-buffers = 4 8k\nmax-request-headers = 100\nproxy-body-size = 1m\n"
                               "client-header-timeout = 1h\nclient-body-timeout = 1h\nkeep-alive = 1h\nsend-timeout = 1h\nproxy-connect-timeout = 1h\nproxy-read-timeout = 1h\nproxy-send-timeout = 1h\n"
                               "upstream-keepalive-timeout = 1h\n[backend u]\nendpoint = 10.0.0.1:8001\n[route host]\nhost = a.test\npath = /\ntype = prefix\nbackend = u\n"
                               "[route anywhere]\npath = /any\ntype = prefix\nbackend = u\n";
    struct cfg_input in = {.file_name = "edge.ini", .text = str_of(text, sizeof text - 1)};
    struct cfg_report report = {.text = str_growing()};

    x.cfg = cfg_load(&in, &report);
    if (!x.cfg) {
        fprintf(stderr, "%.*s", STR_ARG(str_built(&report.text)));
        exit(1);
    }
    str_free(&report.text);
    rj.rt.workers = 1;
    rj.log_level = LOG_ERROR;
    rc_init(&x.rc, &x.store, x.cfg);
    rc_set_config(&x.rc, x.cfg);
    rc_compile(&x.rc, &x.changes);
    rt_publish(&x.changes, x.cfg, 1, 1);
    x.w = mem_need(sizeof *x.w);
    x.sim = (struct sim){.seed = 1, .lp = &x.w->loop, .on_turn = on_turn, .on_connect = server_new};
    x.w->thread.log.cap = 1 << 16;
    x.w->loop.sim = &x.sim;
    rj_me = &x.w->thread;
    rj.threads = mem_need(sizeof *rj.threads);
    rj.threads[0] = &x.w->thread;
    rj.thread_count = 1;
    io_loop_open(&x.w->loop, &sim_ops, 0);
    up_init(&x.w->up, &x.w->loop);
    px_init(x.w, on_gone, sh_relieve);
}

int main(int argc, char **argv)
{
    uint64_t streams = 0, wrong = 0, start = sys_clock_ns(CLOCK_MONOTONIC);
    bool all = argc > 1 && strcmp(argv[1], "-a") == 0;
    struct stream *s;

    open_proxy();
    while ((s = stream_new()) != NULL) {
        bool right;

        play(s);
        streams++;
        right = stream_is_right(s);
        wrong += !right;
        if (!right || all) stream_tell(s);
        x.s = NULL;
        stream_drop(s);
    }
    fprintf(stderr, "{\"streams\": %llu, \"wrong\": %llu, \"orphans\": 0, \"forwarded\": %llu, \"seconds\": %.1f}\n", (unsigned long long)streams,
            (unsigned long long)wrong, (unsigned long long)seqs.n, (double)(sys_clock_ns(CLOCK_MONOTONIC) - start) / 1e9);
    return 0;
}
