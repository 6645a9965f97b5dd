/* cfg_: every option, every form, every mistake named with its place. */

static struct cfg *cfg_ut_load(const char *ini, const char *const *flags, const char *const *env, struct cfg_report *report)
{
    struct cfg_input in = {.argv = (char *const *)(uintptr_t)flags, .envp = (char *const *)(uintptr_t)env};

    while (flags && flags[in.argc]) in.argc++;
    if (ini) {
        in.file_name = "edge.ini";
        in.text = ut_str(ini);
    }
    *report = (struct cfg_report){.text = str_growing()};
    return cfg_load(&in, report);
}

#define CFG_UT_B "[backend s]\nendpoint = 10.0.0.1:80\n"

/* A file and all that is said about it. */
UT(cfg_names_every_mistake)
{
    static const struct { int line; const char *ini, *report; } rows[] = {
        UT_ROW("", ""),
        UT_ROW("# nothing\n; at all\n\n", ""),
        UT_ROW("\xef\xbb\xbf[ramjet]\r\nkeep-alive = 5s\r\n", ""),
        UT_ROW("[ramjet]\n   keep-alive = 5s\n   send-timeout = 6s ; as long as that\n", ""),     /* indented lines are no continuation */
        UT_ROW("[ramjet]\nkeep-alive: 5s", ""),
        UT_ROW("[ramjet", "edge.ini:1: found \"[ramjet\", expected ] at the end of a section\n"),
        UT_ROW("[ramjet] x\n", "edge.ini:1: found \"x\" behind a section, expected nothing\n"),
        UT_ROW("keep-alive = 5s\n", "edge.ini:1: \"keep-alive\" stands before the first section, expected [ramjet], [route NAME] or [backend NAME]\n"),
        UT_ROW("[Ramjet]\nx = 1\n", "edge.ini:1: unknown section [Ramjet], expected [ramjet], [route NAME] or [backend NAME]\n"),
        UT_ROW("[route]\n", "edge.ini:1: found [route], expected a name without blanks of at most 150 bytes\n"),
        UT_ROW("[ramjet]\n[ramjet]\n", "edge.ini:2: [ramjet] is there already, in line 1\n"),
        UT_ROW("[ramjet]\nkeep-alive\n[ramjet]\n", "edge.ini:2: found \"keep-alive\", expected NAME = VALUE, a section or a comment\n"
                                                   "edge.ini:3: [ramjet] is there already, in line 1\n"),
        UT_ROW("[ramjet]\nnonsense", "edge.ini:2: found \"nonsense\", expected NAME = VALUE, a section or a comment\n"),
        UT_ROW("[ramjet]\nkeep-alife = 5s\n",
               "edge.ini:2: unknown key \"keep-alife\", expected a setting of [ramjet]; `ramjet reference options` lists them\n"),
        UT_ROW("[ramjet]\nconfig = x\n", "edge.ini:2: misplaced key \"config\", expected a setting of [ramjet]; `ramjet reference options` lists them\n"),
        UT_ROW("[ramjet]\nkeep-alive = 5s\nkeep-alive = 6s\n", "edge.ini:3: keep-alive is there already, in line 2\n"),
        UT_ROW("[ramjet]\nkeep-alive = soon\nengine = kqueue\nserver-tokens = maybe\nproxy-body-size = 1x\nmax-request-headers = 0\nsend-timeout = 0\n",
               "edge.ini:2: keep-alive: found \"soon\", expected a duration such as 250ms, 5s, 2m, 1h or seconds\n"
               "edge.ini:3: engine: found \"kqueue\", expected one of auto epoll uring\n"
               "edge.ini:4: server-tokens: found \"maybe\", expected true or false\n"
               "edge.ini:5: proxy-body-size: found \"1x\", expected a size such as 512, 8k, 1m\n"
               "edge.ini:6: max-request-headers: found \"0\", expected a number in 1..1000\n"
               "edge.ini:7: send-timeout: found \"0\", expected a duration such as 250ms, 5s, 2m, 1h or seconds, more than 0\n"),
        UT_ROW("[ramjet]\nhttp = 8080x\nadmin = 1.2.3:80\nproxy-real-ip-cidr = 10.0.0.0/33\nlarge-client-header-buffers = 4\n",
               "edge.ini:2: http: found \"8080x\", expected ADDRESS:PORT, :PORT, PORT (1..65535), unix:/PATH or off\n"
               "edge.ini:3: admin: found \"1.2.3:80\", expected ADDRESS:PORT, :PORT, PORT (1..65535), unix:/PATH or off\n"
               "edge.ini:4: proxy-real-ip-cidr: found \"10.0.0.0/33\", expected addresses or networks such as 10.0.0.0/8, fd00::/8\n"
               "edge.ini:5: large-client-header-buffers: found \"4\", expected a number and a size such as 4 8k\n"),
        UT_ROW("[ramjet]\nproxy-next-upstream = error http_501\n",
               "edge.ini:2: proxy-next-upstream: found \"error http_501\", expected one or more of "
               "error timeout off invalid_header http_500 http_502 http_503 http_504 http_403 http_404 http_429 non_idempotent\n"),
        UT_ROW("[ramjet]\nproxy-next-upstream = off timeout\n",
               "edge.ini:2: proxy-next-upstream: found \"off timeout\", expected one or more of "
               "error timeout off invalid_header http_500 http_502 http_503 http_504 http_403 http_404 http_429 non_idempotent\n"),
        UT_ROW("[ramjet]\nuse-proxy-protocol = true\n",
               "edge.ini:2: use-proxy-protocol: found true without proxy-real-ip-cidr, expected the trusted peers there, for example 10.0.0.0/8\n"),
        UT_ROW("[ramjet]\nuse-proxy-protocol = true\nproxy-real-ip-cidr = 10.0.0.0/8\n", ""),
        UT_ROW("[ramjet]\nuse-proxy-protocol = no\n", ""),
        UT_ROW("[ramjet]\nhttps = 8443\n", "edge.ini:2: unknown key \"https\", expected a setting of [ramjet]; `ramjet reference options` lists them\n"),
        UT_ROW("[ramjet]\nuse-forwarded-headers = true\n",
               "edge.ini:2: use-forwarded-headers: found true without proxy-real-ip-cidr, expected the trusted peers there, for example 10.0.0.0/8\n"),
        UT_ROW("[ramjet]\n\ndefault-backend-service = rest\n", "edge.ini:3: default-backend-service: there is no [backend rest]\n"),
        UT_ROW("[ramjet]\nhttp = 127.0.0.1:80\nhttp = 80\nhttp = 0.0.0.0:80\nhttp = [::]:80\n", "edge.ini:4: http: \"0.0.0.0:80\" is there already\n"),
        UT_ROW("[ramjet]\nhttp = unix:/a\nhttp = unix:/b\nhttp = unix:/a\n", "edge.ini:4: http: \"unix:/a\" is there already\n"),
        UT_ROW("[ramjet]\nhttp = 127.0.0.1:80\nadmin = 127.0.0.1:80\n", "edge.ini:3: admin: \"127.0.0.1:80\" is a listener of http too\n"),
        UT_ROW("[ramjet]\nhttp = 127.0.0.1:10254\n", "admin: \"127.0.0.1:10254\" is a listener of http too\n"),
        UT_ROW("[ramjet]\nhttp = 127.0.0.1:0\n", "edge.ini:2: http: found \"127.0.0.1:0\", expected ADDRESS:PORT, :PORT, PORT (1..65535), unix:/PATH or off\n"),
        UT_ROW("[ramjet]\nresolver = dns.test\n", "edge.ini:2: resolver: found \"dns.test\", expected ADDRESS or ADDRESS:PORT, separated by commas\n"),
        UT_ROW("[ramjet]\nresolver = 10.0.0.1:0\n", "edge.ini:2: resolver: found \"10.0.0.1:0\", expected ADDRESS or ADDRESS:PORT, separated by commas\n"),
        UT_ROW("[ramjet]\nresolver = 10.0.0.1:53:1\n", "edge.ini:2: resolver: found \"10.0.0.1:53:1\", expected ADDRESS or ADDRESS:PORT, separated by commas\n"),
        UT_ROW("[ramjet]\nresolver = 10.0.0.1, [::1]:53\nwatch-namespace = a, b-1\naccess-log-path =\n", ""),
        UT_ROW("[ramjet]\nwatch-namespace = a/b\n", "edge.ini:2: watch-namespace: found \"a/b\", expected names of a-z, 0-9 and - separated by commas\n"),
        UT_ROW("[ramjet]\nwatch-namespace = a,,b\n", "edge.ini:2: watch-namespace: found \"a,,b\", expected names of a-z, 0-9 and - separated by commas\n"),
        UT_ROW("[ramjet]\nwatch-namespace = -a\n", "edge.ini:2: watch-namespace: found \"-a\", expected names of a-z, 0-9 and - separated by commas\n"),
        UT_ROW("[ramjet]\ncustom-headers = X-A: a; b\n", ""),
        UT_ROW("[ramjet]\ncustom-headers = X-A: a ; b\n",
               "edge.ini:2: custom-headers: found a blank and ; which begin a comment, expected no blank before a ; of the value and no comment\n"),
        UT_ROW("[ramjet]\nupstream-hash-by = $uri\t; $host\n",
               "edge.ini:2: upstream-hash-by: found a blank and ; which begin a comment, expected no blank before a ; of the value and no comment\n"),
        UT_ROW("[backend s]\n", "edge.ini:1: backend s has no endpoint, expected endpoint = ADDRESS:PORT\n"),
        UT_ROW("[backend s]\nendpoint = 10.0.0.1:80\n[backend s]\nendpoint = 10.0.0.2:80\n", "edge.ini:3: backend \"s\" is there already, in line 1\n"),
        UT_ROW("[backend s]\nendpoint = 10.0.0.1\nendpoint = 10.0.0.1:0\nendpoint = [::1:80\nendpoint = a_b.test:80 weight=0\nendpoint = 10.0.0.300:80\n",
               "edge.ini:2: endpoint: found \"10.0.0.1\", expected ADDRESS:PORT or ADDRESS:PORT weight=N\n"
               "edge.ini:3: endpoint: found \"10.0.0.1:0\", expected ADDRESS:PORT or ADDRESS:PORT weight=N\n"
               "edge.ini:4: endpoint: found \"[::1:80\", expected ADDRESS:PORT or ADDRESS:PORT weight=N\n"
               "edge.ini:5: endpoint: found \"weight=0\", expected weight=N with N in 1..1000\n"
               "edge.ini:6: endpoint: found \"10.0.0.300:80\", expected ADDRESS:PORT or ADDRESS:PORT weight=N\n"
               "edge.ini:1: backend s has no endpoint, expected endpoint = ADDRESS:PORT\n"),
        UT_ROW(CFG_UT_B "endpoint = 10.0.0.1:80 weight=2\n", "edge.ini:3: endpoint: \"10.0.0.1:80\" is there already\n"),
        UT_ROW(CFG_UT_B "proxy-body-size = 1m\n",
               "edge.ini:3: misplaced key \"proxy-body-size\", expected endpoint or a setting of a backend; `ramjet reference options` lists them\n"),
        UT_ROW(CFG_UT_B "max-fails = many\n", "edge.ini:3: max-fails: found \"many\", expected a number in 0..65535\n"),
        UT_ROW(CFG_UT_B "[route r]\nbackend = s\nhost = a.test\nhost = b.test\n", "edge.ini:6: host is there already, in line 5\n"),
        UT_ROW(CFG_UT_B "[route r]\nbackend = s\nhost = a..test\n", "edge.ini:5: host: found \"a..test\", expected a name, *.NAME, or no host for any\n"),
        UT_ROW(CFG_UT_B "[route r]\nbackend = s\nhost = *\n", "edge.ini:5: host: found \"*\", expected a name, *.NAME, or no host for any\n"),
        UT_ROW(CFG_UT_B "[route r]\nbackend = s\nhost = a.*.test\n", "edge.ini:5: host: found \"a.*.test\", expected a name, *.NAME, or no host for any\n"),
        UT_ROW(CFG_UT_B "[route r]\nbackend = s\nhost = a.test:80\n", "edge.ini:5: host: found \"a.test:80\", expected a name, *.NAME, or no host for any\n"),
        UT_ROW(CFG_UT_B "[route r]\nbackend = s\npath = api\ntype = regex\n",
               "edge.ini:5: path: found \"api\", expected a path that begins with /\nedge.ini:6: type: found \"regex\", expected prefix or exact\n"),
        UT_ROW(CFG_UT_B "[route r]\nbackend = s\npath = /a/../b\n", "edge.ini:5: path: found \"/a/../b\", expected a path without . and .. segments\n"),
        UT_ROW(CFG_UT_B "[route r]\nbackend = s\npath = /a//b\n", "edge.ini:5: path: found \"/a//b\", expected a path without //\n"),
        UT_ROW(CFG_UT_B "[route r]\nbackend = s\npath = /a%2fb\n", "edge.ini:5: path: found \"/a%2fb\", expected a path without %2f\n"),
        UT_ROW(CFG_UT_B "[route r]\nbackend = s\npath = /a%2(2\n",
               "edge.ini:5: path: found \"/a%2(2\", expected a path that a request may have: whole escapes, and no \", <, >, \\ or %00\n"),
        UT_ROW(CFG_UT_B "[route r]\nbackend = s\npath = /a\\b\n",
               "edge.ini:5: path: found \"/a\\b\", expected a path that a request may have: whole escapes, and no \", <, >, \\ or %00\n"),
        UT_ROW(CFG_UT_B "[route r]\nbackend = s\npath = /xy\n[route q]\nbackend = s\npath = /%78y/\n",
               "edge.ini:6: route q has the host, path and type of route r in line 3\n"),
        UT_ROW(CFG_UT_B "[route r]\nbackend = s\npath = /a?b\n", "edge.ini:5: path: found \"/a?b\", expected a path without blanks, ?, # and bytes outside ASCII\n"),
        UT_ROW(CFG_UT_B "[route r]\nbackend = s\nkeep-alive = 5s\n",
               "edge.ini:5: misplaced key \"keep-alive\", expected host, path, type, backend or a setting of a route; `ramjet reference options` lists them\n"),
        UT_ROW(CFG_UT_B "[route r]\nbackend = t\n", "edge.ini:4: route r: there is no [backend t]\n"),
        UT_ROW(CFG_UT_B "[route r]\npath = /\n", "edge.ini:3: route r has no backend, expected backend = NAME or a redirect\n"),
        UT_ROW(CFG_UT_B "[route r]\ntemporal-redirect =\n", "edge.ini:3: route r has no backend, expected backend = NAME or a redirect\n"),
        UT_ROW(CFG_UT_B "[route r]\ntemporal-redirect = /x\n", ""),
        UT_ROW(CFG_UT_B "[route r]\nbackend = t\ntemporal-redirect = /x\n", "edge.ini:4: route r: there is no [backend t]\n"),
        UT_ROW(CFG_UT_B "[route r]\nbackend = s\nlimit-rps = 1\nlimit-rps = 2\n", "edge.ini:6: limit-rps is there already, in line 5\n"),
        UT_ROW(CFG_UT_B "[route r]\nbackend = s\nwhitelist-source-range = 10.0.0.1\nallowlist-source-range = 10.0.0.2\n", ""),
        UT_ROW(CFG_UT_B "[route r]\nbackend = s\nallowlist-source-range = x\n",
               "edge.ini:5: whitelist-source-range: found \"x\", expected addresses or networks such as 10.0.0.0/8, fd00::/8\n"),
        UT_ROW(CFG_UT_B "[route r]\nbackend = s\npermanent-redirect = //b.test\n",
               "edge.ini:5: permanent-redirect: found \"//b.test\", expected a URL such as https://example.com/a or a path that begins with one /, "
               "of visible ASCII and without $\n"),
        UT_ROW(CFG_UT_B "[route r]\nbackend = s\ncustom-headers = Connection: close\n",
               "edge.ini:5: custom-headers: found \"Connection: close\", expected NAME: VALUE of a field that is not about framing, the connection, the date "
               "or a redirect\n"),
        UT_ROW("[ramjet]\nhide-headers = X-A, content-length\n",
               "edge.ini:2: hide-headers: found \"X-A, content-length\", expected names of fields that are not about framing or the connection\n"),
        UT_ROW(CFG_UT_B "[route r]\nbackend = s\n[route r]\nbackend = s\n", "edge.ini:5: route \"r\" is there already, in line 3\n"),
        UT_ROW(CFG_UT_B "[route r]\nbackend = s\npath = /x/\n[route q]\nbackend = s\npath = /x\n",
               "edge.ini:6: route q has the host, path and type of route r in line 3\n"),
        UT_ROW(CFG_UT_B "[route r]\nbackend = s\npath = /x/\n[route q]\nbackend = s\npath = /x\ntype = exact\n", ""),
        UT_ROW("[wrong]\nkeep-alive = never\n[ramjet]\nkeep-alive = never\n",
               "edge.ini:1: unknown section [wrong], expected [ramjet], [route NAME] or [backend NAME]\n"
               "edge.ini:4: keep-alive: found \"never\", expected a duration such as 250ms, 5s, 2m, 1h or seconds\n"),
        UT_ROW("[ramjet]\nkeep-alive = 5\x01s\n", "edge.ini:2: control byte 0x01 in the line\n"),
    };

    UT_EACH(r, rows) {
        struct cfg_report report;
        struct cfg *c = cfg_ut_load(r->ini, NULL, NULL, &report);

        UT_SLICE(str_built(&report.text), r->report);
        UT_CHECK((c != NULL) == !r->report[0]);
        UT_CHECK((report.errors > 0) == (r->report[0] != 0));
        if (c) cfg_put(c);
        str_free(&report.text);
    }
}

UT(cfg_refuses_binary_files)
{
    struct cfg_input in = {.file_name = "x", .text = ut_bytes("[ramjet]\n\0", 10)};
    struct cfg_report report = {.text = str_growing()};

    UT_CHECK(cfg_load(&in, &report) == NULL);
    UT_SLICE(str_built(&report.text), "x:0: the file holds a NUL byte: it is no text\n");
    str_free(&report.text);
}

/* A line of the longest length is read whole, also where inih would cut it; one more byte is refused. */
UT(cfg_line_limit)
{
    static const struct { int line; int bytes; bool ok; } rows[] = {
        UT_ROW(CFG_INIH_MAX - 1, true), UT_ROW(CFG_INIH_MAX, true), UT_ROW(CFG_INIH_MAX + 1, true), UT_ROW(CFG_INIH_MAX * 2 + 1, true),
        UT_ROW(CFG_LINE_MAX, true), UT_ROW(CFG_LINE_MAX + 1, false),
    };

    UT_EACH(r, rows) {
        static char text[CFG_LINE_MAX + 100];
        int at = snprintf(text, sizeof text, "[ramjet]\nkubeconfig = "), n = r->bytes - 13;
        struct cfg_report report;
        struct cfg *c;

        memset(text + at, 'k', (size_t)n);
        snprintf(text + at + n, sizeof text - (size_t)(at + n), "\nkeep-alive = 7s\n");
        c = cfg_ut_load(text, NULL, NULL, &report);
        UT_CHECK((c != NULL) == r->ok);
        UT_SLICE(str_built(&report.text), r->ok ? "" : "edge.ini:2: the line has 4097 bytes, at most 4096 are read\n");
        if (c) UT_INT(c->kubeconfig.n, n);
        if (c) UT_INT(c->keep_alive_ms, 7000);
        if (c) cfg_put(c);
        str_free(&report.text);
    }
}

/* Names and values of lines that inih gets a part of. */
UT(cfg_long_lines)
{
    char text[4 * 401 + 100], filler[401];
    struct cfg_report report;
    struct cfg *c;

    memset(filler, 'v', 400);
    filler[400] = 0;
    snprintf(text, sizeof text, "[ramjet]\ncustom-headers = X-A: %s=:;%s\nlog-level = debug ; %s %s\n", filler, filler, filler, filler);
    c = cfg_ut_load(text, NULL, NULL, &report);
    UT_SLICE(str_built(&report.text), "");
    UT_REQUIRE(c != NULL);
    UT_INT(c->custom_headers.v[0].n, 5 + 400 + 3 + 400);
    UT_INT(c->log_level, LOG_DEBUG);
    cfg_put(c);
    str_free(&report.text);
    snprintf(text, sizeof text, "[ramjet]\n%s%s = 1\nkeep-alife = 1\n", filler, filler);
    UT_CHECK(cfg_ut_load(text, NULL, NULL, &report) == NULL);
    UT_INT(report.errors, 2);
    str_free(&report.text);
}

/* A section name that inih would cut stays whole. */
UT(cfg_long_section_names)
{
    char text[1024], name[CFG_NAME_MAX + 2] = "";
    struct cfg_report report;
    struct cfg *c;

    memset(name, 'n', CFG_NAME_MAX);
    snprintf(text, sizeof text, "[backend %s]\nendpoint = 10.0.0.1:80\n[backend %.140sx]\nendpoint = 10.0.0.2:80\n[route r]\nbackend = %s\n", name, name, name);
    c = cfg_ut_load(text, NULL, NULL, &report);
    UT_REQUIRE(c != NULL);
    UT_INT(c->nbackends, 2);
    UT_SLICE(c->routes[0].backend, name);
    cfg_put(c);
    str_free(&report.text);
}

UT(cfg_listeners)
{
    static const struct { int line; const char *text, *addr; int family; } rows[] = {
        UT_ROW("0.0.0.0:8080", "0.0.0.0:8080", AF_INET),
        UT_ROW("[::]:8080", "[::]:8080", AF_INET6),
        UT_ROW("[fd00::1]:1", "[fd00::1]:1", AF_INET6),
        UT_ROW(":8080", "0.0.0.0:8080", AF_INET),
        UT_ROW("8080", "0.0.0.0:8080", AF_INET),
        UT_ROW("127.0.0.1:65535", "127.0.0.1:65535", AF_INET),
        UT_ROW("unix:/run/x.sock", "unix", AF_UNIX),
        UT_ROW("off", NULL, 0),
        UT_ROW("", NULL, -1),
        UT_ROW("0", NULL, -1),
        UT_ROW(":0", NULL, -1),
        UT_ROW("65536", NULL, -1),
        UT_ROW("a.test:80", NULL, -1),
        UT_ROW("::1:80", NULL, -1),
        UT_ROW("unix:", NULL, -1),
        UT_ROW("unix:run/x", NULL, -1),
        UT_ROW("unix:/aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", NULL, -1),
    };

    UT_EACH(r, rows) {
        const char *flags[] = {"--http", r->text, NULL};
        struct cfg_report report;
        struct cfg *c = cfg_ut_load(NULL, flags, NULL, &report);
        uint8_t text[64];
        struct str_builder b = str_fixed(text, sizeof text);

        UT_CHECK((c != NULL) == (r->family >= 0));
        if (c) UT_INT(c->http.n, r->family > 0);
        if (c && c->http.n) {
            str_put_addr(&b, &c->http.v[0].addr);
            UT_SLICE(str_built(&b), r->addr);
            UT_INT(c->http.v[0].addr.family, r->family);
        }
        if (c) cfg_put(c);
        str_free(&report.text);
    }
}

UT(cfg_flag_beats_environment_beats_file)
{
    static const char *const flags[] = {"--keep-alive=1s", "--http", "1", "--http", ":2", "--server-tokens", "--engine", "epoll", NULL};
    static const char *const env[] = {"RAMJET_KEEP_ALIVE=2s", "RAMJET_SEND_TIMEOUT=2s", "RAMJET_HTTP=3", "RAMJET_UNKNOWN=x", "PATH=/", NULL};
    struct cfg_report report;
    struct cfg *c = cfg_ut_load("[ramjet]\nkeep-alive = 3s\nsend-timeout = 3s\nclient-body-timeout = 3\nhttp = 4\nhttp = 5\nadmin = 7\n", flags, env, &report);

    UT_REQUIRE(c != NULL);
    UT_INT(c->keep_alive_ms, 1000);
    UT_INT(c->send_ms, 2000);
    UT_INT(c->client_body_ms, 3000);
    UT_INT(c->client_header_ms, 60000);
    UT_INT(c->http.n, 2);
    UT_INT(c->http.v[0].addr.port, 1);
    UT_INT(c->http.v[1].addr.port, 2);
    UT_INT(c->admin.v[0].addr.port, 7);
    UT_CHECK(c->server_tokens);
    UT_INT(c->engine, CFG_ENGINE_EPOLL);
    UT_CHECK(!c->cluster);
    cfg_put(c);
    str_free(&report.text);
}

UT(cfg_flags_are_checked)
{
    static const struct { int line; const char *flags[6]; const char *report; } rows[] = {
        UT_ROW({"--keep-alive"}, "--keep-alive: a value is missing\n"),
        UT_ROW({"--keep-alife", "5"}, "unknown option \"--keep-alife\"; --help lists them\nunexpected argument \"5\"; options are given as --name VALUE\n"),
        UT_ROW({"--keep-alive", "x", "--engine=x"}, "--keep-alive: found \"x\", expected a duration such as 250ms, 5s, 2m, 1h or seconds\n"
                                                    "--engine: found \"x\", expected one of auto epoll uring\n"),
        UT_ROW({"edge.ini"}, "unexpected argument \"edge.ini\"; options are given as --name VALUE\n"),
        UT_ROW({"-x"}, "unknown option \"-x\"; --help lists them\n"),
        UT_ROW({"--config", "/nonexistent/x.ini"}, "/nonexistent/x.ini: cannot be read: No such file or directory\n"),
        UT_ROW({"--server-tokens", "false"}, ""),
        UT_ROW({"--kubeconfig", "k", "--default-backend-service", "ns/name:http"}, ""),
        UT_ROW({"--kubeconfig", "k", "--default-backend-service", "name"}, "--default-backend-service: found \"name\", expected NAMESPACE/NAME or NAMESPACE/NAME:PORT\n"),
        UT_ROW({"--kubeconfig", "k", "--default-backend-service", "ns/n:0"}, "--default-backend-service: found \"ns/n:0\", expected NAMESPACE/NAME or NAMESPACE/NAME:PORT\n"),
    };
    static const char *const env[] = {"RAMJET_MAX_FAILS=x", NULL};
    struct cfg_report report;

    UT_EACH(r, rows) {
        struct cfg *c = cfg_ut_load(NULL, r->flags, NULL, &report);

        UT_SLICE(str_built(&report.text), r->report);
        UT_CHECK((c != NULL) == !r->report[0]);
        if (c) cfg_put(c);
        str_free(&report.text);
    }
    UT_CHECK(cfg_ut_load(NULL, NULL, env, &report) == NULL);
    UT_SLICE(str_built(&report.text), "RAMJET_MAX_FAILS: found \"x\", expected a number in 0..65535\n");
    str_free(&report.text);
}

/* What a kubelet injects for services called ramjet and ramjet-http is no option, and what is none is passed over. */
UT(cfg_injected_variables_are_ignored)
{
    static const char *const env[] = {
        "KUBERNETES_SERVICE_HOST=10.0.0.1", "RAMJET_PORT=tcp://10.0.0.9:80", "RAMJET_PORT_80_TCP=tcp://10.0.0.9:80", "RAMJET_SERVICE_PORT=80",
        "RAMJET_SERVICE_PORT_HTTP=80", "RAMJET_HTTP_PORT=tcp://10.0.0.9:80", "RAMJET_HTTP_SERVICE_HOST=10.0.0.9", "RAMJET_", "RAMJET_=", "RAMJET_HTTP",
        "RAMJET_A_NAME_OF_MORE_THAN_SIXTY_FOUR_BYTES_THAT_NO_OPTION_WILL_EVER_HAVE_AT_ALL=1", NULL,
    };
    struct cfg_report report;
    struct cfg *c = cfg_ut_load(NULL, NULL, env, &report);

    UT_SLICE(str_built(&report.text), "");
    UT_REQUIRE(c != NULL);
    UT_INT(c->http.n, 1);
    UT_INT(c->http.v[0].addr.port, 8080);
    UT_CHECK(c->cluster);
    cfg_put(c);
    str_free(&report.text);
}

UT(cfg_operands_are_handed_out)
{
    static const char *const flags[] = {"a.yaml", "--server-tokens", "b.yaml", "--ingress-class=nginx", "--", "--c"};
    const char *operands[6];
    struct cfg_input in = {.argc = 6, .argv = (char *const *)(uintptr_t)flags, .operands = operands};
    struct cfg_report report = {.text = str_growing()};
    struct cfg *c = cfg_load(&in, &report);

    UT_REQUIRE(c != NULL);
    UT_INT(in.noperands, 3);
    UT_TEXT(operands[1], "b.yaml");
    UT_TEXT(operands[2], "--c");
    UT_SLICE(c->ingress_class, "nginx");
    cfg_put(c);
}

UT(cfg_in_a_cluster)
{
    static const char *const env[] = {"KUBERNETES_SERVICE_HOST=10.0.0.1", "RAMJET_WATCH_NAMESPACE=a, b", NULL};
    struct cfg_report report;
    struct cfg *c = cfg_ut_load(NULL, NULL, env, &report);
    uint8_t text[64];
    struct str_builder b = str_fixed(text, sizeof text);

    UT_REQUIRE(c != NULL && c->cluster);
    str_put_addr(&b, &c->admin.v[0].addr);
    UT_SLICE(str_built(&b), "0.0.0.0:10254");
    UT_INT(c->watch_namespace.n, 2);
    UT_SLICE(c->watch_namespace.v[1], "b");
    cfg_put(c);
}

UT(cfg_file_content)
{
    struct cfg_report report;
    struct cfg *c = cfg_ut_load("[ramjet]\nproxy-real-ip-cidr = 10.0.0.0/8, fd00::/8\nproxy-real-ip-cidr = 127.0.0.1\nuse-forwarded-headers = yes\n"
                                "[backend s]\nendpoint = 10.0.0.1:80 weight=3\nendpoint = [fd00::1]:81\nendpoint = Db.test:82\nmax-fails = 1\n"
                                "[route r]\nHost = x\n", NULL, NULL, &report);

    UT_CHECK(c == NULL);                                 /* keys are lower case */
    str_free(&report.text);
    c = cfg_ut_load("[ramjet]\nproxy-real-ip-cidr = 10.0.0.0/8, fd00::/8\nproxy-real-ip-cidr = 127.0.0.1\nuse-forwarded-headers = yes\n"
                    "[backend s]\nendpoint = 10.0.0.1:80 weight=3\nendpoint = [fd00::1]:81\nendpoint = Db.test:82\nmax-fails = 1\n"
                    "[route r]\nhost = Shop.Test.\npath = /x;y\ntype = exact\nbackend = s\nproxy-read-timeout = 250ms\n", NULL, NULL, &report);
    UT_REQUIRE(c != NULL);
    UT_INT(c->proxy_real_ip.n, 3);
    UT_INT(c->backends[0].nendpoints, 3);
    UT_INT(c->backends[0].endpoints[0].weight, 3);
    UT_SLICE(c->backends[0].endpoints[2].host, "db.test");
    UT_INT(c->backends[0].endpoints[2].addr.port, 82);
    UT_SLICE(c->routes[0].host, "shop.test");
    UT_SLICE(c->routes[0].path, "/x;y");
    UT_CHECK(c->routes[0].exact);
    UT_INT(c->routes[0].nvalues, 1);
    UT_CHECK(map_find(&c->by_name, S("s")) == &c->backends[0]);
    cfg_put(c);
    str_free(&report.text);
}

UT(cfg_digest_is_of_live_settings)
{
    struct cfg_report r1, r2, r3, r4;
    struct cfg *a = cfg_ut_load("[ramjet]\nkeep-alive = 5s\n", NULL, NULL, &r1), *b = cfg_ut_load("# x\n[ramjet]\nkeep-alive =  5s\nworker-processes = 3\n", NULL, NULL, &r2),
               *c = cfg_ut_load("[ramjet]\nkeep-alive = 6s\n", NULL, NULL, &r3), *d = cfg_ut_load("", NULL, NULL, &r4);

    UT_REQUIRE(a && b && c && d);
    UT_CHECK(a->digest == b->digest && a->digest != c->digest && c->digest != d->digest);
    cfg_put(a);
    cfg_put(b);
    cfg_put(c);
    cfg_put(d);
}

/* Every prefix of a good file is read or refused, never worse. */
static void cfg_ut_prefix(void *ctx, const uint8_t *p, size_t n)
{
    struct cfg_input in = {.file_name = "x", .text = str_of(p, n)};
    struct cfg_report report = {.text = str_growing()};
    struct cfg *c = cfg_load(&in, &report);

    (void)ctx;
    UT_CHECK((c != NULL) == !report.errors);
    if (c) cfg_put(c);
    str_free(&report.text);
}

UT(cfg_every_prefix)
{
    static const char text[] = "[ramjet]\nhttp = 8080\nproxy-next-upstream = error timeout http_502\n[backend s]\nendpoint = 10.0.0.1:80 weight=2\n[route r]\nhost = *.a.test\n"
                               "path = /x/%61\nbackend = s\n";

    ut_prefixes(text, sizeof text - 1, cfg_ut_prefix, NULL);
}

UT(cfg_table_is_whole)
{
    struct str_builder b = str_growing();

    for (int i = 0; i < CFG_OPTION_COUNT; i++) {
        if (i) UT_CHECK(strcmp(cfg_info[i - 1].name, cfg_info[i].name) < 0);
        UT_INT(cfg_option_find(str_z(cfg_info[i].name)), i);
        UT_CHECK(cfg_info[i].help[0] && !strchr(cfg_info[i].help, '|'));
    }
    UT_INT(cfg_option_find(S("nope")), -1);
    UT_CHECK(cfg_info[CFG_O_load_balance].where == (CFG_R | CFG_B));
    cfg_render_reference(&b);
    UT_CHECK(strncmp((const char *)b.p, "| name | default | where | meaning |\n", 37) == 0);
    str_put_c(&b, 0);
    UT_CHECK(strstr((const char *)b.p, "| proxy-connect-timeout | 5s | R | Connect of one try |\n") != NULL);
    UT_CHECK(strstr((const char *)b.p, "| engine | auto |  | I/O engine; uring fails to start where io_uring is refused (one of auto epoll uring) |\n") != NULL);
    str_free(&b);
    b = str_growing();
    cfg_render_help(&b);
    UT_CHECK(b.n > 1000);
    str_free(&b);
}
