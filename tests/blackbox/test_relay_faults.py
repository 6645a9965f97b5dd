"""Relays at their edges: uploads that cannot be sent again, ends that are no ends, both directions at once, octets nobody asked for."""
import os
import signal
import threading
import time

import pytest

from harness import ABRUPT, BODY, CLOSE, EARLY, GET, HOLD, OK, ONE, RST, SLACK, TWO, Eof, noise, rx_queue, sha256, until

TWO = TWO.replace("[backend s]\n", "[backend s]\nmax-fails = 0\n")
UNLIMITED = ONE + "proxy-body-size = 0\n"
THREE = TWO.replace("endpoint = $V", "endpoint = $V\nendpoint = $W")

BUSY = b"HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nbusy"
LARGE = 16 << 20                 # more than the kernel holds for a peer that does not read


def background(call, *args):
    t = threading.Thread(target=call, args=args, daemon=True)
    t.start()
    return t


def unread(conn):
    """Octets that the upstream has not read yet."""
    return rx_queue(conn.sock.getsockname(), conn.sock.getpeername())


def blocked(c):
    """Waits until ramjet holds the client back: octets of the client stay unread, the same number at three looks and for 50 ms."""
    looks = []

    def same():
        looks.append((rx_queue(c.peer, c.name), time.monotonic()))
        if looks[-1][0] != looks[0][0]:
            del looks[:-1]
        return looks[0][0] and len(looks) >= 3 and looks[-1][1] - looks[0][1] > 0.05
    until(same, 5, "the upload to stand still")


def cpu_seconds(ramjet):
    """Time on the processor of all threads so far."""
    with open(f"/proc/{ramjet.pid}/stat") as f:
        fields = f.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def read_slowly(c, seconds):
    """Takes at most a KiB at a look for the given time; the octets go where wire.fill() puts them."""
    end = time.monotonic() + seconds

    def look():
        if c.readable():
            data = c.sock.recv(1024)
            c.wire.buf += data
            c.wire.raw += data
        return time.monotonic() > end
    until(look, seconds + 5)


# ---------------------------------------------------------------------------------------------------------------------------
# An upload of which a part is gone is not sent again

PUT_HEAD = b"PUT /put HTTP/1.1\r\nHost: a.test\r\nContent-Length: 1000000\r\n\r\n"
PUT_BODY = noise(1_000_000, 3)


def some(conn, req):
    """Reads a third of the body."""
    while len(conn.wire.buf) < 300_000 and conn.wire.fill():
        pass


def put_after_the_head(e):
    """The body follows when an upstream has the head, so all of it is relayed from socket to socket."""
    before = sum(len(p.requests) for p in e.peers.values())
    c = e.client().send(PUT_HEAD)
    until(lambda: sum(len(p.requests) for p in e.peers.values()) > before, 5, "the head at an upstream")
    background(c.send_lossy, PUT_BODY)
    return c


def puts(e):
    return [q for p in e.peers.values() for q in p.requests if q.method == b"PUT"]


@pytest.mark.parametrize("how", [CLOSE, RST, ABRUPT], ids=repr)
@pytest.mark.parametrize("template, warm", [(ONE, 1), (TWO, 2), (TWO, 0)], ids=["reused", "reused, another endpoint", "fresh, another endpoint"])
def test_a_spliced_upload_is_never_sent_again(edge, template, warm, how):
    e = edge(template)
    cut = [EARLY, some, how]
    for p in e.peers.values():
        p.play(*([OK, cut] if warm else [cut]))
    assert [e.get("/warm").status for _ in range(warm)] == [200] * warm
    c = put_after_the_head(e)
    assert c.response("PUT").status == 502
    assert len(puts(e)) == 1, "nobody else sees a request with a hole"
    assert sum(len(p.requests) for p in e.peers.values()) == warm + 1


@pytest.mark.parametrize("script", [[EARLY, BODY, BUSY], [EARLY, some, BUSY, HOLD], [EARLY, some, BUSY, CLOSE]], ids=["whole", "early", "early and closed"])
@pytest.mark.parametrize("warm", [0, 2], ids=["fresh", "reused"])
def test_503_to_a_spliced_upload_goes_out(edge, script, warm):
    e = edge(TWO + "proxy-next-upstream = error http_503\n")
    for p in e.peers.values():
        p.play(*([OK, script] if warm else [script]))
    assert [e.get("/warm").status for _ in range(warm)] == [200] * warm
    c = put_after_the_head(e)
    r = c.response("PUT")
    assert (r.status, r.body) == (503, b"busy")
    assert len(puts(e)) == 1


# ---------------------------------------------------------------------------------------------------------------------------
# The limit of a worker

def test_connections_around_the_limit_of_a_worker(edge):
    """The listener rests and wakes at any moment, and is awake in the end."""
    e = edge("[ramjet]\nmax-worker-connections = 3\n" + ONE)
    e.U.play(OK)
    failures = []

    def come_and_go(number):
        try:
            for i in range(60):
                c = e.client()
                if (i + number) % 3:
                    assert c.get(f"/{number}/{i}").status == 200
                c.close()
        except Exception as why:
            failures.append(why)
    threads = [background(come_and_go, n) for n in range(6)]
    for t in threads:
        t.join(10 * SLACK)
    assert not failures and not any(t.is_alive() for t in threads), failures
    for _ in range(5):
        held = [e.client() for _ in range(3)]
        assert [c.get().status for c in held] == [200] * 3
        c = e.client().send(GET)
        for h in held:
            h.close()
        assert c.response().status == 200
        c.close()
    assert e.get().status == 200


# ---------------------------------------------------------------------------------------------------------------------------
# Both directions at once

def echo_like(e, stalls=False):
    """An upload and an answer to it that overlap, both counted; the upstream's reading stalls until it is told to read on. Returns the
    client, both bodies and the events: read on, the answer was sent, the whole upload came."""
    up, down = noise(LARGE, 1), noise(LARGE, 2)
    read_on, sent, whole = threading.Event(), threading.Event(), threading.Event()
    client = b"POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: %d\r\n\r\n" % LARGE
    c = e.client(rcvbuf=65536)
    c.wire.keep = False

    def script(conn, req):
        def answer():
            try:
                conn.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % LARGE + down[:-1000])
                if not stalls:
                    whole.wait(10 * SLACK)             # an answer that ends first would end the upload
                conn.send(down[-1000:])
                sent.set()
            except OSError:
                pass
        t = background(answer)
        if stalls:
            some(conn, req)
            read_on.wait(10 * SLACK)
        try:
            conn.body(req)
            whole.set()
        finally:
            t.join(10 * SLACK)
    e.U.play(script, OK)
    c.send(client)
    background(c.send_lossy, up)
    return c, up, down, read_on, sent, whole


def test_the_upload_ends_before_the_answer(edge):
    """Splicing one way ends; the other way goes on, and its stalls are no other client's."""
    e = edge(UNLIMITED)
    c, up, down, _, _, whole = echo_like(e)
    assert whole.wait(10 * SLACK), "the upload does not wait for the reader of the answer"
    got = bytearray(c.sock.recv(1000))
    for part in range(1, 5):
        while len(got) < part * 1_000_000:
            got += c.sock.recv(65536)
        assert e.get("/other").body == b"ok", "another client is served"
    c.wire.buf += got
    r = c.response()
    assert r.status == 200 and sha256(r.body) == sha256(down)
    posted = [q for q in e.U.requests if q.method == b"POST"]
    assert len(posted) == 1 and sha256(posted[0].body) == sha256(up)


def test_the_answer_ends_before_the_upload(edge):
    e = edge(UNLIMITED)
    c, up, down, read_on, sent, whole = echo_like(e, stalls=True)
    r = c.response()
    assert r.status == 200 and sha256(r.body) == sha256(down)
    assert sent.wait(5 * SLACK)
    assert e.get("/other").body == b"ok", "another client is served"
    read_on.set()
    assert e.get("/other").body == b"ok", "another client is served"
    assert [q.method for q in e.U.requests].count(b"POST") == 1


def test_both_ways_at_once_end_whole(edge):
    """Nobody stalls: both ways end, and a second client gets its answer in the midst."""
    e = edge(UNLIMITED)
    c, up, down, _, _, whole = echo_like(e)
    count, other = [0], []

    def sink(data):
        count[0] += len(data)
        parts.append(data)
        if count[0] > 4_000_000 and not other:
            other.append(e.get("/other"))
    parts = []
    c.response(sink=sink)
    assert sha256(b"".join(parts)) == sha256(down)
    assert other[0].body == b"ok"
    assert whole.wait(10 * SLACK), "the whole upload"
    posted = [q for q in e.U.requests if q.method == b"POST"]
    assert sha256(posted[0].body) == sha256(up)


# ---------------------------------------------------------------------------------------------------------------------------
# Ends that are no ends

HTTP_1_0 = b"GET / HTTP/1.0\r\nHost: a.test\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize("upstream", [
    [CHUNKED + b"5\r\nhello\r\n5\r\nhel", CLOSE],
    [CHUNKED + b"5\r\nhello\r\n", CLOSE],
    [CHUNKED + b"5\r\nhello\r\nzz\r\n", HOLD],
    [CHUNKED + b"5\r\nhello\r\n5\r\nhel", "seen", b"lo!!", HOLD],
    [CHUNKED + b"5\r\nhello\r\n", "seen", RST],
], ids=["in a chunk", "between chunks", "a bad size", "a bad end of a chunk", "reset"])
def test_a_cut_chunked_answer_is_reset_to_a_1_0_client(edge, upstream):
    """To HTTP/1.0 the end of the connection is the end of the content, so what is cut must not end well."""
    e = edge(ONE)
    seen = threading.Event()
    c = e.client().send(HTTP_1_0)
    e.U.play([seen if step == "seen" else step for step in upstream])
    with pytest.raises(ConnectionResetError):
        if "seen" in upstream:
            c.saw(b"hello")
            seen.set()
        c.rest()


@pytest.mark.parametrize("upstream", [[b"HTTP/1.1 200 OK\r\n\r\nhello", CLOSE], [CHUNKED + b"5\r\nhello\r\n0\r\n\r\n"]], ids=["without length", "chunked"])
def test_a_whole_answer_ends_well_for_a_1_0_client(edge, upstream):
    e = edge(ONE)
    r = e.one(HTTP_1_0, upstream)
    assert (r.framing, r.body) == (None, b"hello")


@pytest.mark.parametrize("client, piece", [
    (b"POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: %d\r\n\r\n" % LARGE, noise(LARGE, 4)),
    (b"POST / HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n", b"8000\r\n" + bytes(0x8000) + b"\r\n"),
], ids=["counted", "chunked"])
def test_a_reset_under_a_blocked_upload_is_no_end_of_the_answer(edge, client, piece):
    """The kernel tells of a reset once: to whom it told it, the upload, the answer without length does not end by it."""
    e = edge(UNLIMITED)
    c = e.client().send(client)
    reset = threading.Event()
    e.U.play([EARLY, b"HTTP/1.1 200 OK\r\n\r\nhello", reset, RST])
    background(c.send_lossy, piece * (LARGE // len(piece)))
    c.saw(b"hello")
    blocked(c)
    reset.set()
    with pytest.raises((Eof, ConnectionResetError)):
        c.response("POST")


# ---------------------------------------------------------------------------------------------------------------------------
# A client that has said all and reads slowly

@pytest.mark.parametrize("upstream", [b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (8 << 20), CHUNKED], ids=["counted", "chunked"])
def test_a_half_closed_slow_reader_costs_no_processor(edge, upstream):
    e = edge(ONE)
    body = noise(8 << 20, 5)
    c = e.client(rcvbuf=65536).send(GET)
    e.U.play([upstream + (b"%x\r\n" % len(body) + body + b"\r\n0\r\n\r\n" if upstream is CHUNKED else body)])
    c.saw(b"\r\n\r\n")
    c.half_close()
    before, start = cpu_seconds(e.ramjet), time.monotonic()
    read_slowly(c, 0.8)
    spent, passed = cpu_seconds(e.ramjet) - before, time.monotonic() - start
    assert spent < 0.25 * passed, f"{spent:.2f} s on the processor in {passed:.2f} s"
    c.wire.keep = False
    assert sha256(c.response().body) == sha256(body)


# ---------------------------------------------------------------------------------------------------------------------------
# Octets nobody asked for

STRAY = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nstray"


def own(req):
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(req.target) + req.target


def test_octets_that_wait_on_an_idle_connection_answer_nobody(edge):
    """A second answer right behind the first, in the same piece or the next: it is there when the next request comes."""
    e = edge(ONE)
    sent = threading.Event()

    def script(conn, req):
        pieces = (own(req) + STRAY,) if len(conn.upstream.requests) % 2 else (own(req), STRAY)
        try:
            for piece in pieces:
                conn.send(piece)
        finally:
            sent.set()
    e.U.play(script)
    c = e.client()
    for i in range(200):
        sent.clear()
        assert c.get(f"/{i}").body == b"/%d" % i
        assert sent.wait(5)


def stopped(ramjet):
    """True when every thread stands still."""
    states = []
    for task in os.listdir(f"/proc/{ramjet.pid}/task"):
        with open(f"/proc/{ramjet.pid}/task/{task}/stat") as f:
            states.append(f.read().rsplit(")", 1)[1].split()[0])
    return set(states) == {"T"}


@pytest.mark.parametrize("stray", [STRAY, STRAY[:20], b"x"], ids=["an answer", "part of one", "an octet"])
@pytest.mark.parametrize("first", ["stray", "request"])
def test_octets_that_come_together_with_the_next_request(edge, first, stray):
    """While ramjet stands still both arrive, in either order: it finds them at once."""
    e = edge(ONE)
    e.U.play(lambda conn, req: conn.send(own(req)))
    c = e.client()
    for i in range(20):
        assert c.get(f"/a{i}").body == b"/a%d" % i
        until(lambda: e.idle("s") == 1, 5, "the connection to be idle")
        conn = e.U.live()[-1]
        request = f"GET /b{i} HTTP/1.1\r\nHost: a.test\r\n\r\n".encode()
        e.ramjet.signal(signal.SIGSTOP)
        try:
            until(lambda: stopped(e.ramjet), 5, "ramjet to stand still")
            for who in (first, "request" if first == "stray" else "stray"):
                if who == "stray":
                    conn.send(stray)
                else:
                    c.send(request)
        finally:
            e.ramjet.signal(signal.SIGCONT)
        assert c.response().body == b"/b%d" % i


@pytest.mark.parametrize("size", [65536 + 500, 200000], ids=["one pipe", "several"])
def test_octets_behind_a_spliced_answer_answer_nobody(edge, size):
    """The next request of the pipeline is sent at the moment at which the pump is done: what it left in the socket is no answer to it."""
    e = edge(ONE)

    def script(conn, req):
        if req.target != b"/large":
            conn.send(own(req))
            return
        conn.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
        conn.send(b"b" * size + STRAY)
    e.U.play(script)
    for i in range(60):
        c = e.client()
        c.send(f"GET /large HTTP/1.1\r\nHost: a.test\r\n\r\nGET /{i} HTTP/1.1\r\nHost: a.test\r\n\r\n".encode())
        assert c.response().body == b"b" * size
        assert c.response().body == b"/%d" % i
        c.close()


# ---------------------------------------------------------------------------------------------------------------------------
# Trailers both ways

def test_trailers_of_both_ways_are_kept_apart(edge):
    e = edge(ONE)
    client = b"POST / HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nX-A: 1"
    c = e.client().send(client)
    e.U.play([EARLY, CHUNKED + b"3\r\nabc\r\n0\r\nX-B: 2\r\n\r\n"])
    r = c.response("POST")
    assert (r.body, r.trailers) == (b"abc", [(b"X-B", b"2")])


def test_trailers_of_both_ways_in_turns(edge):
    e = edge(ONE)
    client = (b"POST / HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nX-A: 1", b"\r\nX-C: 3\r\n\r\n")
    half = threading.Event()
    c = e.client().send(client[0])
    e.U.play([EARLY, CHUNKED + b"3\r\nabc\r\n0\r\nX-B:", lambda *_: half.set(), BODY, b" 2\r\nX-D: 4\r\n\r\n"])
    c.saw(b"abc")
    assert half.wait(5)
    until(lambda: not rx_queue(e.U.conns[0].sock.getpeername(), e.U.conns[0].sock.getsockname()), 5, "half of the trailers to be read")
    c.send(client[1])
    r = c.response("POST")
    assert (r.body, r.trailers) == (b"abc", [(b"X-B", b"2"), (b"X-D", b"4")])
    assert (e.U.request.body, e.U.request.trailers) == (b"hello", [(b"X-A", b"1"), (b"X-C", b"3")])


# ---------------------------------------------------------------------------------------------------------------------------
# proxy-next-upstream = http_503

def test_503_in_two_pieces_moves_on(edge):
    e = edge(TWO + "proxy-next-upstream = error http_503\n")

    def pieces(conn, _req):
        conn.send(BUSY[:15])
        until(lambda: not rx_queue(conn.sock.getpeername(), conn.sock.getsockname()), 5, "the piece before to be read")
        conn.send(BUSY[15:])
    e.U.play(pieces), e.V.play(OK)
    assert [e.get().status for _ in range(6)] == [200] * 6
    assert len(e.V.requests) == 6 and 3 <= len(e.U.requests) <= 6, "each endpoint is asked once at most"


def test_503_on_a_reused_connection_moves_on(edge):
    """It is no connection that was closed while idle: the other endpoint is next, not the same one again."""
    e = edge(TWO + "proxy-next-upstream = error http_503\n")
    e.U.play(OK, OK, BUSY), e.V.play(OK)
    assert [e.get().status for _ in range(4)] == [200] * 4
    assert len(e.U.requests) == 2 and len(e.U.conns) == 1
    assert [e.get().status for _ in range(6)] == [200] * 6
    assert len(e.V.requests) == 8 and 5 <= len(e.U.requests) <= 8, "each endpoint is asked once at most"


@pytest.mark.parametrize("warm", [0, 4], ids=["fresh", "reused"])
def test_503_of_the_last_endpoint_goes_out(edge, warm):
    e = edge(TWO + "proxy-next-upstream = error http_503\n")
    answers = [OK] * (warm // 2) + [BUSY]
    e.U.play(*answers), e.V.play(*answers)
    assert [e.get().status for _ in range(warm)] == [200] * warm
    e.new_log()
    r = e.get("/last")
    assert (r.status, r.body) == (503, b"busy")
    assert len(e.U.requests) == len(e.V.requests) == warm // 2 + 1
    assert e.log_line(lambda x: x["path"] == "/last")["tries"] == 2


@pytest.mark.parametrize("tries, seen", [(1, 1), (2, 2), (3, 3), (0, 3)])
def test_503_and_the_number_of_tries(edge, tries, seen):
    e = edge(THREE + f"proxy-next-upstream = error http_503\nproxy-next-upstream-tries = {tries}\n")
    for p in (e.U, e.V, e.W):
        p.play(BUSY)
    r = e.get("/tries")
    assert (r.status, r.body) == (503, b"busy")
    assert sum(len(p.requests) for p in (e.U, e.V, e.W)) == seen
    assert e.log_line(lambda x: x["path"] == "/tries")["tries"] == seen


# ---------------------------------------------------------------------------------------------------------------------------
# Behind a large answer

@pytest.mark.parametrize("size", [100_000, 3_490_000, 4_000_000])
@pytest.mark.parametrize("counted", [True, False], ids=["counted", "chunked"])
def test_400_behind_a_large_answer_to_a_slow_reader(edge, size, counted):
    e = edge(ONE)
    body = noise(size, 6)
    client = GET + b"GET /2 HTTP/1.1\r\nHost: a.test\r\nContent-Length: x\r\n\r\n"
    c = e.client(rcvbuf=8192).send(client)
    e.U.play([b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size + body if counted else CHUNKED + b"%x\r\n" % size + body + b"\r\n0\r\n\r\n"])
    read_slowly(c, 0.1)
    r = c.response()
    assert sha256(r.body) == sha256(body)
    assert c.response().status == 400
    c.closed()


# ---------------------------------------------------------------------------------------------------------------------------
# What the access log says of it

@pytest.mark.parametrize("client, status, line", [
    (b"GET /gone?q HTTP/1.1\r\nHost: none.test\r\n\r\n", 404, ("GET", "none.test", "/gone")),
    (b"DELETE /bad HTTP/1.1\r\nHost: a.test\r\nContent-Length: x\r\n\r\n", 400, ("DELETE", "a.test", "/bad")),
    (b"POST /both HTTP/1.1\r\nHost: a.test\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400, ("POST", "a.test", "/both")),
], ids=["404", "400", "400 for its framing"])
def test_access_log_of_a_refused_request(edge, client, status, line):
    e = edge(ONE)
    c = e.client().send(client)
    e.U.play(OK)
    assert c.response().status == status
    record = e.log_line(lambda x: x["status"] == status)
    assert (record["method"], record["host"], record["path"].split("?")[0]) == line


@pytest.mark.parametrize("ident", [b"", b"0123456789abcdef-0123456789abcdef-0123"], ids=["made", "the client's"])
def test_access_log_of_a_long_path_has_the_whole_request_id(edge, ident):
    e = edge(ONE)
    path = "/" + "p" * 199
    c = e.client().send(f"GET {path} HTTP/1.1\r\nHost: a.test\r\n".encode() + (b"X-Request-ID: " + ident + b"\r\n" if ident else b"") + b"\r\n")
    e.U.play(OK)
    assert c.response().status == 200
    sent = e.U.request.get(b"X-Request-ID")
    assert sent and (not ident or sent == ident)
    record = e.log_line()
    assert record["request_id"] == sent.decode()
    assert record["method"] == "GET" and record["host"] == "a.test" and path.startswith(record["path"].rstrip(".\u2026"))
