"""Cases that broke other proxies in public, restated: each is a sample of a kind, and its variants are here too. The name of a test begins
with the id of its case; tests/CASES.md lists all of them, and what is in ../cluster/test_cases.py.

After each of them: ramjet is alive, a clean request on a new connection is answered, and no descriptor is left over.
"""
import os
import random
import re
import signal
import socket
import threading
import time

import pytest

from test_proxy_protocol import ON, UNIX, V1, v2
from harness import (ABRUPT, BODY, CLOSE, DEAF, EARLY, GET, HOLD, OK, ONE, RST, SLACK, Client, Eof, Upstream, noise, rx_queue, sha256, stopped, until)

CLEAN = b"GET /clean HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n"
EVIL = b"GET /evil HTTP/1.1\r\nHost: a.test\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 5\r\n\r\nhello"


def descriptors(pid):
    """What the process has open; the few pipes that ramjet keeps for the next splice are not counted."""
    links = []
    for name in os.listdir(f"/proc/{pid}/fd"):
        try:
            links.append(os.readlink(f"/proc/{pid}/fd/{name}"))
        except OSError:
            pass
    return len([x for x in links if not x.startswith("pipe:")])


def check_after(e, before):
    """The general checks of every case."""
    e.settle()
    for peer in e.peers.values():
        if isinstance(peer, Upstream):
            peer.play(OK)
    with Client(e.ramjet.port) as c:
        r = c.send((V1 if "use-proxy-protocol = true" in e.template else b"") + CLEAN).response()
        assert r.status in (200, 404), f"after the case: {r}"
        c.closed()
    e.settle()
    until(lambda: descriptors(e.ramjet.pid) <= before, 10, f"{descriptors(e.ramjet.pid)} descriptors to become {before}")


@pytest.fixture
def case(edge):
    used = {}

    def get(template=ONE, args=(), workers=1):
        e = edge(template, args, workers)
        if e not in used:
            e.settle()
            until(lambda: not e.idle(), 5, "the pools to be empty")
            used[e] = descriptors(e.ramjet.pid)
        return e
    yield get
    for e, before in used.items():
        check_after(e, before)


def answer(body, fields=b""):
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n%s\r\n%s" % (len(body), fields, body)


def is_close(r):
    return b"close" in (r.get(b"Connection") or b"").lower()


def was_read(conn, _req=None):
    """Waits until ramjet has read all that the upstream sent."""
    local, remote = conn.sock.getpeername(), conn.sock.getsockname()
    until(lambda: not rx_queue(local, remote), 5, "what the upstream sent to be read")


def pass_time(seconds):
    """For inputs that are made of time."""
    end = time.monotonic() + seconds
    until(lambda: time.monotonic() >= end, seconds + 5)


def refuse(e, octets, half=False):
    """The octets get 400 and a close. Nothing reaches the upstream; with half, what follows a chunked head that was good may have, but never as
    a whole request."""
    c = e.client()
    c.send_lossy(octets)
    r = c.response()
    assert r.status == 400 and is_close(r), r
    c.ended()
    if half:
        until(lambda: not e.U.live(), 5, "the half request to be given up")
        assert not e.U.complete and not [q for q in e.U.requests if q.target == b"/evil"], e.U.requests
    else:
        assert not e.U.requests and not b"".join(x.raw for x in e.U.conns)
    e.U.reset()


def refuse_all(e, variants, half=False):
    """refuse() for each of {name: octets}; all that were not refused are named at once."""
    wrong = []
    for name, octets in variants.items():
        e.U.play(OK)
        try:
            refuse(e, octets, half)
        except (AssertionError, OSError) as why:
            wrong.append(f"{name}: {why}")
            try:
                e.U.reset()
            except AssertionError:
                pass
    assert not wrong, "\n".join(wrong)


def in_threads(count, run):
    """run(0) ... run(count - 1) at once; the first exception is raised here."""
    failures = []

    def guarded(i):
        try:
            run(i)
        except Exception as why:        # noqa: BLE001 - handed to the test
            failures.append(why)
    threads = [threading.Thread(target=guarded, args=(i,), daemon=True) for i in range(count)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if failures:
        raise failures[0]


# ---------------------------------------------------------------------------------------------------------------------------
# answers: what frames them

@pytest.mark.parametrize("method, upstream", [
    ("HEAD", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"),
    ("HEAD", b"HTTP/1.1 200 OK\r\n\r\n"),
    ("HEAD", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"),
    ("HEAD", b"HTTP/1.1 404 No\r\nTransfer-Encoding: chunked\r\n\r\n"),
    ("GET", b"HTTP/1.1 304 Not Modified\r\nTransfer-Encoding: chunked\r\n\r\n"),
    ("HEAD", b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n"),
], ids=["chunked", "no framing", "counted", "404", "304", "304 to HEAD"])
@pytest.mark.parametrize("pipelined", [False, True], ids=["in turn", "pipelined"])
def test_b01_head_answer_with_chunked(case, method, upstream, pipelined):
    e = case()
    first, second = method.encode() + b" / HTTP/1.1\r\nHost: a.test\r\n\r\n", b"GET /2 HTTP/1.1\r\nHost: a.test\r\n\r\n"
    e.U.play(upstream, OK)
    c = e.client().send(first + (second if pipelined else b""))
    c.response(method)
    if not pipelined:
        assert not c.readable(), "a header block only"
        c.send(second)
    r = c.response()
    assert (r.status, r.body) == (200, b"ok")
    assert bytes(c.wire.raw).split(b"\r\n\r\n", 1)[1].startswith(b"HTTP/1.1 200 "), "the next octets are a status line"


@pytest.mark.parametrize("stray", [b"0\r\n\r\n", b"5\r\nhello\r\n0\r\n\r\n"], ids=["last chunk", "chunks"])
def test_b01_a_body_behind_a_head_answer_is_no_answer(case, stray):
    """The mirror of it: the upstream does write the chunks. They must not open the next answer."""
    e = case()
    e.U.play([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + stray, HOLD], OK)
    c = e.client().send(b"HEAD / HTTP/1.1\r\nHost: a.test\r\n\r\n")
    assert c.response("HEAD").status == 200
    r = c.get("/2")
    assert (r.status, r.body) == (200, b"ok")
    assert [q.conn for q in e.U.requests] == [0, 1]


@pytest.mark.parametrize("fields, body", [(b"Content-Length: 0\r\n", b""), (b"", b""), (b"Content-Length: 5\r\n", b"hello"),
                                          (b"Transfer-Encoding: chunked\r\n", b"5\r\nhello\r\n0\r\n\r\n"), (b"", b"hello")],
                         ids=["length 0", "no length", "length 5", "chunked", "no length but a body"])
def test_b03_204_with_length_or_body(case, fields, body):
    e = case()
    e.U.play([b"HTTP/1.1 204 No Content\r\n" + fields + b"\r\n" + body], OK)
    c = e.client().send(GET)
    r = c.response()                    # its reader refuses framing fields in a 204
    assert r.status == 204
    r = c.get("/2")
    assert (r.status, r.body) == (200, b"ok")
    assert not c.readable()
    assert [q.conn for q in e.U.requests] == [0, 1 if body else 0], "what sent a body after all is not used again"


@pytest.mark.parametrize("upstream", [b"HTTP/1.1 204 No Content\r\n\r\n", b"HTTP/1.1 304 Not Modified\r\nETag: \"x\"\r\n\r\n",
                                      b"HTTP/1.1 304 Not Modified\r\nContent-Length: 77\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
                                      b"HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"],
                         ids=["204", "304", "304 with a length", "200", "404", "chunked"])
def test_b05_answer_without_a_body_comes_at_once(case, upstream):
    e = case()
    e.U.play([upstream, HOLD])          # and nothing more for as long as ramjet keeps the connection
    c = e.client()
    for _ in range(3):
        start = time.monotonic()
        r = c.get()
        assert time.monotonic() - start < 1 * SLACK
        assert (b"%d" % r.status in upstream[:20], r.body) == (True, b"")
        assert c.open()
        e.U.reset()
        e.U.play([upstream, HOLD])


@pytest.mark.parametrize("twice", [b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked", b"Transfer-Encoding: chunked, chunked",
                                   b"Transfer-Encoding: chunked\r\nX: y\r\ntransfer-encoding: Chunked", b"Transfer-Encoding: chunked,",
                                   b"Transfer-Encoding: identity, chunked", b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity"],
                         ids=["two lines", "a list", "apart", "an empty element", "identity first", "identity second"])
def test_b15_duplicate_transfer_encoding_of_the_upstream(case, twice):
    e = case()
    e.U.play([b"HTTP/1.1 200 OK\r\n" + twice + b"\r\n\r\n5\r\nhello\r\n0\r\n\r\n", HOLD], OK)
    c = e.client().send(POST)
    r = c.response()
    assert (r.status, r.body) == (502, b"502 Bad Gateway\n")
    until(lambda: not e.U.live(), 5, "the upstream connection to be dropped")


BLOCK = ONE + "proxy-buffer-size = 32k\n"


def large(total):
    """An answer whose head holds cookies and a policy of so many octets."""
    fields, left, n = b"", total, 0
    while left > 0:
        size = min(left, 1000)
        fields += (b"Set-Cookie: c%d=" % n if n % 2 else b"Content-Security-Policy: default-src ") + b"x" * size + b"\r\n"
        left, n = left - size, n + 1
    return answer(b"ok", fields)


@pytest.mark.parametrize("template, size, passes", [(ONE, 6 << 10, True), (ONE, 12 << 10, True), (ONE, 30 << 10, False), (ONE, 1 << 20, False),
                                                    (BLOCK, 30 << 10, True), (BLOCK, 1 << 20, False)],
                         ids=["6k", "12k", "30k", "1m", "30k of 32k", "1m of 32k"])
def test_b31_large_answer_head(case, template, size, passes):
    e = case(template)
    e.U.play(lambda conn, req: conn.play(req, [large(size), HOLD] if not passes else [large(size)]))
    e.new_log()
    r = e.get("/first", method="POST", fields=b"Content-Length: 0\r\n")
    if passes:
        assert (r.status, r.body) == (200, b"ok")
        assert sum(len(v) for n, v in r.fields if n in (b"Set-Cookie", b"Content-Security-Policy")) > size
        return
    assert r.status == 502
    line = e.log_line(lambda x: x["status"] == 502)
    assert "large" in line["error"] or "big" in line["error"] or "head" in line["error"], line
    base = e.ramjet.rss()
    for _ in range(8):
        assert e.get("/more", method="POST", fields=b"Content-Length: 0\r\n").status == 502
    assert e.ramjet.rss() - base < 4 * size + (4 << 20), "memory grows"


# ---------------------------------------------------------------------------------------------------------------------------
# interim answers, Expect, early answers

EXPECT = [b"POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n",
          b"POST / HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\nexpect: 100-Continue\r\n\r\n"]
BODIES = [b"hello", b"5\r\nhello\r\n0\r\n\r\n"]
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


def read_100(c):
    head = bytearray()
    while not head.endswith(b"\r\n\r\n"):
        head += c.wire.exactly(1)
    assert head.startswith(b"HTTP/1.1 100 "), head


@pytest.mark.parametrize("form", [0, 1], ids=["counted", "chunked"])
@pytest.mark.parametrize("upstream", [[EARLY, CONTINUE, BODY, OK], [OK], [EARLY, BODY, CONTINUE, OK]], ids=["says 100", "only reads", "says it too late"])
def test_b06_expect_is_no_deadlock(case, form, upstream):
    e = case()
    c = e.client().send(EXPECT[form])
    e.U.play(list(upstream))
    read_100(c)
    c.send(BODIES[form])
    r = c.response()
    assert r.status == 200
    assert r.interim == [], "one 100 and no second one"
    assert e.U.request.body == b"hello"


@pytest.mark.parametrize("form", [0, 1], ids=["counted", "chunked"])
@pytest.mark.parametrize("status", [417, 401, 200])
@pytest.mark.parametrize("end", [CLOSE, HOLD], ids=repr)
def test_b06_final_answer_instead_of_100(case, form, status, end):
    e = case()
    c = e.client().send(EXPECT[form])
    e.U.play([EARLY, b"HTTP/1.1 %d No\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno" % status, end])
    r = c.response("POST")
    assert (r.status, r.body) == (status, b"no")
    assert r.interim == [], "the client must not be asked for a body that nobody wants"
    assert is_close(r)
    c.ended()


@pytest.mark.parametrize("interim", [CONTINUE, CONTINUE + CONTINUE, b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" + CONTINUE], ids=["one", "two", "with 103"])
@pytest.mark.parametrize("version", [1, 0], ids=["1.1", "1.0"])
def test_b07_100_that_nobody_asked_for(case, interim, version):
    e = case()
    get = b"GET /%d HTTP/1." + b"%d" % version + b"\r\nHost: a.test\r\nConnection: keep-alive\r\n\r\n"
    c = e.client().send(get % 1)
    e.U.play([interim, was_read, OK], answer(b"22"))
    r = c.response()
    assert (r.status, r.body) == (200, b"ok")
    assert version or r.interim == [], "1.0 has no interim answers"
    c.send(get % 2)
    assert c.response().body == b"22"


def test_b07_100_that_comes_after_its_answer(case):
    """It is no answer to the next request of the pooled connection."""
    e = case()
    e.U.play([OK + CONTINUE], answer(b"22"))
    c = e.client()
    assert c.get("/1").body == b"ok"
    assert c.get("/2").body == b"22"
    e.U.reset()
    e.U.play(OK, answer(b"22"))
    assert c.get("/1").body == b"ok"
    e.U.conns[0].send(CONTINUE)
    until(lambda: not e.U.live(), 5, "the connection with stray octets to be given up")
    assert c.get("/2").body == b"22"


BIG = 10_000_000
UNLIMITED = ONE + "proxy-body-size = 0\n"
TOO_LARGE = b"HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\n\r\nbig"


def upload(c, stop, piece):
    """Sends a body of BIG octets in the background until it is done, refused or stopped."""
    def run():
        sent = 0
        try:
            while sent < BIG and not stop.is_set():
                sent += c.sock.send(piece)
        except OSError:
            pass
    t = threading.Thread(target=run, daemon=True)
    t.start()
    return t


@pytest.mark.parametrize("form", ["counted", "chunked"])
@pytest.mark.parametrize("after", ["reads on", "deaf", "fin", "rst"])
def test_b09_early_answer_during_an_upload(case, form, after):
    e = case(UNLIMITED)
    stop, piece = threading.Event(), bytes(65536) if form == "counted" else b"10000\r\n" + bytes(65536) + b"\r\n"
    framing = b"Content-Length: %d" % BIG if form == "counted" else b"Transfer-Encoding: chunked"
    c = e.client().send(b"POST /big HTTP/1.1\r\nHost: a.test\r\n" + framing + b"\r\n\r\n" + piece)
    e.U.play([EARLY, TOO_LARGE] + {"reads on": [HOLD], "deaf": [DEAF], "fin": [CLOSE], "rst": [was_read, RST]}[after], OK)
    t = upload(c, stop, piece)
    try:
        r = c.response("POST")
        assert (r.status, r.body) == (413, b"big")
        assert is_close(r)
        c.ended(10)
    finally:
        stop.set()
        c.close()
        t.join(5)
    assert e.get("/next").status == 200
    assert e.U.requests[-1].conn == 1, "the upstream connection is not used again"


LIMITED = ONE + "proxy-body-size = 1m\n"


@pytest.mark.parametrize("head, body, status", [
    (b"Content-Length: 10000000\r\n", bytes(BIG), 413), (b"Transfer-Encoding: chunked\r\n", b"989680\r\n" + bytes(BIG), 413),
    (b"Content-Length: x\r\n", bytes(BIG), 400), (b"X: \x00\r\n", bytes(BIG), 400), (b"Transfer-Encoding: chunked\r\n", b"z" * BIG, 400),
    (b"X: " + b"y" * 200_000 + b"\r\n", b"", 431),
], ids=["413 counted", "413 chunked", "400 length", "400 field", "400 chunk", "431"])
def test_b10_refusal_is_not_lost_in_a_reset(case, head, body, status):
    """The client writes everything first, and reads only when that has ended or failed."""
    e = case(LIMITED)
    e.U.play([EARLY, HOLD])
    c = e.client()
    c.send_lossy(b"POST / HTTP/1.1\r\nHost: a.test\r\n" + head + b"\r\n")
    c.send_lossy(body)
    r = c.response("POST")
    assert r.status == status and is_close(r)
    c.ended()
    assert not e.U.complete


@pytest.mark.parametrize("client", [GET, POST, b"POST / HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
                                    b"GET / HTTP/1.0\r\nHost: a.test\r\n\r\n"], ids=["GET", "counted", "chunked", "1.0"])
@pytest.mark.parametrize("form", ["counted", "chunked", "to the end"])
def test_b11_half_closing_client_gets_everything(case, client, form):
    e = case()
    body = noise(1 << 20)
    c = e.client().send(client).half_close()

    def fin_seen(_conn, _req):
        until(lambda: not rx_queue(c.peer, c.name), 5, "the FIN to be there")
        pass_time(0.1)
    head = b"HTTP/1.1 200 OK\r\n%s\r\n"
    e.U.play([fin_seen] + {"counted": [answer(body)], "to the end": [head % b"" + body, CLOSE],
                           "chunked": [head % b"Transfer-Encoding: chunked\r\n" + b"%x\r\n" % len(body) + body + b"\r\n0\r\n\r\n"]}[form])
    assert sha256(c.response().body) == sha256(body)
    c.closed()


# ---------------------------------------------------------------------------------------------------------------------------
# requests: what frames them

TE = b"POST / HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n"
TRAILERS = b"X-Sum: 1\r\nContent-Length: 100\r\nX-Forwarded-For: 6.6.6.6\r\nHost: evil.test\r\nTransfer-Encoding: chunked\r\nAuthorization: x\r\n"


def test_b13_trailers_of_a_request(case):
    e = case()
    (r, r2), _ = e.talk(TE + b"TE: trailers\r\n\r\n5\r\nhello\r\n0\r\n" + TRAILERS + b"\r\n" + GET, OK, ("POST", "GET"))
    assert r.status == r2.status == 200
    q = e.U.requests[0]
    assert q.body == b"hello"
    assert [n for n, _ in q.trailers if n != b"X-Sum"] == []
    assert (q.get(b"X-Sum"), q.get(b"Content-Length"), q.get(b"X-Forwarded-For"), q.get(b"Host"), q.get(b"Authorization")) == (
        None, None, b"127.0.0.1", b"a.test", None)
    assert len(e.U.requests) == 2


def test_b13_trailers_of_an_answer(case):
    e = case()
    e.U.play(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n" + TRAILERS + b"\r\n", OK)
    (r, r2), _ = e.talk(b"GET / HTTP/1.1\r\nHost: a.test\r\nTE: trailers\r\n\r\n" + GET, None, ("GET", "GET"))
    assert (r.body, r2.body) == (b"hello", b"ok")
    assert [n for n, _ in r.trailers if n != b"X-Sum"] == []
    assert r.get(b"X-Sum") is None


BAD_TRAILERS = {"space before the colon": b"X-Bad : v\r\n", "no colon": b"nocolon\r\n", "no name": b": v\r\n", "folded": b"X: a\r\n b\r\n", "bare LF": b"X: a\nY: b\r\n",
                "NUL": b"X: a\x00\r\n", "bare CR": b"X: a\rb\r\n", "after a good one": b"X-Sum: 1\r\nX-Bad : v\r\n"}


def test_b13_malformed_trailers_of_a_request(case):
    e = case()
    refuse_all(e, {k: TE + b"\r\n5\r\nhello\r\n0\r\n" + v + b"\r\n" + EVIL for k, v in BAD_TRAILERS.items()}, half=True)


@pytest.mark.parametrize("bad", BAD_TRAILERS)
def test_b13_malformed_trailers_of_an_answer(case, bad):
    """Whatever was sent on of it, the client sees no whole answer, and nothing of it opens the next one."""
    e = case()
    e.U.play([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n" + BAD_TRAILERS[bad] + b"\r\n", HOLD])
    c = e.client().send(POST)
    try:
        assert c.response().status == 502
    except (Eof, ConnectionResetError):
        pass
    until(lambda: not e.U.live(), 5, "the upstream connection to be dropped")


def test_b16_both_framings(case):
    e = case()
    both = b"POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 6\r\nTransfer-Encoding: %s\r\n\r\n0\r\n\r\nG"
    only = b"POST / HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: %s\r\n\r\n0\r\n\r\n" + EVIL
    codings = (b"chunked,", b"chunked, gzip", b"gzip, chunked", b",chunked", b"xchunked", b"\"chunked\"", b"chunked;q=1", b"chunked chunked", b"\x0bchunked")
    variants = {"both %r" % v: both % v for v in codings + (b"chunked", b"Chunked", b"chunked ", b"\tchunked", b"identity", b"gzip", b"")}
    variants.update({"alone %r" % v: only % v for v in codings})
    variants["the other way round"] = b"POST / HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\nContent-Length: 6\r\n\r\n0\r\n\r\nG"
    variants["in 1.0"] = b"POST / HTTP/1.0\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + EVIL
    variants["in 1.0, kept"] = b"POST / HTTP/1.0\r\nHost: a.test\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + EVIL
    variants["both in 1.0"] = both.replace(b"HTTP/1.1", b"HTTP/1.0") % b"chunked"
    refuse_all(e, variants)
    for legal in (b"Chunked", b"chunked ", b" \tchunked"):      # letter case and white space around are nobody's trick
        r = e.one(b"POST / HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding:" + legal + b"\r\n\r\n5\r\nhello\r\n0\r\n\r\n", OK)
        assert r.status == 200 and e.U.request.body == b"hello" and e.U.request.all(b"Transfer-Encoding") == [b"chunked"]
        e.U.reset()


def test_b17_content_length(case):
    e = case()
    line = b"POST / HTTP/1.1\r\nHost: a.test\r\n%s\r\nhello" + EVIL
    pairs = {"1 and 0": (b"1", b"0"), "5 and 6": (b"5", b"6"), "5 and 5": (b"5", b"5"), "5 and nothing": (b"5", b"")}
    single = (b"5, 6", b"5, 5", b"+5", b"-48", b"-5", b"0x5", b"", b"1Z", b"5 5", b"18446744073709551621", b"5.0", b"5_0", b"\"5\"", b"5;", b"5\x00", b"\x0b5")
    variants = {k: line % b"".join(b"Content-Length: " + x + b"\r\n" for x in v) for k, v in pairs.items()}
    variants.update({"%r" % v: line % (b"Content-Length: " + v + b"\r\n") for v in single})
    refuse_all(e, variants)


@pytest.mark.parametrize("value, length", [(b"010", 10), (b"0005", 5), (b"00", 0)], ids=["010", "0005", "00"])
def test_b17_leading_zeros_are_decimal_or_refused(case, value, length):
    e = case()
    body = b"helloworld"[:length]
    r = e.one(b"POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: " + value + b"\r\n\r\n" + body, OK)
    if r.status == 400:
        assert is_close(r) and not e.U.requests
    else:
        assert r.status == 200
        assert (e.U.request.body, e.U.request.all(b"Content-Length")) == (body, [b"%d" % length])


def test_b18_chunk_syntax(case):
    e = case()
    size = {"size %r" % v: v + b"\r\nhello\r\n0\r\n\r\n" for v in
            (b"0_2e", b"0x5", b"+5", b"-5", b" 5", b"5 ", b"\t5", b"", b"00000000000000005", b"fffffffffffffffff", b"5g", b"5,", b"\x005")}
    rest = {"bare LF behind an extension": b"5;\nhello\r\n0\r\n\r\n", "bare CR in an extension": b"5;a\rb\r\nhello\r\n0\r\n\r\n", "CR CR": b"5\r\r;x\r\nhello\r\n0\r\n\r\n",
            "LF then extension": b"5\n;x\r\nhello\r\n0\r\n\r\n", "XX for CRLF": b"5\r\nhelloXX0\r\n\r\n", "LF behind the data": b"5\r\nhello\n0\r\n\r\n",
            "CR behind the data": b"5\r\nhello\r0\r\n\r\n", "X behind the last chunk": b"5\r\nhello\r\n0\r\nX", "LF only": b"5\nhello\n0\n\n", "LF at the end": b"5\r\nhello\r\n0\r\n\n",
            "one octet too many": b"5\r\nhelloX\r\n0\r\n\r\n", "no size at all": b"hello\r\n"}
    refuse_all(e, {k: TE + b"\r\n" + v + EVIL for k, v in {**size, **rest}.items()}, half=True)


@pytest.mark.parametrize("bad", [b"5x\r\nhello\r\n0\r\n\r\n", b"5\r\nhelloXX0\r\n\r\n", b"5;\nhello\r\n0\r\n\r\n", b"+5\r\nhello\r\n0\r\n\r\n", b"5\r\nhello\r\n0\r\nX\r\n"],
                         ids=["size", "end", "extension", "sign", "last"])
def test_b18_chunk_syntax_of_an_answer(case, bad):
    e = case()
    e.U.play([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + bad, HOLD])
    c = e.client().send(POST)
    try:
        assert c.response().status == 502
    except (Eof, ConnectionResetError):
        pass
    until(lambda: not e.U.live(), 5, "the upstream connection to be dropped")


# ---------------------------------------------------------------------------------------------------------------------------
# pools, retries, pipelines

def closes_after(delay, how):
    """Answers one request of each connection and ends it: after the delay, or at the next octet, by a reset."""
    def script(conn, req):
        if req.index:
            conn.rst()
            return
        conn.send(OK)
        if how == "later":
            conn.sock.settimeout(delay)
            try:
                more = conn.sock.recv(1)
            except socket.timeout:
                more = b""
            if more:
                conn.rst()                      # the race was lost: it is closing already
            else:
                conn.fin()
                conn.drain()
            conn.over = True
    return script


def idle_race(e, how, period, clients, tries, head):
    """GETs (or POSTs) of many clients, one per period each, against upstreams that end each connection after a period. Returns what came."""
    e.U.play(closes_after(period, how))
    seen = []

    def run(i):
        rng = random.Random(i)
        with Client(e.ramjet.port) as c:
            pass_time(period * rng.random())
            for n in range(tries):
                due = time.monotonic() + period
                c.send(head % (i, n) + (b"0123456789" if head.startswith(b"POST") else b""))
                seen.append(c.response().status)
                until(lambda: time.monotonic() >= due, period + 5)
    in_threads(clients, run)
    return seen


RACE_GET = b"GET /%d/%d HTTP/1.1\r\nHost: a.test\r\n\r\n"
RACE_POST = b"POST /%d/%d HTTP/1.1\r\nHost: a.test\r\nContent-Length: 10\r\n\r\n"


def race(e, how, period, head):
    clients = 50 if period >= 1 else 100
    seen = idle_race(e, how, period, clients, 1000 // clients, head)
    assert len(seen) == 1000
    if head is RACE_GET:
        assert seen == [200] * 1000, {s: seen.count(s) for s in set(seen)}
    else:
        assert set(seen) <= {200, 502}
        targets = [q.target for q in e.U.complete]
        assert len(targets) == len(set(targets)), "a POST was sent twice"


@pytest.mark.parametrize("head", [RACE_GET, RACE_POST], ids=["GET", "POST"])
@pytest.mark.parametrize("how", ["later", "at the next octet"])
def test_b20_idle_race(case, how, head):
    race(case(), how, 0.1, head)


@pytest.mark.slow
@pytest.mark.parametrize("head", [RACE_GET, RACE_POST], ids=["GET", "POST"])
@pytest.mark.parametrize("how", ["later", "at the next octet"])
def test_b20_idle_race_of_a_second(case, how, head):
    race(case(), how, 1.0, head)


def test_b20_a_shorter_idle_timeout_leaves_no_race(case):
    """The proxy gives a connection up long before the peer does: not even a POST fails."""
    e = case(ONE.replace("endpoint = $U", "endpoint = $U\nupstream-keepalive-timeout = 100ms"))
    seen = []

    def script(conn, _req):
        conn.send(OK)
        conn.sock.settimeout(3)
    e.U.play(script)

    def run(i):
        rng = random.Random(i)
        with Client(e.ramjet.port) as c:
            for n in range(10):
                c.send(RACE_POST % (i, n) + b"0123456789")
                seen.append(c.response().status)
                pass_time(0.2 * rng.random())
    in_threads(20, run)
    assert seen == [200] * 200, {s: seen.count(s) for s in set(seen)}


TWO = ONE.replace("endpoint = $U", "endpoint = $U\nendpoint = $V\nmax-fails = 0")
CHUNKED = TE + b"\r\n5\r\nhello\r\n0\r\n\r\n"


@pytest.mark.parametrize("end", [CLOSE, RST, ABRUPT], ids=repr)
@pytest.mark.parametrize("client", [POST, CHUNKED, POST.replace(b"POST", b"PATCH")], ids=["counted", "chunked", "PATCH"])
@pytest.mark.parametrize("warm", [False, True], ids=["fresh", "reused"])
def test_b22_a_post_is_executed_once(case, client, end, warm):
    e = case(TWO)
    if warm:
        e.U.play(OK), e.V.play(OK)
        assert [e.get().status for _ in range(2)] == [200, 200]
    before = len(e.U.requests) + len(e.V.requests)
    silent = [lambda conn, req: pass_time(0.1), end]
    e.U.play(list(silent)), e.V.play(list(silent))
    c = e.client().send(client)
    assert c.response().status == 502
    assert len(e.U.requests) + len(e.V.requests) - before == 1


@pytest.mark.parametrize("client", [POST, CHUNKED], ids=["counted", "chunked"])
def test_b22_a_refused_connect_moves_on_even_for_post(case, client):
    e = case(TWO.replace("$V", "$DEAD"))
    e.U.play(OK)
    for n in range(6):
        assert e.one(client).status == 200
    assert [q.body for q in e.U.requests] == [b"hello"] * 6


def test_b23_pod_gone_but_still_listed(case):
    """One endpoint refuses, one swallows SYNs: no client sees it, few requests wait for it, and it is taken back when it is there again."""
    e = case(ONE.replace("endpoint = $U", "endpoint = $U\nendpoint = $DEAD\nendpoint = $HOLE\nmax-fails = 1\nfail-timeout = 1s") + "proxy-connect-timeout = 200ms\n")
    e.U.play(OK)
    e.new_log()
    clients = [e.client() for _ in range(4)]
    slow = 0
    for i in range(120):
        start = time.monotonic()
        c = clients[i % 4].send(POST if i % 6 == 5 else GET)
        assert c.response().status == 200, i
        slow += time.monotonic() - start > 0.15
    assert len(e.U.requests) == 120
    assert slow <= 1 + 20 * SLACK / 2, f"{slow} of 120 requests waited for an endpoint that is known to be bad"
    back = Upstream("back")
    back.unlisten()
    try:
        for s in e.HOLE.fill:
            s.close()
        e.HOLE.sock.listen(64)
        threading.Thread(target=back.accept, args=(e.HOLE.sock,), daemon=True).start()
        back.play(OK)
        until(lambda: e.get().status == 200 and back.requests, 10, "the endpoint that is there again to be used")
    finally:
        for conn in back.live():
            conn.fin()
        e.HOLE.sock.shutdown(socket.SHUT_RDWR)
        back.close()
        until(lambda: not back.live(), 5, "its connections to end")


PIPE = (b"GET /1 HTTP/1.1\r\nHost: a.test\r\n\r\n", b"GET /2 HTTP/1.1\r\nHost: a.test\r\n\r\n",
        b"POST /3 HTTP/1.1\r\nHost: a.test\r\nContent-Length: 3\r\n\r\nabc", b"GET /4 HTTP/1.1\r\nHost: a.test\r\n\r\n")


def slow_first(conn, req):
    conn.body(req)
    if req.target == b"/1":
        pass_time(0.1)
    conn.send(answer(req.target))


@pytest.mark.parametrize("ends", [False, True], ids=["stays", "half-closes"])
def test_b24_pipelined_requests_are_answered_in_order(case, ends):
    e = case()
    c = e.client().send(b"".join(PIPE))
    if ends:
        c.half_close()
    e.U.play(slow_first)
    assert [c.response().body for _ in range(4)] == [b"/1", b"/2", b"/3", b"/4"]
    assert [(q.target, q.body) for q in e.U.requests] == [(b"/1", b""), (b"/2", b""), (b"/3", b"abc"), (b"/4", b"")]
    if ends:
        c.closed()
    else:
        assert c.open()


@pytest.mark.parametrize("third", [PIPE[2].replace(b"Length: 3", b"Length: x"), PIPE[2].replace(b"Host: a.test\r\n", b""), b"\x16\x03\x01\x02\x00\x01" + PIPE[2]],
                         ids=["length", "no Host", "TLS"])
def test_b24_malformed_third_of_a_pipeline(case, third):
    e = case()
    c = e.client().send(PIPE[0] + PIPE[1] + third + PIPE[3])
    e.U.play(slow_first)
    assert [c.response().body for _ in range(2)] == [b"/1", b"/2"]
    r = c.response()
    assert r.status == 400 and is_close(r)
    c.ended()
    assert [q.target for q in e.U.requests] == [b"/1", b"/2"]


def test_b24_close_ends_a_pipeline(case):
    e = case()
    c = e.client().send(PIPE[0].replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n") + b"".join(PIPE[1:]))
    e.U.play(slow_first)
    r = c.response()
    assert r.body == b"/1" and is_close(r)
    c.closed()
    assert len(e.U.requests) == 1


# ---------------------------------------------------------------------------------------------------------------------------
# parsing

def test_b27_host_field(case):
    e = case()
    get = b"GET / HTTP/1.1\r\n%s\r\n"
    variants = {"none": b"", "two equal": b"Host: a.test\r\nHost: a.test\r\n", "two different": b"Host: a.test\r\nHost: b.test\r\n"}
    variants.update({"%r" % v: b"Host: " + v + b"\r\n" for v in
                     (b"a.test, b.test", b"a.test/x", b"u@a.test", b"a b", b"a.test:x", b"a.test:80:80", b"[::1", b"a.test?x", b"a.test#x", b"a.test\\x", b"a\x00b", b"\"a.test\"",
                      b"http://a.test")})
    refuse_all(e, {k: get % v for k, v in variants.items()})


def test_b27_empty_host_and_1_0_without_one(case):
    e = case(ONE + "\n[backend d]\nendpoint = $D\n[route d]\npath = /\ntype = prefix\nbackend = d\n")
    e.U.play(OK), e.D.play(answer(b"default"))
    for octets in (b"GET / HTTP/1.1\r\nHost:\r\n\r\n", b"GET / HTTP/1.0\r\n\r\n"):
        r = e.one(octets)
        assert (r.status, r.body) in ((400, b"400 Bad Request\n"), (200, b"default")), octets
    assert not e.U.requests


def test_b28_field_lines(case):
    e = case()
    get = b"POST / HTTP/1.1\r\n%sHost: a.test\r\n%s\r\nhello" + EVIL
    first = {"white space before the first field": b" X: y\r\n", "tab before it": b"\tX: y\r\n", "a blank line of white space": b" \r\n"}
    later = {"space before the colon": b"Content-Length : 5\r\n", "tab before the colon": b"Content-Length\t: 5\r\n", "obs-fold": b"X: a\r\n b\r\n", "obs-fold by tab": b"X: a\r\n\tb\r\n",
             "no name": b": v\r\n", "no colon": b"NoColon\r\n", "0x85 in the name": b"X\x85: v\r\n", "bare CR in the value": b"X: a\rB: c\r\n", "NUL in the value": b"X: a\x00b\r\n",
             "NUL in the name": b"X\x00: a\r\n", "bare LF": b"X: a\nY: b\r\n", "DEL in the value": b"X: a\x7f\r\n", "control in the value": b"X: a\x01\r\n", "space in the name": b"X Y: a\r\n",
             "quotes in the name": b"\"X\": a\r\n"}
    variants = {k: get % (v, b"") for k, v in first.items()}
    variants.update({k: get % (b"", v) for k, v in later.items()})
    variants["LF only"] = (get % (b"", b"")).replace(b"\r\n", b"\n")
    variants["CR only"] = (get % (b"", b"")).replace(b"\r\n", b"\r") + b"\r\n\r\n"
    variants["LF ends the head"] = b"GET / HTTP/1.1\r\nHost: a.test\r\n\n"
    refuse_all(e, variants)


def test_b29_target(case):
    e = case(ONE + "\n[backend png]\nendpoint = $P\n[route png]\nhost = a.test\npath = /a.png\ntype = exact\nbackend = png\n")
    e.P.play(OK)
    get = b"%s\r\nHost: a.test\r\n\r\n"
    lines = (b"GET /a#.png HTTP/1.1", b"GET /a.png#x HTTP/1.1", b"GET /# HTTP/1.1", b"GET /a\x01b HTTP/1.1", b"GET /a\x7fb HTTP/1.1", b"GET /a\x00.png HTTP/1.1", "GET /ä HTTP/1.1".encode(),
             b"GET /\xff HTTP/1.1", b"GET /% HTTP/1.1", b"GET /%zz HTTP/1.1", b"GET /%0 HTTP/1.1", b"GET /%00 HTTP/1.1", b"GET /a.png%00 HTTP/1.1", b"GET \\a HTTP/1.1", b"GET /a\\b HTTP/1.1",
             b"GET  / HTTP/1.1", b"GET /  HTTP/1.1", b"GET / HTTP/1.1 ", b"GET\t/ HTTP/1.1", b" GET / HTTP/1.1", b"GET /a b HTTP/1.1", b"GET a HTTP/1.1", b"GET HTTP/1.1", b"GET /?a#b HTTP/1.1",
             b"GET /?\xc3\xa4 HTTP/1.1", b"GET * HTTP/1.1")
    refuse_all(e, {"%r" % v: get % v for v in lines})
    assert not e.P.requests


# ---------------------------------------------------------------------------------------------------------------------------
# routing and paths

def routes(*rules):
    """Rules (host, path, type, upstream) as a file."""
    text = "".join("[backend %s]\nendpoint = $%s\n" % (u, u) for u in sorted({r[3] for r in rules}))
    return text + "".join("[route r%d]\n%spath = %s\ntype = %s\nbackend = %s\n" % (i, "host = %s\n" % h if h else "", p, t, u) for i, (h, p, t, u) in enumerate(rules))


def ask(e, host, target, version=b"1.1"):
    """The name of the upstream that answers, or the status of what ramjet answers itself."""
    for name, peer in e.peers.items():
        peer.play(answer(name.encode()))
    field = b"Host: " + host.encode() + b"\r\n" if host is not None else b""
    r = e.one(b"GET " + target.encode() + b" HTTP/" + version + b"\r\n" + field + b"\r\n")
    return r.body.decode() if r.status == 200 else r.status


def test_b32_exact_root_beside_prefix_root(case):
    for rules in ([("a.test", "/", "exact", "S"), ("a.test", "/", "prefix", "T")], [("a.test", "/", "prefix", "T"), ("a.test", "/", "exact", "S")]):
        e = case(routes(*rules))
        assert [ask(e, "a.test", t) for t in ("/", "/x", "/?q", "//", "/x/")] == ["S", "T", "S", "T", "T"]


def test_b32_exact_beside_prefix_of_any_path(case):
    e = case(routes(("a.test", "/a", "prefix", "T"), ("a.test", "/a", "exact", "S"), ("a.test", "/a/", "exact", "V")))
    assert [ask(e, "a.test", t) for t in ("/a", "/a?q", "/a/", "/a/b", "/ab", "/A")] == ["S", "S", "V", "T", 404, 404]


def test_b35_wildcard_against_exact_host(case):
    e = case(routes(("*.b.test", "/", "prefix", "S"), ("x.b.test", "/only", "prefix", "T"), (None, "/", "prefix", "V")))
    asked = (("x.b.test", "/only"), ("x.b.test", "/other"), ("y.b.test", "/"), ("b.test", "/"), ("q.x.b.test", "/"), ("other.test", "/"), ("X.B.TEST:80", "/only"), (".b.test", "/"))
    assert [ask(e, *a) for a in asked][:7] == ["T", 404, "S", "V", "V", "V", "T"]
    assert ask(e, *asked[7]) in ("V", 400), "nothing is no label"


@pytest.mark.parametrize("default", [False, True], ids=["no default", "default"])
def test_b36_unknown_host_gets_nobody_elses_service(case, default):
    text = routes(("a.test", "/", "prefix", "S"), ("b.test", "/", "prefix", "T"))
    e = case("[ramjet]\ndefault-backend-service = D\n" + text + "[backend D]\nendpoint = $D\n" if default else text)
    want = "D" if default else 404
    for host in ("zzz.test", "10.0.0.1", "[::1]", "localhost", "a.test.evil.test", "xa.test", "a.tes"):
        assert ask(e, host, "/") == want, host
    assert ask(e, None, "/", b"1.0") == want
    assert not e.S.requests and not e.T.requests
    assert ask(e, "A.test.", "/") == "S"


def resolved(target):
    """The paths that a backend may make of a target: path parameters taken off or not, percent-decoded once or not, dot segments removed."""
    found = set()
    for decode in (False, True):
        for parameters in (False, True):
            path = target.decode("latin-1").split("?")[0]
            if parameters:
                path = re.sub(";[^/]*", "", path)
            if decode:
                path = re.sub("%([0-9a-fA-F]{2})", lambda m: chr(int(m[1], 16)), path)
            out = []
            for segment in path.replace("\\", "/").split("/")[1:]:
                if segment == "..":
                    out[-1:] = []
                elif segment not in (".", ""):
                    out.append(segment)
            found.add("/" + "/".join(out))
    return found


@pytest.mark.parametrize("target", ["/public/../admin", "/public/%2e%2e/admin", "/public/.%2e/admin", "/public/%2E./admin", "/public/..;/admin", "/public/..;x=y/admin", "/../admin",
                                    "/public/../../admin", "/public/..%2fadmin", "/public/..%5cadmin", "/public%2f..%2fadmin", "/public/%2e%2e%2fadmin", "/public//../admin",
                                    "/public/x/../../admin", "/public/.;/../admin", "/public/%252e%252e/admin", "/public/..%3b/admin", "/public/%2e%2e;/admin", "/public/./../admin/"])
def test_b39_dot_segments_never_reach_another_route(case, target):
    e = case(routes(("a.test", "/public", "prefix", "S"), ("a.test", "/admin", "prefix", "T")))
    e.S.play(answer(b"S")), e.T.play(answer(b"T"))
    r = e.one(b"GET " + target.encode() + b" HTTP/1.1\r\nHost: a.test\r\n\r\n")
    assert r.status in (200, 400, 404), r
    for q in e.S.requests:
        evil = [p for p in resolved(q.target) if p.startswith("/admin")]
        assert not evil, f"the open route got {q.target!r}, which a backend may read as {evil}"
    for q in e.T.requests:
        assert q.target.startswith(b"/admin") or resolved(q.target) >= {"/admin"}, q


def test_b39_harmless_dots_are_served(case):
    e = case(routes(("a.test", "/public", "prefix", "S"), ("a.test", "/admin", "prefix", "T")))
    for target in ("/public/./x", "/public/a/../x", "/public/%2e/x", "/public/a.b/..c/x...", "/public/x%2fy", "/public/a;v=1/x"):
        assert ask(e, "a.test", target) == "S", target


def test_b41_double_slashes_are_a_path(case):
    e = case(routes(("a.test", "/a", "prefix", "T"), ("a.test", "/", "prefix", "S")))
    for target, want in (("//", "S"), ("//x", "S"), ("/a//b", "T"), ("///a", "S"), ("//evil.test/", "S"), ("//a", "S"), ("/a//", "T"), ("//evil.test/a", "S"), ("//user@evil.test:80/", "S")):
        assert ask(e, "a.test", target) == want, target
        q = (e.S if want == "S" else e.T).requests[-1]
        assert (q.target, q.get(b"Host")) == (target.encode(), b"a.test")
    assert ask(e, "evil.test", "//a.test/") == 404


# ---------------------------------------------------------------------------------------------------------------------------
# upgrades and tunnels

UPGRADE = (b"GET /ws HTTP/1.1\r\nHost: a.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
           b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n")
SWITCH = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n"


@pytest.mark.parametrize("upstream, status, body", [
    (b"HTTP/1.1 401 No\r\nContent-Length: 4\r\n\r\nauth", 401, b"auth"),
    (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nauth\r\n0\r\n\r\n", 200, b"auth"),
    (b"HTTP/1.1 426 Upgrade Required\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nContent-Length: 0\r\n\r\n", 426, b""),
    (b"HTTP/1.1 503 Busy\r\nConnection: close\r\nContent-Length: 4\r\n\r\nauth", 503, b"auth"),
], ids=["401", "200", "426", "503"])
def test_b54_refused_upgrade_stays_http(case, upstream, status, body):
    e = case()
    e.U.play([upstream] + ([CLOSE] if b"close" in upstream else []), OK)
    c = e.client().send(UPGRADE)
    r = c.response()
    assert (r.status, r.body) == (status, body)
    if is_close(r):
        c.closed()
    else:
        assert c.get().body == b"ok"


@pytest.mark.parametrize("client", [GET, POST, b"GET / HTTP/1.0\r\nHost: a.test\r\n\r\n", b"GET / HTTP/1.1\r\nHost: a.test\r\nUpgrade: websocket\r\n\r\n",
                                    b"GET / HTTP/1.1\r\nHost: a.test\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n"],
                         ids=["GET", "POST", "1.0", "without Connection", "h2c"])
def test_b54_101_to_a_request_without_upgrade(case, client):
    e = case()
    e.U.play([SWITCH + b"hello", HOLD])
    c = e.client().send(client)
    r = c.response()
    assert r.status == 502
    until(lambda: not e.U.live(), 5, "the upstream connection to be closed")


def echo(conn, _req):
    """Switches and sends back every octet; a FIN is answered by FIN."""
    conn.send(SWITCH)
    while conn.wire.buf or conn.wire.fill():
        conn.send(conn.wire.take(len(conn.wire.buf)))
    conn.fin()
    conn.over = True


def switch(e, script=echo):
    e.U.play(script)
    c = e.client().send(UPGRADE)
    assert c.response().status == 101
    return c


TUNNEL = ("[ramjet]\nkeep-alive = 200ms\nclient-header-timeout = 200ms\nclient-body-timeout = 200ms\nsend-timeout = 2s\n" + ONE +
          "proxy-read-timeout = 200ms\nproxy-send-timeout = 2s\nproxy-tunnel-timeout = 800ms\n")


def test_b56_only_the_tunnel_timeout_rules(case):
    """Frames every half of it, in one direction or both, for more than three times as long; then silence ends it, and not before."""
    e = case(TUNNEL)
    speakers = [("client",), ("upstream",), ("client", "upstream")]

    def frames(conn, req):
        conn.send(SWITCH)
        for n in range(6):
            pass_time(0.4)
            if "upstream" in speakers[int(req.target[1:])]:
                conn.send(b"down%d" % n)
        conn.drain()
        conn.over = True

    def run(i):
        with Client(e.ramjet.port) as c:
            c.send(UPGRADE.replace(b"/ws", b"/%d" % i))
            assert c.response().status == 101
            for n in range(6):
                pass_time(0.4)
                if "client" in speakers[i]:
                    c.send(b"up%d" % n)
                if "upstream" in speakers[i]:
                    assert c.wire.exactly(5) == b"down%d" % n
            start = time.monotonic()
            c.closed()
            assert 0.4 < time.monotonic() - start < 3 * SLACK
    e.U.play(frames)
    in_threads(3, run)
    until(lambda: not e.U.live(), 5, "the end of the tunnels")
    for conn in e.U.conns:
        sent = b"up0up1up2up3up4up5" if "client" in speakers[int(conn.requests[0].target[1:])] else b""
        assert conn.raw.split(b"\r\n\r\n", 1)[1] == sent


@pytest.mark.parametrize("side", ["client", "upstream"])
def test_b56_large_messages_both_ways_and_the_end_of_one_side(case, side):
    """More than every buffer holds, both ways at once, with neither side reading before it has sent a good part: no deadlock. The FIN of one
    side leaves the other direction open; then all ends."""
    e = case(TUNNEL)
    up, down = noise(16 << 20, 1), noise(16 << 20, 2)
    got = {}

    def finish(send, fin, drain):
        """The side that ends first, or the one that goes on after it has seen the end."""
        t = threading.Thread(target=send, daemon=True)
        t.start()
        if fin:
            t.join()
            fin()
            drain()
        else:
            drain()
            t.join()

    def script(conn, _req):
        conn.send(SWITCH)
        conn.wire.keep = False
        if side == "upstream":
            finish(lambda: conn.send(down), conn.fin, conn.drain)
        else:
            finish(lambda: conn.send(down), None, conn.drain)
            conn.send(b"last words")
            conn.fin()
        got["up"] = bytes(conn.wire.buf)
        conn.over = True
    c = switch(e, script)
    c.wire.keep = False
    if side == "client":
        reader = {}
        t = threading.Thread(target=lambda: reader.update(data=c.rest()), daemon=True)
        t.start()
        c.sock.sendall(up)
        c.half_close()
        t.join(30 * SLACK)
        data, want = reader["data"], down + b"last words"
    else:
        sender = threading.Thread(target=c.sock.sendall, args=(up,), daemon=True)
        sender.start()
        data, want = c.rest(), down
        sender.join(30 * SLACK)
        c.send(b"last words").half_close()
        up += b"last words"
    assert sha256(data) == sha256(want)
    until(lambda: "up" in got, 10, "the end of the tunnel")
    assert sha256(got["up"]) == sha256(up)


# ---------------------------------------------------------------------------------------------------------------------------
# fields

def test_b57_connection_takes_nothing_of_ours_away(case):
    e = case()
    listed = b"close, X-Forwarded-For, X-Real-IP, X-Forwarded-Proto, X-Forwarded-Host, X-Forwarded-Port, X-Request-ID, Host, Content-Length, Transfer-Encoding, Cookie, X-Odd, TE"
    forged = (b"X-Forwarded-For: 6.6.6.6\r\nX-Real-IP: 6.6.6.6\r\nX-Forwarded-Proto: https\r\nX-Forwarded-Host: evil.test\r\nX-Forwarded-Port: 1\r\nForwarded: for=6.6.6.6\r\n"
              b"Cookie: a=b\r\nX-Odd: 1\r\nKeep-Alive: timeout=5\r\nTE: gzip\r\nProxy-Connection: keep-alive\r\nProxy: http://evil.test\r\n")
    for variant in (b"Connection: " + listed + b"\r\n", b"".join(b"Connection: " + x + b"\r\n" for x in listed.split(b", ")), b"connection:" + listed.upper().replace(b" ", b"\t") + b"\r\n"):
        e.U.play(OK)
        c = e.client().send(b"POST / HTTP/1.1\r\nHost: a.test\r\n" + variant + forged + b"Content-Length: 5\r\n\r\nhello" + EVIL)
        assert c.response().status == 200
        c.closed()
        q = e.U.request
        assert (q.get(b"X-Forwarded-For"), q.get(b"X-Real-IP"), q.get(b"X-Forwarded-Proto")) == (b"127.0.0.1", b"127.0.0.1", b"http")
        assert (q.all(b"Host"), q.all(b"Content-Length"), q.body) == ([b"a.test"], [b"5"], b"hello")
        assert q.get(b"X-Forwarded-Host") in (None, b"a.test") and q.get(b"X-Forwarded-Port") in (None, b"%d" % e.ramjet.port) and q.get(b"Forwarded") is None
        assert q.get(b"X-Odd") is None and q.get(b"X-Request-ID")
        for name in (b"Keep-Alive", b"TE", b"Proxy-Connection", b"Proxy", b"Upgrade"):
            assert q.get(name) is None, name
        e.U.reset()


# ---------------------------------------------------------------------------------------------------------------------------
# PROXY protocol; test_proxy_protocol.py has the rest of it

PEER = b"127.0.0.1"
CONVEYED = {"v1": (V1, b"192.0.2.7"), "v2": (v2(), b"192.0.2.7"), "v2 with 2 kB of TLVs": (v2(tlvs=b"\xee\x08\x00" + b"x" * 2048), b"192.0.2.7"),
            "v2 LOCAL with addresses": (v2(command=0x20), PEER), "v1 UNKNOWN": (b"PROXY UNKNOWN\r\n", PEER),
            "v1 UNKNOWN with addresses": (b"PROXY UNKNOWN ffff:f::1 ffff:f::2 65535 65535\r\n", PEER), "v2 AF_UNIX": (v2(0x31, UNIX), PEER)}


@pytest.mark.parametrize("name", CONVEYED)
def test_b59_proxy_header_cut_anywhere(case, name):
    e = case(ON + ONE)
    header, client = CONVEYED[name]
    e.U.play(OK)
    cuts = range(1, len(header)) if name in ("v1", "v2") else [1, 5, 6, 12, 13, 14, 15, 16, len(header) // 2, len(header) - 1]
    for at in cuts:
        c = e.client().send(header[:at], header[at:] + GET)
        assert c.response().status == 200, at
        c.close()
    assert {(q.get(b"X-Forwarded-For"), q.get(b"X-Real-IP")) for q in e.U.requests} == {(client, client)}
    assert len(e.U.requests) == len(cuts)


def test_b59_bad_or_missing_proxy_header(case):
    """On a port that wants one: closed without an answer. Where none belongs: 400. TLS where HTTP is due: no request either way."""
    e = case(ON + ONE)
    for octets in (GET, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc", b"PROXY UNKNOWN " + b"x" * 92 + b"\r\n" + GET, b"PROXY TCP4 1.2.3.4\r\n" + GET, b"\r\n\r\n\0\r\nQUIT\r" + GET):
        c = e.client()
        c.send_lossy(octets)
        c.ended()
        assert not c.wire.raw
    assert e.one(V1 + b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03").status == 400
    e = case(ONE)
    for header in (V1, b"PROXY UNKNOWN\r\n", v2(), v2(command=0x20)):
        c = e.client().send(header + GET)
        assert c.response().status == 400
        c.ended()
        assert not e.U.requests


def test_b59_proxy_header_has_a_total_time(case):
    e = case(ON.replace("timeout = 60s", "timeout = 500ms") + ONE)
    c = e.client()
    start = time.monotonic()
    for n in range(len(V1)):
        if c.readable():
            break
        c.send_lossy(V1[n:n + 1])
        pass_time(0.05)
    c.ended()
    assert not c.wire.raw and 0.4 < time.monotonic() - start < 2 * SLACK


# ---------------------------------------------------------------------------------------------------------------------------
# slow peers

SLOW = "[ramjet]\nclient-header-timeout = 2s\nclient-body-timeout = 1s\nsend-timeout = 1s\nkeep-alive = 3s\nmax-worker-connections = 5000\n" + ONE


def test_b60_two_thousand_slow_heads(case):
    """Each sends an octet now and then; the total time of a head ends them, while others are answered at once."""
    e = case(SLOW)
    e.U.play(OK)
    slow = [socket.create_connection(("127.0.0.1", e.ramjet.port)) for _ in range(2000)]
    try:
        head, worst, ended = b"GET / HTTP/1.1\r\nHost: a.test\r\nX: " + b"y" * 100, 0.0, 0
        began = time.monotonic()
        for n in range(len(head)):
            for s in slow:
                try:
                    s.send(head[n:n + 1])
                except OSError:
                    pass
            start = time.monotonic()
            assert e.get().status == 200
            worst = max(worst, time.monotonic() - start)
            if time.monotonic() - began > 3:
                break
        assert worst < 1 * SLACK, f"a quick client waited {worst:.2f} s"
        for s in slow:
            s.settimeout(10 * SLACK)
            try:
                text = s.recv(4096)
            except ConnectionResetError:
                text = b""
            assert text == b"" or text.startswith(b"HTTP/1.1 408 "), text
            ended += 1
        assert ended == 2000 and time.monotonic() - began < 30 * SLACK
        assert not [q for q in e.U.requests if q.get(b"X")]
    finally:
        for s in slow:
            s.close()


def test_b60_slow_bodies_and_readers_that_never_read(case):
    e = case(SLOW)
    head = b"POST /body HTTP/1.1\r\nHost: a.test\r\nContent-Length: 100\r\n\r\n"
    piece = bytes(1 << 20)

    def script(conn, req):
        if req.target == b"/large":
            conn.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (100 << 20))
            for _ in range(100):
                conn.send(piece)
        else:
            conn.body(req)
            conn.send(OK)
    e.U.play(script)
    bodies = [e.client().send(head + b"x") for _ in range(20)]
    readers = [e.client(rcvbuf=4096).send(b"GET /large HTTP/1.1\r\nHost: a.test\r\n\r\n") for _ in range(5)]
    for _ in range(20):
        start = time.monotonic()
        assert e.get().status == 200
        assert time.monotonic() - start < 1 * SLACK
    for c in bodies:                    # one octet, then none: the gap is over
        assert c.response().status == 408
        c.ended()
    until(lambda: all(rx_queue(c.peer, c.name) is None for c in readers), 20, "the kernel to have let go of what nobody reads")
    until(lambda: not [x for x in e.U.live() if x.requests[-1].target == b"/large"], 10, "their upstream connections to be closed")


# ---------------------------------------------------------------------------------------------------------------------------
# the end

def refuses(port):
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except ConnectionRefusedError:
        return True
    return False


@pytest.mark.parametrize("workers", [1, 2])
def test_b64_what_the_kernel_has_taken_is_served(fresh, workers):
    """Connections that wait for accept, and requests that wait on kept connections, when SIGTERM comes."""
    e = fresh(ONE, workers=workers)
    e.U.play(OK)
    kept, idle = [e.client() for _ in range(10)], [e.client() for _ in range(5)]
    for c in kept + idle:
        assert c.get().status == 200
    stopped(e)
    new = [e.client().send(GET) for _ in range(20)]
    for c in kept:
        c.send(GET)
    e.ramjet.signal(signal.SIGTERM)
    e.ramjet.signal(signal.SIGCONT)
    for c in new + kept:
        r = c.response()
        assert (r.status, r.body) == (200, b"ok")        # without Connection: close when it was served before the worker heard of the drain
        c.closed()
        c.close()
    for c in idle:
        c.closed()
        c.close()
    assert e.ramjet.wait() == 0


def test_b64_a_request_behind_an_answer_that_promised_more_is_served(fresh):
    """Two requests at once; the drain begins within the content of the first answer, whose head has said nothing of an end."""
    e = fresh(ONE)
    rest = threading.Event()
    e.U.play([b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nha", rest, b"lf"], OK)
    c = e.client().send(GET + GET.replace(b" / ", b" /second "))
    c.saw(b"ha")
    e.ramjet.signal(signal.SIGTERM)
    until(lambda: refuses(e.ramjet.port), 10, "the listener to be closed")
    rest.set()
    r = c.response()
    assert (r.status, r.body, is_close(r)) == (200, b"half", False)
    r = c.response()
    assert (r.status, r.body, is_close(r)) == (200, b"ok", True)
    c.closed()
    c.close()
    assert e.ramjet.wait() == 0


def test_b64_a_connection_that_asks_nothing_delays_no_drain(fresh):
    e = fresh(ONE)
    c = e.client()
    until(lambda: e.ramjet.metric("ramjet_connections_accepted_total"), 5, "the connection to be accepted")
    e.ramjet.signal(signal.SIGTERM)
    start = time.monotonic()
    c.closed()
    c.close()
    assert e.ramjet.wait() == 0
    assert time.monotonic() - start < 3 * SLACK


DELAY = "[ramjet]\nshutdown-delay = 1500ms\nworker-shutdown-timeout = 30s\n" + ONE


def test_b64_drain_behind_a_delay_fails_nothing(fresh):
    """100 kept connections that go on asking, 20 downloads that outlast the delay, 10 tunnels, and new connections all through the delay, which is
    long enough for a busy machine."""
    delay = 8 * SLACK
    e = fresh(DELAY.replace("1500ms", f"{int(delay * 1000)}ms"), workers=2)
    body, release, gone = noise(1 << 20), threading.Event(), threading.Event()
    failed, last, renewed = [], [], []

    def script(conn, req):
        if req.target == b"/ws":
            echo(conn, req)
        elif req.target == b"/large":
            conn.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body[:-1])
            release.wait(30 * SLACK)
            conn.send(body[-1:])
        else:
            conn.send(OK)
    e.U.play(script)

    def keeps_asking(i):
        """A client as they are: asks now and then, takes a new connection when told that this was the last answer, until it is turned away."""
        try:
            while not gone.is_set():
                with Client(e.ramjet.port) as c:
                    while not gone.is_set():
                        r = c.get(f"/{i}")
                        assert (r.status, r.body) == (200, b"ok")
                        if is_close(r):
                            last.append(i)
                            c.closed()
                            break
                        pass_time(0.25)
                if last:
                    pass_time(0.25)
        except Exception as why:        # noqa: BLE001 - counted
            failed.append(f"{i}: {why!r}")

    def comes_new(_i):
        try:
            while not gone.is_set():
                r = e.get("/new")
                assert r.status == 200
                if is_close(r):
                    renewed.append(time.monotonic())
                pass_time(0.05)
        except Exception as why:        # noqa: BLE001 - counted
            failed.append(f"new: {why!r}")
    threads = [threading.Thread(target=keeps_asking, args=(i,), daemon=True) for i in range(100)]
    threads += [threading.Thread(target=comes_new, args=(i,), daemon=True) for i in range(2)]
    downloads = [e.client().send(b"GET /large HTTP/1.1\r\nHost: a.test\r\n\r\n") for _ in range(20)]
    tunnels = [e.client().send(UPGRADE) for _ in range(10)]
    for c in tunnels:
        assert c.response().status == 101
    for t in threads:
        t.start()
    until(lambda: len({q.target for q in e.U.requests}) >= 103, 10, "every client to have asked")
    e.ramjet.signal(signal.SIGTERM)
    start = time.monotonic()
    until(lambda: e.ramjet.admin("/readyz").status == 503, 5, "readiness to fail")
    assert time.monotonic() - start < delay
    assert e.ramjet.admin("/healthz").status == 200
    until(lambda: len(set(last)) == 100 and len(renewed) > 5 and renewed[-1] - start > 0.7, delay / SLACK, "the endpoint to be taken out everywhere")
    gone.set()
    for t in threads:
        t.join(10 * SLACK)
    assert not failed, failed[:5]

    def refused():
        try:
            Client(e.ramjet.port).close()
            return False
        except ConnectionRefusedError:
            return True
    until(refused, 10, "the listener to be closed behind the delay")
    for c in tunnels:
        c.send(b"ping")
        assert c.wire.exactly(4) == b"ping"
    release.set()
    for c in downloads:
        r = c.response()
        assert sha256(r.body) == sha256(body)
    assert e.ramjet.alive()
    for c in tunnels:
        c.half_close()
        c.closed()
    assert e.ramjet.wait(10) == 0
    assert time.monotonic() - start < 30 * SLACK, "before the deadline"


@pytest.mark.parametrize("signals", [(signal.SIGTERM, signal.SIGTERM), (signal.SIGTERM, signal.SIGINT), (signal.SIGINT, signal.SIGTERM)],
                         ids=["TERM TERM", "TERM INT", "INT TERM"])
@pytest.mark.parametrize("template", [DELAY.replace("1500ms", "60s"), ONE], ids=["in the delay", "in the drain"])
def test_b64_a_second_signal_forces(fresh, signals, template):
    e = fresh(template)
    e.U.play([HOLD])
    c = e.client().send(GET)
    until(lambda: e.U.requests, 5, "the held request")
    e.ramjet.signal(signals[0])
    until(lambda: "draining" in e.ramjet.stderr(), 5, "the drain to be logged")
    assert e.ramjet.alive()
    e.ramjet.signal(signals[1])
    start = time.monotonic()
    assert e.ramjet.wait(5) in (0, 1)
    assert time.monotonic() - start < 3 * SLACK
    c.ended()
