"""Feeds the linter small files that each breach one rule, and files that breach none."""
import ramjet_lint

HEAD = '''/* ramjet */
/* Contents, bottom to top: a function calls only what stands above it.
 *
 *   aa_    Ground
 *   mem_   Memory
 *   bb_    Upper
 *   tls_   Transport
 */

'''
BANNER = '''/* ============================================================================
 * %s : %s
 *
 * Owns:    nothing.
 * Calls:   %s
 * Threads: any.
 * Rules:   1. None.
 * ========================================================================== */
'''


def file(aa='', mem='', bb='', tls='', calls_bb='aa_', head=HEAD, bb_use='static int bb_use(void) { return aa_one(); }\n'):
    return (head + BANNER % ('aa_', 'Ground', 'nothing') + 'static int aa_one(void) { return 1; }\n' + aa
            + BANNER % ('mem_', 'Memory', 'nothing') + mem
            + BANNER % ('bb_', 'Upper', calls_bb) + bb_use + bb
            + BANNER % ('tls_', 'Transport', 'nothing') + tls)


def long_function(head, line, count):
    return head + 'static int bb_long(int a)\n{\n' + line * count + '    return a;\n}\n'


FLAT = 'static int bb_flat(int a)\n{\n    switch (a) {\n' + ''.join('    case %d: return %d;\n' % (i, i) for i in range(70)) + '    }\n    return 0;\n}\n'
PAIR = '''/* The two walk the tree by turns. */
static int bb_odd(int a);
static int bb_even(int a) { return a ? bb_odd(a - 1) : 1; }
static int bb_odd(int a) { return a ? bb_even(a - 1) : 0; }
'''
GOOD_HEADER = '''#define RJ_T(X) \\
    X(a, 1) \\
    X(b, 2)
struct aa_x { int a; int (*call)(int); };
extern struct rj rj;
static inline int aa_small(int a) { return a; }
int ramjet_start(int a);
'''

# (what, expected rule or None, ramjet.c, ramjet.h)
ROWS = [
    ('an empty frame', None, file(), ''),
    ('a good header', None, file(), GOOD_HEADER),
    ('constants and rj', None, file(bb='static const int bb_t[] = { 1, 2 };\nstatic const char *const bb_n[] = { "a", "b" };\nstruct rj rj;\n'
                                       'static _Thread_local struct wrk *bb_self;\n'), ''),
    ('a pointer to const is mutable', 'global', file(bb='static const char *bb_n;\n'), ''),
    ('a mutable variable', 'global', file(bb='static int bb_count;\n'), ''),
    ('a mutable table', 'global', file(bb='static int bb_t[2] = { 1, 2 };\n'), ''),
    ('a mutable function pointer', 'global', file(bb='static int (*bb_fn)(int);\n'), ''),
    ('a mutable variable after a struct', 'global', file(bb='static struct bb_x { int a; } bb_v;\n'), ''),
    ('a second thread-local', 'global', file(bb='static _Thread_local int bb_a;\nstatic _Thread_local int bb_b;\n'), ''),
    ('a mutable static local', 'global', file(bb='static int bb_f(void)\n{\n    static int n;\n    return ++n;\n}\n'), ''),
    ('a constant static local', None, file(bb='static int bb_f(void)\n{\n    static const int n[] = { 3 };\n    return n[0];\n}\n'), ''),
    ('a function of another section', 'prefix', file(bb='static int aa_two(void) { return 2; }\n'), ''),
    ('a function above the first section', 'prefix', file(head=HEAD + 'static int zz_f(void) { return 1; }\n'), ''),
    ('a function that is not static', 'static', file(bb='int bb_f(void) { return 1; }\n'), ''),
    ('public functions and main', None, file(bb='int ramjet_stop(void) { return 1; }\nint main(void) { return 0; }\n'), ''),
    ('attributes', None, file(bb='__attribute__((cold, noinline)) static void bb_f(void) { }\n'
                                 'static __attribute__((format(printf, 1, 2))) int bb_g(const char *f, ...) { return f != 0; }\n'), ''),
    ('an attribute macro', None, file(bb='static RJ_PRINTF(1, 2) int bb_g(const char *f, ...) { return f != 0; }\n'), ''),
    ('the assert function in the lowest section', None, file(aa='static void rj_die(const char *s) { (void)s; }\n'), ''),
    ('the assert function elsewhere', 'prefix', file(bb='static void rj_die(const char *s) { (void)s; }\n'), ''),
    ('a fetch without order', 'atomic', file(bb='static int bb_f(_Atomic int *p) { return atomic_fetch_add(p, 1); }\n'), ''),
    ('a fetch with order', None, file(bb='static int bb_f(_Atomic int *p) { return atomic_fetch_add_explicit(p, 1, memory_order_relaxed); }\n'), ''),
    ('an attribute macro before static', None, file(bb='RJ_PRINTF(1, 2)\nstatic int bb_g(const char *f, ...) { return f != 0; }\n'), ''),
    ('a macro call at file scope', None, file(bb='BB_DEFINE(a, (b));\n'), ''),
    ('a prototype', 'prototype', file(bb='static int bb_f(void);\nstatic int bb_f(void) { return 1; }\n'), ''),
    ('a prototype with a comment and no recursion', 'prototype', file(bb='/* later */\nstatic int bb_f(void);\nstatic int bb_f(void) { return 1; }\n'), ''),
    ('a mutually recursive pair', None, file(bb=PAIR), ''),
    ('a pair without a comment', 'prototype', file(bb='\n' + PAIR.split('\n', 1)[1]), ''),
    ('a pair far below its prototype', 'prototype', file(bb=PAIR.replace('static int bb_even', 'static int bb_mid(void) { return 1; }\nstatic int bb_even')), ''),
    ('a call not listed', 'calls', file(calls_bb='nothing'), ''),
    ('a listed section that is not used', 'calls', file(calls_bb='aa_ mem_'), ''),
    ('a listed section above', 'calls', file(calls_bb='aa_ tls_'), ''),
    ('a listed section that does not exist', 'calls', file(calls_bb='aa_ zz_'), ''),
    ('a use by a table of function pointers', 'calls', file(calls_bb='nothing', bb_use='static int (*const bb_t[])(void) = { aa_one };\n'), ''),
    ('a use by a macro of the header', None, file(bb_use='static int bb_f(void) { return AA_ONE(1); }\n'), ''),
    ('a Calls list over two lines', None, file(calls_bb='mem_\n *          aa_', mem='static int mem_f(void) { return 1; }\n', bb='static int bb_m(void) { return mem_f(); }\n'), ''),
    ('a long function', 'length', file(bb=long_function('', '    a += 1;\n', 60)), ''),
    ('a function of sixty lines', None, file(bb=long_function('', '    a += 1;\n', 56)), ''),
    ('a long function with a reason', None, file(bb=long_function('/* Long because the steps share all locals. */\n', '    a += 1;\n', 60)), ''),
    ('a long flat switch', None, file(bb=FLAT), ''),
    ('a long section', 'section', file(bb='/* */\n' * 1500), ''),
    ('a typedef of a struct', 'typedef', file(bb='typedef struct bb_x { int a; } bb_x;\n'), ''),
    ('a typedef of a struct in the header', 'typedef', file(), 'typedef struct aa_x aa_x;\n'),
    ('a typedef of a function', None, file(bb='typedef int bb_fn(struct bb_x *x);\n'), ''),
    ('malloc', 'malloc', file(bb='static void *bb_f(void) { return malloc(3); }\n'), ''),
    ('free', 'malloc', file(bb='static void bb_f(void *p) { free(p); }\n'), ''),
    ('malloc in mem_', None, file(mem='static void *mem_f(void) { return malloc(3); }\n'), ''),
    ('free as a member', None, file(bb='static void bb_f(struct bb_x *x) { x->free(x); }\n'), ''),
    ('exit', 'exit', file(bb='static void bb_f(void) { exit(1); }\n'), ''),
    ('BearSSL', 'bearssl', file(bb='static void bb_f(void) { br_sha256_init(0); }\n'), ''),
    ('BearSSL in tls_', None, file(tls='static void tls_f(void) { br_sha256_init(0); }\n'), ''),
    ('BearSSL in the header', 'bearssl', file(), 'struct aa_x { br_sha256_context c; };\n'),
    ('an atomic without order', 'atomic', file(bb='static int bb_f(_Atomic int *p) { return atomic_load(p); }\n'), ''),
    ('an atomic with order', None, file(bb='static int bb_f(_Atomic int *p) { return atomic_load_explicit(p, memory_order_relaxed); }\n'), ''),
    ('a sorted X table', None, file(), '/* sorted */\n#define RJ_T(X) \\\n    X(a, 1) \\\n    X(b, 2)\n'),
    ('an unsorted X table', 'sorted', file(), '/* Sorted by name. */\n#define RJ_T(X) \\\n    X(b, 1) \\\n    X(a, 2)\n'),
    ('an unsorted array', 'sorted', file(bb='/* sorted */\nstatic const struct bb_x bb_t[] = {\n    { "b", 1 },\n    { "a", 1 },\n};\n'), ''),
    ('an unsorted list of words', 'sorted', file(bb='/* sorted */\nstatic const char *const bb_t[] = {\n    "b",\n    "a",\n};\n'), ''),
    ('a comment that sorts nothing', None, file(bb='/* The rows are sorted by the caller. */\nstatic int bb_f(void) { return 1; }\n'), ''),
    ('a tab', 'line', file(bb='static int bb_f(void) {\treturn 1; }\n'), ''),
    ('space at the end', 'line', file(bb='static int bb_f(void) { return 1; } \n'), ''),
    ('a line of 161', 'line', file(bb='/* ' + 'x' * 155 + ' */\n'), ''),
    ('a line of 160', None, file(bb='/* ' + 'x' * 154 + ' */\n'), ''),
    ('a date', 'date', file(bb='/* Changed on 2026-11-30. */\n'), ''),
    ('a timestamp as an example', None, file(bb='/* 2026-11-30T17:00:00.123Z */\n'), ''),
    ('a month', 'date', file(bb='/* As of March 2026. */\n'), ''),
    ('an issue', 'date', file(bb='/* See issue 12. */\n'), ''),
    ('a date in a string', None, file(bb='static const char *bb_f(void) { return "2026-11-30"; }\n'), ''),
    ('an allowed breach', None, file(bb='/* allow global: the kernel writes it from a signal */\nstatic int bb_count;\n'), ''),
    ('an allowance on the line', None, file(bb='static int bb_count; /* allow global: the kernel writes it from a signal */\n'), ''),
    ('an allowance without a reason', 'allow', file(bb='/* allow global: */\n'), ''),
    ('an allowance of another rule', 'global', file(bb='/* allow line: this is something else */\nstatic int bb_count;\n'), ''),
    ('a header function with a long body', 'header', file(), 'static inline int aa_f(int a)\n{\n    return a;\n}\n'),
    ('a header function not inline', 'header', file(), 'static int aa_f(int a) { return a; }\n'),
    ('a header prototype', 'header', file(), 'int aa_f(int a);\n'),
    ('a banner without Rules', 'banner', file().replace(' * Rules:   1. None.\n', '', 1), ''),
    ('a section that opens twice', 'banner', file() + BANNER % ('aa_', 'Ground', 'nothing'), ''),
    ('contents in another order', 'contents', file(head=HEAD.replace(' *   aa_    Ground\n', '').replace(' *   tls_', ' *   aa_    Ground\n *   tls_')), ''),
    ('contents that miss a section', 'contents', file(head=HEAD.replace(' *   bb_    Upper\n', '')), ''),
    ('no contents', 'contents', file(head='/* ramjet */\n'), ''),
    ('another title', 'contents', file(head=HEAD.replace('Upper', 'Lower')), ''),
    ('braces', 'braces', file(bb='static int bb_f(void)\n{\n'), ''),
    ('branches of the preprocessor', None, file(bb='static int bb_f(int a)\n{\n#if X\n    if (a) {\n#else\n    if (!a) {\n#endif\n        return 1;\n    }\n    return 0;\n}\n'), ''),
    ('braces in strings and comments', None, file(bb='static int bb_f(void) { return "{\\"{"[0] + \'{\'; /* { */ }\n'), ''),
    ('the fortify shim', None, file(aa='void *__memcpy_chk(void *d, int n);\nvoid *__memcpy_chk(void *d, int n) { return d; }\n'), ''),
]


def run():
    """Returns (passed, list of failures)."""
    passed, failures, seen = 0, [], set()
    for what, rule, c_text, h_text in ROWS:
        rules = [entry[2] for entry in ramjet_lint.Lint(c_text, h_text).run()]
        seen.update(rules)
        want = [rule] if rule else []
        if sorted(set(rules)) == want:
            passed += 1
        else:
            failures.append('lint sample `%s`: want %s, found %s' % (what, want, rules))
    for rule in sorted(set(ramjet_lint.RULES) - seen):
        failures.append('lint rule `%s` has no sample that breaches it' % rule)
    return passed, failures


if __name__ == '__main__':
    count, bad = run()
    print('\n'.join(bad + ['%d passed, %d failed, 0 skipped' % (count, len(bad))]))
    raise SystemExit(1 if bad else 0)
