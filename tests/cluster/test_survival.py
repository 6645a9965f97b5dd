"""The API server goes and comes back; tokens rotate."""

import os
import time

from conftest import publish
from harness import WORK, Steady, app, eventually, ingress, kubeconfig, write_file
from scripted import scripted_kubeconfig

A, B = "10.77.1.1:8080", "10.77.1.2:8080"


def rules_of(kube, ns):
    return {(rule["host"], path["path"], ns + "/" + i["metadata"]["name"])
            for i in kube.list("Ingress", ns) for rule in i["spec"].get("rules", []) for path in rule["http"]["paths"]}


def test_server_killed_and_restarted(ramjet, api, kube, ns, host):
    """SIGKILL under load; objects come and go meanwhile; nothing fails, and the store is right afterwards."""
    kube.create(*app(ns, "web", "10.77.1.1"), *app(ns, "two", "10.77.1.2"))
    for n in range(20):
        kube.create(ingress(ns, "i%d" % n, [("n%d.%s" % (n, host), "/", "Prefix", "web", 80)]))
    r = ramjet(watch_namespace=ns)
    r.expect("n19." + host, "/", A)
    with Steady(r, "n0." + host, rate=500, conns=4, idle=10) as load:
        api.kill()
        try:
            eventually(lambda: (r.metric("ramjet_kube_watch_up") or 0) == 0, 10, "every watch is down")
            for n in range(20):
                assert r.ask("n%d.%s" % (n, host)).upstream == A
        finally:
            api.start()
        ready = time.monotonic()
        for n in range(1, 20, 2):
            kube.delete("Ingress", ns, "i%d" % n)
        for n in range(20, 30):
            kube.create(ingress(ns, "i%d" % n, [("n%d.%s" % (n, host), "/", "Prefix", "two", 80)]))
        kube.replace(ingress(ns, "i2", [("n2." + host, "/", "Prefix", "two", 80)]))
        r.expect("n29." + host, "/", B)
        took = time.monotonic() - ready
        r.expect("n2." + host, "/", B)
        eventually(lambda: r.route_set() == rules_of(kube, ns), 10, "routes equal to the server's Ingresses")
        figures = load.stop()
    assert sum(w["failed"] for w in figures["windows"]) == 0, figures
    assert figures["idle_lost"] == 0
    assert took < 5, "a change was served %.2f s after the server was back" % took


def test_deletes_of_a_disconnect_are_seen(on_fake, fake):
    """What was deleted while nobody watched goes with the relist."""
    for n in range(6):
        publish(fake, "app%d" % n, "app%d.test" % n, "10.77.1.%d" % (n + 1))
    r = on_fake()
    fake.unlisten()
    for n in (0, 2, 4):
        fake.delete("Ingress", "shop", "app%d" % n, event=False)
    fake.delete("EndpointSlice", "shop", "app1-1", event=False)
    fake.delete("Service", "shop", "app3", event=False)
    publish(fake, "new", "new.test", "10.77.1.7")
    fake.compact()
    fake.listen()
    r.expect("new.test", "/", "10.77.1.7:8080", timeout=20)
    for n in (0, 2, 4):
        r.expect("app%d.test" % n, "/", status=404)
    r.expect("app1.test", "/", status=503)
    r.expect("app3.test", "/", status=503)
    assert r.ask("app5.test").upstream == "10.77.1.6:8080"


def test_everything_deleted_during_a_disconnect(on_fake, fake):
    r = on_fake()
    fake.unlisten()
    fake.delete("Ingress", "shop", "web", event=False)
    fake.compact()
    fake.listen()
    r.expect("web.test", "/", status=404, timeout=20)
    assert r.routes() == []


def test_a_name_comes_back_as_another_object(on_fake, fake):
    """Deleted and created again during a disconnect: other uid, other rules, other age."""
    publish(fake, "rival", "rival.test", "10.77.1.2")
    r = on_fake()
    fake.unlisten()
    fake.delete("Ingress", "shop", "web", event=False)
    publish(fake, "web", "again.test", "10.77.1.3")
    fake.compact()
    fake.listen()
    r.expect("again.test", "/", "10.77.1.3:8080", timeout=20)
    assert r.ask("web.test").status == 404
    assert r.ask("rival.test").upstream == B


def test_start_without_a_server(on_fake, fake):
    """Started first, the server comes later."""
    fake.unlisten()
    r = on_fake(ready=False)
    eventually(lambda: r.readyz().status == 503, 5, "the admin listener answers")
    fake.listen()
    r.wait_ready(20)
    assert r.ask("web.test").upstream == A


def test_token_refused_then_rotated(on_fake, fake):
    """401 until the file holds the new token; the old table serves meanwhile."""
    token = os.path.join(WORK, "rotating-%d" % fake.port)
    write_file(token, fake.token)
    r = on_fake(kubeconfig=scripted_kubeconfig(fake, WORK, token=None, token_file=token))
    fake.tokens = {"second-token"}
    before = len(fake.requests)
    fake.drop_watches()
    publish(fake, "next", "next.test", "10.77.1.2")
    eventually(lambda: len(fake.requests) >= before + 1, 20, "the old token was tried again")
    for _ in range(10):
        assert r.ask("web.test").upstream == A
    assert r.ask("next.test").status == 404
    write_file(token, "second-token\n")
    r.expect("next.test", "/", B, timeout=20)
    assert r.is_ready()


def test_token_rotates_before_it_expires(on_fake, fake):
    """A kubelet replaces the file long before the old token ends: new requests use the new one."""
    token = os.path.join(WORK, "rotating-%d" % fake.port)
    write_file(token, fake.token)
    r = on_fake(kubeconfig=scripted_kubeconfig(fake, WORK, token=None, token_file=token))
    fake.tokens.add("second-token")
    write_file(token, "second-token")
    fake.drop_watches()
    publish(fake, "next", "next.test", "10.77.1.2")
    r.expect("next.test", "/", B, timeout=20)
    eventually(lambda: fake.requests[-1].token == "second-token", 10, "the new token is used")


def test_real_token_rotates(ramjet, api, kube, ns, host):
    """A bound token of the TokenRequest API is revoked (its Secret is deleted) and the server restarted."""
    kube.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"namespace": ns, "name": "edge"}})
    kube.create({"apiVersion": "v1", "kind": "Secret", "metadata": {"namespace": ns, "name": "bound"}})
    kube.create({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": ns},
                 "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
                 "subjects": [{"kind": "ServiceAccount", "namespace": ns, "name": "edge"}]})
    kube.create(*app(ns, "web", "10.77.1.1"), ingress(ns, "web", [(host, "/", "Prefix", "web", 80)]))
    token = os.path.join(WORK, "real-token-" + ns)
    write_file(token, kube.service_account_token(ns, "edge", bound_secret="bound"))
    config = kubeconfig(os.path.join(WORK, ns + ".kubeconfig"), api.url, ca_data=api.ca.cert, token_file=token)
    r = ramjet(kubeconfig=config, watch_namespace=ns)
    r.expect(host, "/", A)
    kube.delete("Secret", ns, "bound")
    api.kill()                                  # it would remember the token for 10 s
    api.start()
    eventually(lambda: "401" in r.log() or "nauthorized" in r.log(), 20, "the revoked token was refused", every=0.01)
    assert r.ask(host).upstream == A
    write_file(token, kube.service_account_token(ns, "edge"))
    kube.create(ingress(ns, "next", [("next." + host, "/", "Prefix", "web", 80)]))
    r.expect("next." + host, "/", A, timeout=20)
    kube.delete("ClusterRoleBinding", None, ns)
