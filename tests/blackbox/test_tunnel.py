"""101 and what follows it."""
import signal
import threading
import time

import pytest

from harness import CLOSE, GET, OK, ONE, SANITIZED, SLACK, keepalive_timer, mib, noise, rx_queue, sha256, until

UPGRADE = (b"GET /ws HTTP/1.1\r\nHost: a.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
           b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n")
SWITCH = (b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n")


def echo(conn, _req):
    """Switches and sends back every octet; a FIN is answered by FIN."""
    conn.send(SWITCH)
    echo_on(conn)


def echo_on(conn):
    while conn.wire.buf or conn.wire.fill():
        conn.send(conn.wire.take(len(conn.wire.buf)))
    conn.fin()
    conn.over = True


def sink(conn, _req):
    """Switches and reads until the end."""
    conn.send(SWITCH)
    conn.drain()
    conn.over = True


def quiet(seconds):
    """Lets time pass: silence is what these tests are about."""
    end = time.monotonic() + seconds
    until(lambda: time.monotonic() > end, seconds + 5, "time to pass")


def is_read(c):
    """Ramjet has read all that the client has sent."""
    return not rx_queue(c.peer, c.name)


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


@pytest.mark.parametrize("config, fields", [("keep-alive-requests = 1", b""), ("keep-alive = 0", b""), ("", b"Connection: close\r\n")], ids=["last request", "no keep-alive", "close"])
def test_octets_behind_an_upgrade_on_a_connection_that_ends(edge, config, fields):
    """No other request would be served on it; a tunnel is."""
    e = edge(f"[ramjet]\n{config}\n" + ONE)
    held = threading.Event()
    c = e.client().send(UPGRADE[:-2] + fields + b"\r\nearly ", b"frames")
    until(lambda: e.U.requests, 5, "the request")
    until(lambda: is_read(c), 5, "the client's octets to be read")
    e.U.play([held, echo])
    held.set()
    assert c.response().status == 101
    assert c.wire.exactly(12) == b"early frames"


def test_half_close_before_the_101(edge):
    e = edge(ONE)
    held = threading.Event()
    c = e.client().send(UPGRADE + b"question").half_close()
    e.U.play([held, echo])
    until(lambda: e.U.requests, 5, "the request")
    held.set()
    assert c.response().status == 101
    assert c.rest() == b"question"


def test_101_and_octets_in_single_octets(edge):
    e = edge(ONE)

    def script(conn, _req):
        for i in range(len(SWITCH)):
            conn.send(SWITCH[i:i + 1])
        conn.send(b"greeting")
        echo_on(conn)
    c = switch(e, script=script)
    assert c.wire.exactly(8) == b"greeting"
    c.send(b"answer")
    assert c.wire.exactly(6) == b"answer"


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


EARLY_REQUEST = UPGRADE + b"GET /evil HTTP/1.1\r\nHost: a.test\r\n\r\n"


@pytest.mark.parametrize("pieces", [(EARLY_REQUEST,), (UPGRADE, b"GET /evil HTTP/1.1\r\nHost: a.test\r\n\r\n")], ids=["with the request", "behind it"])
def test_nothing_passes_before_the_101(edge, pieces):
    """What was sent for a tunnel that did not come to be is dropped: it is neither passed nor read as a request."""
    e = edge(ONE)
    held = threading.Event()
    c = e.client().send(*pieces)
    e.U.play([held, b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nno"], OK)
    until(lambda: e.U.requests, 5, "the request")
    until(lambda: is_read(c), 5, "the client's octets to be read")
    assert b"evil" not in e.U.conns[0].raw
    held.set()
    r = c.response()
    assert (r.body, r.get(b"Connection")) == (b"no", b"close")
    c.closed()
    assert [q.target for q in e.U.requests] == [b"/ws"]


@pytest.mark.parametrize("config, status", [(ONE.replace("$U", "$DEAD"), 502), (ONE.replace("host = a.test", "host = b.test"), 404)], ids=["502", "404"])
def test_our_own_refusal_of_an_upgrade_ends_the_connection(edge, config, status):
    e = edge(config)
    c = e.client().send(EARLY_REQUEST)
    r = c.response()
    assert (r.status, r.get(b"Connection")) == (status, b"close")
    c.closed()


def test_much_behind_the_upgrade_is_held_within_bounds(fresh):
    """64 MiB before the 101: held back by TCP, and passed on whole after it."""
    e = fresh(ONE)
    data, held = noise(64 << 20, 3), threading.Event()
    before = e.ramjet.rss()
    c = e.client().send(UPGRADE)
    pusher = threading.Thread(target=lambda: (c.sock.sendall(data), c.half_close()), daemon=True)
    c.sock.settimeout(60 * SLACK)
    pusher.start()
    e.U.play([held, sink])
    until(lambda: rx_queue(c.peer, c.name), 5, "ramjet to stop reading")
    assert e.ramjet.rss() < before + mib(8)
    held.set()
    pusher.join(60 * SLACK)
    until(lambda: not e.U.live(), 30, "the end of the tunnel")
    raw = e.U.conns[0].raw
    assert sha256(raw[raw.index(b"\r\n\r\n") + 4:]) == sha256(data)


def test_octets_behind_the_101_of_an_endpoint_with_large_answers(edge):
    """The next answer is then fetched by another way of receiving."""
    e = edge(ONE)
    body = noise(300000)
    e.U.play(b"HTTP/1.1 200 OK\r\nContent-Length: 300000\r\n\r\n" + body, lambda conn, req: (conn.send(SWITCH + b"greeting"), echo_on(conn)))
    c = e.client()
    assert c.get().body == body
    c.send(UPGRADE)
    assert c.response().status == 101
    assert c.wire.exactly(8) == b"greeting"
    c.send(b"answer")
    assert c.wire.exactly(6) == b"answer"
    c.half_close()
    c.closed()


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


def test_half_closed_tunnel_ends_after_a_grace(edge):
    """The other direction goes on as long as something comes, and ends when nothing does."""
    e = edge(ONE + "proxy-tunnel-timeout = 1s\n")

    def script(conn, _req):
        conn.send(SWITCH)
        conn.drain()
        for _ in range(4):
            quiet(0.5)
            conn.send(b"tick")
        conn.stop.wait(20)
    c = switch(e, script=script)
    c.half_close()
    start = time.monotonic()
    assert c.wire.exactly(16) == b"tick" * 4
    assert c.rest() == b""
    assert time.monotonic() - start > 2.5
    line = e.log_line(lambda x: x["path"] == "/ws")
    assert (line["status"], line["error"], line["bytes_out"]) == (101, "tunnel timeout", 16)


def test_reset_of_the_client_passes(edge):
    e = edge(ONE)
    c = switch(e, script=sink)
    c.send(b"last words")
    until(lambda: e.U.conns[0].raw.endswith(b"last words"), 5, "the last words")
    c.reset()
    until(lambda: not e.U.live(), 5, "the upstream side to end")
    assert e.U.conns[0].ended == "rst"
    assert e.log_line(lambda x: x["path"] == "/ws")["error"] == "client closed"


def test_reset_of_the_client_after_its_half_close_passes(edge):
    """Both ends are told: one by FIN, then by RST, as the upstream goes on sending to nobody."""
    e = edge(ONE)
    fin = threading.Event()
    errors = []

    def script(conn, _req):
        conn.send(SWITCH)
        conn.drain()
        fin.set()
        try:
            for _ in range(2000):
                conn.send(b"x" * 1000)
                quiet(0.005)
        except OSError as why:
            errors.append(type(why))
        conn.over = True
    c = switch(e, script=script)
    c.half_close()
    assert fin.wait(5)
    c.reset()
    until(lambda: errors, 8, "the upstream to be told")
    assert errors[0] in (ConnectionResetError, BrokenPipeError)
    assert e.log_line(lambda x: x["path"] == "/ws")["error"] == "client closed"


def test_reset_of_the_upstream_passes(edge):
    e = edge(ONE)
    go = threading.Event()

    def script(conn, _req):
        conn.send(SWITCH + b"last words")
        go.wait(5)
        conn.rst()
    c = switch(e, script=script)
    assert c.wire.exactly(10) == b"last words"
    go.set()
    with pytest.raises(ConnectionResetError):
        c.rest()
    assert e.log_line(lambda x: x["path"] == "/ws")["error"] == "upstream closed"


def test_octets_before_a_reset_pass(edge):
    """The upstream says something and closes with octets of the client unread, which is a reset."""
    e = edge(ONE)
    go = threading.Event()

    def script(conn, _req):
        conn.send(SWITCH)
        go.wait(5)
        conn.send(b"last words")
        conn.over = True
    c = switch(e, script=script)
    c.send(b"unread")
    until(lambda: rx_queue(e.U.conns[0].sock.getsockname(), e.U.conns[0].sock.getpeername()), 5, "octets that the upstream does not read")
    go.set()
    with pytest.raises(ConnectionResetError):
        c.rest()
    assert c.wire.raw.endswith(b"last words")


def test_upstream_that_is_gone_altogether(edge):
    """It has sent FIN, which passes as a half-close; what the client still sends is answered by a reset, and that passes too."""
    e = edge(ONE)

    def script(conn, _req):
        conn.send(SWITCH + b"bye")
        conn.over = True
    c = switch(e, script=script)
    assert c.rest() == b"bye"
    until(lambda: not e.U.live(), 5, "the upstream to close")

    def is_told():
        try:
            c.sock.sendall(b"is anybody there?")
            quiet(0.02)
            return False
        except (ConnectionResetError, BrokenPipeError):
            return True
    until(is_told, 5, "a reset")


def both_ways(e, size, read_at_once):
    """Both ends send size octets at once. Returns the client, its thread, and an event that lets both read."""
    up, down = noise(size, 1), noise(size, 2)
    read = threading.Event()
    if read_at_once:
        read.set()

    def script(conn, _req):
        conn.send(SWITCH)
        t = threading.Thread(target=conn.send, args=(down,), daemon=True)
        t.start()
        read.wait(30)
        conn.drain()
        t.join()
        conn.over = True
    c = switch(e, script=script)
    c.wire.keep = False
    c.sock.settimeout(60 * SLACK)
    t = threading.Thread(target=lambda: (c.sock.sendall(up), c.half_close()), daemon=True)
    t.start()
    return c, t, read, sha256(up), sha256(down)


@pytest.mark.parametrize("full", [False, True], ids=["read at once", "full buffers first"])
def test_64_megabytes_both_ways_at_once(fresh, full):
    """No deadlock, also when every buffer of both directions is full before anybody reads; memory stays bounded."""
    e = fresh("[ramjet]\nsend-timeout = 60s\n" + ONE)
    before = e.ramjet.rss()
    c, t, read, up, down = both_ways(e, 64 << 20, not full)
    if full:
        until(lambda: rx_queue(c.peer, c.name), 10, "ramjet to stop reading the client")
        conn = e.U.conns[0].sock
        until(lambda: rx_queue(conn.getpeername(), conn.getsockname()), 10, "ramjet to stop reading the upstream")
        assert e.ramjet.rss() < before + mib(8)
        read.set()
    assert sha256(c.rest()) == down
    t.join(5)
    until(lambda: not e.U.live(), 10, "the end of the tunnel")
    raw = e.U.conns[0].raw
    assert sha256(raw[raw.index(b"\r\n\r\n") + 4:]) == up
    assert e.ramjet.rss() < before + mib(8)
    line = e.log_line(lambda x: x["path"] == "/ws")
    assert (line["bytes_in"], line["bytes_out"], line["error"]) == (64 << 20, 64 << 20, "")


@pytest.mark.parametrize("side", ["client", "upstream"])
def test_peer_that_does_not_read_is_cut(edge, side):
    """No octet taken for send-timeout (proxy-send-timeout): the tunnel ends, however long it may be idle."""
    e = edge("[ramjet]\nsend-timeout = 1s\n" + ONE + "proxy-send-timeout = 1s\nproxy-tunnel-timeout = 1h\n")
    flood, ends = noise(1 << 20) * 32, []

    def push(send):
        try:
            send(flood)
        except OSError as why:
            ends.append(why)

    def script(conn, _req):
        conn.send(SWITCH)
        if side == "client":
            push(conn.send)
        else:
            conn.stop.wait(20)
        conn.over = True
    c = switch(e, script=script)
    if side == "upstream":
        push(c.sock.sendall)
    until(lambda: ends, 10, "the sender to be told")
    assert isinstance(ends[0], (ConnectionResetError, BrokenPipeError)), ends
    line = e.log_line(lambda x: x["path"] == "/ws")
    assert line["error"] == ("client timeout" if side == "client" else "send timeout")


@pytest.mark.long
def test_peer_that_reads_slowly_is_not_cut(edge):
    """Progress counts: 8 MiB taken in pieces over longer than send-timeout."""
    e = edge("[ramjet]\nsend-timeout = 2s\n" + ONE + "proxy-tunnel-timeout = 2s\n")
    data = noise(8 << 20)

    def script(conn, _req):
        conn.send(SWITCH + data)
        conn.fin()
        conn.drain()
        conn.over = True
    c = switch(e, script=script)
    got = bytearray(c.wire.take(len(c.wire.buf)))
    for _ in range(16):
        quiet(0.3)
        got += c.wire.exactly(400000)
    got += c.rest()
    assert sha256(bytes(got)) == sha256(data)


@pytest.mark.parametrize("upstream, status, body", [
    (b"HTTP/1.1 401 No\r\nContent-Length: 4\r\n\r\nauth", 401, b"auth"),
    (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nauth\r\n0\r\n\r\n", 200, b"auth"),
    (b"HTTP/1.1 426 Upgrade Required\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nContent-Length: 0\r\n\r\n", 426, b""),
], ids=["401", "200", "426"])
def test_refused_upgrade_is_plain_http(edge, upstream, status, body):
    e = edge(ONE)
    (r,), c = e.talk(UPGRADE, (upstream, OK))
    assert (r.status, r.body) == (status, body)
    assert (r.get(b"Upgrade"), r.get(b"Connection")) == ((b"websocket", b"upgrade") if status == 426 else (None, None))
    assert c.get("/next").body == b"ok", "the connection lives on"
    assert [q.target for q in e.U.requests] == [b"/ws", b"/next"]
    e.U.play(echo)
    c.send(UPGRADE)
    assert c.response().status == 101, "and may be switched later"


WS = b"Connection: Upgrade\r\nUpgrade: websocket\r\n"
NO_UPGRADE = {
    "none": GET,
    "POST": b"POST / HTTP/1.1\r\nHost: a.test\r\n" + WS + b"\r\n",
    "PUT": b"PUT / HTTP/1.1\r\nHost: a.test\r\n" + WS + b"Content-Length: 0\r\n\r\n",
    "HEAD": b"HEAD / HTTP/1.1\r\nHost: a.test\r\n" + WS + b"\r\n",
    "1.0": b"GET / HTTP/1.0\r\nHost: a.test\r\n" + WS + b"\r\n",
    "content-length": b"GET / HTTP/1.1\r\nHost: a.test\r\n" + WS + b"Content-Length: 5\r\n\r\nhello",
    "chunked": b"GET / HTTP/1.1\r\nHost: a.test\r\n" + WS + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    "no connection": b"GET / HTTP/1.1\r\nHost: a.test\r\nUpgrade: websocket\r\n\r\n",
    "connection without upgrade": b"GET / HTTP/1.1\r\nHost: a.test\r\nConnection: keep-alive\r\nUpgrade: websocket\r\n\r\n",
    "connection that looks like it": b"GET / HTTP/1.1\r\nHost: a.test\r\nConnection: upgraded, xupgrade\r\nUpgrade: websocket\r\n\r\n",
    "no Upgrade": b"GET / HTTP/1.1\r\nHost: a.test\r\nConnection: Upgrade\r\n\r\n",
    "h2c": b"GET / HTTP/1.1\r\nHost: a.test\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n",
    "TLS": b"GET / HTTP/1.1\r\nHost: a.test\r\nConnection: Upgrade\r\nUpgrade: TLS/1.2\r\n\r\n",
    "tcp": b"GET / HTTP/1.1\r\nHost: a.test\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n",
    "a list": b"GET / HTTP/1.1\r\nHost: a.test\r\nConnection: Upgrade\r\nUpgrade: websocket, h2c\r\n\r\n",
    "a list, h2c first": b"GET / HTTP/1.1\r\nHost: a.test\r\nConnection: Upgrade\r\nUpgrade: h2c, websocket\r\n\r\n",
    "two lines": b"GET / HTTP/1.1\r\nHost: a.test\r\nUpgrade: h2c\r\n" + WS + b"\r\n",
    "twice": b"GET / HTTP/1.1\r\nHost: a.test\r\nUpgrade: websocket\r\n" + WS + b"\r\n",
    "a version": b"GET / HTTP/1.1\r\nHost: a.test\r\nConnection: Upgrade\r\nUpgrade: websocket/13\r\n\r\n",
    "empty": b"GET / HTTP/1.1\r\nHost: a.test\r\nConnection: Upgrade\r\nUpgrade: \r\n\r\n",
    "quoted": b"GET / HTTP/1.1\r\nHost: a.test\r\nConnection: Upgrade\r\nUpgrade: \"websocket\"\r\n\r\n",
}


@pytest.mark.parametrize("client", NO_UPGRADE.values(), ids=NO_UPGRADE)
def test_upgrade_that_is_not_passed_on(edge, client):
    """The request passes without the Upgrade, and a 101 to it is refused."""
    e = edge(ONE)
    method = client.split(b" ")[0].decode()
    r = e.one(client, OK if method != "HEAD" else b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n", method)
    q = e.U.request
    assert r.status == 200
    assert not q.get(b"Upgrade") and not q.get(b"HTTP2-Settings") and b"upgrade" not in (q.get(b"Connection") or b"").lower()
    e.U.reset()
    r = e.one(client, [SWITCH + b"hello", CLOSE], method)
    assert r.status == 502
    until(lambda: not e.U.live(), 5, "the upstream connection to be closed")


BAD_101 = {
    "1.0": SWITCH.replace(b"HTTP/1.1", b"HTTP/1.0"),
    "no Upgrade": SWITCH.replace(b"Upgrade: websocket\r\n", b""),
    "no Connection": SWITCH.replace(b"Connection: Upgrade\r\n", b""),
    "Connection without upgrade": SWITCH.replace(b"Connection: Upgrade", b"Connection: keep-alive"),
    "Connection that looks like it": SWITCH.replace(b"Connection: Upgrade", b"Connection: upgraded"),
    "h2c": SWITCH.replace(b"Upgrade: websocket", b"Upgrade: h2c"),
    "a list": SWITCH.replace(b"Upgrade: websocket", b"Upgrade: websocket, h2c"),
    "a version": SWITCH.replace(b"Upgrade: websocket", b"Upgrade: websocket/13"),
    "two lines": SWITCH.replace(b"Upgrade: websocket", b"Upgrade: h2c\r\nUpgrade: websocket"),
    "Content-Length": SWITCH.replace(b"\r\n\r\n", b"\r\nContent-Length: 5\r\n\r\n"),
    "Content-Length 0": SWITCH.replace(b"\r\n\r\n", b"\r\nContent-Length: 0\r\n\r\n"),
    "Content-Length first": SWITCH.replace(b"Connection:", b"Content-Length: 5\r\nConnection:"),
    "chunked": SWITCH.replace(b"\r\n\r\n", b"\r\nTransfer-Encoding: chunked\r\n\r\n"),
    "gzip": SWITCH.replace(b"\r\n\r\n", b"\r\nTransfer-Encoding: gzip\r\n\r\n"),
}


@pytest.mark.parametrize("answer", BAD_101.values(), ids=BAD_101)
def test_101_that_is_not_valid(edge, answer):
    """502, nothing of it passes, and the client's early octets do not either."""
    e = edge(ONE)
    c = e.client().send(UPGRADE + b"early")
    e.U.play([answer + b"hello", CLOSE])
    r = c.response()
    assert r.status == 502 and b"hello" not in r.body
    c.closed()
    until(lambda: not e.U.live(), 5, "the upstream connection to be closed")
    assert b"early" not in e.U.conns[0].raw


def test_websocket_fields_pass_unchanged(edge):
    e = edge(ONE)
    sent = [(b"Sec-WebSocket-Key", b"not base64 ~ at all"), (b"Sec-WebSocket-Protocol", b"chat, v2.chat"), (b"Sec-WebSocket-Protocol", b"x"),
            (b"Sec-WebSocket-Extensions", b"permessage-deflate; client_max_window_bits=10, x; a=\"b\""), (b"Sec-WebSocket-Version", b"13"), (b"Origin", b"http://b.test")]
    back = [(b"Sec-WebSocket-Accept", b"of another key"), (b"Sec-WebSocket-Protocol", b"chat"), (b"Sec-WebSocket-Extensions", b"permessage-deflate"),
            (b"Set-Cookie", b"a=1"), (b"Set-Cookie", b"b=2")]

    def lines(fields):
        return b"".join(b"%s: %s\r\n" % f for f in fields)
    c = e.client().send(b"GET /ws?a=b HTTP/1.1\r\nHost: a.test\r\n" + WS + lines(sent) + b"\r\n")
    e.U.play([b"HTTP/1.1 101 Web Socket Protocol Handshake\r\n" + WS + lines(back) + b"\r\n", CLOSE])
    r = c.response()
    assert [f for f in e.U.request.fields if f in sent] == sent
    assert r.status == 101 and [f for f in r.fields if f in back] == back


@pytest.mark.parametrize("who", ["echo", "client", "upstream"])
def test_tunnel_outlives_the_request_timeouts(edge, who):
    """Silence longer than every timeout of requests does no harm; traffic in either direction keeps the tunnel, silence of both ends it."""
    e = edge("[ramjet]\nkeep-alive = 300ms\nclient-header-timeout = 300ms\nclient-body-timeout = 300ms\nsend-timeout = 300ms\n" + ONE +
             "proxy-read-timeout = 300ms\nproxy-send-timeout = 300ms\nproxy-tunnel-timeout = 1500ms\n")

    def ticks(conn, _req):
        conn.send(SWITCH)
        for _ in range(4):
            quiet(0.8)
            conn.send(b"tick")
        conn.drain()
        conn.over = True
    c = switch(e, script={"echo": echo, "client": sink, "upstream": ticks}[who])
    for _ in range(4):
        quiet(0.8)
        if who != "upstream":
            c.send(b"tick")
        if who != "client":
            assert c.wire.exactly(4) == b"tick"
    start = time.monotonic()
    c.closed()
    assert time.monotonic() - start > 1.2
    until(lambda: not e.U.live(), 5, "the end of the tunnel")
    if who == "client":
        assert e.U.conns[0].raw.endswith(b"tick" * 4)
    line = e.log_line(lambda x: x["path"] == "/ws")
    assert (line["status"], line["error"]) == (101, "tunnel timeout")
    assert (line["bytes_in"], line["bytes_out"]) == (0 if who == "upstream" else 16, 0 if who == "client" else 16)


def test_tunnel_is_idle_for_long_by_default(edge):
    """Without proxy-tunnel-timeout it is an hour at least, whatever the timeouts of requests say."""
    e = edge("[ramjet]\nkeep-alive = 300ms\nclient-header-timeout = 300ms\nsend-timeout = 300ms\n" + ONE + "proxy-read-timeout = 300ms\nproxy-send-timeout = 300ms\n")
    c = switch(e)
    quiet(1.5)
    c.send(b"hello")
    assert c.wire.exactly(5) == b"hello"


def test_both_peers_of_a_silent_tunnel_are_probed(edge):
    """A peer that is gone without a word is missed within minutes: the kernel's keepalive timer runs on both sides."""
    e = edge(ONE)
    c = switch(e)
    upstream = e.U.conns[0].sock
    for local, remote in ((c.peer, c.name), (upstream.getpeername(), upstream.getsockname())):
        assert 60 < until(lambda: keepalive_timer(local, remote), 5, "a keepalive timer") <= 121


def test_tunnel_is_logged_and_counted(fresh):
    e = fresh(ONE)
    c = switch(e)
    c.send(b"hello")
    assert c.wire.exactly(5) == b"hello"
    assert e.ramjet.metric("ramjet_tunnels") == 1
    assert e.ramjet.metric("ramjet_connections", side="client", state="active") == 1
    assert e.ramjet.metric("ramjet_connections", side="upstream", state="active") == 1
    quiet(1.1)
    c.send(b"wide").half_close()
    assert c.rest() == b"wide"
    line = e.log_line(lambda x: x["path"] == "/ws")
    assert (line["status"], line["method"], line["bytes_in"], line["bytes_out"], line["error"]) == (101, "GET", 9, 9, "")
    assert line["duration_ms"] > 1000
    assert e.ramjet.metric("ramjet_tunnels") == 0 and e.ramjet.metric("ramjet_tunnels_total") == 1
    assert e.ramjet.metric("ramjet_requests_total", route="r") == 1
    assert e.ramjet.metric("ramjet_request_duration_seconds_sum") < 1, "the time until the 101: a tunnel's life is no answer time"


def test_drain_cuts_tunnels_at_its_deadline(fresh):
    """Not earlier: until then they carry octets, idle or not; each is logged, and the process ends well."""
    e = fresh("[ramjet]\nworker-shutdown-timeout = 2s\n" + ONE, workers=2)
    tunnels = [switch(e) for _ in range(10)]
    deaf = switch(e, script=sink)
    start = time.monotonic()
    e.ramjet.signal(signal.SIGTERM)
    until(lambda: "drain" in e.ramjet.stderr().lower() or "sigterm" in e.ramjet.stderr().lower(), 5, "the drain to be logged")
    while time.monotonic() - start < 1.2:
        for c in tunnels[:5]:
            c.send(b"still here")
            assert c.wire.exactly(10) == b"still here"
    for c in tunnels:
        c.closed()
    deaf.closed()
    assert time.monotonic() - start > 1.8
    assert e.ramjet.wait() == 0
    assert time.monotonic() - start < 2 + 3 * SLACK
    lines = [line for line in e.ramjet.log() if line["path"] == "/ws"]
    assert len(lines) == 11 and all((line["status"], line["error"]) == (101, "shutdown") for line in lines)
    assert sum(line["bytes_in"] == line["bytes_out"] >= 10 for line in lines) == 5


def test_drain_ends_with_the_last_tunnel(fresh):
    e = fresh(ONE)
    c = switch(e)
    e.ramjet.signal(signal.SIGTERM)
    c.send(b"bye").half_close()
    assert c.rest() == b"bye"
    assert e.ramjet.wait() == 0


def test_many_tunnels_at_once(edge):
    e = edge(ONE, workers=2)
    n = 100 if SANITIZED else 200
    tunnels = [switch(e) for _ in range(n)]
    for round_ in range(3):
        for i, c in enumerate(tunnels):
            c.send(b"%d of %d;" % (i, round_) * 50)
    for i, c in enumerate(tunnels):
        want = b"".join(b"%d of %d;" % (i, round_) * 50 for round_ in range(3))
        assert c.wire.exactly(len(want)) == want
        c.half_close()
    for c in tunnels:
        c.closed()


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
