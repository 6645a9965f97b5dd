/* The TLS client against BearSSL's server in memory, cut into pieces of every size; who is trusted, and who is not. */
#include "pki.h"

struct tt_server {
    br_ssl_server_context sc;
    br_x509_minimal_context xc;
    struct cry_identity *id;
    struct cry_anchors *client_ca;
    uint8_t buf[BR_SSL_BUFSIZE_BIDI];
};

static void tt_server_init(struct tt_server *s, const char *cert, const char *key, const char *client_ca, unsigned version)
{
    struct log_err err;

    memset(s, 0, sizeof *s);
    s->id = cry_identity_new(str_z(cert), str_z(key), &err);
    if (s->id->key_type == BR_KEYTYPE_RSA) br_ssl_server_init_full_rsa(&s->sc, s->id->chain, s->id->n, &s->id->key.rsa);
    else br_ssl_server_init_full_ec(&s->sc, s->id->chain, s->id->n, BR_KEYTYPE_EC, &s->id->key.ec);
    if (version) br_ssl_engine_set_versions(&s->sc.eng, version, version);
    if (client_ca) {
        s->client_ca = cry_anchors_new(str_z(client_ca), &err);
        br_x509_minimal_init_full(&s->xc, s->client_ca->ta, s->client_ca->n);
        br_ssl_engine_set_x509(&s->sc.eng, &s->xc.vtable);
        br_ssl_engine_set_default_rsavrfy(&s->sc.eng);
        br_ssl_engine_set_default_ecdsa(&s->sc.eng);
        br_ssl_server_set_trust_anchor_names_alt(&s->sc, s->client_ca->ta, s->client_ca->n);
    }
    br_ssl_engine_set_buffer(&s->sc.eng, s->buf, sizeof s->buf, 1);
    br_ssl_server_reset(&s->sc);
}

static void tt_server_fini(struct tt_server *s)
{
    cry_identity_put(s->id);
    cry_anchors_put(s->client_ca);
}

/* Moves bytes both ways, at most `piece` at a time to the client, until nothing moves. The server sends back what it reads;
 * what the client reads goes to out. */
static void tt_pump(struct tls_conn *c, struct tt_server *s, size_t piece, struct str_builder *out)
{
    br_ssl_engine_context *e = &s->sc.eng;
    bool moved = true;

    while (moved) {
        struct str t;
        uint8_t *p, *q;
        size_t n, m;

        moved = false;
        while ((t = tls_take(c)).n && (p = br_ssl_engine_recvrec_buf(e, &n))) {
            n = n < t.n ? n : t.n;
            memcpy(p, t.p, n);
            br_ssl_engine_recvrec_ack(e, n);
            tls_took(c, n);
            moved = true;
        }
        if ((p = br_ssl_engine_recvapp_buf(e, &n)) && (q = br_ssl_engine_sendapp_buf(e, &m))) {
            n = n < m ? n : m;
            memcpy(q, p, n);
            br_ssl_engine_recvapp_ack(e, n);
            br_ssl_engine_sendapp_ack(e, n);
            br_ssl_engine_flush(e, 0);
            moved = true;
        }
        if ((p = br_ssl_engine_sendrec_buf(e, &n))) {
            n = n < piece ? n : piece;
            n = tls_feed(c, str_of(ut_guard(0, p, n), n));
            if (n) br_ssl_engine_sendrec_ack(e, n);
            moved = moved || n;
        }
        while ((t = tls_read(c)).n) {
            if (out) str_put(out, t);
            tls_did_read(c, t.n);
            moved = true;
        }
    }
}

static const char *tt_shake(const struct tls_client_config *cfg, const char *cert, const char *key, const char *client_ca, unsigned version)
{
    static struct tt_server s;
    struct log_err err = {""};
    struct tls_conn *c = tls_client_new(cfg, &err);
    const char *result;

    if (!c) return "no client";
    tt_server_init(&s, cert, key, client_ca, version);
    tt_pump(c, &s, 4096, NULL);
    result = client_ca && br_ssl_engine_last_error(&s.sc.eng) ? "refused by the server" : c->state == TLS_OPEN ? "open" : c->state == TLS_FAILED ? c->why : "neither";
    tls_free(c);
    tt_server_fini(&s);
    return result;
}

UT(tls_client_verifies_chain_name_address_and_usage)
{
    static const struct { int line; const char *ca, *cert, *key, *name, *alt, *ip; bool insecure; const char *result; } rows[] = {
        UT_ROW(pki_ca_ec_crt, pki_server_ec_crt, pki_server_ec_key, "kubernetes", "", "", false, "open"),
        UT_ROW(pki_ca_rsa_crt, pki_server_rsa_crt, pki_server_rsa_key, "kubernetes.default.svc", "", "", false, "open"),
        UT_ROW(pki_ca_ec_crt, pki_server_ec_crt, pki_server_ec_key, "a.wild.example", "", "", false, "open"),
        UT_ROW(pki_ca_ec_crt, pki_server_ec_crt, pki_server_ec_key, "", "", "10.96.0.1", false, "open"),
        UT_ROW(pki_ca_rsa_crt, pki_server_rsa_crt, pki_server_rsa_key, "", "", "fd77::1", false, "open"),
        UT_ROW(pki_ca_ec_crt, pki_server_ec_crt, pki_server_ec_key, "other", "", "10.96.0.1", false, "open"),
        UT_ROW(pki_ca_ec_crt, pki_server_ec_crt, pki_server_ec_key, "other", "kubernetes", "10.96.0.9", false, "open"),
        UT_ROW(pki_ca_ec_crt, pki_server_any_crt, pki_server_any_key, "any.example", "", "", false, "open"),
        UT_ROW(pki_self_crt, pki_self_crt, pki_self_key, "self.example", "", "", false, "open"),
        UT_ROW(pki_ca_ec_crt, pki_server_ec_crt, pki_server_ec_key, "other", "", "", false, "a certificate for another name or address"),
        UT_ROW(pki_ca_ec_crt, pki_server_ec_crt, pki_server_ec_key, "10.96.0.1", "", "", false, "a certificate for another name or address"),
        UT_ROW(pki_ca_ec_crt, pki_server_ec_crt, pki_server_ec_key, "", "", "10.96.0.2", false, "a certificate for another name or address"),
        UT_ROW(pki_ca_ec_crt, pki_server_ec_crt, pki_server_ec_key, "", "", "", false, "a certificate for another name or address"),
        UT_ROW(pki_ca_ec_crt, pki_server_cn_crt, pki_server_cn_key, "server_cn", "", "", false, "a certificate for another name or address"),
        UT_ROW(pki_ca_ec_crt, pki_server_client_crt, pki_server_client_key, "kubernetes", "", "", false, "a certificate that is not for TLS servers"),
        UT_ROW(pki_ca_other_crt, pki_server_ec_crt, pki_server_ec_key, "kubernetes", "", "", false, "a certificate signed by an unknown authority"),
        UT_ROW(pki_server_any_crt, pki_server_ec_crt, pki_server_ec_key, "kubernetes", "", "", false, "a certificate signed by an unknown authority"),
        UT_ROW(NULL, pki_server_ec_crt, pki_server_ec_key, "kubernetes", "", "", false, "no client"),
        UT_ROW(NULL, pki_server_ec_crt, pki_server_ec_key, "other", "", "", true, "open"),
        UT_ROW(NULL, pki_server_rsa_crt, pki_server_rsa_key, "", "", "10.96.0.9", true, "open"),
    };
    UT_EACH(r, rows) {
        struct log_err err;
        struct tls_client_config cfg = {.name = str_z(r->name), .alt_name = str_z(r->alt), .insecure = r->insecure};

        if (r->ca) cfg.anchors = cry_anchors_new(str_z(r->ca), &err);
        if (*r->ip) str_to_ip(str_z(r->ip), &cfg.ip);
        UT_TEXT(tt_shake(&cfg, r->cert, r->key, NULL, 0), r->result);
        cry_anchors_put(cfg.anchors);
    }
}

UT(tls_client_takes_any_of_several_authorities_and_checks_the_time)
{
    char both[8192];
    struct log_err err;
    struct tls_client_config cfg = {.name = S("kubernetes")};

    snprintf(both, sizeof both, "%s%s%s", pki_ca_other_crt, pki_ca_rsa_crt, pki_ca_ec_crt);
    cfg.anchors = cry_anchors_new(str_z(both), &err);
    UT_TEXT(tt_shake(&cfg, pki_server_ec_crt, pki_server_ec_key, NULL, 0), "open");
    cfg.now_s = 1000000000;
    UT_TEXT(tt_shake(&cfg, pki_server_ec_crt, pki_server_ec_key, NULL, 0), "a certificate that is expired or not yet valid");
    cfg.now_s = 10000000000;
    UT_TEXT(tt_shake(&cfg, pki_server_ec_crt, pki_server_ec_key, NULL, 0), "a certificate that is expired or not yet valid");
    cfg.now_s = 0;
    UT_CHECK(strcmp(tt_shake(&cfg, pki_server_ec_crt, pki_server_ec_key, NULL, BR_TLS11), "open") != 0);
    cry_anchors_put(cfg.anchors);
}

UT(tls_client_certificates_are_accepted)
{
    static const struct { int line; const char *cert, *key, *ca, *result; } rows[] = {
        UT_ROW(pki_client_rsa_crt, pki_client_rsa_key, pki_ca_ec_crt, "open"),
        UT_ROW(pki_client_p256_crt, pki_client_p256_key, pki_ca_ec_crt, "open"),
        UT_ROW(pki_client_p384_crt, pki_client_p384_key, pki_ca_rsa_crt, "open"),
        UT_ROW(NULL, NULL, pki_ca_ec_crt, "refused by the server"),
        UT_ROW(pki_client_p384_crt, pki_client_p384_key, pki_ca_ec_crt, "refused by the server"),
    };
    UT_EACH(r, rows) {
        struct log_err err;
        struct tls_client_config cfg = {.name = S("kubernetes"), .anchors = cry_anchors_new(str_z(pki_ca_rsa_crt), &err)};

        if (r->cert) cfg.identity = cry_identity_new(str_z(r->cert), str_z(r->key), &err);
        UT_TEXT(tt_shake(&cfg, pki_server_rsa_crt, pki_server_rsa_key, r->ca, 0), r->result);
        cry_identity_put(cfg.identity);
        cry_anchors_put(cfg.anchors);
    }
}

/* 100,000 bytes there and back, fed in pieces of each size. */
UT(tls_client_carries_bytes_in_pieces_of_every_size)
{
    static const size_t pieces[] = {1, 2, 3, 5, 7, 64, 1460, 5000, 100000};
    static uint8_t data[100000], got[100000];
    static struct tt_server s;
    struct log_err err;
    struct tls_client_config cfg = {.name = S("kubernetes"), .anchors = cry_anchors_new(str_z(pki_ca_ec_crt), &err)};

    for (size_t i = 0; i < sizeof data; i++) data[i] = (uint8_t)(i * 7 + i / 251);
    for (size_t k = 0; k < UT_COUNT(pieces); k++) {
        struct tls_conn *c = tls_client_new(&cfg, &err);
        struct str_builder out = str_fixed(got, sizeof got);
        size_t at = 0;

        tt_server_init(&s, pki_server_ec_crt, pki_server_ec_key, NULL, 0);
        UT_INT(tls_write(c, S("early")), 0);
        tt_pump(c, &s, pieces[k], &out);
        UT_INT(c->state, TLS_OPEN);
        while (at < sizeof data && c->state == TLS_OPEN) {
            at += tls_write(c, str_of(data + at, sizeof data - at));
            tls_flush(c);
            tt_pump(c, &s, pieces[k], &out);
        }
        UT_BYTES(out.p, out.n, data, sizeof data);
        c->engine->close(c);
        tt_pump(c, &s, pieces[k], &out);
        UT_INT(c->state, TLS_CLOSED);
        UT_INT(tls_write(c, S("late")), 0);
        tls_free(c);
        tt_server_fini(&s);
    }
    cry_anchors_put(cfg.anchors);
}

UT(tls_client_fails_on_what_is_not_tls)
{
    static const struct { int line; const char *in; size_t n; const char *why; } rows[] = {
        UT_ROW("HTTP/1.1 400 Bad Request\r\n\r\n", 28, NULL),
        UT_ROW("\x15\x03\x03\x00\x02\x02\x28", 7, "the peer refused: handshake failure"),
        UT_ROW("\x15\x03\x01\x00\x02\x02\x46", 7, "the peer refused: protocol version"),
        UT_ROW("\x15\x03\x03\x00\x02\x02\x74", 7, "the peer refused: certificate required"),
        UT_ROW("\x15\x03\x03\x00\x02\x02\xf0", 7, "the peer refused with an unknown alert"),
        UT_ROW("\x16\x03\x03\xff\xff", 5, "a record of a wrong length"),
        UT_ROW("\x17\x03\x03\x00\x02hi", 7, NULL),
        UT_ROW("\x16\x03\x03\x00\x04\x02\xff\xff\xff", 9, NULL),
    };
    struct log_err err;
    struct tls_client_config cfg = {.name = S("kubernetes"), .anchors = cry_anchors_new(str_z(pki_ca_ec_crt), &err)};

    UT_EACH(r, rows) {
        for (size_t piece = 1; piece <= r->n; piece++) {
            struct tls_conn *c = tls_client_new(&cfg, &err);

            tls_took(c, tls_take(c).n);
            for (size_t at = 0; at < r->n; at += piece) {
                size_t n = r->n - at < piece ? r->n - at : piece;

                tls_feed(c, str_of(ut_guard(0, r->in + at, n), n));
            }
            if (r->in[0] != 0x16 || r->in[3]) UT_INT(c->state, TLS_FAILED);
            if (r->why) UT_TEXT(c->why, r->why);
            tls_free(c);
        }
    }
    cry_anchors_put(cfg.anchors);
}

UT(tls_reasons_name_what_is_wrong)
{
    static const struct { int line; int err; const char *why; } rows[] = {
        UT_ROW(BR_ERR_BAD_VERSION, "not a TLS 1.2 peer (plain HTTP on this port, or TLS 1.3 only?)"),
        UT_ROW(BR_ERR_BAD_MAC, "a record that does not decrypt"),
        UT_ROW(BR_ERR_BAD_LENGTH, "a record of a wrong length"), UT_ROW(BR_ERR_TOO_LARGE, "a record of a wrong length"),
        UT_ROW(BR_ERR_UNKNOWN_TYPE, "a record of an unknown type (plain HTTP on this port?)"),
        UT_ROW(BR_ERR_BAD_CIPHER_SUITE, "no common cipher suite"),
        UT_ROW(BR_ERR_WRONG_KEY_USAGE, "a certificate whose key does not fit the cipher suite"),
        UT_ROW(BR_ERR_X509_BAD_SIGNATURE, "a certificate with a bad signature"),
        UT_ROW(BR_ERR_X509_CRITICAL_EXTENSION, "a certificate with an unknown critical extension"),
        UT_ROW(BR_ERR_X509_DN_MISMATCH, "a certificate chain in a wrong order"),
        UT_ROW(BR_ERR_X509_NOT_CA, "a certificate signed by one that is no CA"),
        UT_ROW(BR_ERR_X509_WEAK_PUBLIC_KEY, "a certificate with a weak key"),
        UT_ROW(BR_ERR_X509_WRONG_KEY_TYPE, "a certificate with the wrong type of key"),
        UT_ROW(BR_ERR_X509_BAD_TAG_CLASS, "a malformed certificate"), UT_ROW(BR_ERR_X509_INVALID_VALUE, "a malformed certificate"),
        UT_ROW(BR_ERR_BAD_HANDSHAKE, "a malformed handshake"), UT_ROW(BR_ERR_UNEXPECTED, "a malformed handshake"),
        UT_ROW(BR_ERR_SEND_FATAL_ALERT + BR_ERR_BAD_MAC, "a record that does not decrypt"),
        UT_ROW(BR_ERR_RECV_FATAL_ALERT + 40, "the peer refused: handshake failure"),
    };

    UT_EACH(r, rows) UT_TEXT(tls_reason(r->err), r->why);
}

/* A server name fits the 255 octets of the extension, or there is no connection; nor without memory. */
UT(tls_client_names_at_the_limit_and_above)
{
    struct log_err err = {""};
    char name[257];
    struct tls_client_config cfg = {.anchors = cry_anchors_new(str_z(pki_ca_ec_crt), &err)};
    struct tls_conn *c;

    memset(name, 'a', sizeof name);
    for (size_t n = 254; n <= 256; n++) {
        cfg.name = str_of(name, n);
        c = tls_client_new(&cfg, &err);
        UT_INT(c != NULL, n <= 255);
        if (c) tls_free(c);
        else UT_TEXT(err.text, "a server name of more than 255 bytes");
    }
    cry_anchors_put(cfg.anchors);
}

/* A flipped bit anywhere in the server's first flight never opens the connection and never reads out of bounds. */
UT(tls_client_survives_damaged_handshakes)
{
    static struct tt_server s;
    static uint8_t flight[8192];
    struct log_err err;
    struct tls_client_config cfg = {.name = S("kubernetes"), .anchors = cry_anchors_new(str_z(pki_ca_ec_crt), &err)};
    size_t len = 4000;

    for (size_t at = 0; at < len; at += 13) {
        struct tls_conn *c = tls_client_new(&cfg, &err);
        struct str t;
        uint8_t *p;
        size_t n;

        tt_server_init(&s, pki_server_ec_crt, pki_server_ec_key, NULL, 0);
        while ((t = tls_take(c)).n && (p = br_ssl_engine_recvrec_buf(&s.sc.eng, &n))) {
            n = n < t.n ? n : t.n;
            memcpy(p, t.p, n);
            br_ssl_engine_recvrec_ack(&s.sc.eng, n);
            tls_took(c, n);
        }
        for (len = 0; (p = br_ssl_engine_sendrec_buf(&s.sc.eng, &n)); len += n) {
            memcpy(flight + len, p, n);
            br_ssl_engine_sendrec_ack(&s.sc.eng, n);
        }
        if (at < len) {
            flight[at] ^= (uint8_t)(1 << at % 8);
            tls_feed(c, str_of(ut_guard(0, flight, len), len));
            UT_CHECK(c->state != TLS_OPEN);
        }
        tls_free(c);
        tt_server_fini(&s);
    }
    cry_anchors_put(cfg.anchors);
}
