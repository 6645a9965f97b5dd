/* str_: numbers, sizes, durations, addresses, base64, JSON text, UTF-8, time. What must be refused stands in the rows, too. */

UT(str_numbers)
{
    static const struct { int line; const char *in; bool ok; uint64_t v; } rows[] = {
        UT_ROW("0", true, 0), UT_ROW("007", true, 7), UT_ROW("18446744073709551615", true, UINT64_MAX),
        UT_ROW("18446744073709551616", false, 0), UT_ROW("99999999999999999999", false, 0), UT_ROW("000000000000000000001", false, 0),
        UT_ROW("", false, 0), UT_ROW("+1", false, 0), UT_ROW("-1", false, 0), UT_ROW(" 1", false, 0), UT_ROW("1 ", false, 0), UT_ROW("0x1", false, 0), UT_ROW("1.0", false, 0),
    };

    UT_EACH(r, rows) {
        uint64_t v = 0;

        UT_INT(str_to_u64(ut_str(r->in), &v), r->ok);
        if (r->ok) UT_CHECK(v == r->v);
    }
}

UT(str_sizes)
{
    static const struct { int line; const char *in; bool ok; uint64_t v; } rows[] = {
        UT_ROW("0", true, 0), UT_ROW("512", true, 512), UT_ROW("8k", true, 8192), UT_ROW("8K", true, 8192), UT_ROW("1m", true, 1 << 20), UT_ROW("2g", true, 2ull << 30),
        UT_ROW("8589934591g", true, 8589934591ull << 30), UT_ROW("17179869184g", false, 0), UT_ROW("18446744073709551615k", false, 0),
        UT_ROW("", false, 0), UT_ROW("k", false, 0), UT_ROW("1kb", false, 0), UT_ROW("1t", false, 0), UT_ROW("1 k", false, 0), UT_ROW("-1k", false, 0), UT_ROW("1kk", false, 0),
    };

    UT_EACH(r, rows) {
        uint64_t v = 0;

        UT_INT(str_to_size(ut_str(r->in), &v), r->ok);
        if (r->ok) UT_CHECK(v == r->v);
    }
}

UT(str_durations)
{
    static const struct { int line; const char *in; bool ok; uint64_t v; } rows[] = {
        UT_ROW("0", true, 0), UT_ROW("5", true, 5000), UT_ROW("5s", true, 5000), UT_ROW("250ms", true, 250), UT_ROW("2m", true, 120000), UT_ROW("1h", true, 3600000),
        UT_ROW("8760h", true, 365ull * 86400000), UT_ROW("8761h", false, 0), UT_ROW("18446744073709551615ms", false, 0),
        UT_ROW("", false, 0), UT_ROW("s", false, 0), UT_ROW("ms", false, 0), UT_ROW("1d", false, 0), UT_ROW("1.5s", false, 0), UT_ROW("-1s", false, 0), UT_ROW("1 s", false, 0), UT_ROW("1S", false, 0),
    };

    UT_EACH(r, rows) {
        uint64_t v = 0;

        UT_INT(str_to_ms(ut_str(r->in), &v), r->ok);
        if (r->ok) UT_CHECK(v == r->v);
    }
}

UT(str_booleans)
{
    static const struct { int line; const char *in; bool ok, v; } rows[] = {
        UT_ROW("true", true, true), UT_ROW("YES", true, true), UT_ROW("on", true, true), UT_ROW("1", true, true), UT_ROW("False", true, false), UT_ROW("no", true, false),
        UT_ROW("off", true, false), UT_ROW("0", true, false), UT_ROW("", false, false), UT_ROW("2", false, false), UT_ROW("tru", false, false), UT_ROW("true ", false, false),
    };

    UT_EACH(r, rows) {
        bool v = false;

        UT_INT(str_to_bool(ut_str(r->in), &v), r->ok);
        UT_INT(v, r->v);
    }
}

UT(str_pieces)
{
    struct str rest = ut_str("a,,b"), piece;

    UT_CHECK(str_cut(&rest, ',', &piece));
    UT_SLICE(piece, "a");
    UT_CHECK(str_cut(&rest, ',', &piece) && piece.n == 0);
    UT_CHECK(str_cut(&rest, ',', &piece));
    UT_SLICE(piece, "b");
    UT_CHECK(!str_cut(&rest, ',', &piece));
    UT_SLICE(str_trim(ut_str(" \t a b\t ")), "a b");
    UT_INT(str_trim(ut_str(" \t ")).n, 0);
    UT_CHECK(str_ieq(ut_str("HoSt"), ut_str("hOsT")) && !str_ieq(ut_str("host"), ut_str("hos")) && !str_ieq(ut_str("[@"), ut_str("{`")));
    UT_CHECK(str_cmp(ut_str("a"), ut_str("ab")) < 0 && str_cmp(ut_str("b"), ut_str("ab")) > 0 && str_cmp(ut_str("ab"), ut_str("ab")) == 0 && str_cmp(S(""), ut_str("a")) < 0);
    UT_CHECK(str_starts(ut_str("abc"), S("ab")) && !str_starts(ut_str("a"), S("ab")) && str_ends(ut_str("abc"), S("bc")) && !str_ends(ut_str("c"), S("bc")));
    UT_INT(str_find(ut_str("abc"), 'c'), 2);
    UT_INT(str_find(ut_str("abc"), 'x'), 3);
}

UT(str_builder_never_passes_its_limit)
{
    uint8_t room[8] = {0}, text[100] = {0};
    struct str_builder b = str_fixed(ut_guard(0, room, 8), 8), g = str_growing();

    str_put(&b, S("1234567"));
    str_put(&b, S("89"));
    UT_CHECK(b.failed);
    UT_SLICE(str_built(&b), "1234567");                              /* what does not fit is dropped whole */
    str_put_c(&b, '8');
    UT_SLICE(str_built(&b), "12345678");
    for (size_t n = 1; n < 100; n++) {                               /* every way to copy, between guard pages */
        uint8_t *from = ut_guard(1, text, n), *to = ut_guard(2, text, n);

        for (size_t i = 0; i < n; i++) from[i] = (uint8_t)(i + n);
        str_copy(to, from, n);
        UT_BYTES(to, n, from, n);
    }
    for (int i = 0; i < 10000; i++) str_put_u64(&g, (uint64_t)i % 10);
    UT_CHECK(!g.failed && g.n == 10000 && g.p[9999] == '9');
    g.n = 0;
    str_put_u64(&g, UINT64_MAX);
    str_put_c(&g, ' ');
    str_put_hex(&g, 0xabc, 1);
    str_put_c(&g, ' ');
    str_put_hex(&g, 0, 16);
    str_putf(&g, " %d ", -5);
    str_hex64(str_room(&g, 16), 0x0123456789abcdef);
    g.n += 16;
    UT_SLICE(str_built(&g), "18446744073709551615 abc 0000000000000000 -5 0123456789abcdef");
    str_free(&g);
    mem_fail_at = 1;
    str_put(&g, S("x"));
    UT_CHECK(g.failed && g.n == 0);
    str_free(&g);
}

static bool str_ut_print_ip(const char *in, char *out, size_t cap)
{
    struct str_builder b = str_fixed(out, cap - 1);
    struct net_addr a;

    if (!str_to_ip(ut_str(in), &a)) return false;
    str_put_ip(&b, &a);
    out[b.n] = 0;
    return true;
}

UT(str_addresses)
{
    static const struct { int line; const char *in, *out; } rows[] = {
        UT_ROW("1.2.3.4", "1.2.3.4"), UT_ROW("0.0.0.0", "0.0.0.0"), UT_ROW("255.255.255.255", "255.255.255.255"),
        UT_ROW("1.2.3", NULL), UT_ROW("1.2.3.4.5", NULL), UT_ROW("256.1.1.1", NULL), UT_ROW("01.2.3.4", NULL), UT_ROW("1.2.3.", NULL), UT_ROW(".1.2.3", NULL),
        UT_ROW("1.2.3.4 ", NULL), UT_ROW("1.2.3.0x4", NULL), UT_ROW("1.2..4", NULL), UT_ROW("", NULL), UT_ROW("0000.1.1.1", NULL),
        UT_ROW("::", "::"), UT_ROW("::1", "::1"), UT_ROW("1::", "1::"), UT_ROW("[::1]", "::1"), UT_ROW("2001:DB8::1", "2001:db8::1"),
        UT_ROW("2001:db8:0:0:1:0:0:1", "2001:db8::1:0:0:1"),         /* RFC 5952: the first of equal runs */
        UT_ROW("2001:0:0:1:0:0:0:1", "2001:0:0:1::1"),               /* the longest run */
        UT_ROW("2001:db8:0:1:1:1:1:1", "2001:db8:0:1:1:1:1:1"),      /* one group is not compressed */
        UT_ROW("1:2:3:4:5:6:7::", "1:2:3:4:5:6:7:0"), UT_ROW("::2:3:4:5:6:7:8", "0:2:3:4:5:6:7:8"), UT_ROW("0:0:1:2:3:4:0:0", "::1:2:3:4:0:0"),
        UT_ROW("fe80:0000:0000:0000:0202:00b3:0000:0329", "fe80::202:b3:0:329"), UT_ROW("::ffff:1.2.3.4", "::ffff:102:304"), UT_ROW("64:ff9b::1.2.3.4", "64:ff9b::102:304"),
        UT_ROW("1:2:3:4:5:6:1.2.3.4", "1:2:3:4:5:6:102:304"),
        UT_ROW(":", NULL), UT_ROW(":::", NULL), UT_ROW("1:", NULL), UT_ROW(":1", NULL), UT_ROW("1::2::3", NULL), UT_ROW("1:2:3:4:5:6:7", NULL), UT_ROW("1:2:3:4:5:6:7:8:9", NULL),
        UT_ROW("1:2:3:4:5:6:7:8::", NULL), UT_ROW("::1:2:3:4:5:6:7:8", NULL), UT_ROW("12345::", NULL), UT_ROW("g::", NULL), UT_ROW("fe80::1%eth0", NULL),
        UT_ROW("1:2:3:4:5:6:7:1.2.3.4", NULL), UT_ROW("::1.2.3.4:5", NULL), UT_ROW("[::1", NULL), UT_ROW("::1]", NULL), UT_ROW("[]", NULL), UT_ROW("[1.2.3.4]", NULL),
    };

    UT_EACH(r, rows) {
        char out[64];
        bool ok = str_ut_print_ip(r->in, out, sizeof out);

        UT_INT(ok, r->out != NULL);
        if (ok && r->out) UT_TEXT(out, r->out);
    }
}

UT(str_addresses_print_what_they_parse)
{
    uint64_t seed = 5;

    for (int i = 0; i < 20000; i++) {
        struct net_addr a = {.family = i & 1 ? AF_INET6 : AF_INET, .port = (uint16_t)(1 + ut_random(&seed, 65535))}, back;
        uint8_t text[80], sa[64];
        struct str_builder b = str_fixed(text, sizeof text);
        struct str host;
        uint16_t port = 0;
        socklen_t n;

        for (int k = 0; k < 16; k += 2)
            if (ut_random(&seed, 2)) a.ip[k] = (uint8_t)ut_random(&seed, 256), a.ip[k + 1] = (uint8_t)ut_random(&seed, 256);
        if (a.family == AF_INET) memset(a.ip, 0, 10), memset(a.ip + 10, 0xff, 2);
        else a.ip[0] |= 1;                                           /* not a mapped one */
        str_put_addr(&b, &a);
        UT_CHECK(str_to_host_port(ut_bytes(text, b.n), &host, &port) && port == a.port);
        UT_CHECK(str_to_ip(host, &back) && back.family == a.family && memcmp(back.ip, a.ip, 16) == 0);
        n = str_to_sockaddr(&a, sa);
        UT_INT(n, a.family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6));
        str_from_sockaddr(sa, &back);
        UT_CHECK(str_addr_eq(&a, &back) && back.family == a.family);
    }
}

UT(str_host_and_port)
{
    static const struct { int line; const char *in, *host; int port; } rows[] = {
        UT_ROW("a:80", "a", 80), UT_ROW("1.2.3.4:65535", "1.2.3.4", 65535), UT_ROW("[::1]:1", "[::1]", 1),
        UT_ROW("a", NULL, 0), UT_ROW("a:", NULL, 0), UT_ROW(":80", NULL, 0), UT_ROW("a:0", NULL, 0), UT_ROW("a:65536", NULL, 0), UT_ROW("::1:80", NULL, 0), UT_ROW("a:b", NULL, 0),
        UT_ROW("a:-1", NULL, 0), UT_ROW("", NULL, 0),
    };

    UT_EACH(r, rows) {
        struct str host;
        uint16_t port = 0;

        UT_INT(str_to_host_port(ut_str(r->in), &host, &port), r->host != NULL);
        if (!r->host) continue;
        UT_SLICE(host, r->host);
        UT_INT(port, r->port);
    }
}

UT(str_networks)
{
    static const struct { int line; const char *cidr, *ip; int has; } rows[] = {  /* has -1: refused */
        UT_ROW("10.0.0.0/8", "10.255.0.1", 1), UT_ROW("10.0.0.0/8", "11.0.0.1", 0), UT_ROW("10.1.2.3", "10.1.2.3", 1), UT_ROW("10.1.2.3", "10.1.2.2", 0),
        UT_ROW("0.0.0.0/0", "1.2.3.4", 1), UT_ROW("0.0.0.0/0", "::1", 0), UT_ROW("::/0", "1.2.3.4", 1), UT_ROW("192.168.4.0/22", "192.168.7.255", 1),
        UT_ROW("192.168.4.0/22", "192.168.8.0", 0), UT_ROW("fd00::/8", "fdff::1", 1), UT_ROW("fd00::/8", "fc00::1", 0), UT_ROW("2001:db8::/33", "2001:db8:8000::", 0),
        UT_ROW("::1/128", "::1", 1), UT_ROW("10.0.0.1/31", "10.0.0.0", 1),
        UT_ROW("10.0.0.0/33", "1.1.1.1", -1), UT_ROW("::/129", "::1", -1), UT_ROW("10.0.0.0/", "1.1.1.1", -1), UT_ROW("/8", "1.1.1.1", -1), UT_ROW("10.0.0/8", "1.1.1.1", -1),
        UT_ROW("10.0.0.0/8/8", "1.1.1.1", -1), UT_ROW("10.0.0.0/-1", "1.1.1.1", -1), UT_ROW("", "1.1.1.1", -1),
    };

    UT_EACH(r, rows) {
        struct net_cidr c;
        struct net_addr a;
        bool ok = str_to_cidr(ut_str(r->cidr), &c);

        UT_INT(ok, r->has >= 0);
        if (ok && r->has >= 0 && UT_CHECK(str_to_ip(ut_str(r->ip), &a))) UT_INT(str_cidr_has(&c, a.ip), r->has);
    }
}

UT(str_base64)
{
    static const struct { int line; const char *in, *out; } rows[] = {
        UT_ROW("", ""), UT_ROW("Zg==", "f"), UT_ROW("Zm8=", "fo"), UT_ROW("Zm9v", "foo"), UT_ROW("Zm9vYg==", "foob"), UT_ROW("Zm9v\nYmFy\r\n", "foobar"), UT_ROW("Zm8", "fo"),
        UT_ROW("Z", NULL), UT_ROW("Zm9vY", NULL), UT_ROW("Zh==", NULL), UT_ROW("Zm9=", NULL), UT_ROW("Z===", NULL), UT_ROW("Zg==Zg==", NULL), UT_ROW("Zm9-", NULL),
    };

    UT_EACH(r, rows) {
        uint8_t out[64];
        long n = str_from_base64(ut_str(r->in), out);

        if (!r->out) UT_INT(n, -1);
        else UT_BYTES(out, (size_t)n, r->out, strlen(r->out));
    }
}

UT(str_json_text)
{
    static const struct { int line; const char *in, *out; } rows[] = {
        UT_ROW("", ""), UT_ROW("plain", "plain"), UT_ROW("a\"b\\c", "a\\\"b\\\\c"), UT_ROW("\r\n\t\x7f", "\\u000d\\u000a\\u0009\\u007f"), UT_ROW("\xc3\xa4 \xe2\x82\xac \xf0\x9f\x98\x80", "\xc3\xa4 \xe2\x82\xac \xf0\x9f\x98\x80"),
        UT_ROW("\xff", "\\u00ff"), UT_ROW("\xc3", "\\u00c3"), UT_ROW("\xc0\x80", "\\u00c0\\u0080"), UT_ROW("\xed\xa0\x80", "\\u00ed\\u00a0\\u0080"), UT_ROW("x\xf4\x90\x80\x80", "x\\u00f4\\u0090\\u0080\\u0080"),
    };

    UT_EACH(r, rows) {
        struct str_builder b = str_growing();

        str_put_json(&b, ut_str(r->in));
        UT_SLICE(str_built(&b), r->out);
        str_free(&b);
    }
}

UT(str_utf8)
{
    uint64_t seed = 9;

    for (uint32_t c = 0; c < 0x120000; c += 1 + ut_random(&seed, 40)) { /* every code point encodes to itself, surrogates and beyond are refused */
        uint8_t p[4];
        size_t n = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
        bool ok = c < 0x110000 && !(c >= 0xd800 && c < 0xe000);

        for (size_t i = n; i-- > 1; ) p[i] = (uint8_t)(0x80 | (c >> 6 * (n - 1 - i) & 0x3f));
        p[0] = (uint8_t)(n == 1 ? c : (0xf00u >> n & 0xf0) | (n == 2 ? 0xc0 : n == 3 ? 0xe0 : 0xf0) | c >> 6 * (n - 1));
        UT_INT(str_utf8_len(ut_guard(0, p, n), n), ok ? (int)n : 0);
        if (n > 1) UT_INT(str_utf8_len(ut_guard(0, p, n - 1), n - 1), 0);
    }
}

UT(str_time)
{
    static const struct { int line; uint64_t ms; const char *out; } rows[] = {
        UT_ROW(0, "1970-01-01T00:00:00.000Z"), UT_ROW(951782399999, "2000-02-28T23:59:59.999Z"), UT_ROW(951782400000, "2000-02-29T00:00:00.000Z"),
        UT_ROW(1709251199001, "2024-02-29T23:59:59.001Z"), UT_ROW(4107542400000, "2100-03-01T00:00:00.000Z"), UT_ROW(1796058000123, "2026-11-30T17:00:00.123Z"),
    };
    uint64_t seed = 11;

    UT_EACH(r, rows) {
        uint8_t out[24] = {0};
        struct str_builder b = str_fixed(ut_guard(0, out, 24), 24);

        str_put_time(&b, r->ms);
        UT_SLICE(str_built(&b), r->out);
    }
    for (int i = 0; i < 3000; i++) {                                 /* against the C library */
        uint64_t s = (uint64_t)ut_random(&seed, 1u << 31) * 2;
        time_t t = (time_t)s;
        struct tm tm;
        char want[32];
        uint8_t got[32];
        struct str_builder b = str_fixed(got, sizeof got);

        gmtime_r(&t, &tm);
        strftime(want, sizeof want, "%Y-%m-%dT%H:%M:%S.000Z", &tm);
        str_put_time(&b, s * 1000);
        UT_SLICE(str_built(&b), want);
    }
}
