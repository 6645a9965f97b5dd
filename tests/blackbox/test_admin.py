"""The admin listener and the access log."""
import json
import os
import re
import shutil
import subprocess
import threading
import time

import pytest

import promcheck
from harness import CLOSE, GET, HOLD, OK, ONE, SLACK, Client, Ramjet, until

TWO_ROUTES = """
[backend s]
endpoint = $U weight=2
endpoint = $V

[route one]
host = a.test
path = /
type = prefix
backend = s

[route two]
host = *.b.test
path = /x
type = exact
backend = s
"""


def test_the_checker_itself():
    good = '# HELP a_total A.\n# TYPE a_total counter\na_total{x="1",y="\\"\\n"} 1\na_total{x="2",y=""} 2e3\n'
    histogram = ('# HELP h_seconds H.\n# TYPE h_seconds histogram\nh_seconds_bucket{le="0.1"} 1\nh_seconds_bucket{le="+Inf"} 2\nh_seconds_sum 0.3\nh_seconds_count 2\n')
    assert promcheck.check(good + histogram) == []
    for bad in (good[:-1], good + 'a_total{x="1",y="\\"\\n"} 1\n', "b 1\n", '# HELP c C.\n# TYPE c counter\nc 1\n', "# HELP d D.\n# TYPE d gauge\nd{x=1} 1\n",
                "# HELP d D.\n# TYPE d gauge\nd x\n", "# TYPE e gauge\ne 1\n", histogram.replace("_count 2", "_count 3"), histogram.replace('+Inf"} 2', '+Inf"} 0'),
                histogram.replace('le="+Inf"', 'le="9"'), good + histogram + "a_total 1\n", "# HELP f_ms F.\n# TYPE f_ms gauge\nf_ms 1\n"):
        assert promcheck.check(bad), bad


def test_health(edge):
    e = edge(ONE)
    for target in ("/healthz", "/readyz"):
        assert e.ramjet.admin(target).status == 200
    assert e.ramjet.admin("/nothing").status == 404
    assert e.ramjet.admin("/healthz", "HEAD").status == 200
    assert e.ramjet.admin("/healthz?x").status == 200


def test_admin_is_strict_and_keeps_connections(edge):
    e = edge(ONE)
    with Client(e.ramjet.admin_port) as c:
        for target in ("/healthz", "/readyz", "/metrics", "/admin/routes", "/admin/upstreams", "/admin/generations", "/"):
            c.send(b"GET %s HTTP/1.1\r\nHost: x\r\n\r\n" % target.encode())
            assert c.response().status == 200, target
    for bad in (b"GET /healthz HTTP/1.1\r\nHost : x\r\n\r\n", b"hello\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n", b"GET /" + b"a" * 70000 + b" HTTP/1.1\r\nHost: x\r\n\r\n"):
        with Client(e.ramjet.admin_port) as c:
            c.send_lossy(bad)
            assert c.response().status in (400, 414, 431)
            c.ended()
    assert e.ramjet.admin("/healthz").status == 200


def test_metrics_keep_the_rules(edge):
    e = edge(TWO_ROUTES)
    e.U.play(OK, b"HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n", OK), e.V.play(OK, [CLOSE])
    for i in range(12):
        e.get(f"/{i}")
    e.get("/x", "y.b.test")
    e.get("/", "none.test")
    e.one(b"GET / HTTP/1.1\r\n\r\n")
    r = e.ramjet.admin("/metrics")
    assert r.get(b"Content-Type").startswith(b"text/plain; version=0.0.4")
    text = r.body.decode()
    assert promcheck.check(text) == []
    if shutil.which("promtool"):
        p = subprocess.run(["promtool", "check", "metrics"], input=r.body, capture_output=True)
        assert p.returncode == 0, p.stdout + p.stderr
    assert len(text.splitlines()) < 2000


def test_metrics_count(edge):
    e = edge(TWO_ROUTES)
    m = e.ramjet.metric
    e.U.play(OK), e.V.play(OK)

    def counts():
        return {"two": m("ramjet_requests_total", route="one", code="2xx") or 0, "duration": m("ramjet_request_duration_seconds_count", route="one") or 0,
                "in": m("ramjet_received_bytes_total"), "out": m("ramjet_sent_bytes_total"), "accepted": m("ramjet_connections_accepted_total"),
                "refused": m("ramjet_refused_total") or 0}
    before = counts()
    c = e.client()
    for _ in range(10):
        c.get()
    (_,), bad = e.talk(b"GET / HTTP/1.1\r\nHost : a.test\r\n\r\n")
    bad.close()
    until(lambda: counts()["two"] - before["two"] == 10, 5, "ten requests in the metrics")
    after = counts()
    assert after["duration"] - before["duration"] == 10
    assert after["in"] - before["in"] >= 10 * len(GET) and after["out"] - before["out"] >= 10 * 40
    assert after["accepted"] - before["accepted"] == 2
    assert after["refused"] - before["refused"] == 1
    until(lambda: m("ramjet_connections", side="client", state="idle") == 1, 5, "one idle client connection")
    assert m("ramjet_config_ok") == 1
    assert m("ramjet_generation") >= 1
    assert abs(m("ramjet_publish_timestamp_seconds") - time.time()) < 3600
    assert m("ramjet_build_info", engine=e.engine) == 1


def test_routes(edge):
    e = edge(TWO_ROUTES)
    table = e.ramjet.admin_json("/admin/routes")
    assert table["generation"] >= 1
    rows = {(r["host"], r["path"], r["type"], r["backend"]) for r in table["routes"]}
    assert rows == {("a.test", "/", "prefix", "s"), ("*.b.test", "/x", "exact", "s")}
    assert all(r["source"] and r["endpoints"] == 2 or isinstance(r["endpoints"], list) for r in table["routes"])


def test_upstreams(fresh):
    e = fresh(TWO_ROUTES)
    held = threading.Event()
    e.U.play(OK), e.V.play(OK)
    for _ in range(6):
        e.get()
    (backend,) = e.ramjet.admin_json("/admin/upstreams")["backends"]
    assert backend["name"] == "s"
    rows = {r["address"]: r for r in backend["endpoints"]}
    u, v = rows[f"127.0.0.1:{e.U.port}"], rows[f"127.0.0.1:{e.V.port}"]
    assert (u["weight"], v["weight"]) == (2, 1)
    assert u["requests"] == 2 * v["requests"] > 0
    e.U.reset(), e.V.reset()
    e.U.play([held, OK]), e.V.play([held, OK])
    clients = [e.client().send(GET) for _ in range(3)]
    until(lambda: len(e.U.requests) + len(e.V.requests) == 3, 5, "three requests")
    until(lambda: sum(r["active"] for r in e.ramjet.admin_json("/admin/upstreams")["backends"][0]["endpoints"]) == 3, 5, "three active requests")
    held.set()
    assert all(c.response().status == 200 for c in clients)


def test_failures_are_listed(edge):
    e = edge(ONE.replace("$U", "$DEAD"))
    e.get()
    row = e.ramjet.admin_json("/admin/upstreams")["backends"][0]["endpoints"][0]
    assert row["failures"] >= 1


def with_route(n):
    return ONE + f"\n[route extra{n}]\nhost = extra{n}.test\npath = /\ntype = prefix\nbackend = s\n"


def change(e, template):
    """Puts a configuration in force and returns its generation."""
    before = e.ramjet.admin_json("/admin/generations")["serving"]
    e.ramjet.write(e.fill(template))
    return until(lambda: (g := e.ramjet.admin_json("/admin/generations")["serving"]) != before and g, 5, "the next generation")


def test_generations(fresh):
    e = fresh(ONE)
    for n in range(1, 4):
        change(e, with_route(n))
    g = e.ramjet.admin_json("/admin/generations")
    assert g["pinned"] is None
    numbers = [x["generation"] for x in g["generations"]]
    assert numbers == sorted(numbers, reverse=True) and len(numbers) == 4 and g["serving"] == numbers[0]
    newest = g["generations"][0]
    assert {"generation", "published_at", "digest", "routes", "hosts", "backends", "event_to_publish_us", "event_to_request_us", "compile_us", "diff"} <= set(newest)
    assert (newest["routes"], newest["hosts"], newest["backends"]) == (2, 2, 1)
    assert "extra3.test" in newest["diff"] and "extra2.test" in newest["diff"]
    assert len({x["digest"] for x in g["generations"]}) == 4


def test_an_equal_table_publishes_nothing(fresh):
    e = fresh(ONE)
    g = change(e, with_route(1))
    e.ramjet.write(e.fill("# a comment\n" + with_route(1)))
    e.ramjet.signal(1)
    e.U.play(OK)
    for _ in range(50):
        assert e.get().status == 200
    assert e.ramjet.admin_json("/admin/generations")["serving"] == g


def test_history_is_limited(fresh):
    e = fresh("[ramjet]\nhistory-size = 3\n" + ONE)
    for n in range(1, 7):
        change(e, "[ramjet]\nhistory-size = 3\n" + with_route(n))
    assert len(e.ramjet.admin_json("/admin/generations")["generations"]) == 3


TOKEN = "correct horse battery"


def rollback(e, generation, fields=b"", method="POST"):
    body = json.dumps({"generation": generation}).encode() if method == "POST" else b""
    return e.ramjet.admin("/admin/rollback", method, fields, body)


def test_rollback_without_a_token_file(fresh):
    e = fresh(ONE)
    g = change(e, with_route(1))
    assert rollback(e, g - 1, b"Authorization: Bearer x\r\n").status in (401, 403)
    assert rollback(e, g - 1).status in (401, 403)
    assert e.ramjet.admin_json("/admin/generations")["pinned"] is None


def test_rollback(fresh, tmp_path):
    (tmp_path / "token").write_text(TOKEN + "\n")
    head = f"[ramjet]\nadmin-token-file = {tmp_path}/token\n"
    bearer = f"Authorization: Bearer {TOKEN}\r\n".encode()
    e = fresh(head + ONE)
    first = e.ramjet.admin_json("/admin/generations")["serving"]
    second = change(e, head + with_route(1))
    e.U.play(OK)
    assert e.get("/", "extra1.test").status == 200

    assert rollback(e, first).status == 401
    for wrong in (b"Authorization: Bearer wrong\r\n", b"Authorization: Bearer \r\n", f"Authorization: Bearer {TOKEN}x\r\n".encode(), f"Authorization: Basic {TOKEN}\r\n".encode()):
        assert rollback(e, first, wrong).status in (401, 403)
    assert e.get("/", "extra1.test").status == 200

    assert rollback(e, first, bearer).status == 200
    until(lambda: e.get("/", "extra1.test").status == 404, 5, "the first table")
    assert e.get().status == 200
    assert e.ramjet.admin_json("/admin/generations")["pinned"] == first
    assert rollback(e, 999999, bearer).status in (400, 404, 409)
    assert e.ramjet.admin("/admin/rollback", "POST", bearer, b"garbage").status == 400
    assert e.ramjet.admin("/admin/rollback", "GET").status == 405

    e.ramjet.write(e.fill(head + with_route(2)))               # a change while pinned waits
    e.ramjet.signal(1)
    for _ in range(20):
        assert e.get("/", "extra2.test").status == 404
    assert rollback(e, None, b"", "DELETE").status == 401
    assert rollback(e, None, bearer, "DELETE").status in (200, 204)
    until(lambda: e.get("/", "extra2.test").status == 200, 5, "the newest table")
    assert e.ramjet.admin_json("/admin/generations")["pinned"] is None
    assert second > first


def test_admin_answers_while_the_data_path_is_saturated(edge):
    e = edge(ONE)
    e.U.play(lambda conn, req: conn.send(OK))
    stop, failures = threading.Event(), []

    def load():
        c = Client(e.ramjet.port)
        try:
            while not stop.is_set():
                c.send(GET * 50)
                for _ in range(50):
                    assert c.response().status == 200
        except Exception as why:                               # noqa: BLE001
            failures.append(repr(why))
        finally:
            c.close()
    threads = [threading.Thread(target=load) for _ in range(6)]
    for t in threads:
        t.start()
    slow = []
    for _ in range(40):
        start = time.monotonic()
        assert e.ramjet.admin("/healthz").status == 200
        slow.append(time.monotonic() - start)
    stop.set()
    for t in threads:
        t.join()
    assert not failures
    assert sorted(slow)[-2] < 1 * SLACK, f"{slow[-5:]}"


def test_admin_off(fresh):
    e = fresh(ONE)
    r = Ramjet(e.engine, e.fill(ONE))
    r.text_of = r.text
    r.text = lambda: r.text_of().replace(f"admin = 127.0.0.1:{r.admin_port}", "admin = off")
    r.start(ready=False)
    try:
        e.U.play(OK)

        def served():
            try:
                with Client(r.port) as c:
                    return c.get().status == 200
            except ConnectionError:
                return False
        until(served, 5, "the data path")
        with pytest.raises(ConnectionError):
            Client(r.admin_port)
        r.stop()
    finally:
        r.kill()


# ---------------------------------------------------------------------------------------------------------------------------
# the access log

KEYS = ["time", "client", "method", "host", "path", "protocol", "status", "bytes_in", "bytes_out", "duration_ms", "connect_ms", "header_ms", "route", "backend", "upstream",
        "tries", "request_id", "error"]


def test_access_log_line(edge):
    e = edge(ONE)
    r = e.one(b"POST /p?q=1 HTTP/1.1\r\nHost: a.test\r\nContent-Length: 5\r\nX-Request-ID: id-1\r\n\r\nhello", OK)
    assert r.status == 200
    line = e.log_line(lambda x: x["path"].startswith("/p"))
    assert list(line) == KEYS
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)", line["time"])
    assert line["client"].split(":")[0] == "127.0.0.1"
    assert (line["method"], line["host"], line["protocol"], line["status"]) == ("POST", "a.test", "HTTP/1.1", 200)
    assert line["path"] in ("/p?q=1", "/p")
    assert (line["route"], line["backend"], line["upstream"], line["tries"]) == ("r", "s", f"127.0.0.1:{e.U.port}", 1)
    assert (line["request_id"], line["error"]) == ("id-1", "")
    assert line["bytes_in"] >= 5 and line["bytes_out"] >= 2
    assert 0 <= line["connect_ms"] <= line["header_ms"] <= line["duration_ms"] < 5000 * SLACK


def test_one_line_per_request(edge):
    e = edge(ONE)
    e.U.play(OK)
    c = e.client()
    for i in range(100):
        c.get(f"/n{i}")
    e.log_line(lambda x: x["path"] == "/n99")
    text = e.ramjet.stdout()[e.log_seen:]
    assert [json.loads(x)["path"] for x in text.splitlines()] == [f"/n{i}" for i in range(100)]


@pytest.mark.parametrize("client, status", [
    (b"GET /\"\\ HTTP/1.1\r\nHost: a.test\r\n\r\n", None),
    (b"GET /a\x01\x1f\x7f HTTP/1.1\r\nHost: a.test\r\n\r\n", 400),
    (b"GET /\xff\xfe\xc3\xa4 HTTP/1.1\r\nHost: a.test\r\n\r\n", 400),
    (b"GET / HTTP/1.1\r\nHost: a\"b\\c\r\n\r\n", 400),
    (b"GET / HTTP/1.1\r\nHost: a.test\r\nX-Request-ID: a\"b\\c\xff\xed\xa0\x80\t{}\r\n\r\n", None),
    (b"GET / HTTP/1.1\r\nHost: a.test\r\nX-Request-ID: " + b"x" * 3000 + b"\r\n\r\n", None),
    (b"G\"T / HTTP/1.1\r\nHost: a.test\r\n\r\n", 400),
    (b"GET / HTTP/1.1\r\nHost: \xe2\x80\xa8\r\n\r\n", 400),
    (b"GET /\xf4\x90\x80\x80 HTTP/1.1\r\nHost: a.test\r\n\r\n", 400),
], ids=["quotes", "controls", "not UTF-8", "host", "request id", "long request id", "method", "line separator", "beyond Unicode"])
def test_access_log_escapes(edge, client, status):
    """Whatever a client sends, every line is one JSON object in UTF-8 (log_line parses strictly)."""
    e = edge(ONE)
    r = e.one(client, OK)
    assert status is None or r.status == status
    line = e.log_line(lambda x: x["status"] == r.status)
    assert list(line) == KEYS
    raw = e.ramjet.stdout()[e.log_seen:]
    assert not re.search(rb"[\x00-\x09\x0b-\x1f\x7f]", raw), "control octets are escaped"


def test_access_log_says_why(edge):
    e = edge(ONE + "proxy-read-timeout = 200ms\nproxy-next-upstream = off\n")
    e.U.play([HOLD])
    assert e.get("/slow").status == 504
    assert e.log_line(lambda x: x["path"] == "/slow")["error"]
    e.get("/", "none.test")
    line = e.log_line(lambda x: x["host"] == "none.test")
    assert (line["status"], line["route"], line["backend"], line["upstream"]) == (404, "", "", "")


def test_access_log_of_a_client_that_leaves(edge):
    e = edge(ONE)
    c = e.client().send(b"GET /gone HTTP/1.1\r\nHost: a.test\r\n\r\n")
    e.U.play([HOLD])
    until(lambda: e.U.requests, 5, "the request")
    c.reset()
    assert e.log_line(lambda x: x["path"] == "/gone", 10)["error"]


@pytest.mark.parametrize("config", ["[ramjet]\ndisable-access-log = true\n" + ONE, ONE + "disable-access-log = true\n", "[ramjet]\naccess-log-path =\n" + ONE],
                         ids=["whole", "route", "no path"])
def test_access_log_off(fresh, config):
    e = fresh(config)
    e.U.play(OK)
    for _ in range(5):
        e.get()
    e.ramjet.signal(15)
    e.ramjet.wait()
    assert e.ramjet.stdout() == b"" and " error " not in e.ramjet.stderr()


def test_access_log_file_is_reopened(fresh, tmp_path):
    log = tmp_path / "access.log"
    e = fresh(f"[ramjet]\naccess-log-path = {log}\n" + ONE)
    e.U.play(OK)
    e.get("/1")
    until(lambda: log.exists() and b"/1" in log.read_bytes(), 5, "the first line")
    os.rename(log, tmp_path / "access.log.1")
    e.ramjet.signal(10)
    until(log.exists, 5, "the new file")
    e.get("/2")
    until(lambda: b"/2" in log.read_bytes(), 5, "the second line")
    assert b"/2" not in (tmp_path / "access.log.1").read_bytes()


def test_access_log_combined(fresh):
    e = fresh("[ramjet]\naccess-log-format = combined\n" + ONE)
    e.U.play(OK)
    e.get("/c?d", fields=b"Referer: http://x/\r\nUser-Agent: a\"b\r\n")
    line = until(e.ramjet.stdout, 5, "a line").decode()
    assert re.match(r'127\.0\.0\.1 - - \[\d\d/[A-Z][a-z]{2}/\d{4}:\d\d:\d\d:\d\d [+-]\d{4}\] "GET /c\?d HTTP/1\.1" 200 \d+ "', line), line


def test_nothing_is_lost_at_the_end(fresh):
    e = fresh(ONE)
    e.U.play(OK)
    c = e.client()
    for i in range(200):
        c.get(f"/{i}")
    c.close()
    e.ramjet.signal(15)
    assert e.ramjet.wait() == 0
    assert len(e.ramjet.log()) == 200


def test_what_was_asked_before_a_half_close_is_answered(edge):
    """Three requests and the end in one piece: the listener sees the end while the first answer is on its way."""
    e = edge(ONE)
    for _ in range(40):
        with Client(e.ramjet.admin_port) as c:
            c.send(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\nGET /admin/upstreams HTTP/1.1\r\nHost: x\r\n\r\nGET /nothing HTTP/1.1\r\nHost: x\r\n\r\nGET /half")
            c.half_close()
            assert [c.response().status for _ in range(3)] == [200, 200, 404]
            c.closed()
