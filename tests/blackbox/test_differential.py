"""The same octets on both engines: what the client gets and what the upstream gets must be the same.

A script is client octets in pieces and one answer per request. The client ends its side after its octets, so every script ends by itself.
What may differ between two runs is made equal first: X-Request-ID, X-Forwarded-Port, Date, and where chunks are cut.
"""
import random
import threading

import pytest

import rows
from harness import CLOSE, ENGINES, OK, ONE, SLACK, Bad, Client, Edge, Eof, Wire, read_request, read_response, until

GENERATED = 400

pytestmark = pytest.mark.long


class Memory:
    """A socket that has all its octets already."""

    def __init__(self, data):
        self.data = data

    def recv(self, _n):
        data, self.data = self.data, b""
        return data


VOLATILE = {b"x-request-id": b"ID", b"x-forwarded-port": b"PORT", b"date": b"DATE"}


def plain(m):
    """A message as a comparable value: chunks joined, volatile values replaced."""
    fields = tuple((n, VOLATILE.get(n.lower(), v)) for n, v in m.fields)
    return (m.start, fields, m.framing, m.body, tuple(m.trailers), tuple(plain(x) for x in m.interim))


def answers(raw, methods):
    """The client's octets as responses to requests with these methods, and how they end."""
    wire, out = Wire(Memory(bytes(raw))), []
    try:
        for method in methods + ["GET"] * 50:
            if not wire.buf and not wire.fill():
                return out, "end"
            out.append(plain(read_response(wire, method)))
        return out, "more"
    except (Bad, Eof) as why:
        # the text of a cut differs by where it was cut
        return out, type(why).__name__


def upstream_view(raw):
    """The complete requests of one upstream connection. A half one counts for nothing: how much of it went out is a matter of time."""
    wire, out = Wire(Memory(bytes(raw))), []
    try:
        while (q := read_request(wire)) is not None:
            out.append(plain(q))
    except Eof:
        pass
    except Bad as why:
        out.append(f"malformed: {why}")
    return out


def run(e, pieces, scripts, methods):
    """One script on one engine: what came of it."""
    e.U.play(*scripts)
    c = Client(e.ramjet.port, timeout=8 * SLACK)
    ends = []

    def read():
        try:
            while c.wire.fill():
                pass
            ends.append("end")
        except ConnectionResetError:
            ends.append("end")
        except TimeoutError:
            ends.append("still open")
    reader = threading.Thread(target=read)
    reader.start()
    try:
        c.send_lossy(*pieces)
        try:
            c.half_close()
        except OSError:
            pass
    finally:
        reader.join()
        c.close()
    problem = []
    try:
        until(lambda: all(not x.thread.is_alive() or all(q.complete for q in x.requests) for x in e.U.conns), 3, "half requests to end")
    except AssertionError as why:
        problem.append(str(why))
    got, how = answers(c.wire.raw, methods)
    seen = [upstream_view(x.raw) for x in e.U.conns]
    try:
        e.U.reset()
    except AssertionError as why:
        problem.append(str(why))
    assert e.ramjet.alive(), e.ramjet.stderr()[-3000:]
    return {"answers": got, "end": "still open" if ends == ["still open"] else how, "requests": [x for conn in seen for x in conn], "errors": problem}


@pytest.fixture(scope="module")
def pair():
    edges = [Edge(engine, ONE) for engine in ENGINES]
    yield edges
    for e in edges:
        e.stop()


def compare(pair, pieces, scripts, methods):
    for i, e in enumerate(pair):                                 # one that died in the script before
        if not e.ramjet.alive():
            e.kill()
            pair[i] = Edge(e.engine, ONE)
    one, two = (run(e, pieces, scripts, methods) for e in pair)
    assert not one["errors"] and not two["errors"], (one["errors"], two["errors"])
    for key in one:
        assert one[key] == two[key], f"{key}\n{ENGINES[0]}: {one}\n{ENGINES[1]}: {two}\nclient: {pieces!r}\nupstream: {scripts!r}"
    assert one["end"] != "still open", f"both engines keep the connection open: {one}"


def cut(rng, octets, most=5):
    """The octets in up to so many pieces."""
    points = sorted({rng.randrange(1, len(octets)) for _ in range(rng.randrange(most))}) if len(octets) > 1 else []
    return [octets[a:b] for a, b in zip([0] + points, points + [len(octets)])]


# With an early answer it depends on time whether that or the end of the client's side, which every script has, comes first.
@pytest.mark.parametrize("row", [r for r in rows.REQUESTS if r.script == OK], ids=lambda r: r.name)
def test_request_rows(pair, row):
    scripts, methods = [OK], row.methods[:len(row.answers)]
    compare(pair, [row.octets], scripts, methods)
    if 1 < len(row.octets) < 2000 and not row.one_piece:
        compare(pair, cut(random.Random(row.name), row.octets), scripts, methods)


@pytest.mark.parametrize("row", rows.RESPONSES, ids=lambda r: r.name)
def test_response_rows(pair, row):
    client = row.request + b"GET /2 HTTP/1.1\r\nHost: a.test\r\n\r\n"
    end = {"": [], "fin": [CLOSE], "rst": [CLOSE]}[row.end]      # after a reset it depends on time what was read before it
    compare(pair, [client], [[row.octets] + end, OK], [row.method])


# ---------------------------------------------------------------------------------------------------------------------------
# generated scripts

def random_request(rng):
    method = rng.choice([b"GET", b"GET", b"HEAD", b"POST", b"PUT", b"DELETE", b"OPTIONS", b"PATCH", b"QUERY"])
    version = rng.choice([b"HTTP/1.1"] * 8 + [b"HTTP/1.0"])
    target = rng.choice([b"/", b"/a/b?c=d", b"/%41", b"//x", b"/a/./b", b"/a/../b", b"http://a.test/y", b"/" + b"z" * rng.randrange(300)])
    host = rng.choice([b"a.test"] * 6 + [b"A.TEST:80", b"none.test"])
    fields = [b"Host: " + host]
    for _ in range(rng.randrange(6)):
        fields.append(rng.choice([b"X-%d: %s" % (rng.randrange(9), b"v" * rng.randrange(40)), b"Cookie: a=b", b"Accept: */*", b"X_Y: 1", b"Connection: keep-alive",
                                  b"Connection: x-1, x-2", b"TE: trailers", b"Keep-Alive: 1", b"X-Forwarded-For: 6.6.6.6", b"Upgrade: h2c", b"Max-Forwards: 1"]))
    body = b""
    if method in (b"POST", b"PUT", b"PATCH", b"QUERY") or rng.random() < 0.1:
        data = rng.randbytes(rng.choice([0, 1, 5, 100, 5000, 70000]))
        if version == b"HTTP/1.1" and rng.random() < 0.5:
            fields.append(b"Transfer-Encoding: chunked")
            at = 0
            while at < len(data):
                n = rng.randrange(1, 3000)
                part = data[at:at + n]
                body += b"%x%s\r\n%s\r\n" % (len(part), rng.choice([b"", b"", b";x=y"]), part)
                at += n
            body += b"0\r\n" + rng.choice([b"", b"X-T: 1\r\n"]) + b"\r\n"
        else:
            fields.append(b"Content-Length: %d" % len(data))
            body = data
        if rng.random() < 0.15:
            fields.append(b"Expect: 100-continue")
    rng.shuffle(fields)
    return b"%s %s %s\r\n" % (method, target, version) + b"".join(f + b"\r\n" for f in fields) + b"\r\n" + body


def random_response(rng):
    head = rng.choice([b""] * 5 + [b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"])
    status = rng.choice([b"200 OK"] * 6 + [b"404 Not Found", b"500 Oops", b"204 No Content", b"304 Not Modified", b"302 Found"])
    fields = b"".join(rng.choice([b"X-A: b\r\n", b"Set-Cookie: a=b\r\n", b"Connection: keep-alive\r\n", b"Server: x\r\n", b"Keep-Alive: timeout=5\r\n", b"Date: now\r\n"])
                      for _ in range(rng.randrange(5)))
    data = rng.randbytes(rng.choice([0, 1, 10, 1000, 20000, 100000]))
    if status[:3] in (b"204", b"304"):
        return [head + b"HTTP/1.1 " + status + b"\r\n" + fields + b"\r\n"]
    kind = rng.randrange(3)
    if kind == 0:
        return lambda conn, req: conn.play(req, head + b"HTTP/1.1 " + status + b"\r\n" + fields + b"Content-Length: %d\r\n\r\n" % len(data) + (b"" if req.method == b"HEAD" else data))
    if kind == 1:
        half = len(data) // 2
        body = b"".join(b"%x\r\n%s\r\n" % (len(p), p) for p in (data[:half], data[half:]) if p) + b"0\r\n" + rng.choice([b"", b"X-T: 1\r\n"]) + b"\r\n"
        return lambda conn, req: conn.play(req, head + b"HTTP/1.1 " + status + b"\r\n" + fields + b"Transfer-Encoding: chunked\r\n\r\n" + (b"" if req.method == b"HEAD" else body))
    return lambda conn, req: conn.play(req, [head + b"HTTP/1.1 " + status + b"\r\nConnection: close\r\n" + fields + b"\r\n" + (b"" if req.method == b"HEAD" else data), CLOSE])


def mutate(rng, octets):
    """A few octets replaced, removed, doubled or inserted; mostly where it hurts."""
    data = bytearray(octets)
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        if not data:
            break
        head = data.find(b"\r\n\r\n")
        at = rng.randrange(head + 4 if head >= 0 and rng.random() < 0.8 else len(data))
        how = rng.randrange(5)
        if how == 0:
            data[at] = rng.choice(b"\x00\x01\t\n\r \"#%,:;=\\\x7f\x80\xff0159aAzZ")
        elif how == 1:
            del data[at:at + rng.choice([1, 1, 2, 5])]
        elif how == 2:
            data[at:at] = bytes(data[at:at + rng.choice([1, 2, 10])])
        elif how == 3:
            data[at:at] = rng.choice([b"\r\n", b"\n", b"\r", b" ", b"\t", b"\x00", b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n", b"Host: b.test\r\n", b"0\r\n\r\n"])
        else:
            data[at] ^= 1 << rng.randrange(8)
    return bytes(data)


@pytest.mark.parametrize("seed", range(GENERATED))
def test_generated(pair, seed):
    rng = random.Random(seed)
    requests = [random_request(rng) for _ in range(rng.choice([1, 1, 2, 3, 6]))]
    scripts = [random_response(rng) for _ in requests] + [OK]
    octets = b"".join(requests)
    if seed % 2:
        octets = mutate(rng, octets)
    compare(pair, cut(rng, octets), scripts, [q.split(b" ")[0].decode() for q in requests])


@pytest.mark.parametrize("seed", range(GENERATED // 4))
def test_generated_bad_responses(pair, seed):
    rng = random.Random(1_000_000 + seed)
    body = rng.choice([b"Content-Length: 5\r\n\r\nhello", b"Transfer-Encoding: chunked\r\n\r\n5;x\r\nhello\r\n0\r\nX-T: 1\r\n\r\n", b"\r\nhello"])
    octets = mutate(rng, rng.choice([b"", b"HTTP/1.1 100 Continue\r\n\r\n"]) + b"HTTP/1.1 200 OK\r\nX-A: b\r\n" + body)
    compare(pair, [b"GET / HTTP/1.1\r\nHost: a.test\r\n\r\n"], [[octets, CLOSE], OK], ["GET"])
