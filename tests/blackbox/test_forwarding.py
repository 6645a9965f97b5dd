"""Forwarding fields: a stranger's reach no upstream in any spelling, a trusted peer's decide who the client is, for everything alike."""
import re

import pytest

from harness import OK, ONE, ROOT, Upstream, chunked, until

STRANGER = "127.0.0.2"
ON = "[ramjet]\nuse-forwarded-headers = true\nproxy-real-ip-cidr = 127.0.0.1, 10.0.0.0/8, fd00::/8\n"
WRITTEN = {b"x-real-ip", b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-port", b"x-forwarded-proto", b"x-forwarded-scheme"}


def table():
    """{name: fate} of the table in ramjet.h."""
    with open(f"{ROOT}/ramjet.h") as f:
        text = f.read()
    rows = re.findall(r'^    X\("([a-z0-9*-]+)", +(AGREES|BELIEVED|KEPT|READ|REMOVED|WRITTEN)\)', text, re.M)
    assert len(rows) > 30 and len(dict(rows)) == len(rows)
    return dict(rows)


def start(edge, config=ON, rest=ONE):
    e = edge(config + rest)
    for up in e.peers.values():
        if isinstance(up, Upstream):
            up.play(OK)
    return e


def ask(e, fields, source=None, target="/", request=None):
    """The request at the upstream that one with these fields becomes."""
    before = len(e.U.requests)
    with e.client(source=source) as c:
        c.send(request or f"GET {target} HTTP/1.1\r\nHost: a.test\r\n".encode() + fields + b"\r\n")
        assert c.response().status == 200
    return until(lambda: len(e.U.requests) > before and e.U.requests[-1], what="the request at the upstream")


def spellings(name):
    """Names that one server or another reads as this one."""
    name = name.replace("*", "Some-Thing")
    title = "-".join(part.capitalize() for part in name.split("-"))
    yield from (name, title, name.upper())
    if "-" in name:
        yield from (title.replace("-", "_"), name.upper().replace("-", "_"), title.replace("-", "_", 1), title.replace("-", "."), title.replace("-", "~"))


@pytest.mark.parametrize("config", [ON, "[ramjet]\nenable-underscores-in-headers = true\n"], ids=["trusting others", "passing underscores"])
def test_nothing_of_a_stranger_reaches_an_upstream(edge, config):
    e = start(edge, config)
    names = sorted({s for name in table() for s in spellings(name)})
    for at in range(0, len(names), 40):
        fields = b"".join(b"%s: 6.6.6.%d\r\n" % (n.encode(), i % 250) for i, n in enumerate(names[at:at + 40]))
        q = ask(e, fields, STRANGER)
        assert b"6.6.6." not in b"".join(n + v for n, v in q.fields), q.fields
        assert {n.lower() for n, _ in q.fields} <= WRITTEN | {b"host", b"x-request-id"}, q.fields
        assert all(len(q.all(n)) == 1 for n in WRITTEN)
        assert q.get(b"X-Real-IP") == q.get(b"X-Forwarded-For") == STRANGER.encode()


def test_a_connection_field_takes_none_of_ours_away(edge):
    e = start(edge)
    names = sorted({s for name in table() for s in spellings(name) if "-" in s or s.isalpha()})
    for source, client in ((STRANGER, STRANGER.encode()), (None, b"203.0.113.5")):
        for at in range(0, len(names), 30):
            some = names[at:at + 30]
            q = ask(e, b"Connection: " + ", ".join(some).encode() + b"\r\nX-Forwarded-For: 203.0.113.5\r\n", source)
            assert q.get(b"X-Real-IP") == q.get(b"X-Forwarded-For") == client
            assert all(len(q.all(n)) == 1 for n in WRITTEN), q.fields


@pytest.mark.parametrize("source", [STRANGER, None], ids=["of a stranger", "of a trusted peer"])
def test_no_trailer_brings_one(edge, source):
    e = start(edge)
    names = sorted({s for name in table() for s in spellings(name)})
    for at in range(0, len(names), 40):
        trailers = b"X-Sum: 1\r\n" + b"".join(b"%s: 6.6.6.6\r\n" % n.encode() for n in names[at:at + 40])
        q = ask(e, b"", source, request=b"POST / HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked(b"hello", trailers=trailers))
        until(lambda: q.complete)
        assert q.body == b"hello" and [n for n, _ in q.trailers] in ([], [b"X-Sum"]), q.trailers
        assert b"6.6.6.6" not in b"".join(v for _, v in q.fields)


def test_what_a_trusted_peer_may_say(edge):
    e = start(edge)
    for name, fate in table().items():
        name = name.replace("*", "thing").encode()
        q = ask(e, b"%s: 127.0.0.1\r\n" % name)
        if fate in ("KEPT", "AGREES"):
            assert q.all(name) == [b"127.0.0.1"], name
        elif fate in ("REMOVED", "READ"):
            assert q.all(name) == [], name
        else:
            assert len(q.all(name)) == 1, name
        q = ask(e, b"%s: 6.6.6.6\r\n" % name)
        if fate == "KEPT":
            assert q.all(name) == [b"6.6.6.6"], name
        elif name not in (b"x-forwarded-for", b"x-forwarded-host"):
            assert b"6.6.6.6" not in b"".join(v for _, v in q.fields), name
        for spelling in spellings(name.decode()):
            if "-" in spelling or spelling.isalpha():
                continue
            assert ask(e, b"%s: 6.6.6.6\r\n" % spelling.encode()).get(spelling.encode()) is None, spelling


CLIENTS = [
    (b"", b"127.0.0.1"),
    (b"X-Forwarded-For: 203.0.113.5\r\n", b"203.0.113.5"),
    (b"X-Forwarded-For: 6.6.6.6, 203.0.113.5\r\n", b"203.0.113.5"),
    (b"X-Forwarded-For: 6.6.6.6, 203.0.113.5, 10.0.0.9, fd00::9\r\n", b"203.0.113.5"),
    (b"X-Forwarded-For: 6.6.6.6\r\nX-Forwarded-For: 203.0.113.5\r\nX-Forwarded-For: 10.0.0.9\r\n", b"203.0.113.5"),
    (b"X-Forwarded-For: 203.0.113.5:4711\r\n", b"203.0.113.5"),
    (b"X-Forwarded-For: [2001:db8::5]:4711\r\n", b"2001:db8::5"),
    (b"X-Forwarded-For: ::ffff:203.0.113.5, ::ffff:10.0.0.9\r\n", b"203.0.113.5"),
    (b"X-Forwarded-For: 6.6.6.6, unknown\r\n", b"127.0.0.1"),
    (b"X-Forwarded-For: 6.6.6.6, , 10.0.0.9\r\n", b"10.0.0.9"),
    (b"X-Forwarded-For: 6.6.6.6,\r\n", b"127.0.0.1"),
    (b"X-Forwarded-For: 6.6.6.6\r\nX-Forwarded-For:\r\n", b"127.0.0.1"),
    (b"X-Forwarded-For: " + b"6.6.6.6, " * 800 + b"203.0.113.5" + b", 10.0.0.9" * 800 + b"\r\n", b"203.0.113.5"),
    (b"X-Forwarded-For: " + b"," * 8000 + b"\r\n", b"127.0.0.1"),
    (b"X-Forwarded-For: " + b"1" * 8000 + b"\r\n", b"127.0.0.1"),
    (b"Forwarded: for=203.0.113.5;proto=https;host=www.test\r\n", b"203.0.113.5"),
    (b"Forwarded: for=6.6.6.6, for=\"[2001:db8::5]:4711\", for=10.0.0.9\r\n", b"2001:db8::5"),
    (b"Forwarded: for=6.6.6.6\r\nX-Forwarded-For: 203.0.113.5\r\n", b"203.0.113.5"),
    (b"Forwarded: for=6.6.6.6; proto=https\r\n", b"127.0.0.1"),
    (b"Forwarded: for=\"6.6.6.6\r\n", b"127.0.0.1"),
    (b"X-Real-IP: 6.6.6.6\r\nTrue-Client-IP: 6.6.6.6\r\nCF-Connecting-IP: 6.6.6.6\r\n", b"127.0.0.1"),
    (b"X-Forwarded-For: 203.0.113.5\r\nCF-Connecting-IP: 203.0.113.5\r\nX-Client-IP: 6.6.6.6\r\n", b"203.0.113.5"),
]


@pytest.mark.parametrize("full", [False, True], ids=["client", "full"])
def test_who_speaks(edge, full):
    """The upstream and the access log name the same client, and the list that the upstream gets begins with it."""
    e = start(edge, ON + ("compute-full-forwarded-for = true\n" if full else ""))
    for i, (fields, client) in enumerate(CLIENTS):
        target = f"/{'full' if full else 'client'}-{i}"
        q = ask(e, fields, target=target)
        assert q.all(b"X-Real-IP") == [client], fields
        assert e.log_line(lambda line: line["path"] == target)["client"] == client.decode()
        hops = re.split(rb"[ \t]*,[ \t]*", q.get(b"X-Forwarded-For"))
        assert hops[0] == client and b"6.6.6.6" not in b"".join(v for _, v in q.fields), (fields, q.fields)
        assert (hops[-1] == b"127.0.0.1" and len(hops) > 1 or client == b"127.0.0.1") if full else len(hops) == 1
        assert q.get(b"Forwarded") is None


def test_a_client_is_known_where_no_route_is(edge):
    e = start(edge)
    with e.client() as c:
        c.send(b"GET /nobody HTTP/1.1\r\nHost: other.test\r\nX-Forwarded-For: 203.0.113.5\r\n\r\n")
        assert c.response().status == 404
    assert e.log_line(lambda line: line["path"] == "/nobody")["client"] == "203.0.113.5"


def test_a_refused_head_is_logged_with_the_peer(edge):
    e = start(edge)
    with e.client() as c:
        c.send(b"GET /bad HTTP/1.1\r\nHost: a.test\r\nX-Forwarded-For: 203.0.113.5\r\nContent-Length: x\r\n\r\n")
        assert c.response().status == 400
    assert e.log_line(lambda line: line["path"] == "/bad")["client"] == "127.0.0.1"


def test_the_named_client_chooses_the_endpoint(edge):
    e = start(edge, ON, ONE.replace("$U", "$A\nendpoint = $B\nload-balance = ip_hash"))
    for i in range(24):
        for fields in (b"X-Forwarded-For: 192.0.2.%d\r\n", b"X-Forwarded-For: 6.6.6.6, 192.0.2.%d:1\r\n", b"Forwarded: for=192.0.2.%d\r\n"):
            with e.client() as c:
                assert c.get(fields=fields % i).status == 200
    chosen = {}
    for up in (e.A, e.B):
        for q in up.requests:
            chosen.setdefault(q.get(b"X-Real-IP"), set()).add(up.name)
    assert len(chosen) == 24 and all(len(names) == 1 for names in chosen.values()) and len(set.union(*chosen.values())) == 2


def test_forwarded_tells_scheme_and_host_too(edge):
    e = start(edge)
    q = ask(e, b"Forwarded: for=203.0.113.5;proto=https;host=\"www.test:8443\"\r\n")
    assert [q.get(n) for n in (b"X-Forwarded-Proto", b"X-Forwarded-Scheme", b"X-Forwarded-Host", b"Host")] == [b"https", b"https", b"www.test:8443", b"a.test"]


@pytest.mark.parametrize("fields", [b"X-Forwarded-Proto: https, http\r\n", b"X-Forwarded-Proto: https\r\nX-Forwarded-Proto: https\r\n", b"X-Forwarded-Proto: gopher\r\n",
                                    b"X-Forwarded-Host: a, b\r\n", b"X-Forwarded-Host: user@evil.test\r\n", b"X-Forwarded-Host: evil.test/x\r\n",
                                    b"X-Forwarded-Port: 0\r\n", b"X-Forwarded-Port: 65536\r\n", b"X-Forwarded-Port: 443, 80\r\n"])
def test_what_is_not_one_good_value_is_written_anew(edge, fields):
    e = start(edge)
    q = ask(e, fields)
    assert [q.get(n) for n in (b"X-Forwarded-Proto", b"X-Forwarded-Scheme", b"X-Forwarded-Host", b"X-Forwarded-Port")] == [b"http", b"http", b"a.test", b"%d" % e.ramjet.port]


def test_the_longest_fields_that_are_written_fit(edge):
    """A short head that grows as much as one can: a long host in the target, written twice, and IPv6 hops."""
    e = start(edge, ON + "compute-full-forwarded-for = true\n", ONE.replace("host = a.test\n", ""))
    host = b".".join([b"h" * 62] * 4) + b".t"
    q = ask(e, b"", request=b"GET http://" + host + b":65535 HTTP/1.1\r\nHost:x\r\nX-Forwarded-For:2001:db8:1111:2222:3333:4444:5555:6666\r\n\r\n")
    assert q.get(b"X-Forwarded-Host") == q.get(b"Host") == host + b":65535"
    assert q.get(b"X-Forwarded-For") == b"2001:db8:1111:2222:3333:4444:5555:6666, 127.0.0.1"
