/* YAML: events are balanced, the same with CRLF, and those of the JSON text that they are written as, which both readers take. Input: the text. */

#include "events.h"

/* The events as JSON, documents between `---`: read by yml_ again, and each value by json_. */
static void fz_check_as_json(struct str s, struct str want)
{
    struct fz_events text = {.out = str_growing(), .json = true, .between = "\n---\n"}, lines = {.out = str_growing(), .json = true, .between = "\n"};
    struct fz_events again = {.out = str_growing()};
    struct log_err err = {""};

    FZ_CHECK(yml_read(s, fz_on_event, &text, &err) == 0 && yml_read(s, fz_on_event, &lines, &err) == 0);
    if (yml_read(str_built(&text.out), fz_on_event_anywhere, &again, &err)) FZ_FAIL("%s in\n%.*s", err.text, STR_ARG(str_built(&text.out)));
    if (!fz_eq(str_built(&again.out), want)) FZ_FAIL("not the same events in\n%.*s\n%.*s\n%.*s", STR_ARG(str_built(&text.out)), STR_ARG(want), STR_ARG(str_built(&again.out)));
    if (!text.odd && text.n) {
        again.out.n = 0;
        again.n = 0;
        if (json_read(str_built(&lines.out), true, fz_on_event_anywhere, &again, &err)) FZ_FAIL("%s in\n%.*s", err.text, STR_ARG(str_built(&lines.out)));
        FZ_CHECK(fz_eq(str_built(&again.out), want));
    }
    str_free(&text.out);
    str_free(&lines.out);
    str_free(&again.out);
}

FZ(yaml, 4096)
{
    struct str s = fz_copy(0, p, n);
    struct fz_events whole = {.out = str_growing()}, crlf = {.out = str_growing()}, plain = {.out = str_growing()}, stopped = {.out = str_growing()};
    struct str_builder text = str_growing();
    struct log_err err = {""}, err2 = {""};
    struct mem_arena arena = {0};
    uint64_t seed = fz_seed(p, n);
    int rc = yml_read(s, fz_on_event, &whole, &err);

    FZ_CHECK(rc == 0 ? whole.depth == 0 && !err.text[0] : rc == -1 && !strncmp(err.text, "line ", 5));
    FZ_CHECK(yml_read(fz_copy_of(1, fz_with_crlf(s, &text)), fz_on_event, &crlf, &err2) == rc);
    FZ_CHECK(fz_eq(str_built(&whole.out), str_built(&crlf.out)));
    if (rc == 0) {
        FZ_CHECK(yml_read(s, fz_on_event_anywhere, &plain, &err) == 0);
        fz_check_as_json(s, str_built(&plain.out));
    }
    if (whole.n) {
        stopped.stop_at = 1 + (long)ut_random(&seed, (uint32_t)whole.n);
        FZ_CHECK(yml_read(s, fz_on_event, &stopped, &err) == 7 && stopped.n == stopped.stop_at);
    }
    FZ_CHECK((yml_parse(&arena, s, &err) != NULL) == (rc == 0 && whole.n));
    mem_arena_free(&arena);
    str_free(&whole.out);
    str_free(&crlf.out);
    str_free(&plain.out);
    str_free(&stopped.out);
    str_free(&text);
}
