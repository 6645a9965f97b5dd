/* The INI file: settings or errors, never both; errors are lines that name their place; CRLF changes nothing; what is accepted compiles, and every
 * route of it is found. Input: the text. */

#include "table.h"

static struct cfg *fz_load(struct str text, struct cfg_report *report)
{
    struct cfg_input in = {.file_name = "edge.ini", .text = text};

    *report = (struct cfg_report){.text = str_growing()};
    return cfg_load(&in, report);
}

static void fz_check_report(const struct cfg_report *r)
{
    struct str rest = str_built(&r->text), line;
    uint32_t lines = 0;

    for (; fz_cut(&rest, "\n", &line); lines++) {
        size_t word = str_find(line, ' ');

        if (word && line.p[word - 1] == ':') word--;
        if (!str_starts(line, S("edge.ini:")) && cfg_option_find(str_of(line.p, word)) < 0) FZ_FAIL("an error without a place: %.*s", STR_ARG(line));
        for (size_t i = 0; i < line.n; i++) FZ_CHECK((line.p[i] >= ' ' && line.p[i] != 0x7f) || line.p[i] == '\t');
    }
    FZ_CHECK(rest.n == 0 && lines == r->errors);
}

/* The route is found by its host and path: itself, or a rule of the same host that comes before it. */
static void fz_check_route(const struct cfg_route *t)
{
    static uint8_t path[4096], host[HTTP_HOST_MAX + 2];
    struct str at = t->path.n ? t->path : S("/");
    struct str name = t->host.n ? str_of(host, t->host.n) : S("nobody.test");
    long k = http_path_normalize(at, path);

    FZ_CHECK(k > 0 && t->host.n <= HTTP_HOST_MAX);
    for (uint32_t i = 0; i < t->nvalues; i++) FZ_CHECK(t->values[i].option >= 0 && t->values[i].option < CFG_OPTION_COUNT);
    for (size_t i = 0; i < t->host.n; i++) host[i] = i == 0 && t->host.p[i] == '*' ? 'q' : t->host.p[i];
    if (!fz_check_lookup(name, str_of(path, (size_t)k))) FZ_FAIL("route %.*s is not found", STR_ARG(t->name));
}

static void fz_check_compiled(const struct cfg *c)
{
    struct fz_table t;

    fz_table_open(&t, c);
    fz_table_compile(&t);
    FZ_CHECK(rt_live()->digest == fz_table_whole(&t));
    for (uint32_t i = 0; i < c->nroutes; i++) fz_check_route(&c->routes[i]);
    fz_check_table();
    fz_table_close(&t);
}

FZ(ini, 2048)
{
    struct str s = fz_copy(0, p, n);
    struct cfg_report report, report2;
    struct str_builder crlf = str_growing();
    struct cfg *c = fz_load(s, &report), *d;

    FZ_CHECK((c != NULL) == (report.errors == 0));
    fz_check_report(&report);
    d = fz_load(fz_copy_of(1, fz_with_crlf(s, &crlf)), &report2);
    if (!fz_eq(str_built(&report.text), str_built(&report2.text))) FZ_FAIL("%.*s--- with CRLF\n%.*s", STR_ARG(str_built(&report.text)), STR_ARG(str_built(&report2.text)));
    if (c) {
        FZ_CHECK(d != NULL && c->digest == d->digest && c->nroutes == d->nroutes && c->nbackends == d->nbackends);
        fz_check_compiled(c);
        cfg_put(c);
        cfg_put(d);
    }
    str_free(&report.text);
    str_free(&report2.text);
    str_free(&crlf);
}
