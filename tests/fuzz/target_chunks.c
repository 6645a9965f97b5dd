/* The chunked coding: pieces of any size give what a one-shot reference gives; what is written is read again. Input: a byte of options (bit 1:
 * there is a limit of content), then the octets (bit 0 of the options clear), or content that is written in chunks first. */

#include "heads.h"

struct fz_chunks {
    bool bad, done;
    size_t used;                                         /* octets up to the trailer section, when done */
    size_t n;
    uint8_t data[20000];
};

static size_t fz_blanks(struct str s, size_t i)
{
    while (i < s.n && (s.p[i] == ' ' || s.p[i] == '\t')) i++;
    return i;
}

static size_t fz_token(struct str s, size_t i)
{
    while (i < s.n && fz_is_token(str_of(s.p + i, 1))) i++;
    return i;
}

/* Behind a quoted text that begins at i, 0: not text, or s.n + 1: cut off. */
static size_t fz_quoted(struct str s, size_t i)
{
    for (i++; i < s.n && s.p[i] != '"'; i++) {
        if (s.p[i] == '\\' && ++i == s.n) break;
        if (!fz_is_text(str_of(s.p + i, 1))) return 0;
    }
    return i + 1;
}

/* Extensions behind the first `;` (RFC 9112 section 7.1.1): all of them when whole, else what may become some. */
static bool fz_is_extension(struct str s, bool whole)
{
    for (size_t i = 0, from;; i++) {
        from = fz_blanks(s, i);
        i = fz_token(s, from);
        if (i == s.n) return i > from || !whole;
        if (i == from) return false;
        if ((i = fz_blanks(s, i)) == s.n) return !whole;
        if (s.p[i] == '=') {
            if ((from = fz_blanks(s, i + 1)) == s.n) return !whole;
            i = s.p[from] == '"' ? fz_quoted(s, from) : fz_token(s, from);
            if (i > s.n) return !whole;
            if (i == 0 || i == from) return false;
            if (i == s.n) return true;
            if ((i = fz_blanks(s, i)) == s.n) return !whole;
        }
        if (s.p[i] != ';') return false;
    }
}

/* The whole at once (RFC 9112 section 7.1). Extensions cost what is left of H1_EXT_MAX, and content pays for them.
 * room: content that may be announced. */
static void fz_read_chunks(struct str s, uint64_t room, struct fz_chunks *c)
{
    size_t i = 0;
    uint64_t ext = 0;

    c->bad = c->done = false;
    c->n = 0;
    for (;;) {
        uint64_t size = 0;
        size_t digits = 0;

        for (; i < s.n && fz_is_hex(s.p[i]); i++, digits++) {
            if (digits == 16 || size > (UINT64_MAX >> 5)) goto bad;
            size = size * 16 + (uint64_t)(s.p[i] <= '9' ? s.p[i] - '0' : (s.p[i] | 32) - 'a' + 10);
        }
        if (i == s.n) return;
        if (!digits || (s.p[i] != '\r' && s.p[i] != ';')) goto bad;
        if (s.p[i] == ';') {
            size_t from = ++i;

            while (i < s.n && s.p[i] != '\r') i++;
            ext += i - from + (i < s.n);
            if (!fz_is_extension(str_of(s.p + from, i - from), i < s.n) || ext > H1_EXT_MAX) goto bad;
            if (i == s.n) return;
        }
        if (++i == s.n) return;
        if (s.p[i++] != '\n' || size > room) goto bad;
        room -= size;
        ext = ext > size ? ext - (uint32_t)size : 0;
        if (!size) {
            c->done = true;
            c->used = i;
            return;
        }
        for (; size && i < s.n; size--) c->data[c->n++] = s.p[i++];
        for (int k = 0; k < 2; k++, i++) {
            if (i == s.n) return;
            if (s.p[i] != "\r\n"[k]) goto bad;
        }
    }
bad:
    c->bad = true;
}

/* The decoder on pieces of the octets. Returns octets used, or -1. */
static long fz_decode_chunks(struct h1_body *b, struct str s, uint64_t room, uint64_t seed, uint8_t *out, size_t *out_n)
{
    uint32_t step = 1 + ut_random(&seed, 40);
    size_t at = 0, given = 0;

    h1_body_init(b, HTTP_BODY_CHUNKED, 0);
    b->room = room;
    *out_n = 0;
    while (!b->done && given < s.n) {
        struct str piece, data;
        long used;

        given += 1 + ut_random(&seed, step);
        if (given > s.n) given = s.n;
        piece = fz_copy(1, s.p + at, given - at);
        while (piece.n && !b->done) {
            used = h1_body_feed(b, piece.p, piece.n, &data);
            if (used < 0) return -1;
            FZ_CHECK(used > 0 && (size_t)used <= piece.n);
            FZ_CHECK(!data.n || (data.p >= piece.p && data.p + data.n <= piece.p + used));
            if (data.n) memcpy(out + *out_n, data.p, data.n);
            *out_n += data.n;
            piece = str_from(piece, (size_t)used);
            at += (size_t)used;
        }
    }
    return (long)at;
}

/* A trailer section behind the last chunk: the verdict does not depend on the cuts, and no known field goes on. */
static void fz_check_trailers(struct str s, uint64_t seed)
{
    static const struct h1_limits limits = {.line_bytes = 8192, .head_bytes = 1000, .fields = 20};
    static struct h1_head whole, part;
    struct str_builder sb = str_growing();
    int want, rc = 0;

    h1_head_init(&whole, true, 0);
    want = h1_trailer_feed(&whole, s.p, s.n, &limits);
    h1_head_init(&part, true, 0);
    for (size_t k = 0; rc == 0; k += 1 + ut_random(&seed, 20)) {
        if (k > s.n) k = s.n;
        rc = h1_trailer_feed(&part, ut_guard(2, s.p, k), k, &limits);
        if (k == s.n) break;
    }
    FZ_CHECK(rc == want);
    if (want > 0) {
        FZ_CHECK(fz_same_head(&whole, &part));
        for (unsigned i = 0; i < whole.msg.nfields; i++) FZ_CHECK(whole.msg.field[i].drop || !whole.msg.field[i].id);
        h1_put_kept(&sb, &whole.msg, s.p);
        str_put(&sb, S("\r\n"));
        h1_head_init(&part, true, 0);
        FZ_CHECK(h1_trailer_feed(&part, sb.p, sb.n, &limits) == (int)sb.n);
    }
    str_free(&sb);
}

static void fz_write_chunks(struct str_builder *sb, struct str content, uint64_t seed)
{
    while (content.n) {
        size_t k = 1 + ut_random(&seed, (uint32_t)content.n);

        FZ_CHECK(h1_put_chunk_size(sb, k));
        str_put(sb, str_of(content.p, k));
        str_put(sb, S("\r\n"));
        content = str_from(content, k);
    }
    FZ_CHECK(h1_put_chunk_size(sb, 0));
    str_put(sb, S("\r\n"));
}

FZ(chunks, 8192)
{
    static struct fz_chunks ref;
    static uint8_t out[20000];
    struct fz_in in = {p, n};
    uint8_t option = fz_take(&in);
    uint64_t seed = fz_seed(p, n), room = option & 2 ? 100 : UINT64_MAX;
    struct str_builder sb = str_growing();
    struct str s = str_of(in.p, in.n);

    if (option & 1) fz_write_chunks(&sb, s, seed);
    s = option & 1 ? fz_copy_of(0, str_built(&sb)) : fz_copy_of(0, s);
    str_free(&sb);
    fz_read_chunks(s, room, &ref);
    if (option & 1 && in.n <= room) FZ_CHECK(ref.done && ref.used == s.n - 2 && fz_eq(str_of(ref.data, ref.n), str_of(in.p, in.n)));
    for (int round = 0; round < 4; round++) {
        struct h1_body b;
        size_t out_n;
        long used = fz_decode_chunks(&b, s, room, round ? seed + (uint64_t)round : 0x5eed00000000, out, &out_n);

        FZ_CHECK(ref.bad == (used < 0) && (used >= 0 || b.why));
        FZ_CHECK((out_n == ref.n || (ref.bad && out_n < ref.n)) && !memcmp(out, ref.data, out_n));
        if (used >= 0) FZ_CHECK(b.done == ref.done && b.in_trailer == ref.done && (size_t)used == (ref.done ? ref.used : s.n));
    }
    if (ref.done) fz_check_trailers(fz_copy_of(3, str_from(s, ref.used)), seed);
}
