"""The process: reload, exit status, check, drain, engines, workers."""
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import threading
import time

import pytest

from harness import BIN, ENGINES, GET, HOLD, OK, ONE, SLACK, Client, Eof, Ramjet, Upstream, free_port, noise, run_ramjet, until

ROUTE = "[backend t]\nendpoint = $V\n" + ONE
OTHER = ROUTE.replace("backend = s\n", "backend = t\n")


def tagged(text):
    return b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n" + text


def serving(e):
    return e.ramjet.admin_json("/admin/generations")["serving"]


def serves(e, body):
    until(lambda: e.get().body == body, 5, f"answers {body!r}")


# ---------------------------------------------------------------------------------------------------------------------------
# reload

def rewrite_in_place(e, template):
    e.ramjet.config = e.fill(template)
    with open(e.ramjet.path, "w") as f:
        f.write(e.ramjet.text())


def rename_over(e, template):
    e.ramjet.write(e.fill(template))


def rewrite_and_hangup(e, template):
    rewrite_in_place(e, template)
    e.ramjet.signal(signal.SIGHUP)


def remove_and_create(e, template):
    os.unlink(e.ramjet.path)
    rewrite_in_place(e, template)


@pytest.mark.parametrize("how", [rewrite_in_place, rename_over, rewrite_and_hangup, remove_and_create])
def test_reload(fresh, how):
    e = fresh(ROUTE)
    e.U.play(tagged(b"1")), e.V.play(tagged(b"2"))
    c = e.client()
    assert c.get().body == b"1"
    for template, body in ((OTHER, b"2"), (ROUTE, b"1"), (OTHER, b"2")):
        how(e, template)
        serves(e, body)
    assert c.get().body == b"2", "the open connection is alive and uses the new table"


def test_reload_of_a_mounted_configmap(fresh, tmp_path):
    """The kubelet's way: edge.ini -> ..data/edge.ini, ..data -> a folder, and ..data is renamed over."""
    mount = tmp_path / "config"
    mount.mkdir()
    e = fresh(ROUTE)
    e.U.play(tagged(b"1")), e.V.play(tagged(b"2"))

    def publish(number, template):
        e.ramjet.config = e.fill(template)
        folder = mount / f"..2026_11_30_{number}"
        folder.mkdir()
        (folder / "edge.ini").write_text(e.ramjet.text())
        os.symlink(folder.name, mount / "..data_tmp")
        os.rename(mount / "..data_tmp", mount / "..data")
        old = mount / f"..2026_11_30_{number - 1}"
        if old.exists():
            (old / "edge.ini").unlink()
            old.rmdir()
    publish(1, ROUTE)
    os.symlink("..data/edge.ini", mount / "edge.ini")
    e.ramjet.stop()
    e.ramjet.path = str(mount / "edge.ini")
    e.ramjet.restart()
    serves(e, b"1")
    for number in range(2, 6):
        publish(number, OTHER if number % 2 == 0 else ROUTE)
        serves(e, b"2" if number % 2 == 0 else b"1")


BROKEN = """
[backend s]
endpoint = $U
endpoint = nonsense:port

[route r]
host = a.test
path = /
type = sideways
backend = s

[route q]
host = a.test
path = /q
type = prefix
backend = nobody
no-such-key = 1

[nonsense]
"""


def test_broken_file_keeps_the_last_table(fresh):
    e = fresh(ROUTE)
    e.U.play(tagged(b"1")), e.V.play(tagged(b"2"))
    assert e.get().body == b"1"
    assert e.ramjet.metric("ramjet_config_ok") == 1
    generation = serving(e)
    e.ramjet.write(e.fill(BROKEN))
    until(lambda: e.ramjet.metric("ramjet_config_ok") == 0, 5, "the metric")
    assert e.get().body == b"1"
    assert serving(e) == generation
    r = e.ramjet.admin("/readyz")
    assert r.status == 200
    m = re.search(rb"config: (\S+): (\d+) errors?, serving generation (\d+)", r.body)
    assert m and m[1].decode().endswith("edge.ini") and int(m[3]) == generation, r.body
    lines = e.ramjet.text().split("\n")
    log = e.ramjet.stderr()
    for text in ("nonsense:port", "sideways", "nobody", "no-such-key", "[nonsense]"):
        number = next(i for i, line in enumerate(lines, 1) if text in line)
        assert re.search(rf"{re.escape(e.ramjet.path)}:{number}: .*", log), f"no error for line {number}, {text}:\n{log}"
    assert int(m[2]) >= 5
    e.ramjet.write(e.fill(OTHER))
    until(lambda: e.ramjet.metric("ramjet_config_ok") == 1, 5, "the metric")
    serves(e, b"2")
    assert b"error" not in e.ramjet.admin("/readyz").body


def test_file_that_vanishes_keeps_the_last_table(fresh):
    e = fresh(ROUTE)
    e.U.play(tagged(b"1")), e.V.play(tagged(b"2"))
    assert e.get().body == b"1"
    os.unlink(e.ramjet.path)
    e.ramjet.signal(signal.SIGHUP)
    until(lambda: e.ramjet.metric("ramjet_config_ok") == 0, 5, "the metric")
    assert e.get().body == b"1"
    rename_over(e, OTHER)
    serves(e, b"2")


def test_reload_keeps_pools_and_requests_in_flight(fresh):
    e = fresh(ROUTE)
    held = threading.Event()
    e.U.play(tagged(b"0"), [held, tagged(b"1")]), e.V.play(tagged(b"2"))
    assert e.get().body == b"0"
    c = e.client().send(GET)
    until(lambda: len(e.U.requests) == 2, 5, "the held request")
    before = serving(e)
    rename_over(e, OTHER)
    until(lambda: serving(e) != before, 5, "the next generation")
    assert e.get().body == b"2"
    held.set()
    assert c.response().body == b"1", "the request in flight ends where it began"
    assert c.get().body == b"2"
    rename_over(e, OTHER + "\n[route more]\nhost = b.test\npath = /\ntype = prefix\nbackend = s\n")
    before = len(e.V.conns)
    until(lambda: e.get("/", "b.test").status == 200, 5, "the new route")
    assert e.get().body == b"2"
    assert len(e.V.conns) == before, "the pool of an endpoint that stays is kept"


def test_options_that_a_reload_applies(fresh):
    e = fresh("[ramjet]\nserver-tokens = false\n" + ONE + "proxy-body-size = 10\n")
    big = b"POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 11\r\n\r\nhello world"
    e.U.play(OK)
    assert e.one(big).status == 413
    rename_over(e, "[ramjet]\nserver-tokens = true\n" + ONE + "proxy-body-size = 11\n")
    until(lambda: e.one(big).status == 200, 5, "the new limit")
    until(lambda: e.get("/", "none.test").get(b"Server") == b"ramjet", 5, "the new option")


class Load:
    """Keep-alive clients that send one request after the other until stop(); every answer is checked."""

    def __init__(self, port, clients=4, host=b"a.test", bodies=None):
        self.port, self.host, self.bodies = port, host, bodies
        self.done, self.failures, self.stopped = 0, [], threading.Event()
        self.threads = [threading.Thread(target=self.run) for _ in range(clients)]
        for t in self.threads:
            t.start()

    def run(self):
        n = 0
        while not self.stopped.is_set():
            try:
                with Client(self.port) as c:
                    for _ in range(900):
                        c.send(b"GET /%d HTTP/1.1\r\nHost: %s\r\n\r\n" % (n, self.host))
                        r = c.response()
                        assert r.status == 200 and (self.bodies is None or r.body in self.bodies), r
                        n += 1
                        self.done += 1
                        if self.stopped.is_set():
                            break
            except Exception as why:                           # noqa: BLE001
                self.failures.append(repr(why))

    def stop(self):
        self.stopped.set()
        for t in self.threads:
            t.join()
        assert not self.failures, self.failures[:5]
        assert self.done > 0


def reload_under_load(e, reloads):
    e.U.play(tagged(b"1")), e.V.play(tagged(b"2"))
    idle = [e.client() for _ in range(100)]
    assert all(c.get().status == 200 for c in idle)
    load = Load(e.ramjet.port, bodies=(b"1", b"2"))
    try:
        for i in range(reloads):
            before = serving(e)
            if i % 10 == 5:
                rename_over(e, BROKEN)
                until(lambda: e.ramjet.metric("ramjet_config_ok") == 0, 5, "the broken file to be seen")
            extra = f"\n[route n{i}]\nhost = n{i}.test\npath = /\ntype = prefix\nbackend = s\n"
            rename_over(e, (OTHER if i % 2 == 0 else ROUTE) + extra)
            until(lambda: serving(e) != before, 5, f"reload {i}")
    finally:
        load.stop()
    lost = [c for c in idle if not c.open()]
    assert not lost, f"{len(lost)} idle connections were lost"
    assert all(c.get().status == 200 for c in idle)


@pytest.mark.long
def test_reloads_under_load(fresh):
    reload_under_load(fresh(ROUTE, workers=2), 30)


@pytest.mark.slow
def test_200_reloads_under_load(fresh):
    e = fresh(ROUTE, workers=2)
    reload_under_load(e, 30)
    e.settle()
    e.U.play(tagged(b"1")), e.V.play(tagged(b"2"))
    rss, fds = e.ramjet.rss(), e.ramjet.fds()
    reload_under_load(e, 200)
    e.settle()
    until(lambda: e.ramjet.fds() <= fds + 4, 5, "descriptors to go back")
    assert e.ramjet.rss() - rss < 4 << 20


# ---------------------------------------------------------------------------------------------------------------------------
# exit status and sub-commands

GOOD = "[ramjet]\nhttp = 127.0.0.1:%d\nadmin = 127.0.0.1:%d\n[backend s]\nendpoint = 127.0.0.1:1\n[route r]\nhost = a.test\npath = /x\ntype = prefix\nbackend = s\n"


def ini(tmp_path, text):
    path = tmp_path / "edge.ini"
    path.write_text(text)
    return str(path)


def test_exit_status_of_sub_commands(tmp_path):
    assert run_ramjet("version")[0] == 0
    assert run_ramjet("--help")[0] == 0
    for command in ("run", "check", "demo", "reference", "version"):
        status, out, _ = run_ramjet(command, "--help")
        assert status == 0 and command in out, command
    for arguments in (("nonsense",), ("run", "--no-such-option"), ("run", "--engine", "steam"), ("run", "--config", str(tmp_path / "none.ini")), ("reference", "nonsense"),
                      ("run", "--keep-alive", "soon"), ("run", "--config"), ("check", str(tmp_path / "none.ini")), ("version", "--no-such-option"),
                      ("run",), ("check",), ("reference",), ("run", "--config", ini(tmp_path, "[ramjet]\nresolver = dns.example\n[backend s]\nendpoint = 127.0.0.1:1\n"))):
        status, _, err = run_ramjet(*arguments)
        assert status == 2 and err, arguments


def test_help_of_run_says_what_an_option_takes(tmp_path):
    out = run_ramjet("run", "--help")[1]
    assert "refused (one of auto epoll uring) [auto]\n" in out
    assert "endpoint back (a number in 1..100) [2]\n" in out
    assert "[backend]" in out and "Ramjet's own; may be repeated\n" in out


def test_errors_name_option_value_and_what_is_accepted(tmp_path):
    _, _, err = run_ramjet("run", "--engine", "steam")
    assert "engine" in err and "steam" in err and "epoll" in err and "uring" in err
    _, _, err = run_ramjet("run", "--config", ini(tmp_path, GOOD % (1, 2)), env={"RAMJET_KEEP_ALIVE": "soon"})
    assert "RAMJET_KEEP_ALIVE" in err and "soon" in err


@pytest.mark.parametrize("line", ["keep-alive = soon", "engine = steam", "no-such-key = 1", "proxy-body-size = 1q", "server-tokens = maybe", "http = 1.2.3.4.5:80",
                                  "worker-processes = -1", "max-request-headers = 0x10", "http = 127.0.0.1:99999", "large-client-header-buffers = 4"])
def test_bad_configuration_ends_with_2(tmp_path, line):
    path = ini(tmp_path, "[ramjet]\n" + line + "\n\n[backend s]\nendpoint = 127.0.0.1:1\n")
    for command in (("run", "--config", path), ("check", path)):
        status, out, err = run_ramjet(*command)
        assert status == 2
        assert f"{path}:2:" in out + err


def test_a_mistake_of_two_options_is_named_where_it_stands(tmp_path):
    """What only several options together make wrong has a file and a line too, or the flag or variable that brought it."""
    backend = "\n[backend s]\nendpoint = 127.0.0.1:1\n"
    path = ini(tmp_path, "[ramjet]\nhttp = 127.0.0.1:8080\nuse-proxy-protocol = true\ndefault-backend-service = t\nadmin = 127.0.0.1:8080\n" + backend)
    status, out, err = run_ramjet("check", path)
    assert status == 2 and not out
    assert err == (f"{path}:3: use-proxy-protocol: found true without proxy-real-ip-cidr, expected the trusted peers there, for example 10.0.0.0/8\n"
                   f'{path}:5: admin: "127.0.0.1:8080" is a listener of http too\n'
                   f"{path}:4: default-backend-service: there is no [backend t]\n")
    good = ini(tmp_path, backend)
    assert run_ramjet("check", good, "--use-proxy-protocol")[2].startswith("--use-proxy-protocol: found true without")
    assert run_ramjet("check", good, env={"RAMJET_USE_PROXY_PROTOCOL": "1"})[2].startswith("RAMJET_USE_PROXY_PROTOCOL: found true without")
    assert run_ramjet("run", "--config", good, "--kubeconfig", "/none")[2].rstrip().endswith("kubeconfig: /none: No such file or directory")


def test_all_errors_are_reported(tmp_path):
    path = ini(tmp_path, "[ramjet]\nkeep-alive = soon\nno-such-key = 1\n\n[backend s]\nendpoint = nonsense\n\n[route r]\npath = x\ntype = sideways\nbackend = nobody\n\n[what]\nstray\n")
    status, out, err = run_ramjet("run", "--config", path)
    assert status == 2
    for number in (2, 3, 6, 9, 10, 11, 13):
        assert f"{path}:{number}:" in out + err, f"line {number}:\n{out + err}"


def test_listener_that_is_taken_ends_with_1(fresh, tmp_path):
    e = fresh(ONE)
    path = ini(tmp_path, GOOD % (e.ramjet.port, free_port()))
    status, _, err = run_ramjet("run", "--config", path, "--engine", e.engine)
    assert status == 1 and str(e.ramjet.port) in err


def test_proxy_headers_need_the_networks(tmp_path):
    path = ini(tmp_path, "[ramjet]\nuse-forwarded-headers = true\n[backend s]\nendpoint = 127.0.0.1:1\n")
    status, out, err = run_ramjet("check", path)
    assert status == 2 and "proxy-real-ip-cidr" in out + err


def test_flag_beats_environment_beats_file(fresh):
    e = fresh("[ramjet]\nkeep-alive-requests = 2\n" + ONE, args=("--keep-alive-requests", "4"), env={"RAMJET_KEEP_ALIVE_REQUESTS": "3"})
    e.U.play(OK)

    def requests(e):
        c, n = e.client(), 0
        while True:
            n += 1
            if (c.get().get(b"Connection") or b"") == b"close":
                return n
    assert requests(e) == 4
    e = fresh("[ramjet]\nkeep-alive-requests = 2\n" + ONE, env={"RAMJET_KEEP_ALIVE_REQUESTS": "3"})
    e.U.play(OK)
    assert requests(e) == 3
    e = fresh("[ramjet]\nkeep-alive-requests = 2\n" + ONE, args=("--server-tokens=true",))
    e.U.play(OK)
    assert requests(e) == 2
    assert e.get("/", "none.test").get(b"Server") == b"ramjet"


MANIFEST = """
apiVersion: networking.k8s.io/v1
kind: IngressClass
metadata:
  name: ramjet
spec:
  controller: ramjet.io/ingress-controller
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata:
  name: web
  namespace: shop
spec:
  ingressClassName: ramjet
  rules:
  - host: www.shop.test
    http:
      paths:
      - path: /api
        pathType: Prefix
        backend:
          service:
            name: api
            port:
              number: 80
      - path: /only
        pathType: Exact
        backend:
          service:
            name: api
            port:
              name: web
---
apiVersion: v1
kind: Service
metadata:
  name: api
  namespace: shop
spec:
  ports:
  - name: web
    port: 80
    targetPort: 8080
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: api-1
  namespace: shop
  labels:
    kubernetes.io/service-name: api
addressType: IPv4
ports:
- name: web
  port: 8080
  protocol: TCP
endpoints:
- addresses: ["10.0.0.1"]
  conditions:
    ready: true
"""

OBJECTS = {"apiVersion": "v1", "kind": "List", "items": [
    {"apiVersion": "networking.k8s.io/v1", "kind": "IngressClass", "metadata": {"name": "ramjet"}, "spec": {"controller": "ramjet.io/ingress-controller"}},
    {"apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "metadata": {"name": "web", "namespace": "shop"}, "spec": {"ingressClassName": "ramjet", "rules": [
        {"host": "www.shop.test", "http": {"paths": [
            {"path": "/api", "pathType": "Prefix", "backend": {"service": {"name": "api", "port": {"number": 80}}}},
            {"path": "/only", "pathType": "Exact", "backend": {"service": {"name": "api", "port": {"name": "web"}}}}]}}]}},
    {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "api", "namespace": "shop"}, "spec": {"ports": [{"name": "web", "port": 80, "targetPort": 8080}]}},
    {"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": {"name": "api-1", "namespace": "shop", "labels": {"kubernetes.io/service-name": "api"}},
     "addressType": "IPv4", "ports": [{"name": "web", "port": 8080, "protocol": "TCP"}], "endpoints": [{"addresses": ["10.0.0.1"], "conditions": {"ready": True}}]}]}


@pytest.mark.parametrize("name, text", [("all.yaml", MANIFEST), ("all.json", json.dumps(OBJECTS))], ids=["yaml", "json"])
def test_check_of_manifests(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text)
    status, out, err = run_ramjet("check", str(path))
    assert status == 0, out + err
    for line in (r"www\.shop\.test.*/api.*prefix.*api", r"www\.shop\.test.*/only.*exact.*api"):
        assert re.search(line, out, re.I), out
    assert "shop/web" in out


def test_check_of_a_bad_manifest(tmp_path):
    path = tmp_path / "bad.yaml"
    path.write_text("apiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata:\n\tname: x\n")
    status, out, err = run_ramjet("check", str(path))
    assert status == 2 and str(path) in out + err
    path = tmp_path / "bad.json"
    path.write_text('{"kind": "Ingress", }')
    status, out, err = run_ramjet("check", str(path))
    assert status == 2 and str(path) in out + err


def test_check_of_a_manifest_without_a_kind(tmp_path):
    path = tmp_path / "x.yaml"
    path.write_text("{}\n")
    assert run_ramjet("check", str(path))[2] == f"ramjet: error: {path}:1: kind is absent\n"


def test_check_of_an_ini_file(tmp_path):
    path = ini(tmp_path, GOOD % (8080, 10254))
    for arguments in ((path,), ("--config", path)):
        status, out, err = run_ramjet("check", *arguments)
        assert status == 0 and re.search(r"a\.test.*/x.*prefix.*s", out), out + err


def test_check_names_an_object_that_loses_its_rules(tmp_path):
    path = tmp_path / "all.yaml"
    path.write_text(MANIFEST.replace("pathType: Exact", "pathType: Sideways").replace("/only", "only"))
    _, out, err = run_ramjet("check", str(path))
    assert "shop/web" in out + err and ("Sideways" in out + err or "only" in out + err)


def test_reference(tmp_path):
    status, out, _ = run_ramjet("reference", "options")
    assert status == 0
    for option in ("keep-alive", "proxy-body-size", "upstream-keepalive-timeout", "worker-processes"):
        assert option in out
    assert run_ramjet("reference", "metrics")[0] == 0
    assert "| x-real-ip | written anew |" in run_ramjet("reference", "forwarding")[1]
    tables = re.findall(r"^  (\w+) ", run_ramjet("reference", "--help")[1], re.M)
    assert tables == ["errors", "forwarding", "metrics", "options"] and all(run_ramjet("reference", t)[0] == 0 for t in tables)
    assert run_ramjet("reference")[2].endswith("one of " + " ".join(tables) + "\n")
    status, out, _ = run_ramjet("version", "--licenses")
    assert status == 0 and "BearSSL" in out and "musl" in out and "inih" in out
    status, _, err = run_ramjet("version", "--licenses", "twice")
    assert status == 2 and 'unknown argument "twice"' in err


# ---------------------------------------------------------------------------------------------------------------------------
# drain

def test_drain(fresh):
    e = fresh(ONE)
    held = threading.Event()
    idle = e.client()
    e.U.play(OK, [held, OK])
    assert idle.get().status == 200
    busy = e.client().send(GET)
    until(lambda: len(e.U.requests) == 2, 5, "the held request")
    e.ramjet.signal(signal.SIGTERM)
    idle.closed()
    assert e.ramjet.alive(), "the request under way is waited for"
    try:
        assert e.ramjet.admin("/readyz").status == 503
    except (ConnectionError, Eof):
        pass
    held.set()
    r = busy.response()
    assert (r.status, r.body, r.get(b"Connection")) == (200, b"ok", b"close")
    busy.closed()
    assert e.ramjet.wait() == 0
    assert not e.ramjet.complaints()


def test_drain_of_a_long_download(fresh):
    e = fresh(ONE)
    body = noise(5 << 20)
    c = e.client(rcvbuf=8192).send(GET)
    e.U.play([b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body), body])
    c.saw(b"\r\n\r\n")
    e.ramjet.signal(signal.SIGTERM)
    r = c.response()
    assert r.body == body
    assert e.ramjet.wait() == 0


def test_drain_ends_in_time(fresh):
    e = fresh("[ramjet]\nworker-shutdown-timeout = 500ms\n" + ONE)
    e.client().send(GET)
    e.U.play([HOLD])
    until(lambda: e.U.requests, 5, "the held request")
    start = time.monotonic()
    e.ramjet.signal(signal.SIGTERM)
    status = e.ramjet.wait(8)
    assert 0.4 < time.monotonic() - start < 3 * SLACK
    assert status in (0, 1)


def test_a_second_signal_forces(fresh):
    e = fresh(ONE)
    e.client().send(GET)
    e.U.play([HOLD])
    until(lambda: e.U.requests, 5, "the held request")
    e.ramjet.signal(signal.SIGTERM)
    until(lambda: "drain" in e.ramjet.stderr().lower() or "sigterm" in e.ramjet.stderr().lower() or "shut" in e.ramjet.stderr().lower(), 5, "the drain to be logged")
    e.ramjet.signal(signal.SIGTERM)
    assert e.ramjet.wait(5) in (0, 1)


def test_sigint_ends_as_sigterm(fresh):
    e = fresh(ONE)
    e.ramjet.signal(signal.SIGINT)
    assert e.ramjet.wait() == 0


def test_drain_under_load_fails_nothing(fresh):
    """Every request that was taken is answered whole; a client sees an end only between two answers."""
    e = fresh(ONE, workers=2)
    e.U.play(lambda conn, req: conn.send(OK))
    broken, begun = [], threading.Semaphore(0)

    def run():
        try:
            with Client(e.ramjet.port) as c:
                first = True
                while True:
                    c.send(GET)
                    r = c.response()
                    assert r.status == 200
                    if first:
                        begun.release()
                        first = False
                    if (r.get(b"Connection") or b"") == b"close":
                        c.closed()
                        return
        except (Eof, ConnectionError):
            if c.wire.buf:
                broken.append(bytes(c.wire.buf))
        except Exception as why:                               # noqa: BLE001
            broken.append(repr(why))
    threads = [threading.Thread(target=run) for _ in range(20)]
    for t in threads:
        t.start()
    for _ in threads:
        assert begun.acquire(timeout=10)
    e.ramjet.signal(signal.SIGTERM)
    for t in threads:
        t.join()
    assert not broken, broken[:3]
    assert e.ramjet.wait() == 0


# ---------------------------------------------------------------------------------------------------------------------------
# engines and workers

def test_engine_auto_says_what_it_took_and_why():
    r = Ramjet("auto", "[backend s]\nendpoint = 127.0.0.1:1\n")
    r.start()
    try:
        lines = [x for x in r.stderr().splitlines() if "engine" in x]
        assert len([x for x in lines if re.search(r"\b(uring|epoll)\b", x)]) >= 1, r.stderr()
    finally:
        r.stop()


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_workers(fresh, workers):
    e = fresh(ONE, workers=workers)
    e.U.play(OK)
    clients = [e.client() for _ in range(8)]
    assert all(c.get().status == 200 for c in clients)
    threads = os.listdir(f"/proc/{e.ramjet.pid}/task")
    assert len(threads) >= workers


@pytest.mark.parametrize("workers", [2, 3, 4])
def test_connections_spread_over_the_workers(fresh, workers):
    """With few connections no worker has more than one above its share."""
    e = fresh(ONE, workers=workers)
    e.U.play(OK)
    clients = []
    for n in range(1, 4 * workers + 2):
        clients.append(e.client())
        assert clients[-1].get().status == 200

        def counts():
            rows = {k: v for k, v in e.ramjet.metrics().items() if k.startswith("ramjet_worker_connections{")}
            return list(rows.values())
        until(lambda: sum(counts()) == n, 5, f"{n} connections in the metric")
        assert len(counts()) == workers
        assert max(counts()) <= n / workers + 1, f"{n} connections: {counts()}"


def test_no_worker_is_starved_after_churn(fresh):
    e = fresh(ONE, workers=2)
    e.U.play(OK)
    for _ in range(10):
        clients = [e.client() for _ in range(10)]
        for c in clients:
            c.send(GET)
        assert all(c.response().status == 200 for c in clients)
        for c in clients:
            c.close()


def test_start_is_quick(tmp_path):
    u = Upstream("U")
    try:
        r = Ramjet(ENGINES[0], f"[backend s]\nendpoint = 127.0.0.1:{u.port}\n[route r]\nhost = a.test\npath = /\ntype = prefix\nbackend = s\n")
        start = time.monotonic()
        r.start()
        took = time.monotonic() - start
        u.play(OK)
        with Client(r.port) as c:
            assert c.get().status == 200, "ready means served"
        r.stop()
        assert took < 0.5 * SLACK
    finally:
        u.close()


def test_unix_listener(fresh, tmp_path):
    path = str(tmp_path / "edge.sock")
    e = fresh(f"[ramjet]\nhttp = unix:{path}\n" + ONE)
    e.U.play(OK)
    with socket.socket(socket.AF_UNIX) as s:
        s.settimeout(5)
        s.connect(path)
        s.sendall(b"GET / HTTP/1.0\r\nHost: a.test\r\n\r\n")
        assert s.recv(4096).startswith(b"HTTP/1.1 200 ")
    assert e.get().status == 200


def test_ipv6_listener(fresh):
    port = free_port()
    e = fresh(f"[ramjet]\nhttp = [::1]:{port}\n" + ONE)
    e.U.play(OK)
    with socket.create_connection(("::1", port), 5) as s:
        s.sendall(b"GET / HTTP/1.0\r\nHost: a.test\r\n\r\n")
        assert s.recv(4096).startswith(b"HTTP/1.1 200 ")
    assert e.U.request.get(b"X-Forwarded-For") == b"::1"


@pytest.mark.parametrize("arguments", [(), ("--admin", "off")])
def test_demo_serves_what_it_prints(arguments):
    """Every curl line that `ramjet demo` prints works as printed, and stands in line with the others."""
    if not shutil.which("curl"):
        pytest.skip("no curl")
    p = subprocess.Popen([BIN, "demo", *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    lines, done = [], threading.Event()

    def read():
        for line in p.stdout:
            lines.append(line.rstrip("\n"))
        done.set()
    threading.Thread(target=read, daemon=True).start()
    try:
        until(lambda: [x for x in lines if "curl " in x] or done.is_set(), 5, "curl lines")
        assert not done.is_set(), "\n".join(lines)
        seen = -1

        def quiet():
            nonlocal seen
            same, seen = len(lines) == seen, len(lines)
            time.sleep(0.05)
            return same
        until(quiet, 5)
        assert len({x.index("#") for x in lines if "#" in x}) == 1, lines
        assert any(re.search(r"(^|\. )Ctrl-C ends it\.$", x) for x in lines), lines
        commands = [m[1].strip() for x in list(lines) if (m := re.search(r"\b(curl .*)", x))]
        for command in commands:
            r = subprocess.run(["sh", "-c", command], capture_output=True, timeout=20)
            assert r.returncode == 0 and r.stdout, (command, r)
        p.send_signal(signal.SIGINT)
        assert p.wait(10) == 0
    finally:
        if p.poll() is None:
            p.kill()
            p.wait()


def test_a_pipe_in_the_place_of_the_file_holds_nothing_up(fresh):
    """A reload from a pipe that nobody writes to is a file that cannot be read: the table serves on, and so does the admin listener."""
    e = fresh(ONE)
    e.U.play(OK)
    fifo = os.path.join(e.ramjet.dir, "fifo")
    os.mkfifo(fifo)
    os.replace(fifo, e.ramjet.path)
    e.ramjet.signal(signal.SIGHUP)
    until(lambda: "cannot be read" in e.ramjet.stderr(), 10, "the error")
    assert e.ramjet.admin("/readyz").status == 200
    assert e.get().status == 200
