"""Pools, weights, what happens when an upstream fails."""
import collections
import threading
import time

import pytest

from harness import ABRUPT, CLOSE, EARLY, GET, HOLD, OK, ONE, RST, TWO, until

POST = b"POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 5\r\n\r\nhello"


# ---------------------------------------------------------------------------------------------------------------------------
# pools

def test_connections_are_reused(edge):
    e = edge(ONE)
    e.U.play(OK)
    for _ in range(50):
        assert e.get().status == 200
    assert len(e.U.conns) == 1
    assert len(e.U.requests) == 50


def test_connections_are_reused_behind_large_answers(edge):
    """The next request of a pipeline is there before anybody looks whether the connection that the answer came on has more to say."""
    e = edge(ONE)
    body = bytes(300_000)
    e.U.play([b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body), body])
    c = e.client()
    for _ in range(5):
        c.send(GET * 4)
        assert [c.response().body for _ in range(4)] == [body] * 4
    assert len(e.U.requests) == 20
    assert len(e.U.conns) == 1


def test_reuse_is_counted_in_the_admin_listing(edge):
    e = edge(ONE)
    e.U.play(OK)
    before = e.ramjet.admin_json("/admin/upstreams")["backends"][0]["endpoints"][0]["requests"]
    for _ in range(10):
        e.get()
    row = e.ramjet.admin_json("/admin/upstreams")["backends"][0]["endpoints"][0]
    assert row["requests"] - before == 10
    until(lambda: e.idle("s") == 1, 5, "one idle connection")


def test_concurrent_requests_take_connections_of_their_own(edge):
    e = edge(ONE)
    held = threading.Event()
    clients = [e.client().send(GET) for _ in range(8)]
    e.U.play([held, OK])
    until(lambda: len(e.U.requests) == 8, 5, "eight requests at once")
    held.set()
    assert all(c.response().status == 200 for c in clients)
    assert len(e.U.conns) == 8
    until(lambda: e.idle("s") == 8, 5, "eight idle connections")


LEAVING = """
[backend s]
endpoint = $U
endpoint = $V
[backend t]
endpoint = $U
[route r]
host = a.test
path = /
type = prefix
backend = s
[route t]
host = b.test
path = /
type = prefix
backend = t
"""


def test_idle_connections_of_an_endpoint_end_when_no_backend_has_it(fresh):
    """A minute of upstream-keepalive-timeout is not waited for; what another backend still uses stays."""
    e = fresh(LEAVING + "# $W\n", workers=2)
    gate = threading.Event()
    clients = [e.client().send(GET) for _ in range(20)]
    e.U.play([gate, OK]), e.V.play([gate, OK]), e.W.play(OK)
    until(lambda: len(e.U.requests) == len(e.V.requests) == 10, 5, "twenty requests at once")
    gate.set()
    assert [c.response().status for c in clients] == [200] * 20
    until(lambda: e.idle("s") == 20, 5, "twenty idle connections")
    e.ramjet.write(e.fill(LEAVING.replace("$U\nendpoint = $V", "$W")))
    until(lambda: not e.V.live(), 5, "the connections of V to end")
    assert len(e.U.live()) == 10 and all(c.get(host="b.test").status == 200 for c in clients[:5])
    assert len(e.U.conns) == 10, "the pool survives, as backend t has U, too"
    e.ramjet.write(e.fill(ONE.replace("$U", "$W")))
    until(lambda: not e.U.live(), 5, "the connections of U to end with its last backend")


def test_a_connection_in_use_ends_behind_its_exchange_when_its_endpoint_has_left(fresh):
    e = fresh(LEAVING)
    gate = threading.Event()
    e.U.play(OK), e.V.play([gate, OK])
    clients = [e.client().send(GET) for _ in range(2)]
    until(lambda: e.U.complete and e.V.requests, 5, "a request at each endpoint")
    e.ramjet.write(e.fill(LEAVING.replace("endpoint = $V\n", "")))
    until(lambda: len(e.ramjet.admin_json("/admin/upstreams")["backends"][0]["endpoints"]) == 1, 5, "V to leave")
    gate.set()
    assert [c.response().status for c in clients] == [200, 200]
    until(lambda: not e.V.live(), 5, "the connection to end")
    e.ramjet.write(e.fill(LEAVING))                      # it comes back, and is kept again
    until(lambda: len(e.ramjet.admin_json("/admin/upstreams")["backends"][0]["endpoints"]) == 2, 5, "V to come back")
    until(lambda: e.get().status == 200 and len(e.V.complete) == 2, 5, "another request at V")
    until(lambda: len(e.V.live()) == 1 and e.idle("s") == 2, 5, "its connection to be kept")


def test_idle_connections_are_limited(edge):
    e = edge(ONE.replace("endpoint = $U", "endpoint = $U\nupstream-keepalive-connections = 3"))
    held = threading.Event()
    clients = [e.client().send(GET) for _ in range(8)]
    e.U.play([held, OK])
    until(lambda: len(e.U.requests) == 8, 5, "eight requests at once")
    held.set()
    assert all(c.response().status == 200 for c in clients)
    until(lambda: len(e.U.live()) == 3, 5, "all but three connections to be closed")
    assert e.idle("s") == 3


@pytest.mark.parametrize("limit", [1, 3])
def test_requests_per_connection_are_limited(edge, limit):
    e = edge(ONE.replace("endpoint = $U", f"endpoint = $U\nupstream-keepalive-requests = {limit}"))
    e.U.play(OK)
    for _ in range(limit + 1):
        assert e.get().status == 200
    assert [len(c.requests) for c in e.U.conns] == [limit, 1]


def test_idle_connections_time_out(edge):
    e = edge(ONE.replace("endpoint = $U", "endpoint = $U\nupstream-keepalive-timeout = 300ms"))
    e.U.play(OK)
    e.get()
    start = time.monotonic()
    until(lambda: not e.U.live(), 5, "the idle connection to be closed")
    assert time.monotonic() - start < 4


def test_connections_have_a_longest_life(edge):
    e = edge(ONE.replace("endpoint = $U", "endpoint = $U\nupstream-keepalive-time = 300ms"))
    e.U.play(OK)

    def second():
        assert e.get().status == 200
        return len(e.U.conns) > 1
    until(second, 5, "a second connection")


def test_unsolicited_octets_end_an_idle_connection(edge):
    e = edge(ONE)
    e.U.play(OK)
    assert e.get("/1").status == 200
    e.U.conns[0].send(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil")
    until(lambda: not e.U.live(), 5, "the connection to be given up")
    assert e.get("/2").body == b"ok"
    assert [q.conn for q in e.U.requests] == [0, 1]


def test_idle_connection_that_the_upstream_closes_is_dropped(edge):
    e = edge(ONE)
    e.U.play(OK)
    assert e.get("/1").status == 200
    e.U.conns[0].fin()
    until(lambda: not e.U.live(), 5, "the connection to be closed")
    until(lambda: e.idle("s") == 0, 5, "no idle connection")
    assert e.get("/2", method="POST", fields=b"Content-Length: 0\r\n").body == b"ok"


# ---------------------------------------------------------------------------------------------------------------------------
# round robin

def test_round_robin(edge):
    e = edge(TWO)
    e.U.play(OK), e.V.play(OK)
    for _ in range(20):
        assert e.get().status == 200
    assert (len(e.U.requests), len(e.V.requests)) == (10, 10)


@pytest.mark.parametrize("weights, share", [((1, 3), (25, 75)), ((9, 1), (90, 10)), ((1, 1), (50, 50)), ((100, 1), (99, 1))])
def test_weights(edge, weights, share):
    e = edge(TWO.replace("$U", f"$U weight={weights[0]}").replace("$V", f"$V weight={weights[1]}"))
    e.U.play(OK), e.V.play(OK)
    c = e.client()
    for _ in range(100):
        assert c.get().status == 200
    assert abs(len(e.U.requests) - share[0]) <= 2 and abs(len(e.V.requests) - share[1]) <= 2, (len(e.U.requests), len(e.V.requests))


def test_weights_interleave(edge):
    """A weight of two is no burst: of any three requests in a row one goes to the light endpoint."""
    e = edge(TWO.replace("$U", "$U weight=2"))
    order = []
    e.U.play(lambda conn, req: (order.append("U"), conn.send(OK)))
    e.V.play(lambda conn, req: (order.append("V"), conn.send(OK)))
    c = e.client()
    for _ in range(30):
        c.get()
    count = collections.Counter(order)
    assert (count["U"], count["V"]) == (20, 10)
    assert all("V" in order[i:i + 3] for i in range(28)), order


# ---------------------------------------------------------------------------------------------------------------------------
# failures

def refused(e, r, status, reason):
    """An answer of ours with its access log line, which says why."""
    assert (r.status, r.body) == (status, b"%d %s\n" % (status, reason))
    assert r.get(b"Content-Type") == b"text/plain; charset=utf-8"
    line = e.log_line(lambda x: x["status"] == status)
    assert line["error"], line
    return line


def test_502_when_refused(edge):
    e = edge(ONE.replace("$U", "$DEAD"))
    e.new_log()
    r = e.get("/x")
    line = refused(e, r, 502, b"Bad Gateway")
    assert line["backend"] == "s" and line["route"] == "r" and line["path"] == "/x"
    assert e.ramjet.metric("ramjet_upstream_errors_total", kind="connect") >= 1


def test_refused_keeps_the_client_connection(edge):
    e = edge(ONE.replace("$U", "$DEAD"))
    c = e.client()
    for _ in range(3):
        assert c.get().status == 502


def test_503_without_endpoints(edge):
    e = edge(ONE.replace("$U", "nowhere.invalid:80"))
    e.new_log()
    refused(e, e.get(), 503, b"Service Unavailable")


def test_504_when_the_answer_does_not_come(edge):
    e = edge(ONE + "proxy-read-timeout = 300ms\nproxy-next-upstream = off\n")
    e.new_log()
    e.U.play([HOLD])
    refused(e, e.get(), 504, b"Gateway Timeout")
    until(lambda: not e.U.live(), 5, "the upstream connection to be closed")


def test_504_when_the_connect_does_not_end(edge):
    e = edge(ONE.replace("$U", "$HOLE") + "proxy-connect-timeout = 300ms\nproxy-next-upstream-tries = 1\n")
    e.new_log()
    refused(e, e.get(), 504, b"Gateway Timeout")


@pytest.mark.parametrize("upstream, why", [([CLOSE], "closed"), ([RST], "reset"), (b"garbage\r\n\r\n", "protocol"), ([b"HTTP/1.1 200 OK\r\nX", CLOSE], "cut")], ids=["closed", "reset", "protocol", "cut"])
def test_502_says_why(edge, upstream, why):
    e = edge(ONE)
    e.new_log()
    r = e.one(POST, upstream)
    refused(e, r, 502, b"Bad Gateway")
    assert len(e.U.requests) == 1, "a POST is not sent twice"


@pytest.mark.parametrize("client", [GET, POST, b"POST / HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"],
                         ids=["GET", "counted", "chunked"])
def test_refused_connect_moves_on(edge, client):
    e = edge(TWO.replace("$V", "$DEAD\nmax-fails = 0"))
    e.U.play(OK)
    e.new_log()
    for _ in range(10):
        (r,), c = e.talk(client)
        assert r.status == 200
        c.close()
    assert len(e.U.requests) == 10
    assert all(q.body in (b"", b"hello") for q in e.U.requests)
    assert e.log_line(lambda x: x["tries"] == 2)["status"] == 200


@pytest.mark.parametrize("client", [GET, POST], ids=["GET", "POST"])
def test_connect_timeout_moves_on(edge, client):
    e = edge(TWO.replace("$V", "$HOLE") + "proxy-connect-timeout = 200ms\n")
    e.U.play(OK)
    for _ in range(6):
        (r,), c = e.talk(client)
        assert r.status == 200
        c.close()
    assert len(e.U.requests) == 6


def test_failing_endpoint_is_left_out_for_a_while(edge):
    """max-fails failures within fail-timeout, then no request waits for that endpoint's connect timeout."""
    e = edge(TWO.replace("$V", "$HOLE").replace("[route r]", "max-fails = 1\nfail-timeout = 60s\n[route r]") + "proxy-connect-timeout = 500ms\n")
    e.U.play(OK)
    start = time.monotonic()
    for _ in range(10):
        assert e.get().status == 200
    assert time.monotonic() - start < 2.5, "each request waited for the dead endpoint"


def test_all_endpoints_refuse(edge):
    e = edge(TWO.replace("$U", "$DEADA").replace("$V", "$DEADB"))
    e.new_log()
    for _ in range(8):
        assert e.get().status == 502
    assert e.log_line()["tries"] >= 2


def test_tries_are_limited(edge):
    e = edge("""
[backend s]
endpoint = $DEADA
endpoint = $DEADB
endpoint = $DEADC
endpoint = $DEADD
endpoint = $DEADE
[route r]
host = a.test
path = /
type = prefix
backend = s
proxy-next-upstream-tries = 2
""")
    e.new_log()
    assert e.get().status == 502
    assert e.log_line()["tries"] == 2


def test_next_upstream_off(edge):
    e = edge(TWO.replace("$V", "$DEAD") + "proxy-next-upstream = off\n")
    e.U.play(OK)
    c = e.client()
    assert sorted({c.get().status for _ in range(2)}) == [200, 502]


def close_without_answer(how):
    """An upstream that answers the first request of a connection and, at the second, ends without a word."""
    def script(conn, req):
        if req.index == 0:
            conn.body(req)
            conn.send(OK)
        else:
            conn.body(req)
            conn.play(req, [EARLY, how])
    return script


@pytest.mark.parametrize("how", [CLOSE, RST, ABRUPT], ids=repr)
def test_get_on_a_reused_connection_is_replayed_once(edge, how):
    e = edge(ONE)
    e.U.play(close_without_answer(how))
    for i in range(1, 8):
        assert e.get(f"/{how}/{i}").status == 200
    assert [q.target for q in e.U.requests if q.index == 1], "the connection was used again"
    assert e.log_line(lambda x: x["path"] == f"/{how}/2")["tries"] == 2


def test_replay_happens_once(edge):
    e = edge(ONE)
    e.U.play(OK, [CLOSE])
    assert e.get("/1").status == 200
    assert e.get("/2").status == 502
    assert [q.target for q in e.U.requests] == [b"/1", b"/2", b"/2"]


@pytest.mark.parametrize("method", ["POST", "PATCH", "FOO"])
def test_a_post_on_a_reused_connection_is_not_sent_twice(edge, method):
    e = edge(ONE)
    client = f"{method} /2 HTTP/1.1\r\nHost: a.test\r\nContent-Length: 5\r\n\r\nhello".encode()
    e.U.play(OK, [CLOSE], OK)
    assert e.get("/1").status == 200
    r = e.one(client)
    assert r.status == 502
    assert [q.target for q in e.U.requests] == [b"/1", b"/2"]


@pytest.mark.parametrize("method", ["PUT", "DELETE", "HEAD", "OPTIONS"])
def test_other_idempotent_methods_are_replayed(edge, method):
    e = edge(ONE)
    client = f"{method} /2 HTTP/1.1\r\nHost: a.test\r\n\r\n".encode()
    e.U.play(OK, [CLOSE], b"HTTP/1.1 204 No Content\r\n\r\n")
    assert e.get("/1").status == 200
    assert e.one(client, method=method).status == 204
    assert [q.target for q in e.U.requests] == [b"/1", b"/2", b"/2"]


def test_after_the_first_octet_of_an_answer_nothing_is_replayed(edge):
    e = edge(ONE)
    e.U.play(OK, [b"HTTP/1.1 200", CLOSE], OK)
    assert e.get("/1").status == 200
    assert e.get("/2").status == 502
    assert [q.target for q in e.U.requests] == [b"/1", b"/2"]


def test_post_is_not_executed_twice(edge):
    """The first endpoint reads the whole POST and closes without an answer: the other one sees nothing."""
    e = edge(TWO)
    e.U.play([CLOSE]), e.V.play([CLOSE])
    r = e.one(POST)
    assert r.status == 502
    assert len(e.U.requests) + len(e.V.requests) == 1


def test_post_goes_twice_when_the_operator_says_so(edge):
    e = edge(TWO + "retry-non-idempotent = true\n")
    e.U.play([CLOSE]), e.V.play(OK)
    for _ in range(2):
        assert e.one(POST).status == 200
    assert all(q.body == b"hello" for q in e.V.requests)


def test_get_on_a_fresh_connection_tries_the_other_endpoint(edge):
    e = edge(TWO)
    e.U.play([CLOSE]), e.V.play(OK)
    assert [e.get().status for _ in range(4)] == [200] * 4


def test_idle_race(edge):
    """An upstream that closes each connection after one answer, at any moment: no GET fails."""
    e = edge(ONE)
    e.U.play([OK, CLOSE])
    c = e.client()
    for i in range(300):
        assert c.get(f"/{i}").status == 200, i


def test_idle_race_with_reset_on_the_next_octet(edge):
    e = edge(ONE)

    def script(conn, req):
        if req.index:
            conn.rst()
        else:
            conn.send(OK)
    e.U.play(script)
    c = e.client()
    for i in range(200):
        assert c.get(f"/{i}").status == 200, i


def test_upstream_that_goes_and_comes_back(edge):
    e = edge(ONE)
    e.U.play(OK)
    assert e.get("/1").status == 200
    e.U.unlisten()
    try:
        e.U.reset()
        assert e.get("/2").status == 502
    finally:
        e.U.listen()
    e.U.play(OK)
    assert e.get("/3").status == 200


def test_half_closed_upstream_answers_first(edge):
    """FIN together with the answer: the answer counts."""
    e = edge(ONE)
    for i in range(20):
        e.U.play([OK, CLOSE])
        assert e.get().body == b"ok"
        e.U.reset()


def test_names_as_endpoints(edge):
    e = edge(ONE.replace("[backend s]", "[backend other]\nendpoint = localhost:1\n\n[backend s]"))
    e.U.play(OK)
    assert e.get().status == 200


def test_resolved_name(fresh):
    from harness import Upstream
    u = Upstream("N")
    try:
        e = fresh(ONE.replace("$U", f"localhost:{u.port}"))
        u.play(OK)
        until(lambda: e.get().status == 200, 5, "localhost to be resolved")
        u.reset()
    finally:
        u.close()


def test_unresolvable_name_blocks_nobody(edge):
    e = edge("""
[ramjet]
resolver = $HOLE
[backend s]
endpoint = $U
[backend gone]
endpoint = nowhere.invalid:80
[route r]
host = a.test
path = /
type = prefix
backend = s
[route gone]
host = b.test
path = /
type = prefix
backend = gone
proxy-connect-timeout = 1s
""")
    c = e.client().send(b"GET / HTTP/1.1\r\nHost: b.test\r\n\r\n")
    e.U.play(OK)
    for _ in range(20):
        start = time.monotonic()
        assert e.get().status == 200
        assert time.monotonic() - start < 1
    assert c.response().status in (502, 503, 504)


def test_one_endpoint_refuses_and_one_swallows(edge):
    """A pod that is gone but still listed: no client sees an error."""
    e = edge("""
[backend s]
endpoint = $U
endpoint = $DEAD
endpoint = $HOLE

[route r]
host = a.test
path = /
type = prefix
backend = s
proxy-connect-timeout = 200ms
""")
    e.U.play(OK)
    for i in range(60):
        r = e.one(POST if i % 6 == 0 else GET)
        assert r.status == 200, i
    assert len(e.U.requests) == 60


def test_next_upstream_for_a_status(edge):
    health = "$U\nmax-fails = 0"
    e = edge(TWO.replace("$U", health) + "proxy-next-upstream = error http_503\n")
    e.U.play(b"HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nbusy"), e.V.play(OK)
    for _ in range(4):
        assert e.get().status == 200
    e = edge(TWO.replace("$U", health))
    e.U.play(b"HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nbusy"), e.V.play(OK)
    assert sorted({e.get().status for _ in range(4)}) == [200, 503], "not by default"


@pytest.mark.parametrize("policy", ["least_conn", "random", "ewma", "round_robin"])
def test_other_balances_use_every_endpoint(edge, policy):
    e = edge(TWO.replace("endpoint = $U", f"load-balance = {policy}\nendpoint = $U"))
    e.U.play(OK), e.V.play(OK)
    for _ in range(60):
        assert e.get().status == 200
    assert len(e.U.requests) >= 5 and len(e.V.requests) >= 5


def test_least_conn_avoids_the_busy_endpoint(edge):
    e = edge(TWO.replace("endpoint = $U", "load-balance = least_conn\nendpoint = $U"))
    held = threading.Event()
    e.U.play([held, OK]), e.V.play(OK)
    c = e.client()
    while not e.U.requests:
        c.send(GET)
        until(lambda: e.U.requests or c.readable(), 5)
        if c.readable():
            assert c.response().status == 200
    for _ in range(20):
        assert e.get().status == 200
    assert len(e.U.requests) == 1
    held.set()
    assert c.response().status == 200


def test_ip_hash_keeps_a_client_on_its_endpoint(edge):
    e = edge(TWO.replace("endpoint = $U", "load-balance = ip_hash\nendpoint = $U"))
    e.U.play(OK), e.V.play(OK)
    homes = set()
    for i in range(2, 22):
        before = len(e.U.requests), len(e.V.requests)
        for _ in range(3):
            c = e.client(source=f"127.0.{i}.{i}")
            assert c.get().status == 200
            c.close()
        after = len(e.U.requests), len(e.V.requests)
        moved = (after[0] - before[0], after[1] - before[1])
        assert moved in ((3, 0), (0, 3)), moved
        homes.add(moved)
    assert len(homes) == 2, "different clients, different endpoints"
