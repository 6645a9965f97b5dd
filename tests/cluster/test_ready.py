"""Ready means served."""

import json
import subprocess
import threading

import pytest

from conftest import publish
from harness import LOAD, app, eventually, ingress
from scripted import raw_body, stall, status



def sweep(r, **flags):
    """Waits for /readyz, then asks for every host and path once, at once."""
    args = [LOAD, "sweep", "--addr", "%s:%d" % r.address, "--ready", "%s:%d" % r.admin_address]
    for k, v in flags.items():
        args += ["--" + k, str(v)]
    return subprocess.Popen(args, stdout=subprocess.PIPE, text=True)


def test_no_wrong_answer_after_ready(ramjet, kube, ns, host):
    """300 Ingresses exist before the start; the first request after "ready" is answered right."""
    for n in range(20):
        kube.create(*app(ns, "s%d" % n, "10.77.1.%d" % (1 + n % 9)))
    for n in range(300):
        kube.create(ingress(ns, "i%d" % n, [("n%d.%s" % (n, host), "/", "Prefix", "s%d" % (n % 20), 80)]))
    for _ in range(3):
        r = ramjet(start=False)
        run = sweep(r, format="n%d." + host, count=300, paths="/,/x")
        try:
            r.start()
            window = json.loads(run.communicate(timeout=20)[0])["window"]
        finally:
            run.kill()
        assert window["status"] == {"200": 600}, window
        r.stop()


@pytest.mark.parametrize("kind", ["Ingress", "IngressClass", "Service", "EndpointSlice"])
def test_ready_waits_for_every_list(on_fake, fake, kind):
    release = threading.Event()
    fake.on(stall(release), verb="list", kind=kind)
    r = on_fake(ready=False)
    eventually(lambda: fake.count("list", kind) >= 1, 5, "the list was asked for")
    answer = eventually(lambda: r.readyz() if r.readyz().status else None, 5, "the admin listener answers")
    assert answer.status == 503
    assert kind.lower() in answer.body.decode().lower().replace("_", ""), "it says what it waits for"
    assert r.admin.ask(path="/healthz").status == 200, "alive, but not ready"
    release.set()
    r.wait_ready()
    assert r.ask("web.test").upstream == "10.77.1.1:8080"


@pytest.mark.parametrize("fault", [status(500), status(403), raw_body(b"<html>login</html>", content_type="text/html")],
                         ids=["500", "403", "html"])
def test_ready_survives_a_bad_first_list(on_fake, fake, fault):
    rule = fake.on(fault, verb="list", kind="EndpointSlice", times=2)
    r = on_fake()
    assert rule["hits"] == 2
    assert r.ask("web.test").upstream == "10.77.1.1:8080"


def test_ready_with_nothing_there(ramjet, kube, ns):
    """An empty cluster is a complete one."""
    r = ramjet(watch_namespace=ns)
    assert r.ask("any.test").status == 404
    assert r.routes() == []


def test_ready_stays_after_the_server_is_gone(on_fake, fake):
    r = on_fake()
    fake.unlisten()
    eventually(lambda: r.metric("ramjet_kube_watch_up", kind="Ingress") == 0
               or r.metric("ramjet_kube_watch_up", kind="ingresses") == 0, 10, "the loss is seen")
    for _ in range(20):
        assert r.is_ready() and r.ask("web.test").status == 200
    fake.listen()
    publish(fake, "next", "next.test", "10.77.1.2")
    r.expect("next.test", "/", "10.77.1.2:8080", timeout=20)
