"""HTTP/1.1 both ways: connections, framing, interim answers, HTTP/1.0, early ends."""
import threading

import pytest

from harness import (BODY, CLOSE, EARLY, GET, HOLD, OK, ONE, RST, Eof, chunked, noise, rx_queue, until)


def answer(body, fields=b""):
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n%s\r\n%s" % (len(body), fields, body)


def is_close(r):
    return b"close" in (r.get(b"Connection") or b"").lower()


# ---------------------------------------------------------------------------------------------------------------------------
# connections

def test_keep_alive(edge):
    e = edge(ONE)
    c = e.client()
    for i in range(20):
        c.send(b"GET /%d HTTP/1.1\r\nHost: a.test\r\n\r\n" % i)
        if i == 0:
            e.U.play(*[answer(b"%d" % n) for n in range(20)])
        r = c.response()
        assert (r.status, r.body) == (200, b"%d" % i)
        assert not is_close(r)
    assert c.open()
    assert len(e.U.conns) == 1, "the upstream connection is kept too"


def test_connection_close_of_the_client(edge):
    e = edge(ONE)
    client = b"GET / HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n" + GET
    (r,), c = e.talk(client, OK)
    assert r.status == 200 and is_close(r)
    c.closed()
    assert len(e.U.requests) == 1
    assert not is_close(e.U.request)
    until(lambda: e.idle("s") == 1, 5, "the upstream connection to be kept")


def test_connection_close_in_a_list(edge):
    e = edge(ONE)
    client = b"GET / HTTP/1.1\r\nHost: a.test\r\nConnection: x, Close\r\n\r\n" + GET
    (r,), c = e.talk(client, OK)
    assert is_close(r)
    c.closed()


def test_connection_close_of_the_upstream_ends_there(edge):
    e = edge(ONE)
    upstream = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok"
    (r, r2), c = e.talk(GET + GET, ([upstream, CLOSE], OK), ("GET", "GET"))
    assert r.status == r2.status == 200
    assert not is_close(r), "the client's connection has nothing to do with the upstream's"
    assert [q.conn for q in e.U.requests] == [0, 1]


def test_every_split_of_a_request(edge):
    e = edge(ONE)
    client = b"POST /x HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nX-T: 1\r\n\r\n"
    e.U.play(OK)
    for i in range(1, len(client)):
        c = e.client().send(client[:i], client[i:])
        assert c.response().status == 200, i
        c.close()
    assert all((q.target, q.body, q.complete) == (b"/x", b"hello", True) for q in e.U.requests)
    assert len(e.U.requests) == len(client) - 1


def test_octet_by_octet(edge):
    e = edge(ONE)
    client = b"POST /x?y HTTP/1.1\r\nHost: a.test\r\nContent-Length: 5\r\n\r\nhello"
    c = e.client().send(*[client[i:i + 1] for i in range(len(client))])
    e.U.play(OK)
    assert c.response().status == 200
    assert (e.U.request.target, e.U.request.body) == (b"/x?y", b"hello")


@pytest.mark.parametrize("upstream, body", [
    (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-A: b\r\n\r\nhello", b"hello"),
    (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;x\r\nhel\r\n2\r\nlo\r\n0\r\nX-T: 1\r\n\r\n", b"hello"),
], ids=["counted", "100 and chunked"])
def test_every_split_of_a_response(edge, upstream, body):
    e = edge(ONE)
    c = e.client()

    def pieces(conn, req, state=[0]):
        i = state[0] = state[0] % (len(upstream) - 1) + 1
        conn.send(upstream[:i])
        until(lambda: not rx_queue(conn.sock.getpeername(), conn.sock.getsockname()), 5, "the piece before to be read")
        conn.send(upstream[i:])
    e.U.play(pieces)
    for i in range(1, len(upstream)):
        c.send(GET)
        r = c.response()
        assert (r.status, r.body) == (200, body), i
    assert len(e.U.conns) == 1


# ---------------------------------------------------------------------------------------------------------------------------
# pipelining

def test_pipelining_keeps_the_order(edge):
    e = edge(ONE)
    client = (b"GET /1 HTTP/1.1\r\nHost: a.test\r\n\r\n" b"GET /2 HTTP/1.1\r\nHost: a.test\r\n\r\n"
              b"POST /3 HTTP/1.1\r\nHost: a.test\r\nContent-Length: 3\r\n\r\nabc" b"GET /4 HTTP/1.1\r\nHost: a.test\r\n\r\n")
    held = threading.Event()
    e.U.play([held, answer(b"1")], answer(b"2"), answer(b"3"), answer(b"4"))
    c = e.client().send(client)
    until(lambda: e.U.requests, 5, "the first request")
    until(lambda: not rx_queue(c.peer, c.name), 5, "the pipeline to be read")
    assert len(e.U.requests) == 1, "one at a time"
    held.set()
    assert [c.response().body for _ in range(4)] == [b"1", b"2", b"3", b"4"]
    assert [(q.method, q.target, q.body) for q in e.U.requests] == [(b"GET", b"/1", b""), (b"GET", b"/2", b""), (b"POST", b"/3", b"abc"), (b"GET", b"/4", b"")]
    assert c.open()


def test_pipelining_with_a_malformed_third(edge):
    e = edge(ONE)
    client = (b"GET /1 HTTP/1.1\r\nHost: a.test\r\n\r\n" b"GET /2 HTTP/1.1\r\nHost: a.test\r\n\r\n"
              b"POST /3 HTTP/1.1\r\nHost: a.test\r\nContent-Length: x\r\n\r\nabc" b"GET /4 HTTP/1.1\r\nHost: a.test\r\n\r\n")
    (r1, r2, r3), c = e.talk(client, (answer(b"1"), answer(b"2")), ("GET", "GET", "POST"))
    assert (r1.body, r2.body, r3.status) == (b"1", b"2", 400)
    assert is_close(r3)
    c.closed()
    assert [q.target for q in e.U.requests] == [b"/1", b"/2"]


def test_pipelining_of_hundreds(edge):
    e = edge(ONE)
    client = b"".join(b"GET /%d HTTP/1.1\r\nHost: a.test\r\n\r\n" % i for i in range(500))
    e.U.play(lambda conn, req: conn.send(answer(req.target)))
    c = e.client()
    threading.Thread(target=c.sock.sendall, args=(client,), daemon=True).start()
    assert [c.response().body for _ in range(500)] == [b"/%d" % i for i in range(500)]
    assert c.open()


def test_pipelining_across_heads_and_bodies(edge):
    e = edge(ONE)
    body = noise(70000)
    client = (b"HEAD /1 HTTP/1.1\r\nHost: a.test\r\n\r\n" b"POST /2 HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked(body, body)
              + b"GET /3 HTTP/1.1\r\nHost: a.test\r\n\r\n")
    upstream = (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", answer(body), answer(b"3"))
    (r1, r2, r3), c = e.talk(client, upstream, ("HEAD", "POST", "GET"))
    assert (r1.get(b"Content-Length"), r2.body, r3.body) == (b"5", body, b"3")
    assert e.U.requests[1].body == body + body


# ---------------------------------------------------------------------------------------------------------------------------
# framing

def test_framing_of_a_counted_body(edge):
    e = edge(ONE)
    client = b"POST / HTTP/1.1\r\nHost: a.test\r\ncontent-length: 5\r\n\r\nhello"
    upstream = b"HTTP/1.1 201 Created\r\ncontent-length: 3\r\n\r\nyes"
    r = e.one(client, upstream)
    assert (r.status, r.body, r.all(b"Content-Length"), r.all(b"Transfer-Encoding")) == (201, b"yes", [b"3"], [])
    q = e.U.request
    assert (q.body, q.all(b"Content-Length"), q.all(b"Transfer-Encoding")) == (b"hello", [b"5"], [])


def test_framing_of_a_chunked_body(edge):
    e = edge(ONE)
    client = b"POST / HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nh\r\n4;x=y\r\nello\r\n0\r\n\r\n"
    upstream = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;x=y\r\nye\r\n1\r\ns\r\n0\r\n\r\n"
    r = e.one(client, upstream)
    assert (r.body, r.all(b"Content-Length"), r.framing) == (b"yes", [], "chunked")
    q = e.U.request
    assert (q.body, q.all(b"Content-Length"), q.framing) == (b"hello", [], "chunked")


def test_no_framing_without_a_body(edge):
    e = edge(ONE)
    for method in ("GET", "HEAD", "DELETE", "OPTIONS"):
        e.U.reset()
        e.one(f"{method} / HTTP/1.1\r\nHost: a.test\r\n\r\n".encode(), OK if method != "HEAD" else b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n", method)
        q = e.U.request
        assert q.all(b"Transfer-Encoding") == [] and q.get(b"Content-Length") in (None, b"0"), method


def test_streaming_of_chunks(edge):
    """A chunk arrives at the other side before the next one is sent."""
    e = edge(ONE)
    c = e.client().send(b"POST / HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n")

    def echo(conn, req):
        conn.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        conn.body(req, lambda data: conn.send(b"%x\r\n%s\r\n" % (len(data), data)))
        conn.send(b"0\r\n\r\n")
    e.U.play(lambda conn, req: echo(conn, req))
    for i in range(10):
        c.send(b"2\r\n%02d\r\n" % i)
        c.saw(b"2\r\n%02d\r\n" % i)
    c.send(b"0\r\n\r\n")
    r = c.response()
    assert r.body == b"".join(b"%02d" % i for i in range(10))


def test_trailers_of_a_request(edge):
    e = edge(ONE)
    client = (b"POST / HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nX-Sum: 1\r\nContent-Length: 100\r\nX-Forwarded-For: 6.6.6.6\r\n\r\n" + GET)
    (r, r2), _ = e.talk(client, OK, ("POST", "GET"))
    assert r.status == r2.status == 200
    q = e.U.requests[0]
    assert q.body == b"hello"
    assert q.trailers in ([], [(b"X-Sum", b"1")]), q.trailers
    assert q.get(b"X-Sum") is None and q.get(b"X-Forwarded-For") == b"127.0.0.1"


def test_trailers_of_a_response(edge):
    e = edge(ONE)
    upstream = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nX-Sum: 1\r\nContent-Length: 100\r\nSet-Cookie: a=b\r\n\r\n"
    (r, r2), _ = e.talk(b"GET / HTTP/1.1\r\nHost: a.test\r\nTE: trailers\r\n\r\n" + GET, (upstream, OK), ("GET", "GET"))
    assert (r.body, r2.body) == (b"hello", b"ok")
    names = [n.lower() for n, _ in r.trailers]
    assert b"content-length" not in names and set(names) <= {b"x-sum", b"set-cookie"}


def test_trailers_pass(edge):
    e = edge(ONE)
    client = b"POST / HTTP/1.1\r\nHost: a.test\r\nTE: trailers\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nX-Sum: 1\r\n\r\n"
    upstream = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Res\r\n\r\n5\r\nworld\r\n0\r\nX-Res: 2\r\n\r\n"
    r = e.one(client, upstream)
    assert r.trailers == [(b"X-Res", b"2")]
    assert e.U.request.trailers == [(b"X-Sum", b"1")]


@pytest.mark.parametrize("body", [b"", b"x", b"hello" * 5000], ids=len)
def test_close_delimited_answer(edge, body):
    e = edge(ONE)
    upstream = [b"HTTP/1.1 200 OK\r\nX-A: b\r\n\r\n" + body, CLOSE]
    (r, r2), c = e.talk(GET + GET, (upstream, OK), ("GET", "GET"))
    assert (r.status, r.body, r.framing) == (200, body, "chunked"), "a 1.1 client gets chunks and keeps its connection"
    assert r2.status == 200
    assert c.open()


# ---------------------------------------------------------------------------------------------------------------------------
# answers without a body

@pytest.mark.parametrize("status, fields", [(204, b""), (304, b"ETag: \"x\"\r\n"), (200, b"Content-Length: 0\r\n"), (304, b"Content-Length: 77\r\n")],
                         ids=["204", "304", "200", "304 with a length"])
def test_bodyless_answer_comes_at_once(edge, status, fields):
    e = edge(ONE)
    upstream = [b"HTTP/1.1 %d X\r\n%s\r\n" % (status, fields)]
    (r, r2), c = e.talk(GET + GET, (upstream, OK), ("GET", "GET"))
    assert (r.status, r.body, r2.body) == (status, b"", b"ok")
    assert [q.conn for q in e.U.requests] == [0, 0]


def test_head(edge):
    e = edge(ONE)
    client = b"HEAD /1 HTTP/1.1\r\nHost: a.test\r\n\r\n" b"GET /2 HTTP/1.1\r\nHost: a.test\r\n\r\n"
    upstream = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\nX-A: b\r\n\r\n"
    (r, r2), _ = e.talk(client, (upstream, OK), ("HEAD", "GET"))
    assert (r.get(b"Content-Length"), r.get(b"X-A"), r2.body) == (b"1000000", b"b", b"ok")


def test_head_with_chunked(edge):
    e = edge(ONE)
    client = b"HEAD / HTTP/1.1\r\nHost: a.test\r\n\r\n" b"GET /2 HTTP/1.1\r\nHost: a.test\r\n\r\n"
    upstream = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    (r, r2), _ = e.talk(client, (upstream, OK), ("HEAD", "GET"))
    assert (r.status, r2.status, r2.body) == (200, 200, b"ok")


def test_own_answer_to_head_has_no_body(edge):
    e = edge(ONE)
    client = b"HEAD / HTTP/1.1\r\nHost: none.test\r\n\r\n" + GET
    (r, r2), _ = e.talk(client, OK, ("HEAD", "GET"))
    assert (r.status, r2.status) == (404, 200)


# ---------------------------------------------------------------------------------------------------------------------------
# interim answers and Expect

def test_interim_answers_pass(edge):
    e = edge(ONE)
    upstream = b"HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\nConnection: x\r\n\r\nHTTP/1.1 102 Processing\r\n\r\n" + OK
    r = e.one(GET, upstream)
    assert r.status == 200
    assert [x.status for x in r.interim] == [103, 102]
    assert r.interim[0].get(b"Link") == b"</a.css>"


def test_interim_answers_do_not_reach_1_0(edge):
    e = edge(ONE)
    upstream = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\n\r\n" + OK
    r = e.one(b"GET / HTTP/1.0\r\nHost: a.test\r\n\r\n", upstream)
    assert (r.status, r.interim) == (200, [])


def test_late_unasked_100_shifts_nothing(edge):
    e = edge(ONE)
    c = e.client().send(b"GET /1 HTTP/1.1\r\nHost: a.test\r\n\r\n")

    def read_by_ramjet(conn, _req):
        until(lambda: not rx_queue(conn.sock.getpeername(), conn.sock.getsockname()), 5, "the 100 to be read")
    e.U.play([b"HTTP/1.1 100 Continue\r\n\r\n", read_by_ramjet, answer(b"11")], answer(b"22"))
    assert c.response().body == b"11"
    c.send(b"GET /2 HTTP/1.1\r\nHost: a.test\r\n\r\n")
    assert c.response().body == b"22"


EXPECT = b"POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n"


def read_100(c):
    """Reads one interim answer."""
    head = bytearray()
    while not head.endswith(b"\r\n\r\n"):
        head += c.wire.exactly(1)
    assert head.startswith(b"HTTP/1.1 100 "), head
    return bytes(head)


def test_expect_upstream_says_100(edge):
    e = edge(ONE)
    c = e.client().send(EXPECT)
    e.U.play([EARLY, b"HTTP/1.1 100 Continue\r\n\r\n", BODY, OK])
    read_100(c)
    c.send(b"hello")
    r = c.response()
    assert (r.status, r.interim) == (200, []), "exactly one 100"
    assert e.U.request.body == b"hello"


def test_expect_upstream_only_reads(edge):
    e = edge(ONE)
    c = e.client().send(EXPECT)
    e.U.play(OK)
    read_100(c)
    c.send(b"hello")
    assert c.response().status == 200
    assert e.U.request.body == b"hello"


@pytest.mark.parametrize("status", [417, 401, 200])
def test_expect_final_answer_first(edge, status):
    e = edge(ONE)
    c = e.client().send(EXPECT)
    e.U.play([EARLY, b"HTTP/1.1 %d No\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno" % status, CLOSE])
    r = c.response("POST")
    if r.interim:                       # a 100 of our own may come first, then the body is due
        assert [x.status for x in r.interim] == [100]
    assert (r.status, r.body) == (status, b"no")
    if is_close(r):
        c.closed()
    else:
        e.U.play(OK)
        c.send(b"hello" + GET)
        assert c.response().status == 200


def test_expect_client_sends_at_once(edge):
    e = edge(ONE)
    client = EXPECT + b"hello" + GET
    (r, r2), _ = e.talk(client, OK, ("POST", "GET"))
    assert [x.status for x in r.interim] in ([], [100])
    assert (r.status, r2.status, r2.interim) == (200, 200, [])
    assert e.U.requests[0].body == b"hello"


def test_expect_without_a_body(edge):
    e = edge(ONE)
    client = b"GET / HTTP/1.1\r\nHost: a.test\r\nExpect: 100-continue\r\n\r\n"
    r = e.one(client, OK)
    assert r.status == 200


def test_expect_in_1_0_is_ignored(edge):
    e = edge(ONE)
    client = b"POST / HTTP/1.0\r\nHost: a.test\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\nhello"
    r = e.one(client, OK)
    assert (r.status, r.interim) == (200, [])
    assert e.U.request.body == b"hello"


# ---------------------------------------------------------------------------------------------------------------------------
# HTTP/1.0 clients

def test_1_0_closes(edge):
    e = edge(ONE)
    client = b"GET / HTTP/1.0\r\nHost: a.test\r\n\r\n"
    (r,), c = e.talk(client, OK)
    assert r.body == b"ok"
    c.closed()
    assert e.U.request.minor == 1, "upstream is spoken to in 1.1"


def test_1_0_keep_alive(edge):
    e = edge(ONE)
    client = b"GET / HTTP/1.0\r\nHost: a.test\r\nConnection: Keep-Alive\r\n\r\n"
    (r, r2), c = e.talk(client + b"GET / HTTP/1.0\r\nHost: a.test\r\n\r\n", OK, ("GET", "GET"))
    assert r.body == r2.body == b"ok"
    assert b"keep-alive" in (r.get(b"Connection") or b"").lower()
    c.closed()


@pytest.mark.parametrize("connection", [b"", b"Connection: keep-alive\r\n"], ids=["close", "keep-alive"])
def test_1_0_gets_no_chunks(edge, connection):
    e = edge(ONE)
    client = b"GET / HTTP/1.0\r\nHost: a.test\r\n" + connection + b"\r\n"
    upstream = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n6\r\n world\r\n0\r\nX-T: 1\r\n\r\n"
    (r,), c = e.talk(client, upstream)
    assert (r.body, r.framing) == (b"hello world", None)
    assert b"keep-alive" not in (r.get(b"Connection") or b"").lower()
    c.closed()


def test_1_0_close_delimited(edge):
    e = edge(ONE)
    (r,), c = e.talk(b"GET / HTTP/1.0\r\nHost: a.test\r\nConnection: keep-alive\r\n\r\n", [b"HTTP/1.0 200 OK\r\n\r\nhello", CLOSE])
    assert (r.body, r.framing) == (b"hello", None)
    c.closed()


def test_1_0_post(edge):
    e = edge(ONE)
    r = e.one(b"POST / HTTP/1.0\r\nHost: a.test\r\nContent-Length: 5\r\n\r\nhello", OK)
    assert r.status == 200
    assert e.U.request.body == b"hello"


# ---------------------------------------------------------------------------------------------------------------------------
# early answers and early ends

UNLIMITED = ONE + "proxy-body-size = 0\n"


def test_early_answer_before_any_of_the_body(edge):
    e = edge(UNLIMITED)
    c = e.client().send(b"POST /big HTTP/1.1\r\nHost: a.test\r\nContent-Length: 10000000\r\n\r\n")
    e.U.play([EARLY, b"HTTP/1.1 403 No\r\nContent-Length: 2\r\n\r\nno", HOLD])
    r = c.response("POST")
    assert (r.status, r.body) == (403, b"no")
    assert is_close(r)
    c.closed()


def test_streamed_answer_while_the_body_comes(edge):
    """Both directions of one exchange at once: an answer that begins early is not the end of the request."""
    e = edge(UNLIMITED)
    c = e.client().send(b"POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 10\r\n\r\nhello")
    e.U.play([EARLY, b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n", BODY, b"6\r\nsecond\r\n0\r\n\r\n"])
    c.saw(b"first")
    c.send_lossy(b"world")
    r = c.response("POST")
    assert r.body == b"firstsecond"
    assert e.U.request.body == b"helloworld"


@pytest.mark.parametrize("client", [GET, b"POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 5\r\n\r\nhello",
                                    b"POST / HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
                                    b"GET / HTTP/1.0\r\nHost: a.test\r\n\r\n"], ids=["GET", "counted", "chunked", "1.0"])
def test_half_closing_client_gets_everything(edge, client):
    e = edge(ONE)
    body = noise(1 << 20)
    c = e.client().send(client).half_close()

    def fin_seen(conn, _req):
        until(lambda: not rx_queue(c.peer, c.name), 5, "the FIN to be there")
    e.U.play([fin_seen, answer(body)])
    r = c.response()
    assert r.body == body
    c.closed()


def test_half_close_after_a_pipeline(edge):
    e = edge(ONE)
    c = e.client().send(GET * 5).half_close()
    e.U.play(OK)
    assert [c.response().status for _ in range(5)] == [200] * 5
    c.closed()


def test_client_that_vanishes_frees_the_upstream(edge):
    e = edge(ONE)
    c = e.client().send(GET)
    e.U.play([b"HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\n" + bytes(100000), HOLD])
    until(lambda: c.wire.fill() and len(c.wire.raw) > 50000, 5, "the beginning of the answer")
    c.reset()
    until(lambda: not e.U.live(), 10, "the upstream connection to be closed")


def test_lingering_close(edge):
    """The client writes all of a body that is over the limit and reads only then: the 413 is there."""
    e = edge(ONE + "proxy-body-size = 1m\n")
    c = e.client()
    c.send_lossy(b"POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 10000000\r\n\r\n")
    c.send_lossy(bytes(10_000_000))
    r = c.response("POST")
    assert r.status == 413 and r.body.startswith(b"413 ")
    assert is_close(r)
    c.ended()
    assert not e.U.requests


@pytest.mark.parametrize("client", [b"GET / HTTP/1.1\r\nHost: a.test\r\nX: a\x00\r\n\r\n", b"POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: x\r\n\r\n"],
                         ids=["NUL", "length"])
def test_lingering_close_of_a_bad_request(edge, client):
    e = edge(ONE)
    c = e.client()
    c.send_lossy(client + bytes(200_000))
    c.send_lossy(bytes(200_000))
    r = c.response()
    assert r.status == 400 and is_close(r)
    c.ended()


def test_answer_cut_by_the_upstream_is_cut_for_the_client(edge):
    e = edge(ONE)
    for head, end in ((b"Content-Length: 100000", CLOSE), (b"Transfer-Encoding: chunked", CLOSE), (b"Content-Length: 100000", RST)):
        c = e.client().send(GET)
        body = bytes(50000) if b"Length" in head else b"c350\r\n" + bytes(50000) + b"\r\n"
        e.U.play([b"HTTP/1.1 200 OK\r\n" + head + b"\r\n\r\n" + body, end], OK)
        with pytest.raises((Eof, ConnectionResetError)):
            c.response()
        e.U.reset()


def test_own_answers_have_the_same_form(edge):
    e = edge(ONE)
    r = e.one(b"GET / HTTP/1.1\r\nHost: none.test\r\n\r\n")
    assert (r.status, r.reason, r.get(b"Content-Type"), r.body) == (404, b"Not Found", b"text/plain; charset=utf-8", b"404 Not Found\n")
    assert r.get(b"Server") is None
    r = e.one(b"GET / HTTP/1.1\r\n\r\n")
    assert (r.status, r.get(b"Content-Type"), r.body, r.get(b"Connection")) == (400, b"text/plain; charset=utf-8", b"400 Bad Request\n", b"close")


def test_server_tokens(edge):
    e = edge("[ramjet]\nserver-tokens = true\n" + ONE)
    assert e.one(b"GET / HTTP/1.1\r\nHost: none.test\r\n\r\n").get(b"Server") == b"ramjet"
