"""Every row of rows.py on both engines: what a client may send, what an upstream may send."""
import pytest

import rows
from harness import CLOSE, OK, RST, Bad, Eof, until

ROUTE = """
[backend s]
endpoint = $U

[route r]
host = a.test
path = /
type = prefix
backend = s
"""

MUST_CLOSE = (400, 413, 414, 431, 501, 505)


def method_of(octets):
    return octets.lstrip(b"\r\n").split(b" ")[0].decode("latin-1")


def check_clean(e):
    """A clean request on a new connection works."""
    e.U.play(OK)
    r = e.get("/clean")
    assert (r.status, r.body) == (200, b"ok")


def check_refused(e, c, row, r):
    if r is None:
        assert not c.wire.raw, f"half an answer: {bytes(c.wire.raw)!r}"
    elif (r.get(b"Connection") or b"").lower() == b"close":
        c.closed()
    else:
        assert r.status not in MUST_CLOSE, f"{r.status} leaves the connection open"
        if not row.fin:
            r = c.get("/after")
            assert (r.status, r.body) == (200, b"ok"), "the connection is out of step"
            assert not c.readable()
            assert [q.target for q in e.U.requests] == [b"/after"]
            return
    if row.sees == rows.NOTHING:
        assert b"".join(x.raw for x in e.U.conns) == b""
        return
    until(lambda: not e.U.live(), 5, "the half request at the upstream to be given up")
    assert not e.U.complete, f"a complete request reached the upstream: {e.U.complete}"
    assert len(e.U.requests) <= 1


def check_accepted(e, c, row, r):
    q = e.U.request
    until(lambda: q.complete, 2, "the request to be complete")
    want = row.sees
    for attribute in ("method", "target", "body"):
        if attribute in want:
            assert getattr(q, attribute) == want[attribute], attribute
    for name, value in want.get("has", {}).items():
        assert q.get(name) == value, name
    for name in want.get("lacks", ()):
        assert q.get(name) is None, name
    for name in want.get("no_trailers", ()):
        assert name.lower() not in [n.lower() for n, _ in q.trailers], name
        assert q.get(name) is None or name in (b"Host", b"X-Forwarded-For", b"Transfer-Encoding"), f"trailer {name!r} became a field"
    assert q.get(b"Host") is not None and q.minor == 1
    if (r.get(b"Connection") or b"").lower() == b"close":
        c.closed()
        return
    r = c.get("/after")
    assert (r.status, r.body) == (200, b"ok"), "the connection is out of step"
    assert [x.target for x in e.U.requests][1:] == [b"/after"]
    assert not c.readable()


@pytest.mark.parametrize("row", rows.REQUESTS, ids=lambda r: r.name)
def test_request(edge, row):
    e = edge(ROUTE)
    e.U.play(OK)
    c = e.client()
    whole = c.send_lossy(row.octets)
    if row.fin:
        c.half_close()
    try:
        r = c.response(method_of(row.octets))
    except (Eof, ConnectionResetError) as why:
        assert None in row.status, f"no answer ({why}); allowed: {row.status}"
        r = None
    if r is not None:
        assert r.status in row.status, f"{r!r}; allowed: {row.status}"
        assert not [x for x in r.interim if x.status != 100]
    if isinstance(row.sees, dict) and r is not None and r.status == 200:
        assert whole
        check_accepted(e, c, row, r)
    else:
        check_refused(e, c, row, r)
    check_clean(e)


def script_of(row):
    return [row.octets] + {"": [], "fin": [CLOSE], "rst": [until_read(row), RST]}[row.end]


def until_read(_row):
    """Lets ramjet read what was sent before the reset that follows (a reset throws away what is not read yet)."""
    from harness import rx_queue

    def wait(conn, _req):
        local, remote = conn.sock.getpeername(), conn.sock.getsockname()
        until(lambda: not rx_queue(local, remote), 5, "the octets before the reset to be read")
    return wait


@pytest.mark.parametrize("row", rows.RESPONSES, ids=lambda r: r.name)
def test_response(edge, row):
    e = edge(ROUTE)
    client = f"{row.method} /1 HTTP/1.1\r\nHost: a.test\r\n\r\n".encode()
    e.U.play(script_of(row), OK)

    c = e.client().send(client)
    try:
        r = c.response(row.method)
    except (Eof, ConnectionResetError) as why:
        assert None in row.status, f"cut ({why}); allowed: {row.status}; got {bytes(c.wire.raw)!r}"
        r = None
    if r is not None:
        assert r.status in row.status, f"{r!r}; allowed: {row.status}"
        if r.status == 502:
            assert r.body == b"502 Bad Gateway\n"[:0 if row.method == "HEAD" else None]
        else:
            if row.body is not None:
                assert r.body == row.body
            for name, value in row.has.items():
                assert r.get(name) == value, name
            for name in row.lacks:
                assert r.get(name) is None, name
    # what comes next, on this connection where it lives and on a new one otherwise, is the next answer and no left-over
    if r is None or (r.get(b"Connection") or b"").lower() == b"close":
        c.close()
        c = e.client()
    r = c.get("/2")
    assert (r.status, r.body) == (200, b"ok"), r
    assert not c.readable()
    second = [q for q in e.U.requests if q.target == b"/2"]
    assert len(second) == 1
    if row.reuse is False:
        assert second[0].conn == 1, "the upstream connection was used again"
    if row.reuse is True:
        assert second[0].conn == 0, "the upstream connection was not used again"
    check_clean(e)


def test_rows_leak_no_descriptor(fresh):
    e = fresh(ROUTE)
    e.U.play(OK)
    e.get("/")
    e.settle()
    base = e.ramjet.fds()
    for row in rows.REQUESTS[::5]:
        c = e.client()
        c.send_lossy(row.octets)
        c.close()
    for row in rows.RESPONSES[::3]:
        e.U.play(script_of(row))
        c = e.client().send(rows.get(method=row.method.encode()))
        try:
            c.response(row.method)
        except (Eof, ConnectionResetError, Bad):
            pass
        c.close()
        e.U.reset()
    e.settle()
    until(lambda: e.ramjet.fds() <= base + 2, 5, f"{e.ramjet.fds()} descriptors to become {base}")
