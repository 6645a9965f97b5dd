/* DNS: a reply is what a slow reader finds in the packet, or refused; resolv.conf, hosts and server lists stay inside their bounds.
 * Input: a byte of options, then what the options choose. */

struct fz_record {
    struct dns_wire owner, target;                       /* target: of a CNAME */
    uint16_t type, class;
    size_t data_at, data_n;
};

/* Recursion: a pointer leads to a name that stands before this one (first), so it ends. Returns the offset behind the name, or 0. */
static size_t fz_dns_name(struct str s, size_t at, size_t first, struct dns_wire *w)
{
    for (;;) {
        uint8_t len;

        if (at >= s.n) return 0;
        len = s.p[at];
        if (len >= 0xc0) {
            size_t to = at + 1 < s.n ? (size_t)(len & 63) << 8 | s.p[at + 1] : SIZE_MAX;

            return to < first && fz_dns_name(s, to, to, w) ? at + 2 : 0;
        }
        if (len > 63 || at + 1 + len > s.n || w->n + 1u + len > DNS_WIRE_MAX) return 0;
        for (size_t i = 0; i <= len; i++) w->p[w->n++] = i && s.p[at + i] >= 'A' && s.p[at + i] <= 'Z' ? s.p[at + i] + 32 : s.p[at + i];
        at += 1u + len;
        if (!len) return at;
    }
}

static unsigned fz_dns_u16(struct str s, size_t at) { return (unsigned)s.p[at] << 8 | s.p[at + 1]; }

/* Reads n records at *at into v (at most 64 kept). False: cut off or malformed. */
static bool fz_dns_records(struct str s, size_t *at, unsigned n, struct fz_record *v, unsigned *kept)
{
    *kept = 0;
    for (unsigned i = 0; i < n; i++) {
        struct fz_record *r = &v[*kept];
        size_t end;

        r->owner.n = r->target.n = 0;
        end = fz_dns_name(s, *at, *at, &r->owner);
        if (!end || s.n - end < 10) return false;
        r->type = (uint16_t)fz_dns_u16(s, end);
        r->class = (uint16_t)fz_dns_u16(s, end + 2);
        r->data_n = fz_dns_u16(s, end + 8);
        r->data_at = end + 10;
        if (r->data_n > s.n - r->data_at) return false;
        *at = r->data_at + r->data_n;
        if (*kept < 63) ++*kept;
    }
    return true;
}

static void fz_check_reply(struct str s, const struct dns_wire *name, uint16_t type)
{
    static struct fz_record v[64];
    struct dns_reply r;
    struct dns_wire q = {.n = 0}, owner = *name;
    unsigned kept = 0;
    size_t at;
    int rc = dns_read_reply(s, 0x1234, name, type, &r);

    FZ_CHECK(rc == 0 || rc == RJ_BAD);
    for (size_t k = 0; k < s.n && k < 600; k++) {
        struct dns_reply part;

        if (dns_read_reply(fz_copy(1, s.p, k), 0x1234, name, type, &part) == 0 && !part.truncated && part.rcode == 0) FZ_CHECK(rc == 0 && part.n == r.n);
    }
    if (rc) return;
    FZ_CHECK(r.n <= DNS_ADDRS_MAX && s.n >= 12 && fz_dns_u16(s, 0) == 0x1234 && fz_dns_u16(s, 4) == 1 && s.p[2] >> 3 == 16);
    at = fz_dns_name(s, 12, 12, &q);
    FZ_CHECK(at && dns_wire_eq(&q, name) && s.n - at >= 4 && fz_dns_u16(s, at) == type && fz_dns_u16(s, at + 2) == 1);
    if (r.truncated || (r.rcode != 0 && r.rcode != 3)) {
        FZ_CHECK(r.n == 0);
        return;
    }
    at += 4;
    FZ_CHECK(fz_dns_records(s, &at, fz_dns_u16(s, 6), v, &kept));
    if (kept == 63) return;
    for (unsigned hop = 0, found = 0; hop <= 64 && !found; hop++) {
        struct dns_wire next = {.n = 0};

        for (unsigned i = 0; i < kept; i++) {
            if (v[i].class != 1 || !dns_wire_eq(&v[i].owner, &owner)) continue;
            if (v[i].type == type) {
                bool there = false;

                for (uint32_t k = 0; k < r.n; k++) there = there || memcmp(r.addr[k].ip + (type == DNS_A ? 12 : 0), s.p + v[i].data_at, type == DNS_A ? 4 : 16) == 0;
                FZ_CHECK(there && v[i].data_n == (type == DNS_A ? 4 : 16));
                found++;
            }
            if (v[i].type == 5) {
                next.n = 0;
                FZ_CHECK(fz_dns_name(s, v[i].data_at, v[i].data_at, &next) == v[i].data_at + v[i].data_n);
            }
        }
        FZ_CHECK(r.n <= found || !found || r.n == 0);
        if (found) FZ_CHECK(r.n > 0);
        else if (!next.n) FZ_CHECK(r.n == 0);
        if (!next.n) break;
        owner = next;
    }
}

/* Puts the head that is asked for and the question before what the fuzzer made. */
static void fz_dns_packet(struct fz_in *in, uint8_t option, uint16_t type)
{
    static const struct dns_wire name = {.n = 8, .p = "\3www\2ex"};
    uint8_t packet[2048] = {0x12, 0x34, 0x81, 0x80, 0, 1, 0, 1, 0, 0, 0, 0};
    size_t n = 12;

    if (option & 8) {
        fz_check_reply(fz_copy(0, in->p, in->n), &name, type);
        return;
    }
    packet[3] = fz_take(in);
    packet[7] = fz_take(in) & 31;
    packet[9] = fz_take(in) & 7;
    memcpy(packet + n, name.p, name.n);
    n += name.n;
    packet[n + 1] = (uint8_t)type;
    packet[n + 3] = 1;
    n += 4;
    if (in->n > sizeof packet - n) in->n = sizeof packet - n;
    if (in->n) memcpy(packet + n, in->p, in->n);
    fz_check_reply(fz_copy(0, packet, n + in->n), &name, type);
}

static void fz_check_resolv(struct str s)
{
    static struct dns_conf c;

    dns_parse_resolv(s, &c);
    FZ_CHECK(c.servers >= 1 && c.servers <= DNS_SERVERS_MAX && c.searches <= DNS_SEARCH_MAX && c.ndots <= DNS_NDOTS_MAX);
    FZ_CHECK(c.timeout_ms >= 1000 && c.timeout_ms <= 30000 && c.attempts >= 1 && c.attempts <= 5);
    for (uint32_t i = 0; i < c.servers; i++) FZ_CHECK(c.server[i].port && (c.server[i].family == AF_INET || c.server[i].family == AF_INET6));
    for (uint32_t i = 0; i < c.searches; i++) {
        struct dns_wire w;

        FZ_CHECK(c.search[i].n && (const char *)c.search[i].p >= (const char *)c.text && (const char *)c.search[i].p + c.search[i].n <= (const char *)c.text + sizeof c.text);
        if (dns_put_name(&w, S("a.b"), c.search[i])) FZ_CHECK(w.n <= DNS_WIRE_MAX && w.p[w.n - 1] == 0);
    }
}

static void fz_check_servers(struct str s)
{
    struct net_addr a[DNS_ADDRS_MAX], b[DNS_SERVERS_MAX];
    struct str_builder sb = str_growing();
    uint32_t n = dns_parse_hosts(s, S("www"), a, 5);
    int m = dns_parse_servers(s, b);

    FZ_CHECK(n <= 5 && (m == -EINVAL || (m >= 0 && m <= DNS_SERVERS_MAX)));
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = 0; k < i; k++) FZ_CHECK(!str_addr_eq(&a[i], &a[k]));
    for (int i = 0; i < m; i++) {
        if (i) str_put_c(&sb, ',');
        str_put_addr(&sb, &b[i]);
    }
    if (m > 0) {                                         /* what is written is read again */
        struct net_addr again[DNS_SERVERS_MAX];

        FZ_CHECK(dns_parse_servers(str_built(&sb), again) == m);
        for (int i = 0; i < m; i++) FZ_CHECK(str_addr_eq(&b[i], &again[i]) && b[i].port == again[i].port);
    }
    str_free(&sb);
}

FZ(dns, 1024)
{
    struct fz_in in = {p, n};
    uint8_t option = fz_take(&in);

    if ((option & 3) < 2) fz_dns_packet(&in, option, option & 4 ? DNS_AAAA : DNS_A);
    else if ((option & 3) == 2) fz_check_resolv(fz_copy(0, in.p, in.n));
    else fz_check_servers(fz_copy(0, in.p, in.n));
}
