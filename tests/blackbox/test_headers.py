"""Fields that are removed, written, kept."""
import re

import pytest

from harness import GET, OK, ONE


def upstream_request(e, fields=b"", target="/", host="a.test"):
    e.U.reset()
    e.U.play(OK)
    assert e.get(target, host, fields=fields).status == 200
    return e.U.request


def test_forwarding_fields(edge):
    e = edge(ONE)
    q = upstream_request(e, host="a.test:8080")
    assert q.get(b"Host") == b"a.test:8080"
    assert q.get(b"X-Forwarded-For") == b"127.0.0.1"
    assert q.get(b"X-Real-IP") == b"127.0.0.1"
    assert q.get(b"X-Forwarded-Proto") == b"http"
    assert q.get(b"X-Forwarded-Host") in (b"a.test:8080", b"a.test")
    assert q.get(b"X-Forwarded-Port") == b"%d" % e.ramjet.port
    for name in (b"X-Forwarded-For", b"X-Real-IP", b"X-Forwarded-Proto", b"X-Forwarded-Host", b"X-Forwarded-Port", b"X-Request-ID"):
        assert len(q.all(name)) == 1, name


def test_forwarding_fields_of_an_untrusted_peer_are_overwritten(edge):
    e = edge(ONE)
    forged = (b"X-Forwarded-For: 6.6.6.6\r\nx-forwarded-for: 7.7.7.7\r\nX-Real-IP: 6.6.6.6\r\nX-FORWARDED-PROTO: https\r\nX-Forwarded-Host: evil.test\r\n"
              b"X-Forwarded-Port: 6666\r\nForwarded: for=6.6.6.6;proto=https\r\nX-Forwarded-Scheme: https\r\nX-Scheme: https\r\nX-Original-Forwarded-For: 6.6.6.6\r\n"
              b"X_Forwarded_For: 6.6.6.6\r\nX-Forwarded_For: 6.6.6.6\r\n")
    q = upstream_request(e, forged)
    assert q.all(b"X-Forwarded-For") == [b"127.0.0.1"]
    assert q.all(b"X-Real-IP") == [b"127.0.0.1"]
    assert q.all(b"X-Forwarded-Proto") == [b"http"]
    assert q.all(b"X-Forwarded-Host") == [b"a.test"]
    assert q.all(b"X-Forwarded-Port") == [b"%d" % e.ramjet.port]
    text = b"\n".join(n + b": " + v for n, v in q.fields)
    for forgery in (b"6.6.6.6", b"7.7.7.7", b"evil.test", b"https", b"6666"):
        assert forgery not in text, text


TRUSTED = """
[ramjet]
use-forwarded-headers = true
proxy-real-ip-cidr = 127.0.0.0/8

""" + ONE


def test_forwarding_fields_of_a_trusted_peer_are_kept(edge):
    e = edge(TRUSTED)
    q = upstream_request(e, b"X-Forwarded-For: 198.51.100.7\r\nX-Forwarded-Proto: https\r\nX-Forwarded-Host: www.test\r\nX-Forwarded-Port: 443\r\n")
    assert q.all(b"X-Forwarded-For") == [b"198.51.100.7"]
    assert q.all(b"X-Real-IP") == [b"198.51.100.7"]
    assert q.all(b"X-Forwarded-Proto") == [b"https"]
    assert q.all(b"X-Forwarded-Host") == [b"www.test"]
    assert q.all(b"X-Forwarded-Port") == [b"443"]


def test_full_forwarded_for(edge):
    e = edge(TRUSTED.replace("use-forwarded-headers", "compute-full-forwarded-for = true\nuse-forwarded-headers"))
    q = upstream_request(e, b"X-Forwarded-For: 198.51.100.7\r\n")
    assert q.all(b"X-Forwarded-For") == [b"198.51.100.7, 127.0.0.1"]


def test_trusted_only_in_the_named_networks(edge):
    e = edge(TRUSTED.replace("127.0.0.0/8", "10.0.0.0/8, fd00::/8"))
    q = upstream_request(e, b"X-Forwarded-For: 198.51.100.7\r\nX-Forwarded-Proto: https\r\n")
    assert q.all(b"X-Forwarded-For") == [b"127.0.0.1"]
    assert q.all(b"X-Forwarded-Proto") == [b"http"]


@pytest.mark.parametrize("value", [b"garbage", b"", b"1.2.3.4.5", b"6.6.6.6\tx", b", ,"])
def test_forwarded_for_that_is_no_address(edge, value):
    e = edge(TRUSTED)
    q = upstream_request(e, b"X-Forwarded-For: " + value + b"\r\n")
    assert q.all(b"X-Real-IP") == [b"127.0.0.1"]


def test_request_id_is_made(edge):
    e = edge(ONE)
    ids = {upstream_request(e).get(b"X-Request-ID") for _ in range(20)}
    assert len(ids) == 20
    assert all(re.fullmatch(rb"[0-9A-Za-z-]{16,64}", i) for i in ids), ids


def test_request_id_of_the_client_is_kept(edge):
    e = edge(ONE)
    q = upstream_request(e, b"X-Request-ID: abc-123\r\n", "/with-id")
    assert q.all(b"X-Request-ID") == [b"abc-123"]
    assert e.log_line(lambda x: x["path"] == "/with-id")["request_id"] == "abc-123"


def test_an_empty_request_id_is_none(edge):
    ids = upstream_request(edge(ONE), b"X-Request-ID: \r\n").all(b"X-Request-ID")
    assert len(ids) == 1 and re.fullmatch(rb"[0-9A-Za-z-]{16,64}", ids[0]), ids


def test_request_id_can_be_turned_off(edge):
    e = edge("[ramjet]\ngenerate-request-id = false\n" + ONE)
    assert upstream_request(e).get(b"X-Request-ID") is None
    assert upstream_request(e, b"X-Request-ID: abc\r\n").get(b"X-Request-ID") == b"abc"


def test_fields_pass_unchanged_and_in_order(edge):
    e = edge(ONE)
    q = upstream_request(e, b"X-B: 1\r\nx-a: 2\r\nX-B: 3\r\nCookie: a=b; c=d\r\nAuthorization: Basic eDp5\r\nAccept:\r\nX-Long: " + b"y" * 4000 + b"\r\n")
    own = {b"host", b"connection"}
    seen = [(n, v) for n, v in q.fields if n.lower() not in own and not n.lower().startswith(b"x-f") and n.lower() not in (b"x-real-ip", b"x-request-id")]
    assert seen == [(b"X-B", b"1"), (b"x-a", b"2"), (b"X-B", b"3"), (b"Cookie", b"a=b; c=d"), (b"Authorization", b"Basic eDp5"), (b"Accept", b""), (b"X-Long", b"y" * 4000)]


def test_connection_nominated_fields_end_here(edge):
    e = edge(ONE)
    q = upstream_request(e, b"Connection: keep-alive, X-Hop,x-other\r\nX-Hop: 1\r\nX-OTHER: 2\r\nX-Stay: 3\r\n")
    assert (q.get(b"X-Hop"), q.get(b"X-Other"), q.get(b"X-Stay")) == (None, None, b"3")


def test_connection_takes_nothing_away_that_is_ours(edge):
    e = edge(ONE)
    q = upstream_request(e, b"Connection: Host, X-Forwarded-For, X-Forwarded-Host, X-Forwarded-Proto, X-Forwarded-Port, X-Real-IP, X-Request-ID, Content-Length\r\n")
    assert q.get(b"Host") == b"a.test"
    for name in (b"X-Forwarded-For", b"X-Forwarded-Host", b"X-Forwarded-Proto", b"X-Forwarded-Port", b"X-Real-IP", b"X-Request-ID"):
        assert len(q.all(name)) == 1, name


def test_te_trailers_is_the_only_te(edge):
    e = edge(ONE)
    q = upstream_request(e, b"TE: gzip, deflate;q=0.5\r\n")
    assert q.get(b"TE") is None
    q = upstream_request(e, b"TE: trailers\r\nConnection: TE\r\n")
    assert q.get(b"TE") in (None, b"trailers")


@pytest.mark.parametrize("name", [b"Keep-Alive", b"Proxy-Connection", b"Proxy", b"HTTP2-Settings", b"Upgrade"])
def test_hop_by_hop_request_fields(edge, name):
    e = edge(ONE)
    assert upstream_request(e, name + b": x\r\n").get(name) is None


def test_h2c_upgrade_is_dropped(edge):
    e = edge(ONE)
    q = upstream_request(e, b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n")
    assert q.get(b"Upgrade") is None and q.get(b"HTTP2-Settings") is None
    assert b"upgrade" not in (q.get(b"Connection") or b"").lower()


def test_underscores(edge):
    e = edge(ONE)
    assert upstream_request(e, b"X_A: 1\r\n").get(b"X_A") is None
    e = edge("[ramjet]\nenable-underscores-in-headers = true\n" + ONE)
    assert upstream_request(e, b"X_A: 1\r\n").get(b"X_A") == b"1"


def test_server_field_of_the_upstream(edge):
    upstream = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nServer: backend/1\r\n\r\nok"
    e = edge(ONE)
    assert e.one(GET, upstream).get(b"Server") is None
    e = edge("[ramjet]\nallow-backend-server-header = true\n" + ONE)
    assert e.one(GET, upstream).get(b"Server") == b"backend/1"


def test_response_fields_pass_unchanged_and_in_order(edge):
    e = edge(ONE)
    upstream = b"HTTP/1.1 200 Fine by me\r\nX-B: 1\r\nx-a: 2\r\nSet-Cookie: a=b\r\nSet-Cookie: c=d\r\nContent-Length: 2\r\nDate: Thu, 01 Jan 1970 00:00:00 GMT\r\nX-Empty:\r\n\r\nok"
    r = e.one(GET, upstream)
    seen = [(n, v) for n, v in r.fields if n.lower() not in (b"content-length", b"connection")]
    assert seen == [(b"X-B", b"1"), (b"x-a", b"2"), (b"Set-Cookie", b"a=b"), (b"Set-Cookie", b"c=d"), (b"Date", b"Thu, 01 Jan 1970 00:00:00 GMT"), (b"X-Empty", b"")]


def test_response_hop_by_hop_fields(edge):
    e = edge(ONE)
    upstream = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: keep-alive, X-Hop, Content-Length\r\nX-Hop: 1\r\nKeep-Alive: timeout=1\r\nProxy-Connection: x\r\nUpgrade: h2c\r\n\r\nok"
    r = e.one(GET, upstream)
    assert r.body == b"ok"
    assert (r.get(b"X-Hop"), r.get(b"Proxy-Connection"), r.get(b"Keep-Alive")) == (None, None, None)
