"""The forms of a kubeconfig, in-cluster mode, verification of the server."""

import os
import re
import subprocess

import pytest

from harness import (SERVER_IP, SERVER_SANS, app, eventually, ingress, kubeconfig, service_account_dir, write_file,
                     ramjet_binary, DNS_IP, ingress_class)
from scripted import Scripted, scripted_kubeconfig
from conftest import publish

A, B = "10.77.1.1:8080", "10.77.1.2:8080"


@pytest.fixture
def config(tmp_path):
    """Writes a kubeconfig for the real server."""
    def make(api, url=None, **more):
        return kubeconfig(str(tmp_path / "kubeconfig"), url or api.url, **more)
    return make


@pytest.fixture
def web(kube, ns, host):
    kube.create(*app(ns, "web", "10.77.1.1"), ingress(ns, "web", [(host, "/", "Prefix", "web", 80)]))


@pytest.mark.parametrize("form", ["json", "yaml"])
@pytest.mark.parametrize("auth", ["token", "tokenFile", "client-certificate-data", "client-certificate", "client-certificate-ec"])
def test_kubeconfig(ramjet, api, ns, host, web, config, tmp_path, form, auth):
    if auth == "token":
        user = {"token": api.ADMIN}
    elif auth == "tokenFile":
        write_file(str(tmp_path / "token"), api.ADMIN + "\n")
        user = {"token_file": str(tmp_path / "token")}
    else:
        pair = api.ca.issue(auth, "/O=system:masters/CN=admin", client=True, ec=auth.endswith("ec"))
        user = {"cert": pair} if auth == "client-certificate" else {"cert_data": pair}
    ca = {"ca": api.ca.cert} if auth == "client-certificate" else {"ca_data": api.ca.cert}
    r = ramjet(kubeconfig=config(api, form=form, **ca, **user), watch_namespace=ns)
    r.expect(host, "/", A)


def test_kubeconfig_as_kubectl_writes_it(ramjet, api, ns, host, web, config, tmp_path):
    """Block style with quotes, comments, null values and an empty user beside ours."""
    path = config(api, form="yaml", ca_data=api.ca.cert, token=api.ADMIN)
    with open(path) as f:
        text = f.read()
    text = text.replace("current-context: test", 'current-context: "test"   # chosen').replace("preferences: {}", "preferences: null")
    text = "# written by hand\n---\n" + text.replace("server: " + api.url, "server: '%s'" % api.url)
    write_file(path, text)
    ramjet(kubeconfig=path, watch_namespace=ns).expect(host, "/", A)


def test_kube_context(ramjet, api, ns, host, web, tmp_path):
    """kube-context chooses another than current-context."""
    path = kubeconfig(str(tmp_path / "kc"), api.url, ca_data=api.ca.cert, token=api.ADMIN, form="yaml")
    with open(path) as f:
        text = f.read()
    write_file(path, text.replace("current-context: test", "current-context: other"))
    ramjet(kubeconfig=path, kube_context="test", watch_namespace=ns).expect(host, "/", A)


def test_relative_files_stand_beside_the_kubeconfig(ramjet, api, ns, host, web, config, tmp_path):
    write_file(str(tmp_path / "ca.pem"), open(api.ca.cert).read())
    write_file(str(tmp_path / "tok"), api.ADMIN)
    r = ramjet(kubeconfig=config(api, ca="ca.pem", token_file="tok"), watch_namespace=ns)
    r.expect(host, "/", A)


def test_server_by_dns_name(ramjet, api, ns, host, web, config, dns):
    dns.table["api.cluster.test"] = [SERVER_IP]
    url = "https://api.cluster.test:%d" % api.port
    r = ramjet(kubeconfig=config(api, url=url, ca_data=api.ca.cert, token=api.ADMIN), watch_namespace=ns, resolver=DNS_IP)
    r.expect(host, "/", A)


def test_server_with_an_elliptic_curve_key(on_fake, ca, up, engine, tmp_path):
    server = Scripted(ca, ec=True)
    try:
        publish(server, "web", "web.test", "10.77.1.1")
        server.put(ingress_class("ramjet"))
        on_fake(kubeconfig=scripted_kubeconfig(server, str(tmp_path))).expect("web.test", "/", A)
    finally:
        server.close()


def refused(r, fake=None):
    """The server is not trusted: not ready, nothing asked, and the log says so."""
    r.expect_log(r"(?m)^\S+ (warn|error) .*(certificate|x509|TLS|tls|trust)")
    assert r.readyz().status == 503
    assert not fake or not fake.requests, "no request, and no token, went to it"


def test_unknown_ca_is_refused(on_fake, fake, other_ca, tmp_path):
    path = kubeconfig(str(tmp_path / "kc"), fake.url, ca_data=other_ca.cert, token=fake.token)
    refused(on_fake(kubeconfig=path, ready=False), fake)


def test_wrong_ip_is_refused(on_fake, ca, fake, tmp_path):
    fake.use_certificate(*ca.issue("wrong-ip", "/CN=%s" % SERVER_IP, ("IP:10.77.9.9", "DNS:other.test")))
    refused(on_fake(kubeconfig=scripted_kubeconfig(fake, str(tmp_path)), ready=False), fake)


def test_wrong_dns_name_is_refused(on_fake, ca, fake, dns, tmp_path):
    dns.table["elsewhere.test"] = [SERVER_IP]
    path = kubeconfig(str(tmp_path / "kc"), "https://elsewhere.test:%d" % fake.port, ca_data=ca.cert, token=fake.token)
    refused(on_fake(kubeconfig=path, ready=False, resolver=DNS_IP), fake)


def test_insecure_skip_tls_verify_warns(on_fake, fake, other_ca, tmp_path):
    fake.use_certificate(*other_ca.issue("insecure", "/CN=whatever", ("IP:10.77.9.9",)))
    path = kubeconfig(str(tmp_path / "kc"), fake.url, insecure=True, token=fake.token, form="yaml")
    r = on_fake(kubeconfig=path)
    r.expect("web.test", "/", A)
    r.expect_log(r"(?m)^\S+ warn .*insecure-skip-tls-verify")


@pytest.mark.parametrize("user,word", [
    ({"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "aws", "args": ["eks", "get-token"]}}, "exec"),
    ({"auth-provider": {"name": "gcp"}}, "auth-provider"),
    ({"username": "admin", "password": "secret"}, "username|password|basic"),
], ids=["exec", "auth-provider", "basic"])
def test_unsupported_authentication_is_named(ca, engine, tmp_path, user, word):
    for form in ("json", "yaml"):
        path = kubeconfig(str(tmp_path / "kc"), "https://10.77.0.1:1", ca_data=ca.cert, form=form, user_extra=user)
        done = subprocess.run([ramjet_binary(), "run", "--kubeconfig", path, "--engine", engine, "--http", "off", "--admin", "off"],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=10)
        assert done.returncode == 2, done.stdout
        assert re.search(word, done.stdout) and path in done.stdout, done.stdout


@pytest.mark.parametrize("text", ["", "{", "a: [", "apiVersion: v1\nkind: Config\n", "\x00\x01", "- 1\n- 2\n"],
                         ids=["empty", "brace", "flow", "no-context", "binary", "list"])
def test_broken_kubeconfig_ends_with_status_2(engine, tmp_path, text):
    path = str(tmp_path / "kc")
    write_file(path, text)
    done = subprocess.run([ramjet_binary(), "run", "--kubeconfig", path, "--engine", engine, "--http", "off", "--admin", "off"],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=10)
    assert done.returncode == 2 and path in done.stdout, done.stdout


def test_missing_kubeconfig_ends_with_status_2(engine, tmp_path):
    done = subprocess.run([ramjet_binary(), "run", "--kubeconfig", str(tmp_path / "absent"), "--engine", engine],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=10)
    assert done.returncode == 2 and "absent" in done.stdout, done.stdout


# ---------------------------------------------------------------- in a cluster

def in_cluster(server_port, folder):
    return dict(kubeconfig=None, serviceaccount_dir=folder,
                env={"KUBERNETES_SERVICE_HOST": SERVER_IP, "KUBERNETES_SERVICE_PORT": str(server_port)})


def test_in_cluster(ramjet, api, ns, host, web, tmp_path):
    folder = service_account_dir(str(tmp_path / "sa"), api.ca.cert, api.ADMIN, ns)
    ramjet(watch_namespace=ns, **in_cluster(api.port, folder)).expect(host, "/", A)


def test_variables_of_services_are_ignored(ramjet, api, ns, host, web, tmp_path):
    """A kubelet injects RAMJET_* for services that are called ramjet or ramjet-http: they are no options."""
    options = in_cluster(api.port, service_account_dir(str(tmp_path / "sa"), api.ca.cert, api.ADMIN, ns))
    for name in ("RAMJET", "RAMJET_HTTP", "RAMJET_ADMIN"):
        options["env"].update({name + "_SERVICE_HOST": "10.96.0.9", name + "_SERVICE_PORT": "80", name + "_SERVICE_PORT_HTTP": "80",
                               name + "_PORT": "tcp://10.96.0.9:80", name + "_PORT_80_TCP": "tcp://10.96.0.9:80", name + "_PORT_80_TCP_PROTO": "tcp",
                               name + "_PORT_80_TCP_PORT": "80", name + "_PORT_80_TCP_ADDR": "10.96.0.9"})
    r = ramjet(watch_namespace=ns, **options)
    r.expect(host, "/", A)
    assert " error " not in r.log()


def test_in_cluster_token_and_ca_rotate(on_fake, fake, other_ca, tmp_path):
    """The server gets a certificate of another CA and takes another token only; both files follow."""
    folder = service_account_dir(str(tmp_path / "sa"), fake.ca.cert, fake.token)
    r = on_fake(**in_cluster(fake.port, folder))
    r.expect("web.test", "/", A)
    fake.use_certificate(*other_ca.issue("rotated", "/CN=scripted", SERVER_SANS))
    fake.tokens = {"new-token"}
    fake.unlisten()
    fake.listen()
    publish(fake, "next", "next.test", "10.77.1.2")
    r.expect_log(r"(?m)^\S+ (warn|error) ")
    assert r.ask("next.test").status == 404 and r.ask("web.test").upstream == A
    service_account_dir(folder, other_ca.cert, "new-token")
    r.expect("next.test", "/", B, timeout=20)


def test_in_cluster_without_token_file_ends_with_status_2(engine, tmp_path):
    env = dict(os.environ, KUBERNETES_SERVICE_HOST=SERVER_IP, KUBERNETES_SERVICE_PORT="1")
    done = subprocess.run([ramjet_binary(), "run", "--engine", engine, "--serviceaccount-dir", str(tmp_path / "absent"),
                           "--http", "off", "--admin", "off"],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=10, env=env)
    assert done.returncode == 2 and "absent" in done.stdout, done.stdout


def test_tokens_never_reach_the_log(on_fake, fake):
    r = on_fake(log_level="debug")
    fake.drop_watches("reset")
    eventually(lambda: fake.count("watch") > 4, 20, "watching again")
    assert fake.token not in r.log()
