"""101 and what follows it."""
import threading
import time

import pytest

from harness import CLOSE, GET, OK, ONE, noise, rx_queue, sha256, until

UPGRADE = (b"GET /ws HTTP/1.1\r\nHost: a.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
           b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n")
SWITCH = (b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n")


def echo(conn, _req):
    """Switches and sends back every octet; a FIN is answered by FIN."""
    conn.send(SWITCH)
    while conn.wire.buf or conn.wire.fill():
        conn.send(conn.wire.take(len(conn.wire.buf)))
    conn.fin()
    conn.over = True


def switch(e, client=UPGRADE, script=echo):
    c = e.client().send(client)
    e.U.play(script)
    r = c.response()
    assert (r.status, r.get(b"Upgrade"), r.get(b"Sec-WebSocket-Accept")) == (101, b"websocket", b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo=")
    assert b"upgrade" in r.get(b"Connection").lower()
    return c


def test_octets_both_ways(edge):
    e = edge(ONE)
    c = switch(e)
    q = e.U.request
    assert q.get(b"Upgrade") == b"websocket" and b"upgrade" in q.get(b"Connection").lower()
    assert q.get(b"Sec-WebSocket-Key") == b"dGhlIHNhbXBsZSBub25jZQ==" and q.get(b"X-Forwarded-For") == b"127.0.0.1"
    for data in (b"hello", b"\x00\xff" * 1000, b"GET /evil HTTP/1.1\r\n\r\n", b"x"):
        c.send(data)
        assert c.wire.exactly(len(data)) == data
    c.half_close()
    c.closed()
    assert len(e.U.requests) == 1


def test_octets_right_behind_the_upgrade(edge):
    """What the client sends with its request waits for the 101 and then goes through."""
    e = edge(ONE)
    c = switch(e, UPGRADE + b"early frame")
    assert c.wire.exactly(11) == b"early frame"


def test_octets_right_behind_the_101(edge):
    e = edge(ONE)

    def script(conn, _req):
        conn.send(SWITCH + b"greeting")
        conn.drain()
        conn.over = True
    c = switch(e, script=script)
    assert c.wire.exactly(8) == b"greeting"
    c.send(b"answer").half_close()
    until(lambda: e.U.conns[0].raw.endswith(b"answer"), 5, "the answer at the upstream")


def test_nothing_passes_before_the_101(edge):
    e = edge(ONE)
    held = threading.Event()
    c = e.client().send(UPGRADE + b"GET /evil HTTP/1.1\r\nHost: a.test\r\n\r\n")
    e.U.play([held, b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nno"], OK)
    until(lambda: e.U.requests, 5, "the request")
    until(lambda: not rx_queue(c.peer, c.name), 5, "the client's octets to be read")
    assert b"evil" not in e.U.conns[0].raw
    held.set()
    assert c.response().body == b"no"
    assert c.response().body == b"ok", "a refused upgrade leaves HTTP, and what follows is the next request"
    assert [q.target for q in e.U.requests] == [b"/ws", b"/evil"]


def test_half_close_of_the_client(edge):
    e = edge(ONE)
    fin = threading.Event()

    def script(conn, _req):
        conn.send(SWITCH)
        conn.drain()
        fin.set()
        conn.send(b"last words")
        conn.over = True
    c = switch(e, script=script)
    c.send(b"bye").half_close()
    assert fin.wait(5), "the FIN passes"
    assert c.wire.exactly(10) == b"last words"
    c.closed()


def test_half_close_of_the_upstream(edge):
    e = edge(ONE)

    def script(conn, _req):
        conn.send(SWITCH + b"bye")
        conn.fin()
        conn.drain()
        conn.over = True
    c = switch(e, script=script)
    assert c.rest() == b"bye"
    c.send(b"last words").half_close()
    until(lambda: e.U.conns[0].raw.endswith(b"last words"), 5, "the client's last words")
    until(lambda: not e.U.live(), 5, "the end of the tunnel")


def test_resets_pass(edge):
    e = edge(ONE)
    c = switch(e)
    c.reset()
    until(lambda: not e.U.live(), 5, "the upstream side to end")
    e.U.reset()

    def script(conn, _req):
        conn.send(SWITCH)
        until(lambda: not rx_queue(conn.sock.getpeername(), conn.sock.getsockname()), 5)
        conn.rst()
    c = switch(e, script=script)
    c.ended()


def test_megabytes_both_ways_at_once(edge):
    e = edge(ONE)
    up, down = noise(8 << 20, 1), noise(8 << 20, 2)

    def script(conn, _req):
        conn.send(SWITCH)
        t = threading.Thread(target=conn.send, args=(down,), daemon=True)
        t.start()
        conn.drain()
        t.join()
        conn.over = True
    c = switch(e, script=script)
    c.wire.keep = False

    def push():
        c.sock.sendall(up)
        c.half_close()
    t = threading.Thread(target=push, daemon=True)
    t.start()
    assert sha256(c.rest()) == sha256(down)
    t.join(5)
    until(lambda: not e.U.live(), 5, "the end of the tunnel")
    raw = e.U.conns[0].raw
    assert sha256(raw[raw.index(b"\r\n\r\n") + 4:]) == sha256(up)


@pytest.mark.parametrize("upstream, status, body", [
    (b"HTTP/1.1 401 No\r\nContent-Length: 4\r\n\r\nauth", 401, b"auth"),
    (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nauth\r\n0\r\n\r\n", 200, b"auth"),
    (b"HTTP/1.1 426 Upgrade Required\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nContent-Length: 0\r\n\r\n", 426, b""),
], ids=["401", "200", "426"])
def test_refused_upgrade_is_plain_http(edge, upstream, status, body):
    e = edge(ONE)
    (r,), c = e.talk(UPGRADE, (upstream, OK))
    assert (r.status, r.body) == (status, body)
    if (r.get(b"Connection") or b"").lower() == b"close":
        c.closed()
    else:
        assert c.get().body == b"ok"


@pytest.mark.parametrize("client", [GET, b"POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 5\r\n\r\nhello", b"GET / HTTP/1.0\r\nHost: a.test\r\n\r\n",
                                    b"GET / HTTP/1.1\r\nHost: a.test\r\nUpgrade: websocket\r\n\r\n",
                                    b"GET / HTTP/1.1\r\nHost: a.test\r\nConnection: Upgrade\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n"],
                         ids=["GET", "POST", "1.0", "Upgrade without Connection", "h2c"])
def test_101_without_a_request_for_it(edge, client):
    e = edge(ONE)
    r = e.one(client, [SWITCH + b"hello", CLOSE])
    assert r.status == 502
    until(lambda: not e.U.live(), 5, "the upstream connection to be closed")


@pytest.mark.parametrize("fields, why", [
    (b"Connection: Upgrade\r\nUpgrade: websocket\r\nContent-Length: 5\r\n", "a body"),
    (b"Connection: Upgrade\r\nUpgrade: websocket, h2c\r\n", "a list"),
], ids=["a body", "a list"])
def test_strange_upgrades_do_not_open_a_tunnel(edge, fields, why):
    e = edge(ONE)
    c = e.client().send(b"GET / HTTP/1.1\r\nHost: a.test\r\n" + fields + b"\r\n" + (b"hello" if b"Length" in fields else b""))
    e.U.play(OK)
    assert c.response().status in (200, 400), why
    for q in e.U.requests:
        assert b"h2c" not in (q.get(b"Upgrade") or b"")


def test_tunnel_outlives_the_request_timeouts(edge):
    """Traffic in either direction keeps a tunnel, silence of both does not keep it for ever."""
    e = edge("[ramjet]\nkeep-alive = 500ms\nclient-header-timeout = 500ms\nclient-body-timeout = 500ms\n" + ONE + "proxy-read-timeout = 1s\nproxy-send-timeout = 1s\n")
    c = switch(e)
    for _ in range(8):
        tick = time.monotonic() + 0.3
        until(lambda: time.monotonic() > tick, 2)
        c.send(b"ping")
        assert c.wire.exactly(4) == b"ping"
    c.ended(10)
    until(lambda: not e.U.live(), 5, "the end of the tunnel")


def test_tunnel_is_logged(edge):
    e = edge(ONE)
    c = switch(e)
    c.send(b"hello")
    assert c.wire.exactly(5) == b"hello"
    c.half_close()
    c.closed()
    line = e.log_line(lambda x: x["path"].startswith("/ws"))
    assert line["status"] == 101


def test_tunnels_leak_nothing(edge):
    e = edge(ONE)
    base = e.ramjet.fds()
    for _ in range(30):
        c = switch(e)
        c.send(b"x" * 1000)
        c.wire.exactly(1000)
        c.close()
    until(lambda: not e.U.live(), 5, "the tunnels to end")
    until(lambda: e.ramjet.fds() <= base + 2, 5, "the descriptors to be closed")
