/* JSON: every row is read whole and at every split point, directly before an unmapped page. */

/* Writes an event as one word; a document is the words in a row: `{ a= "x" [ 1 true null ] }`. */
static int jt_put(void *arg, const struct json_event *ev)
{
    static const char *const marks[] = { "{", "[", "}", "]", "", "", "", "", "null", "." };
    struct str_builder *b = arg;

    if (b->n)
        str_put_c(b, ' ');
    str_put_z(b, marks[ev->type]);
    if (ev->type == JSON_KEY || ev->type == JSON_STRING)
        str_put_quoted(b, ev->text);
    if (ev->type == JSON_KEY)
        str_put_c(b, '=');
    if (ev->type == JSON_NUMBER)
        str_put(b, ev->text);
    if (ev->type == JSON_BOOL)
        str_put_z(b, ev->flag ? "true" : "false");
    return 0;
}

struct jt_run {
    const char *want;                                    /* the events, or NULL: refused */
    bool many;
    size_t limit;
};

/* Reads the two pieces and compares with what the row wants. */
static void jt_split(void *ctx, const uint8_t *a, size_t an, const uint8_t *b, size_t bn)
{
    const struct jt_run *run = ctx;
    struct str pieces[2] = { { a, an }, { b, bn } };
    struct str_builder out = str_growing();
    struct json_reader r;
    struct json_event ev = { 0 };
    int rc = RJ_MORE;

    json_init(&r, run->limit ? run->limit : 1 << 20, run->many);
    for (int i = 0; i < 3 && rc >= 0; i++) {
        if (i < 2)
            json_feed(&r, pieces[i]);
        else
            json_finish(&r);
        while ((rc = json_next(&r, &ev)) == 1 && ev.type != JSON_END)
            jt_put(&out, &ev);
    }
    if (run->want) {
        UT_INT(rc, 1);
        UT_INT(ev.type, JSON_END);
        UT_SLICE(str_built(&out), run->want);
    } else {
        UT_INT(rc, RJ_BAD);
        UT_CHECK(r.error != NULL);
        UT_INT(json_next(&r, &ev), RJ_BAD);
    }
    json_fini(&r);
    str_free(&out);
}

UT(json_reads_at_every_split)
{
    static const struct { int line; const char *in, *want; } rows[] = {
        UT_ROW("{}", "{ }"),
        UT_ROW(" [ ] \r\n", "[ ]"),
        UT_ROW("{\"a\":1,\"b\":[true,false,null,\"x\"]}", "{ \"a\"= 1 \"b\"= [ true false null \"x\" ] }"),
        UT_ROW("[[],{},[[{\"a\":{}}]]]", "[ [ ] { } [ [ { \"a\"= { } } ] ] ]"),
        UT_ROW("\"\"", "\"\""),
        UT_ROW("[\"\",\"\",{\"\":\"\"}]", "[ \"\" \"\" { \"\"= \"\" } ]"),
        UT_ROW("\"\\\"\\\\\\/\\b\\f\\n\\r\\t\\u0041\\u00e9\\u20ac\\ud83d\\ude00\"", "\"\\\"\\\\/\\u0008\\u000c\\u000a\\u000d\\u0009A\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\""),
        UT_ROW("\"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80 plain text that is longer than eight bytes\"", "\"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80 plain text that is longer than eight bytes\""),
        UT_ROW("\"a\\u0000b\"", "\"a\\u0000b\""),
        UT_ROW("\"\x7f\"", "\"\\u007f\""),
        UT_ROW("\"\xf4\x8f\xbf\xbf\xee\x80\x80\xed\x9f\xbf\"", "\"\xf4\x8f\xbf\xbf\xee\x80\x80\xed\x9f\xbf\""),
        UT_ROW("0", "0"),
        UT_ROW("-0", "-0"),
        UT_ROW("[-1.5e+10,0.1,1E5,10,1e-2,123456789012345678901234567890]", "[ -1.5e+10 0.1 1E5 10 1e-2 123456789012345678901234567890 ]"),
        UT_ROW("true", "true"),
        UT_ROW("\t null\n", "null"),
        UT_ROW("{\"a\":1,\"a\":2}", "{ \"a\"= 1 \"a\"= 2 }"),
        UT_ROW("{\"type\":\"ADDED\",\"object\":{\"kind\":\"Service\"}}", "{ \"type\"= \"ADDED\" \"object\"= { \"kind\"= \"Service\" } }"),
    };
    UT_EACH(r, rows) {
        struct jt_run run = { .want = r->want };
        ut_split(r->in, strlen(r->in), jt_split, &run);
    }
}

UT(json_refuses_at_every_split)
{
    static const struct { int line; const char *in; size_t n; } rows[] = {
#define JT_BAD(text) UT_ROW(text, sizeof(text) - 1)
        JT_BAD(""), JT_BAD(" "), JT_BAD("{"), JT_BAD("["), JT_BAD("}"), JT_BAD("]"), JT_BAD("[}"), JT_BAD("{]"), JT_BAD("[1}"), JT_BAD("{\"a\":1]"),
        JT_BAD("[1,]"), JT_BAD("[,1]"), JT_BAD("[1,,2]"), JT_BAD("{\"a\":1,}"), JT_BAD("{,}"), JT_BAD("{\"a\"}"), JT_BAD("{\"a\":}"), JT_BAD("{\"a\" 1}"),
        JT_BAD("{\"a\"::1}"), JT_BAD("{1:2}"), JT_BAD("{a:1}"), JT_BAD("{null:1}"), JT_BAD("[\"a\":1]"), JT_BAD("[1 2]"), JT_BAD("{\"a\":1 \"b\":2}"), JT_BAD("[1]]"), JT_BAD("{}{}"),
        JT_BAD("1 2"), JT_BAD("[] x"), JT_BAD("[],"), JT_BAD(","), JT_BAD(":"), JT_BAD("nul"), JT_BAD("nulL"), JT_BAD("True"), JT_BAD("truex"), JT_BAD("undefined"), JT_BAD("NaN"),
        JT_BAD("Infinity"), JT_BAD("'a'"), JT_BAD("[1 // x\n]"), JT_BAD("/* */ 1"), JT_BAD("#x\n1"),
        JT_BAD("01"), JT_BAD("-"), JT_BAD("-01"), JT_BAD("+1"), JT_BAD(".5"), JT_BAD("1."), JT_BAD("1.e5"), JT_BAD("1e"), JT_BAD("1e+"), JT_BAD("0x10"), JT_BAD("1-2"), JT_BAD("--1"),
        JT_BAD("[1.2.3]"), JT_BAD("00"), JT_BAD("1e5.5"), JT_BAD("-a"),
        JT_BAD("\""), JT_BAD("\"a"), JT_BAD("\"\\"), JT_BAD("\"\\\""), JT_BAD("\"\\a\""), JT_BAD("\"\\x41\""), JT_BAD("\"\\0\""), JT_BAD("\"\\u12\""), JT_BAD("\"\\u12G4\""), JT_BAD("\"\\U0041\""),
        JT_BAD("\"\\ud800\""), JT_BAD("\"\\ud83d\\u0041\""), JT_BAD("\"\\ud83dx\""), JT_BAD("\"\\ude00\""), JT_BAD("\"\\ud83d\\ud83d\""), JT_BAD("\"\\ud83d\\n\""),
        JT_BAD("\"\n\""), JT_BAD("\"\t\""), JT_BAD("\"a\0b\""), JT_BAD("\"01234567\x1f\""), JT_BAD("\0"), JT_BAD("1\0"), JT_BAD("[1\v]"), JT_BAD("[1\f]"), JT_BAD("\xc2\xa0""1"),
        JT_BAD("\xef\xbb\xbf{}"),
        JT_BAD("\"\x80\""), JT_BAD("\"\xc0\x80\""), JT_BAD("\"\xc1\xbf\""), JT_BAD("\"\xe0\x80\x80\""), JT_BAD("\"\xed\xa0\x80\""), JT_BAD("\"\xf0\x80\x80\x80\""), JT_BAD("\"\xf4\x90\x80\x80\""),
        JT_BAD("\"\xf5\x80\x80\x80\""), JT_BAD("\"\xff\""), JT_BAD("\"\xc3\""), JT_BAD("\"\xe2\x82\""), JT_BAD("\"\xe2\x82x\""), JT_BAD("\"\xf0\x9f\x98\""), JT_BAD("\"\xc3\xc3\""),
        JT_BAD("\"\xc3\\n\""), JT_BAD("\"\xc3"),
#undef JT_BAD
    };
    UT_EACH(r, rows) {
        struct jt_run run = { .want = NULL };
        ut_split(r->in, r->n, jt_split, &run);
    }
}

UT(json_reads_a_stream_of_values)
{
    static const struct { int line; const char *in, *want; } rows[] = {
        UT_ROW("{\"a\":1}\n{\"a\":2}\n", "{ \"a\"= 1 } { \"a\"= 2 }"),
        UT_ROW("{}{}[]", "{ } { } [ ]"),
        UT_ROW("1 \"a\" null\n", "1 \"a\" null"),
        UT_ROW("", ""),
        UT_ROW("\n\n", ""),
        UT_ROW("{},{}", NULL),
        UT_ROW("{}\n{", NULL),
        UT_ROW("{}]", NULL),
        UT_ROW("{}:1", NULL),
    };
    UT_EACH(r, rows) {
        struct jt_run run = { .want = r->want, .many = true };
        ut_split(r->in, strlen(r->in), jt_split, &run);
    }
}

UT(json_bounds_depth_strings_and_numbers)
{
    char deep[400] = "", number[JSON_NUMBER_MAX + 3];
    struct jt_run good = { .want = "\"12345678\"", .limit = 8 }, bad = { .limit = 8 };

    for (int levels = JSON_DEPTH; levels <= JSON_DEPTH + 1; levels++) {
        struct log_err err;
        struct str_builder out = str_growing();

        memset(deep, '[', (size_t)levels);
        memset(deep + levels, ']', (size_t)levels);
        UT_INT(json_read(str_of(deep, (size_t)levels * 2), false, jt_put, &out, &err), levels == JSON_DEPTH ? 0 : -1);
        str_free(&out);
    }
    UT_CHECK(good.want != NULL);
    ut_split("\"12345678\"", 10, jt_split, &good);
    ut_split("\"123456789\"", 11, jt_split, &bad);
    ut_split("\"1234567\xc3\xa9\"", 11, jt_split, &bad);
    ut_split("\"1234567\\u00e9\"", 15, jt_split, &bad);
    ut_split("{\"123456789\":1}", 15, jt_split, &bad);
    memset(number, '7', sizeof number);
    number[JSON_NUMBER_MAX] = 0;
    good = (struct jt_run){ .want = number };
    ut_split(number, JSON_NUMBER_MAX, jt_split, &good);
    good.limit = 8;                                      /* of strings and keys: a number has its own, wherever it is cut */
    ut_split(number, JSON_NUMBER_MAX, jt_split, &good);
    number[JSON_NUMBER_MAX] = '7';
    bad = (struct jt_run){ 0 };
    ut_split(number, JSON_NUMBER_MAX + 1, jt_split, &bad);
}

/* Feeds byte by byte and skips the values of the keys that begin with x, and every array behind its begin. */
static void jt_skip(struct str in, size_t piece, struct str_builder *out, int *rc)
{
    struct json_reader r;
    struct json_event ev;

    json_init(&r, 16, false);
    for (size_t at = 0; at < in.n || at == 0; at += piece) {
        json_feed(&r, str_of(in.p + at, in.n - at < piece ? in.n - at : piece));
        if (in.n - at <= piece)
            json_finish(&r);
        while ((*rc = json_next(&r, &ev)) == 1 && ev.type != JSON_END) {
            jt_put(out, &ev);
            if (ev.type == JSON_ARRAY || (ev.type == JSON_KEY && ev.text.n && ev.text.p[0] == 'x'))
                json_skip(&r);
        }
        if (*rc != RJ_MORE)
            break;
    }
    json_fini(&r);
}

UT(json_skips_but_still_checks)
{
    static const struct { int line; const char *in, *want; int rc; } rows[] = {
        UT_ROW("{\"x\":{\"a\":[1,{\"b\":2}]},\"k\":1}", "{ \"x\"= \"k\"= 1 }", 1),
        UT_ROW("{\"x\":[[[]]],\"k\":[1,[2],3],\"z\":4}", "{ \"x\"= \"k\"= [ \"z\"= 4 }", 1),
        UT_ROW("{\"x\":12,\"x\":\"a string that is longer than the limit of sixteen\",\"x\":null,\"k\":true}", "{ \"x\"= \"x\"= \"x\"= \"k\"= true }", 1),
        UT_ROW("{\"x\":{\"x\":{\"x\":0}}}", "{ \"x\"= }", 1),
        UT_ROW("[]", "[", 1),
        UT_ROW("{\"x\":{\"a\":01}}", "{ \"x\"=", RJ_BAD),
        UT_ROW("{\"x\":\"\\q\"}", "{ \"x\"=", RJ_BAD),
        UT_ROW("[\"\xff\"]", "[", RJ_BAD),
        UT_ROW("[1", "[", RJ_BAD),
    };
    UT_EACH(r, rows)
        for (size_t piece = 1; piece < 40; piece += 7) {
            struct str_builder out = str_growing();
            int rc = 0;

            jt_skip(ut_str(r->in), piece, &out, &rc);
            UT_INT(rc, r->rc);
            UT_SLICE(str_built(&out), r->want);
            str_free(&out);
        }
}

UT(json_names_line_and_column)
{
    static const struct { int line; const char *in, *want; } rows[] = {
        UT_ROW("{\n  \"a\": 01\n}", "line 2, column 8: a malformed number"),
        UT_ROW("{\n  \"a\": \"x\\q\"\n}", "line 2, column 10: a bad escape"),
        UT_ROW("[1,\n2,\n\n]", "line 4, column 1: a closing bracket where none may be"),
        UT_ROW("{\"a\":1} x", "line 1, column 9: a byte that begins nothing"),
        UT_ROW("{\"a\":", "line 1, column 6: the text ends too early"),
        UT_ROW("[tru]", "line 1, column 5: neither true, false nor null"),
    };
    UT_EACH(r, rows) {
        struct log_err err = { "" };
        struct str_builder out = str_growing();

        UT_INT(json_read(ut_str(r->in), false, jt_put, &out, &err), -1);
        UT_TEXT(err.text, r->want);
        str_free(&out);
    }
}

UT(json_parses_a_tree)
{
    static const char text[] = "{\"users\":[{\"name\":\"a\",\"n\":1},{\"name\":\"b\"}],\n \"on\":true,\"none\":null,\"on\":false}";
    struct mem_arena arena = { 0 };
    struct log_err err = { "" };
    struct json_node *root = json_parse(&arena, ut_str(text), &err), *users;

    UT_REQUIRE(root != NULL);
    UT_INT(root->type, JSON_OBJECT);
    users = json_find(root, S("users"));
    UT_REQUIRE(users && users->child && users->child->next);
    UT_INT(users->type, JSON_ARRAY);
    UT_SLICE(json_find_text(users->child, S("name")), "a");
    UT_SLICE(json_find_text(users->child->next, S("name")), "b");
    UT_CHECK(users->child->next->next == NULL);
    UT_CHECK(json_find_text(users->child, S("n")).n == 0);
    UT_SLICE(json_find(users->child, S("n"))->text, "1");
    UT_CHECK(!json_find(root, S("on"))->flag);
    UT_INT(json_find(root, S("on"))->line, 2);
    UT_INT(json_find(root, S("none"))->type, JSON_NULL);
    UT_CHECK(json_find(json_find(root, S("absent")), S("x")) == NULL);
    UT_CHECK(json_parse(&arena, ut_str("{\"a\":}"), &err) == NULL);
    mem_arena_free(&arena);
}

UT(json_survives_noise)
{
    static const char seed[] = "{\"kind\":\"List\",\"items\":[{\"a\":\"\\u00e9\\ud83d\\ude00\xc3\xa9\",\"b\":[1,-2.5e3,true,null]},{}]}";
    uint64_t state = 88172645463325252u;

    for (int round = 0; round < 20000; round++) {
        char text[sizeof seed];
        struct log_err err;
        struct str_builder one = str_growing();
        size_t n = sizeof seed - 1;

        memcpy(text, seed, sizeof seed);
        for (int k = 0; k < 1 + round % 4; k++) {
            state ^= state << 13, state ^= state >> 7, state ^= state << 17;
            text[state % n] = (char)(state & 1 ? "{}[]\",:\\u0e-"[state >> 8 & 11] : (char)(state >> 16));
        }
        struct str in = ut_bytes(text, n);
        int rc = json_read(in, false, jt_put, &one, &err);
        struct jt_run run = { .want = NULL };
        if (rc == 0) {
            str_put_c(&one, 0);
            run.want = (const char *)one.p;
        }
        size_t at = state % n;
        jt_split(&run, in.p, at, in.p + at, n - at);
        str_free(&one);
    }
}
