/* Streams and their transcripts, as the driver (on sockets, see there) and the in-process runner read and write them. */
#ifndef TRANSCRIPT_H
#define TRANSCRIPT_H

#include <ctype.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { PIECES_MAX = 255, ALTS_MAX = 16 };

struct bytes {
    char *p;
    size_t n, cap;
};

static void put(struct bytes *b, const void *p, size_t n)
{
    if (b->cap - b->n < n) {
        b->cap = (b->n + n) * 2 + 64;
        b->p = realloc(b->p, b->cap);
        if (!b->p) abort();
    }
    if (n) memcpy(b->p + b->n, p, n);
    b->n += n;
}

static void put_text(struct bytes *b, const char *s) { put(b, s, strlen(s)); }

static void drop(struct bytes *b, size_t n)
{
    if (n) memmove(b->p, b->p + n, b->n - n);
    b->n -= n;
}

struct alt {
    uint32_t at, n;
    uint16_t await;                                      /* answers that come before the client ends its side */
    bool partial;                                        /* a request may be begun and not ended */
};

struct stream {
    uint64_t seed;
    uint32_t serial;
    char *data;                                          /* all octets: pieces, then transcripts */
    uint32_t piece[PIECES_MAX], pieces, next, at, sent;
    struct alt alt[ALTS_MAX];
    uint32_t alts, await;
    bool fin_at_once, fin, closing, over, partial, begun, queued;
    int fd;
    uint64_t since;                                      /* streams that had been over when the last thing happened */
    struct bytes in;                                     /* from the proxy, not read yet */
    struct bytes seen, answers;                          /* the transcript */
    size_t skip;                                         /* octets of a body that belong to the last answer */
    bool cut;                                            /* some of them came and others not */
    uint32_t requests, answered;
    struct stream *newer;                                /* of those that are over */
};

/* Of every request that any upstream read: its number within its stream. */
static struct {
    uint32_t *v;
    uint64_t n, cap;
} seqs;

static bool need(void *p, size_t n)
{
    size_t k = fread(p, 1, n, stdin);

    if (k && k < n) abort();
    return k == n;
}

/* seed u64, flags u8 (1: ends its side at once), pieces u8, transcripts u16, length of each piece u32, of each transcript: length u32,
 * await u16, partial u16; then the octets and the transcripts. */
static struct stream *stream_new(void)
{
    struct { uint64_t seed; uint8_t flags, pieces; uint16_t alts; } __attribute__((packed)) head;
    struct stream *s;
    size_t total = 0;

    if (!need(&head, sizeof head)) return NULL;
    s = calloc(1, sizeof *s);
    if (!s || head.alts > ALTS_MAX) abort();
    s->seed = head.seed;
    s->fin_at_once = head.flags & 1;
    s->pieces = head.pieces;
    s->alts = head.alts;
    if (head.pieces && !need(s->piece, head.pieces * sizeof *s->piece)) abort();
    for (uint32_t i = 0; i < s->pieces; i++) total += s->piece[i];
    for (uint32_t i = 0; i < s->alts; i++) {
        struct { uint32_t n; uint16_t await, partial; } a;

        if (!need(&a, sizeof a)) abort();
        s->alt[i] = (struct alt){.at = (uint32_t)total, .n = a.n, .await = a.await, .partial = a.partial};
        if (a.await > s->await) s->await = a.await;
        total += a.n;
    }
    s->data = malloc(total + 1);
    if (!s->data || (total && !need(s->data, total))) abort();
    return s;
}

/* Ends the transcript of a stream. Whether it is a right one. */
static bool stream_is_right(struct stream *s)
{
    bool right = false;

    put_text(&s->seen, "|");
    put(&s->seen, s->answers.p, s->answers.n);
    for (uint32_t i = 0; i < s->alts && !right; i++)
        right = (s->alt[i].partial || !s->partial) && s->alt[i].n == s->seen.n && memcmp(s->data + s->alt[i].at, s->seen.p, s->seen.n) == 0;
    if (s->partial) put_text(&s->seen, "~");
    return right;
}

/* Writes the transcript to stdout. */
static void stream_tell(const struct stream *s)
{
    uint32_t n = (uint32_t)s->seen.n;

    fwrite(&s->seed, 1, sizeof s->seed, stdout);
    fwrite(&n, 1, sizeof n, stdout);
    fwrite(s->seen.p, 1, n, stdout);
    fflush(stdout);
}

static void stream_drop(struct stream *s)
{
    free(s->data);
    free(s->in.p);
    free(s->seen.p);
    free(s->answers.p);
    free(s);
}

/* ---- the strict reader of what reaches the upstream ---- */

/* Index behind the CRLF of the line at i, 0 when there is none yet, -1 for a bare CR or LF. */
static long line_end(const struct bytes *b, size_t i)
{
    for (; i < b->n; i++) {
        if (b->p[i] == '\n') return -1;
        if (b->p[i] != '\r') continue;
        if (i + 1 == b->n) return 0;
        return b->p[i + 1] == '\n' ? (long)i + 2 : -1;
    }
    return 0;
}

static bool is_token(const char *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!isalnum((unsigned char)p[i]) && (p[i] == 0 || !strchr("!#$%&'*+-.^_`|~", p[i]))) return false;
    return n > 0;
}

struct head {
    const char *method, *target, *host, *ip;
    size_t method_n, target_n, host_n, ip_n;
    uint32_t hosts, lengths, codings, ips;
    uint64_t length;
    bool record;
};

/* A field line of n octets without its CRLF. */
static bool read_field(struct head *h, const char *p, size_t n)
{
    const char *colon = memchr(p, ':', n), *v, *end = p + n;
    size_t name_n = colon ? (size_t)(colon - p) : 0;

    if (!colon || !is_token(p, name_n)) return false;
    for (v = colon + 1; v < end; v++)
        if (((unsigned char)*v < ' ' && *v != '\t') || *v == 0x7f) return false;
    for (v = colon + 1; v < end && (*v == ' ' || *v == '\t'); v++) {}
    while (end > v && (end[-1] == ' ' || end[-1] == '\t')) end--;
    if (!h) return true;
#define IS(name) (name_n == sizeof(name) - 1 && strncasecmp(p, name, name_n) == 0)
    if (IS("host")) h->hosts++, h->host = v, h->host_n = (size_t)(end - v);
    if (IS("x-real-ip")) h->ips++, h->ip = v, h->ip_n = (size_t)(end - v);
    if (IS("x-record")) h->record = true;
    if (IS("transfer-encoding")) {
        h->codings++;
        if (end - v != 7 || memcmp(v, "chunked", 7) != 0) return false;
    }
    if (IS("content-length")) {
        h->lengths++;
        if (end == v || end - v > 12) return false;
        for (h->length = 0; v < end; v++) {
            if (!isdigit((unsigned char)*v)) return false;
            h->length = h->length * 10 + (uint64_t)(*v - '0');
        }
    }
#undef IS
    return true;
}

/* 1 and *used: a whole head; 0: more is needed; -1: no request. */
static int read_head(const struct bytes *b, struct head *h, size_t *used)
{
    long end = line_end(b, 0);
    const char *sp1, *sp2;
    size_t at;

    memset(h, 0, sizeof *h);
    if (end <= 0) return (int)end;
    sp1 = memchr(b->p, ' ', (size_t)end - 2);
    sp2 = sp1 ? memchr(sp1 + 1, ' ', (size_t)(b->p + end - 2 - sp1 - 1)) : NULL;
    if (!sp2 || b->p + end - 2 - sp2 != 9 || memcmp(sp2, " HTTP/1.1", 9) != 0) return -1;
    h->method = b->p;
    h->method_n = (size_t)(sp1 - b->p);
    h->target = sp1 + 1;
    h->target_n = (size_t)(sp2 - sp1 - 1);
    if (!is_token(h->method, h->method_n) || !h->target_n || (*h->target != '/' && *h->target != '*')) return -1;
    for (size_t i = 0; i < h->target_n; i++)
        if (h->target[i] <= ' ' || h->target[i] == 0x7f || h->target[i] == '#') return -1;
    for (at = (size_t)end;; at = (size_t)end) {
        end = line_end(b, at);
        if (end <= 0) return (int)end;
        if ((size_t)end == at + 2) break;
        if (!read_field(h, b->p + at, (size_t)end - 2 - at)) return -1;
    }
    if (h->hosts != 1 || h->ips > 1 || h->lengths + h->codings > 1) return -1;
    *used = (size_t)end;
    return 1;
}

/* 1 and the body, *used; 0: more is needed; -1: no body of the chunked coding. */
static int read_chunked(const struct bytes *b, size_t at, struct bytes *body, size_t *used)
{
    for (;;) {
        long end = line_end(b, at);
        uint64_t size = 0;

        if (end <= 0) return (int)end;
        if ((size_t)end == at + 2 || (size_t)end > at + 12) return -1;
        for (; at < (size_t)end - 2; at++) {
            if (!isxdigit((unsigned char)b->p[at])) return -1;
            size = size * 16 + (uint64_t)(isdigit((unsigned char)b->p[at]) ? b->p[at] - '0' : (b->p[at] | 32) - 'a' + 10);
        }
        at = (size_t)end;
        if (!size) break;
        if (b->n - at < size + 2) return 0;
        if (memcmp(b->p + at + size, "\r\n", 2) != 0) return -1;
        put(body, b->p + at, size);
        at += size + 2;
    }
    for (;;) {
        long end = line_end(b, at);

        if (end <= 0) return (int)end;
        *used = (size_t)end;
        if ((size_t)end == at + 2) return 1;
        if (!read_field(NULL, b->p + at, (size_t)end - 2 - at)) return -1;
        at = (size_t)end;
    }
}

/* A whole request at the upstream: puts it into the transcript of s (NULL: it is nobody's) and writes the answer, 200 octets at most. */
static size_t take_request(struct stream *s, const struct head *h, const char *body, size_t n, char *answer)
{
    bool bare = h->record || (h->method_n == 4 && memcmp(h->method, "HEAD", 4) == 0);
    char text[32];

    if (seqs.n == seqs.cap) {
        seqs.cap = seqs.cap * 2 + 1024;
        seqs.v = realloc(seqs.v, seqs.cap * sizeof *seqs.v);
        if (!seqs.v) abort();
    }
    seqs.v[seqs.n] = s ? s->requests++ : 0;
    if (s) {
        put_text(&s->seen, ">");
        put(&s->seen, h->method, h->method_n);
        put_text(&s->seen, " ");
        put(&s->seen, h->target, h->target_n);
        put_text(&s->seen, " ");
        put(&s->seen, h->host, h->host_n);
        snprintf(text, sizeof text, " %zu:", n);
        put_text(&s->seen, text);
        put(&s->seen, body, n);
        put_text(&s->seen, "\n");
    }
    return (size_t)snprintf(answer, 200, "HTTP/1.1 200 OK\r\nX-Seq: %llu\r\nContent-Length: %d\r\n\r\n%s", (unsigned long long)seqs.n++, h->record ? 0 : 2, bare ? "" : "ok");
}

/* ---- what reaches the client ---- */

static char *find_field(char *head, size_t n, const char *name)
{
    size_t k = strlen(name);

    for (char *p = head; (p = memchr(p, '\n', n - (size_t)(p - head))) != NULL; p++)
        if (n - (size_t)(p - head) > k + 1 && strncasecmp(p + 1, name, k) == 0 && p[1 + k] == ':') return p + 2 + k;
    return NULL;
}

/* The octets of a chunked body, 0 when it is not whole. */
static size_t answer_chunks(const char *p, size_t n)
{
    for (size_t at = 0;;) {
        const char *end = memmem(p + at, n - at, "\r\n", 2);
        size_t size = end ? strtoul(p + at, NULL, 16) : 0;

        if (!end || n - (size_t)(end - p) < size + 4) return 0;
        at = (size_t)(end - p) + size + 4;
        if (!size) return at;
    }
}

/* Passes over the body of the answer before. One that is announced and does not come is that of a HEAD request: no body here, wherever it
 * is cut, goes on with HTTP/. */
static bool stream_skip(struct stream *s)
{
    size_t n = s->skip < s->in.n ? s->skip : s->in.n;

    if (!s->skip || !s->in.n) return s->in.n > 0;
    if (memcmp(s->in.p, "HTTP/", s->in.n < 5 ? s->in.n : 5) == 0) {
        if (s->in.n < 5) return false;
        s->skip = 0;
        return true;
    }
    drop(&s->in, n);
    s->skip -= n;
    s->cut = s->skip > 0;
    return s->in.n > 0;
}

/* Takes the answers that came. */
static void stream_answers(struct stream *s)
{
    while (stream_skip(s)) {
        char *stop = memmem(s->in.p, s->in.n, "\r\n\r\n", 4), *f, text[64];
        size_t head_n = stop ? (size_t)(stop - s->in.p) + 4 : 0, chunks = 0;
        bool close_after;
        int status;

        if (!stop || head_n < 16 || s->cut || memcmp(s->in.p, "HTTP/1.1 ", 9) != 0) return;
        status = atoi(s->in.p + 9);
        if (status < 200) {
            drop(&s->in, head_n);
            continue;
        }
        f = find_field(s->in.p, head_n, "transfer-encoding");
        if (f && !(chunks = answer_chunks(s->in.p + head_n, s->in.n - head_n))) return;
        f = find_field(s->in.p, head_n, "content-length");
        s->skip = f ? (size_t)atol(f) : 0;
        f = find_field(s->in.p, head_n, "connection");
        close_after = f && strncasecmp(f, " close", 6) == 0;
        f = find_field(s->in.p, head_n, "x-seq");
        if (f && (uint64_t)atoll(f) < seqs.n) snprintf(text, sizeof text, "%d#%u%s ", status, seqs.v[atoll(f)], close_after ? "!" : "");
        else snprintf(text, sizeof text, "%d%s ", status, close_after ? "!" : "");
        put_text(&s->answers, text);
        s->answered++;
        s->closing = s->closing || close_after;
        drop(&s->in, head_n + chunks);
    }
}

/* The stream has ended in the way that how says. */
static void stream_ended(struct stream *s, const char *how)
{
    if (s->in.n || s->cut) put_text(&s->answers, "?"), put(&s->answers, s->in.p, s->in.n);
    put_text(&s->answers, how);
    s->over = true;
}

#endif
