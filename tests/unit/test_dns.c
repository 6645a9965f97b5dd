/* dns_: names, packets and files as pure rows; then the resolver on a real loop against a scripted server on loopback. */

#include "faults.h"
#include <poll.h>

#define DNS_Q_A "\3www\2ex\0\0\1\0\1"
#define DNS_Q_AAAA "\3www\2ex\0\0\x1c\0\1"
#define DNS_HEAD(flags, answers, authority) "\x12\x34" flags "\0\1\0" answers "\0" authority "\0\0"
#define DNS_OWNER "\xc0\x0c"                              /* the question's name */
#define DNS_IN(type, ttl, length) "\0" type "\0\1\0\0\0" ttl "\0" length
#define DNS_REPLY(...) __VA_ARGS__, sizeof(__VA_ARGS__) - 1

static const struct {
    int line;
    const char *bytes;
    size_t n;
    uint16_t type;
    int rc;
    unsigned rcode;
    bool truncated;
    uint32_t ttl_s;
    const char *addrs;
    bool whole;                                          /* any cut of it is refused */
} dns_replies[] = {
    /* good */
    UT_ROW(DNS_REPLY(DNS_HEAD("\x81\x80", "\1", "\0") DNS_Q_A DNS_OWNER DNS_IN("\1", "\x3c", "\4") "\x0a\0\0\1"),
           DNS_A, 0, 0, false, 60, "10.0.0.1 ", true),
    UT_ROW(DNS_REPLY(DNS_HEAD("\x81\x80", "\2", "\0") DNS_Q_A DNS_OWNER DNS_IN("\1", "\x3c", "\4") "\x0a\0\0\1"
                     DNS_OWNER DNS_IN("\1", "\x1e", "\4") "\x0a\0\0\2"),
           DNS_A, 0, 0, false, 30, "10.0.0.1 10.0.0.2 ", true),
    UT_ROW(DNS_REPLY(DNS_HEAD("\x81\x80", "\2", "\0") DNS_Q_A DNS_OWNER DNS_IN("\1", "\x3c", "\4") "\x0a\0\0\1"
                     DNS_OWNER DNS_IN("\1", "\x3c", "\4") "\x0a\0\0\1"),
           DNS_A, 0, 0, false, 60, "10.0.0.1 ", true),
    UT_ROW(DNS_REPLY(DNS_HEAD("\x81\x80", "\1", "\0") DNS_Q_AAAA DNS_OWNER DNS_IN("\x1c", "\x3c", "\x10") "\xfd\0\0\0\0\0\0\0\0\0\0\0\0\0\0\1"),
           DNS_AAAA, 0, 0, false, 60, "fd00::1 ", true),
    /* letter case of the question does not matter */
    UT_ROW(DNS_REPLY(DNS_HEAD("\x81\x80", "\1", "\0") "\3WwW\2eX\0\0\1\0\1" DNS_OWNER DNS_IN("\1", "\x3c", "\4") "\x0a\0\0\1"),
           DNS_A, 0, 0, false, 60, "10.0.0.1 ", true),
    /* a chain, in order and the wrong way round; the smallest TTL counts */
    UT_ROW(DNS_REPLY(DNS_HEAD("\x81\x80", "\2", "\0") DNS_Q_A DNS_OWNER DNS_IN("\5", "\x0a", "\4") "\1x\xc0\x10"
                     "\1x\2ex\0" DNS_IN("\1", "\x3c", "\4") "\x0a\0\0\3"),
           DNS_A, 0, 0, false, 10, "10.0.0.3 ", true),
    UT_ROW(DNS_REPLY(DNS_HEAD("\x81\x80", "\2", "\0") DNS_Q_A "\1x\2ex\0" DNS_IN("\1", "\x3c", "\4") "\x0a\0\0\3"
                     DNS_OWNER DNS_IN("\5", "\x0a", "\4") "\1x\xc0\x10"),
           DNS_A, 0, 0, false, 10, "10.0.0.3 ", true),
    /* somebody else's address in the answer is not taken */
    UT_ROW(DNS_REPLY(DNS_HEAD("\x81\x80", "\1", "\0") DNS_Q_A "\1x\2ex\0" DNS_IN("\1", "\x3c", "\4") "\x0a\0\0\3"),
           DNS_A, 0, 0, false, 0, "", true),
    /* no such name, with and without an SOA; the smaller of its TTL and its minimum counts */
    UT_ROW(DNS_REPLY(DNS_HEAD("\x81\x83", "\0", "\0") DNS_Q_A), DNS_A, 0, 3, false, 0, "", true),
    UT_ROW(DNS_REPLY(DNS_HEAD("\x81\x83", "\0", "\1") DNS_Q_A "\2ex\0" DNS_IN("\6", "\x3c", "\x16")
                     "\0\0" "\0\0\0\1" "\0\0\0\2" "\0\0\0\3" "\0\0\0\4" "\0\0\0\x07"),
           DNS_A, 0, 3, false, 7, "", false),
    /* truncated: what follows the question is not looked at */
    UT_ROW(DNS_REPLY(DNS_HEAD("\x83\x80", "\3", "\0") DNS_Q_A "\xff"), DNS_A, 0, 0, true, UINT32_MAX, "", false),
    UT_ROW(DNS_REPLY(DNS_HEAD("\x81\x82", "\0", "\0") DNS_Q_A), DNS_A, 0, 2, false, UINT32_MAX, "", true),
    /* another id, a query, another opcode, two questions, another name, another type, another class */
    UT_ROW(DNS_REPLY("\x12\x35\x81\x80\0\1\0\1\0\0\0\0" DNS_Q_A DNS_OWNER DNS_IN("\1", "\x3c", "\4") "\x0a\0\0\1"), DNS_A, RJ_BAD, 0, 0, 0, "", true),
    UT_ROW(DNS_REPLY(DNS_HEAD("\x01\x00", "\0", "\0") DNS_Q_A), DNS_A, RJ_BAD, 0, 0, 0, "", true),
    UT_ROW(DNS_REPLY(DNS_HEAD("\xa1\x80", "\0", "\0") DNS_Q_A), DNS_A, RJ_BAD, 0, 0, 0, "", true),
    UT_ROW(DNS_REPLY("\x12\x34\x81\x80\0\2\0\0\0\0\0\0" DNS_Q_A DNS_Q_A), DNS_A, RJ_BAD, 0, 0, 0, "", true),
    UT_ROW(DNS_REPLY(DNS_HEAD("\x81\x80", "\0", "\0") "\3wwx\2ex\0\0\1\0\1"), DNS_A, RJ_BAD, 0, 0, 0, "", true),
    UT_ROW(DNS_REPLY(DNS_HEAD("\x81\x80", "\0", "\0") DNS_Q_AAAA), DNS_A, RJ_BAD, 0, 0, 0, "", true),
    UT_ROW(DNS_REPLY(DNS_HEAD("\x81\x80", "\0", "\0") "\3www\2ex\0\0\1\0\3"), DNS_A, RJ_BAD, 0, 0, 0, "", true),
    /* an address of the wrong length, data past the end, more records counted than there are */
    UT_ROW(DNS_REPLY(DNS_HEAD("\x81\x80", "\1", "\0") DNS_Q_A DNS_OWNER DNS_IN("\1", "\x3c", "\3") "\x0a\0\0"), DNS_A, RJ_BAD, 0, 0, 0, "", true),
    UT_ROW(DNS_REPLY(DNS_HEAD("\x81\x80", "\1", "\0") DNS_Q_A DNS_OWNER DNS_IN("\1", "\x3c", "\5") "\x0a\0\0\1"), DNS_A, RJ_BAD, 0, 0, 0, "", true),
    UT_ROW(DNS_REPLY(DNS_HEAD("\x81\x80", "\2", "\0") DNS_Q_A DNS_OWNER DNS_IN("\1", "\x3c", "\4") "\x0a\0\0\1"), DNS_A, RJ_BAD, 0, 0, 0, "", true),
    /* pointers: to itself, forward, two that point at each other, past the end; a label of a reserved kind */
    UT_ROW(DNS_REPLY(DNS_HEAD("\x81\x80", "\1", "\0") DNS_Q_A "\xc0\x18" DNS_IN("\1", "\x3c", "\4") "\x0a\0\0\1"), DNS_A, RJ_BAD, 0, 0, 0, "", true),
    UT_ROW(DNS_REPLY(DNS_HEAD("\x81\x80", "\1", "\0") DNS_Q_A "\xc0\x20" DNS_IN("\1", "\x3c", "\4") "\x0a\0\0\1"), DNS_A, RJ_BAD, 0, 0, 0, "", true),
    UT_ROW(DNS_REPLY(DNS_HEAD("\x81\x80", "\1", "\0") DNS_Q_A "\1a\xc0\x18" DNS_IN("\1", "\x3c", "\4") "\x0a\0\0\1"), DNS_A, RJ_BAD, 0, 0, 0, "", true),
    UT_ROW(DNS_REPLY(DNS_HEAD("\x81\x80", "\1", "\0") DNS_Q_A "\xff\xff" DNS_IN("\1", "\x3c", "\4") "\x0a\0\0\1"), DNS_A, RJ_BAD, 0, 0, 0, "", true),
    UT_ROW(DNS_REPLY(DNS_HEAD("\x81\x80", "\1", "\0") DNS_Q_A "\x41" "a\0" DNS_IN("\1", "\x3c", "\4") "\x0a\0\0\1"), DNS_A, RJ_BAD, 0, 0, 0, "", true),
    /* a CNAME that is longer than its record, and one that leads back */
    UT_ROW(DNS_REPLY(DNS_HEAD("\x81\x80", "\1", "\0") DNS_Q_A DNS_OWNER DNS_IN("\5", "\x0a", "\3") "\1x\xc0\x10"), DNS_A, RJ_BAD, 0, 0, 0, "", true),
    UT_ROW(DNS_REPLY(DNS_HEAD("\x81\x80", "\1", "\0") DNS_Q_A DNS_OWNER DNS_IN("\5", "\x0a", "\2") DNS_OWNER), DNS_A, RJ_BAD, 0, 0, 0, "", true),
};

static int dns_read_row(const uint8_t *p, size_t n, uint16_t type, struct dns_reply *r)
{
    struct dns_wire question;

    UT_CHECK(dns_put_name(&question, S("www.ex"), (struct str){0}));
    return dns_read_reply(str_of(p, n), 0x1234, &question, type, r);
}

UT(dns_reply_rows)
{
    UT_EACH(row, dns_replies) {
        struct str s = ut_bytes(row->bytes, row->n);
        uint8_t text[512];
        struct str_builder b = str_fixed(text, sizeof text - 1);
        struct dns_reply r;

        UT_INT(dns_read_row(s.p, s.n, row->type, &r), row->rc);
        if (row->rc) continue;
        UT_INT(r.rcode, row->rcode);
        UT_INT(r.truncated, row->truncated);
        UT_INT(r.ttl_s, row->ttl_s);
        for (uint32_t i = 0; i < r.n; i++) {
            str_put_ip(&b, &r.addr[i]);
            str_put_c(&b, ' ');
        }
        UT_SLICE(str_built(&b), row->addrs);
    }
}

UT(dns_reply_cut_anywhere_is_refused_and_read_no_further)
{
    UT_EACH(row, dns_replies) {
        for (size_t k = 0; k < row->n; k++) {
            struct dns_reply r;
            int rc = dns_read_row(ut_guard(0, row->bytes, k), k, row->type, &r);

            if (row->whole) UT_INT(rc, RJ_BAD);
        }
    }
}

/* Every byte of every packet with every value: nothing to expect but that it ends and reads nothing else. */
UT(dns_reply_with_any_byte_changed)
{
    UT_EACH(row, dns_replies) {
        uint8_t *p = ut_guard(0, row->bytes, row->n);

        for (size_t k = 0; k < row->n; k++) {
            for (unsigned v = 0; v < 256; v++) {
                struct dns_reply r;

                p[k] = (uint8_t)v;
                dns_read_row(p, row->n, row->type, &r);
                if (r.n > DNS_ADDRS_MAX) UT_CHECK(!"too many addresses");
            }
            p[k] = (uint8_t)row->bytes[k];
        }
    }
}

UT(dns_name_rows)
{
    static const struct { int line; const char *text, *search; bool good; const char *wire; size_t n; } rows[] = {
        UT_ROW("www.ex", "", true, "\3www\2ex\0", 8),
        UT_ROW("WWW.ex.", "", true, "\3www\2ex\0", 8),
        UT_ROW("www", "ex", true, "\3www\2ex\0", 8),
        UT_ROW("a_b-1", "", true, "\5a_b-1\0", 7),
        UT_ROW("", "", false, "", 0),
        UT_ROW(".", "", false, "", 0),
        UT_ROW("a..b", "", false, "", 0),
        UT_ROW(".a", "", false, "", 0),
        UT_ROW("a b", "", false, "", 0),
        UT_ROW("a", "b..c", false, "", 0),
        UT_ROW("a\xc3\xa4", "", false, "", 0),
        UT_ROW("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "", true,
               "\x3f" "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\0", 65),
        UT_ROW("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "", false, "", 0),
    };

    UT_EACH(r, rows) {
        struct dns_wire w;

        UT_INT(dns_put_name(&w, ut_str(r->text), ut_str(r->search)), r->good);
        if (r->good) UT_BYTES(w.p, w.n, r->wire, r->n);
    }
}

/* 253 characters are the longest name; 254 are refused. */
UT(dns_name_length_at_the_limit_and_above)
{
    char text[260];
    struct dns_wire w;
    uint8_t query[DNS_QUERY_MAX];

    for (int i = 0; i < 260; i++) text[i] = i % 2 ? '.' : 'a';
    UT_CHECK(dns_put_name(&w, str_of(text, 253), (struct str){0}));
    UT_INT(w.n, 255);
    UT_INT(dns_put_query(query + 2, 1, &w, DNS_A), 12 + 255 + 4);
    UT_CHECK(!dns_put_name(&w, str_of(text, 255), (struct str){0}));
    text[252] = 'b';
    text[253] = 'b';
    UT_CHECK(!dns_put_name(&w, str_of(text, 254), (struct str){0}));
}

UT(dns_query_bytes)
{
    struct dns_wire w;
    uint8_t query[DNS_QUERY_MAX];

    UT_REQUIRE(dns_put_name(&w, S("www.ex"), (struct str){0}));
    UT_BYTES(query, dns_put_query(query, 0x1234, &w, DNS_AAAA), "\x12\x34\1\0\0\1\0\0\0\0\0\0" DNS_Q_AAAA, 12 + 12);
}

UT(dns_resolv_conf_rows)
{
    static const struct { int line; const char *text; uint32_t servers; const char *first; uint32_t searches; const char *last; uint32_t ndots, ms, tries; } rows[] = {
        UT_ROW("", 1, "127.0.0.1:53", 0, "", 1, 2000, 3),
        UT_ROW("nameserver 10.96.0.10\nsearch a.svc.cluster.local svc.cluster.local cluster.local\noptions ndots:5\n", 1, "10.96.0.10:53", 3, "cluster.local", 5, 2000, 3),
        UT_ROW("# nameserver 1.1.1.1\n; x\nnameserver\t9.9.9.9 # y\r\nnameserver fd00::53", 2, "9.9.9.9:53", 0, "", 1, 2000, 3),
        UT_ROW("nameserver 1.1.1.1\nnameserver 2.2.2.2\nnameserver 3.3.3.3\nnameserver 4.4.4.4\n", 3, "1.1.1.1:53", 0, "", 1, 2000, 3),
        UT_ROW("nameserver x\nnameserver fe80::1%eth0\n", 1, "127.0.0.1:53", 0, "", 1, 2000, 3),
        UT_ROW("domain a\nsearch b c\n", 1, "127.0.0.1:53", 2, "c", 1, 2000, 3),
        UT_ROW("search b c\ndomain a\nsearch .\n", 1, "127.0.0.1:53", 0, "", 1, 2000, 3),
        UT_ROW("options timeout:1 attempts:5 rotate ndots:99 edns0\n", 1, "127.0.0.1:53", 0, "", 15, 1000, 5),
        UT_ROW("options timeout:0 attempts:0 ndots:0 ndots:x\n", 1, "127.0.0.1:53", 0, "", 0, 1000, 1),
        UT_ROW("options timeout:99 attempts:99\n", 1, "127.0.0.1:53", 0, "", 1, 30000, 5),
    };

    UT_EACH(r, rows) {
        static struct dns_conf c;
        uint8_t text[64];
        struct str_builder b = str_fixed(text, sizeof text);

        dns_parse_resolv(ut_str(r->text), &c);
        UT_INT(c.servers, r->servers);
        str_put_addr(&b, &c.server[0]);
        UT_SLICE(str_built(&b), r->first);
        UT_INT(c.searches, r->searches);
        if (c.searches) UT_SLICE(c.search[c.searches - 1], r->last);
        UT_INT(c.ndots, r->ndots);
        UT_INT(c.timeout_ms, r->ms);
        UT_INT(c.attempts, r->tries);
    }
}

UT(dns_hosts_rows)
{
    static const struct { int line; const char *text, *name, *addrs; } rows[] = {
        UT_ROW("127.0.0.1 localhost\n::1 localhost ip6\n", "localhost", "127.0.0.1 ::1 "),
        UT_ROW("127.0.0.1 localhost\n", "LOCALHOST", "127.0.0.1 "),
        UT_ROW("10.0.0.1\ta b\tc # d\n", "c", "10.0.0.1 "),
        UT_ROW("10.0.0.1\ta b\tc # d\n", "d", ""),
        UT_ROW("10.0.0.1 a\n10.0.0.1 a\n10.0.0.2 a a", "a", "10.0.0.1 10.0.0.2 "),
        UT_ROW("x a\n10.0.0 a\na a\n", "a", ""),
        UT_ROW("10.0.0.1 ab\n", "a", ""),
        UT_ROW("", "a", ""),
    };

    UT_EACH(r, rows) {
        struct net_addr a[2];
        uint8_t text[128];
        struct str_builder b = str_fixed(text, sizeof text);
        uint32_t n = dns_parse_hosts(ut_str(r->text), ut_str(r->name), a, 2);

        for (uint32_t i = 0; i < n; i++) {
            str_put_ip(&b, &a[i]);
            str_put_c(&b, ' ');
        }
        UT_SLICE(str_built(&b), r->addrs);
    }
}

UT(dns_server_option_rows)
{
    static const struct { int line; const char *text; int n; const char *last; } rows[] = {
        UT_ROW("", 0, ""),
        UT_ROW("1.2.3.4", 1, "1.2.3.4:53"),
        UT_ROW("1.2.3.4:5353", 1, "1.2.3.4:5353"),
        UT_ROW("fd00::1", 1, "[fd00::1]:53"),
        UT_ROW("[fd00::1]:5353", 1, "[fd00::1]:5353"),
        UT_ROW("1.1.1.1, 2.2.2.2:54 3.3.3.3", 3, "3.3.3.3:53"),
        UT_ROW("1.1.1.1 2.2.2.2 3.3.3.3 4.4.4.4", -EINVAL, ""),
        UT_ROW("dns.example", -EINVAL, ""),
        UT_ROW("1.2.3.4:0", -EINVAL, ""),
    };

    UT_EACH(r, rows) {
        struct net_addr a[DNS_SERVERS_MAX];
        uint8_t text[64];
        struct str_builder b = str_fixed(text, sizeof text);
        int n = dns_parse_servers(ut_str(r->text), a);

        UT_INT(n, r->n);
        if (n > 0) str_put_addr(&b, &a[n - 1]);
        UT_SLICE(str_built(&b), r->last);
    }
}

/* ---- a scripted server ---- */

/* What the server answers to (name, type): the first row that matches. Records are addresses in text. */
struct dns_script {
    const char *name;                                    /* dotted, or NULL: any */
    uint16_t type;                                       /* 0: any */
    enum { DNS_SAY_ADDR, DNS_SAY_CNAME, DNS_SAY_NO_NAME, DNS_SAY_EMPTY, DNS_SAY_FAIL, DNS_SAY_NOTHING, DNS_SAY_CUT, DNS_SAY_LIES } say;
    const char *data;                                    /* addresses separated by blanks, or a name */
    unsigned ttl_s;
};
struct dns_server {
    int udp, tcp, conn[8], nconns;
    uint16_t port;
    const struct dns_script *script;
    int asked, asked_tcp;
    char last[256];
};
struct dns_heard {
    char text[1024];
    char why[128];
    int calls;
    bool inside;
};
/* One resolver and its server. */
struct dns_bench {
    struct io_loop loop;
    struct dns dns;
    struct dns_server server;
    struct dns_heard heard;
    char hosts[64], resolv[64];
};

static void dns_server_open(struct dns_server *s)
{
    struct sockaddr_in sa = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof sa;

    s->udp = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    s->tcp = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    for (int tries = 0; tries < 50; tries++) {
        sa.sin_port = 0;
        close(s->udp);
        s->udp = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        UT_CHECK(bind(s->udp, (struct sockaddr *)&sa, sizeof sa) == 0);
        getsockname(s->udp, (struct sockaddr *)&sa, &n);
        if (bind(s->tcp, (struct sockaddr *)&sa, sizeof sa) == 0) break;
    }
    s->port = ntohs(sa.sin_port);
    UT_CHECK(listen(s->tcp, 8) == 0);
}

static void dns_server_put_name(struct str_builder *b, const char *name)
{
    struct dns_wire w;

    UT_CHECK(dns_put_name(&w, str_z(name), (struct str){0}));
    str_put(b, str_of(w.p, w.n));
}

static void dns_server_put_record(struct str_builder *b, uint16_t type, unsigned ttl_s, struct str data)
{
    const uint8_t head[] = {0xc0, 12, 0, (uint8_t)type, 0, 1, 0, 0, (uint8_t)(ttl_s >> 8), (uint8_t)ttl_s, (uint8_t)(data.n >> 8), (uint8_t)data.n};

    str_put(b, str_of(head, sizeof head));
    str_put(b, data);
}

/* The answer to the query of n bytes at p, into b; nothing when the script says so. */
static void dns_server_answer(struct dns_server *s, const uint8_t *p, size_t n, bool tcp, struct str_builder *b)
{
    const struct dns_script *row = s->script;
    struct dns_wire name;
    long end = dns_read_name(str_of(p, n), 12, &name);
    uint16_t type, count = 0;
    size_t at = 0;

    UT_CHECK(n >= 17 && end == (long)n - 4 && p[2] == 1 && p[3] == 0);
    type = dns_u16(p + end);
    for (size_t i = 0; name.p[i]; i += name.p[i] + 1u)
        at += (size_t)snprintf(s->last + at, sizeof s->last - at, "%s%.*s", at ? "." : "", name.p[i], (const char *)name.p + i + 1);
    s->asked++;
    s->asked_tcp += tcp;
    while ((row->name && strcmp(row->name, s->last) != 0) || (row->type && row->type != type)) row++;
    if (row->say == DNS_SAY_NOTHING) return;
    str_put(b, str_of(p, n));
    b->p[2] = row->say == DNS_SAY_CUT && !tcp ? 0x83 : 0x81;
    b->p[3] = row->say == DNS_SAY_NO_NAME ? 0x83 : row->say == DNS_SAY_FAIL ? 0x82 : 0x80;
    if (row->say == DNS_SAY_LIES) b->p[1] ^= 1;
    if (row->say == DNS_SAY_CNAME) {
        struct str_builder data = str_growing();

        dns_server_put_name(&data, row->data);
        dns_server_put_record(b, DNS_CNAME, row->ttl_s, str_built(&data));
        str_free(&data);
        count = 1;
    }
    if (row->say == DNS_SAY_ADDR || row->say == DNS_SAY_LIES || (row->say == DNS_SAY_CUT && tcp)) {
        struct str rest = str_z(row->data), word;

        while (dns_word(&rest, &word)) {
            struct net_addr a;

            UT_CHECK(str_to_ip(word, &a));
            if ((a.family == AF_INET) != (type == DNS_A)) continue;
            dns_server_put_record(b, type, row->ttl_s, type == DNS_A ? str_of(a.ip + 12, 4) : str_of(a.ip, 16));
            count++;
        }
    }
    b->p[6] = (uint8_t)(count >> 8);
    b->p[7] = (uint8_t)count;
}

static void dns_server_turn(struct dns_server *s)
{
    uint8_t q[512];
    struct sockaddr_in peer;
    socklen_t len = sizeof peer;
    ssize_t n;
    int fd;

    while ((n = recvfrom(s->udp, q, sizeof q, 0, (struct sockaddr *)&peer, &len)) > 0) {
        struct str_builder b = str_growing();

        dns_server_answer(s, q, (size_t)n, false, &b);
        if (b.n) UT_CHECK(sendto(s->udp, b.p, b.n, 0, (struct sockaddr *)&peer, len) == (ssize_t)b.n);
        str_free(&b);
    }
    while ((fd = accept(s->tcp, NULL, NULL)) >= 0) s->conn[s->nconns++ % 8] = fd;
    for (int i = 0; i < 8; i++) {
        struct str_builder b = str_growing();
        uint8_t head[2];

        fd = s->conn[i];
        if (!fd || (n = recv(fd, q, sizeof q, MSG_DONTWAIT)) < 0) continue;
        s->conn[i] = 0;
        if (n == 0) close(fd);                           /* the resolver gave up */
        if (n == 0 || !UT_CHECK(n > 2 && dns_u16(q) == n - 2)) continue;
        dns_server_answer(s, q + 2, (size_t)n - 2, true, &b);
        head[0] = (uint8_t)(b.n >> 8);
        head[1] = (uint8_t)b.n;
        UT_CHECK(send(fd, head, 1, 0) == 1);             /* in pieces, as TCP may */
        UT_CHECK(send(fd, head + 1, 1, 0) == 1);
        UT_CHECK(send(fd, b.p, b.n / 2, 0) == (ssize_t)(b.n / 2));
        UT_CHECK(send(fd, b.p + b.n / 2, b.n - b.n / 2, 0) == (ssize_t)(b.n - b.n / 2));
        str_free(&b);
        close(fd);
    }
}

static void dns_hear(void *arg, const struct net_addr *addrs, uint32_t n, const char *why)
{
    struct dns_heard *h = arg;
    struct str_builder b = str_fixed(h->text, sizeof h->text - 1);

    UT_CHECK(!h->inside);
    UT_CHECK((n == 0) == (why != NULL));
    for (uint32_t i = 0; i < n; i++) {
        str_put_ip(&b, &addrs[i]);
        str_put_c(&b, ' ');
    }
    h->text[b.n] = 0;
    snprintf(h->why, sizeof h->why, "%s", why ? why : "");
    h->calls++;
}

static void dns_write_file(char path[64], const char *text)
{
    int fd;

    snprintf(path, 64, "/tmp/ramjet-unit-XXXXXX");
    fd = mkstemp(path);
    UT_CHECK(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    close(fd);
}

static void dns_bench_open(struct dns_bench *t, const struct dns_script *script, const char *hosts, const char *resolv)
{
    char option[32];

    memset(t, 0, sizeof *t);
    UT_CHECK(io_loop_open(&t->loop, &ep_ops, 0) == 0);
    dns_server_open(&t->server);
    t->server.script = script;
    snprintf(option, sizeof option, "127.0.0.1:%u", t->server.port);
    UT_CHECK(dns_open(&t->dns, &t->loop, str_z(option)) == 0);
    dns_write_file(t->hosts, hosts);
    dns_write_file(t->resolv, resolv);
    t->dns.hosts_path = t->hosts;
    t->dns.resolv_path = t->resolv;
    t->dns.has_ip6 = true;
}

/* Turns until *calls is at least want, at most for ms. */
static bool dns_bench_run(struct dns_bench *t, const int *calls, int want, uint64_t ms)
{
    uint64_t end = sys_clock_ns(CLOCK_MONOTONIC) + ms * 1000000;

    while (*calls < want && sys_clock_ns(CLOCK_MONOTONIC) < end) {
        io_turn(&t->loop, 5);
        dns_server_turn(&t->server);
    }
    return *calls >= want;
}

static void dns_bench_close(struct dns_bench *t)
{
    dns_close(&t->dns);
    for (int i = 0; i < 100 && t->dns.queries; i++) io_turn(&t->loop, 1);
    UT_INT(t->dns.queries, 0);
    UT_INT(t->dns.busy, 0);
    UT_INT(t->loop.clk.queued, 0);
    io_loop_close(&t->loop);
    close(t->server.udp);
    close(t->server.tcp);
    unlink(t->hosts);
    unlink(t->resolv);
}

UT(dns_resolve_rows)
{
    static const struct dns_script script[] = {
        {"both.ex", 0, DNS_SAY_ADDR, "10.0.0.2 10.0.0.1 fd00::1", 60},
        {"four.ex", DNS_A, DNS_SAY_ADDR, "10.0.0.4", 60},
        {"four.ex", 0, DNS_SAY_EMPTY, "", 0},
        {"alias.ex", 0, DNS_SAY_CNAME, "both.ex", 60},
        {"loop.ex", 0, DNS_SAY_CNAME, "pool.ex", 60},
        {"pool.ex", 0, DNS_SAY_CNAME, "loop.ex", 60},
        {"big.ex", 0, DNS_SAY_CUT, "10.1.0.1 10.1.0.2 10.1.0.3", 60},
        {"broken.ex", 0, DNS_SAY_FAIL, "", 0},
        {"half.ex", DNS_A, DNS_SAY_ADDR, "10.0.0.6", 60},
        {"half.ex", 0, DNS_SAY_FAIL, "", 0},
        {"svc.ns.cluster.local", 0, DNS_SAY_ADDR, "10.96.0.7", 60},
        {NULL, 0, DNS_SAY_NO_NAME, "", 0},
    };
    static const struct { int line; const char *name, *addrs, *why; } rows[] = {
        UT_ROW("both.ex", "10.0.0.1 10.0.0.2 fd00::1 ", ""),
        UT_ROW("BOTH.ex.", "10.0.0.1 10.0.0.2 fd00::1 ", ""),
        UT_ROW("four.ex", "10.0.0.4 ", ""),
        UT_ROW("alias.ex", "10.0.0.1 10.0.0.2 fd00::1 ", ""),
        UT_ROW("big.ex", "10.1.0.1 10.1.0.2 10.1.0.3 ", ""),
        UT_ROW("half.ex", "10.0.0.6 ", ""),
        UT_ROW("svc", "10.96.0.7 ", ""),
        UT_ROW("svc.ns", "10.96.0.7 ", ""),
        UT_ROW("svc.", "", "no such name"),
        UT_ROW("none.ex", "", "no such name"),
        UT_ROW("loop.ex", "", "no such name"),
        UT_ROW("broken.ex", "", "no answer from the name servers"),
        UT_ROW("not a name", "", "no such name"),
        UT_ROW("", "", "no such name"),
        UT_ROW("127.0.0.9", "127.0.0.9 ", ""),
        UT_ROW("[fd00::9]", "fd00::9 ", ""),
        UT_ROW("here", "10.9.9.9 fd00::99 ", ""),
        UT_ROW("localhost", "127.0.0.1 ", ""),
    };
    static struct dns_bench t;

    dns_bench_open(&t, script, "10.9.9.9 here\nfd00::99 here\n", "search ns.cluster.local cluster.local\noptions ndots:1 attempts:1\n");
    UT_EACH(r, rows) {
        t.heard.calls = 0;
        t.heard.inside = true;
        dns_resolve(&t.dns, ut_str(r->name), dns_hear, &t.heard);
        t.heard.inside = false;
        if (!UT_CHECK(dns_bench_run(&t, &t.heard.calls, 1, 5000))) continue;
        UT_TEXT(t.heard.text, r->addrs);
        UT_TEXT(t.heard.why, r->why);
    }
    UT_CHECK(t.server.asked_tcp == 2);
    dns_bench_close(&t);
}

/* An answer that is kept is not asked for again, a negative one neither. */
UT(dns_answers_are_cached)
{
    static const struct dns_script script[] = {
        {"a.ex", 0, DNS_SAY_ADDR, "10.0.0.1", 60},
        {NULL, 0, DNS_SAY_NO_NAME, "", 0},
    };
    static struct dns_bench t;

    dns_bench_open(&t, script, "", "");
    for (int i = 1; i <= 3; i++) {
        dns_resolve(&t.dns, S("a.ex"), dns_hear, &t.heard);
        UT_CHECK(dns_bench_run(&t, &t.heard.calls, i, 3000));
        UT_TEXT(t.heard.text, "10.0.0.1 ");
        UT_INT(t.server.asked, 2);
    }
    for (int i = 4; i <= 6; i++) {
        dns_resolve(&t.dns, S("b.ex"), dns_hear, &t.heard);
        UT_CHECK(dns_bench_run(&t, &t.heard.calls, i, 3000));
        UT_TEXT(t.heard.text, "");
        UT_INT(t.server.asked, 4);
    }
    dns_bench_close(&t);
}

/* A watch hears of changes only; a server that is down changes nothing, an answer that there is no such name does. */
UT(dns_watch_follows_the_ttl_and_keeps_the_last_good_answer)
{
    static const struct dns_script first[] = {{NULL, DNS_A, DNS_SAY_ADDR, "10.0.0.1 10.0.0.2", 1}, {NULL, 0, DNS_SAY_EMPTY, "", 0}};
    static const struct dns_script rotated[] = {{NULL, DNS_A, DNS_SAY_ADDR, "10.0.0.2 10.0.0.1", 1}, {NULL, 0, DNS_SAY_EMPTY, "", 0}};
    static const struct dns_script down[] = {{NULL, 0, DNS_SAY_FAIL, "", 0}};
    static const struct dns_script second[] = {{NULL, DNS_A, DNS_SAY_ADDR, "10.0.0.3", 1}, {NULL, 0, DNS_SAY_EMPTY, "", 0}};
    static const struct dns_script gone[] = {{NULL, 0, DNS_SAY_NO_NAME, "", 0}};
    static struct dns_bench t;
    struct dns_watch *w;
    int asked;

    rj.log_level = LOG_ERROR;
    dns_bench_open(&t, first, "", "options attempts:1\n");
    w = dns_watch(&t.dns, S("a.ex"), dns_hear, &t.heard);
    UT_CHECK(dns_bench_run(&t, &t.heard.calls, 1, 3000));
    UT_TEXT(t.heard.text, "10.0.0.1 10.0.0.2 ");
    asked = t.server.asked;
    t.server.script = rotated;
    UT_CHECK(dns_bench_run(&t, &t.server.asked, asked + 2, 3000));
    asked = t.server.asked;
    t.server.script = down;
    UT_CHECK(dns_bench_run(&t, &t.server.asked, asked + 4, 6000));
    UT_INT(t.heard.calls, 1);
    t.server.script = second;
    UT_CHECK(dns_bench_run(&t, &t.heard.calls, 2, 6000));
    UT_TEXT(t.heard.text, "10.0.0.3 ");
    t.server.script = gone;
    UT_CHECK(dns_bench_run(&t, &t.heard.calls, 3, 6000));
    UT_TEXT(t.heard.text, "");
    UT_TEXT(t.heard.why, "no such name");
    dns_unwatch(&t.dns, w);
    dns_bench_close(&t);
}

/* A wrong id is as good as silence: the next try goes out after the time-out, and lies never become addresses. */
UT(dns_wrong_ids_are_ignored)
{
    static const struct dns_script script[] = {{NULL, 0, DNS_SAY_LIES, "10.6.6.6", 60}};
    static struct dns_bench t;

    rj.log_level = LOG_ERROR;
    dns_bench_open(&t, script, "", "options timeout:1 attempts:1\n");
    dns_resolve(&t.dns, S("a.ex"), dns_hear, &t.heard);
    UT_CHECK(dns_bench_run(&t, &t.heard.calls, 1, 4000));
    UT_TEXT(t.heard.text, "");
    UT_TEXT(t.heard.why, "no answer from the name servers");
    dns_bench_close(&t);
}

/* The first server is closed, the second one answers. */
UT(dns_next_server_is_asked)
{
    static const struct dns_script script[] = {{NULL, DNS_A, DNS_SAY_ADDR, "10.0.0.1", 60}, {NULL, 0, DNS_SAY_EMPTY, "", 0}};
    static struct dns_bench t;

    dns_bench_open(&t, script, "", "");
    t.dns.fixed[1] = t.dns.fixed[0];
    t.dns.nfixed = 2;
    str_to_ip(S("127.0.0.77"), &t.dns.fixed[0]);
    t.dns.fixed[0].port = 9;
    dns_resolve(&t.dns, S("a.ex"), dns_hear, &t.heard);
    UT_CHECK(dns_bench_run(&t, &t.heard.calls, 1, 3000));
    UT_TEXT(t.heard.text, "10.0.0.1 ");
    dns_bench_close(&t);
}

static void dns_hear_and_leave(void *arg, const struct net_addr *addrs, uint32_t n, const char *why)
{
    struct dns_watch **two = arg;

    (void)addrs, (void)n, (void)why;
    UT_CHECK(two[0] && two[1]);
    dns_unwatch(two[0]->name->dns, two[0]);
    dns_unwatch(two[1]->name->dns, two[1]);
    two[0] = two[1] = NULL;
}

/* A call-back may drop every watch of the name, its own and the next. */
UT(dns_unwatch_from_a_call_back)
{
    static const struct dns_script script[] = {{NULL, 0, DNS_SAY_NO_NAME, "", 0}};
    static struct dns_bench t;
    struct dns_watch *two[2];

    dns_bench_open(&t, script, "", "");
    two[0] = dns_watch(&t.dns, S("a.ex"), dns_hear_and_leave, two);
    two[1] = dns_watch(&t.dns, S("a.ex"), dns_hear_and_leave, two);
    dns_watch(&t.dns, S("a.ex"), dns_hear, &t.heard);
    UT_CHECK(dns_bench_run(&t, &t.heard.calls, 1, 3000));
    UT_CHECK(!two[0] && !two[1]);
    dns_bench_close(&t);
}

/* More names than may be asked for at once: all of them get their turn. */
UT(dns_many_names)
{
    static const struct dns_script script[] = {{NULL, DNS_A, DNS_SAY_ADDR, "10.0.0.1", 60}, {NULL, 0, DNS_SAY_EMPTY, "", 0}};
    static struct dns_bench t;
    char name[32];

    dns_bench_open(&t, script, "", "");
    for (int i = 0; i < 3 * DNS_BUSY_MAX; i++) {
        snprintf(name, sizeof name, "n%d.ex", i);
        dns_resolve(&t.dns, str_z(name), dns_hear, &t.heard);
    }
    UT_CHECK(dns_bench_run(&t, &t.heard.calls, 3 * DNS_BUSY_MAX, 8000));
    UT_INT(t.server.asked, 6 * DNS_BUSY_MAX);
    dns_bench_close(&t);
}

/* Closing with questions out leaves nothing behind. */
UT(dns_close_while_asking)
{
    static const struct dns_script script[] = {{NULL, 0, DNS_SAY_NOTHING, "", 0}};
    static struct dns_bench t;

    dns_bench_open(&t, script, "", "");
    for (int i = 0; i < 3; i++) dns_resolve(&t.dns, i ? S("a.ex") : S("b.ex"), dns_hear, &t.heard);
    UT_CHECK(dns_bench_run(&t, &t.server.asked, 4, 3000));
    UT_INT(t.heard.calls, 0);
    dns_bench_close(&t);
    UT_INT(t.heard.calls, 0);
}

/* Whichever call or allocation of a question fails once, the other family, the other server or the next try brings the answer. */
UT(dns_answers_when_a_call_is_refused)
{
    static const enum ft_kind kinds[] = {FT_CALLS, FT_MEMORY};
    static const struct dns_script script[] = {{NULL, 0, DNS_SAY_CUT, "10.0.0.1", 60}};
    static struct dns_bench t;

    rj.log_level = LOG_ERROR;
    for (size_t i = 0; i < RJ_COUNT(kinds); i++) {
        for (long k = 1; k == 1 || ft.hit >= 0; k++) {
            int64_t before = adm_count_fds();

            dns_bench_open(&t, script, "", "nameserver 127.0.0.1\noptions timeout:1 attempts:2\n");
            t.dns.has_ip6 = false;
            dns_resolve(&t.dns, S("a.ex"), dns_hear, &t.heard);
            ft_arm(kinds[i], k);
            for (int turns = 0; turns < 100 && !t.heard.calls; turns++) {
                long fail_at;

                io_turn(&t.loop, 1);
                fail_at = mem_fail_at;
                mem_fail_at = 0;                         /* the server's allocations are not meant */
                dns_server_turn(&t.server);
                mem_fail_at = fail_at;
            }
            ft_disarm();
            if (!UT_CHECK(dns_bench_run(&t, &t.heard.calls, 1, 8000))) printf("  %s %ld refused at %ld\n", i ? "allocation" : "call", ft.hit, k);
            UT_INT(t.heard.calls, 1);
            UT_CHECK(strcmp(t.heard.text, "10.0.0.1 ") == 0 || t.heard.why[0]);
            dns_bench_close(&t);
            for (int c = 0; c < 8; c++)
                if (t.server.conn[c]) close(t.server.conn[c]);
            UT_INT(adm_count_fds(), before);
            if (k > 60) break;
        }
    }
    rj.log_level = LOG_INFO;
}
