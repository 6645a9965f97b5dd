/* A response head, as target_request.c has it; what goes to the client is well-formed and framed as it was asked for. Input: a byte of options,
 * then the head. */

#include "heads.h"

static void fz_check_response_out(struct h1_head *h, struct str s, uint8_t method, uint8_t option)
{
    static const struct h1_limits wide = {.line_bytes = 40000, .head_bytes = 40000, .fields = HTTP_FIELDS_MAX};
    static struct h1_head again;
    static struct fz_head ref;
    static uint8_t room[40000];
    struct http_msg *m = &h->msg, *a = &again.msg;
    bool bodyless = method == HTTP_HEAD || m->status == 304, final = m->status >= 200;
    struct fw_response fw = {.msg = m, .head = s.p, .framing = m->framing, .length = m->length, .minor = !(option & 16), .server_field = option & 32, .keep = option & 64,
                             .no_length = m->status < 200 || m->status == 204, .pass_length = final && bodyless, .upgrade = m->status == 101};
    struct str_builder sb = str_fixed(room, s.n + 256);
    struct str out;
    const char *why;
    int rc;

    if (final && (m->framing == HTTP_BODY_EOF || m->framing == HTTP_BODY_CHUNKED)) {
        fw.framing = fw.minor ? HTTP_BODY_CHUNKED : HTTP_BODY_EOF;
        if (!fw.minor) fw.keep = false;
    }
    fw_put_response(&sb, &fw);
    FZ_CHECK(!sb.failed);
    out = fz_copy_of(3, str_built(&sb));
    why = fz_read_head(out, false, &ref);
    if (why) FZ_FAIL("the strict reader refuses what goes to the client: %s\n%.*s", why, STR_ARG(out));
    fz_check_fields(m, s, &ref, fw.upgrade);
    FZ_CHECK(fw.server_field || !fz_field(&ref, "server"));
    h1_head_init(&again, false, method);
    rc = h1_response_feed(&again, out.p, out.n, &wide);
    if (m->nfields > HTTP_FIELDS_MAX - 4 && rc == -502) return;
    if (rc != (int)out.n) FZ_FAIL("what goes to the client is refused: %d %s\n%.*s", rc, again.why ? again.why : "", STR_ARG(out));
    FZ_CHECK(a->status == m->status && fz_eq(str_of(out.p + a->reason_at, a->reason_n), str_of(s.p + m->reason_at, m->reason_n)));
    FZ_CHECK(a->framing == (final ? fw.framing : HTTP_BODY_NONE) && (a->framing != HTTP_BODY_LENGTH || a->length == m->length));
    if (final && a->framing != HTTP_BODY_EOF) FZ_CHECK(a->keep_alive == fw.keep);
    if (bodyless && final && m->has_length) FZ_CHECK(a->has_length && a->length == m->length);
    if (m->status == 204 || !final) FZ_CHECK(!ref.lengths && !ref.codings);
}

FZ(response, 8192)
{
    static const uint8_t methods[] = {HTTP_GET, HTTP_HEAD, HTTP_POST, HTTP_OPTIONS};
    static const struct h1_limits limits[] = {{.line_bytes = 8192, .head_bytes = 32768, .fields = 100}, {.line_bytes = 64, .head_bytes = 200, .fields = 6}};
    static struct h1_head h;
    static struct fz_head ref;
    struct fz_in in = {p, n};
    uint8_t option = fz_take(&in), method = methods[option & 3];
    const struct h1_limits *l = &limits[option >> 2 & 1];
    struct str s = fz_copy(0, in.p, in.n), head;
    uint64_t seed = fz_seed(p, n);
    int rc;

    memset(&h, 0xa5, sizeof h);
    h1_head_init(&h, false, method);
    rc = h1_response_feed(&h, s.p, s.n, l);
    FZ_CHECK(rc == 0 || (rc > 0 && (size_t)rc <= s.n) || rc == -502);
    for (int round = 0; round < 3; round++) fz_feed_in_pieces(s, false, method, l, &h, rc, seed + (uint64_t)round);
    if (rc <= 0) return;
    FZ_CHECK((uint32_t)rc <= l->head_bytes && h.msg.nfields <= l->fields);
    fz_check_slices(&h.msg, (uint32_t)rc);
    head = fz_copy(1, s.p, (size_t)rc);
    fz_check_reading(head, 0, false, &h.msg, &ref);
    if (h.msg.status >= 200 || h.msg.status != 101 || h.msg.upgrade) fz_check_response_out(&h, head, method, option);
}
