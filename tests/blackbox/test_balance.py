"""Which endpoint gets a request: hashing, active checks, slow start, the retry budget, descriptors that run short."""
import collections
import re
import resource
import threading
import time

import pytest

import harness
from harness import ABRUPT, GET, HOLD, OK, RST, SLACK, TWO, Client, until

FOUR = """
[backend s]
endpoint = $U
endpoint = $V
endpoint = $W
endpoint = $X
{backend}
[route r]
host = a.test
path = /
type = prefix
backend = s
{route}
"""


def named(e):
    """Every upstream answers with its name."""
    for name, u in e.peers.items():
        u.play(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(name), name.encode()))
    return e


def ask(c, target="/", fields=b""):
    return c.get(target, fields=fields).body.decode()


# ---------------------------------------------------------------------------------------------------------------------------
# hashing

HASHED = [
    ("$http_x_user", lambda k: ("/", b"X-User: %d\r\n" % k)),
    ("$cookie_sid", lambda k: ("/", b"Cookie: a=b; sid=%d\r\n" % k)),
    ("$arg_id", lambda k: (f"/?x=1&id={k}", b"")),
    ("$request_uri", lambda k: (f"/p?{k}", b"")),
    ("$uri", lambda k: (f"/{k}", b"")),
    ("$host$uri", lambda k: (f"/{k}", b"")),
]


@pytest.mark.parametrize("by,request_of", HASHED, ids=[row[0] for row in HASHED])
def test_a_key_keeps_its_endpoint(edge, by, request_of):
    e = named(edge(FOUR.format(backend=f"upstream-hash-by = {by}", route="")))
    c = e.client()
    first = {k: ask(c, *request_of(k)) for k in range(60)}
    counts = collections.Counter(first.values())
    assert len(counts) == 4 and min(counts.values()) >= 4, counts
    assert {k: ask(c, *request_of(k)) for k in range(60)} == first


def test_two_workers_agree_on_a_key(edge):
    e = named(edge(FOUR.format(backend="upstream-hash-by = $arg_id", route=""), workers=2))
    for k in range(20):
        assert len({ask(e.client(), f"/?id={k}") for _ in range(4)}) == 1


def test_a_route_hashes_by_its_own_key(edge):
    e = named(edge(FOUR.format(backend="", route="upstream-hash-by = $arg_id")))
    c = e.client()
    assert len({ask(c, "/?id=7") for _ in range(12)}) == 1


def test_only_keys_of_an_endpoint_that_goes_move(fresh):
    e = named(fresh(FOUR.format(backend="upstream-hash-by = $arg_id", route="")))
    before = {k: ask(e, f"/?id={k}") for k in range(80)}
    e.ramjet.write(e.fill(FOUR.format(backend="upstream-hash-by = $arg_id", route="").replace("endpoint = $X\n", "")))
    until(lambda: len(e.ramjet.admin_json("/admin/upstreams")["backends"][0]["endpoints"]) == 3, 5, "three endpoints")
    after = {k: ask(e, f"/?id={k}") for k in range(80)}
    assert "X" not in after.values()
    assert all(after[k] == v for k, v in before.items() if v != "X")


def test_a_key_whose_endpoint_is_gone_moves_on(fresh):
    e = named(fresh(FOUR.format(backend="upstream-hash-by = $arg_id", route="")))
    home = ask(e, "/?id=1")
    e.peers[home].unlisten()
    e.peers[home].reset()
    other = ask(e, "/?id=1")
    assert other != home
    assert ask(e, "/?id=1") == other


@pytest.mark.parametrize("value", ["$nothing", "$http_", "$cookie_", "$arg_", "$", "a b", "$host$", "x" * 70])
def test_what_is_no_key_is_refused(tmp_path, value):
    path = tmp_path / "edge.ini"
    path.write_text(re.sub(r"\$[UVWX]\n", "127.0.0.1:1\n", FOUR.format(backend=f"upstream-hash-by = {value}", route="")))
    status, _, err = harness.run_ramjet("check", str(path))
    assert status == 2 and f"edge.ini:7: upstream-hash-by: found \"{value}\"" in err, err


# ---------------------------------------------------------------------------------------------------------------------------
# active checks

CHECKED = FOUR.format(backend="check-path = /healthz\ncheck-interval = 30ms\ncheck-timeout = 5s\ncheck-fall = 2\ncheck-rise = 2\n{more}", route="")


class Sick:
    """An upstream with a health check: `state` is the status of /healthz, or a script for it."""

    def __init__(self, e, name):
        self.name, self.state, self.checks = name, 200, 0
        e.peers[name].play(self.answer)

    def answer(self, conn, req):
        if req.target != b"/healthz":
            conn.play(req, b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n" + self.name.encode())
            return
        self.checks += 1
        self.last = req
        conn.play(req, b"HTTP/1.1 %d X\r\nContent-Length: 0\r\n\r\n" % self.state if isinstance(self.state, int) else self.state)


def health(e):
    return {row["address"]: row.get("check") for row in e.ramjet.admin_json("/admin/upstreams")["backends"][0]["endpoints"]}


def is_health(e, name, state):
    until(lambda: health(e)[f"127.0.0.1:{e.peers[name].port}"] == state, 20, f"{name} to be {state}")


def test_checks_take_an_endpoint_out_and_back(fresh):
    e = fresh(CHECKED.format(more=""))
    sick = {name: Sick(e, name) for name in e.peers}
    until(lambda: all(s.checks >= 3 for s in sick.values()), 10, "checks of all")
    assert sick["U"].last.get(b"Host") == f"127.0.0.1:{e.U.port}".encode()
    c = e.client()
    assert {ask(c) for _ in range(8)} == set("UVWX")
    for state in (503, 404, 199, [b"garbage\r\n\r\n"], [ABRUPT]):
        sick["U"].state = state
        is_health(e, "U", "down")
        assert {ask(c) for _ in range(12)} == set("VWX")
        sick["U"].state = 302
        is_health(e, "U", "up")
        assert {ask(c) for _ in range(8)} == set("UVWX")
    text = e.ramjet.stderr()
    assert re.search(r"warn chk: backend s: endpoint 127\.0\.0\.1:\d+ is out after 2 failed checks: GET /healthz: status 503", text)
    assert re.search(r"info chk: backend s: endpoint 127\.0\.0\.1:\d+ is back after 2 good checks", text)
    assert e.ramjet.metric("ramjet_upstream_checks_total", result="bad") >= 10


def test_a_check_that_gets_no_answer_is_a_bad_one(fresh):
    e = fresh(CHECKED.format(more="").replace("check-timeout = 5s", "check-timeout = 50ms"))
    sick = {name: Sick(e, name) for name in e.peers}
    sick["V"].state = [HOLD]
    is_health(e, "V", "down")
    assert "no answer within 50 ms" in e.ramjet.stderr()


def test_checks_send_the_host_that_is_configured(fresh):
    e = fresh(CHECKED.format(more="check-host = health.test"))
    sick = {name: Sick(e, name) for name in e.peers}
    until(lambda: sick["U"].checks, 10, "a check")
    assert sick["U"].last.get(b"Host") == b"health.test"
    e.ramjet.write(e.fill(CHECKED.format(more="")))      # taken away again by a reload
    until(lambda: sick["U"].last.get(b"Host") == e.fill("$U").encode(), 10, "a check with the endpoint's address")


def test_when_all_are_out_all_are_tried(fresh):
    e = fresh(CHECKED.format(more=""))
    sick = {name: Sick(e, name) for name in e.peers}
    for s in sick.values():
        s.state = 500
    for name in sick:
        is_health(e, name, "down")
    c = e.client()
    assert {ask(c) for _ in range(12)} == set("UVWX")


def test_checks_follow_a_reload(fresh):
    e = fresh(CHECKED.format(more=""))
    sick = {name: Sick(e, name) for name in e.peers}
    sick["U"].state = 500
    is_health(e, "U", "down")
    e.ramjet.write(e.fill(CHECKED.format(more="").replace("endpoint = $U\n", "")))
    until(lambda: len(health(e)) == 3, 5, "three endpoints")
    before = sick["U"].checks
    target = sick["V"].checks + 5
    until(lambda: sick["V"].checks >= target, 10, "more checks of V")
    assert sick["U"].checks <= before + 1                # one may have been on its way
    e.ramjet.write(e.fill(FOUR.format(backend="", route="")))
    until(lambda: set(health(e).values()) == {None}, 5, "no checks")
    assert {ask(e) for _ in range(12)} == set("UVWX")


def test_state_survives_a_publish_that_keeps_the_endpoint(fresh):
    """An endpoint that is out stays out when the table changes elsewhere, without another failed request or check."""
    e = fresh(CHECKED.format(more=""))
    sick = {name: Sick(e, name) for name in e.peers}
    sick["W"].state = 500
    is_health(e, "W", "down")
    for k in range(5):
        generation = e.ramjet.admin_json("/admin/generations")["serving"]
        e.ramjet.write(e.fill(CHECKED.format(more="") + f"\n[route other{k}]\nhost = o{k}.test\nbackend = s\n"))
        until(lambda: e.ramjet.admin_json("/admin/generations")["serving"] > generation, 5, "the new table")
        assert health(e)[f"127.0.0.1:{e.W.port}"] == "down"
        assert "W" not in {ask(e) for _ in range(12)}


# ---------------------------------------------------------------------------------------------------------------------------
# slow start

def test_an_endpoint_that_comes_back_starts_slowly(fresh):
    e = fresh(CHECKED.format(more="slow-start = 10m"))
    sick = {name: Sick(e, name) for name in e.peers}
    sick["U"].state = 500
    is_health(e, "U", "down")
    sick["U"].state = 200
    is_health(e, "U", "up")
    c = e.client()
    counts = collections.Counter(ask(c) for _ in range(400))
    assert 0 < counts["U"] < 40, counts                  # about a tenth of its quarter


# ---------------------------------------------------------------------------------------------------------------------------
# the retry budget

TWO_THAT_STAY = "[ramjet]\nmax-fails = 0\n{more}\n" + TWO


def test_retries_are_a_part_of_the_requests(fresh):
    """One of two endpoints drops every request: the first ten failures are retried, then a fifth of the requests, and a try a second."""
    e = fresh(TWO_THAT_STAY.format(more=""))
    e.U.play([RST])
    e.V.play(OK)
    c = e.client()
    statuses = []
    for _ in range(400):
        statuses.append(c.get().status)
    retried, refused = e.ramjet.metric("ramjet_upstream_retries_total"), e.ramjet.metric("ramjet_upstream_retries_refused_total")
    assert statuses.count(502) == refused > 0
    assert 80 <= retried <= 100 + 30 * SLACK, retried    # 10 + 20 % of 400, and one for each second that it took
    assert len(e.U.requests) + len(e.V.requests) == 400 + retried


def test_a_refused_connect_is_not_counted(fresh):
    """Nothing was asked of an endpoint that refuses: rolling restarts cost no budget."""
    e = fresh(TWO_THAT_STAY.format(more="").replace("$U", "$DEAD"))
    e.V.play(OK)
    c = e.client()
    assert [c.get().status for _ in range(200)] == [200] * 200
    assert not e.ramjet.metric("ramjet_upstream_retries_refused_total")


def test_the_budget_can_be_made_larger(fresh):
    e = fresh(TWO_THAT_STAY.format(more="retry-budget = 100"))
    e.U.play([RST])
    e.V.play(OK)
    c = e.client()
    assert [c.get().status for _ in range(200)] == [200] * 200


def test_a_status_that_would_be_retried_goes_out_when_the_budget_is_spent(fresh):
    e = fresh(TWO_THAT_STAY.format(more="proxy-next-upstream = http_503\nretry-budget = 0"))
    e.U.play(b"HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nbusy")
    e.V.play(OK)
    c = e.client()
    bodies = collections.Counter(c.get().body for _ in range(100))
    assert bodies[b"busy"] >= 30 and bodies[b"ok"] >= 50, bodies


# ---------------------------------------------------------------------------------------------------------------------------
# descriptors

def test_the_reserve_of_descriptors_stays_one(engine):
    """Clients that stay keep accepting paused: with each pause that ends none of the reserve is given away."""
    e = harness.Edge(engine, harness.ONE, prefix=["prlimit", "--nofile=128:128"])
    try:
        e.U.play(OK)
        clients = [Client(e.ramjet.port) for _ in range(150)]
        until(lambda: e.ramjet.metric("ramjet_accept_pauses_total"), 10, "a pause")
        time.sleep(2)                                    # twenty pauses: nothing tells that one has ended
        assert e.ramjet.fds() <= 128 * 3 // 4 + 6
        for c in clients[:100]:
            c.close()
        last = clients[-1]
        last.send(GET)
        assert last.response().status == 200
        for c in clients:
            c.close()
        e.stop()
    except BaseException:
        e.kill()
        raise


def test_the_last_descriptors_are_for_the_admin_listener(engine):
    """Clients hold their share and requests what is left: whatever they do, the admin listener answers, and so does a request as soon as others
    are done, because no connection waits idle on a descriptor of the reserve."""
    e = harness.Edge(engine, harness.ONE, prefix=["prlimit", "--nofile=128:128"])
    gate = threading.Event()
    try:
        e.U.play([gate, OK])
        clients = [Client(e.ramjet.port) for _ in range(150)]
        until(lambda: e.ramjet.metric("ramjet_accept_pauses_total"), 10, "a pause")
        for c in clients[:60]:
            c.send(GET)                                  # more than the reserve has descriptors for
        until(lambda: any(c.readable() for c in clients[:60]), 10, "a request that finds none")
        for _ in range(5):
            assert e.ramjet.admin("/healthz").status == 200
        refused = [c for c in clients[:60] if c.readable()]
        assert all(c.response().status == 503 for c in refused)
        gate.set()
        served = [c for c in clients[:60] if c not in refused]
        statuses = [c.response().status for c in served]
        assert statuses.count(200) >= 16, statuses
        until(lambda: e.ramjet.fds() <= 128 * 3 // 4 + 6, 10, "the reserve to be free")
        assert [c.get().status for c in clients[:60]] == [200] * 60
        for c in clients:
            c.close()
        e.stop()
    except BaseException:
        gate.set()
        e.kill()
        raise


def test_the_admin_listener_comes_back_when_there_are_descriptors_again(engine):
    """Who waits there when accept fails is answered later, although nobody else comes, and waiting costs no processor."""
    e = harness.Edge(engine, harness.ONE)
    try:
        e.U.play(OK)
        pid = e.ramjet.pid
        limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        until(lambda: e.ramjet.fds() == e.base_fds, 5, "no connection to be left")
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, limits[1]))
        with Client(e.ramjet.admin_port) as c:
            c.send(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            with open(f"/proc/{pid}/stat") as f:
                before = f.read().split()[13:15]
            time.sleep(0.5)
            with open(f"/proc/{pid}/stat") as f:
                after = f.read().split()[13:15]
            assert not c.readable()
            assert sum(map(int, after)) - sum(map(int, before)) < 25, "half of a processor"
            resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
            assert c.response().status == 200
        e.stop()
    except BaseException:
        e.kill()
        raise


def test_accepting_pauses_before_descriptors_run_out(engine):
    """With 128 descriptors: clients are taken while a quarter is left; each that is taken is served, the rest waits and is served later."""
    e = harness.Edge(engine, harness.ONE, prefix=["prlimit", "--nofile=128:128"])
    try:
        e.U.play(OK)
        clients = []
        for _ in range(150):
            clients.append(Client(e.ramjet.port))
        until(lambda: e.ramjet.metric("ramjet_accept_pauses_total"), 10, "a pause")
        assert e.ramjet.fds() <= 128 * 3 // 4 + 6
        served = [c for c in clients[:20] if c.get().status == 200]
        assert len(served) == 20
        assert e.ramjet.admin("/readyz").status == 200
        for c in clients[:100]:
            c.close()
        last = clients[-1]
        last.send(GET)
        assert last.response().status == 200             # it waited for its turn
        for c in clients:
            c.close()
        assert e.get().status == 200
        e.stop()
    except BaseException:
        e.kill()
        raise
