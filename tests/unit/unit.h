/* The unit test runner: tests register themselves, rows are data, inputs stand directly before an unmapped page.
 *
 *   UT(str_trim_drops_blanks)
 *   {
 *       static const struct { int line; const char *in, *out; } rows[] = {
 *           UT_ROW("  a ", "a"),
 *           UT_ROW("", ""),
 *       };
 *       UT_EACH(r, rows) {
 *           struct str s = ut_str(r->in);               // guarded: a read past the end faults
 *           UT_SLICE(str_trim(s), r->out);
 *       }
 *   }
 *
 * UT(name)                    a test; it runs in the order of the files and of the functions in them
 * UT_ROW(...), UT_EACH(r, t)  a row that knows its line (first member `int line`), and the loop over a table of them
 * UT_CHECK(cond)              counts a check; a failed one prints file, line and row, and the test goes on
 * UT_INT(got, want)           integers; UT_TEXT(got, want) C strings; UT_SLICE(got, want) a struct str and a C string;
 * UT_BYTES(got, n, want, m)   byte strings
 * UT_REQUIRE(cond)            the same as UT_CHECK, and the test returns when it fails (in a function returning void)
 * ut_str(text)                a struct str of a C string, guarded; ut_bytes(p, n) the same for bytes with NULs
 * ut_guard(slot, p, n)        copies n bytes directly before an unmapped page; each slot (0 .. UT_SLOTS - 1) holds one copy
 * ut_split(p, n, fn, ctx)     calls fn(ctx, a, an, b, bn) for every split of the bytes into two parts, both guarded
 * ut_prefixes(p, n, fn, ctx)  calls fn(ctx, p, k) for k = 0 .. n, for parsers that are called again with more bytes
 * ut_pieces(p, n, size, fn, ctx)  calls fn(ctx, part, len) for pieces of `size` bytes, guarded
 */
#ifndef UNIT_H
#define UNIT_H

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { UT_SLOTS = 16, UT_FAILURES_SHOWN = 20, UT_SECONDS_MAX = 120 };

struct ut_test {
    const char *name;
    void (*run)(void);
    struct ut_test *next;
};

/* size bytes are mapped at p, and the page after them is not. */
struct ut_page {
    uint8_t *p;
    size_t size;
};

static struct {
    struct ut_test *first, **last;
    struct ut_page page[UT_SLOTS];
    const char *name;                                    /* of the running test */
    const char *file;
    int row_line;                                        /* of the current row; 0 = none */
    int next_slot;
    long checks, failures;                               /* failures of the running test */
    long passed, failed;
    bool selftest;                                       /* failures are wanted: count them, print nothing */
} ut;

static void ut_register(struct ut_test *t)
{
    if (ut.last == NULL)
        ut.last = &ut.first;
    *ut.last = t;
    ut.last = &t->next;
}

#define UT(id)                                                                                                                       \
    static void ut_run_##id(void);                                                                                                   \
    __attribute__((constructor)) static void ut_register_##id(void)                                                                  \
    {                                                                                                                                \
        static struct ut_test t = { #id, ut_run_##id, NULL };                                                                        \
        ut_register(&t);                                                                                                             \
    }                                                                                                                                \
    static void ut_run_##id(void)

#define UT_ROW(...) { __LINE__, __VA_ARGS__ }
#define UT_COUNT(table) (sizeof(table) / sizeof((table)[0]))
#define UT_EACH(r, table)                                                                                                            \
    for (const __typeof__((table)[0]) *r = (table); ut_row(r < (table) + UT_COUNT(table) ? r->line : 0); r++)

/* Notes the row that failures name; returns whether there is one. */
static inline bool ut_row(int line)
{
    ut.row_line = line;
    ut.next_slot = 0;
    return line != 0;
}

__attribute__((format(printf, 4, 5))) static inline bool ut_result(bool ok, const char *file, int line, const char *format, ...)
{
    ut.checks++;
    if (ok)
        return true;
    if (ut.failures++ >= UT_FAILURES_SHOWN || ut.selftest)
        return false;
    va_list args;
    va_start(args, format);
    printf("%s:%d: %s: ", file, line, ut.name);
    if (ut.row_line)
        printf("row of line %d: ", ut.row_line);
    vprintf(format, args);
    printf("\n");
    va_end(args);
    fflush(stdout);
    return false;
}

/* Writes bytes so that a line of the failure report shows them all. */
static inline const char *ut_show(char *out, size_t size, const void *bytes, size_t n)
{
    const uint8_t *p = bytes;
    size_t at = 0;
    for (size_t i = 0; i < n && at + 8 < size; i++) {
        if (p[i] == '\n')
            at += (size_t)snprintf(out + at, size - at, "\\n");
        else if (p[i] == '\r')
            at += (size_t)snprintf(out + at, size - at, "\\r");
        else if (p[i] < 0x20 || p[i] > 0x7e)
            at += (size_t)snprintf(out + at, size - at, "\\x%02x", p[i]);
        else
            out[at++] = (char)p[i];
    }
    out[at] = 0;
    return out;
}

static inline bool ut_equal(const char *file, int line, const char *what, const void *got, size_t n, const void *want, size_t m)
{
    char a[512], b[512];
    if (n == m && (n == 0 || (got != NULL && memcmp(got, want, n) == 0)))
        return ut_result(true, file, line, " ");
    return ut_result(false, file, line, "%s is \"%s\" (%zu bytes), want \"%s\" (%zu bytes)", what,
                     got ? ut_show(a, sizeof a, got, n) : "NULL", n, want ? ut_show(b, sizeof b, want, m) : "NULL", m);
}

static inline bool ut_text(const char *file, int line, const char *what, const char *got, const char *want)
{
    if (got == NULL || want == NULL)
        return ut_result(got == want, file, line, "%s is %s, want %s", what, got ? got : "NULL", want ? want : "NULL");
    return ut_equal(file, line, what, got, strlen(got), want, strlen(want));
}

#define UT_CHECK(c) ut_result(!!(c), __FILE__, __LINE__, "%s", #c)
#define UT_REQUIRE(c) do { if (!UT_CHECK(c)) return; } while (0)
#define UT_TEXT(got, want) ut_text(__FILE__, __LINE__, #got, (got), (want))
#define UT_BYTES(got, n, want, m) ut_equal(__FILE__, __LINE__, #got, (got), (n), (want), (m))
#define UT_INT(got, want) ut_int(__FILE__, __LINE__, #got, (long long)(got), (long long)(want))
#define UT_SLICE(got, want) ut_slice(__FILE__, __LINE__, #got, (got), (want))

static inline bool ut_int(const char *file, int line, const char *what, long long got, long long want)
{
    return ut_result(got == want, file, line, "%s is %lld, want %lld", what, got, want);
}

/* Copies n bytes directly before an unmapped page and returns where they stand. The next copy into the slot overwrites them. */
static inline uint8_t *ut_guard(int slot, const void *p, size_t n)
{
    struct ut_page *page = &ut.page[slot];
    if (page->p == NULL || page->size < n) {
        size_t unit = (size_t)sysconf(_SC_PAGESIZE), size = n < 65536 ? 65536 : (n + unit - 1) / unit * unit;
        if (page->p != NULL)
            munmap(page->p, page->size + unit);
        page->p = mmap(NULL, size + unit, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (page->p == MAP_FAILED || mprotect(page->p + size, unit, PROT_NONE) != 0) {
            perror("unit: mmap");
            exit(1);
        }
        page->size = size;
    }
    uint8_t *at = page->p + page->size - n;
    if (n > 0)
        memcpy(at, p, n);
    return at;
}

static inline void ut_split(const void *bytes, size_t n, void (*fn)(void *ctx, const uint8_t *a, size_t an, const uint8_t *b, size_t bn), void *ctx)
{
    const uint8_t *p = bytes;
    for (size_t k = 0; k <= n; k++) {
        const uint8_t *a = ut_guard(UT_SLOTS - 2, p, k), *b = ut_guard(UT_SLOTS - 1, p + k, n - k);
        fn(ctx, a, k, b, n - k);
    }
}

static inline void ut_prefixes(const void *bytes, size_t n, void (*fn)(void *ctx, const uint8_t *p, size_t k), void *ctx)
{
    for (size_t k = 0; k <= n; k++)
        fn(ctx, ut_guard(UT_SLOTS - 1, bytes, k), k);
}

static inline void ut_pieces(const void *bytes, size_t n, size_t size, void (*fn)(void *ctx, const uint8_t *p, size_t k), void *ctx)
{
    const uint8_t *p = bytes;
    for (size_t at = 0; at < n; at += size) {
        size_t k = n - at < size ? n - at : size;
        fn(ctx, ut_guard(UT_SLOTS - 1, p + at, k), k);
    }
}

#ifdef RAMJET_H
static inline bool ut_slice(const char *file, int line, const char *what, struct str got, const char *want)
{
    return ut_equal(file, line, what, got.p, got.n, want, strlen(want));
}

/* Takes the slots from 0 up to UT_SLOTS - 3 by turns; a new row begins at 0 again. */
static inline struct str ut_bytes(const void *p, size_t n)
{
    int slot = ut.next_slot;
    ut.next_slot = (slot + 1) % (UT_SLOTS - 2);
    return (struct str){ ut_guard(slot, p, n), n };
}

static inline struct str ut_str(const char *text) { return ut_bytes(text, strlen(text)); }
#endif

static void ut_on_signal(int number)
{
    char text[256];
    int n = snprintf(text, sizeof text, "FAIL %s: ended by signal %d%s\n%ld passed, %ld failed, 0 skipped\n", ut.name ? ut.name : "?", number,
                     number == SIGALRM ? " (too slow)" : "", ut.passed, ut.failed + 1);
    if (write(1, text, (size_t)n) < 0)
        _exit(3);
    _exit(1);
}

/* Runs the tests whose names hold one of the words given (all without words); -l lists them. Returns the exit status. */
static int ut_main(int argc, char **argv)
{
    bool list = argc > 1 && strcmp(argv[1], "-l") == 0;
    int first_word = list ? 2 : 1;
    struct timespec start, end;
    signal(SIGABRT, ut_on_signal);
    signal(SIGALRM, ut_on_signal);
    signal(SIGPIPE, SIG_IGN);
#if !defined(__SANITIZE_ADDRESS__)
    signal(SIGSEGV, ut_on_signal);
    signal(SIGBUS, ut_on_signal);
#endif
    setvbuf(stdout, NULL, _IOLBF, 0);
    clock_gettime(CLOCK_MONOTONIC, &start);
    for (struct ut_test *t = ut.first; t != NULL; t = t->next) {
        bool wanted = argc <= first_word;
        for (int i = first_word; i < argc; i++)
            wanted = wanted || strstr(t->name, argv[i]) != NULL;
        if (!wanted)
            continue;
        if (list) {
            printf("%s\n", t->name);
            continue;
        }
        ut.name = t->name;
        ut.failures = 0;
        ut_row(0);
        alarm(UT_SECONDS_MAX);
        t->run();
        alarm(0);
        if (ut.failures > 0) {
            printf("FAIL %s: %ld checks failed\n", t->name, ut.failures);
            ut.failed++;
        } else {
            ut.passed++;
        }
    }
    if (list)
        return 0;
    clock_gettime(CLOCK_MONOTONIC, &end);
    printf("%ld checks in %.2f s\n", ut.checks, (double)(end.tv_sec - start.tv_sec) + (double)(end.tv_nsec - start.tv_nsec) * 1e-9);
    printf("%ld passed, %ld failed, 0 skipped\n", ut.passed, ut.failed);
    return ut.failed > 0 || ut.passed == 0 ? 1 : 0;
}

/* A number below n from a seeded generator: the same on every run. */
__attribute__((unused)) static uint32_t ut_random(uint64_t *seed, uint32_t n)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*seed >> 33) % n;
}

#endif
