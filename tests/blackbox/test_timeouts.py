"""Every time limit: it fires, not too early, and what makes progress is left alone."""
import signal
import threading
import time

import pytest

from harness import BODY, DEAF, EARLY, GET, HOLD, OK, ONE, SLACK, Eof, noise, rx_queue, stopped, until

pytestmark = pytest.mark.long


class Clock:
    def __enter__(self):
        self.start = time.monotonic()
        return self

    def __exit__(self, *_):
        pass

    def between(self, low, high):
        took = time.monotonic() - self.start
        assert low <= took <= high + 2 * SLACK, f"took {took:.2f} s, expected {low} to {high} s"


def drip(c, octets, every, seconds):
    """Sends octet after octet, one every so many seconds, until the peer answers or ends; what is measured is the peer's patience."""
    end = time.monotonic() + seconds
    for i in range(len(octets)):
        if c.readable() or time.monotonic() > end:
            return
        try:
            c.sock.send(octets[i:i + 1])
        except OSError:
            return
        tick = time.monotonic() + every
        until(lambda: c.readable() or time.monotonic() > tick, every + 2, "the next tick")


def test_keep_alive(edge):
    e = edge("[ramjet]\nkeep-alive = 500ms\n" + ONE)
    c = e.client()
    e.U.play(OK)
    assert c.get().status == 200
    with Clock() as t:
        c.closed()
        t.between(0.4, 1)


def test_keep_alive_of_a_connection_that_says_nothing(edge):
    e = edge("[ramjet]\nkeep-alive = 500ms\nclient-header-timeout = 500ms\n" + ONE)
    c = e.client()
    with Clock() as t:
        rest = c.rest()
        t.between(0.4, 1)
    assert rest == b"" or rest.startswith(b"HTTP/1.1 408 ")


def test_keep_alive_is_no_limit_for_a_request(edge):
    e = edge("[ramjet]\nkeep-alive = 300ms\n" + ONE)
    c = e.client().send(GET)

    def late(conn, _req):
        tick = time.monotonic() + 0.8
        until(lambda: time.monotonic() > tick, 2)
        conn.send(OK)
    e.U.play(late)
    assert c.response().status == 200


def timed_out(c, t, low, high):
    r = c.response()
    t.between(low, high)
    assert r.status == 408 and r.get(b"Connection") == b"close"
    c.ended()


HEADER = "[ramjet]\nclient-header-timeout = 700ms\n" + ONE


def test_header_timeout(edge):
    e = edge(HEADER)
    with Clock() as t:
        c = e.client().send(b"GET / HTTP/1.1\r\nHost: a.test\r\n")
        timed_out(c, t, 0.6, 1.2)
    assert not e.U.requests


def test_header_timeout_is_the_total(edge):
    """One octet every 100 ms buys no time."""
    e = edge(HEADER)
    with Clock() as t:
        c = e.client()
        drip(c, b"GET / HTTP/1.1\r\nHost: a.test\r\nX: " + b"y" * 200, 0.1, 5)
        timed_out(c, t, 0.6, 1.2)


def test_header_timeout_of_a_later_request(edge):
    e = edge(HEADER)
    c = e.client()
    e.U.play(OK)
    assert c.get().status == 200
    with Clock() as t:
        c.send(b"GET / HTTP/1.1\r\nHost: a")
        timed_out(c, t, 0.6, 1.2)


def test_many_slow_heads_disturb_nobody(edge):
    e = edge(HEADER)
    e.U.play(OK)
    slow = [e.client().send(b"GET / HT") for _ in range(200)]
    for _ in range(50):
        start = time.monotonic()
        assert e.get().status == 200
        assert time.monotonic() - start < 0.5 * SLACK
    assert all(c.response().status == 408 for c in slow)


BODY_TIMEOUT = "[ramjet]\nclient-body-timeout = 700ms\n" + ONE


@pytest.mark.parametrize("client", [b"POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 10\r\n\r\nhello",
                                    b"POST / HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"],
                         ids=["counted", "chunked"])
def test_body_timeout(edge, client):
    e = edge(BODY_TIMEOUT)
    with Clock() as t:
        c = e.client().send(client)
        e.U.play(OK)
        timed_out(c, t, 0.6, 1.2)
    until(lambda: not e.U.live(), 5, "the upstream connection to be given up")
    assert not e.U.complete


def test_body_timeout_is_between_two_reads(edge):
    e = edge(BODY_TIMEOUT)
    c = e.client().send(b"POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 12\r\n\r\n")
    e.U.play(OK)
    drip(c, b"hello, world", 0.1, 5)
    assert c.response().status == 200
    assert e.U.request.body == b"hello, world"


READ_TIMEOUT = ONE + "proxy-read-timeout = 700ms\n"


def test_read_timeout_until_the_head(edge):
    e = edge(READ_TIMEOUT)
    with Clock() as t:
        c = e.client().send(b"POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 0\r\n\r\n")
        e.U.play([HOLD])
        assert c.response().status == 504
        t.between(0.6, 1.2)
    assert c.get().status == 504, "the client keeps its connection"


def test_read_timeout_within_the_body(edge):
    e = edge(READ_TIMEOUT)
    with Clock() as t:
        c = e.client().send(GET)
        e.U.play([b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello", HOLD])
        with pytest.raises((Eof, ConnectionResetError)):
            c.response()
        t.between(0.6, 1.2)
    until(lambda: not e.U.live(), 5, "the upstream connection to be closed")


def test_read_timeout_is_between_two_reads(edge):
    e = edge(READ_TIMEOUT)
    c = e.client().send(GET)

    def slowly(conn, _req):
        conn.send(b"HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\n")
        for i in range(12):
            conn.send(b"hello, world"[i:i + 1])
            tick = time.monotonic() + 0.1
            until(lambda: time.monotonic() > tick, 2)
    e.U.play(slowly)
    assert c.response().body == b"hello, world"


def test_read_timeout_does_not_run_while_the_client_uploads(edge):
    e = edge(READ_TIMEOUT)
    c = e.client().send(b"POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 12\r\n\r\n")
    e.U.play(OK)
    drip(c, b"hello, world", 0.12, 5)
    assert c.response().status == 200


def test_connect_timeout(edge):
    e = edge(ONE.replace("$U", "$HOLE") + "proxy-connect-timeout = 700ms\nproxy-next-upstream-tries = 1\n")
    with Clock() as t:
        assert e.get().status == 504
        t.between(0.6, 1.2)


def test_next_upstream_timeout(edge):
    e = edge("""
[backend s]
endpoint = $HOLEA
endpoint = $HOLEB
endpoint = $HOLEC
[route r]
host = a.test
path = /
type = prefix
backend = s
proxy-connect-timeout = 400ms
proxy-next-upstream-timeout = 600ms
""")
    with Clock() as t:
        assert e.get().status == 504
        t.between(0.5, 0.9)


def test_send_timeout(edge):
    """A client that does not read is cut off when no octet goes out for the time."""
    e = edge("[ramjet]\nsend-timeout = 700ms\n" + ONE)
    c = e.client(rcvbuf=4096).send(GET)

    def endless(conn, _req):
        conn.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n")
        try:
            while True:
                conn.send(bytes(65536))
        except OSError:
            conn.over = True
    with Clock() as t:
        e.U.play(endless)
        until(lambda: e.U.conns and not e.U.live(), 10, "the exchange to be given up")
        t.between(0.6, 3)
    with pytest.raises((Eof, ConnectionResetError)):
        c.response()


def test_send_timeout_is_between_two_writes(edge):
    e = edge("[ramjet]\nsend-timeout = 700ms\n" + ONE)
    body = bytes(3_000_000)
    c = e.client(rcvbuf=65536).send(GET)
    e.U.play(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    end = time.monotonic() + 2
    while time.monotonic() < end:
        if len(c.wire.raw) < 1_500_000:
            c.wire.buf += c.sock.recv(30_000)
            c.wire.raw += c.wire.buf[len(c.wire.raw):]
        tick = time.monotonic() + 0.05
        until(lambda: time.monotonic() > tick, 1)
    assert c.response().body == body


def test_proxy_send_timeout(edge):
    """An upstream that does not read the body."""
    e = edge(ONE + "proxy-send-timeout = 700ms\nproxy-body-size = 0\n")
    c = e.client()
    e.U.play([EARLY, DEAF])

    def push():
        try:
            c.sock.sendall(b"POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 100000000\r\n\r\n")
            for _ in range(1600):
                c.sock.sendall(bytes(62500))
        except OSError:
            pass
    t = threading.Thread(target=push, daemon=True)
    t.start()
    r = c.response("POST")
    assert r.status in (502, 504)
    c.close()
    t.join(5)


def test_expect_body_timeout(edge):
    e = edge(BODY_TIMEOUT)
    c = e.client().send(b"POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n")
    e.U.play([EARLY, BODY, OK])
    assert c.response("POST").status in (408, 504)


def test_lingering_close_is_bounded(edge):
    """A client that goes on sending after a refusal is dropped at last."""
    e = edge(ONE)
    c = e.client().send(b"GET / HTTP/1.1\r\nHost: a b\r\n\r\n")
    assert c.response().status == 400
    start = time.monotonic()

    def refused():
        try:
            c.sock.send(b"x")
        except OSError:
            return True
        return False
    until(refused, 40, "the connection to be dropped")
    assert time.monotonic() - start < 35


def test_timers_do_not_outlive_their_request(edge):
    """Ten requests with timeouts that would fire later; the connection is alive after all of them."""
    e = edge("[ramjet]\nclient-header-timeout = 500ms\nclient-body-timeout = 500ms\nkeep-alive = 10s\n" + ONE + "proxy-read-timeout = 500ms\n")
    c = e.client()
    e.U.play(OK)
    for _ in range(10):
        assert c.get(method="POST", fields=b"Content-Length: 5\r\n", body=b"hello").status == 200
    tick = time.monotonic() + 1.2
    until(lambda: time.monotonic() > tick or not c.open(), 3)
    assert c.get().status == 200
    assert rx_queue(c.peer, c.name) == 0


# ---------------------------------------------------------------------------------------------------------------------------
# a process that gets no CPU for longer than the limits: who sent in time is not blamed

def stalled(e, act):
    """Calls act() while the process stands still, for longer than a limit of one second."""
    stopped(e)
    try:
        start = time.monotonic()
        act()
        until(lambda: time.monotonic() > start + 1.5, 5)
    finally:
        e.ramjet.signal(signal.SIGCONT)


def test_a_stall_blames_no_upstream_that_answered(edge):
    e = edge(ONE + "proxy-read-timeout = 1s\nproxy-next-upstream = off\n")
    gate = threading.Event()
    e.U.play([gate, OK])
    clients = [e.client().send(GET) for _ in range(20)]
    until(lambda: len(e.U.requests) == 20, 5, "all requests")
    stalled(e, gate.set)
    assert [c.response().status for c in clients] == [200] * 20


def test_a_stall_blames_no_upstream_that_accepted(edge):
    """The accept queue has room again while the process stands still, and the kernel completes the connect."""
    e = edge(ONE.replace("$U", "$HOLE") + "proxy-connect-timeout = 4s\nproxy-next-upstream = off\n")
    c = e.client().send(GET)
    until(lambda: e.ramjet.admin_json("/admin/upstreams")["backends"][0]["endpoints"][0]["active"], 5, "the connect to begin")
    hole = e.HOLE.sock
    served = threading.Event()

    def serve():
        while not served.is_set():
            sock, _ = hole.accept()
            sock.settimeout(0.1)
            threading.Thread(target=answer, args=(sock,), daemon=True).start()

    def answer(sock):
        try:
            while not served.is_set():
                try:
                    if sock.recv(1000):
                        sock.sendall(OK)
                except TimeoutError:
                    continue
        finally:
            sock.close()

    def make_room():
        start = time.monotonic()
        threading.Thread(target=serve, daemon=True).start()
        until(lambda: time.monotonic() > start + 4.5, 10)
    stalled(e, make_room)
    try:
        assert c.response().status == 200
    finally:
        served.set()


def test_a_stall_blames_no_client_for_its_head(edge):
    e = edge("[ramjet]\nclient-header-timeout = 1s\n" + ONE)
    e.U.play(OK)
    clients = [e.client().send(GET[:20]) for _ in range(20)]
    until(lambda: not any(rx_queue(c.peer, c.name) for c in clients), 5, "the heads to be read so far")
    stalled(e, lambda: [c.send(GET[20:]) for c in clients])
    assert [c.response().status for c in clients] == [200] * 20


def test_a_stall_blames_no_client_for_its_body(edge):
    e = edge("[ramjet]\nclient-body-timeout = 1s\n" + ONE)
    e.U.play(OK)
    c = e.client().send(b"POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 10\r\n\r\nhello")
    until(lambda: e.U.requests, 5, "the head upstream")
    stalled(e, lambda: c.send(b"world"))
    assert c.response().status == 200
    assert e.U.request.body == b"helloworld"


def test_a_stall_ends_no_connection_whose_next_request_is_there(edge):
    e = edge("[ramjet]\nkeep-alive = 1s\n" + ONE)
    e.U.play(OK)
    clients = [e.client() for _ in range(20)]
    assert [c.get().status for c in clients] == [200] * 20
    stalled(e, lambda: [c.send(GET) for c in clients])
    assert [c.response().status for c in clients] == [200] * 20


# ---------------------------------------------------------------------------------------------------------------------------
# minimum rates: five seconds of grace, so the cases run side by side

RATES = "[ramjet]\nclient-body-min-rate = 2k\nsend-min-rate = 10k\nproxy-body-size = 0\n" + ONE


@pytest.mark.long
def test_minimum_rates(fresh):
    """A body of 10 octets a second gets 408 and an answer that is taken so slowly is cut, after the grace; faster ones pass, and what the
    upstream takes its time for is not the client's."""
    e = fresh(RATES)
    gate = threading.Event()
    big = noise(6 << 20)
    large = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(big) + big
    e.U.play_by_target({b"/stalls": [EARLY, gate, BODY, OK], b"/slow-reader": large, b"/good-reader": large,
                        b"/slow": [b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\na", lambda conn, req: conn.stop.wait(6.5), b"bc"]})
    post = "POST {} HTTP/1.1\r\nHost: a.test\r\nContent-Length: {}\r\n\r\n"
    got, start = {}, time.monotonic()

    def drip(name, target, octets, pause, total):
        c = e.client()
        c.send(post.format(target, total).encode())
        try:
            for _ in range(total // octets):
                if c.readable():
                    break
                c.send_lossy(b"x" * octets)
                time.sleep(pause)
            got[name] = (c.response().status, time.monotonic() - start)
        except (OSError, Eof) as error:
            got[name] = (repr(error), time.monotonic() - start)

    def stalls():
        c = e.client()
        c.send(post.format("/stalls", len(big)).encode())
        t = threading.Thread(target=c.send_lossy, args=(big,))
        t.start()
        time.sleep(6.5)
        gate.set()
        got["upstream stalls"] = (c.response().status, 0)
        t.join()

    def reads(name, octets, pause):
        """Reads for eight seconds, or until the access log says that it was cut."""
        c = e.client(rcvbuf=8192)
        c.send(f"GET /{name} HTTP/1.1\r\nHost: a.test\r\n\r\n".encode())
        got[name] = "went on"
        while time.monotonic() < start + 8 and got[name] == "went on":
            c.sock.recv(octets)
            time.sleep(pause)
            if any(x["path"] == f"/{name}" and x["error"] == "client timeout" for x in e.ramjet.log()):
                got[name] = "cut"

    def waits():
        c = e.client()
        c.send(GET.replace(b" / ", b" /slow "))
        got["slow upstream"] = (c.response().body, 0)

    jobs = [(drip, "slow body", "/", 1, 0.1, 1000), (drip, "good body", "/", 4000, 0.1, 280000), (stalls,), (reads, "slow-reader", 40, 0.1),
            (reads, "good-reader", 4096, 0.1), (waits,)]
    threads = [threading.Thread(target=job[0], args=job[1:]) for job in jobs]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert got["slow body"][0] == 408 and 4.5 < got["slow body"][1] < 12 * SLACK, got
    assert got["good body"][0] == 200, got
    assert got["upstream stalls"][0] == 200, got
    assert got["slow upstream"][0] == b"abc", got
    assert got["slow-reader"] == "cut", got
    assert got["good-reader"] == "went on", got
