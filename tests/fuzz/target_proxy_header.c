/* The PROXY header, versions 1 and 2: the verdict does not depend on the cuts, is that of a slow reader, and addresses survive being written and
 * read. Input: the octets. */

struct fz_header {
    bool local;
    struct net_addr from, to;
};

static bool fz_read_port(struct str s, uint16_t *port)
{
    unsigned v = 0;

    if (!s.n || s.n > 5 || (s.n > 1 && s.p[0] == '0')) return false;
    for (size_t i = 0; i < s.n; i++) {
        if (s.p[i] < '0' || s.p[i] > '9') return false;
        v = v * 10 + s.p[i] - '0';
    }
    *port = (uint16_t)v;
    return v <= 65535;
}

/* A line of version 1 with its CRLF. */
static bool fz_read_v1(struct str s, struct fz_header *h)
{
    struct str line, word[6], rest;
    unsigned n = 0;
    char text[64];
    uint8_t ip[16];

    if (!fz_cut(&s, "\r\n", &line) || s.n || line.n + 2 > PP_V1_MAX) return false;
    for (size_t i = 0; i < line.n; i++)
        if (line.p[i] < ' ' || line.p[i] >= 0x7f) return false;
    for (rest = line; n < 6 && fz_cut(&rest, " ", &word[n]);) n++;
    if (n < 6) word[n++] = rest;
    else if (rest.n || (line.n && line.p[line.n - 1] == ' ')) n = 7;
    if (!fz_eq(word[0], S("PROXY")) || n < 2) return false;
    h->local = fz_eq(word[1], S("UNKNOWN"));
    if (h->local) return true;
    if (n != 6 || (!fz_eq(word[1], S("TCP4")) && !fz_eq(word[1], S("TCP6")))) return false;
    for (int k = 0; k < 2; k++) {
        struct net_addr *a = k ? &h->to : &h->from;

        if (word[2 + k].n >= sizeof text) return false;
        snprintf(text, sizeof text, "%.*s", STR_ARG(word[2 + k]));
        a->family = word[1].p[3] == '4' ? AF_INET : AF_INET6;
        if (inet_pton(a->family, text, ip) != 1 || !fz_read_port(word[4 + k], &a->port)) return false;
        if (a->family == AF_INET) memcpy(a->ip, "\0\0\0\0\0\0\0\0\0\0\xff\xff", 12), memcpy(a->ip + 12, ip, 4);
        else memcpy(a->ip, ip, 16);
    }
    return true;
}

static bool fz_read_v2(struct str s, struct fz_header *h)
{
    static const unsigned sizes[] = {0, 4, 16, 108};
    unsigned family, length, at = 16;

    if (s.n < 16 || memcmp(s.p, "\r\n\r\n\0\r\nQUIT\n", 12) != 0 || (s.p[12] != 0x20 && s.p[12] != 0x21)) return false;
    family = s.p[13] >> 4;
    length = (unsigned)s.p[14] << 8 | s.p[15];
    if (length > PP_V2_LENGTH_MAX || s.n != 16 + length) return false;
    h->local = s.p[12] == 0x20 || s.p[13] == 0;
    if (h->local) return true;
    if (family < 1 || family > 3 || (s.p[13] & 15) < 1 || (s.p[13] & 15) > 2 || length < 2 * sizes[family] + (family < 3 ? 4 : 0)) return false;
    for (int k = 0; k < 2; k++, at += sizes[family]) {
        struct net_addr *a = k ? &h->to : &h->from;

        a->family = family == 1 ? AF_INET : AF_INET6;
        if (family == 1) memcpy(a->ip, "\0\0\0\0\0\0\0\0\0\0\xff\xff", 12), memcpy(a->ip + 12, s.p + at, 4);
        if (family == 2) memcpy(a->ip, s.p + at, 16);
    }
    h->local = family == 3;
    if (family < 3) {
        h->from.port = (uint16_t)(s.p[at] << 8 | s.p[at + 1]);
        h->to.port = (uint16_t)(s.p[at + 2] << 8 | s.p[at + 3]);
        at += 4;
    }
    while (at < s.n) {
        if (s.n - at < 3) return false;
        at += 3u + ((unsigned)s.p[at + 1] << 8 | s.p[at + 2]);
    }
    return at == s.n;
}

static bool fz_same_header(const struct pp_header *h, const struct fz_header *want)
{
    if (h->local || want->local) return h->local == want->local && !h->from.family && !h->to.family;
    return str_addr_eq(&h->from, &want->from) && str_addr_eq(&h->to, &want->to);
}

/* Written again as version 1, it says the same. */
static void fz_check_rewritten_header(const struct pp_header *h)
{
    struct str_builder sb = str_growing();
    struct pp_header again;
    struct str s;

    if (h->from.family != h->to.family) return;          /* one of them is a mapped IPv4 address: version 1 has no words for that */
    str_putf(&sb, "PROXY TCP%c ", h->from.family == AF_INET ? '4' : '6');
    str_put_ip(&sb, &h->from);
    str_put_c(&sb, ' ');
    str_put_ip(&sb, &h->to);
    str_putf(&sb, " %u %u\r\n", h->from.port, h->to.port);
    s = fz_copy_of(3, str_built(&sb));
    if (pp_feed(&again, s.p, s.n) != (int)s.n) FZ_FAIL("refused: %.*s", STR_ARG(s));
    FZ_CHECK(str_addr_eq(&again.from, &h->from) && str_addr_eq(&again.to, &h->to));
    str_free(&sb);
}

FZ(proxy_header, 9000)
{
    struct str s = fz_copy(0, p, n);
    struct pp_header h, part;
    struct fz_header want = {0};
    uint64_t seed = fz_seed(p, n);
    int rc = pp_feed(&h, s.p, s.n), early = RJ_MORE;

    FZ_CHECK(rc == RJ_BAD ? h.why != NULL : rc >= 0 && (size_t)rc <= n);
    FZ_CHECK(rc != RJ_MORE || n < PP_V2_HEAD + PP_V2_LENGTH_MAX);
    for (size_t k = 0; k <= n && early == RJ_MORE; k += 1 + (k < 300 ? 0 : ut_random(&seed, 500))) early = pp_feed(&part, ut_guard(1, p, k), k);
    if (n < 300) FZ_CHECK(early == rc);
    else if (early != RJ_MORE) FZ_CHECK(early == rc);
    if (rc > 0) {
        s = fz_copy(2, p, (size_t)rc);
        FZ_CHECK(s.p[0] == '\r' ? fz_read_v2(s, &want) : fz_read_v1(s, &want));
        FZ_CHECK(fz_same_header(&h, &want));
        if (!h.local) fz_check_rewritten_header(&h);
    } else if (rc == RJ_BAD) {                           /* no beginning of it is a header */
        for (size_t k = 1; k <= n && k < 300; k++) FZ_CHECK(!fz_read_v1(str_of(s.p, k), &want) && !fz_read_v2(str_of(s.p, k), &want));
    }
}
