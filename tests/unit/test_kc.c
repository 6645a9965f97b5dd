/* kubeconfigs and service accounts, and what is read again when it changes. */

#define TK_HEAD "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts:\n- name: c\n  context: {cluster: k, user: u, namespace: shop}\n" \
                "- name: other\n  context: {cluster: gone, user: u}\n"
#define TK_USER "users:\n- name: u\n  user:\n"
#define TK_CLUSTER "clusters:\n- name: k\n  cluster:\n    server: "

UT(kc_kubeconfigs_are_read)
{
    static const struct { int line; const char *text, *context, *host, *prefix; int port; bool tls; const char *ip, *tls_name, *token, *ns; } rows[] = {
        UT_ROW(TK_HEAD TK_USER "    token: t0k\n" TK_CLUSTER "http://10.1.2.3:8001\n", "", "10.1.2.3", "", 8001, false, "10.1.2.3", "", "t0k", "shop"),
        UT_ROW(TK_HEAD TK_USER "    token: t0k\n" TK_CLUSTER "http://api.example/k8s/clusters/c-1/\n", "c", "api.example", "/k8s/clusters/c-1", 80, false, "", "api.example", "t0k", "shop"),
        UT_ROW(TK_HEAD TK_USER "    token: t\n" TK_CLUSTER "https://[fd77::1]:6443\n    insecure-skip-tls-verify: true\n", "", "fd77::1", "", 6443, true, "fd77::1", "", "t", "shop"),
        UT_ROW(TK_HEAD TK_USER "    token: t\n" TK_CLUSTER "https://a.b\n    insecure-skip-tls-verify: true\n    tls-server-name: x.y\n", "", "a.b", "", 443, true, "", "x.y", "t", "shop"),
        UT_ROW(TK_HEAD "users:\n- {name: u, user: {}}\n" TK_CLUSTER "http://a.b\n", "", "a.b", "", 80, false, "", "a.b", "", "shop"),
        UT_ROW("{\"current-context\":\"c\",\"contexts\":[{\"name\":\"c\",\"context\":{\"cluster\":\"k\"}}],\"clusters\":[{\"name\":\"k\",\"cluster\":{\"server\":\"http://1.2.3.4\"}}]}",
               "", "1.2.3.4", "", 80, false, "1.2.3.4", "", "", ""),
    };
    UT_EACH(r, rows) {
        struct kc_config c;
        struct log_err err = {""};
        char ip[64] = "";
        struct str_builder b = str_fixed(ip, sizeof ip - 1);

        UT_INT(kc_from_text(&c, ut_str(r->text), "/tmp/config", str_z(r->context), &err), 0);
        UT_TEXT(err.text, "");
        if (*err.text) continue;
        UT_SLICE(c.host, r->host);
        UT_SLICE(c.prefix, r->prefix);
        UT_INT(c.port, r->port);
        UT_INT(c.tls, r->tls);
        UT_INT(c.insecure, r->tls);
        if (c.ip.family) str_put_ip(&b, &c.ip);
        UT_SLICE(str_built(&b), r->ip);
        UT_SLICE(c.tls_name, r->tls_name);
        UT_SLICE(str_built(&c.token), r->token);
        UT_SLICE(c.ns, r->ns);
        kc_fini(&c);
    }
}

UT(kc_kubeconfigs_are_refused_with_the_reason)
{
    static const struct { int line; const char *text, *context, *err; } rows[] = {
        UT_ROW("", "", "/tmp/config: "),
        UT_ROW("[]", "", "/tmp/config: found array, expected a kubeconfig"),
        UT_ROW("{\"a\":", "", "/tmp/config: line 1, column 6: "),
        UT_ROW("a: *b\n", "", "/tmp/config: line 1"),
        UT_ROW("kind: Config\n", "", "/tmp/config: no current-context, and no kube-context is set"),
        UT_ROW(TK_HEAD, "nope", "/tmp/config: no context `nope`"),
        UT_ROW(TK_HEAD, "", "/tmp/config: context `c`: no cluster `k`"),
        UT_ROW(TK_HEAD TK_CLUSTER "http://a\n", "other", "/tmp/config: context `other`: no cluster `gone`"),
        UT_ROW(TK_HEAD TK_CLUSTER "http://a\n", "", "/tmp/config: context `c`: no user `u`"),
        UT_ROW(TK_HEAD TK_CLUSTER "a.b:6443\n", "", "/tmp/config: cluster `k`: server `a.b:6443`: expected http:// or https://"),
        UT_ROW(TK_HEAD TK_CLUSTER "ftp://a\n", "", "/tmp/config: cluster `k`: server `ftp://a`: expected http:// or https://"),
        UT_ROW(TK_HEAD TK_CLUSTER "http://\n", "", "/tmp/config: cluster `k`: server `http://`: a bad host name"),
        UT_ROW(TK_HEAD TK_CLUSTER "http://a:0\n", "", "/tmp/config: cluster `k`: server `http://a:0`: expected HOST:PORT with a port of 1 to 65535 (an IPv6 address in brackets)"),
        UT_ROW(TK_HEAD TK_CLUSTER "http://a:65536\n", "", "/tmp/config: cluster `k`: server `http://a:65536`: expected HOST:PORT"),
        UT_ROW(TK_HEAD TK_CLUSTER "http://a_b/x?y\n", "", "/tmp/config: cluster `k`: server `http://a_b/x?y`: a path with a query"),
        UT_ROW(TK_HEAD TK_CLUSTER "http://a@b\n", "", "/tmp/config: cluster `k`: server `http://a@b`: a bad host name"),
        UT_ROW(TK_HEAD TK_CLUSTER "\"\"\n", "", "/tmp/config: cluster `k`: server is missing"),
        UT_ROW(TK_HEAD TK_CLUSTER "[a]\n", "", "/tmp/config: cluster `k`: line 12: server: found array, expected a string"),
        UT_ROW(TK_HEAD TK_CLUSTER "https://a\n" TK_USER "    token: t\n", "", "/tmp/config: no certificate authority: expected certificate-authority, certificate-authority-data or insecure-skip-tls-verify"),
        UT_ROW(TK_HEAD TK_CLUSTER "https://a\n    certificate-authority-data: \"!\"\n", "", "/tmp/config: cluster `k`: certificate-authority-data: not base64"),
        UT_ROW(TK_HEAD TK_CLUSTER "https://a\n    certificate-authority-data: aGVsbG8=\n" TK_USER "    token: t\n", "",
               "/tmp/config: certificate-authority-data: no certificate found: expected PEM with BEGIN CERTIFICATE"),
        UT_ROW(TK_HEAD TK_CLUSTER "https://a\n    certificate-authority: gone.crt\n" TK_USER "    token: t\n", "", "/tmp/config: /tmp/gone.crt: No such file or directory"),
        UT_ROW(TK_HEAD TK_CLUSTER "https://a\n    certificate-authority: ca.crt\n    insecure-skip-tls-verify: true\n", "",
               "/tmp/config: cluster `k`: insecure-skip-tls-verify beside a certificate authority: expected one of them"),
        UT_ROW(TK_HEAD TK_CLUSTER "http://a\n    proxy-url: http://p\n", "", "/tmp/config: cluster `k`: proxy-url is not supported"),
        UT_ROW(TK_HEAD TK_CLUSTER "http://a\n" TK_USER "    exec: {command: aws}\n", "",
               "/tmp/config: user `u`: exec (an exec plugin) is not supported; expected token, tokenFile or a client certificate"),
        UT_ROW(TK_HEAD TK_CLUSTER "http://a\n" TK_USER "    auth-provider: {name: gcp}\n", "", "/tmp/config: user `u`: auth-provider (an auth provider) is not supported"),
        UT_ROW(TK_HEAD TK_CLUSTER "http://a\n" TK_USER "    username: me\n    password: secret\n", "", "/tmp/config: user `u`: password (a password) is not supported"),
        UT_ROW(TK_HEAD TK_CLUSTER "http://a\n" TK_USER "    as: root\n    token: t\n", "", "/tmp/config: user `u`: as (impersonation) is not supported"),
        UT_ROW(TK_HEAD TK_CLUSTER "http://a\n" TK_USER "    token: \"a b\"\n", "", "/tmp/config: user `u`: the token holds a space or a byte that is no ASCII"),
        UT_ROW(TK_HEAD TK_CLUSTER "http://a\n" TK_USER "    token: \"a\\r\\nHost: b\"\n", "", "/tmp/config: user `u`: the token holds a space or a byte that is no ASCII"),
        UT_ROW(TK_HEAD TK_CLUSTER "http://a\n" TK_USER "    tokenFile: gone\n", "", "/tmp/config: /tmp/gone: No such file or directory"),
        UT_ROW(TK_HEAD TK_CLUSTER "http://a\n" TK_USER "    client-certificate-data: aGVsbG8=\n", "", "/tmp/config: user `u`: client-certificate and client-key: expected both or none"),
        UT_ROW(TK_HEAD TK_CLUSTER "http://a\n" TK_USER "    client-certificate-data: aGVsbG8=\n    client-key-data: aGVsbG8=\n", "",
               "/tmp/config: client certificate client-certificate-data: no certificate found: expected PEM with BEGIN CERTIFICATE"),
    };
    UT_EACH(r, rows) {
        struct kc_config c;
        struct log_err err = {""};

        UT_INT(kc_from_text(&c, ut_str(r->text), "/tmp/config", str_z(r->context), &err), -1);
        if (strncmp(err.text, r->err, strlen(r->err))) UT_TEXT(err.text, r->err);
    }
}

UT(kc_service_accounts_rotate)
{
    struct kc_config c;
    struct log_err err = {""};
    struct cry_anchors *before;

    tk_dir_new();
    UT_INT(kc_from_cluster(&c, "10.96.0.1", "443", tk_dir, &err), -1);
    UT_CHECK(strstr(err.text, "token: No such file or directory"));
    UT_INT(kc_from_cluster(&c, NULL, "443", tk_dir, &err), -1);
    UT_TEXT(err.text, "KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not both set");
    tk_put("token", "first\n");
    tk_put("ca.crt", pki_ca_ec_crt);
    tk_put("namespace", "edge\n");
    UT_INT(kc_from_cluster(&c, "10.96.0.1", "443", tk_dir, &err), 0);
    UT_SLICE(str_built(&c.token), "first");
    UT_SLICE(c.ns, "edge");
    UT_SLICE(c.tls_name, "kubernetes.default.svc");
    UT_INT(c.tls_ip.family, AF_INET);
    UT_INT(c.port, 443);
    before = c.anchors;
    UT_INT(kc_refresh(&c, false, &err), 0);
    UT_CHECK(c.anchors == before);
    tk_put("token", "second");
    tk_put("ca.crt", pki_ca_rsa_crt);
    UT_INT(kc_refresh(&c, false, &err), 0);
    UT_SLICE(str_built(&c.token), "second");
    tk_put("token", "");
    tk_put("ca.crt", "nonsense");
    UT_INT(kc_refresh(&c, false, &err), -1);
    UT_SLICE(str_built(&c.token), "second");
    UT_CHECK(c.anchors != NULL);
    UT_INT(kc_refresh(&c, false, &err), 0);      /* told once */
    kc_fini(&c);
    UT_INT(kc_from_cluster(&c, "fd77::1", "6443", tk_dir, &err), -1);
    tk_put("token", "third");
    tk_put("ca.crt", pki_ca_rsa_crt);
    UT_INT(kc_from_cluster(&c, "fd77::1", "6443", tk_dir, &err), 0);
    UT_SLICE(c.host, "fd77::1");
    kc_fini(&c);
    tk_dir_drop();
}

UT(kc_client_certificates_come_from_files_and_data)
{
    struct kc_config c;
    struct log_err err = {""};
    char text[1024];
    struct cry_identity *before;

    tk_dir_new();
    tk_put("ca.crt", pki_ca_ec_crt);
    tk_put("tls.crt", pki_client_rsa_crt);
    tk_put("tls.key", pki_client_rsa_key);
    snprintf(text, sizeof text, TK_HEAD TK_CLUSTER "https://a\n    certificate-authority: ca.crt\n" TK_USER "    client-certificate: tls.crt\n    client-key: %s\n", tk_path("tls.key"));
    UT_INT(kc_from_text(&c, str_z(text), tk_path("config"), S(""), &err), 0);
    UT_TEXT(err.text, "");
    UT_REQUIRE(c.identity && c.anchors);
    before = c.identity;
    tk_put("tls.crt", pki_client_p256_crt);
    UT_INT(kc_refresh(&c, false, &err), -1);     /* the key of another certificate: keeps the pair */
    UT_CHECK(c.identity == before);
    tk_put("tls.key", pki_client_p256_key);
    UT_INT(kc_refresh(&c, false, &err), 0);
    UT_CHECK(c.identity && c.identity->key_type == BR_KEYTYPE_EC);
    kc_fini(&c);
    tk_dir_drop();
}
