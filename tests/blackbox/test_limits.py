"""Every limit of a size or a count: what stands at the limit passes, one more is refused."""
import threading
import time

import pytest

from harness import DEADLINE, EARLY, GET, HOLD, OK, ONE, SANITIZED, SLACK, Eof, chunked, mib, tx_queue, until


def ok(e, client, method="GET", upstream=OK):
    r = e.one(client, upstream, method)
    assert r.status == 200, r
    return r


def refused(e, client, status):
    e.U.reset()
    e.U.play(OK)
    c = e.client()
    c.send_lossy(client)
    r = c.response()
    assert r.status == status, r
    assert r.get(b"Connection") == b"close"
    c.ended()
    assert not e.U.complete
    assert e.get().status == 200, "the next client is served"


HEAD_LIMITS = """
[ramjet]
large-client-header-buffers = 4 1k

""" + ONE


def request_line(n):
    """A request whose request line, with its CRLF, is n octets."""
    return b"GET /" + b"a" * (n - len(b"GET / HTTP/1.1\r\n")) + b" HTTP/1.1\r\nHost: a.test\r\n\r\n"


def head(n, line=900):
    """A request whose whole head is n octets, in fields of moderate size."""
    out = b"GET / HTTP/1.1\r\nHost: a.test\r\n"
    while len(out) + line < n - 200:
        out += b"X: " + b"y" * (line - 5) + b"\r\n"
    out += b"X: "
    return out + b"y" * (n - len(out) - 4) + b"\r\n\r\n"


def test_request_line(edge):
    e = edge(HEAD_LIMITS)
    ok(e, request_line(1024))
    refused(e, request_line(1025 + 2), 414)


def test_request_line_that_never_ends(edge):
    e = edge(HEAD_LIMITS)
    refused(e, b"GET /" + b"a" * 100_000, 414)


def test_request_head(edge):
    e = edge(HEAD_LIMITS)
    ok(e, head(4096))
    refused(e, head(4096 + 1), 431)


def test_request_head_that_never_ends(edge):
    e = edge(HEAD_LIMITS)
    refused(e, b"GET / HTTP/1.1\r\nHost: a.test\r\n" + b"X: y\r\n" * 20000, 431)


def test_default_head_limits(edge):
    e = edge(ONE)
    ok(e, request_line(8192))
    refused(e, request_line(8192 + 3), 414)
    ok(e, head(32768, 4000))
    refused(e, head(32768 + 1, 4000), 431)


def test_head_limit_when_it_comes_in_pieces(edge):
    e = edge(HEAD_LIMITS)
    client = head(4096)
    (r,), c = e.talk([client[i:i + 700] for i in range(0, len(client), 700)], OK)
    assert r.status == 200
    c.close()
    e.U.reset()
    client = head(4097)
    c = e.client()
    c.send_lossy(*[client[i:i + 700] for i in range(0, len(client), 700)])
    assert c.response().status == 431


@pytest.mark.parametrize("limit", [5, 100])
def test_number_of_fields(edge, limit):
    e = edge((f"[ramjet]\nmax-request-headers = {limit}\n" if limit != 100 else "") + ONE)
    fields = b"".join(b"X-%d: y\r\n" % i for i in range(limit - 1))
    ok(e, b"GET / HTTP/1.1\r\nHost: a.test\r\n" + fields + b"\r\n")
    assert len([n for n, _ in e.U.request.fields if n.startswith(b"X-") and n[2:].isdigit()]) == limit - 1
    refused(e, b"GET / HTTP/1.1\r\nHost: a.test\r\n" + fields + b"X: y\r\n\r\n", 431)


BODY_LIMIT = ONE + "proxy-body-size = 1000\n"


@pytest.mark.parametrize("config, limit", [(BODY_LIMIT, 1000), (ONE, 1 << 20)], ids=["1000", "default"])
def test_counted_body(edge, config, limit):
    e = edge(config)
    ok(e, b"POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: %d\r\n\r\n" % limit + bytes(limit))
    assert len(e.U.request.body) == limit
    refused(e, b"POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: %d\r\n\r\n" % (limit + 1) + bytes(limit + 1), 413)


def test_counted_body_is_refused_before_it_is_sent(edge):
    e = edge(BODY_LIMIT)
    refused(e, b"POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 1001\r\n\r\n", 413)
    refused(e, b"POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 1001\r\nExpect: 100-continue\r\n\r\n", 413)


@pytest.mark.parametrize("parts", [(1000,), (500, 500), (1,) * 1000])
def test_chunked_body(edge, parts):
    e = edge(BODY_LIMIT)
    post = b"POST / HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n"
    ok(e, post + chunked(*[bytes(n) for n in parts]))
    assert len(e.U.request.body) == 1000
    refused(e, post + chunked(*[bytes(n) for n in parts], b"x"), 413)


@pytest.mark.parametrize("parts", [(b"3e9\r\n",), (b"1f4\r\n", bytes(500), b"\r\n1f5\r\n"), (b"7fffffffffffffff;a=b\r\n",)])
def test_chunk_is_refused_by_its_size_before_it_is_sent(edge, parts):
    e = edge(BODY_LIMIT)
    refused(e, b"POST / HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n" + b"".join(parts), 413)


def test_body_limit_of_the_whole_and_of_a_route(edge):
    e = edge("[ramjet]\nproxy-body-size = 10\n" + ONE + """
[route big]
host = a.test
path = /big
type = prefix
backend = s
proxy-body-size = 20
[route any]
host = a.test
path = /any
type = prefix
backend = s
proxy-body-size = 0
""")

    def post(path, n):
        return b"POST %s HTTP/1.1\r\nHost: a.test\r\nContent-Length: %d\r\n\r\n" % (path, n) + bytes(n)
    ok(e, post(b"/", 10))
    refused(e, post(b"/", 11), 413)
    ok(e, post(b"/big", 20))
    refused(e, post(b"/big", 21), 413)
    ok(e, post(b"/any", 3_000_000))


def response_head(n):
    out = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n"
    while len(out) + 4000 < n - 200:
        out += b"Set-Cookie: " + b"c" * 3986 + b"\r\n"
    out += b"X: "
    return out + b"y" * (n - len(out) - 4) + b"\r\n\r\n" + b"ok"


@pytest.mark.parametrize("size, limit", [("", 16384), ("proxy-buffer-size = 4k\n", 4096), ("proxy-buffer-size = 32k\n", 32768)], ids=["default", "4k", "32k"])
def test_response_head(edge, size, limit):
    e = edge(ONE + size)
    assert ok(e, GET, upstream=response_head(limit)).body == b"ok"
    e.U.reset()
    e.new_log()
    assert e.one(GET, response_head(limit + 1)).status == 502
    assert e.log_line(lambda x: x["status"] == 502)["error"]
    e.U.reset()
    e.U.play([b"HTTP/1.1 200 OK\r\n" + b"X: " + b"y" * (1 << 20), HOLD])
    assert e.get().status == 502
    assert e.get("/", "none.test").status == 404


def test_requests_of_a_client_connection(edge):
    e = edge("[ramjet]\nkeep-alive-requests = 3\n" + ONE)
    c = e.client().send(GET * 5)
    e.U.play(OK)
    closes = [(c.response().get(b"Connection") or b"").lower() == b"close" for _ in range(3)]
    assert closes == [False, False, True]
    c.ended()
    assert len(e.U.requests) == 3


def test_requests_of_a_client_connection_without_limit(edge):
    e = edge("[ramjet]\nkeep-alive-requests = 0\n" + ONE)
    c = e.client()
    e.U.play(OK)
    for _ in range(1100):
        assert c.get().status == 200
    assert c.open()


def test_requests_of_a_client_connection_by_default(edge):
    e = edge(ONE)
    c = e.client()
    e.U.play(OK)
    for _ in range(999):
        assert (c.get().get(b"Connection") or b"").lower() != b"close"
    assert c.get().get(b"Connection") == b"close"
    c.closed()


def test_connections_of_a_worker(edge):
    """At the limit the listener rests: the next client waits in the kernel's queue, and is served when one goes."""
    e = edge("[ramjet]\nmax-worker-connections = 4\n" + ONE)
    e.U.play(OK)
    held = [e.client() for _ in range(4)]
    assert [c.get().status for c in held] == [200] * 4
    c = e.client().send(GET)
    assert e.ramjet.admin("/healthz").status == 200, "the admin listener has its own"
    assert not c.readable()
    assert held[0].get().status == 200
    assert not c.readable()
    held.pop().close()
    assert c.response().status == 200


def test_chunks_of_one_octet(edge):
    e = edge(ONE)
    client = b"POST / HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 20000 + b"0\r\n\r\n"
    r = ok(e, client, upstream=b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\ny\r\n" * 20000 + b"0\r\n\r\n")
    assert r.body == b"y" * 20000
    assert e.U.request.body == b"x" * 20000


def test_many_interim_answers_are_bounded(edge):
    """A flood of 1xx ends as an answer or as a 502, and costs no memory."""
    e = edge(ONE)
    c = e.client().send(GET)

    def flood(conn, _req):
        try:
            for _ in range(20000):
                conn.send(b"HTTP/1.1 102 Processing\r\n\r\n" * 10)
            conn.send(OK)
        except OSError:
            pass
    before = e.ramjet.rss()
    e.U.play(flood)
    try:
        assert c.response().status in (200, 502)
    except (Eof, ConnectionResetError):
        pass
    assert e.ramjet.rss() - before < mib(4)


def test_a_thousand_connections(edge):
    e = edge(ONE)
    e.U.play(OK)
    clients = [e.client() for _ in range(1000)]
    for c in clients:
        c.send(GET)
    assert all(c.response().status == 200 for c in clients)
    assert all(c.get().status == 200 for c in clients[::50])
    for c in clients:
        c.close()
    until(lambda: e.ramjet.metric("ramjet_connections", side="client") == 0, 10, "no client connection")


def test_two_requests_wait_for_nobody(edge):
    """A held request does not hold the others of its worker."""
    e = edge(ONE)
    held = threading.Event()
    c = e.client().send(b"GET /held HTTP/1.1\r\nHost: a.test\r\n\r\n")
    e.U.play_by_target({b"/held": [held, OK]})
    until(lambda: e.U.requests, 5, "the held request")
    for _ in range(20):
        assert e.get().status == 200
    held.set()
    assert c.response().status == 200


def test_memory_of_all_buffers(edge):
    """Above memory-limit a request gets 503 instead of memory; when buffers come back, all is well."""
    e = edge("[ramjet]\nmemory-limit = 1m\n" + ONE + "proxy-request-buffering = on\n")
    post = b"POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 200000\r\n\r\n"
    e.U.play(OK)
    (r,), _ = e.talk(post + bytes(200_000), OK)
    assert r.status == 200
    before = e.ramjet.rss()
    clients = [e.client() for _ in range(40)]
    for c in clients:
        c.send_lossy(post, bytes(190_000))                       # never complete: what came is held
    until(lambda: [c for c in clients if c.readable()], 5, "a refusal")
    refused = [c for c in clients if c.readable()]
    assert all(c.response().status == 503 for c in refused)
    assert e.ramjet.rss() - before < mib(4)
    for c in clients:
        c.close()
    until(lambda: e.talk(post + bytes(200_000))[0][0].status == 200, 5, "memory to come back")


def test_memory_limit_holds_under_many_large_bodies(fresh):
    """Far more body than memory-limit on 300 connections: 503 and the counter come before the limit is passed, the admin listener answers,
    and all is well when they go."""
    limit = 16 << 20
    e = fresh(f"[ramjet]\nmemory-limit = {limit}\n" + ONE + """proxy-request-buffering = on
""", workers=2)
    e.U.play(OK)
    size = 900_000
    post = b"POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: %d\r\n\r\n" % size
    assert e.talk([post, bytes(size)])[0][0].status == 200
    e.U.reset()
    e.U.play(OK)
    before, most, refused, body = e.ramjet.rss(), 0, [], bytes(size - 1)
    clients = [e.client() for _ in range(300)]
    left = {}
    for c in clients:                                            # all at once, as much of each as is taken
        c.sock.setblocking(False)
        left[c] = memoryview(post + body)
    begin = time.monotonic()

    def push():
        nonlocal most
        for c in list(left):
            try:
                left[c] = left[c][c.sock.send(left[c][:65536]):]
                if not left[c]:
                    del left[c]
            except BlockingIOError:
                pass
            except OSError:
                del left[c]
        most = max(most, e.ramjet.rss())
        return not left or time.monotonic() - begin > 8 * SLACK
    until(push, 20, "the bodies to be sent")
    for c in clients:
        c.sock.settimeout(DEADLINE)
    assert e.ramjet.admin("/healthz").status == 200
    assert e.ramjet.admin("/readyz").status == 200
    until(lambda: e.ramjet.metric("ramjet_refused_total", reason="memory"), 5, "the counter")
    refused = [c for c in clients if c.readable()]
    assert refused
    for c in refused:
        try:
            assert c.response().status == 503
        except (ConnectionResetError, BrokenPipeError, Eof):     # it went on sending what nobody reads
            pass
    print(f"figures: limit {limit >> 10} KiB, grown by {(most - before) >> 10} KiB at most, {len(refused)} of {len(clients)} refused, "
          f"counted {e.ramjet.metric('ramjet_refused_total', reason='memory'):g}")
    assert most - before < limit * (10 if SANITIZED else 1.05) + mib(1), "more than the limit, and 300 connections"
    for c in clients:
        c.close()
    until(lambda: e.ramjet.metric("ramjet_connections", side="client") <= 1, 20, "the end of all of them")
    e.U.reset()
    e.U.play(OK)
    until(lambda: e.talk([post, bytes(size)])[0][0].status == 200, 10, "memory to come back")
    count = e.ramjet.metric("ramjet_refused_total", reason="memory")
    for _ in range(20):
        assert e.talk([post, bytes(size)])[0][0].status == 200
    assert e.ramjet.metric("ramjet_refused_total", reason="memory") == count


def asks_while(e, condition, what):
    """A good client, which asks again and again on connections of its own until the condition holds: none of its requests fails."""
    n = 0

    def ask():
        nonlocal n
        n += 1
        r = e.get("/good")
        assert r.status == 200, (n, r)
        return condition()
    until(ask, 30, what)
    for _ in range(50):
        ask()


def gave_way(e):
    return e.ramjet.metric("ramjet_refused_total", reason="gave_way")


SHORT = [
    # who holds memory, its settings, its octets, the upstream's answer
    ("heads", "", b"GET / HTTP/1.1\r\nHost: a.test\r\n" + b"".join(b"X-%02d: " % i + bytes([97]) * 900 + b"\r\n" for i in range(18)), OK),
    ("short heads", "", b"GET / HTTP/1.1\r\nHo", OK),
    ("held content", "proxy-request-buffering = on\n", b"POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 100000\r\n\r\n" + bytes(20000), OK),
    ("slow content", "", b"POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 100000\r\n\r\nab", HOLD),
    ("trailers", "", b"POST / HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX-A: b", HOLD),
    ("answers", "", b"GET / HTTP/1.1\r\nHost: a.test\r\n\r\n", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked(*[bytes(30000)] * 20)),
]


@pytest.mark.parametrize("settings,octets,answer", [row[1:] for row in SHORT], ids=[row[0] for row in SHORT])
def test_who_is_slow_and_holds_memory_gives_way(fresh, settings, octets, answer):
    """Far more of them than memory-limit has room for: the slowest go, and none of the requests of a good client beside them fails."""
    limit = 4 << 20
    e = fresh(f"[ramjet]\nmemory-limit = {limit}\n" + ONE + settings)
    e.U.play_by_target({b"/": [EARLY, answer]})
    assert e.get("/good").status == 200
    before, most, clients = e.ramjet.rss(), 0, []

    def more():
        nonlocal most
        for _ in range(5 if len(clients) < 800 else 0):
            clients.append(e.client(rcvbuf=4096))
            clients[-1].send_lossy(octets)
        most = max(most, e.ramjet.rss() - before)
        return len(clients) >= 800 and gave_way(e)
    asks_while(e, more, "clients that give way")
    assert most < mib(5), "memory-limit, and a little"
    for c in clients:
        c.close()
    until(lambda: e.ramjet.metric("ramjet_connections", side="client") <= 1, 20, "the end of all of them")
    count = gave_way(e)
    for _ in range(20):
        assert e.get("/good").status == 200
    assert gave_way(e) == count


def test_nobody_gives_way_while_memory_is_not_short(edge):
    e = edge("[ramjet]\nmemory-limit = 64m\n" + ONE)
    e.U.play(OK)
    clients = [e.client().send(b"GET / HTTP/1.1\r\nHost: a.test\r\nX-A: b") for _ in range(100)]
    until(lambda: e.ramjet.metric("ramjet_connections", side="client", state="active") >= 100, 10, "all heads to be begun")
    assert all(c.send(b"\r\n\r\n").response().status == 200 for c in clients)
    assert gave_way(e) == 0


@pytest.mark.parametrize("form", ["counted", "chunked"])
def test_the_kernel_holds_little_for_a_client_until_it_reads(edge, form):
    """Its send buffer grows to megabytes on a fast network, however little the client takes; who reads is served best by that."""
    e = edge(ONE)
    size, piece = 12 << 20, 64 << 10
    head, body = {"counted": (b"Content-Length: %d" % size, bytes(size)),
                  "chunked": (b"Transfer-Encoding: chunked", (b"%x\r\n" % piece + bytes(piece) + b"\r\n") * (size // piece) + b"0\r\n\r\n")}[form]
    e.U.play([EARLY, b"HTTP/1.1 200 OK\r\n" + head + b"\r\n\r\n" + body])
    c = e.client(rcvbuf=65536).send(GET)

    def stands_at():
        seen = []

        def still():
            seen.append(tx_queue(c.peer, c.name))
            return len(seen) > 20 and seen[-1] and seen[-1] == seen[-20]
        until(still, 10, "the answer to stand still")
        return seen[-1]
    assert 0 < stands_at() <= 256 << 10
    got = b""
    while len(got) < 4 << 20:
        got += c.sock.recv(65536)
    assert stands_at() > 512 << 10
    while len(got) < size:
        got += c.sock.recv(65536)


def test_pipes_leave_descriptors_for_clients(fresh):
    """Pipes of spliced answers that nobody reads take a quarter of the descriptors at most, others are copied: more clients are served."""
    e = fresh(ONE, prefix=["prlimit", "--nofile=400:400"])
    e.U.play_by_target({b"/big": [EARLY, b"HTTP/1.1 200 OK\r\nContent-Length: 8000000\r\n\r\n" + bytes(8000000)]})
    slow = []
    for _ in range(120):
        slow.append(e.client(rcvbuf=4096).send(b"GET /big HTTP/1.1\r\nHost: a.test\r\n\r\n"))
        until(lambda: slow[-1].readable(), 10, "an answer to begin")
    assert e.get("/good").status == 200
    for c in slow:
        c.close()


def test_slow_uploads_hold_two_descriptors_each(fresh):
    """The pipe of a spliced body is lent out while the client says nothing: 120 uploads that stand still need no 240 descriptors more."""
    e = fresh("[ramjet]\nproxy-body-size = 0\n" + ONE)
    e.U.play([EARLY, HOLD])
    base = e.ramjet.fds()
    clients = [e.client().send(b"POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 1000000\r\n\r\n" + bytes(70000)) for _ in range(120)]
    until(lambda: len(e.U.requests) == 120, 20, "all uploads at the upstream")
    until(lambda: e.ramjet.fds() <= base + 2 * 120 + 2 * 34, 10, f"at most two descriptors for each (now {e.ramjet.fds() - base})")
    for c in clients:
        c.close()
