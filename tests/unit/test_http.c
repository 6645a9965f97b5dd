/* Unit tests of http_: methods, field names, hosts, paths. Framing and hop-by-hop marks are tested through the parser, in test_h1.c. */

UT(http_method_is_found_by_its_exact_token)
{
    static const struct { int line; const char *in; int want; } rows[] = {
        UT_ROW("CONNECT", HTTP_CONNECT),
        UT_ROW("DELETE", HTTP_DELETE),
        UT_ROW("GET", HTTP_GET),
        UT_ROW("HEAD", HTTP_HEAD),
        UT_ROW("OPTIONS", HTTP_OPTIONS),
        UT_ROW("PATCH", HTTP_PATCH),
        UT_ROW("POST", HTTP_POST),
        UT_ROW("PUT", HTTP_PUT),
        UT_ROW("TRACE", HTTP_TRACE),
        UT_ROW("PRI", HTTP_PRI), UT_ROW("PRIX", HTTP_OTHER_METHOD),
        UT_ROW("", HTTP_OTHER_METHOD),
        UT_ROW("G", HTTP_OTHER_METHOD),
        UT_ROW("GETX", HTTP_OTHER_METHOD),
        UT_ROW("get", HTTP_OTHER_METHOD),
        UT_ROW("Get", HTTP_OTHER_METHOD),
        UT_ROW("OPTION", HTTP_OTHER_METHOD),
    };
    UT_EACH(r, rows) {
        UT_INT(http_method_find(ut_str(r->in)), r->want);
    }
    UT_INT(http_method_flags(HTTP_GET), HTTP_IDEMPOTENT);
    UT_INT(http_method_flags(HTTP_PUT), HTTP_IDEMPOTENT);
    UT_INT(http_method_flags(HTTP_POST), 0);
    UT_INT(http_method_flags(HTTP_PATCH), 0);
    UT_INT(http_method_flags(HTTP_OTHER_METHOD), 0);
}

UT(http_reason_of_known_and_unknown_status)
{
    UT_SLICE(http_reason(200), "OK");
    UT_SLICE(http_reason(431), "Request Header Fields Too Large");
    UT_SLICE(http_reason(502), "Bad Gateway");
    UT_INT(http_reason(299).n, 0);
    UT_INT(http_reason(0).n, 0);
}

UT(http_field_is_found_in_any_letter_case_and_only_whole)
{
    for (int id = HTTP_F_NONE + 1; id < HTTP_F_FW_AGREES; id++) {
        struct str name = str_of(http_names[id].text, http_names[id].n);
        char text[64];

        ut_row(id);
        memcpy(text, name.p, name.n);
        UT_INT(http_field_find(ut_bytes(text, name.n)), id);
        for (size_t i = 0; i < name.n; i++) {
            char c = text[i];

            text[i] = (char)(c >= 'a' && c <= 'z' ? c - 32 : c);
            UT_INT(http_field_find(ut_bytes(text, name.n)), id);
            for (int other = 0; other < 256; other++) {
                if (str_lower((uint8_t)other) == (uint8_t)c) continue;
                text[i] = (char)other;
                if (http_field_find(str_of(text, name.n)) == (enum http_field_id)id) UT_INT(other, -1);
            }
            text[i] = c;
        }
        for (size_t i = 0; i < name.n; i++) text[i] = (char)(text[i] >= 'a' && text[i] <= 'z' ? text[i] - 32 : text[i]);
        UT_INT(http_field_find(ut_bytes(text, name.n)), id);
        UT_CHECK(http_field_find(ut_bytes(text, name.n - 1)) != (enum http_field_id)id);
        text[name.n] = 'x';
        UT_CHECK(http_field_find(ut_bytes(text, name.n + 1)) != (enum http_field_id)id);
    }
    UT_INT(http_field_find(ut_str("")), HTTP_F_NONE);
    UT_INT(http_field_find(ut_str("x")), HTTP_F_NONE);
    UT_INT(http_field_find(ut_str("content_length")), HTTP_F_NONE);
    UT_INT(http_field_find(ut_str("a-name-that-is-longer-than-every-known-one")), HTTP_F_NONE);
    UT_INT(http_field_find(ut_str("X-Forwarded-Forty")), HTTP_F_FW_KEPT);
    UT_INT(http_field_find(ut_str("X-FORWARDED")), HTTP_F_FW_REMOVED);
    UT_INT(http_field_find(ut_str("X-Forwarder")), HTTP_F_NONE);
    UT_INT(http_field_find(ut_str("X-Original-")), HTTP_F_FW_KEPT);
    UT_INT(http_field_find(ut_str("X-Original")), HTTP_F_NONE);
    UT_INT(http_field_find(ut_str("X-Original-URI")), HTTP_F_FW_REMOVED);
    UT_INT(http_field_find(ut_str("X-Original-URIs")), HTTP_F_FW_KEPT);
    UT_INT(http_field_find(ut_str("SSL-Client-Subject-DN-and-a-name-that-is-longer-than-every-known-one")), HTTP_F_FW_KEPT);
    UT_INT(http_field_find(ut_str("True-Client-IP")), HTTP_F_FW_AGREES);
    UT_INT(http_field_find(ut_str("True-Client-IPs")), HTTP_F_NONE);
    UT_INT(http_field_flags(HTTP_F_TRANSFER_ENCODING), HTTP_FRAME);
    UT_INT(http_field_flags(HTTP_F_NONE), 0);
}

UT(http_host_normal_form)
{
    static const struct { int line; const char *in, *want; } rows[] = {
        UT_ROW("a.test", "a.test"),
        UT_ROW("A.TesT", "a.test"),
        UT_ROW("a.test.", "a.test"),
        UT_ROW("A.test.:80", "a.test"),
        UT_ROW("a.test:8080", "a.test"),
        UT_ROW("a.test:", "a.test"),
        UT_ROW("a.test:0", "a.test"),
        UT_ROW("a.test:65535", "a.test"),
        UT_ROW("a", "a"),
        UT_ROW("under_score.a.test", "under_score.a.test"),
        UT_ROW("xn--mnchen-3ya.test", "xn--mnchen-3ya.test"),
        UT_ROW("10.0.0.1", "10.0.0.1"),
        UT_ROW("10.0.0.1:80", "10.0.0.1"),
        UT_ROW("[::1]", "[::1]"),
        UT_ROW("[::1]:8080", "[::1]"),
        UT_ROW("[FE80::A]", "[fe80::a]"),
        UT_ROW("[::ffff:1.2.3.4]:1", "[::ffff:1.2.3.4]"),
        UT_ROW("", NULL),
        UT_ROW(".", NULL),
        UT_ROW(":80", NULL),
        UT_ROW(":", NULL),
        UT_ROW(".a.test", NULL),
        UT_ROW("a..test", NULL),
        UT_ROW("a.test..", NULL),
        UT_ROW("a.test, b.test", NULL),
        UT_ROW("a.test,b.test", NULL),
        UT_ROW("a.test/x", NULL),
        UT_ROW("a.test/", NULL),
        UT_ROW("u@a.test", NULL),
        UT_ROW("u:p@a.test", NULL),
        UT_ROW("a b", NULL),
        UT_ROW(" a", NULL),
        UT_ROW("a ", NULL),
        UT_ROW("a.test?x", NULL),
        UT_ROW("a.test#x", NULL),
        UT_ROW("http://a.test", NULL),
        UT_ROW("a.test:8x", NULL),
        UT_ROW("a.test:-1", NULL),
        UT_ROW("a.test:+1", NULL),
        UT_ROW("a.test: 1", NULL),
        UT_ROW("a.test:80:80", NULL),
        UT_ROW("a.test:65536", NULL),
        UT_ROW("a.test:99999999999", NULL),
        UT_ROW("[::1", NULL),
        UT_ROW("::1", NULL),
        UT_ROW("[::1]x", NULL),
        UT_ROW("[::1].", NULL),
        UT_ROW("[zz]", NULL),
        UT_ROW("[]", NULL),
        UT_ROW("[::1%25eth0]", NULL),
        UT_ROW("[v1.x]", NULL),
        UT_ROW("a\x01.test", NULL),
        UT_ROW("a\xc3\xa4.test", NULL),
        UT_ROW("a%2etest", NULL),
        UT_ROW("a.test\\x", NULL),
        UT_ROW("a\"b", NULL),
        UT_ROW("<a>", NULL),
        UT_ROW("a|b", NULL),
        UT_ROW("a^b", NULL),
        UT_ROW("a`b", NULL),
        UT_ROW("{a}", NULL),
        UT_ROW("*.a.test", NULL),
    };
    uint8_t out[512], text[300];

    UT_EACH(r, rows) {
        struct str in = ut_str(r->in);
        size_t n = http_host_normalize(in, ut_guard(UT_SLOTS - 1, out, in.n));

        UT_INT(n, r->want ? strlen(r->want) : 0);
        if (n && r->want) UT_BYTES(ut.page[UT_SLOTS - 1].p + ut.page[UT_SLOTS - 1].size - in.n, n, r->want, strlen(r->want));
    }
    memset(text, 'a', sizeof text);
    UT_INT(http_host_normalize(str_of(text, HTTP_HOST_MAX), out), HTTP_HOST_MAX);
    UT_INT(http_host_normalize(str_of(text, HTTP_HOST_MAX + 1), out), 0);
    UT_INT(http_host_normalize(ut_bytes("a.test\0", 7), out), 0);
}

UT(http_path_normal_form)
{
    static const struct { int line; const char *in, *want; } rows[] = {
        UT_ROW("/", "/"),
        UT_ROW("", "/"),
        UT_ROW("*", "*"),
        UT_ROW("/a", "/a"),
        UT_ROW("/a/", "/a/"),
        UT_ROW("/a/b.c/d", "/a/b.c/d"),
        UT_ROW("/%41%5a%61%7a%30%2d%5f%7e", "/AZaz0-_~"),
        UT_ROW("/%2f%5c%20%c3%a4%3f%23%25", "/%2F%5C%20%C3%A4%3F%23%25"),
        UT_ROW("/%2525", "/%2525"),
        UT_ROW("/.", "/"),
        UT_ROW("/./", "/"),
        UT_ROW("/a/.", "/a/"),
        UT_ROW("/a/./b", "/a/b"),
        UT_ROW("/a/..", "/"),
        UT_ROW("/a/../", "/"),
        UT_ROW("/a/../b", "/b"),
        UT_ROW("/a/b/..", "/a/"),
        UT_ROW("/a/b/../../c", "/c"),
        UT_ROW("/a/b/c/./../../g", "/a/g"),
        UT_ROW("/public/../admin", "/admin"),
        UT_ROW("/public/%2e%2e/admin", "/admin"),
        UT_ROW("/public/.%2E/admin", "/admin"),
        UT_ROW("/public/%2e/admin", "/public/admin"),
        UT_ROW("/public/./x", "/public/x"),
        UT_ROW("//", "//"),
        UT_ROW("///", "///"),
        UT_ROW("//x", "//x"),
        UT_ROW("/a//b", "/a//b"),
        UT_ROW("/a//../b", "/a/b"),
        UT_ROW("//../b", "/b"),
        UT_ROW("/a/.../b", "/a/.../b"),
        UT_ROW("/a/.b/..c/d./e..", "/a/.b/..c/d./e.."),
        UT_ROW("/.well-known/x", "/.well-known/x"),
        UT_ROW("/a;x=1/b;y", "/a;x=1/b;y"),
        UT_ROW("/-._~!$&'()*+,;=:@[]^`{|}", "/-._~!$&'()*+,;=:@[]^`{|}"),
        UT_ROW("/api%2e", "/api."),
        UT_ROW("/x%2fa.b%2f.c", "/x%2Fa.b%2F.c"),
        UT_ROW("/..", NULL),
        UT_ROW("/../", NULL),
        UT_ROW("/../admin", NULL),
        UT_ROW("/a/../../admin", NULL),
        UT_ROW("/./../admin", NULL),
        UT_ROW("/%2e%2e/admin", NULL),
        UT_ROW("/.%2E/admin", NULL),
        UT_ROW("/public/..;/admin", NULL),
        UT_ROW("/public/..;x=y/admin", NULL),
        UT_ROW("/public/%2e%2e;/admin", NULL),
        UT_ROW("/public/.;/admin", NULL),
        UT_ROW("/public%2f..%2fadmin", NULL),
        UT_ROW("/public%2f..;%2fadmin", NULL),
        UT_ROW("/public%2f..;x=y/admin", NULL),
        UT_ROW("/public%5C%2e%2e;", NULL),
        UT_ROW("/public%2f..x%2f...%2f.%2f.;x%2fadmin", "/public%2F..x%2F...%2F.%2F.;x%2Fadmin"),
        UT_ROW("/public/..%2fadmin", NULL),
        UT_ROW("/public/..%5cadmin", NULL),
        UT_ROW("/public/x%5C%2e%2e", NULL),
        UT_ROW("/%", NULL),
        UT_ROW("/%4", NULL),
        UT_ROW("/%zz", NULL),
        UT_ROW("/%4g", NULL),
        UT_ROW("/%00", NULL),
        UT_ROW("/a%00b", NULL),
        UT_ROW("/a\\b", NULL),
        UT_ROW("/a#b", NULL),
        UT_ROW("/a?b", NULL),
        UT_ROW("/a b", NULL),
        UT_ROW("/a\x01", NULL),
        UT_ROW("/a\x7f", NULL),
        UT_ROW("/\xc3\xa4", NULL),
        UT_ROW("a", NULL),
        UT_ROW("**", NULL),
    };
    uint8_t again[256];

    UT_EACH(r, rows) {
        struct str in = ut_str(r->in);
        size_t room = in.n ? in.n : 1;
        uint8_t *out = ut_guard(UT_SLOTS - 1, again, room);
        long n = http_path_normalize(in, out);

        UT_INT(n, r->want ? (long)strlen(r->want) : -400);
        if (n < 0 || !r->want) {
            UT_CHECK(!http_path_is_plain(in) || !in.n || in.p[0] != '/' || strpbrk(r->in, "\\#? \x01\x7f\xc3"));
            continue;
        }
        UT_BYTES(out, (size_t)n, r->want, strlen(r->want));
        UT_INT(http_path_normalize(str_of(out, (size_t)n), again), n);
        UT_BYTES(again, (size_t)n, out, (size_t)n);
        if (http_path_is_plain(in)) UT_TEXT(r->in, r->want);
        else UT_CHECK(in.n == 0 || strchr(r->in, '%') || strcmp(r->in, r->want) != 0);
    }
}
