/* Heads of HTTP/1.x: a slow strict reader, and the checks that requests and responses share. */
#ifndef HEADS_H
#define HEADS_H

/* ---- a slow and strict reader of heads (RFC 9112), written apart from h1_ ---- */

enum { FZ_FIELDS = 300 };

struct fz_field {
    struct str name, value;                              /* value: without the white space around it */
};

struct fz_head {
    bool request;
    struct str method, target, reason;
    unsigned minor, status;
    unsigned n, hosts, lengths, codings, chunked;
    uint64_t length;
    struct fz_field field[FZ_FIELDS];
};

static bool fz_is_token(struct str s)
{
    for (size_t i = 0; i < s.n; i++)
        if (s.p[i] <= ' ' || s.p[i] >= 0x7f || strchr("()<>@,;:\\\"/[]?={}", s.p[i])) return false;
    return s.n > 0;
}

static bool fz_is_text(struct str s)
{
    for (size_t i = 0; i < s.n; i++)
        if ((s.p[i] < ' ' && s.p[i] != '\t') || s.p[i] == 0x7f) return false;
    return true;
}

static struct str fz_trim(struct str s)
{
    while (s.n && (*s.p == ' ' || *s.p == '\t')) s.p++, s.n--;
    while (s.n && (s.p[s.n - 1] == ' ' || s.p[s.n - 1] == '\t')) s.n--;
    return s;
}

static const char *fz_read_version(struct str s, unsigned *minor)
{
    if (s.n != 8 || memcmp(s.p, "HTTP/1.", 7) != 0 || s.p[7] < '0' || s.p[7] > '9') return "version";
    *minor = s.p[7] != '0';
    return NULL;
}

static const char *fz_read_start(struct str line, struct fz_head *h)
{
    struct str word;

    if (h->request) {
        if (!fz_cut(&line, " ", &h->method) || !fz_is_token(h->method)) return "method";
        if (!fz_cut(&line, " ", &h->target) || !h->target.n) return "target";
        for (size_t i = 0; i < h->target.n; i++)
            if (h->target.p[i] <= ' ' || h->target.p[i] >= 0x7f || strchr("\"#<>", h->target.p[i])) return "octet in the target";
        return fz_read_version(line, &h->minor);
    }
    if (fz_cut(&line, " ", &word)) {
        if (line.n < 3 || (line.n > 3 && line.p[3] != ' ')) return "status code";
        h->reason = line.n > 4 ? str_of(line.p + 4, line.n - 4) : (struct str){0};
    } else {
        return "status line";
    }
    for (int i = 0; i < 3; i++) {
        if (line.p[i] < '0' || line.p[i] > '9') return "status code";
        h->status = h->status * 10 + line.p[i] - '0';
    }
    if (h->status < 100 || h->status > 599) return "status code";
    return fz_is_text(h->reason) ? fz_read_version(word, &h->minor) : "reason";
}

static const char *fz_read_field(struct str line, struct fz_head *h)
{
    struct fz_field *f = &h->field[h->n];

    if (h->n++ == FZ_FIELDS) return "too many fields";
    if (!fz_cut(&line, ":", &f->name) || !fz_is_token(f->name)) return "field name";
    f->value = fz_trim(line);
    if (!fz_is_text(f->value)) return "field value";
    if (fz_is(f->name, "host")) h->hosts++;
    if (fz_is(f->name, "content-length")) {
        h->lengths++;
        h->length = 0;
        if (!f->value.n || f->value.n > 19 || (f->value.n > 1 && *f->value.p == '0')) return "length";
        for (size_t i = 0; i < f->value.n; i++) {
            if (f->value.p[i] < '0' || f->value.p[i] > '9') return "length";
            h->length = h->length * 10 + f->value.p[i] - '0';
        }
        if (h->length > INT64_MAX) return "length";
    }
    if (fz_is(f->name, "transfer-encoding")) {
        h->codings++;
        h->chunked += fz_is(f->value, "chunked");
    }
    return NULL;
}

/* Reads one whole head with its empty line. NULL, or what is wrong with it. */
static const char *fz_read_head(struct str s, bool request, struct fz_head *h)
{
    struct str line;
    bool first = true;
    const char *why;

    memset(h, 0, offsetof(struct fz_head, field));
    h->request = request;
    for (;;) {
        if (!fz_cut(&s, "\r\n", &line)) return "no end";
        if (!line.n && !first) break;
        if (memchr(line.p, '\r', line.n) || memchr(line.p, '\n', line.n) || memchr(line.p, 0, line.n)) return "a bare CR, LF or NUL";
        why = first ? fz_read_start(line, h) : fz_read_field(line, h);
        if (why) return why;
        first = false;
    }
    if (s.n) return "more than a head";
    if (h->lengths + h->codings > 1 || h->codings != h->chunked || (h->codings && !h->minor)) return "framing";
    return request && (h->hosts > 1 || (h->minor && !h->hosts)) ? "host" : NULL;
}

/* The n-th field of that name, or NULL. */
__attribute__((unused)) static struct fz_field *fz_field(struct fz_head *h, const char *name)
{
    for (unsigned i = 0; i < h->n; i++)
        if (fz_is(h->field[i].name, name)) return &h->field[i];
    return NULL;
}

/* ---- checks ---- */

static int fz_feed_head(struct h1_head *h, bool request, const uint8_t *p, size_t n, const struct h1_limits *limits)
{
    return request ? h1_request_feed(h, p, n, limits) : h1_response_feed(h, p, n, limits);
}

static bool fz_same_head(const struct h1_head *a, const struct h1_head *b)
{
    return a->at == b->at && a->skip == b->skip && a->msg.nfields == b->msg.nfields &&
           memcmp(&a->msg, &b->msg, offsetof(struct http_msg, field) + a->msg.nfields * sizeof a->msg.field[0]) == 0;
}

/* Feeds more and more of the head, cut where seed says; the answer is that of the whole, and given before the end only when it was whole. */
static void fz_feed_in_pieces(struct str s, bool request, uint8_t method, const struct h1_limits *limits, const struct h1_head *whole, int verdict, uint64_t seed)
{
    static struct h1_head part;
    uint32_t step = 1 + ut_random(&seed, s.n < 600 ? 3 : 300);
    int rc = 0;

    memset(&part, 0x5a, sizeof part);
    h1_head_init(&part, request, method);
    for (size_t k = 0; rc == 0; k += 1 + ut_random(&seed, step)) {
        if (k > s.n) k = s.n;
        rc = fz_feed_head(&part, request, ut_guard(2, s.p, k), k, limits);
        if (rc == 0 && k == s.n) break;
        if (rc > 0 && (size_t)rc > k) FZ_FAIL("%d octets used of %zu", rc, k);
    }
    if (rc != verdict) FZ_FAIL("in pieces %d, whole %d", rc, verdict);
    if (rc > 0) FZ_CHECK(fz_same_head(whole, &part));
    if (rc < 0) FZ_CHECK(part.why != NULL && whole->why != NULL);
}

/* Where and how much: slices of a parsed head lie inside it. */
static void fz_check_slices(const struct http_msg *m, uint32_t n)
{
    FZ_CHECK(m->end_at + 2 == n && m->nfields <= HTTP_FIELDS_MAX);
    FZ_CHECK(m->method_at + m->method_n <= n && m->target_at + m->target_n <= n && m->path_at + m->path_n <= n && m->host_at + m->host_n <= n);
    FZ_CHECK(m->reason_at + m->reason_n <= n && (!m->has_query || m->query_at + m->query_n <= n));
}

/* The parser took it, so the strict reader does, and they read the same. */
static void fz_check_reading(struct str s, uint32_t skip, bool request, const struct http_msg *m, struct fz_head *ref)
{
    const char *why = fz_read_head(str_from(s, skip), request, ref);

    if (why) FZ_FAIL("taken, but the strict reader refuses it: %s", why);
    FZ_CHECK(ref->n == m->nfields && ref->minor == m->minor);
    for (unsigned i = 0; i < ref->n; i++) {
        const struct http_field *f = &m->field[i];

        FZ_CHECK(fz_eq(ref->field[i].name, str_of(s.p + f->name_at, f->name_n)) && fz_eq(ref->field[i].value, str_of(s.p + f->value_at, f->value_n)));
    }
    if (request) {
        FZ_CHECK(fz_eq(ref->method, str_of(s.p + m->method_at, m->method_n)) && fz_eq(ref->target, str_of(s.p + m->target_at, m->target_n)));
        FZ_CHECK(m->framing == (ref->chunked ? HTTP_BODY_CHUNKED : ref->lengths ? HTTP_BODY_LENGTH : HTTP_BODY_NONE));
    } else {
        FZ_CHECK(ref->status == m->status && fz_eq(ref->reason, str_of(s.p + m->reason_at, m->reason_n)));
    }
    if (ref->lengths && m->has_length) FZ_CHECK(ref->length == m->length);
}

/* Nothing that ends at this hop goes on, and every field that goes on stands there in its order. */
static void fz_check_fields(const struct http_msg *m, struct str s, struct fz_head *out, bool may_upgrade)
{
    unsigned at = 0;

    for (unsigned i = 0; i < out->n; i++) {
        enum http_field_id id = http_field_find(out->field[i].name);
        bool hop = http_field_flags(id) & HTTP_HOP;

        if (id && hop && !(may_upgrade && (id == HTTP_F_CONNECTION || id == HTTP_F_UPGRADE)) && id != HTTP_F_CONNECTION)
            FZ_FAIL("%.*s goes on", STR_ARG(out->field[i].name));
    }
    for (unsigned i = 0; i < m->nfields; i++) {
        const struct http_field *f = &m->field[i];

        if (f->drop) continue;
        while (at < out->n && !(fz_eq(out->field[at].name, str_of(s.p + f->name_at, f->name_n)) && fz_eq(out->field[at].value, str_of(s.p + f->value_at, f->value_n)))) at++;
        if (at++ >= out->n) FZ_FAIL("%.*s is gone", (int)f->name_n, s.p + f->name_at);
    }
}

#endif
