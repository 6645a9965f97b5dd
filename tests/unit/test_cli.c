/* cli_: suggestions, limits of the control group, help and tables. */

#include "faults.h"

UT(cli_suggestion_rows)
{
    static const char *const names[] = {"check", "demo", "reference", "run", "version"};
    static const struct { int line; const char *word, *near; } rows[] = {
        UT_ROW("chek", "check"), UT_ROW("Demo", "demo"), UT_ROW("referense", "reference"), UT_ROW("rum", "run"), UT_ROW("versions", "version"),
        UT_ROW("xyz", NULL), UT_ROW("", NULL), UT_ROW("completely-different-and-far-longer-than-any-name-there-is", NULL),
    };

    UT_EACH(r, rows) UT_TEXT(cli_suggest(ut_str(r->word), names, RJ_COUNT(names)), r->near);
}

UT(cli_distance_rows)
{
    static const struct { int line; const char *a, *b; unsigned d; } rows[] = {
        UT_ROW("", "", 0), UT_ROW("a", "", 1), UT_ROW("", "abc", 3), UT_ROW("abc", "abc", 0), UT_ROW("abc", "axc", 1), UT_ROW("kitten", "sitting", 3), UT_ROW("abc", "ac", 1),
    };

    UT_EACH(r, rows) {
        UT_INT(cli_distance(ut_str(r->a), ut_str(r->b)), r->d);
        UT_INT(cli_distance(ut_str(r->b), ut_str(r->a)), r->d);
    }
}

UT(cli_quota_rows)
{
    static const struct { int line; const char *text; uint64_t milli; } rows[] = {
        UT_ROW("max 100000\n", 0), UT_ROW("100000 100000\n", 1000), UT_ROW("150000 100000\n", 1500), UT_ROW("50000 100000", 500), UT_ROW("200000 50000\n", 4000),
        UT_ROW("-1 100000\n", 0), UT_ROW("100000 0\n", 0), UT_ROW("", 0), UT_ROW("100000", 0), UT_ROW("x y\n", 0), UT_ROW("18446744073709551615 1\n", 0),
    };

    UT_EACH(r, rows) UT_INT(cli_quota(ut_str(r->text)), r->milli);
}

UT(cli_cgroup_path_rows)
{
    static const char two[] = "0::/user.slice/a\n", one[] = "12:pids:/p\n4:cpu,cpuacct:/kube/pod\n2:memory:/m\n1:name=systemd:/s\n";
    static const struct { int line; const char *text, *controller, *path; bool found; } rows[] = {
        UT_ROW(two, "", "/user.slice/a", true), UT_ROW(two, "cpu", "", false), UT_ROW(one, "cpu", "/kube/pod", true), UT_ROW(one, "cpuacct", "/kube/pod", true),
        UT_ROW(one, "memory", "/m", true), UT_ROW(one, "cpuset", "", false), UT_ROW(one, "", "", false), UT_ROW("0::/\n", "", "/", true), UT_ROW("", "", "", false),
        UT_ROW("garbage\n::\n", "cpu", "", false),
    };

    UT_EACH(r, rows) {
        struct str path = cli_cgroup_path(ut_str(r->text), ut_str(r->controller));

        UT_INT(path.p != NULL, r->found);
        if (r->found) UT_SLICE(path, r->path);
    }
}

static void cli_test_put(const char *folder, const char *name, const char *text)
{
    char path[300];
    int fd;

    snprintf(path, sizeof path, "%s/%s", folder, name);
    fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    UT_CHECK(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    close(fd);
}

/* A limit of a parent holds for its children, whatever they say. */
UT(cli_least_limit_of_all_parents)
{
    char root[] = "/tmp/ramjet-unit-XXXXXX", folder[128], path[200];

    UT_REQUIRE(mkdtemp(root) != NULL);
    snprintf(folder, sizeof folder, "%s/a", root);
    UT_CHECK(mkdir(folder, 0700) == 0);
    cli_test_put(root, "cpu.max", "max 100000\n");
    cli_test_put(folder, "cpu.max", "250000 100000\n");
    UT_INT(cli_cgroup_least(root, S("/a"), cli_read_quota), 2500);
    UT_INT(cli_cgroup_least(root, S("/a/none"), cli_read_quota), 2500);
    UT_INT(cli_cgroup_least(root, S("/"), cli_read_quota), 0);
    cli_test_put(root, "cpu.max", "100000 100000\n");
    UT_INT(cli_cgroup_least(root, S("/a"), cli_read_quota), 1000);
    cli_test_put(root, "memory.max", "max\n");
    cli_test_put(folder, "memory.max", "1048576\n");
    UT_INT(cli_cgroup_least(root, S("/a"), cli_read_memory), 1048576);
    UT_INT(cli_cgroup_least(root, S("/"), cli_read_memory), 0);
    for (int i = 0; i < 4; i++) {
        static const char *const files[] = {"cpu.max", "memory.max"};

        snprintf(path, sizeof path, "%s/%s", i & 2 ? root : folder, files[i & 1]);
        unlink(path);
    }
    cli_test_put(root, "cpu.cfs_quota_us", "150000\n");
    cli_test_put(root, "cpu.cfs_period_us", "100000\n");
    UT_INT(cli_cgroup_least(root, S("/a"), cli_read_quota), 1500);
    cli_test_put(root, "cpu.cfs_quota_us", "-1\n");
    UT_INT(cli_cgroup_least(root, S("/a"), cli_read_quota), 0);
    cli_test_put(root, "memory.limit_in_bytes", "9223372036854771712\n");
    UT_INT(cli_cgroup_least(root, S("/"), cli_read_memory), 0);
    cli_test_put(root, "memory.limit_in_bytes", "4096\n");
    UT_INT(cli_cgroup_least(root, S("/"), cli_read_memory), 4096);
    snprintf(path, sizeof path, "%s/cpu.cfs_quota_us", root);
    unlink(path);
    snprintf(path, sizeof path, "%s/cpu.cfs_period_us", root);
    unlink(path);
    snprintf(path, sizeof path, "%s/memory.limit_in_bytes", root);
    unlink(path);
    rmdir(folder);
    rmdir(root);
}

UT(cli_counts_at_least_one_cpu) { UT_CHECK(cli_count_cpus() >= 1 && cli_count_cpus() <= 8192); }

/* Every command is in the help, every option in that of run; the tables are Markdown with as many cells in each row. */
UT(cli_help_and_tables)
{
    struct str_builder b = str_growing();

    cli_render_help(&b, -1);
    str_put_c(&b, 0);
    for (int i = 0; i < CLI_COMMAND_COUNT; i++) {
        UT_CHECK(strstr((char *)b.p, cli_commands[i].name) != NULL);
        UT_INT(cli_find_command(str_z(cli_commands[i].name)), i);
        if (i) UT_CHECK(strcmp(cli_commands[i - 1].name, cli_commands[i].name) < 0);
    }
    UT_INT(cli_find_command(S("ru")), -1);
    b.n = 0;
    cli_render_help(&b, CLI_RUN);
    str_put_c(&b, 0);
    UT_CHECK(strstr((char *)b.p, "--proxy-read-timeout") != NULL);
    for (size_t t = 0; t < RJ_COUNT(cli_tables); t++) {
        struct str rest, line;
        size_t cells = 0;

        b.n = 0;
        cli_tables[t].render(&b);
        rest = str_built(&b);
        while (str_cut(&rest, '\n', &line)) {
            size_t n = 0;

            for (size_t i = 0; i < line.n; i++) n += line.p[i] == '|';
            if (!line.n) continue;
            if (!cells) cells = n;
            UT_INT(n, cells);
            UT_CHECK(line.p[0] == '|' && line.p[line.n - 1] == '|');
        }
        UT_CHECK(cells >= 4);
    }
    str_free(&b);
}

UT(cli_label_name_rows)
{
    static const struct { int line; const char *in, *out; } rows[] = {
        UT_ROW("", ""), UT_ROW("a=\"x\"", "a"), UT_ROW("side=\"client\",state=\"idle\"", "side, state"),
    };

    UT_EACH(r, rows) {
        uint8_t text[64];
        struct str_builder b = str_fixed(text, sizeof text);

        cli_put_label_names(&b, r->in);
        UT_SLICE(str_built(&b), r->out);
    }
}

UT(cli_is_ini_rows)
{
    static const struct { int line; const char *path, *text; bool ini; } rows[] = {
        UT_ROW("a.ini", "kind: Ingress", true), UT_ROW("a.yaml", "[ramjet]", false), UT_ROW("a.json", "[x]", false), UT_ROW("edge.conf", "# x\n\n ; y\r\n[ramjet]\r\n", true),
        UT_ROW("-", "[route a]\n", true), UT_ROW("-", "[1, 2]\n", false), UT_ROW("-", "[{\"kind\":1}]", false), UT_ROW("-", "[]", false), UT_ROW("-", "kind: List\n[x]\n", false),
        UT_ROW("-", "", false), UT_ROW("-", "# only", false),
    };

    UT_EACH(r, rows) UT_INT(cli_is_ini(r->path, ut_str(r->text)), r->ini);
}

/* A port that is taken: the start fails, and whoever embeds Ramjet may try again for ever without losing a descriptor. */
UT(cli_failed_start_gives_everything_back)
{
    struct sockaddr_in6 sa = {0};
    struct net_addr any = {.family = AF_INET}, taken;
    socklen_t n = str_to_sockaddr(&any, &sa);
    int fd = sys_socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    char ini[256], err[512];
    int64_t before;

    UT_INT(sys_bind(fd, &sa, n), 0);
    UT_INT(sys_listen(fd, 1), 0);
    n = sizeof sa;
    UT_INT(sys_getsockname(fd, &sa, &n), 0);
    str_from_sockaddr(&sa, &taken);
    snprintf(ini, sizeof ini, "[ramjet]\nworker-processes = 2\nadmin = off\nhttp = 127.0.0.1:%u\n", taken.port);
    before = adm_count_fds();
    for (int i = 0; i < 3; i++) {
        struct ramjet *edge = NULL;

        UT_INT(ramjet_start(&edge, ini, err, sizeof err), -1);
        UT_CHECK(!edge && strstr(err, "cannot listen on"));
        UT_INT(adm_count_fds(), before);
    }
    sys_close(fd);
}

/* Each system call of a start refused in turn: it says why or does without, and gives everything back. */
static int cli_ut_start_and_stop(const char *ini, long k, struct log_err *err)
{
    struct cfg_report report = {.text = str_growing()};
    struct cfg_input in = {.file_name = "ini_text", .text = str_z(ini)};
    struct cfg *cfg = cfg_load(&in, &report);
    struct cli_server *s = mem_need(sizeof *s);
    int rc;

    UT_CHECK(cfg != NULL);
    str_free(&report.text);
    ft_arm(FT_CALLS, k);
    rc = cli_open(s, cfg, &in, false, err);
    ft_disarm();
    if (rc < 0) {
        cli_close_failed(s);
    } else {
        ctl_stop(&s->ctl);
        ctl_run(&s->ctl);
        cli_close(s);
    }
    cfg_put(cfg);
    rj_me = NULL;
    return rc;
}

UT(cli_start_with_any_call_refused)
{
    static const char *const engines[] = {"epoll", "auto", "uring"};
    char dir[] = "/tmp/ramjet-unit-XXXXXX", ini[512], path[64];
    struct log_err err;
    int64_t before;

    UT_REQUIRE(mkdtemp(dir) != NULL);
    for (size_t i = 0; i < RJ_COUNT(engines); i++) {
        int started = 0, refused = 0;

        snprintf(ini, sizeof ini, "[ramjet]\nengine = %s\nworker-processes = 1\nadmin = unix:%s/admin\nhttp = unix:%s/http\nlog-level = error\n"
                 "access-log-path = /dev/null\nresolver = 127.0.0.1\n[backend b]\nendpoint = 127.0.0.1:1\n[route r]\nbackend = b\n", engines[i], dir, dir);
        UT_INT(cli_ut_start_and_stop(ini, 0, &err), 0);
        before = adm_count_fds();
        for (long k = 1; k == 1 || ft.hit >= 0; k++) {
            int64_t after;
            int rc;

            err.text[0] = 0;
            rc = cli_ut_start_and_stop(ini, k, &err);
            started += rc == 0;
            refused += rc < 0;
            UT_CHECK(rc == 0 || err.text[0]);
            if ((after = adm_count_fds()) != before) printf("  %s: call %ld refused at %ld: %s\n", engines[i], ft.hit, k, rc ? err.text : "started");
            UT_INT(after, before);
            before = after;
        }
        UT_CHECK(started > 0 && refused > 0);
    }
    snprintf(path, sizeof path, "%s/admin", dir);
    unlink(path);
    snprintf(path, sizeof path, "%s/http", dir);
    unlink(path);
    rmdir(dir);
}

/* The life of an instance inside a program: one at a time, its table replaced, and nothing left behind. */
UT(cli_instance_starts_reloads_and_stops)
{
    static const char form[] = "[ramjet]\nworker-processes = 1\nadmin = off\nlog-level = error\naccess-log-path = /dev/null\nhttp = unix:%s/http\n[backend b]\n"
                               "endpoint = 127.0.0.1:1\n[route r]\nhost = %s\nbackend = b\n";
    char dir[] = "/tmp/ramjet-unit-XXXXXX", one[512], two[512], path[64], err[512];
    struct ramjet *edge = NULL, *second = NULL;
    struct rt_match m;
    int64_t before;

    UT_REQUIRE(mkdtemp(dir) != NULL);
    snprintf(one, sizeof one, form, dir, "one.test");
    snprintf(two, sizeof two, form, dir, "two.test");
    before = adm_count_fds();
    for (int round = 0; round < 3; round++) {
        UT_INT(ramjet_start(&edge, "[ramjet]\nno-such-option = 1\n[route r]\nbackend = missing\n", err, sizeof err), -1);
        UT_CHECK(!edge && strstr(err, "no-such-option") && strstr(err, "missing"));
        UT_INT(ramjet_start(&edge, one, err, sizeof err), 0);
        UT_REQUIRE(edge != NULL);
        UT_INT(ramjet_start(&second, one, err, sizeof err), -1);
        UT_TEXT(err, "there is an instance already: one per process");
        UT_CHECK(!second && rt_find(rt_live(), S("one.test"), S("/"), &m) && !rt_find(rt_live(), S("two.test"), S("/"), &m));
        UT_INT(ramjet_reload(edge, "[route x]\n", err, sizeof err), -1);
        UT_CHECK(strstr(err, "route x") && rt_find(rt_live(), S("one.test"), S("/"), &m));
        UT_INT(ramjet_reload(edge, two, err, sizeof err), 0);
        UT_CHECK(rt_find(rt_live(), S("two.test"), S("/"), &m) && !rt_find(rt_live(), S("one.test"), S("/"), &m));
        ramjet_stop(edge);
        UT_INT(adm_count_fds(), before);
    }
    snprintf(path, sizeof path, "%s/http", dir);
    unlink(path);
    rmdir(dir);
}
