/* The runner itself: failures are counted, rows are named, the guard page faults where it should. */

static sigjmp_buf ut_fault_at;
static void ut_on_fault(int number) { siglongjmp(ut_fault_at, number); }

/* Reads one byte and returns whether it faulted. */
static bool ut_faults(const uint8_t *p)
{
    struct sigaction now = { .sa_handler = ut_on_fault }, before_segv, before_bus;
    volatile bool faulted = false;
    sigaction(SIGSEGV, &now, &before_segv);
    sigaction(SIGBUS, &now, &before_bus);
    if (sigsetjmp(ut_fault_at, 1) == 0)
        (void)*(const volatile uint8_t *)p;
    else
        faulted = true;
    sigaction(SIGSEGV, &before_segv, NULL);
    sigaction(SIGBUS, &before_bus, NULL);
    return faulted;
}

UT(ut_counts_failures)
{
    long before = ut.failures;
    ut.selftest = true;
    UT_CHECK(1 == 2);
    UT_INT(3, 4);
    UT_TEXT("a", "b");
    UT_TEXT(NULL, "b");
    UT_BYTES("ab", 2, "ac", 2);
    UT_BYTES("ab", 2, "ab", 1);
    UT_SLICE(S("ab"), "abc");
    ut.selftest = false;
    long counted = ut.failures - before;
    ut.failures = before;
    UT_INT(counted, 7);
    UT_TEXT("a", "a");
    UT_BYTES("a\0b", 3, "a\0b", 3);
    UT_SLICE(S(""), "");
}

UT(ut_rows_know_their_lines)
{
    static const struct { int line; int n; const char *text; } rows[] = {
        UT_ROW(1, "a"),
        UT_ROW(2, "bb"),
        UT_ROW(3, "ccc"),
    };
    int seen = 0;
    UT_EACH(r, rows) {
        UT_INT(ut.row_line, rows[0].line + seen);
        UT_INT(ut_str(r->text).n, r->n);
        seen++;
    }
    UT_INT(seen, 3);
    UT_INT(ut.row_line, 0);
}

UT(ut_guard_faults_behind_the_last_byte)
{
    static const size_t sizes[] = { 0, 1, 63, 4096, 65536, 65537, 1 << 20 };
    uint8_t *bytes = calloc(1, 1 << 20);
    for (size_t i = 0; i < UT_COUNT(sizes); i++) {
        uint8_t *p = ut_guard(0, bytes, sizes[i]);
        UT_CHECK(ut_faults(p + sizes[i]));
        UT_CHECK(sizes[i] == 0 || !ut_faults(p + sizes[i] - 1));
    }
    free(bytes);
}

struct ut_seen {
    char text[64];
    size_t n, calls;
};

static void ut_see_split(void *ctx, const uint8_t *a, size_t an, const uint8_t *b, size_t bn)
{
    struct ut_seen *seen = ctx;
    char whole[16];
    memcpy(whole, a, an);
    memcpy(whole + an, b, bn);
    UT_BYTES(whole, an + bn, "GET / x", 7);
    UT_INT(an, seen->calls);
    seen->calls++;
}

static void ut_see_part(void *ctx, const uint8_t *p, size_t k)
{
    struct ut_seen *seen = ctx;
    memcpy(seen->text + seen->n, p, k);
    seen->n += k;
    seen->calls++;
}

UT(ut_feeds_every_split_point)
{
    struct ut_seen split = { .n = 0 }, prefixes = { .n = 0 }, pieces = { .n = 0 };
    ut_split("GET / x", 7, ut_see_split, &split);
    UT_INT(split.calls, 8);
    ut_prefixes("abc", 3, ut_see_part, &prefixes);
    UT_INT(prefixes.calls, 4);
    UT_BYTES(prefixes.text, prefixes.n, "aababc", 6);
    ut_pieces("abcdefg", 7, 3, ut_see_part, &pieces);
    UT_INT(pieces.calls, 3);
    UT_BYTES(pieces.text, pieces.n, "abcdefg", 7);
}
