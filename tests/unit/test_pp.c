/* Unit tests of pp_: PROXY headers at every split point, directly before an unmapped page. */

#define PPT_SIG "\r\n\r\n\0\r\nQUIT\n"
#define PPT_V4 "\x01\x02\x03\x04\x0a\x00\x00\x01\xd4\x31\x01\xbb"                     /* 1.2.3.4:54321 to 10.0.0.1:443 */
#define PPT_V6 "\x20\x01\x0d\xb8\0\0\0\0\0\0\0\0\0\0\0\x01" "\xfd\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x02" "\x00\x50\x1f\x90"
#define PPT_MAPPED "\0\0\0\0\0\0\0\0\0\0\xff\xff\x01\x02\x03\x04" "\0\0\0\0\0\0\0\0\0\0\xff\xff\x0a\0\0\x01" "\x00\x50\x1f\x90"
#define PPT_BYTES(text) text, sizeof(text) - 1

/* What feeding the octets one by one says, and after how many. */
static int ppt_by_one(struct pp_header *h, const void *bytes, size_t n, size_t *decided)
{
    int rc = RJ_MORE;

    for (*decided = 0; *decided <= n; ++*decided)
        if ((rc = pp_feed(h, ut_guard(1, bytes, *decided), *decided)) != RJ_MORE) break;
    return rc;
}

static bool ppt_same(const struct pp_header *a, const struct pp_header *b)
{
    if (a->why || b->why) return a->why == b->why;
    return a->local == b->local && memcmp(&a->from, &b->from, sizeof a->from) == 0 && memcmp(&a->to, &b->to, sizeof a->to) == 0;
}

struct ppt_split {
    struct pp_header want;
    const uint8_t *all;
    int rc;
};

/* The first part alone asks for more, or says already what the whole says; the whole says it either way. */
static void ppt_on_split(void *ctx, const uint8_t *a, size_t an, const uint8_t *b, size_t bn)
{
    struct ppt_split *s = ctx;
    struct pp_header h;
    int rc = pp_feed(&h, a, an);

    if (rc != RJ_MORE) UT_CHECK(rc == s->rc && ppt_same(&h, &s->want));
    UT_INT(pp_feed(&h, ut_guard(2, s->all, an + bn), an + bn), s->rc);
    UT_CHECK(ppt_same(&h, &s->want));
    (void)b;
}

/* Feeds the octets with more behind them, at every split point and one by one: the answer is the same. Returns it. */
static int ppt_run(struct pp_header *h, const void *bytes, size_t n, size_t *decided)
{
    uint8_t *more = malloc(n + 5);
    struct ppt_split s = {.all = more};
    struct pp_header by_one;

    memcpy(more, bytes, n);
    memcpy(more + n, "GET /", 5);
    s.rc = pp_feed(&s.want, ut_guard(0, bytes, n), n);
    if (s.rc != RJ_MORE) {
        ut_split(more, n + 5, ppt_on_split, &s);
        UT_INT(ppt_by_one(&by_one, bytes, n, decided), s.rc);
        UT_CHECK(ppt_same(&by_one, &s.want));
    }
    *h = s.want;
    free(more);
    return s.rc;
}

static const char *ppt_addr(const struct net_addr *a)
{
    static char text[2][64]; /* allow global: two at a time are compared */
    static int at; /* allow global: see above */
    struct str_builder sb = str_fixed((uint8_t *)text[at = !at], 63);

    if (a->family) str_put_addr(&sb, a);
    text[at][sb.n] = 0;
    return text[at];
}

UT(pp_takes)
{
    static const struct { int line; const char *p; size_t n; bool local; const char *from, *to; } rows[] = {
        UT_ROW(PPT_BYTES("PROXY TCP4 1.2.3.4 10.0.0.1 54321 443\r\n"), false, "1.2.3.4:54321", "10.0.0.1:443"),
        UT_ROW(PPT_BYTES("PROXY TCP4 0.0.0.0 255.255.255.255 0 65535\r\n"), false, "0.0.0.0:0", "255.255.255.255:65535"),
        UT_ROW(PPT_BYTES("PROXY TCP6 2001:db8::1 fd00::2 80 8080\r\n"), false, "[2001:db8::1]:80", "[fd00::2]:8080"),
        UT_ROW(PPT_BYTES("PROXY TCP6 ::1 2001:DB8:0:0:0:0:0:1 1 2\r\n"), false, "[::1]:1", "[2001:db8::1]:2"),
        UT_ROW(PPT_BYTES("PROXY TCP6 ::ffff:1.2.3.4 ::ffff:a00:1 1 2\r\n"), false, "1.2.3.4:1", "10.0.0.1:2"),
        UT_ROW(PPT_BYTES("PROXY TCP6 ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffe ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff 65535 65535\r\n"), false,
               "[ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffe]:65535", "[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]:65535"),
        UT_ROW(PPT_BYTES("PROXY UNKNOWN\r\n"), true, "", ""),
        UT_ROW(PPT_BYTES("PROXY UNKNOWN \r\n"), true, "", ""),
        UT_ROW(PPT_BYTES("PROXY UNKNOWN 1.2.3.4 5.6.7.8 1 2\r\n"), true, "", ""),
        UT_ROW(PPT_BYTES("PROXY UNKNOWN ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff 65535 65535\r\n"), true, "", ""), /* 107 */
        UT_ROW(PPT_BYTES("PROXY UNKNOWN what ever  it says!\r\n"), true, "", ""),
        /* version 2 */
        UT_ROW(PPT_BYTES(PPT_SIG "\x21\x11\x00\x0c" PPT_V4), false, "1.2.3.4:54321", "10.0.0.1:443"),
        UT_ROW(PPT_BYTES(PPT_SIG "\x21\x12\x00\x0c" PPT_V4), false, "1.2.3.4:54321", "10.0.0.1:443"),
        UT_ROW(PPT_BYTES(PPT_SIG "\x21\x21\x00\x24" PPT_V6), false, "[2001:db8::1]:80", "[fd00::2]:8080"),
        UT_ROW(PPT_BYTES(PPT_SIG "\x21\x22\x00\x24" PPT_V6), false, "[2001:db8::1]:80", "[fd00::2]:8080"),
        UT_ROW(PPT_BYTES(PPT_SIG "\x21\x21\x00\x24" PPT_MAPPED), false, "1.2.3.4:80", "10.0.0.1:8080"),
        UT_ROW(PPT_BYTES(PPT_SIG "\x21\x11\x00\x0f" PPT_V4 "\x04\0\0"), false, "1.2.3.4:54321", "10.0.0.1:443"),
        UT_ROW(PPT_BYTES(PPT_SIG "\x21\x11\x00\x17" PPT_V4 "\x01\x00\x02h2\x05\x00\x03uid"), false, "1.2.3.4:54321", "10.0.0.1:443"),
        UT_ROW(PPT_BYTES(PPT_SIG "\x20\x00\x00\x00"), true, "", ""),
        UT_ROW(PPT_BYTES(PPT_SIG "\x20\x11\x00\x0c" PPT_V4), true, "", ""),
        UT_ROW(PPT_BYTES(PPT_SIG "\x20\xff\x00\x02\x01\xff"), true, "", ""),                  /* of LOCAL nothing but the length counts */
        UT_ROW(PPT_BYTES(PPT_SIG "\x21\x00\x00\x00"), true, "", ""),
        UT_ROW(PPT_BYTES(PPT_SIG "\x21\x00\x00\x05" "abcde"), true, "", ""),
    };

    UT_EACH(r, rows) {
        struct pp_header h;
        size_t decided;

        UT_INT(ppt_run(&h, r->p, r->n, &decided), r->n);
        UT_INT(decided, r->n);
        UT_CHECK(h.local == r->local);
        UT_TEXT(ppt_addr(&h.from), r->from);
        UT_TEXT(ppt_addr(&h.to), r->to);
    }
}

/* decided: the octet that can never be right refuses at once. */
UT(pp_refuses)
{
    static const struct { int line; const char *p; size_t n, decided; const char *why; } rows[] = {
        UT_ROW(PPT_BYTES("GET / HTTP/1.1\r\n"), 1, "no PROXY header"),
        UT_ROW(PPT_BYTES("\x16\x03\x01\x02"), 1, "no PROXY header"),
        UT_ROW(PPT_BYTES("\n"), 1, "no PROXY header"),
        UT_ROW(PPT_BYTES("POST / HTTP/1.1\r\n"), 2, "no PROXY header"),
        UT_ROW(PPT_BYTES("PROXY\r\n"), 6, "bad octet in a PROXY header"),
        UT_ROW(PPT_BYTES("PROXY\tTCP4 1.2.3.4 5.6.7.8 1 2\r\n"), 6, "bad octet in a PROXY header"),
        UT_ROW(PPT_BYTES("proxy TCP4 1.2.3.4 5.6.7.8 1 2\r\n"), 1, "no PROXY header"),
        UT_ROW(PPT_BYTES(" PROXY TCP4 1.2.3.4 5.6.7.8 1 2\r\n"), 1, "no PROXY header"),
        UT_ROW(PPT_BYTES("PROXYX TCP4"), 6, "no PROXY header"),
        UT_ROW(PPT_BYTES("PROXY  TCP4 1.2.3.4 5.6.7.8 1 2\r\n"), 7, "bad family in a PROXY header"),
        UT_ROW(PPT_BYTES("PROXY TCP 1.2.3.4 5.6.7.8 1 2\r\n"), 10, "bad family in a PROXY header"),
        UT_ROW(PPT_BYTES("PROXY tcp4 1.2.3.4 5.6.7.8 1 2\r\n"), 7, "bad family in a PROXY header"),
        UT_ROW(PPT_BYTES("PROXY TCP5 1.2.3.4 5.6.7.8 1 2\r\n"), 10, "bad family in a PROXY header"),
        UT_ROW(PPT_BYTES("PROXY TCP44 1.2.3.4 5.6.7.8 1 2\r\n"), 11, "bad family in a PROXY header"),
        UT_ROW(PPT_BYTES("PROXY UDP4 1.2.3.4 5.6.7.8 1 2\r\n"), 8, "bad family in a PROXY header"),
        UT_ROW(PPT_BYTES("PROXY UNKNOWNS\r\n"), 14, "bad family in a PROXY header"),
        UT_ROW(PPT_BYTES("PROXY TCP4\r\n"), 11, "bad octet in a PROXY header"),
        UT_ROW(PPT_BYTES("PROXY TCP4 1.2.3.4\r\n"), 19, "bad octet in a PROXY header"),
        UT_ROW(PPT_BYTES("PROXY TCP4 1.2.3.4 5.6.7.8 1\r\n"), 29, "bad octet in a PROXY header"),
        UT_ROW(PPT_BYTES("PROXY TCP4 1.2.3.4 5.6.7.8 1 \r\n"), 30, "bad destination port in a PROXY header"),
        UT_ROW(PPT_BYTES("PROXY TCP4 1.2.3.4 5.6.7.8 1 2 \r\n"), 31, "a PROXY header does not end with CRLF"),
        UT_ROW(PPT_BYTES("PROXY TCP4 1.2.3.4 5.6.7.8 1 2\n"), 31, "a PROXY header does not end with CRLF"),
        UT_ROW(PPT_BYTES("PROXY TCP4 1.2.3.4 5.6.7.8 1 2\rX"), 32, "a PROXY header does not end with CRLF"),
        UT_ROW(PPT_BYTES("PROXY TCP4  1.2.3.4 5.6.7.8 1 2\r\n"), 12, "bad source address in a PROXY header"),
        UT_ROW(PPT_BYTES("PROXY TCP4 1.2.3 5.6.7.8 1 2\r\n"), 17, "bad source address in a PROXY header"),
        UT_ROW(PPT_BYTES("PROXY TCP4 1.2.3.4.5 5.6.7.8 1 2\r\n"), 21, "bad source address in a PROXY header"),
        UT_ROW(PPT_BYTES("PROXY TCP4 1.2.3.256 5.6.7.8 1 2\r\n"), 21, "bad source address in a PROXY header"),
        UT_ROW(PPT_BYTES("PROXY TCP4 01.2.3.4 5.6.7.8 1 2\r\n"), 20, "bad source address in a PROXY header"),
        UT_ROW(PPT_BYTES("PROXY TCP4 0x1.2.3.4 5.6.7.8 1 2\r\n"), 13, "bad source address in a PROXY header"),
        UT_ROW(PPT_BYTES("PROXY TCP4 +1.2.3.4 5.6.7.8 1 2\r\n"), 12, "bad source address in a PROXY header"),
        UT_ROW(PPT_BYTES("PROXY TCP4 16909060 5.6.7.8 1 2\r\n"), 20, "bad source address in a PROXY header"),
        UT_ROW(PPT_BYTES("PROXY TCP4 ::1 ::2 1 2\r\n"), 12, "bad source address in a PROXY header"),
        UT_ROW(PPT_BYTES("PROXY TCP4 ::ffff:1.2.3.4 5.6.7.8 1 2\r\n"), 12, "bad source address in a PROXY header"),
        UT_ROW(PPT_BYTES("PROXY TCP4 1.2.3.4 ::1 1 2\r\n"), 20, "bad destination address in a PROXY header"),
        UT_ROW(PPT_BYTES("PROXY TCP4 1.2.3.4 a.test 1 2\r\n"), 20, "bad destination address in a PROXY header"),
        UT_ROW(PPT_BYTES("PROXY TCP6 1.2.3.4 5.6.7.8 1 2\r\n"), 19, "bad source address in a PROXY header"),
        UT_ROW(PPT_BYTES("PROXY TCP6 ::1 5.6.7.8 1 2\r\n"), 23, "bad destination address in a PROXY header"),
        UT_ROW(PPT_BYTES("PROXY TCP6 [::1] ::2 1 2\r\n"), 12, "bad source address in a PROXY header"),
        UT_ROW(PPT_BYTES("PROXY TCP6 ::1%eth0 ::2 1 2\r\n"), 15, "bad source address in a PROXY header"),
        UT_ROW(PPT_BYTES("PROXY TCP6 1::2::3 ::2 1 2\r\n"), 19, "bad source address in a PROXY header"),
        UT_ROW(PPT_BYTES("PROXY TCP6 1:2:3:4:5:6:7 ::2 1 2\r\n"), 25, "bad source address in a PROXY header"),
        UT_ROW(PPT_BYTES("PROXY TCP6 12345::1 ::2 1 2\r\n"), 20, "bad source address in a PROXY header"),
        UT_ROW(PPT_BYTES("PROXY TCP4 1.2.3.4 5.6.7.8 -1 2\r\n"), 28, "bad source port in a PROXY header"),
        UT_ROW(PPT_BYTES("PROXY TCP4 1.2.3.4 5.6.7.8 +1 2\r\n"), 28, "bad source port in a PROXY header"),
        UT_ROW(PPT_BYTES("PROXY TCP4 1.2.3.4 5.6.7.8 01 2\r\n"), 29, "bad source port in a PROXY header"),
        UT_ROW(PPT_BYTES("PROXY TCP4 1.2.3.4 5.6.7.8 00 2\r\n"), 29, "bad source port in a PROXY header"),
        UT_ROW(PPT_BYTES("PROXY TCP4 1.2.3.4 5.6.7.8 65536 2\r\n"), 32, "bad source port in a PROXY header"),
        UT_ROW(PPT_BYTES("PROXY TCP4 1.2.3.4 5.6.7.8 1 65536\r\n"), 34, "bad destination port in a PROXY header"),
        UT_ROW(PPT_BYTES("PROXY TCP4 1.2.3.4 5.6.7.8 1 999999\r\n"), 34, "bad destination port in a PROXY header"),
        UT_ROW(PPT_BYTES("PROXY TCP4 1.2.3.4 5.6.7.8 1 0x50\r\n"), 31, "bad destination port in a PROXY header"),
        UT_ROW(PPT_BYTES("PROXY TCP4 1.2.3.4 5.6.7.8 http 2\r\n"), 28, "bad source port in a PROXY header"),
        UT_ROW(PPT_BYTES("PROXY UNKNOWN a\tb\r\n"), 16, "a PROXY header does not end with CRLF"),
        UT_ROW(PPT_BYTES("PROXY UNKNOWN a\0b\r\n"), 16, "a PROXY header does not end with CRLF"),
        UT_ROW(PPT_BYTES("PROXY UNKNOWN \xff\r\n"), 15, "a PROXY header does not end with CRLF"),
        UT_ROW(PPT_BYTES("PROXY UNKNOWN\n"), 14, "a PROXY header does not end with CRLF"),
        UT_ROW(PPT_BYTES("PROXY UNKNOWN ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff 65535 655350\r\n"), 107, "PROXY header too long"),
        UT_ROW(PPT_BYTES("PROXY TCP4 1111111111111111111111111111111111111111111111111111111111111111111111111111111111111111111111111111111"), 107,
               "PROXY header too long"),
        /* version 2 */
        UT_ROW(PPT_BYTES("\r\n\r\nGET / HTTP/1.1\r\n"), 5, "no PROXY header"),
        UT_ROW(PPT_BYTES("\r\n\r\n\0\r\nQUIT\r"), 12, "no PROXY header"),
        UT_ROW(PPT_BYTES(PPT_SIG "\x11\x11\x00\x0c" PPT_V4), 13, "bad version or command in a PROXY header"),
        UT_ROW(PPT_BYTES(PPT_SIG "\x31\x11\x00\x0c" PPT_V4), 13, "bad version or command in a PROXY header"),
        UT_ROW(PPT_BYTES(PPT_SIG "\x22\x11\x00\x0c" PPT_V4), 13, "bad version or command in a PROXY header"),
        UT_ROW(PPT_BYTES(PPT_SIG "\x2f\x11\x00\x0c" PPT_V4), 13, "bad version or command in a PROXY header"),
        UT_ROW(PPT_BYTES(PPT_SIG "\x21\x01\x00\x0c" PPT_V4), 14, "bad family in a PROXY header"),
        UT_ROW(PPT_BYTES(PPT_SIG "\x21\x10\x00\x0c" PPT_V4), 14, "bad family in a PROXY header"),
        UT_ROW(PPT_BYTES(PPT_SIG "\x21\x13\x00\x0c" PPT_V4), 14, "bad family in a PROXY header"),
        UT_ROW(PPT_BYTES(PPT_SIG "\x21\x30\x00\xd8"), 14, "bad family in a PROXY header"),
        UT_ROW(PPT_BYTES(PPT_SIG "\x21\x41\x00\x0c" PPT_V4), 14, "bad family in a PROXY header"),
        UT_ROW(PPT_BYTES(PPT_SIG "\x21\xf1\x00\x0c" PPT_V4), 14, "bad family in a PROXY header"),
        UT_ROW(PPT_BYTES(PPT_SIG "\x21\x11\x00\x0b" PPT_V4), 16, "PROXY header too short for its addresses"),
        UT_ROW(PPT_BYTES(PPT_SIG "\x21\x11\x00\x00"), 16, "PROXY header too short for its addresses"),
        UT_ROW(PPT_BYTES(PPT_SIG "\x21\x21\x00\x0c" PPT_V4), 16, "PROXY header too short for its addresses"),
        UT_ROW(PPT_BYTES(PPT_SIG "\x21\x21\x00\x23" PPT_V6), 16, "PROXY header too short for its addresses"),
        UT_ROW(PPT_BYTES(PPT_SIG "\x21\x31\x00\xd7"), 16, "PROXY header too short for its addresses"),
        UT_ROW(PPT_BYTES(PPT_SIG "\x21\x11\x20\x01"), 16, "PROXY header too long"),
        UT_ROW(PPT_BYTES(PPT_SIG "\x20\x00\x21\x00"), 15, "PROXY header too long"),
        UT_ROW(PPT_BYTES(PPT_SIG "\x21\x11\xff\xff"), 15, "PROXY header too long"),
        UT_ROW(PPT_BYTES(PPT_SIG "\x21\x11\x00\x0d" PPT_V4 "\x04"), 29, "a TLV does not fit its PROXY header"),
        UT_ROW(PPT_BYTES(PPT_SIG "\x21\x11\x00\x0e" PPT_V4 "\x04\0"), 30, "a TLV does not fit its PROXY header"),
        UT_ROW(PPT_BYTES(PPT_SIG "\x21\x11\x00\x0f" PPT_V4 "\x04\0\x01"), 31, "a TLV does not fit its PROXY header"),
        UT_ROW(PPT_BYTES(PPT_SIG "\x21\x11\x00\x13" PPT_V4 "\x04\0\x01" "a" "\x04\xff\xff"), 35, "a TLV does not fit its PROXY header"),
    };

    UT_EACH(r, rows) {
        struct pp_header h;
        size_t decided = 0;

        UT_INT(ppt_run(&h, r->p, r->n, &decided), RJ_BAD);
        UT_INT(decided, r->decided);
        UT_TEXT(h.why, r->why);
    }
}

/* Every beginning of a good header asks for more. */
UT(pp_asks_for_more)
{
    static const struct { int line; const char *p; size_t n; } rows[] = {
        UT_ROW(PPT_BYTES("PROXY TCP4 255.255.255.255 255.255.255.255 65535 65535\r")),
        UT_ROW(PPT_BYTES("PROXY TCP6 ABCD:ef01:2345:6789::1.2.3.4 ::")),
        UT_ROW(PPT_BYTES("PROXY UNKNOWN some text")),
        UT_ROW(PPT_BYTES(PPT_SIG "\x21\x11\x20\x00" PPT_V4)),
        UT_ROW(PPT_BYTES(PPT_SIG "\x20\x00\x00\x01")),
    };

    UT_EACH(r, rows)
        for (size_t k = 0; k <= r->n; k++) {
            struct pp_header h;

            UT_INT(pp_feed(&h, ut_guard(0, r->p, k), k), RJ_MORE);
        }
}

/* The longest header, and AF_UNIX: addresses of 216 octets, TLVs up to the limit. */
UT(pp_long_headers)
{
    static const struct { int line; uint8_t family; size_t addrs, length; int rc; } rows[] = {
        UT_ROW(0x11, 12, 12 + 2048, 16 + 12 + 2048),
        UT_ROW(0x11, 12, PP_V2_LENGTH_MAX, 16 + PP_V2_LENGTH_MAX),
        UT_ROW(0x11, 12, PP_V2_LENGTH_MAX + 1, RJ_BAD),
        UT_ROW(0x31, 216, 216, 16 + 216),
        UT_ROW(0x32, 216, 216 + 3, 16 + 216 + 3),
        UT_ROW(0x31, 216, 216 + 2, RJ_BAD),
    };

    UT_EACH(r, rows) {
        uint8_t *p = calloc(1, 16 + r->length);
        struct pp_header h;

        memcpy(p, PPT_SIG "\x21", 13);
        p[13] = r->family;
        p[14] = (uint8_t)(r->length >> 8);
        p[15] = (uint8_t)r->length;
        for (size_t at = 16 + r->addrs; at + 3 <= 16 + r->length;) {  /* TLVs of 300 octets and one of the rest */
            size_t n = 16 + r->length - at - 3;

            if (n > 303) n = 300;
            p[at] = 0xee;
            p[at + 1] = (uint8_t)(n >> 8);
            p[at + 2] = (uint8_t)n;
            at += 3 + n;
        }
        UT_INT(pp_feed(&h, ut_guard(0, p, 16 + r->length), 16 + r->length), r->rc);
        if (r->rc > 0) {
            UT_INT(pp_feed(&h, ut_guard(0, p, (size_t)r->rc - 1), (size_t)r->rc - 1), RJ_MORE);
            UT_CHECK(pp_feed(&h, ut_guard(0, p, (size_t)r->rc), (size_t)r->rc) > 0 && h.local == (r->family >= 0x30));
        }
        free(p);
    }
}
