/* Random, PEM, keys, certificates: what is read, and what is refused with which words. */
#include "pki.h"

UT(cry_equal_compares_all_bytes)
{
    static const struct { int line; const char *a, *b; bool same; } rows[] = {
        UT_ROW("", "", true),
        UT_ROW("secret", "secret", true),
        UT_ROW("secret", "secreT", false),
        UT_ROW("secret", "Secret", false),
        UT_ROW("secret", "secretsecret", false),
        UT_ROW("secretsecret", "secret", false),
        UT_ROW("", "secret", false),
        UT_ROW("secret", "", false),
    };
    UT_EACH(r, rows)
        UT_INT(cry_equal(ut_str(r->a), ut_str(r->b)), r->same);
}

UT(cry_random_differs_and_keeps_its_range)
{
    uint8_t a[600] = {0}, b[600] = {0};

    cry_random(a, sizeof a);
    cry_random(b, sizeof b);
    UT_CHECK(memcmp(a, b, sizeof a) != 0);
    UT_CHECK(a[599] | a[598] | a[597] | a[596] | a[595] | a[594]);
    for (int i = 0; i < 1000; i++) {
        uint32_t v = cry_random_range(7, 9);

        UT_CHECK(v >= 7 && v <= 9);
    }
    UT_INT(cry_random_range(5, 5), 5);
    cry_wipe(a, sizeof a);
    for (size_t i = 0; i < sizeof a; i++) UT_INT(a[i], 0);
}

UT(cry_der_takes_exact_lengths_only)
{
    static const struct { int line; const char *in; size_t n; bool ok; size_t content; } rows[] = {
        UT_ROW("\x04\x00", 2, true, 0),
        UT_ROW("\x04\x02yz", 4, true, 2),
        UT_ROW("\x04\x02yzq", 5, true, 2),
        UT_ROW("\x04\x02y", 3, false, 0),
        UT_ROW("\x04", 1, false, 0),
        UT_ROW("", 0, false, 0),
        UT_ROW("\x04\x80", 2, false, 0),                                /* indefinite */
        UT_ROW("\x04\x81\x02yz", 5, false, 0),                          /* a short length in the long form */
        UT_ROW("\x04\x82\x00\x02yz", 6, false, 0),
        UT_ROW("\x04\x82\x01", 3, false, 0),
        UT_ROW("\x04\x84\x00\x00\x00\x01y", 7, false, 0),
        UT_ROW("\x1f\x01y", 3, false, 0),                               /* a tag of several bytes */
    };
    UT_EACH(r, rows) {
        struct str in = ut_bytes(r->in, r->n), content;
        uint8_t tag;
        bool ok = cry_der_next(&in, &tag, &content);

        UT_INT(ok, r->ok);
        if (ok) UT_INT(content.n, r->content);
    }
}

UT(cry_names_match_as_rfc_6125_wants)
{
    static const struct { int line; const char *pattern, *name; bool match; } rows[] = {
        UT_ROW("a.example", "a.example", true),
        UT_ROW("A.Example", "a.eXample", true),
        UT_ROW("a.example", "a.example.", true),
        UT_ROW("a.example", "b.example", false),
        UT_ROW("*.example.org", "a.example.org", true),
        UT_ROW("*.example.org", "A.EXAMPLE.ORG", true),
        UT_ROW("*.example.org", "example.org", false),
        UT_ROW("*.example.org", ".example.org", false),
        UT_ROW("*.example.org", "a.b.example.org", false),
        UT_ROW("*.org", "a.org", false),
        UT_ROW("*", "a", false),
        UT_ROW("a*.example.org", "ab.example.org", false),
        UT_ROW("", "a", false),
        UT_ROW("a", "", false),
        UT_ROW("", "", false),
    };
    UT_EACH(r, rows)
        UT_INT(cry_name_matches(ut_str(r->pattern), ut_str(r->name)), r->match);
}

static int tc_first(void *arg, struct str name, struct str der, struct log_err *err)
{
    struct str_builder *b = arg;

    (void)err;
    if (str_eq(name, S("CERTIFICATE")) && !b->n) str_put(b, der);
    return 0;
}

static void tc_flip_check(struct str der)
{
    struct net_addr ip;

    str_to_ip(S("10.96.0.1"), &ip);
    for (size_t k = 0; k <= der.n; k++) {
        struct str cut = str_of(ut_guard(0, der.p, k), k);

        cry_cert_has_name(cut, S("kubernetes"));
        cry_cert_has_ip(cut, &ip);
        cry_cert_is_server(cut);
    }
    for (size_t k = 0; k < der.n; k++) {
        uint8_t *copy = ut_guard(0, der.p, der.n);

        copy[k] ^= 0x81;
        cry_cert_has_name(str_of(copy, der.n), S("kubernetes"));
        cry_cert_is_server(str_of(copy, der.n));
    }
}

UT(cry_certificates_name_hosts_and_addresses)
{
    static const struct { int line; const char *pem, *name; bool has; } names[] = {
        UT_ROW(pki_server_ec_crt, "kubernetes", true),
        UT_ROW(pki_server_rsa_crt, "kubernetes.default.svc", true),
        UT_ROW(pki_server_ec_crt, "a.wild.example", true),
        UT_ROW(pki_server_ec_crt, "wild.example", false),
        UT_ROW(pki_server_ec_crt, "kubernetes.default", false),
        UT_ROW(pki_server_ec_crt, "10.96.0.1", false),
        UT_ROW(pki_server_cn_crt, "server_cn", false),                  /* the common name alone names nothing */
        UT_ROW(pki_self_crt, "self.example", true),
    };
    static const struct { int line; const char *pem, *ip; bool has; } ips[] = {
        UT_ROW(pki_server_ec_crt, "10.96.0.1", true),
        UT_ROW(pki_server_ec_crt, "127.0.0.1", true),
        UT_ROW(pki_server_rsa_crt, "fd77::1", true),
        UT_ROW(pki_server_rsa_crt, "fd77::2", false),
        UT_ROW(pki_server_ec_crt, "10.96.0.2", false),
        UT_ROW(pki_server_any_crt, "10.96.0.1", false),
        UT_ROW(pki_server_cn_crt, "10.96.0.1", false),
    };
    static const struct { int line; const char *pem; bool server; } usage[] = {
        UT_ROW(pki_server_ec_crt, true),
        UT_ROW(pki_server_rsa_crt, true),
        UT_ROW(pki_server_any_crt, true),
        UT_ROW(pki_server_client_crt, false),
        UT_ROW(pki_client_rsa_crt, false),
    };
    uint8_t der[4096];
    struct log_err err;
    struct net_addr ip;

    UT_EACH(r, names) {
        struct str_builder b = str_fixed(der, sizeof der);
        struct cry_pem_sink sink = {tc_first, &b};

        UT_CHECK(cry_pem_read(ut_str(r->pem), &sink, &err) > 0);
        UT_INT(cry_cert_has_name(ut_bytes(der, b.n), ut_str(r->name)), r->has);
    }
    UT_EACH(r, ips) {
        struct str_builder b = str_fixed(der, sizeof der);
        struct cry_pem_sink sink = {tc_first, &b};

        UT_CHECK(cry_pem_read(ut_str(r->pem), &sink, &err) > 0);
        UT_CHECK(str_to_ip(ut_str(r->ip), &ip));
        UT_INT(cry_cert_has_ip(ut_bytes(der, b.n), &ip), r->has);
    }
    UT_EACH(r, usage) {
        struct str_builder b = str_fixed(der, sizeof der);
        struct cry_pem_sink sink = {tc_first, &b};

        UT_CHECK(cry_pem_read(ut_str(r->pem), &sink, &err) > 0);
        UT_INT(cry_cert_is_server(ut_bytes(der, b.n)), r->server);
        tc_flip_check(str_of(der, b.n));
    }
}

UT(cry_anchors_come_from_pem_bundles)
{
    static const struct { int line; const char *a, *b; int count, skipped; const char *err; } rows[] = {
        UT_ROW(pki_ca_ec_crt, "", 1, 0, ""),
        UT_ROW(pki_ca_ec_crt, pki_ca_rsa_crt, 2, 0, ""),
        UT_ROW("some text before\n", pki_ca_rsa_crt, 1, 0, ""),
        UT_ROW(pki_self_crt, "", 1, 0, ""),
        UT_ROW(pki_ca_ec_crt, pki_ed25519_crt, 1, 1, ""),
        UT_ROW(pki_client_p256_key, pki_ca_ec_crt, 1, 0, ""),
        UT_ROW("", "", 0, 0, "no certificate found: expected PEM with BEGIN CERTIFICATE"),
        UT_ROW("hello", "", 0, 0, "no certificate found: expected PEM with BEGIN CERTIFICATE"),
        UT_ROW(pki_client_p256_key, "", 0, 0, "no certificate found: expected PEM with BEGIN CERTIFICATE"),
        UT_ROW(pki_ed25519_crt, "", 0, 0, "no usable CA certificate: unsupported key type or curve (supported: RSA up to 4096 bits, EC P-256, P-384, P-521)"),
        UT_ROW("-----BEGIN CERTIFICATE-----\nAAAA!\n-----END CERTIFICATE-----\n", "", 0, 0, "damaged PEM: expected base64 between BEGIN and END lines"),
        UT_ROW("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "", 0, 0, "no usable CA certificate: "),
    };
    UT_EACH(r, rows) {
        char text[8192];
        struct log_err err = {""};
        struct cry_anchors *a;

        snprintf(text, sizeof text, "%s%s", r->a, r->b);
        a = cry_anchors_new(ut_str(text), &err);
        UT_INT(a != NULL, r->count > 0);
        if (a) {
            UT_INT(a->n, r->count);
            UT_INT(cry_anchors_skipped(a), r->skipped);
            cry_anchors_put(cry_anchors_get(a));
            cry_anchors_put(a);
        } else {
            UT_CHECK(strncmp(err.text, r->err, strlen(r->err)) == 0);
        }
    }
}

UT(cry_pem_needs_no_last_newline_and_reads_crlf)
{
    char text[8192];
    size_t n = 0;
    struct log_err err;
    struct cry_anchors *a;

    for (const char *p = pki_ca_ec_crt; *p; p++) {
        if (*p == '\n') text[n++] = '\r';
        text[n++] = *p;
    }
    UT_REQUIRE((a = cry_anchors_new(ut_bytes(text, n), &err)));
    UT_INT(a->n, 1);
    cry_anchors_put(a);
    UT_REQUIRE((a = cry_anchors_new(ut_bytes(pki_ca_ec_crt, strlen(pki_ca_ec_crt) - 1), &err)));
    cry_anchors_put(a);
    UT_REQUIRE((a = cry_anchors_new(ut_bytes(text, n - 2), &err)));
    cry_anchors_put(a);
}

UT(cry_identities_are_read_or_refused_with_a_reason)
{
    static const struct { int line; const char *cert, *key, *err; } rows[] = {
        UT_ROW(pki_client_rsa_crt, pki_client_rsa_key, ""),
        UT_ROW(pki_client_rsa_crt, pki_client_rsa_pkcs8_key, ""),
        UT_ROW(pki_client_p256_crt, pki_client_p256_key, ""),
        UT_ROW(pki_client_p256_crt, pki_client_p256_params_key, ""),
        UT_ROW(pki_client_p256_crt, pki_client_p256_pkcs8_key, ""),
        UT_ROW(pki_client_p384_crt, pki_client_p384_key, ""),
        UT_ROW(pki_client_rsa_crt, pki_client_p256_key, "the private key does not belong to the certificate"),
        UT_ROW(pki_client_p384_crt, pki_client_p256_key, "the private key does not belong to the certificate"),
        UT_ROW(pki_client_p256_crt, pki_server_ec_key, "the private key does not belong to the certificate"),
        UT_ROW(pki_client_rsa_crt, pki_server_rsa_key, "the private key does not belong to the certificate"),
        UT_ROW(pki_client_p256_crt, pki_encrypted_pkcs8_key, "the private key is encrypted: only keys without a passphrase are supported"),
        UT_ROW(pki_client_rsa_crt, pki_encrypted_pkcs1_key, "the private key is encrypted: only keys without a passphrase are supported"),
        UT_ROW(pki_client_p256_crt, pki_ed25519_key, "private key: unsupported key type or curve (supported: RSA up to 4096 bits, EC P-256, P-384, P-521)"),
        UT_ROW(pki_client_p256_crt, pki_secp256k1_key, "private key: unsupported key type or curve (supported: RSA up to 4096 bits, EC P-256, P-384, P-521)"),
        UT_ROW(pki_ed25519_crt, pki_ed25519_key, "certificate: unsupported key type or curve (supported: RSA up to 4096 bits, EC P-256, P-384, P-521)"),
        UT_ROW(pki_client_p256_crt, "", "no private key found: expected PEM with BEGIN PRIVATE KEY"),
        UT_ROW("", pki_client_p256_key, "no certificate found: expected PEM with BEGIN CERTIFICATE"),
        UT_ROW(pki_client_p256_crt, "-----BEGIN PRIVATE KEY-----\nMAA=\n-----END PRIVATE KEY-----\n", "private key: "),
    };
    UT_EACH(r, rows) {
        struct log_err err = {""};
        struct cry_identity *id = cry_identity_new(ut_str(r->cert), ut_str(r->key), &err);

        UT_INT(id != NULL, *r->err == 0);
        if (!id) UT_CHECK(strncmp(err.text, r->err, strlen(r->err)) == 0);
        cry_identity_put(cry_identity_get(id));
        cry_identity_put(id);
    }
}
