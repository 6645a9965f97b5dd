/* ctl_: the loop without workers: files that change, signals, readiness, the way out. */

#include <dirent.h>

#include "faults.h"

struct ctl_ut {
    struct ctl ctl;
    int stderr_fd;                                                   /* while what is logged goes nowhere */
    struct cfg_input input;
    const char *argv[8];
    char dir[64], path[128];
};

static void ctl_ut_write(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");

    fputs(text, f);
    fclose(f);
}

/* Errors that a test provokes are not for the eyes of who runs it. */
static void ctl_ut_mute(struct ctl_ut *u, bool on)
{
    if (on) {
        int null = open("/dev/null", O_WRONLY);

        u->stderr_fd = dup(2);
        dup2(null, 2);
        close(null);
    } else {
        dup2(u->stderr_fd, 2);
        close(u->stderr_fd);
    }
}

#define CTL_UT_FILE(host) "[ramjet]\nadmin = off\naccess-log-path = /dev/null\n[backend s]\nendpoint = 10.0.0.1:80\n[route r]\nhost = " host "\nbackend = s\n"

static bool ctl_ut_open(struct ctl_ut *u, const char *text)
{
    struct cfg_report report = {.text = str_growing()};
    struct ctl_options o = {.workers = 1, .signals = true};
    struct log_err err = {""};
    struct cfg *cfg;
    bool ok;

    *u = (struct ctl_ut){.dir = "/tmp/ramjet-unit-XXXXXX"};
    rj.log_level = LOG_ERROR;
    if (!UT_CHECK(mkdtemp(u->dir) != NULL)) return false;
    snprintf(u->path, sizeof u->path, "%s/edge.ini", u->dir);
    ctl_ut_write(u->path, text);
    u->argv[0] = "--config";
    u->argv[1] = u->path;
    u->input = (struct cfg_input){.argc = 2, .argv = (char *const *)(uintptr_t)u->argv};
    cfg = cfg_load(&u->input, &report);
    str_free(&report.text);
    if (!UT_CHECK(cfg != NULL)) return false;
    o.cfg = cfg;
    o.input = &u->input;
    ok = ctl_open(&u->ctl, &o, &err) == 0;
    cfg_put(cfg);
    if (!UT_CHECK(ok)) printf("%s\n", err.text);
    return ok;
}

static void ctl_ut_close(struct ctl_ut *u)
{
    struct dirent *e;
    DIR *d;

    ctl_fini(&u->ctl);
    d = opendir(u->dir);
    while (d && (e = readdir(d))) {
        char path[512];

        snprintf(path, sizeof path, "%s/%s", u->dir, e->d_name);
        if (e->d_name[0] != '.' || strcmp(e->d_name, "..data") == 0) unlink(path);
    }
    if (d) closedir(d);
    rmdir(u->dir);
}

static bool ctl_ut_routes(const char *host)
{
    struct rt_match m;

    return rt_find(rt_live(), str_z(host), S("/"), &m);
}

/* Turns until the host has a route; false after five seconds. */
static bool ctl_ut_until(struct ctl_ut *u, const char *host)
{
    uint64_t end = sys_clock_ns(CLOCK_MONOTONIC) + 5000000000u;

    while (!ctl_ut_routes(host) && sys_clock_ns(CLOCK_MONOTONIC) < end) ctl_turn(&u->ctl);
    return ctl_ut_routes(host);
}

static bool ctl_ut_until_errors(struct ctl_ut *u, bool some)
{
    uint64_t end = sys_clock_ns(CLOCK_MONOTONIC) + 5000000000u;

    while ((u->ctl.file_errors > 0) != some && sys_clock_ns(CLOCK_MONOTONIC) < end) ctl_turn(&u->ctl);
    return (u->ctl.file_errors > 0) == some;
}

UT(ctl_file_changes_are_served)
{
    static struct ctl_ut u;
    struct str_builder b = str_growing();
    char other[160];
    uint64_t generation;

    UT_REQUIRE(ctl_ut_open(&u, CTL_UT_FILE("a.test")));
    UT_CHECK(ctl_ut_routes("a.test"));
    ctl_turn(&u.ctl);
    UT_CHECK(ctl_is_ready(&b));
    UT_SLICE(str_built(&b), "ok\n");

    ctl_ut_write(u.path, CTL_UT_FILE("b.test"));                     /* in place */
    UT_CHECK(ctl_ut_until(&u, "b.test") && !ctl_ut_routes("a.test"));

    snprintf(other, sizeof other, "%s/edge.ini.new", u.dir);         /* as editors do */
    ctl_ut_write(other, CTL_UT_FILE("c.test"));
    UT_INT(rename(other, u.path), 0);
    UT_CHECK(ctl_ut_until(&u, "c.test"));
    UT_CHECK(rj.rt.newest->t_event_ns > 0 && rj.rt.newest->t_publish_ns >= rj.rt.newest->t_event_ns);

    generation = rj.rt.generation;                                   /* broken: the last one stays */
    ctl_ut_mute(&u, true);
    ctl_ut_write(u.path, "[ramjet]\nnonsense = 1\n[route x]\n");
    UT_CHECK(ctl_ut_until_errors(&u, true));
    ctl_ut_mute(&u, false);
    b.n = 0;
    UT_CHECK(ctl_is_ready(&b));
    str_put_c(&b, 0);
    UT_CHECK(strstr((const char *)b.p, "edge.ini: 2 errors, serving generation ") != NULL);
    UT_CHECK(ctl_ut_routes("c.test"));
    UT_INT(rj.rt.generation, generation);

    ctl_ut_write(u.path, CTL_UT_FILE("c.test"));                     /* mended: nothing new to publish */
    UT_CHECK(ctl_ut_until_errors(&u, false));
    UT_INT(rj.rt.generation, generation);
    str_free(&b);
    ctl_ut_close(&u);
}

/* A mounted ConfigMap: edge.ini -> ..data/edge.ini, ..data -> a folder; an update replaces ..data by rename. */
UT(ctl_configmap_updates_are_served)
{
    static struct ctl_ut u;
    char path[256], data[256], next[256];

    UT_REQUIRE(ctl_ut_open(&u, CTL_UT_FILE("a.test")));
    snprintf(path, sizeof path, "%s/..1", u.dir);
    mkdir(path, 0700);
    snprintf(path, sizeof path, "%s/..2", u.dir);
    mkdir(path, 0700);
    snprintf(path, sizeof path, "%s/..1/edge.ini", u.dir);
    ctl_ut_write(path, CTL_UT_FILE("b.test"));
    snprintf(path, sizeof path, "%s/..2/edge.ini", u.dir);
    ctl_ut_write(path, CTL_UT_FILE("c.test"));
    snprintf(data, sizeof data, "%s/..data", u.dir);
    UT_INT(symlink("..1", data), 0);
    unlink(u.path);
    UT_INT(symlink("..data/edge.ini", u.path), 0);
    UT_CHECK(ctl_ut_until(&u, "b.test"));
    snprintf(next, sizeof next, "%s/..data_tmp", u.dir);
    UT_INT(symlink("..2", next), 0);
    UT_INT(rename(next, data), 0);
    UT_CHECK(ctl_ut_until(&u, "c.test"));
    ctl_ut_write(path, CTL_UT_FILE("d.test"));                       /* in the folder that the link leads to */
    UT_CHECK(ctl_ut_until(&u, "d.test"));
    for (const char *const *p = (const char *const[]){"..1/edge.ini", "..2/edge.ini", "..1", "..2", NULL}; *p; p++) {
        snprintf(path, sizeof path, "%s/%s", u.dir, *p);
        remove(path);
    }
    ctl_ut_close(&u);
}

UT(ctl_signals)
{
    static struct ctl_ut u;
    sigset_t set, before;
    char away[160];
    uint64_t end;

    sigemptyset(&set);
    sigaddset(&set, SIGHUP);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &set, &before);
    UT_REQUIRE(ctl_ut_open(&u, CTL_UT_FILE("a.test")));
    snprintf(away, sizeof away, "%s/away", u.dir);
    UT_INT(rename(u.path, away), 0);
    for (int i = 0; i < 3; i++) ctl_turn(&u.ctl);
    UT_INT(u.ctl.file_errors, 0);                                    /* a file may be away for a moment */
    ctl_ut_mute(&u, true);
    kill(getpid(), SIGHUP);                                          /* unless somebody asks for it */
    UT_CHECK(ctl_ut_until_errors(&u, true));
    ctl_ut_mute(&u, false);
    UT_CHECK(ctl_ut_routes("a.test"));
    UT_INT(rename(away, u.path), 0);
    UT_CHECK(ctl_ut_until_errors(&u, false));
    kill(getpid(), SIGUSR1);
    ctl_turn(&u.ctl);
    UT_CHECK(u.ctl.access_fd >= 0);
    kill(getpid(), SIGTERM);
    end = sys_clock_ns(CLOCK_MONOTONIC) + 5000000000u;
    while (!u.ctl.stopping && sys_clock_ns(CLOCK_MONOTONIC) < end) ctl_turn(&u.ctl);
    UT_CHECK(u.ctl.stopping);
    UT_CHECK(!ctl_is_ready(&(struct str_builder){.grow = false}));
    ctl_run(&u.ctl);
    UT_CHECK(u.ctl.drained);
    ctl_ut_close(&u);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

UT(ctl_names_hold_readiness_back)
{
    static struct ctl_ut u;
    struct str_builder b = str_growing();
    uint64_t end = sys_clock_ns(CLOCK_MONOTONIC) + 5000000000u;
    struct rt_match m;

    UT_REQUIRE(ctl_ut_open(&u, "[ramjet]\naccess-log-path = /dev/null\n[backend s]\nendpoint = localhost:80\n[route r]\nbackend = s\n"));
    UT_CHECK(!ctl_is_ready(&b));
    UT_SLICE(str_built(&b), "waiting for the resolver\n");
    while (!u.ctl.ready && sys_clock_ns(CLOCK_MONOTONIC) < end) ctl_turn(&u.ctl);
    b.n = 0;
    UT_CHECK(ctl_is_ready(&b));
    UT_CHECK(rt_find(rt_live(), S("x"), S("/"), &m) && m.backend && m.backend->n == 1);
    str_free(&b);
    ctl_ut_close(&u);
}

UT(ctl_bursts_compile_once_an_interval)
{
    static struct ctl_ut u;
    uint64_t generation, start;

    UT_REQUIRE(ctl_ut_open(&u, CTL_UT_FILE("a.test")));
    ((struct cfg *)(uintptr_t)u.ctl.cfg)->publish_interval_ms = 50;
    while (u.ctl.loop.clk.now_ms < u.ctl.compiled_ms + 60) ctl_turn(&u.ctl);
    generation = rj.rt.generation;
    ctl_ut_write(u.path, "[ramjet]\nkeep-alive = 1\npublish-interval = 50ms\naccess-log-path = /dev/null\n");
    while (rj.rt.generation == generation) ctl_turn(&u.ctl);         /* the first one at once */
    start = u.ctl.compiled_ms;
    for (int i = 2; u.ctl.loop.clk.now_ms < start + 45 && rj.rt.generation == generation + 1; i++) {
        char text[128];

        snprintf(text, sizeof text, "[ramjet]\nkeep-alive = %d\npublish-interval = 50ms\naccess-log-path = /dev/null\n", i);
        ctl_ut_write(u.path, text);
        ctl_turn(&u.ctl);
    }
    UT_CHECK(rj.rt.generation == generation + 1 || u.ctl.compiled_ms >= start + 50);
    while (rj.rt.generation == generation + 1) ctl_turn(&u.ctl);
    UT_CHECK(u.ctl.compiled_ms >= start + 50);                       /* the others together, when the interval is over */
    UT_INT(rj.rt.generation, generation + 2);
    ctl_ut_close(&u);
}

struct ctl_ut_asker {
    struct ctl *ctl;
    int good, bad;
    struct cfg_report report;
    struct wrk_msg stop;
};

static void *ctl_ut_ask(void *arg)
{
    struct ctl_ut_asker *a = arg;
    struct cfg_report none = {.text = str_growing()};

    a->report = (struct cfg_report){.text = str_growing()};
    a->good = ctl_ask_reload(a->ctl, S("[backend s]\nendpoint = 10.0.0.1:80\n[route r]\nhost = asked.test\nbackend = s\n"), &none);
    a->bad = ctl_ask_reload(a->ctl, S("[route r]\n"), &a->report);
    ctl_ask_stop(&a->stop);
    str_free(&none.text);
    return NULL;
}

UT(ctl_is_asked_by_other_threads)
{
    static struct ctl_ut u;
    struct ctl_ut_asker a = {.ctl = &u.ctl};
    pthread_t id;

    UT_REQUIRE(ctl_ut_open(&u, CTL_UT_FILE("a.test")));
    UT_INT(pthread_create(&id, NULL, ctl_ut_ask, &a), 0);
    ctl_run(&u.ctl);
    pthread_join(id, NULL);
    UT_INT(a.good, 0);
    UT_INT(a.bad, -1);
    UT_SLICE(str_built(&a.report.text), "ini_text:1: route r has no backend, expected backend = NAME or a redirect\n");
    UT_CHECK(ctl_ut_routes("asked.test") && !ctl_ut_routes("a.test"));
    str_free(&a.report.text);
    ctl_ut_close(&u);
}

UT(ctl_drains_log_rings)
{
    static struct ctl_ut u;
    struct rj_thread worker = {.index = 0, .access = {.cap = 4096}}, *list[1] = {&worker};
    char path[160], text[64] = "";
    FILE *f;

    UT_REQUIRE(ctl_ut_open(&u, CTL_UT_FILE("a.test")));
    snprintf(path, sizeof path, "%s/access.log", u.dir);
    ((struct cfg *)(uintptr_t)u.ctl.cfg)->access_log_path = str_z(path);
    ctl_open_access_log(&u.ctl);
    log_ring_put(&worker.access, S("{\"time\":1}\n"));
    rj.threads = list;
    rj.thread_count = 1;
    ctl_drain_logs(&u.ctl);
    UT_INT(u.ctl.log_wait_ms, CTL_LOG_MIN_MS);
    for (int i = 0; i < 10; i++) ctl_drain_logs(&u.ctl);
    UT_CHECK(u.ctl.log_wait_ms >= CTL_LOG_MAX_MS);
    rj.threads = NULL;
    rj.thread_count = 0;
    f = fopen(path, "r");
    UT_REQUIRE(f && fgets(text, sizeof text, f));
    fclose(f);
    UT_TEXT(text, "{\"time\":1}\n");
    sys_unmap(worker.access.p, worker.access.cap);
    ctl_ut_close(&u);
}

/* A change of the file is served in the end, whichever of the calls behind it the kernel refuses once. */
UT(ctl_a_change_is_served_whatever_call_is_refused)
{
    static struct ctl_ut u;
    bool odd = false;

    for (long k = 1; k == 1 || ft.hit >= 0; k++, odd = !odd) {
        UT_REQUIRE(ctl_ut_open(&u, CTL_UT_FILE("a.test")));
        ctl_ut_mute(&u, true);
        ctl_turn(&u.ctl);
        ctl_ut_write(u.path, CTL_UT_FILE("b.test"));
        ft_arm(FT_CALLS, k);
        for (int i = 0; i < 40 && !ctl_ut_routes("b.test"); i++) ctl_turn(&u.ctl);
        ft_disarm();
        ctl_ut_mute(&u, false);
        if (!UT_CHECK(ctl_ut_until(&u, "b.test"))) printf("  call %ld refused at %ld\n", ft.hit, k);
        ctl_ut_close(&u);
        if (k > 40) break;
    }
}
