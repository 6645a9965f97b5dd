"""Cases that broke other ingress controllers in public, restated: those with Kubernetes objects. See ../CASES.md, and
../blackbox/test_cases.py for the rest.

After each of them: ramjet is alive, a clean request on a new connection is answered, and no descriptor is left over.
"""

import json
import os
import re
import socket
import threading
import time

import pytest

from conftest import publish
from harness import Http, Steady, app, eventually, ingress, ingress_class, service, slice_
from scripted import stall, status

A, B, C = "10.77.1.1:8080", "10.77.1.2:8080", "10.77.1.3:8080"
KINDS = ("EndpointSlice", "Ingress", "IngressClass", "Service")
DOWN = {"ready": False, "serving": False, "terminating": True}
LEAVING = {"ready": False, "serving": True, "terminating": True}


def descriptors(r):
    """What the process has open, without idle upstream connections and the pipes kept for the next splice."""
    pid, links = r.process.pid, []
    for name in os.listdir("/proc/%d/fd" % pid):
        try:
            links.append(os.readlink("/proc/%d/fd/%s" % (pid, name)))
        except OSError:
            pass
    return len([x for x in links if not x.startswith("pipe:")]) - int(r.metric("ramjet_connections", side="upstream", state="idle"))


def resident_kb(r):
    with open("/proc/%d/status" % r.process.pid) as f:
        return int(re.search(r"VmRSS:\s+(\d+)", f.read()).group(1))


@pytest.fixture
def check():
    """check(r): the general checks are made on r when the test ends. Returns r."""
    watched = []

    def watch(r):
        r.ask("clean.test")
        r.http.close()
        eventually(lambda: r.metric("ramjet_worker_connections") == 0, 10, "no client")
        watched.append((r, descriptors(r)))
        return r
    yield watch
    for r, before in watched:
        r.http.close()
        r.alive()
        answer = Http(r.address).ask("clean.test", "/")
        assert answer.status in (200, 404, 503), answer
        eventually(lambda: descriptors(r) <= before, 10, "%d descriptors left of what were %d" % (descriptors(r), before), every=0.02)


@pytest.fixture
def real(ramjet, check):
    return lambda **options: check(ramjet(**options))


@pytest.fixture
def scripted_one(on_fake, check):
    return lambda **options: check(on_fake(**options))


def watching(fake):
    eventually(lambda: {w.request.kind for w in fake.watches} >= set(KINDS), 20, "every watch is open")


class Held:
    """An upstream whose answer begins at once and ends when it is told to. ask() has one on the way through r; end() finishes them."""

    def __init__(self, address, port=8080):
        self.name, self.release, self.got = "%s:%d" % (address, port), threading.Event(), 0
        self.sock = socket.create_server((address, port))
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                conn, _ = self.sock.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(conn,), daemon=True).start()

    def _serve(self, conn):
        data = b""
        while True:
            while b"\r\n\r\n" not in data:
                more = conn.recv(4096)
                if not more:
                    return conn.close()
                data += more
            head, _, data = data.partition(b"\r\n\r\n")
            self.got += 1
            conn.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\nX-Upstream: %s\r\n\r\n" % self.name.encode())
            if b" /held " in head:
                conn.sendall(b"half")
                self.release.wait(60)
                conn.sendall(b"done")
            else:
                conn.sendall(b"complete")

    def close(self):
        self.release.set()
        self.sock.shutdown(socket.SHUT_RDWR)      # accept() in the other thread would keep it
        self.sock.close()


def begin_held(r, host, held):
    """Asks for /held until the answer comes from that upstream; returns the socket, half an answer read."""
    def try_one():
        s = socket.create_connection(r.address, 10)
        s.sendall(b"GET /held HTTP/1.1\r\nHost: %s\r\n\r\n" % host.encode())
        data = b""
        while b"\r\n\r\n" not in data:
            data += s.recv(4096)
        if held.name.encode() in data:
            while not data.endswith(b"half"):
                data += s.recv(4096)
            return s
        s.close()
        return None
    return eventually(try_one, 10, "a request on its way to " + held.name)


def finish_held(s):
    data = b""
    while len(data) < 4:
        more = s.recv(4096)
        assert more, "cut short"
        data += more
    assert data == b"done"
    s.close()


# ------------------------------------------------------------------ routing

@pytest.mark.parametrize("annotations", [{"rewrite-target": "/$2"}, {"use-regex": "true"}, {"rewrite-target": "/$2", "use-regex": "true"}],
                         ids=["rewrite", "regex", "both"])
def test_b33_exact_stays_exact_beside_a_regex(real, kube, ns, host, annotations):
    kube.create(*app(ns, "s1", "10.77.1.1"), *app(ns, "s2", "10.77.1.2"))
    kube.create(ingress(ns, "one", [(host, "/api", "Exact", "s1", 80)]))
    kube.create(ingress(ns, "two", [(host, "/x(/|$)(.*)", "ImplementationSpecific", "s2", 80)],
                        annotations={"nginx.ingress.kubernetes.io/" + k: v for k, v in annotations.items()}))
    r = real(watch_namespace=ns)
    r.expect(host, "/api", A)
    for path in ("/apix", "/API", "/api/", "/api/x", "/Api"):
        assert r.ask(host, path).status == 404, path
    r.expect_log(r"warn.*%s/two" % ns)
    kube.delete("Ingress", ns, "two")
    eventually(lambda: len(r.routes()) == 1, 10, "the second Ingress is gone")
    assert r.ask(host, "/api").upstream == A and r.ask(host, "/apix").status == 404


def test_b38_the_oldest_of_two_ingresses_wins(on_fake, check, fake):
    """The same host and path in two objects: age decides, whatever the names, the order of a list, or when the controller started."""
    publish(fake, "s1", "s1.test", "10.77.1.1")
    publish(fake, "s2", "s2.test", "10.77.1.2")

    def put(name, svc, second):
        obj = ingress("shop", name, [("both.test", "/", "Prefix", svc, 80)])
        obj["metadata"]["creationTimestamp"] = "2026-01-01T00:00:%02dZ" % second
        fake.put(obj)
    put("b", "s1", 0)
    put("a", "s2", 1)
    first = check(on_fake())
    first.expect("both.test", "/", A)
    first.expect_log(r"warn.*shop/a")

    def reverse(conn, request):
        body = json.loads(conn.server.list_body(request))
        body["items"].reverse()
        conn.send_json(200, body)
    rule = fake.on(reverse, verb="list", kind="Ingress")
    second = check(on_fake())
    assert rule["hits"] == 1
    assert second.ask("both.test").upstream == A
    fake.delete("Ingress", "shop", "b")
    for r in (first, second):
        r.expect("both.test", "/", B)
    put("b", "s1", 2)
    publish(fake, "mark", "mark.test", "10.77.1.9")
    for r in (first, second):
        r.expect("mark.test", "/", "10.77.1.9:8080")
        assert r.ask("both.test").upstream == B, "b is the younger one now"
    third = check(on_fake())
    assert third.ask("both.test").upstream == B


# ---------------------------------------------------------------- endpoints

def test_b42_service_port_is_not_the_target_port(real, kube, ns, host, up):
    for address in ("10.77.1.1", "10.77.1.2"):
        for port in (80, 8081, 8082, 9090):
            up.add(address, port)
    kube.create(dict(service(ns, "web"), spec={"ports": [{"name": "web", "port": 80, "targetPort": "http-alt"}, {"name": "metrics", "port": 9090, "targetPort": 9090}]}))
    kube.create(slice_(ns, "web", ["10.77.1.1"], name="web-1", ports=[{"name": "web", "port": 8081}, {"name": "metrics", "port": 9090}]),
                slice_(ns, "web", ["10.77.1.2"], name="web-2", ports=[{"name": "web", "port": 8082}, {"name": "metrics", "port": 9090}]))
    kube.create(dict(service(ns, "single"), spec={"ports": [{"port": 80, "targetPort": 8080}]}), slice_(ns, "single", ["10.77.1.3"], 8080))
    kube.create(ingress(ns, "web", [(host, "/number", "Prefix", "web", 80), (host, "/name", "Prefix", "web", "web"), (host, "/metrics", "Prefix", "web", "metrics"),
                                    (host, "/single", "Prefix", "single", 80), (host, "/target", "Prefix", "web", 8081)]))
    r = real(watch_namespace=ns)
    for path in ("/number", "/name"):
        r.expect_spread(host, path, ["10.77.1.1:8081", "10.77.1.2:8082"])
    r.expect_spread(host, "/metrics", ["10.77.1.1:9090", "10.77.1.2:9090"])
    r.expect(host, "/single", C)
    assert r.ask(host, "/target").status == 503, "a target port is no service port"


def test_b44_ready_serving_terminating(real, kube, ns, host):
    held = Held("10.77.4.2")
    try:
        e1, e2, e3, e4 = "10.77.1.1", "10.77.4.2", "10.77.1.3", "10.77.1.4"
        kube.create(service(ns, "web"), ingress(ns, "web", [(host, "/", "Prefix", "web", 80)]), slice_(ns, "web", [e2]))
        r = real(watch_namespace=ns)
        r.expect(host, "/", held.name)
        running = [begin_held(r, host, held)]

        def becomes(items, answered):
            obj = kube.get("EndpointSlice", ns, "web-1")
            kube.replace(dict(slice_(ns, "web", items), metadata=obj["metadata"]))
            if answered:
                r.expect_spread(host, "/", answered)
            else:
                r.expect(host, "/", status=503)
        becomes([(e1, {"ready": True}), (e2, LEAVING), (e3, DOWN), (e4, None)], [A, "10.77.1.4:8080"])
        becomes([(e2, LEAVING), (e3, DOWN)], [held.name])
        running.append(begin_held(r, host, held))
        becomes([(e3, DOWN)], [])
        held.release.set()
        for s in running:
            finish_held(s)
    finally:
        held.close()


def churn(r, fake, up, load, seconds, ingresses):
    """An endpoint comes and goes every 50 ms, each time at another address whose listener closes half a second later; so many unrelated
    Ingresses are added and removed a second. Returns the number of changes."""
    begin, changes, n, closing, made = time.monotonic(), 0, 0, [], 0
    while time.monotonic() - begin < seconds:
        n += 1
        address = "10.77.%d.%d" % (10 + n // 250 % 200, 1 + n % 250)
        name = up.add(address)
        fake.put(slice_("shop", "web", ["10.77.1.1", "10.77.1.2", address]))
        changes += 1
        for until, what in ((0.025, 0), (0.05, 1)):
            if what:
                fake.put(slice_("shop", "web", ["10.77.1.1", "10.77.1.2"]))
                closing.append((time.monotonic() + 0.5, name))
                changes += 1
            while made < (time.monotonic() - begin) * ingresses / 2:
                made += 1
                fake.put(ingress("shop", "other-%d" % made, [("o%d.test" % made, "/", "Prefix", "web", 80)]))
                if made > 20:
                    fake.delete("Ingress", "shop", "other-%d" % (made - 20))
                changes += 2
            due = begin + (n - 1) * 0.05 + until
            eventually(lambda: time.monotonic() >= due, 5)
        while closing and closing[0][0] < time.monotonic():
            up.remove(closing.pop(0)[1])
    for _, name in closing:
        up.remove(name)
    for i in range(max(1, made - 19), made + 1):
        fake.delete("Ingress", "shop", "other-%d" % i)
    return changes


def churned(r, fake, up, seconds, conns, rate):
    fake.put(slice_("shop", "web", ["10.77.1.1", "10.77.1.2"]))
    r.expect_spread("web.test", "/", [A, B])
    with Steady(r, "web.test", rate=rate, conns=conns, idle=20) as load:
        load.mark("quiet")
        quiet_until = time.monotonic() + max(1, seconds / 5)
        eventually(lambda: time.monotonic() > quiet_until, 60)
        load.mark("warm-up")
        churn(r, fake, up, load, max(1, seconds / 5), 100)
        before = resident_kb(r)
        load.mark("churn")
        changes = churn(r, fake, up, load, seconds, 100)
        after = resident_kb(r)
        figures = load.stop()
    windows = {w["name"]: w for w in figures["windows"]}
    assert sum(w["failed"] for w in figures["windows"]) == 0, figures
    assert figures["idle_lost"] == 0
    assert windows["churn"]["requests"] > rate * seconds / 4, "the load ran"
    assert after < before * 1.1 + 2048, "resident memory grew from %d to %d kB in %d changes" % (before, after, changes)
    # The latency is told and not judged: load, upstreams and API server share the processors with what is measured.
    print("b46: %d changes, %d requests, 0 failed; p99 %.1f ms quiet, %.1f ms in churn; resident %d -> %d kB"
          % (changes, windows["churn"]["requests"], windows["quiet"]["p99_us"] / 1000, windows["churn"]["p99_us"] / 1000, before, after))
    return changes


def test_b46_fast_churn_under_load(scripted_one, fake, up):
    churned(scripted_one(), fake, up, 3, 200, 400)


@pytest.mark.slow
def test_b46_ten_thousand_changes_under_load(scripted_one, fake, up):
    changes = churned(scripted_one(keep_alive="10m"), fake, up, 75, 200, 400)
    assert changes >= 10000, changes


# -------------------------------------------------------------------- watch

def test_b47_410_both_ways_and_half_an_event(scripted_one, fake):
    """One controller goes through all of it; the data plane serves all the time, and nothing spins."""
    for n in range(6):
        publish(fake, "p%d" % n, "p%d.test" % n, "10.77.1.%d" % (n + 1))
    fake.page_size = 2
    r = scripted_one()
    watching(fake)
    with Steady(r, "web.test", rate=100, conns=4) as load:
        def between(gone, new):
            """While nobody is told, one Ingress goes and one comes."""
            fake.delete("Ingress", "shop", gone, event=False)
            publish(fake, new, new + ".test", "10.77.1.9", event=False)
            fake.compact()

        def settled(gone, new):
            r.expect(new + ".test", "/", "10.77.1.9:8080", timeout=20)
            r.expect(gone + ".test", "/", status=404)
            watching(fake)
        # the watch ends, and the next one is refused with HTTP status 410
        between("p0", "n0")
        fake.drop_watches("end")
        settled("p0", "n0")
        # an ERROR event says it
        between("p1", "n1")
        for kind in KINDS:
            fake.error_event(kind, 410, "Expired")
        settled("p1", "n1")
        # the continue token of the relist has expired, too
        between("p2", "n2")
        fake.expire_continue = 2
        fake.drop_watches("reset")
        settled("p2", "n2")
        assert fake.expire_continue == 0
        # only bookmarks: the next watch begins at the last of them, without a list
        rv = [fake.bookmark() for _ in range(20)][-1]
        fake.compact()
        fake.oldest = int(rv)
        lists, watches = fake.count("list"), fake.count("watch")
        fake.drop_watches("fin")
        eventually(lambda: fake.count("watch") >= watches + 4, 20, "watching again")
        assert {q.query["resourceVersion"] for q in fake.seen("watch")[watches:]} == {rv}
        assert fake.count("list") == lists
        watching(fake)
        # half an event, then the end of the stream: it is not applied, its whole is
        obj = json.dumps({"type": "MODIFIED", "object": ingress("shop", "web", [("half.test", "/", "Prefix", "web", 80)])}).encode()
        generation, asked = r.generation(), len(fake.requests)
        fake.inject("Ingress", obj[:len(obj) // 2])
        fake.drop_watches("fin", "Ingress")
        eventually(lambda: len(fake.requests) > asked, 20, "it watches again")
        watching(fake)
        assert r.ask("half.test").status == 404 and r.ask("web.test").upstream == A and r.generation() == generation
        publish(fake, "last", "last.test", "10.77.1.8")
        r.expect("last.test", "/", "10.77.1.8:8080", timeout=20)
        figures = load.stop()
    assert sum(w["failed"] for w in figures["windows"]) == 0, figures
    assert len(fake.requests) < 200, "it backs off: %d requests" % len(fake.requests)


def test_b47_backs_off_with_jitter(scripted_one, fake):
    """A server that refuses every list and watch for a while is asked ever more rarely, and not in step."""
    r = scripted_one()
    watching(fake)
    fake.compact()
    rules = [fake.on(status(500), verb=verb, times=10 ** 6) for verb in ("list", "watch")]
    start = time.monotonic()
    fake.drop_watches("end")
    eventually(lambda: sum(x["hits"] for x in rules) >= 16, 30, "several tries of each kind", every=0.01)
    assert time.monotonic() - start > 0.5, "that is a busy loop"
    gaps = {}
    for kind in KINDS:
        times = [q.time for q in fake.requests if q.kind == kind and q.time > start]
        gaps[kind] = [round(b - a, 3) for a, b in zip(times, times[1:])]
    assert len({g[-1] for g in gaps.values() if g}) > 1, "no jitter: %s" % gaps
    assert r.is_ready() and r.ask("web.test").upstream == A
    for rule in rules:
        rule["left"] = 0
    publish(fake, "next", "next.test", "10.77.1.2")
    r.expect("next.test", "/", B, timeout=30)


def test_b47_silent_watch_is_replaced(engine, silent_watches):
    server, r, since = silent_watches[engine]
    assert since, "the scenario could not start:\n" + r.log()
    r.expect("late.test", "/", "10.77.1.2:8080", timeout=max(1, since + 40 - time.monotonic()))
    assert r.ask("web.test").upstream == "10.77.1.1:8080"


# ------------------------------------------------------------------ classes

def test_b48_class_changes_and_claims(scripted_one, fake):
    old = "kubernetes.io/ingress.class"
    publish(fake, "app", "app.test", "10.77.1.1")
    fake.put(ingress_class("theirs", "someone.else/controller"), ingress_class("second"))

    def put(name, **more):
        fake.put(ingress("shop", name, [(name + ".test", "/", "Prefix", "app", 80)], **more))
    for name, more in (("ours", {"cls": "ramjet"}), ("ours2", {"cls": "second"}), ("foreign", {"cls": "theirs"}), ("unknown", {"cls": "late"}), ("none", {"cls": None}),
                       ("annotated", {"cls": None, "annotations": {old: "ramjet"}}), ("annotated-foreign", {"cls": None, "annotations": {old: "nginx"}})):
        put(name, **more)
    r = scripted_one()

    def served(*names):
        """Exactly these, of all; a mark tells that everything before it has been seen."""
        want = set(names)

        def same():
            got = {x["host"][:-5] for x in r.routes()} - {"web", "app"}
            assert got == want, got
            return True
        eventually(same, 10, "routes of %s" % sorted(want))
        for name in ("ours", "ours2", "foreign", "unknown", "none", "annotated", "annotated-foreign"):
            assert r.ask(name + ".test").status == (200 if name in want else 404), name
    served("ours", "ours2", "annotated")                                    # (4) the annotation claims, (6) another's controller never
    put("ours", cls="theirs")                                               # (1) it goes over to them
    served("ours2", "annotated")
    put("ours", cls="ramjet")
    served("ours", "ours2", "annotated")
    fake.delete("IngressClass", None, "second")                             # (2) its class is deleted
    served("ours", "annotated")
    fake.put(ingress_class("second"))
    served("ours", "ours2", "annotated")
    fake.put(ingress_class("late"))                                         # (5) the class comes after its Ingress
    served("ours", "ours2", "annotated", "unknown")
    fake.put(ingress_class("late", "someone.else/controller"))              # (6) and turns out to be another's
    served("ours", "ours2", "annotated")
    fake.put(ingress_class("second", is_default=True))                      # (3) without a class: only with a default one
    served("ours", "ours2", "annotated", "none")
    fake.put(ingress_class("second"))
    served("ours", "ours2", "annotated")


def test_b48_class_less_ingress_by_flag(scripted_one, fake):
    """The flag takes what names no class in either way, and nothing that names another."""
    publish(fake, "app", "app.test", "10.77.1.1")
    for name, more in (("none", {}), ("foreign", {"annotations": {"kubernetes.io/ingress.class": "nginx"}})):
        fake.put(ingress("shop", name, [(name + ".test", "/", "Prefix", "app", 80)], cls=None, **more))
    r = scripted_one(watch_ingress_without_class=True)
    assert r.ask("none.test").upstream == A and r.ask("foreign.test").status == 404


# ---------------------------------------------------------------- readiness

@pytest.mark.parametrize("kind", KINDS)
def test_b50_nothing_is_wrong_before_the_first_lists(on_fake, fake, kind):
    """While a list is out, readiness says no and the data port refuses or says 503: an answer 404 would count as service."""
    release, seen = threading.Event(), []
    fake.on(stall(release), verb="list", kind=kind, times=2)
    r = on_fake(ready=False)
    try:
        eventually(lambda: fake.count("list", kind) >= 1, 5, "the list was asked for")
        end = time.monotonic() + 0.7
        while time.monotonic() < end:
            assert r.readyz().status in (0, 503)
            try:
                seen.append(Http(r.address).ask("web.test").status)
            except ConnectionRefusedError:
                seen.append(None)
            tick = time.monotonic() + 0.05
            eventually(lambda: time.monotonic() >= tick, 5)
    finally:
        release.set()
    r.wait_ready()
    assert r.ask("web.test").upstream == A
    assert set(seen) <= {None, 503}, "before it was ready it answered %s" % sorted(set(seen), key=str)


def test_b50_server_unreachable_at_start(on_fake, fake):
    fake.unlisten()
    r = on_fake(ready=False)
    eventually(lambda: r.readyz().status == 503, 5, "the admin listener answers")
    for _ in range(10):
        assert r.readyz().status == 503
        try:
            assert Http(r.address).ask("web.test").status == 503
        except ConnectionRefusedError:
            pass
    fake.listen()
    r.wait_ready(20)
    assert r.ask("web.test").upstream == A


def test_b50_server_goes_away_after_the_sync(scripted_one, fake):
    r = scripted_one()
    fake.unlisten()
    eventually(lambda: (r.metric("ramjet_kube_watch_up") or 0) == 0, 20, "the loss is seen")
    for _ in range(20):
        assert r.is_ready() and r.ask("web.test").upstream == A and r.ask("none.test").status == 404
    fake.listen()
    publish(fake, "next", "next.test", "10.77.1.2")
    r.expect("next.test", "/", B, timeout=20)


# -------------------------------------------------------------------- scale

def scale(on_fake, check, fake, ingresses, slices, rounds):
    fake.delete("Ingress", "shop", "web")
    r = check(on_fake())

    def generations():
        """More than the history keeps: what it holds of former tables goes."""
        for k in range(12):
            name = "g%d" % k
            publish(fake, name, name + ".test", "10.77.1.1")
            r.expect(name + ".test", "/", A)
            fake.delete("Ingress", "shop", name)
            r.expect(name + ".test", "/", status=404)
    generations()
    empty = resident_kb(r)
    per = slices // ingresses
    for n in range(ingresses):
        address = "10.77.%d.%d" % (20 + n // 250, 1 + n % 250)
        fake.put(service("shop", "s%d" % n), ingress("shop", "i%d" % n, [("h%d.scale.test" % n, "/", "Prefix", "s%d" % n, 80)]))
        for k in range(per):
            fake.put(slice_("shop", "s%d" % n, [address], name="s%d-%d" % (n, k), port=8080 + k))
    eventually(lambda: len(r.routes()) == ingresses, 120, "all are served", every=0.2)
    full = resident_kb(r)
    assert full < 100 * 1024, "%d kB" % full
    # a change is live in less than 100 ms (of the process's own clock it takes one; the poll and the API server take the rest)
    took = []
    for k in range(5):
        publish(fake, "live%d" % k, "live%d.test" % k, "10.77.1.%d" % (k % 9 + 1))
        start = time.monotonic()
        r.expect("live%d.test" % k, "/", timeout=20)
        took.append(time.monotonic() - start)
    assert sorted(took)[2] < 0.1, took
    # labels and annotations of nobody: no rebuild
    generation, watched = r.generation(), r.metric("ramjet_kube_events_total")
    compiled = r.metric("ramjet_compiles_total")
    assert compiled > 5
    for k in range(rounds):
        n = k % ingresses
        for kind, name in (("Ingress", "i%d" % n), ("Service", "s%d" % n), ("EndpointSlice", "s%d-0" % n)):
            obj = json.loads(json.dumps(fake.store[kind][("shop", name)]))
            obj["metadata"].setdefault("labels", {})["round"] = str(k)
            fake.put(obj)
    eventually(lambda: r.metric("ramjet_kube_events_total") >= watched + 3 * rounds, 120, "all events are in", every=0.05)
    assert r.generation() == generation
    assert r.metric("ramjet_compiles_total") == compiled, "a label rebuilds nothing"
    assert r.ask("live0.test").status == 200
    # all of it goes
    for kind in ("Ingress", "EndpointSlice", "Service"):
        for ns, name in list(fake.store[kind]):
            fake.delete(kind, ns, name)
    eventually(lambda: r.routes() == [], 120, "all are gone", every=0.1)

    generations()
    eventually(lambda: resident_kb(r) - empty < 0.2 * (full - empty) + 768, 10,
               "resident %d kB at the start, %d kB full, %d kB after the delete" % (empty, full, resident_kb(r)), every=0.1)
    print("b66: resident %d kB at the start, %d kB with %d Ingresses and %d slices, %d kB after" % (empty, full, ingresses, slices, resident_kb(r)))


def test_b66_five_hundred_ingresses_come_and_go(on_fake, check, fake):
    scale(on_fake, check, fake, 500, 1000, 100)


@pytest.mark.slow
def test_b66_five_thousand_ingresses_come_and_go(on_fake, check, fake):
    scale(on_fake, check, fake, 5000, 10000, 1000)
