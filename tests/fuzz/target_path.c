/* Normal forms of paths and hosts against slow ones: the same verdict, the same text, idempotent, and nothing in it that some server reads
 * otherwise. Input: a byte of options (bit 0: a host), then the text. */

static bool fz_is_unreserved(uint8_t c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || (c && strchr("-._~", c)); }
static unsigned fz_hex_value(uint8_t c) { return (unsigned)(c <= '9' ? c - '0' : (c | 32) - 'a' + 10); }

/* Decodes what may be decoded; digits of the rest in capitals. False: no path. */
static bool fz_decode_path(struct str s, struct str_builder *out)
{
    for (size_t i = 0; i < s.n; i++) {
        unsigned v;

        if (s.p[i] <= ' ' || s.p[i] >= 0x7f || strchr("\"#<>?\\", s.p[i])) return false;
        if (s.p[i] != '%') {
            str_put_c(out, (char)s.p[i]);
            continue;
        }
        if (i + 2 >= s.n || !fz_is_hex(s.p[i + 1]) || !fz_is_hex(s.p[i + 2])) return false;
        v = fz_hex_value(s.p[i + 1]) << 4 | fz_hex_value(s.p[i + 2]);
        if (!v) return false;
        if (fz_is_unreserved((uint8_t)v)) str_put_c(out, (char)v);
        else str_putf(out, "%%%02X", v);
        i += 2;
    }
    return true;
}

/* A part between slashes that some server reads as a dot segment, and others as a name. */
static bool fz_is_veiled(struct str seg)
{
    struct str rest = seg, part;
    bool cut = false;

    if (seg.n && seg.p[0] == '.' && memchr(seg.p, ';', seg.n)) {
        size_t k = str_find(seg, ';');

        if (k == 1 || (k == 2 && seg.p[1] == '.')) return true;
    }
    for (;;) {
        struct str a = rest, b = rest, pa = rest, pb = rest;
        bool has_a = fz_cut(&a, "%2F", &pa), has_b = fz_cut(&b, "%5C", &pb);

        if (!has_a && !has_b) return cut && fz_eq(rest, S(".."));
        cut = true;
        part = has_a && (!has_b || pa.n < pb.n) ? pa : pb;
        rest = has_a && (!has_b || pa.n < pb.n) ? a : b;
        if (fz_eq(part, S(".."))) return true;
    }
}

/* The normal form by segments, kept in a list. Returns octets, or -400. */
static long fz_slow_path(struct str raw, struct str_builder *out)
{
    struct str_builder plain = str_growing();
    struct str seg[4200], rest;
    unsigned n = 0;
    bool good = raw.n && raw.p[0] == '/' && fz_decode_path(raw, &plain), last = false;

    rest = good ? str_from(str_built(&plain), 1) : (struct str){0};
    while (good && !last) {
        struct str s = rest;

        last = !fz_cut(&rest, "/", &s);
        if (last) s = rest;
        if (fz_is_veiled(s)) good = false;
        else if (fz_eq(s, S("."))) { if (last) seg[n++] = (struct str){0}; }
        else if (!fz_eq(s, S(".."))) seg[n++] = s;
        else if (!n) good = false;
        else if (n--, last) seg[n++] = (struct str){0};
    }
    for (unsigned i = 0; good && i < n; i++) {
        str_put_c(out, '/');
        str_put(out, seg[i]);
    }
    str_free(&plain);
    return good ? (long)out->n : -400;
}

static void fz_check_path(struct str raw)
{
    static uint8_t out[4096], again[4096];
    struct str_builder slow = str_growing();
    bool star = raw.n == 1 && raw.p[0] == '*';
    long n, want;
    struct str form, part;

    n = http_path_normalize(raw, out);
    want = raw.n == 0 || star ? (str_put(&slow, star ? S("*") : S("/")), 1) : fz_slow_path(raw, &slow);
    form = str_of(out, n > 0 ? (size_t)n : 0);
    if (n != want || !fz_eq(form, str_built(&slow))) FZ_FAIL("%ld %.*s, slowly %ld %.*s", n, STR_ARG(form), want, STR_ARG(str_built(&slow)));
    str_free(&slow);
    if (n < 0) return;
    FZ_CHECK((size_t)n <= raw.n || raw.n == 0);
    form = fz_copy_of(1, form);
    FZ_CHECK(http_path_normalize(form, again) == n && !memcmp(again, form.p, form.n));
    if (http_path_is_plain(raw) && !star && raw.p[0] == '/') FZ_CHECK(fz_eq(form, raw));
    for (struct str rest = form; rest.n;) {
        bool more = fz_cut(&rest, "/", &part);

        if (!more) part = rest, rest.n = 0;
        FZ_CHECK(!fz_eq(part, S(".")) && !fz_eq(part, S("..")));
    }
    FZ_CHECK(h1_target_is_good(form, true));
}

static void fz_check_host(struct str raw)
{
    static uint8_t out[4096], again[4096];
    size_t n = http_host_normalize(raw, out);
    struct str form;

    if (!n) {
        FZ_CHECK(http_host_split(raw) == 0);
        return;
    }
    FZ_CHECK(n <= HTTP_HOST_MAX && n <= raw.n);
    form = fz_copy(1, out, n);
    FZ_CHECK(http_host_normalize(form, again) == n && !memcmp(again, form.p, form.n));
    for (size_t i = 0; i < form.n; i++) {
        uint8_t c = form.p[i];

        FZ_CHECK((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || strchr("-._[]:", c));
        FZ_CHECK(c != '.' || (i && form.p[i - 1] != '.' && i + 1 < form.n) || form.p[0] == '[');
        FZ_CHECK((c != ':' && c != '[' && c != ']') || form.p[0] == '[');
    }
}

FZ(path, 1024)
{
    struct fz_in in = {p, n};
    uint8_t option = fz_take(&in);
    struct str s = fz_copy(0, in.p, in.n);

    if (option & 1) fz_check_host(s);
    else fz_check_path(s);
}
