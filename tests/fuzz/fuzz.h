/* What every fuzz target shares: its place in the table, checks that stop the run, exact copies.
 *
 *   FZ(json, 4096)                                      // name, longest input
 *   {
 *       struct str s = fz_copy(0, p, n);                // p, n: the input; a read past the copy faults
 *       FZ_CHECK(json_is_good(s) == fz_is_good(s));     // says where, and aborts
 *   }
 *   FZ_OPEN(json) { ... }                               // optional: once, before the first input
 *
 * A target keeps nothing from one input to the next, so that a single file shows a fault again. */
#ifndef FUZZ_H
#define FUZZ_H

struct fz_target {
    const char *name;
    size_t max;                                          /* longest input in bytes */
    void (*run)(const uint8_t *p, size_t n);
    void (*open)(void);
    struct fz_target *next;
};

static struct fz_target *fz_targets;

__attribute__((unused)) static struct fz_target *fz_find(const char *name)
{
    struct fz_target *t = fz_targets;

    while (t && strcmp(t->name, name) != 0) t = t->next;
    return t;
}

#define FZ(id, max_bytes)                                                                                                            \
    static void fz_run_##id(const uint8_t *p, size_t n);                                                                             \
    static struct fz_target fz_target_##id = {#id, max_bytes, fz_run_##id, NULL, NULL};                                              \
    __attribute__((constructor)) static void fz_register_##id(void)                                                                  \
    {                                                                                                                                \
        fz_target_##id.next = fz_targets;                                                                                            \
        fz_targets = &fz_target_##id;                                                                                                \
    }                                                                                                                                \
    static void fz_run_##id(const uint8_t *p, size_t n)

#define FZ_OPEN(id)                                                                                                                  \
    static void fz_open_##id(void);                                                                                                  \
    __attribute__((constructor)) static void fz_opens_##id(void) { fz_target_##id.open = fz_open_##id; }                             \
    static void fz_open_##id(void)

#define FZ_CHECK(c) ((c) ? (void)0 : fz_fail(__FILE__, __LINE__, "%s", #c))
#define FZ_FAIL(...) fz_fail(__FILE__, __LINE__, __VA_ARGS__)

__attribute__((format(printf, 3, 4), noreturn)) static void fz_fail(const char *file, int line, const char *format, ...)
{
    va_list args;

    fprintf(stderr, "FAULT %s:%d: ", file, line);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fprintf(stderr, "\n");
    abort();
}

/* A copy directly before an unmapped page; each slot (0 .. UT_SLOTS - 1) holds one. */
static struct str fz_copy(int slot, const void *p, size_t n) { return (struct str){ut_guard(slot, p, n), n}; }
static struct str fz_copy_of(int slot, struct str s) { return fz_copy(slot, s.p, s.n); }

static bool fz_eq(struct str a, struct str b) { return a.n == b.n && (!a.n || memcmp(a.p, b.p, a.n) == 0); }

/* The seed of what a target does at random, from the input itself. */
static uint64_t fz_seed(const uint8_t *p, size_t n)
{
    uint64_t h = 14695981039346656037u;

    for (size_t i = 0; i < n; i++) h = (h ^ p[i]) * 1099511628211u;
    return h;
}

/* Control values at the front of an input: 0 when it is used up. */
struct fz_in {
    const uint8_t *p;
    size_t n;
};

static uint8_t fz_take(struct fz_in *in)
{
    if (!in->n) return 0;
    in->n--;
    return *in->p++;
}

__attribute__((unused)) static uint32_t fz_below(struct fz_in *in, uint32_t n) { return n > 256 ? (uint32_t)(fz_take(in) << 8 | fz_take(in)) % n : fz_take(in) % n; }

static bool fz_is_hex(uint8_t c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }

/* Up to the next sep, which is taken away too; false when there is none. */
static bool fz_cut(struct str *rest, const char *sep, struct str *part)
{
    size_t k = strlen(sep);

    for (size_t i = 0; i + k <= rest->n; i++) {
        if (memcmp(rest->p + i, sep, k) != 0) continue;
        *part = str_of(rest->p, i);
        *rest = str_of(rest->p + i + k, rest->n - i - k);
        return true;
    }
    return false;
}

static bool fz_is(struct str s, const char *word)
{
    if (s.n != strlen(word)) return false;
    for (size_t i = 0; i < s.n; i++)
        if ((s.p[i] >= 'A' && s.p[i] <= 'Z' ? s.p[i] + 32 : s.p[i]) != (uint8_t)word[i]) return false;
    return true;
}

/* The text with CRLF at the ends of its lines, in b. */
static struct str fz_with_crlf(struct str s, struct str_builder *b)
{
    for (size_t i = 0; i < s.n; i++) {
        if (s.p[i] == '\n' && (!i || s.p[i - 1] != '\r')) str_put_c(b, '\r');
        str_put_c(b, (char)s.p[i]);
    }
    return str_built(b);
}

#endif
