"""Every row of rows.py on both engines: what a client may send, what an upstream may send; in one piece, and in several."""
import random
import threading

import pytest

import rows
from harness import CLOSE, OK, ONE, RST, Bad, Eof, rx_queue, until

ROUTE = ONE + """
[backend v]
endpoint = $V

[route secret]
host = a.test
path = /secret
type = prefix
backend = v
"""

CUT_BYTES = 3000         # longer rows come in one piece only
OCTETS_EACH = 8          # every so-manyth short row also comes octet by octet
OCTETS_BYTES = 500

# What a request may gain on its way, and what never passes
OWN = {b"host", b"content-length", b"transfer-encoding", b"connection", b"upgrade", b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-port",
       b"x-forwarded-proto", b"x-forwarded-scheme", b"x-real-ip", b"x-request-id"}
NEVER = {b"keep-alive", b"proxy-connection", b"te", b"proxy", b"http2-settings", b"forwarded"}


def pieces_of(row, octets):
    """The ways in which the octets of a row come, by name."""
    ways = {"whole": [octets]}
    if 2 < len(octets) <= CUT_BYTES and not getattr(row, "one_piece", False):
        rng = random.Random(row.name)
        points = sorted({rng.randrange(1, len(octets)) for _ in range(3)})
        ways["cut"] = [octets[a:b] for a, b in zip([0] + points, points + [len(octets)])]
        if len(octets) <= OCTETS_BYTES and rng.randrange(OCTETS_EACH) == 0:
            ways["octets"] = [octets[i:i + 1] for i in range(len(octets))]
    return ways


def check_clean(e):
    """A clean request on a new connection works."""
    e.U.play(OK)
    r = e.get("/clean")
    assert (r.status, r.body) == (200, b"ok")


def is_close(r):
    return (r.get(b"Connection") or b"").lower() == b"close"


# ---------------------------------------------------------------------------------------------------------------------------
# Requests

def check_end(e, c, row, r):
    """The connection ends behind the last answer, cleanly, or a next request on it is answered."""
    if row.is_over:
        assert r is None or row.fin or is_close(r), f"{r!r} does not say close"
        if r is not None:
            c.closed()
        else:
            assert not c.wire.raw or len(row.answers) > 1, f"half an answer: {bytes(c.wire.raw)!r}"
        return []
    assert not is_close(r), f"{r!r} ends the connection"
    r = c.get("/after")
    assert (r.status, r.body) == (200, b"ok"), "the connection is out of step"
    assert not c.readable()
    return [b"/after"]


def check_fields(row, q):
    """Every field is one that the client sent, or one that a proxy makes."""
    for name, value in q.fields:
        low = name.lower()
        assert low not in NEVER, f"{name!r} passed"
        if low not in OWN:
            assert name + b":" in row.octets and value in row.octets, f"{name!r}: {value!r} is not what the client sent"


def check_request(row, want, q, method):
    assert (q.method, q.target) == (want.get("method", method), want.get("target", b"/"))
    assert q.body == want.get("body", b"")
    assert q.minor == 1
    for name, value in want.get("has", {}).items():
        assert q.get(name) == value, name
    for name in want.get("lacks", ()):
        assert q.get(name) is None, name
    if "clean" in want:
        assert q.get(want["clean"]) != b"100", "a trailer became a field"
    trailers = want.get("trailers", {})
    assert sorted({n for n, _ in q.trailers}) == sorted(trailers)
    for name, value in trailers.items():
        assert b", ".join(v for n, v in q.trailers if n == name) == value
    check_fields(row, q)


def check_upstreams(e, row, after):
    """What the upstreams saw is what the row says, and nothing else."""
    first = row.octets.lstrip(b"\r\n").split(b" ")[0]
    seen = {"U": list(row.expected), "V": []}
    for want in row.expected:
        if want.get("at") == "V":
            seen["U"].remove(want)
            seen["V"].append(want)
    for name, wants in seen.items():
        upstream = getattr(e, name)
        want_targets = [w.get("target", b"/") for w in wants] + (after if name == "U" else [])
        if row.sees == rows.NOTHING and not after:
            assert b"".join(x.raw for x in upstream.conns) == b""
        if row.sees == rows.PARTIAL and name == "U":
            until(lambda: not upstream.live(), 5, "the half request at the upstream to be given up")
            assert not upstream.complete, f"a complete request reached the upstream: {upstream.complete}"
            assert len(upstream.requests) <= 1
            continue
        until(lambda: len(upstream.complete) >= len(want_targets), 2, "the requests to be complete")
        requests = upstream.requests
        assert [q.target for q in requests] == want_targets and all(q.complete for q in requests), f"at {name}: {requests}"
        for want, q in zip(wants, requests):
            check_request(row, want, q, first if want is row.expected[0] else b"GET")


def run_request(e, row, pieces):
    e.U.play(row.script, OK) if row.script is not OK else e.U.play(OK)
    e.V.play(OK)
    c = e.client()
    c.send_lossy(*pieces)
    if row.fin:
        c.half_close()
    r = None
    for status, method in zip(row.answers, row.methods):
        try:
            r = c.response(method)
        except (Eof, ConnectionResetError) as why:
            assert status is None, f"no answer ({why}); expected: {status}"
            r = None
            break
        assert r.status == status, f"{r!r}; expected: {status}"
        assert not [x for x in r.interim if x.status != 100]
    check_upstreams(e, row, check_end(e, c, row, r))
    c.close()
    e.clients.remove(c)
    check_clean(e)
    e.U.reset()
    e.V.reset()


def run_every_way(run, e, row):
    for way, pieces in pieces_of(row, row.octets).items():
        try:
            run(e, row, pieces)
        except AssertionError as why:
            raise AssertionError(f"{way}: {why}") from why


@pytest.mark.parametrize("row", rows.REQUESTS, ids=lambda r: r.name)
def test_request(edge, row):
    run_every_way(run_request, edge(ROUTE), row)


# ---------------------------------------------------------------------------------------------------------------------------
# Responses

def wait_read(conn, _req):
    """Lets ramjet read what was sent before what follows (a reset throws away what is not read yet)."""
    local, remote = conn.sock.getpeername(), conn.sock.getsockname()
    until(lambda: not rx_queue(local, remote), 5, "the octets before to be read")


def script_of(row, pieces, sent):
    steps = []
    for piece in pieces:
        steps += [piece, wait_read]
    if not pieces[-1]:
        steps = []
    steps.append(lambda _conn, _req: sent.set())
    return steps + {"": [], "fin": [CLOSE], "rst": [RST]}[row.end]


def value_of(r, name):
    """Of a field, or of a trailer when the name begins so."""
    if name.startswith(b"trailer "):
        return dict((n.lower(), v) for n, v in r.trailers).get(name[8:].lower())
    return r.get(name)


def check_answer(row, r, raw):
    """The client's final answer, or None when the connection ended before it was whole."""
    if row.status in (rows.CUT, rows.GONE) and r is None:
        return
    assert row.status != rows.CUT, f"half an answer that looks whole: {r!r}"
    assert r is not None, f"cut; expected: {row.status}; got {raw!r}"
    assert r.status == (502 if row.status == rows.GONE else row.status), f"{r!r}; expected: {row.status}"
    if row.status != rows.GONE:
        assert [x.status for x in r.interim] == list(row.interim)
    if r.status == 502:
        assert r.body == b"502 Bad Gateway\n"[:0 if row.method == "HEAD" else None]
        return
    if row.body is not None:
        assert r.body == row.body
    for name, value in row.has.items():
        assert value_of(r, name) == value, name
    for name in row.lacks:
        assert value_of(r, name) is None, name


def run_response(e, row, pieces):
    sent = threading.Event()
    e.U.play(script_of(row, pieces, sent), OK)
    e.V.play(OK)
    c = e.client().send(row.request)
    try:
        r = c.response(row.method)
    except (Eof, ConnectionResetError):
        r = None
    check_answer(row, r, bytes(c.wire.raw))
    first = e.U.conns[0]
    if row.reuse:
        assert sent.wait(5)
    else:
        until(lambda: not first.thread.is_alive(), 5, "the upstream connection to end")
    # what comes next, on this connection where it lives and on a new one otherwise, is the next answer and no left-over
    if r is None or is_close(r) or r.minor == 0 or row.request.startswith(b"GET /1 HTTP/1.0"):
        c.close()
        c = e.client()
    r = c.get("/2")
    assert (r.status, r.body) == (200, b"ok"), r
    assert not c.readable()
    second = [q for q in e.U.requests if q.target == b"/2"]
    assert len(second) == 1
    assert second[0].conn == (0 if row.reuse else 1), "which upstream connection was used"
    check_clean(e)
    for c in e.clients:
        c.close()
    e.clients = []
    e.U.reset()
    e.V.reset()


@pytest.mark.parametrize("row", rows.RESPONSES, ids=lambda r: r.name)
def test_response(edge, row):
    run_every_way(run_response, edge(ROUTE), row)


def test_every_rule_has_rows():
    for table in (rows.REQUESTS, rows.RESPONSES):
        names = [r.name for r in table]
        assert len(set(names)) == len(names)
    rules = {f"F{i}" for i in range(1, 24)} | {f"H{i}" for i in range(1, 26)} | {"7.3", "7.4", "7.6"}
    assert rules == set(rows.RULES)
    assert rules <= {r.id for r in rows.REQUESTS + rows.RESPONSES}
    assert all(r.rule for r in rows.REQUESTS + rows.RESPONSES if r.id not in rules)


def test_rows_leak_no_descriptor(fresh):
    e = fresh(ROUTE)
    e.V.play(OK)
    e.U.play(OK)
    e.get("/")
    e.settle()
    base = e.ramjet.fds()
    e.V.play(OK)
    e.U.play(OK)
    for row in rows.REQUESTS[::9]:
        c = e.client()
        c.send_lossy(row.octets)
        c.close()
    for row in rows.RESPONSES[::5]:
        e.U.play(script_of(row, [row.octets], threading.Event()))
        c = e.client().send(row.request)
        try:
            c.response(row.method)
        except (Eof, ConnectionResetError, Bad):
            pass
        c.close()
        e.U.reset()
    e.settle()
    until(lambda: e.ramjet.fds() <= base + 2, 5, f"{e.ramjet.fds()} descriptors to become {base}")
