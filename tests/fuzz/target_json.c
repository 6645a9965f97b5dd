/* JSON: events do not depend on the cuts, are those of a slow reader, and survive being written and read. Input: a byte of options (bit 0: many
 * values, bits 1-2: the limit of a string), then the text. */

#include "events.h"

struct fz_slow_json {
    struct str in;
    size_t at, limit;
    struct str_builder out;                              /* words without places, as fz_on_event_anywhere has them */
    struct str_builder text;
    unsigned depth;
};

static bool fz_slow_value(struct fz_slow_json *j);

static uint8_t fz_slow_peek(const struct fz_slow_json *j) { return j->at < j->in.n ? j->in.p[j->at] : 0; }

static void fz_slow_space(struct fz_slow_json *j)
{
    while (j->at < j->in.n && (j->in.p[j->at] == ' ' || j->in.p[j->at] == '\t' || j->in.p[j->at] == '\r' || j->in.p[j->at] == '\n')) j->at++;
}

static bool fz_slow_hex(struct fz_slow_json *j, uint32_t *v)
{
    *v = 0;
    for (int i = 0; i < 4; i++, j->at++) {
        uint8_t c = fz_slow_peek(j);

        if (!fz_is_hex(c)) return false;
        *v = *v * 16 + (uint32_t)(c <= '9' ? c - '0' : (c | 32) - 'a' + 10);
    }
    return true;
}

static void fz_slow_utf8(struct str_builder *b, uint32_t v)
{
    if (v < 0x80) str_put_c(b, (char)v);
    else if (v < 0x800) str_putf(b, "%c%c", (int)(0xc0 + v / 64), (int)(0x80 + v % 64));
    else if (v < 0x10000) str_putf(b, "%c%c%c", (int)(0xe0 + v / 4096), (int)(0x80 + v / 64 % 64), (int)(0x80 + v % 64));
    else str_putf(b, "%c%c%c%c", (int)(0xf0 + v / 262144), (int)(0x80 + v / 4096 % 64), (int)(0x80 + v / 64 % 64), (int)(0x80 + v % 64));
}

static bool fz_slow_escape(struct fz_slow_json *j)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    uint8_t c = fz_slow_peek(j);
    const char *k = c ? strchr(from, c) : NULL;
    uint32_t v, w;

    j->at++;
    if (k) return str_put_c(&j->text, to[k - from]), true;
    if (c != 'u' || !fz_slow_hex(j, &v)) return false;
    if (v >= 0xdc00 && v < 0xe000) return false;
    if (v >= 0xd800 && v < 0xdc00) {
        if (fz_slow_peek(j) != '\\') return false;
        j->at++;
        if (fz_slow_peek(j) != 'u') return false;
        j->at++;
        if (!fz_slow_hex(j, &w) || w < 0xdc00 || w > 0xdfff) return false;
        v = 0x10000 + (v - 0xd800) * 1024 + (w - 0xdc00);
    }
    if (v) fz_slow_utf8(&j->text, v);
    else str_put(&j->text, str_of("", 1));
    return true;
}

/* The string at its quote, in j->text. */
static bool fz_slow_string(struct fz_slow_json *j)
{
    j->text.n = 0;
    for (j->at++;;) {
        uint8_t c = fz_slow_peek(j);

        if (j->at >= j->in.n || c < 0x20) return false;
        if (c == '"') break;
        if (c == '\\') {
            j->at++;
            if (!fz_slow_escape(j)) return false;
        } else if (c < 0x80) {
            str_put_c(&j->text, (char)c);
            j->at++;
        } else {
            size_t k = c >= 0xf0 ? 4 : c >= 0xe0 ? 3 : 2;
            uint32_t v = c & (0xff >> (k + 1)), min = k == 2 ? 0x80 : k == 3 ? 0x800 : 0x10000;

            if (c < 0xc0 || c > 0xf7 || k > j->in.n - j->at) return false;
            for (size_t i = 1; i < k; i++) {
                if ((j->in.p[j->at + i] & 0xc0) != 0x80) return false;
                v = v * 64 + (j->in.p[j->at + i] & 63);
            }
            if (v < min || v > 0x10ffff || (v >= 0xd800 && v < 0xe000)) return false;
            str_put(&j->text, str_of(j->in.p + j->at, k));
            j->at += k;
        }
    }
    j->at++;
    return j->text.n <= j->limit;
}

static size_t fz_slow_digits(struct fz_slow_json *j)
{
    size_t n = 0;

    for (; fz_slow_peek(j) >= '0' && fz_slow_peek(j) <= '9'; j->at++) n++;
    return n;
}

static bool fz_slow_number(struct fz_slow_json *j)
{
    size_t from = j->at, n;
    bool zero;

    if (fz_slow_peek(j) == '-') j->at++;
    zero = fz_slow_peek(j) == '0';
    n = fz_slow_digits(j);
    if (!n || (zero && n > 1)) return false;
    if (fz_slow_peek(j) == '.') {
        j->at++;
        if (!fz_slow_digits(j)) return false;
    }
    if ((fz_slow_peek(j) | 32) == 'e') {
        j->at++;
        if (fz_slow_peek(j) == '+' || fz_slow_peek(j) == '-') j->at++;
        if (!fz_slow_digits(j)) return false;
    }
    n = j->at - from;
    if (j->at < j->in.n && strchr("+-.eE", fz_slow_peek(j)) && fz_slow_peek(j)) return false;
    str_putf(&j->out, "n%u %.*s 1:1\n", j->depth, (int)n, j->in.p + from);
    return n <= JSON_NUMBER_MAX;
}

static bool fz_slow_word(struct fz_slow_json *j, const char *word)
{
    for (const char *c = word; *c; c++, j->at++)
        if (fz_slow_peek(j) != (uint8_t)*c) return false;
    str_putf(&j->out, "%c%u %s 1:1\n", *word == 'n' ? '0' : 'b', j->depth, word);
    return true;
}

static bool fz_slow_members(struct fz_slow_json *j, bool object)
{
    for (bool first = true;; first = false) {
        fz_slow_space(j);
        if (first && fz_slow_peek(j) == (object ? '}' : ']')) break;
        if (object) {
            if (fz_slow_peek(j) != '"' || !fz_slow_string(j)) return false;
            str_putf(&j->out, "k%u ", j->depth);
            str_put_quoted(&j->out, str_built(&j->text));
            str_put_z(&j->out, " 1:1\n");
            fz_slow_space(j);
            if (fz_slow_peek(j) != ':') return false;
            j->at++;
        }
        if (!fz_slow_value(j)) return false;
        fz_slow_space(j);
        if (fz_slow_peek(j) == (object ? '}' : ']')) break;
        if (fz_slow_peek(j) != ',') return false;
        j->at++;
    }
    j->at++;
    return true;
}

/* Recursion: containers hold values; JSON_DEPTH ends it. */
static bool fz_slow_value(struct fz_slow_json *j)
{
    uint8_t c;

    fz_slow_space(j);
    c = fz_slow_peek(j);
    if (c == '{' || c == '[') {
        if (j->depth == JSON_DEPTH) return false;
        str_putf(&j->out, "%c%u  1:1\n", c, j->depth++);
        j->at++;
        if (!fz_slow_members(j, c == '{')) return false;
        str_putf(&j->out, "%c%u  1:1\n", c == '{' ? '}' : ']', --j->depth);
        return true;
    }
    if (c == '"') {
        if (!fz_slow_string(j)) return false;
        str_putf(&j->out, "s%u ", j->depth);
        str_put_quoted(&j->out, str_built(&j->text));
        str_put_z(&j->out, " 1:1\n");
        return true;
    }
    return c == 't' ? fz_slow_word(j, "true") : c == 'f' ? fz_slow_word(j, "false") : c == 'n' ? fz_slow_word(j, "null") : fz_slow_number(j);
}

static bool fz_slow_json(struct fz_slow_json *j, bool many)
{
    bool seen = false;

    for (;;) {
        fz_slow_space(j);
        if (j->at == j->in.n) return seen || many;
        if ((seen && !many) || !fz_slow_value(j)) return false;
        seen = true;
    }
}

/* Reads in pieces cut where seed says. Returns 1 at a good end, or RJ_BAD. skip_at: the event behind which the rest of its value is skipped. */
static int fz_read_json(struct str s, size_t limit, bool many, uint64_t seed, void *arg, int (*on)(void *, const struct json_event *), long skip_at)
{
    long n = 0;
    uint32_t step = 1 + ut_random(&seed, seed & 1 ? 8 : 400);
    struct json_reader r;
    struct json_event ev = {0};
    size_t at = 0;
    int rc = RJ_MORE;

    json_init(&r, limit, many);
    while (rc != RJ_BAD && ev.type != JSON_END) {
        if (at < s.n) {
            size_t k = seed ? 1 + ut_random(&seed, step) : s.n;

            if (k > s.n - at) k = s.n - at;
            json_feed(&r, fz_copy(2, s.p + at, k));
            at += k;
        } else {
            json_finish(&r);
        }
        while ((rc = json_next(&r, &ev)) == 1 && ev.type != JSON_END) {
            on(arg, &ev);
            if (++n == skip_at) json_skip(&r);
        }
    }
    if (rc == RJ_BAD) FZ_CHECK(r.error && json_next(&r, &ev) == RJ_BAD);
    FZ_CHECK(r.buf.n <= limit || r.buf.n <= JSON_NUMBER_MAX);
    json_fini(&r);
    return rc;
}

static void fz_check_rewritten(const struct fz_events *plain, struct str s, size_t limit, bool many)
{
    struct fz_events text = {.out = str_growing(), .json = true, .between = " "}, again = {.out = str_growing()};

    FZ_CHECK(fz_read_json(s, limit, many, 0, &text, fz_on_event, 0) == 1 && !text.odd);
    FZ_CHECK(fz_read_json(str_built(&text.out), limit, many, 0, &again, fz_on_event_anywhere, 0) == 1);
    FZ_CHECK(fz_eq(str_built(&again.out), str_built(&plain->out)));
    str_free(&text.out);
    str_free(&again.out);
}

/* What json_skip behind event number `at` leaves, taken from the events of a reading without it. */
struct fz_skip {
    struct fz_events e;
    long at, n;
    bool skips;
    uint8_t depth;
};

static int fz_on_skip(void *arg, const struct json_event *ev)
{
    struct fz_skip *s = arg;

    s->n++;
    if (!s->skips) {
        fz_record(&s->e, ev);
        s->skips = s->n == s->at && (ev->type == JSON_KEY || ev->type <= JSON_ARRAY);
        s->depth = ev->depth;
    } else if (ev->depth == s->depth && ev->type > JSON_ARRAY) {
        s->skips = false;
    }
    return 0;
}

static void fz_check_skip(struct str s, size_t limit, bool many, uint64_t seed, long at)
{
    struct fz_skip want = {.e.out = str_growing(), .at = at}, got = {.e.out = str_growing()};
    int rc = fz_read_json(s, limit, many, 0, &want, fz_on_skip, 0), rc2 = fz_read_json(s, limit, many, seed, &got, fz_on_skip, at);

    FZ_CHECK(rc2 == rc || rc2 == 1);                     /* a long string that is skipped costs nothing */
    FZ_CHECK(str_starts(str_built(&got.e.out), str_built(&want.e.out)) && (rc != 1 || want.e.out.n == got.e.out.n));
    str_free(&want.e.out);
    str_free(&got.e.out);
}

FZ(json, 4096)
{
    static const size_t limits[] = {1 << 20, 12, 100, 0};
    struct fz_in in = {p, n};
    uint8_t option = fz_take(&in);
    bool many = option & 1;
    size_t limit = limits[option >> 1 & 3];
    struct str s = fz_copy(0, in.p, in.n);
    struct fz_slow_json slow = {.in = s, .limit = limit, .out = str_growing(), .text = str_growing()};
    struct fz_events whole = {.out = str_growing()}, cut = {.out = str_growing()}, plain = {.out = str_growing()};
    uint64_t seed = fz_seed(p, n) | 1;
    int rc = fz_read_json(s, limit, many, 0, &whole, fz_on_event, 0);

    FZ_CHECK(fz_read_json(s, limit, many, seed, &cut, fz_on_event, 0) == rc);
    FZ_CHECK(fz_eq(str_built(&whole.out), str_built(&cut.out)));
    if (fz_slow_json(&slow, many) != (rc == 1)) FZ_FAIL("reader says %d, the slow one not, near %zu", rc, slow.at);
    if (rc == 1) {
        FZ_CHECK(fz_read_json(s, limit, many, seed / 2, &plain, fz_on_event_anywhere, 0) == 1);
        FZ_CHECK(fz_eq(str_built(&plain.out), str_built(&slow.out)));
        fz_check_rewritten(&plain, s, limit, many);
    }
    if (whole.n) fz_check_skip(s, limit, many, seed, 1 + (long)ut_random(&seed, (uint32_t)whole.n));
    str_free(&whole.out);
    str_free(&cut.out);
    str_free(&plain.out);
    str_free(&slow.out);
    str_free(&slow.text);
}
