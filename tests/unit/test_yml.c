/* YAML: the rows give the events of JSON (as in test_json.c), or are refused with line, column and name. */

static int yt_read(struct str in, struct str_builder *out, struct log_err *err)
{
    err->text[0] = 0;
    return yml_read(in, jt_put, out, err);
}

UT(yml_reads)
{
    static const struct { int line; const char *in, *want; } rows[] = {
        UT_ROW("", ""),
        UT_ROW("# nothing\n\n  # at all\n", ""),
        UT_ROW("a: b", "{ \"a\"= \"b\" }"),
        UT_ROW("a: b\nc: 1\n", "{ \"a\"= \"b\" \"c\"= 1 }"),
        UT_ROW("\xef\xbb\xbf" "a: b\r\nc: d\r\n", "{ \"a\"= \"b\" \"c\"= \"d\" }"),
        UT_ROW("a:\n  b:\n    c: d\n  e: f\ng: h\n", "{ \"a\"= { \"b\"= { \"c\"= \"d\" } \"e\"= \"f\" } \"g\"= \"h\" }"),
        UT_ROW("- a\n- b\n", "[ \"a\" \"b\" ]"),
        UT_ROW("a:\n- b\n- c\nd: e\n", "{ \"a\"= [ \"b\" \"c\" ] \"d\"= \"e\" }"),
        UT_ROW("a:\n  - b\n  -\n    c: d\n  -\n", "{ \"a\"= [ \"b\" { \"c\"= \"d\" } null ] }"),
        UT_ROW("- a: 1\n  b:\n  - c\n- - x\n  - - y\n", "[ { \"a\"= 1 \"b\"= [ \"c\" ] } [ \"x\" [ \"y\" ] ] ]"),
        UT_ROW("a:\nb: \nc: # d\n", "{ \"a\"= null \"b\"= null \"c\"= null }"),
        UT_ROW("a: b # c\nd: e#f\n\"g\": '#h'\n", "{ \"a\"= \"b\" \"d\"= \"e#f\" \"g\"= \"#h\" }"),
        UT_ROW("a : b\n'c d': e\n", "{ \"a\"= \"b\" \"c d\"= \"e\" }"),
        UT_ROW("url: http://x:80/y?z\ntime: 2026-11-30T17:00:00Z\n", "{ \"url\"= \"http://x:80/y?z\" \"time\"= \"2026-11-30T17:00:00Z\" }"),
        UT_ROW("nginx.ingress.kubernetes.io/rewrite-target: /$1\n", "{ \"nginx.ingress.kubernetes.io/rewrite-target\"= \"/$1\" }"),
        UT_ROW("--- a\n", "\"a\""),
        UT_ROW("---\na: 1\n---\n---\n# none\n--- # c\nb: 2\n...\n---\n- c\n...\n", "{ \"a\"= 1 } { \"b\"= 2 } [ \"c\" ]"),
        UT_ROW("--- |\n x\n---\ny\n", "\"x\\u000a\" \"y\""),
    };
    UT_EACH(r, rows) {
        struct str_builder out = str_growing();
        struct log_err err;

        UT_INT(yt_read(ut_str(r->in), &out, &err), 0);
        UT_TEXT(err.text, "");
        UT_SLICE(str_built(&out), r->want);
        str_free(&out);
    }
}

UT(yml_reads_scalars)
{
    static const struct { int line; const char *in, *want; } rows[] = {
        UT_ROW("[~, null, Null, NULL, nul, 'null', \"~\"]", "[ null null null null \"nul\" \"null\" \"~\" ]"),
        UT_ROW("[true, True, TRUE, tRUE, false, yes, on, 'true']", "[ true true true \"tRUE\" false \"yes\" \"on\" \"true\" ]"),
        UT_ROW("[0, 12, -3, +4, 007, 0o17, 0x1F, 0xg, 0o8, 1_000]", "[ 0 12 -3 4 7 15 31 \"0xg\" \"0o8\" \"1_000\" ]"),
        UT_ROW("[1.5, -.5, 2., 1e3, 1E-3, .inf, -.Inf, .NaN, ., -, 1e, e3, 1.2.3]", NULL),
        UT_ROW("[1.5, -.5, 2., 1e3, 1E-3, .inf, -.Inf, .NaN, ., 1e, e3, 1.2.3]", "[ 1.5 -.5 2. 1e3 1E-3 .inf -.Inf .NaN \".\" \"1e\" \"e3\" \"1.2.3\" ]"),
        UT_ROW("[0xFFFFFFFFFFFFFFFF, 0x10000000000000000]", "[ 18446744073709551615 \"0x10000000000000000\" ]"),
        UT_ROW("a: b c\n  d\n\n  e\nf: g\n", "{ \"a\"= \"b c d\\u000ae\" \"f\"= \"g\" }"),
        UT_ROW("a:\n  b\n  c\n", "{ \"a\"= \"b c\" }"),
        UT_ROW("a: -b\nc: ?d\ne: :f\n", "{ \"a\"= \"-b\" \"c\"= \"?d\" \"e\"= \":f\" }"),
        UT_ROW("a: 'it''s'\nb: ''\nc: 'x\n  y\n\n  z'\n", "{ \"a\"= \"it's\" \"b\"= \"\" \"c\"= \"x y\\u000az\" }"),
        UT_ROW("\"\\0\\a\\b\\t\\n\\v\\f\\r\\e\\ \\\"\\/\\\\\\N\\_\\L\\P\\x41\\u20ac\\U0001f600\\ud83d\\ude00\"",
               "\"\\u0000\\u0007\\u0008\\u0009\\u000a\\u000b\\u000c\\u000d\\u001b \\\"/\\\\\xc2\x85\xc2\xa0\xe2\x80\xa8\xe2\x80\xa9" "A\xe2\x82\xac\xf0\x9f\x98\x80\xf0\x9f\x98\x80\""),
        UT_ROW("\"a  \n  b\n\n\n  c\\\n  d \\\n   e\\n\n f\"", "\"a b\\u000a\\u000acd e\\u000a f\""),
        UT_ROW("\"a\\\n\n\n  b\"", "\"a\\u000a\\u000ab\""),
        UT_ROW("a: |\n  x\n   y\n\n  z\nb: c\n", "{ \"a\"= \"x\\u000a y\\u000a\\u000az\\u000a\" \"b\"= \"c\" }"),
        UT_ROW("a: |-\n  x\n\n\n", "{ \"a\"= \"x\" }"),
        UT_ROW("a: |+\n  x\n\n\nb: |+\n\n", "{ \"a\"= \"x\\u000a\\u000a\\u000a\" \"b\"= \"\\u000a\" }"),
        UT_ROW("a: |2-\n   x\n  y\n", "{ \"a\"= \" x\\u000ay\" }"),
        UT_ROW("a: |-1 # c\n  x\n", "{ \"a\"= \" x\" }"),
        UT_ROW("a: >\n  b\n  c\n\n  d\n    e\n  f\n", "{ \"a\"= \"b c\\u000ad\\u000a  e\\u000af\\u000a\" }"),
        UT_ROW("a: >-\n\n  b\n\n\n  c\n", "{ \"a\"= \"\\u000ab\\u000a\\u000ac\" }"),
        UT_ROW("- |\n a\n-  >\n  b\n- |\n", "[ \"a\\u000a\" \"b\\u000a\" \"\" ]"),
        UT_ROW("a: |\n  x", "{ \"a\"= \"x\" }"),
        UT_ROW("a: |\n  # no comment\n  b: c\n# a comment\n", "{ \"a\"= \"# no comment\\u000ab: c\\u000a\" }"),
        UT_ROW("a: |\n  \tx\n", "{ \"a\"= \"\\u0009x\\u000a\" }"),
        UT_ROW("true: 1\n", "{ \"true\"= 1 }"),
    };
    UT_EACH(r, rows) {
        struct str_builder out = str_growing();
        struct log_err err;

        UT_INT(yt_read(ut_str(r->in), &out, &err), r->want ? 0 : -1);
        if (r->want)
            UT_SLICE(str_built(&out), r->want);
        str_free(&out);
    }
}

UT(yml_reads_flow_style_and_json)
{
    static const struct { int line; const char *in, *want; } rows[] = {
        UT_ROW("{}", "{ }"),
        UT_ROW("a: {b: c, 'd': [1, \"x\", {}], e: , f}\n", "{ \"a\"= { \"b\"= \"c\" \"d\"= [ 1 \"x\" { } ] \"e\"= null \"f\"= null } }"),
        UT_ROW("a: [\n  b,   # c\n\n  d,\n]\ne: f\n", "{ \"a\"= [ \"b\" \"d\" ] \"e\"= \"f\" }"),
        UT_ROW("[a b, c\n d, http://x/y]", "[ \"a b\" \"c d\" \"http://x/y\" ]"),
        UT_ROW("{\n\t\"a\": [1, 2.5e3, true, null],\n\t\"b\":{\"c\":\"\\u00e9\\/\\ud83d\\ude00\"}\n}\n", "{ \"a\"= [ 1 2.5e3 true null ] \"b\"= { \"c\"= \"\xc3\xa9/\xf0\x9f\x98\x80\" } }"),
        UT_ROW("- {name: x, port: {number: 80}}\n- [a, [b]]\n", "[ { \"name\"= \"x\" \"port\"= { \"number\"= 80 } } [ \"a\" [ \"b\" ] ] ]"),
        UT_ROW("{a:1}", "{ \"a:1\"= null }"),
        UT_ROW("{\"a\":1,\"b\":x}", "{ \"a\"= 1 \"b\"= \"x\" }"),
    };
    UT_EACH(r, rows) {
        struct str_builder out = str_growing();
        struct log_err err;

        UT_INT(yt_read(ut_str(r->in), &out, &err), 0);
        UT_SLICE(str_built(&out), r->want);
        str_free(&out);
    }
}

UT(yml_refuses_by_name)
{
    static const struct { int line; const char *in, *want; } rows[] = {
        UT_ROW("a: &x b\n", "line 1, column 4: an anchor (&)"),
        UT_ROW("a: 1\nb: *x\n", "line 2, column 4: an alias (*)"),
        UT_ROW("host: *.example.com\n", "line 1, column 7: an alias (*)"),
        UT_ROW("- !!str a\n", "line 1, column 3: a tag (!)"),
        UT_ROW("[!x a]", "line 1, column 2: a tag (!)"),
        UT_ROW("%YAML 1.2\n---\n", "line 1, column 1: a directive (%)"),
        UT_ROW("? a\n: b\n", "line 1, column 1: a complex key (?)"),
        UT_ROW("{? a: b}", "line 1, column 2: a complex key (?)"),
        UT_ROW("{[a]: b}", "line 1, column 2: a complex key"),
        UT_ROW("[a]: b\n", "line 1, column 4: a key where none may be"),
        UT_ROW("a: {{ .Values.x }}\n", "line 1, column 5: a complex key"),
        UT_ROW("<<: a\n", "line 1, column 1: a merge key (<<)"),
        UT_ROW("a: 1\nb: 2\na: 3\n", "line 3, column 1: the key \"a\" appears twice"),
        UT_ROW("{a: 1, \"a\": 2}", "line 1, column 8: the key \"a\" appears twice"),
        UT_ROW("a:\n\tb: c\n", "line 2, column 1: a tab in the indentation"),
        UT_ROW("a:\n  \tb: c\n", "line 2, column 3: a tab in the indentation"),
        UT_ROW("-\ta\n", "line 1, column 2: a tab in the indentation"),
        UT_ROW("a: b\n\tc\n", "line 2, column 1: a tab in the indentation"),
        UT_ROW("a: |\n\tb\n", "line 2, column 1: a tab in the indentation"),
        UT_ROW("a: @b\n", "line 1, column 4: a reserved character (@)"),
        UT_ROW("a: `b\n", "line 1, column 4: a reserved character (`)"),
        UT_ROW("a: b: c\n", "line 1, column 5: a key where none may be"),
        UT_ROW("a: b\n  c: d\n", "line 2, column 4: a key where none may be"),
        UT_ROW("a: - b\n", "line 1, column 4: a sequence begins on a line of its own"),
        UT_ROW("--- a: b\n", "line 1, column 6: a key where none may be"),
        UT_ROW("a: 'b' c\n", "line 1, column 8: something behind the value"),
        UT_ROW("a: 'b'\n   c\n", "line 2, column 4: indented by 3, but the keys of this mapping by 0"),
        UT_ROW("  a: b\n c: d\n", "line 2, column 2: something behind the document's value"),
        UT_ROW("a:\n    b: c\n  d: e\n", "line 3, column 3: indented by 2, but the keys of this mapping by 0"),
        UT_ROW("- a\n  - b\nc\n", "line 3, column 1: something behind the document's value"),
        UT_ROW("- a\nb: c\n", "line 2, column 1: something behind the document's value"),
        UT_ROW("a: b\n- c\n", "line 2, column 1: a sequence entry among the keys"),
        UT_ROW("a: b\nc\n", "line 2, column 1: expected a key and ':'"),
        UT_ROW("a: [b\n", "line 2, column 1: a bracket is not closed"),
        UT_ROW("a: [b}\n", "line 1, column 6: expected ',' or ']'"),
        UT_ROW("[a: b]", "line 1, column 3: a single pair in a sequence"),
        UT_ROW("[,]", "line 1, column 2: a value may not begin with ','"),
        UT_ROW("a: ,b\n", "line 1, column 4: a value may not begin with ','"),
        UT_ROW("a: [b\n---\n", "line 2, column 1: a document marker inside brackets"),
        UT_ROW("a: 'b\n...\n'\n", "line 2, column 1: a document marker inside a quoted text"),
        UT_ROW("a: \"b\n", "line 2, column 1: the quote of line 1 is not closed"),
        UT_ROW("a: \"\\q\"\n", "line 1, column 5: a bad escape"),
        UT_ROW("a: \"\\ud800\"\n", "line 1, column 5: a bad escape"),
        UT_ROW("a: \"\\U00110000\"\n", "line 1, column 5: a bad escape"),
        UT_ROW("a: |x\n", "line 1, column 5: something behind the header of a block text"),
        UT_ROW("a: |\n\n     \n  b\n", "line 2, column 1: a blank line that is indented deeper"),
        UT_ROW("a: \x01\n", "line 1, column 4: a control byte (0x01)"),
        UT_ROW("a: \xff\n", "line 1, column 4: malformed UTF-8"),
        UT_ROW("a: b\rc\n", "line 1, column 5: a control byte (0x0d)"),
        UT_ROW("... x\n", "line 1, column 5: something behind the document marker"),
    };
    UT_EACH(r, rows) {
        struct str_builder out = str_growing();
        struct log_err err;

        UT_INT(yt_read(ut_str(r->in), &out, &err), -1);
        if (strncmp(err.text, r->want, strlen(r->want)) != 0)
            UT_TEXT(err.text, r->want);
        str_free(&out);
    }
}

static const char yt_manifest[] =
    "# Source: shop/templates/ingress.yaml\n"
    "apiVersion: networking.k8s.io/v1\n"
    "kind: Ingress\n"
    "metadata:\n"
    "  name: web   # the name\n"
    "  annotations:\n"
    "    note: |-\n"
    "      first\n"
    "        second\n"
    "\n"
    "      third\n"
    "    folded: >+\n"
    "      one\n"
    "      two\n"
    "\n"
    "  labels: {app: web, \"tier\": 'front'}\n"
    "spec:\n"
    "  rules:\n"
    "  - host: \"*.example.com\"\n"
    "    http:\n"
    "      paths:\n"
    "      - path: /\n"
    "        backend: {service: {name: web, port: {number: 80}}}\n"
    "---\n"
    "kind: Service\n"
    "spec:\n"
    "  ports:\n"
    "    - port: 0x50\n"
    "      name: plain text that\n"
    "        goes over lines\n"
    "  type: \"double \\\n"
    "    joined\"\n"
    "...\n";

struct yt_count {
    long events;
    int depth;
};

static int yt_balance(void *arg, const struct json_event *ev)
{
    struct yt_count *c = arg;

    if (ev->type == JSON_OBJECT_END || ev->type == JSON_ARRAY_END)
        c->depth--;
    UT_INT(ev->depth, c->depth);
    if (ev->type == JSON_OBJECT || ev->type == JSON_ARRAY)
        c->depth++;
    UT_CHECK(ev->line > 0 && ev->column > 0);
    c->events++;
    return 0;
}

static void yt_prefix(void *ctx, const uint8_t *p, size_t n)
{
    struct yt_count c = { 0 };
    struct log_err err = { "" };
    int rc = yml_read(str_of(p, n), yt_balance, &c, &err);

    (void)ctx;
    UT_CHECK(rc == 0 ? c.depth == 0 : rc == -1 && err.text[0]);
}

UT(yml_stops_anywhere) { ut_prefixes(yt_manifest, sizeof yt_manifest - 1, yt_prefix, NULL); }

UT(yml_survives_noise)
{
    uint64_t state = 88172645463325252u;

    for (int round = 0; round < 20000; round++) {
        static const char *const bits[] = { "\n", "  ", ": ", "- ", "'", "\"", " #", "|", ">", "[", "]", "{", "}", ",", "\t", "\n---\n", "?", "&", "*", "\\", "\n\n", "~", "\r\n", "\xc3" };
        char text[sizeof yt_manifest + 64];
        size_t n = sizeof yt_manifest - 1;

        memcpy(text, yt_manifest, n);
        for (int k = 0; k < 1 + round % 4; k++) {
            state ^= state << 13, state ^= state >> 7, state ^= state << 17;
            const char *bit = bits[state >> 8 & 15 ? (state >> 16) % UT_COUNT(bits) : 0];
            size_t at = state % n, m = strlen(bit);
            if (state >> 40 & 1) {
                memmove(text + at + m, text + at, n - at);
                memcpy(text + at, bit, m);
                n += m;
            } else {
                size_t gone = n - at < 3 ? n - at : 3;
                memmove(text + at, text + at + gone, n - at - gone);
                n -= gone;
            }
        }
        yt_prefix(NULL, ut_guard(0, text, n), n);
    }
}

UT(yml_bounds_depth)
{
    char deep[(JSON_DEPTH + 1) * 2 + 1];

    for (int levels = JSON_DEPTH; levels <= JSON_DEPTH + 1; levels++) {
        struct str_builder out = str_growing();
        struct log_err err;

        memset(deep, '[', (size_t)levels);
        memset(deep + levels, ']', (size_t)levels);
        UT_INT(yt_read(str_of(deep, (size_t)levels * 2), &out, &err), levels == JSON_DEPTH ? 0 : -1);
        out.n = 0;
        for (int i = 0; i < levels; i++)
            memcpy(deep + 2 * i, "- ", 2);
        UT_INT(yt_read(str_of(deep, (size_t)levels * 2), &out, &err), levels == JSON_DEPTH ? 0 : -1);
        str_free(&out);
    }
}

UT(yml_parses_a_kubeconfig)
{
    static const char text[] = "apiVersion: v1\nkind: Config\ncurrent-context: test\nclusters:\n- name: test\n  cluster:\n    server: https://127.0.0.1:6443\n"
                               "    certificate-authority-data: LS0t\nusers:\n- name: admin\n  user: {token: abc}\ncontexts:\n- context:\n    cluster: test\n    user: admin\n  name: test\n";
    struct mem_arena arena = { 0 };
    struct log_err err = { "" };
    struct json_node *root = yml_parse(&arena, ut_str(text), &err), *cluster;

    UT_REQUIRE(root != NULL);
    UT_SLICE(json_find_text(root, S("current-context")), "test");
    cluster = json_find(json_find(root, S("clusters"))->child, S("cluster"));
    UT_SLICE(json_find_text(cluster, S("server")), "https://127.0.0.1:6443");
    UT_INT(json_find(cluster, S("server"))->line, 7);
    UT_SLICE(json_find_text(json_find(json_find(root, S("users"))->child, S("user")), S("token")), "abc");
    UT_CHECK(yml_parse(&arena, ut_str("a: b: c"), &err) == NULL);
    UT_CHECK(yml_parse(&arena, ut_str("# nothing\n"), &err) == NULL);
    mem_arena_free(&arena);
}
