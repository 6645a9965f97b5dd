"""Large bodies both ways, and what a slow side costs."""
import hashlib
import threading
import time

import pytest

from harness import CLOSE, EARLY, GET, HOLD, ONE, mib, noise, sha256, until

UNLIMITED = ONE + "proxy-body-size = 0\n"
SIZES = [1 << 20, 10 << 20]
FORMS = ["counted", "chunked", "to the close"]


def frame(body, form):
    """(fields, octets) of a body in one of the forms; the chunks are of many sizes."""
    if form == "counted":
        return b"Content-Length: %d\r\n" % len(body), body
    if form == "to the close":
        return b"", body
    out, at, size = bytearray(), 0, 1
    while at < len(body):
        part = body[at:at + size]
        out += b"%x\r\n" % len(part) + part + b"\r\n"
        at, size = at + size, size * 3 % 200_003 + 1
    return b"Transfer-Encoding: chunked\r\n", bytes(out) + b"0\r\n\r\n"


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("version", [b"1.1", b"1.0"])
def test_download(edge, size, form, version):
    e = edge(UNLIMITED)
    body = noise(size)
    fields, octets = frame(body, form)
    c = e.client()
    c.wire.keep = False
    c.send(b"GET / HTTP/%s\r\nHost: a.test\r\n\r\n" % version)
    e.U.play([b"HTTP/1.1 200 OK\r\n" + fields + b"\r\n", octets] + ([CLOSE] if form == "to the close" else []))
    r = c.response()
    assert (r.status, len(r.body), sha256(r.body)) == (200, size, sha256(body))
    assert r.framing == (size if form == "counted" else "chunked" if version == b"1.1" else None)
    if version == b"1.0":
        c.closed()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("form", FORMS[:2])
def test_upload(edge, size, form):
    e = edge(UNLIMITED)
    body = noise(size)
    fields, octets = frame(body, form)
    c = e.client().send(b"POST / HTTP/1.1\r\nHost: a.test\r\n" + fields + b"\r\n")
    e.U.play(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
    c.sock.sendall(octets)
    assert c.response("POST").status == 200
    q = e.U.request
    assert (len(q.body), sha256(q.body)) == (size, sha256(body))
    assert q.framing == (size if form == "counted" else "chunked")


@pytest.mark.parametrize("form", FORMS[:2])
def test_both_ways_at_once(edge, form):
    """The upstream echoes while it reads: neither direction waits for the other."""
    e = edge(UNLIMITED)
    body = noise(4 << 20)
    fields, octets = frame(body, form)
    c = e.client()

    def echo(conn, req):
        conn.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        conn.body(req, lambda data: conn.send(b"%x\r\n%s\r\n" % (len(data), data)))
        conn.send(b"0\r\n\r\n")
    e.U.play(echo)
    t = threading.Thread(target=c.sock.sendall, args=(b"POST / HTTP/1.1\r\nHost: a.test\r\n" + fields + b"\r\n" + octets,), daemon=True)
    t.start()
    assert sha256(c.response("POST").body) == sha256(body)
    t.join(5)


def test_twenty_downloads_at_once(edge):
    e = edge(UNLIMITED)
    body = noise(1 << 20)
    clients = [e.client().send(GET) for _ in range(20)]
    e.U.play([b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body), body])
    results = []

    def read(c):
        results.append(sha256(c.response().body))
    threads = [threading.Thread(target=read, args=(c,)) for c in clients]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert results == [sha256(body)] * 20


def endless(conn, _req):
    conn.send(b"HTTP/1.1 200 OK\r\nContent-Length: 10000000000\r\n\r\n")
    try:
        while True:
            conn.sent = getattr(conn, "sent", 0) + conn.sock.send(bytes(65536))
    except OSError:
        conn.over = True


def steady(read, what, times=20):
    """Waits until read() gives the same value for a while."""
    last, since = read(), time.monotonic()

    def same():
        nonlocal last, since
        value = read()
        if value != last:
            last, since = value, time.monotonic()
        return time.monotonic() - since > times * 0.01
    until(same, 10, what)
    return last


def test_slow_readers_cost_little(edge):
    """40 clients that do not read a 10 GB answer: the upstream is held back, and ramjet holds at most 64 KiB for each."""
    e = edge(UNLIMITED)
    e.get("/none", "none.test")
    before = e.ramjet.rss()
    clients = [e.client(rcvbuf=4096) for _ in range(40)]
    for c in clients:
        c.send(GET)
    e.U.play(endless)
    until(lambda: len(e.U.conns) == 40, 5, "40 exchanges")
    steady(lambda: sum(getattr(c, "sent", 0) for c in e.U.conns), "the upstream to be held back")
    grown = e.ramjet.rss() - before
    assert grown < mib(40 / 16 + 2), f"{grown} octets for 40 slow readers"
    assert e.get("/", "none.test").status == 404, "others are served"
    for c in clients:
        c.close()
    until(lambda: not e.U.live(), 10, "the exchanges to end")


def test_slow_upstreams_cost_little(edge):
    """40 uploads to an upstream that does not read."""
    e = edge(UNLIMITED)
    stop = threading.Event()
    before = e.ramjet.rss()
    sent = [0] * 40
    clients = [e.client() for _ in range(40)]
    e.U.play([EARLY, stop, HOLD])

    def push(i, c):
        try:
            c.send(b"POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 10000000000\r\n\r\n")
            while not stop.is_set():
                sent[i] += c.sock.send(bytes(65536))
        except OSError:
            pass
    threads = [threading.Thread(target=push, args=(i, c), daemon=True) for i, c in enumerate(clients)]
    for t in threads:
        t.start()
    until(lambda: len(e.U.requests) == 40, 10, "40 exchanges")
    steady(lambda: sum(sent), "the clients to be held back")
    grown = e.ramjet.rss() - before
    assert grown < mib(40 / 16 + 2), f"{grown} octets for 40 slow uploads"
    stop.set()
    for c in clients:
        c.reset()
    for t in threads:
        t.join(5)
    until(lambda: not e.U.live(), 10, "the exchanges to end")


def test_slow_reader_gets_everything(edge):
    e = edge(UNLIMITED)
    body = noise(3 << 20)
    c = e.client(rcvbuf=4096).send(GET)
    e.U.play([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", frame(body, "chunked")[1]])
    steady(lambda: len(e.U.conns), "the answer to begin", 5)
    assert sha256(c.response().body) == sha256(body)


def test_request_buffering(edge):
    """With proxy-request-buffering the upstream sees nothing before the whole body is there."""
    e = edge(ONE + "proxy-request-buffering = on\n")
    c = e.client().send(b"POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 10\r\n\r\n", b"hello")
    e.U.play(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
    steady(lambda: len(e.U.conns), "nothing to happen", 10)
    assert not e.U.requests
    c.send(b"world")
    assert c.response("POST").status == 200
    assert e.U.request.body == b"helloworld"


@pytest.mark.parametrize("size", [1, 60_000, 200_000, 1 << 20])
@pytest.mark.parametrize("form", FORMS[:2])
def test_request_buffering_of_large_bodies(edge, size, form):
    e = edge(ONE + "proxy-request-buffering = on\n")
    body = noise(size)
    fields, octets = frame(body, form)
    c = e.client().send(b"POST / HTTP/1.1\r\nHost: a.test\r\n" + fields + b"\r\n" + octets)
    e.U.play(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
    assert c.response("POST").status == 200
    assert sha256(e.U.request.body) == sha256(body)


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_download_of_a_gigabyte(fresh, form):
    e = fresh(UNLIMITED, keep=False)
    block = noise(1 << 20)
    want = hashlib.sha256()
    for _ in range(1024):
        want.update(block)
    c = e.client()
    c.wire.keep = False
    c.send(GET)

    def answer(conn, _req):
        conn.send(b"HTTP/1.1 200 OK\r\n" + {"counted": b"Content-Length: %d\r\n" % (1 << 30), "chunked": b"Transfer-Encoding: chunked\r\n", "to the close": b""}[form] + b"\r\n")
        for _ in range(1024):
            conn.send(b"100000\r\n" + block + b"\r\n" if form == "chunked" else block)
        if form == "chunked":
            conn.send(b"0\r\n\r\n")
        if form == "to the close":
            conn.play(_req, [EARLY, CLOSE])
    e.U.play(answer)
    got = hashlib.sha256()
    r = c.response(sink=got.update)
    assert r.complete and got.hexdigest() == want.hexdigest()
    assert e.ramjet.status_kb("VmHWM") * 1024 < mib(32)


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS[:2])
def test_upload_of_a_gigabyte(fresh, form):
    e = fresh(UNLIMITED, keep=False)
    block = noise(1 << 20)
    want, got = hashlib.sha256(), hashlib.sha256()
    c = e.client().send(b"POST / HTTP/1.1\r\nHost: a.test\r\n" + (b"Content-Length: %d\r\n" % (1 << 30) if form == "counted" else b"Transfer-Encoding: chunked\r\n") + b"\r\n")

    def take(conn, req):
        conn.body(req, got.update)
        conn.play(req, [EARLY, b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"])
    e.U.play(take)
    for _ in range(1024):
        want.update(block)
        c.sock.sendall(b"100000\r\n" + block + b"\r\n" if form == "chunked" else block)
    if form == "chunked":
        c.sock.sendall(b"0\r\n\r\n")
    assert c.response("POST").status == 200
    assert got.hexdigest() == want.hexdigest()
    assert e.ramjet.status_kb("VmHWM") * 1024 < mib(32)
