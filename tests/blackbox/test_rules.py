"""Request rules of a route: access lists, limits, redirects, fields of answers, rewritten paths."""
import os
import re
import subprocess
import threading
import time

import pytest

from harness import ABRUPT, BIN, CLOSE, EARLY, HOLD, OK, ROOT, RST, until

# The client speaks through a trusted peer, so that a test chooses its address.
HEAD = """
[ramjet]
use-forwarded-headers = true
proxy-real-ip-cidr = 127.0.0.0/8

[backend s]
endpoint = $U
"""


def route(name, lines="", path=None, kind="prefix", backend="s"):
    backend = f"backend = {backend}\n" if backend else ""
    return f"\n[route {name}]\nhost = a.test\npath = {path or '/' + name}\ntype = {kind}\n{backend}{lines}\n"


def by(address):
    return f"X-Forwarded-For: {address}\r\n".encode()


def statuses(e, target, address, count):
    return [e.get(target, fields=by(address)).status for _ in range(count)]


# ---------------------------------------------------------------------------------------------------------------------------
# Redirects

REDIRECTS = HEAD + "".join([
    route("moved", "permanent-redirect = https://new.test/home?a=b", backend=None),
    route("moved8", "permanent-redirect = /elsewhere\npermanent-redirect-code = 308", backend=None),
    route("away", "temporal-redirect = http://other.test", backend=None),
    route("away7", "temporal-redirect = //nowhere\n".replace("//nowhere", "/tmp") + "temporal-redirect-code = 307", backend=None),
    route("both", "permanent-redirect = /never\ntemporal-redirect = /now"),
    route("limited", "permanent-redirect = /x\nlimit-rpm = 1\nlimit-burst-multiplier = 1", backend=None),
    route("guarded", "permanent-redirect = /x\nwhitelist-source-range = 192.0.2.0/24", backend=None),
    route("served", "permanent-redirect ="),
])


@pytest.mark.parametrize("target, status, location", [
    ("/moved", 301, b"https://new.test/home?a=b"),
    ("/moved/deeper?q=1", 301, b"https://new.test/home?a=b"),
    ("/moved8", 308, b"/elsewhere"),
    ("/away", 302, b"http://other.test"),
    ("/away7", 307, b"/tmp"),
    ("/both", 302, b"/now"),
])
def test_a_redirect_is_answered_without_an_upstream(edge, target, status, location):
    e = edge(REDIRECTS)
    with e.client() as c:
        for method in ("GET", "HEAD", "OPTIONS"):
            r = c.get(target, method=method)
            assert (r.status, r.all(b"Location")) == (status, [location])
            assert r.body == (b"" if method == "HEAD" else b"%d %s\n" % (status, r.reason))
    line = e.log_line(lambda line: line["path"] == target)
    assert (line["status"], line["upstream"], line["error"], line["tries"]) == (status, "", "redirect", 0)
    assert not e.U.requests


def test_a_redirected_request_with_a_body_is_read_past_or_closed(edge):
    e = edge(REDIRECTS)
    short = b"POST /moved HTTP/1.1\r\nHost: a.test\r\nContent-Length: 5\r\n\r\nhello"
    chunked = b"POST /moved HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"
    c = e.client()
    c.send(short + short + b"GET /away HTTP/1.1\r\nHost: a.test\r\n\r\n")
    assert [c.response().status for _ in range(3)] == [301, 301, 302]
    assert c.open()
    c = e.client()
    c.send(chunked)
    r = c.response()
    assert (r.status, r.get(b"Connection")) == (301, b"close")
    c.closed()


def test_a_redirect_stands_behind_access_lists_and_limits(edge):
    e = edge(REDIRECTS)
    assert statuses(e, "/guarded", "192.0.2.1", 1) + statuses(e, "/guarded", "198.51.100.1", 1) == [301, 403]
    assert statuses(e, "/limited", "192.0.2.1", 3) == [301, 301, 429]


def test_an_empty_redirect_is_none(edge):
    e = edge(REDIRECTS)
    e.U.play(OK)
    assert e.get("/served").status == 200


# ---------------------------------------------------------------------------------------------------------------------------
# Access lists

ACCESS = HEAD.replace("[ramjet]\n", "[ramjet]\ndenylist-source-range = 203.0.113.9\n") + "".join([
    route("allow", "whitelist-source-range = 192.0.2.0/24, 2001:db8::/32\nallowlist-source-range = 198.51.100.7"),
    route("deny", "denylist-source-range = 192.0.2.128/25\ndenylist-source-range = 2001:db8:bad::/48"),
    route("both", "whitelist-source-range = 192.0.2.0/24\ndenylist-source-range = 192.0.2.66, 192.0.2.64/31, 192.0.2.0/28"),
    route("six", "denylist-source-range = ::/0"),
    route("four", "whitelist-source-range = 0.0.0.0/0"),
    route("free", "denylist-source-range ="),
    route("usual"),
])


@pytest.mark.parametrize("target, address, status", [
    ("/allow", "192.0.2.0", 200), ("/allow", "192.0.2.255", 200), ("/allow", "192.0.3.0", 403), ("/allow", "192.0.1.255", 403),
    ("/allow", "198.51.100.7", 200), ("/allow", "198.51.100.8", 403), ("/allow", "198.51.100.6", 403),
    ("/allow", "2001:db8:ffff:ffff:ffff:ffff:ffff:ffff", 200), ("/allow", "2001:db9::", 403), ("/allow", "2001:db7:ffff::", 403),
    ("/allow", "::ffff:192.0.2.5", 200), ("/allow", "::ffff:192.0.3.5", 403), ("/allow", "::192.0.2.5", 403),
    ("/deny", "192.0.2.127", 200), ("/deny", "192.0.2.128", 403), ("/deny", "192.0.2.255", 403), ("/deny", "192.0.3.0", 200),
    ("/deny", "2001:db8:bad::1", 403), ("/deny", "2001:db8:bad:ffff::", 403), ("/deny", "2001:db8:bae::", 200),
    ("/deny", "::ffff:192.0.2.130", 403),
    ("/both", "192.0.2.63", 200), ("/both", "192.0.2.64", 403), ("/both", "192.0.2.65", 403), ("/both", "192.0.2.66", 403), ("/both", "192.0.2.67", 200),
    ("/both", "192.0.2.15", 403), ("/both", "192.0.2.16", 200), ("/both", "10.0.0.1", 403),
    ("/six", "2001:db8::1", 403), ("/six", "::1", 403), ("/six", "192.0.2.1", 200), ("/six", "ffff::", 403),
    ("/four", "192.0.2.1", 200), ("/four", "2001:db8::1", 403),
    ("/usual", "203.0.113.9", 403), ("/usual", "203.0.113.8", 200), ("/deny", "203.0.113.9", 200), ("/free", "203.0.113.9", 200),
])
def test_access_lists(edge, target, address, status):
    e = edge(ACCESS)
    e.U.play(OK)
    assert e.get(target, fields=by(address)).status == status
    assert len(e.U.requests) == (status == 200)


def test_a_denied_request_is_counted_and_logged_and_the_connection_lives(edge):
    e = edge(ACCESS)
    before = e.ramjet.metric("ramjet_refused_total", reason="denied")
    with e.client() as c:
        for target, why in (("/allow/x", "whitelist-source-range"), ("/both", "whitelist-source-range")):
            r = c.get(target, fields=by("10.1.1.1"))
            assert (r.status, r.body) == (403, b"403 Forbidden\n")
        assert c.get("/both", fields=by("192.0.2.66"), method="HEAD").status == 403
        assert c.open()
    assert e.ramjet.metric("ramjet_refused_total", reason="denied") == before + 3
    line = e.log_line(lambda line: line["path"] == "/allow/x")
    assert (line["client"], line["status"], line["upstream"], line["error"]) == ("10.1.1.1", 403, "", "denied: whitelist-source-range")
    assert e.log_line(lambda line: line["method"] == "HEAD")["error"] == "denied: denylist-source-range"


def test_a_peer_that_is_not_trusted_cannot_choose_its_address(edge):
    e = edge(ACCESS.replace("127.0.0.0/8", "192.0.2.0/24"))
    assert e.get("/allow", fields=by("192.0.2.1")).status == 403


# ---------------------------------------------------------------------------------------------------------------------------
# Rates. A limit a minute leaves a slow machine time enough.

RATES = HEAD + "".join([
    route("minute", "limit-rpm = 2\nlimit-burst-multiplier = 2"),
    route("other", "limit-rpm = 2\nlimit-burst-multiplier = 2"),
    route("exempt", "limit-rpm = 1\nlimit-burst-multiplier = 1\nlimit-whitelist = 192.0.2.0/24"),
    route("second", "limit-rps = 1\nlimit-burst-multiplier = 1"),
    route("two", "limit-rps = 100000\nlimit-rpm = 3\nlimit-burst-multiplier = 1"),
    route("free"),
])


def test_a_client_over_its_rate_gets_429_and_when_to_come_again(fresh):
    e = fresh(RATES)
    e.U.play(OK)
    assert statuses(e, "/minute", "192.0.2.1", 7) == [200] * 5 + [429] * 2
    r = e.get("/minute/x", fields=by("192.0.2.1"))
    assert (r.status, r.body) == (429, b"429 Too Many Requests\n")
    assert 1 <= int(r.get(b"Retry-After")) <= 30
    assert statuses(e, "/minute", "192.0.2.2", 1) == [200], "another client"
    assert statuses(e, "/other", "192.0.2.1", 5) == [200] * 5, "another route"
    assert statuses(e, "/free", "192.0.2.1", 10) == [200] * 10
    assert statuses(e, "/exempt", "192.0.2.1", 9) == [200] * 9
    assert statuses(e, "/exempt", "192.0.3.1", 3) == [200, 200, 429]
    assert e.ramjet.metric("ramjet_refused_total", reason="rate_limit") == 4
    line = e.log_line(lambda line: line["path"] == "/minute/x")
    assert (line["status"], line["upstream"], line["error"]) == (429, "", "too many requests: limit-rpm")


def test_clients_of_ipv6_count_by_their_64(fresh):
    e = fresh(RATES)
    e.U.play(OK)
    assert [e.get("/minute", fields=by(f"2001:db8:0:1::{n:x}")).status for n in range(7)] == [200] * 5 + [429] * 2
    assert e.get("/minute", fields=by("2001:db8:0:2::1")).status == 200
    assert [e.get("/minute", fields=by(f"::ffff:192.0.2.{n}")).status for n in range(7)] == [200] * 7, "not those of mapped addresses"


def test_retry_after_is_true(fresh):
    e = fresh(RATES)
    e.U.play(OK)
    for _ in range(3):
        answers = [e.get("/second", fields=by("192.0.2.1")) for _ in range(4)]
        refused = [r for r in answers if r.status == 429]
        if refused:
            break
    assert refused, "four requests took a second each"
    assert refused[0].get(b"Retry-After") == b"1"
    from_then = time.monotonic()
    until(lambda: e.get("/second", fields=by("192.0.2.1")).status == 200, 10, "a request that is not refused")
    assert time.monotonic() - from_then < 1.5 * max(1, float(os.environ.get("RAMJET_SLACK") or 1)), "later than Retry-After says"


def test_a_request_over_one_rate_uses_nothing_of_the_other(fresh):
    e = fresh(RATES)
    e.U.play(OK)
    assert statuses(e, "/two", "192.0.2.1", 8) == [200] * 4 + [429] * 4
    assert e.log_line(lambda line: line["status"] == 429)["error"] == "too many requests: limit-rpm"


def test_refusals_keep_a_pipelined_connection_in_step(fresh):
    e = fresh(RATES)
    e.U.play(OK)
    one = b"POST /minute HTTP/1.1\r\nHost: a.test\r\nContent-Length: 2\r\n" + by("192.0.2.1") + b"\r\nhi"
    c = e.client()
    c.send(one * 8)
    assert [c.response().status for _ in range(8)] == [200] * 5 + [429] * 3
    assert c.open()
    assert [r.body for r in e.U.complete] == [b"hi"] * 5


def test_a_reload_keeps_what_was_used(fresh):
    e = fresh(RATES)
    e.U.play(OK)
    assert statuses(e, "/minute", "192.0.2.1", 6) == [200] * 5 + [429]
    for text in (RATES + route("more"), RATES.replace("limit-rpm = 2\n", "limit-rpm = 2\nproxy-read-timeout = 7\n")):
        generation = e.ramjet.admin_json("/admin/generations")["generations"][0]["generation"]
        e.ramjet.write(e.fill(text))
        until(lambda: e.ramjet.admin_json("/admin/generations")["generations"][0]["generation"] > generation, 10, "the new table")
        assert statuses(e, "/minute", "192.0.2.1", 1) == [429]
    e.ramjet.write(e.fill(RATES.replace("[route minute]\n", "[route minute]\nlimit-whitelist = 192.0.2.1\n")))
    until(lambda: statuses(e, "/minute", "192.0.2.1", 1) == [200], 10, "the exemption")


def test_two_workers_share_a_limit(fresh):
    e = fresh(HEAD + route("many", "limit-rpm = 50\nlimit-burst-multiplier = 1"), workers=2)
    e.U.play(OK)
    got, clients = [], [e.client() for _ in range(16)]

    def work(c):
        got.extend(c.get("/many", fields=by("192.0.2.1")).status for _ in range(10))

    start = time.monotonic()
    threads = [threading.Thread(target=work, args=(c,)) for c in clients]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    fine = got.count(200)
    assert len(got) == 160 and set(got) == {200, 429}
    assert 51 <= fine <= 51 + (time.monotonic() - start) * 50 / 60 + 1


# ---------------------------------------------------------------------------------------------------------------------------
# Requests under way

UNDER_WAY = HEAD + route("held", "limit-connections = 2\nproxy-read-timeout = 1") + route("ws", "limit-connections = 2") + \
    route("trusted", "limit-connections = 1\nlimit-allowlist = 192.0.2.1") + route("moved", "limit-connections = 1\npermanent-redirect = /x", backend=None)

UPGRADE = b"Connection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
SWITCH = b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n"


def begin(e, target="/held", address="192.0.2.1", fields=b"", method="GET", body=b""):
    c = e.client()
    c.send(f"{method} {target} HTTP/1.1\r\nHost: a.test\r\n".encode() + by(address) + fields + b"\r\n" + body)
    return c


def takes(e, count, target="/held"):
    """True when exactly count requests can be under way at a time: those beyond are refused at once."""
    go = threading.Event()
    e.U.play(lambda conn, req: conn.play(req, [go, OK]))
    seen = len(e.U.requests)
    clients = [begin(e, target) for _ in range(count + 1)]
    try:
        until(lambda: len(e.U.requests) - seen >= count or any(c.readable() for c in clients), 5)
        until(lambda: any(c.readable() for c in clients), 5)
        refused = [c.response() for c in clients if c.readable()]
        ok = [r.status for r in refused] == [429] and all(r.get(b"Retry-After") is None for r in refused)
    finally:
        go.set()
        for c in clients:
            if not c.wire.raw:
                c.response()
            c.close()
    return ok


ENDS = {
    "the client closes": ([HOLD], lambda c: c.close()),
    "the client resets": ([HOLD], lambda c: c.reset()),
    "it is answered": (OK, lambda c: c.response()),
    "the upstream closes at once": ([CLOSE], lambda c: c.response()),
    "the upstream resets": ([RST], lambda c: c.response()),
    "half an answer": ([b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc", ABRUPT], lambda c: c.rest()),
    "garbage": (b"nonsense\r\n\r\n", lambda c: c.response()),
    "the upstream says nothing": ([HOLD], lambda c: c.response()),
}


@pytest.mark.parametrize("how", list(ENDS))
def test_a_place_is_given_back_once_whatever_ends_the_request(edge, how):
    e = edge(UNDER_WAY)
    script, end = ENDS[how]
    until(lambda: takes(e, 2), 10, "places that earlier tests gave back")
    e.U.play(script)
    for _ in range(3):
        c = begin(e)
        until(lambda: e.U.requests or c.readable())
        end(c)
        e.U.play(script)
    until(lambda: takes(e, 2), 10, "both places")


def test_a_place_of_a_request_cut_short_is_given_back(edge):
    e = edge(UNDER_WAY)
    until(lambda: takes(e, 2), 10, "both places")
    e.U.play([EARLY, HOLD])
    for fields, body in ((b"Content-Length: 100\r\n", b"some"), (b"Transfer-Encoding: chunked\r\n", b"4\r\nsome\r\nxx\r\n"), (b"Content-Length: 2000000\r\n", b"")):
        c = begin(e, method="POST", fields=fields, body=body)
        c.half_close()
        c.sock.settimeout(10)
        try:
            c.rest()
        except ConnectionError:
            pass
        c.close()
    until(lambda: takes(e, 2), 10, "both places")


def test_a_tunnel_is_under_way_until_it_ends(edge):
    e = edge(UNDER_WAY)
    for end in ("client", "reset", "upstream"):
        go = threading.Event()
        e.U.play([SWITCH, go, RST] if end == "upstream" else [SWITCH, HOLD])
        tunnels = [begin(e, "/ws", fields=UPGRADE) for _ in range(2)]
        assert [c.response().status for c in tunnels] == [101, 101]
        c = begin(e, "/ws", fields=UPGRADE)
        r = c.response()
        assert (r.status, r.get(b"Retry-After")) == (429, None)
        if end == "client":
            [c.close() for c in tunnels]
        elif end == "reset":
            [c.reset() for c in tunnels]
        else:
            go.set()
        e.U.play(OK)
        until(lambda: e.get("/ws", fields=by("192.0.2.1")).status == 200, 10, "a place")
        until(lambda: takes(e, 2, "/ws"), 10, "both places")


def test_other_clients_and_exempt_ones_have_places_of_their_own(edge):
    e = edge(UNDER_WAY)
    until(lambda: takes(e, 2), 10, "both places")
    go = threading.Event()
    e.U.play(lambda conn, req: conn.play(req, [go, OK]))
    before = e.ramjet.metric("ramjet_refused_total", reason="connection_limit")
    held = [begin(e) for _ in range(2)] + [begin(e, address="192.0.2.2")] + [begin(e, "/trusted") for _ in range(3)]
    until(lambda: len(e.U.requests) >= 6)
    assert e.get("/held", fields=by("192.0.2.1")).status == 429
    go.set()
    assert [c.response().status for c in held] == [200] * 6
    assert e.ramjet.metric("ramjet_refused_total", reason="connection_limit") == before + 1
    assert e.log_line(lambda line: line["status"] == 429)["error"] == "too many connections: limit-connections"


def test_a_redirect_gives_its_place_back(edge):
    e = edge(UNDER_WAY)
    with e.client() as c:
        assert [c.get("/moved", fields=by("192.0.2.1")).status for _ in range(5)] == [301] * 5


# ---------------------------------------------------------------------------------------------------------------------------
# Fields of answers

FIELDS = (HEAD + "".join([
    route("set", "custom-headers = X-Frame-Options: DENY\ncustom-headers = Cache-Control: no-store, private\ncustom-headers = Server: edge\n"
                 "custom-headers = strict-transport-security: max-age=1; includeSubDomains\nhide-headers = X-Powered-By, x-internal\nhide-headers = ETag"),
    route("refused", "custom-headers = X-Frame-Options: DENY\ncustom-headers = Content-Type: text/x-own\ncustom-headers = Server: edge\ndenylist-source-range = 192.0.2.1"),
    route("dead", "custom-headers = X-Frame-Options: DENY").replace("backend = s", "backend = dead"),
    route("moved", "custom-headers = X-Frame-Options: DENY\npermanent-redirect = /x", backend=None),
    route("empty", "custom-headers ="),
])).replace("[backend s]", "[backend dead]\nendpoint = $DEAD\n\n[backend s]").replace("[ramjet]\n", "[ramjet]\nserver-tokens = true\ncustom-headers = X-Global: 1\n")

ANSWER = (b"HTTP/1.1 200 OK\r\nX-FRAME-OPTIONS: SAMEORIGIN\r\nX-Frame-Options: ALLOW\r\nCache-Control: public\r\nServer: upstream\r\nX-Powered-By: PHP\r\n"
          b"X-Internal: secret\r\netag: \"1\"\r\nX-Internal-Not: seen\r\nX-Global: upstream\r\nContent-Length: 2\r\n\r\nok")


def test_a_hidden_field_hides_no_other_of_its_class(edge):
    """Names of forwarding fields are known by what becomes of them in requests; in answers each stands for itself."""
    e = edge(HEAD + route("set", "custom-headers = X-Forwarded-Set: own\nhide-headers = X-SSL-Hidden"))
    e.U.play(b"HTTP/1.1 200 OK\r\nX-SSL-Hidden: 1\r\nX-SSL-Seen: 2\r\nX-Forwarded-Set: upstream\r\nX-Forwarded-Seen: 3\r\nClient-Cert: 4\r\nContent-Length: 0\r\n\r\n")
    r = e.get("/set")
    assert [r.get(name) for name in (b"X-SSL-Hidden", b"X-SSL-Seen", b"X-Forwarded-Set", b"X-Forwarded-Seen", b"Client-Cert")] == [None, b"2", b"own", b"3", b"4"]


def test_fields_of_an_upstream_are_replaced_and_hidden(edge):
    e = edge(FIELDS)
    e.U.play(ANSWER)
    r = e.get("/set")
    assert r.all(b"X-Frame-Options") == [b"DENY"]
    assert r.all(b"Cache-Control") == [b"no-store, private"]
    assert r.all(b"Strict-Transport-Security") == [b"max-age=1; includeSubDomains"]
    assert r.all(b"Server") == [b"edge"]
    assert (r.get(b"X-Powered-By"), r.get(b"X-Internal"), r.get(b"ETag")) == (None, None, None)
    assert (r.get(b"X-Internal-Not"), r.get(b"X-Global"), r.body) == (b"seen", b"upstream", b"ok"), "the list of the route replaces the global one"
    r = e.get("/empty")
    assert (r.all(b"X-Frame-Options"), r.get(b"X-Powered-By"), r.get(b"X-Global")) == ([b"SAMEORIGIN", b"ALLOW"], b"PHP", b"upstream")


@pytest.mark.parametrize("method, answer", [
    ("HEAD", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\nX-Internal: 1\r\n\r\n"),
    ("GET", b"HTTP/1.1 304 Not Modified\r\nX-Internal: 1\r\n\r\n"),
    ("GET", b"HTTP/1.1 204 No Content\r\nX-Internal: 1\r\n\r\n"),
    ("GET", b"HTTP/1.1 500 Internal Server Error\r\nTransfer-Encoding: chunked\r\nX-Internal: 1\r\n\r\n0\r\n\r\n"),
    ("GET", b"HTTP/1.1 103 Early Hints\r\nX-Internal: 1\r\nLink: </a>\r\n\r\n" + ANSWER),
])
def test_fields_are_set_in_every_kind_of_answer(edge, method, answer):
    e = edge(FIELDS)
    e.U.play(answer)
    r = e.get("/set", method=method)
    assert (r.all(b"X-Frame-Options"), r.all(b"X-Internal")) == ([b"DENY"], [])
    for i in r.interim:
        assert (i.all(b"X-Frame-Options"), i.all(b"X-Internal"), i.get(b"Link")) == ([], [], b"</a>")


def test_fields_are_set_in_a_switch_of_protocols(edge):
    e = edge(FIELDS)
    e.U.play([SWITCH.replace(b"\r\n\r\n", b"\r\nX-Internal: 1\r\n\r\n"), HOLD])
    r = begin(e, "/set", fields=UPGRADE).response()
    assert (r.status, r.all(b"X-Frame-Options"), r.all(b"X-Internal")) == (101, [b"DENY"], [])


def test_fields_are_set_in_answers_of_our_own(edge):
    e = edge(FIELDS)
    r = e.get("/refused", fields=by("192.0.2.1"))
    assert (r.status, r.all(b"X-Frame-Options"), r.all(b"Content-Type"), r.all(b"Server")) == (403, [b"DENY"], [b"text/x-own"], [b"edge"])
    r = e.get("/dead")
    assert (r.status, r.all(b"X-Frame-Options"), r.all(b"Server")) == (502, [b"DENY"], [b"ramjet"])
    r = e.get("/moved")
    assert (r.status, r.all(b"X-Frame-Options"), r.all(b"Location"), r.all(b"X-Global")) == (301, [b"DENY"], [b"/x"], [])
    r = e.get("/nowhere")
    assert (r.status, r.all(b"X-Frame-Options"), r.all(b"X-Global")) == (404, [], []), "no route, no rules"


def test_many_fields_fit_every_answer(edge):
    lines = "".join(f"custom-headers = X-Long-{n}: {'v' * 150}\n" for n in range(24))
    e = edge(HEAD + route("long", lines) + route("moved", lines + "permanent-redirect = /" + "x" * 150, backend=None))
    e.U.play(ANSWER)
    for target in ("/long", "/moved"):
        r = e.get(target)
        assert [r.get(b"X-Long-%d" % n) for n in range(24)] == [b"v" * 150] * 24
        assert r.status in (200, 301)


# ---------------------------------------------------------------------------------------------------------------------------
# Paths

PATHS = HEAD + "".join([
    route("strip", "path-strip-prefix = true\nx-forwarded-prefix = /strip", "/app"),
    route("deep", "path-strip-prefix = true", "/a/b/"),
    route("exact", "path-strip-prefix = true", "/only", "exact"),
    route("new", "path-replace-prefix = /v2/api/\npath-strip-prefix = true", "/api"),
    route("newer", "path-replace-prefix = /%7Euser", "/home/%7e"),
    route("slash", "path-replace-prefix = /", "/cut"),
    route("plain", "x-forwarded-prefix = /never", "/plain"),
    route("secret", "denylist-source-range = 0.0.0.0/0, ::/0", "/app/secret"),
    route("all", "path-replace-prefix = /tenant", "/"),
])


@pytest.mark.parametrize("target, sent", [
    ("/app/x/y?q=1&r", b"/x/y?q=1&r"), ("/app", b"/"), ("/app/", b"/"), ("/app?q", b"/?q"), ("/app?", b"/?"), ("/app/?q", b"/?q"),
    ("/app/%41%2f%2F?%41", b"/A%2F%2F?%41"), ("/x/../app/y", b"/y"), ("/%61pp/y", b"/y"), ("/app/./y/../z", b"/z"), ("/app/x//y", b"/x//y"),
    ("http://a.test/app/x", b"/x"), ("/app/%2fsecret", b"/%2Fsecret"),
    ("/a/b", b"/"), ("/a/b/", b"/"), ("/a/b/c", b"/c"),
    ("/only", b"/"), ("/only?x", b"/?x"),
    ("/api", b"/v2/api"), ("/api/", b"/v2/api/"), ("/api/x?y", b"/v2/api/x?y"), ("/api//x", b"/v2/api//x"),
    ("/home/~", b"/~user"), ("/home/%7E/x", b"/~user/x"),
    ("/cut/x", b"/x"), ("/cut", b"/"),
    ("/plain/x", b"/plain/x"),
    ("/", b"/tenant/"), ("/appx", b"/tenant/appx"), ("/app%2fx", b"/tenant/app%2Fx"), ("/app/%2e%2e/x", b"/tenant/x"), ("/app/../x", b"/tenant/x"), ("//app/x", b"/tenant//app/x"),
    ("http://a.test", b"/tenant/"), ("http://a.test?q", b"/tenant/?q"),
])
def test_the_path_of_the_rule_is_stripped_or_replaced(edge, target, sent):
    e = edge(PATHS)
    e.U.play(OK)
    assert e.get(target).status == 200
    assert e.U.request.target == sent
    shown = e.log_line()["path"]
    assert shown == (target if not target.startswith("/plain") else "/plain/x"), "the log shows what the client asked for"


@pytest.mark.parametrize("target, status", [
    ("/app//evil.test/", 400), ("/app//", 400), ("/a/b//x", 400), ("/cut//x", 400), ("/app/%2e%2e/%2e%2e/x", 400), ("/app/..%2f..", 400),
    ("/app/secret", 403), ("/app/%73ecret", 403), ("/app/x/../secret", 403), ("/app/x/%2e%2e/secret/y", 403), ("/app/./secret", 403),
])
def test_a_rewritten_path_opens_no_way_around(edge, target, status):
    e = edge(PATHS)
    assert e.get(target).status == status
    assert not e.U.requests


def test_asterisk_is_not_rewritten(edge):
    e = edge(PATHS)
    e.U.play(OK)
    assert e.get("*", method="OPTIONS").status == 200
    assert e.U.request.target == b"*"


def test_x_forwarded_prefix(edge):
    e = edge(PATHS)
    for target, sent, fields in (("/app/x", [b"/strip"], b"X-Forwarded-Prefix: /forged\r\n"), ("/plain", [], b""), ("/api", [], b""), ("/plain", [b"/outer"], b"X-Forwarded-Prefix: /outer\r\n")):
        e.U.reset()
        e.U.play(OK)
        assert e.get(target, fields=fields).status == 200
        assert e.U.request.all(b"X-Forwarded-Prefix") == sent, target
    e = edge(PATHS.replace("127.0.0.0/8", "192.0.2.0/24"))
    e.U.play(OK)
    assert e.get("/plain", fields=b"X-Forwarded-Prefix: /forged\r\n").status == 200
    assert e.U.request.all(b"X-Forwarded-Prefix") == [], "of a peer that is not trusted"


def test_a_rewritten_request_is_sent_again_to_another_endpoint(edge):
    e = edge(PATHS.replace("endpoint = $U", "endpoint = $DEAD\nendpoint = $U"))
    e.U.play(OK)
    for _ in range(4):
        assert e.get("/api/x").status == 200
    assert {r.target for r in e.U.requests} == {b"/v2/api/x"}


# ---------------------------------------------------------------------------------------------------------------------------
# Settings

FILE = """[backend s]
endpoint = 127.0.0.1:1
[route r]
path = /
backend = s
"""


@pytest.mark.parametrize("line, says", [
    ("permanent-redirect = //other.test/", "found \"//other.test/\", expected a URL such as https://example.com/a or a path that begins with one /"),
    ("permanent-redirect = other.test", "found \"other.test\""),
    ("permanent-redirect = https://", "found \"https://\""),
    ("permanent-redirect = https:///x", "found"),
    ("permanent-redirect = javascript:alert", "found"),
    ("permanent-redirect = https://new.test$request_uri", "without $"),
    ("temporal-redirect = /a b", "found \"/a b\""),
    ("temporal-redirect = /\\evil.test", "found"),
    ("temporal-redirect = /\xe4", "found"),
    ("permanent-redirect-code = 304", "expected one of 301 302 303 307 308"),
    ("temporal-redirect-code = 200", "expected one of 301 302 303 307 308"),
    ("whitelist-source-range = 10.0.0.0/33", "found \"10.0.0.0/33\", expected addresses or networks"),
    ("allowlist-source-range = nobody", "whitelist-source-range: found \"nobody\""),
    ("denylist-source-range = 10.0.0.0/8 192.0.2.1", "found"),
    ("denylist-source-range = 10.0.0.1,", "found"),
    ("limit-rps = 100001", "expected a number in 0..100000"),
    ("limit-rpm = -1", "expected a number in 0..1000000"),
    ("limit-burst-multiplier = 0", "expected a number in 1..1000"),
    ("limit-connections = many", "found \"many\", expected a number in 0..1000000"),
    ("limit-whitelist = x", "limit-allowlist: found \"x\""),
    ("custom-headers = X-Frame-Options", "expected NAME: VALUE of a field"),
    ("custom-headers = X-Frame-Options:", "expected NAME: VALUE of a field"),
    ("custom-headers = : x", "expected NAME: VALUE of a field"),
    ("custom-headers = X Frame: x", "expected NAME: VALUE of a field"),
    ("custom-headers = Content-Length: 5", "expected NAME: VALUE of a field that is not about framing"),
    ("custom-headers = transfer-ENCODING: chunked", "expected NAME: VALUE of a field that is not about framing"),
    ("custom-headers = Connection: close", "expected NAME: VALUE"), ("custom-headers = Keep-Alive: 5", "expected NAME: VALUE"),
    ("custom-headers = Upgrade: h2c", "expected NAME: VALUE"), ("custom-headers = TE: trailers", "expected NAME: VALUE"),
    ("custom-headers = Trailer: x", "expected NAME: VALUE"), ("custom-headers = Proxy-Connection: x", "expected NAME: VALUE"),
    ("custom-headers = Location: /x", "expected NAME: VALUE"), ("custom-headers = Date: now", "expected NAME: VALUE"),
    ("hide-headers = Content-Length", "expected names of fields that are not about framing or the connection"),
    ("hide-headers = X-A,,X-B", "expected names of fields"),
    ("hide-headers = X-A: b", "expected names of fields"),
    ("path-strip-prefix = perhaps", "found \"perhaps\", expected true or false"),
    ("path-replace-prefix = new", "found \"new\", expected a path that begins with /"),
    ("path-replace-prefix = /a/../b", "expected a path"), ("path-replace-prefix = /a//b", "expected a path"), ("path-replace-prefix = /a?b", "expected a path"),
    ("path-replace-prefix = /%zz", "expected a path"), ("path-replace-prefix = /a%2fb", "expected a path"), ("path-replace-prefix = /%00", "expected a path"),
    ("path-replace-prefix = /a/%2e%2e/b", "expected a path"),
    ("x-forwarded-prefix = true", "expected a path"),
])
def test_a_bad_rule_is_refused_with_its_line(tmp_path, line, says):
    path = tmp_path / "edge.ini"
    path.write_text(FILE + line + "\n")
    r = subprocess.run([BIN, "check", str(path)], capture_output=True, text=True, timeout=20)
    assert r.returncode == 2, r
    errors = (r.stdout + r.stderr).splitlines()
    assert len(errors) == 1 and errors[0].startswith(f"{path}:6: ") and says in errors[0], errors


@pytest.mark.parametrize("count, status", [(22, 0), (23, 2)])
def test_fields_of_a_route_are_bounded(tmp_path, count, status):
    path = tmp_path / "edge.ini"
    path.write_text(FILE + "".join(f"custom-headers = X-{n:03}: {'v' * 169}\n" for n in range(count)))    # 180 bytes each as they are sent
    r = subprocess.run([BIN, "check", str(path)], capture_output=True, text=True, timeout=20)
    assert r.returncode == status, r
    if status:
        assert r.stderr == f"{path}:28: custom-headers: found 4140 bytes of fields in this section, expected at most 4096\n"


def test_check_shows_where_a_redirect_leads(tmp_path):
    path = tmp_path / "edge.ini"
    path.write_text("[route r]\nhost = a.test\npath = /\npermanent-redirect = https://new.test/\n")
    r = subprocess.run([BIN, "check", str(path)], capture_output=True, text=True, timeout=20)
    assert r.returncode == 0 and re.search(r"a\.test +/ +prefix +https://new\.test/ +r", r.stdout), r


def test_the_example_of_the_readme(fresh):
    with open(os.path.join(ROOT, "README.md"), encoding="utf-8") as f:
        section = f.read().split("\n## Request rules\n")[1].split("\n## ")[0]
    text = "\n".join(line[4:] for line in section.splitlines() if line.startswith("    "))
    text = re.sub(r"^(http|admin) = .*\n", "", text, flags=re.M)
    text = re.sub(r"endpoint = .*", "endpoint = $U", text).replace("10.0.0.0/8", "127.0.0.0/8", 1)
    e = fresh(text)
    e.U.play(b"HTTP/1.1 200 OK\r\nX-Powered-By: x\r\nContent-Length: 2\r\n\r\nok")
    r = e.get("/old/page", host="shop.example.com", fields=by("198.51.100.1"))
    assert (r.status, r.get(b"Location")) == (301, b"https://shop.example.com/new")
    assert e.get("/admin/", host="shop.example.com", fields=by("198.51.100.1")).status == 403
    assert e.get("/admin/", host="shop.example.com", fields=by("192.0.2.1")).status == 200
    assert e.get("/admin/", host="shop.example.com", fields=by("192.0.2.66")).status == 403
    e.U.reset()
    e.U.play(b"HTTP/1.1 200 OK\r\nX-Powered-By: x\r\nContent-Length: 2\r\n\r\nok")
    r = e.get("/api/items?page=2", host="shop.example.com", fields=by("198.51.100.1"))
    assert (r.status, r.get(b"X-Frame-Options"), r.get(b"X-Powered-By")) == (200, b"DENY", None)
    assert (e.U.request.target, e.U.request.get(b"X-Forwarded-Prefix")) == (b"/v2/items?page=2", b"/api")
    answers = [e.get("/api/items", host="shop.example.com", fields=by("198.51.100.1")) for _ in range(150)]
    refused = [r for r in answers if r.status == 429]
    assert refused and all(r.get(b"Retry-After") == b"1" and r.get(b"X-Frame-Options") == b"DENY" for r in refused)
