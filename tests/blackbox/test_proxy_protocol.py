"""PROXY protocol versions 1 and 2 (proxy-protocol.txt): who must send a header, who must not, and whom a header makes speak."""
import os
import shutil
import socket
import struct
import subprocess
import tempfile

import pytest

from harness import GET, OK, ONE, Upstream, free_port, run_ramjet, until

TRUSTED, STRANGER = "127.0.0.1", "127.0.0.2"
ON = "[ramjet]\nuse-proxy-protocol = true\nproxy-real-ip-cidr = 127.0.0.1\nproxy-protocol-header-timeout = 60s\n"
V1 = b"PROXY TCP4 192.0.2.7 198.51.100.9 40000 8080\r\n"
SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"


def v2(family=0x11, addresses=None, tlvs=b"", command=0x21, length=None):
    if addresses is None:
        addresses = socket.inet_aton("192.0.2.7") + socket.inet_aton("198.51.100.9") + struct.pack(">HH", 40000, 8080)
    rest = addresses + tlvs
    return SIGNATURE + struct.pack(">BBH", command, family, len(rest) if length is None else length) + rest


V6 = socket.inet_pton(socket.AF_INET6, "2001:db8::7") + socket.inet_pton(socket.AF_INET6, "2001:db8::9") + struct.pack(">HH", 40000, 8080)
MAPPED = socket.inet_pton(socket.AF_INET6, "::ffff:192.0.2.7") + socket.inet_pton(socket.AF_INET6, "::ffff:1.1.1.1") + struct.pack(">HH", 40000, 8080)
UNIX = b"/from".ljust(108, b"\0") + b"/to".ljust(108, b"\0")


def start(edge, config=ON, rest=ONE):
    """A ramjet whose upstreams answer whatever comes."""
    e = edge(config + rest)
    for up in e.peers.values():
        if isinstance(up, Upstream):
            up.play(OK)
    return e


def seen(edge, count=1):
    """The requests of the upstream so far, once there are count of them."""
    return until(lambda: len(edge.U.requests) >= count and edge.U.requests, what="the request at the upstream")


def refused(edge):
    return edge.ramjet.metric("ramjet_refused_total", reason="proxy_header")


CONVEYED = [
    ("v1", V1, b"192.0.2.7"),
    ("v1 of TCP6", b"PROXY TCP6 2001:db8::7 2001:db8::9 40000 8080\r\n", b"2001:db8::7"),
    ("v1 of a mapped address", b"PROXY TCP6 ::ffff:192.0.2.7 ::ffff:198.51.100.9 40000 8080\r\n", b"192.0.2.7"),
    ("v2", v2(), b"192.0.2.7"),
    ("v2 of a datagram", v2(0x12), b"192.0.2.7"),
    ("v2 of IPv6", v2(0x21, V6), b"2001:db8::7"),
    ("v2 of a mapped address", v2(0x21, MAPPED), b"192.0.2.7"),
    ("v2 with 2 kB of TLVs", v2(tlvs=b"\xee\x08\x00" + b"x" * 2048), b"192.0.2.7"),
    ("v2 with 8 kB of TLVs", v2(tlvs=b"\x04\x1f\xf1" + b"x" * (8192 - 12 - 3)), b"192.0.2.7"),
    # the peer speaks for itself
    ("v1 UNKNOWN", b"PROXY UNKNOWN\r\n", b"127.0.0.1"),
    ("v1 UNKNOWN with addresses", b"PROXY UNKNOWN 192.0.2.7 198.51.100.9 1 2\r\n", b"127.0.0.1"),
    ("v2 LOCAL", v2(0, b"", command=0x20), b"127.0.0.1"),
    ("v2 LOCAL with addresses", v2(command=0x20), b"127.0.0.1"),
    ("v2 LOCAL with noise", v2(0xff, b"\xff" * 777, command=0x20), b"127.0.0.1"),
    ("v2 UNSPEC", v2(0, b"abc"), b"127.0.0.1"),
    ("v2 AF_UNIX", v2(0x31, UNIX), b"127.0.0.1"),
]


@pytest.mark.parametrize("name,header,client", CONVEYED, ids=[c[0] for c in CONVEYED])
def test_the_header_says_who_speaks(edge, name, header, client):
    e = start(edge)
    target = f"/{name.replace(' ', '-')}"
    r, c = e.talk(header + GET.replace(b"/", target.encode(), 1))   # header and request in one segment
    assert r[0].status == 200
    q = seen(e)[0]
    assert (q.get(b"X-Forwarded-For"), q.get(b"X-Real-IP")) == (client, client)
    assert e.log_line(lambda line: line["path"] == target)["client"] == client.decode()
    local = client == b"127.0.0.1"
    assert q.get(b"X-Forwarded-Port") == (str(e.ramjet.port).encode() if local else b"8080")
    assert c.get().status == 200                                    # the header belongs to the connection, not to a request
    assert seen(e, 2)[1].get(b"X-Forwarded-For") == client


@pytest.mark.parametrize("header", [V1, v2(tlvs=b"\x05\x00\x03uid")], ids=["v1", "v2"])
def test_a_header_cut_at_every_octet(edge, header):
    e = start(edge)
    for k in range(1, len(header)):
        with e.client() as c:
            c.send(header[:k], header[k:] + GET)
            assert c.response().status == 200
    assert {q.get(b"X-Forwarded-For") for q in seen(e, len(header) - 1)} == {b"192.0.2.7"}


@pytest.mark.parametrize("header", [V1, v2(tlvs=b"\x04\x00\x30" + b"x" * 48)], ids=["v1", "v2"])
def test_a_header_octet_by_octet(edge, header):
    e = start(edge)
    r, _ = e.talk([bytes([o]) for o in header + GET])
    assert r[0].status == 200 and seen(e)[0].get(b"X-Forwarded-For") == b"192.0.2.7"


def test_a_large_header_in_pieces(edge):
    e = start(edge)
    header = v2(tlvs=b"\x04\x1f\xf1" + b"x" * (8192 - 12 - 3))
    r, _ = e.talk([header[:16], header[16:1000], header[1000:1001], header[1001:8000], header[8000:] + GET])
    assert r[0].status == 200 and seen(e)[0].get(b"X-Forwarded-For") == b"192.0.2.7"


def test_pipelined_requests_behind_the_header(edge):
    e = start(edge)
    r, _ = e.talk(V1 + GET + b"POST /two HTTP/1.1\r\nHost: a.test\r\nContent-Length: 5\r\n\r\nhello" + GET, methods=("GET", "POST", "GET"))
    assert [x.status for x in r] == [200] * 3
    assert [(q.target, q.body, q.get(b"X-Real-IP")) for q in seen(e, 3)] == [(b"/", b"", b"192.0.2.7"), (b"/two", b"hello", b"192.0.2.7"), (b"/", b"", b"192.0.2.7")]


REFUSED = [
    ("missing", GET),
    ("garbage", b"\x01\x02\x03"),
    ("TLS", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"),
    ("v1 longer than 107 octets", b"PROXY UNKNOWN " + b"x" * 92 + b"\r\n" + GET),
    ("v1 without an end", b"PROXY UNKNOWN " + b"x" * 200),
    ("v1 with a bad address", b"PROXY TCP4 192.0.2.300 198.51.100.9 1 2\r\n" + GET),
    ("v1 with a leading zero", b"PROXY TCP4 192.0.2.7 198.51.100.9 01 2\r\n" + GET),
    ("v1 with a port above 65535", b"PROXY TCP4 192.0.2.7 198.51.100.9 1 65536\r\n" + GET),
    ("v1 of the other family", b"PROXY TCP4 ::1 ::2 1 2\r\n" + GET),
    ("v1 with two spaces", b"PROXY TCP4  192.0.2.7 198.51.100.9 1 2\r\n" + GET),
    ("v1 in small letters", b"proxy tcp4 192.0.2.7 198.51.100.9 1 2\r\n" + GET),
    ("v1 with LF", b"PROXY TCP4 192.0.2.7 198.51.100.9 1 2\n" + GET),
    ("v1 behind an empty line", b"\r\n" + V1 + GET),
    ("v2 of version 1", v2(command=0x11) + GET),
    ("v2 with an unknown command", v2(command=0x22) + GET),
    ("v2 of an unknown family", v2(0x41) + GET),
    ("v2 too short", v2(length=11) + GET),
    ("v2 with a TLV that does not fit", v2(tlvs=b"\x04\x00\x05abc") + GET),
    ("v2 with half a TLV", v2(tlvs=b"\x04\x00") + GET),
    ("v2 too long", v2(tlvs=b"\x04\x1f\xf2" + b"x" * (8192 - 12 - 2)) + GET),
]


@pytest.mark.parametrize("name,octets", REFUSED, ids=[c[0] for c in REFUSED])
def test_a_trusted_peer_without_a_good_header_is_closed_without_an_answer(edge, name, octets):
    e = start(edge)
    before = refused(e)
    c = e.client()
    c.send_lossy(octets)
    c.ended()
    assert not c.wire.raw and e.U.conns == []
    until(lambda: refused(e) == before + 1, what="the refusal to be counted")


def test_a_second_header_is_no_request(edge):
    e = start(edge)
    r, _ = e.talk(V1 + V1 + GET)
    assert r[0].status == 400 and e.U.conns == []


def test_tls_behind_the_header_is_no_request(edge):
    e = start(edge)
    r, _ = e.talk(V1 + b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")
    assert r[0].status == 400
    e.log_line(lambda line: line["status"] == 400 and line["client"] == "192.0.2.7")


@pytest.mark.parametrize("header", [V1, b"PROXY UNKNOWN\r\n", v2(), v2(command=0x20), b"PROXY http://a.test/ HTTP/1.1 x\r\n"],
                         ids=["v1", "UNKNOWN", "v2", "LOCAL", "like a request"])
@pytest.mark.parametrize("config", ["", ON, ON + "use-forwarded-headers = true\n"], ids=["off", "on", "on, with forwarded headers"])
def test_a_header_of_a_stranger_is_a_bad_request(edge, config, header):
    e = start(edge, config)
    c = e.client(source=STRANGER)
    c.send(header + GET)
    assert c.response().status == 400
    c.ended()
    assert e.U.conns == []
    e.log_line(lambda line: line["status"] == 400 and line["client"] == STRANGER)


@pytest.mark.parametrize("first", [SIGNATURE[:3], b"PROXY TCP4 1"], ids=["v2", "v1"])
def test_a_header_of_a_stranger_is_refused_before_it_is_complete(edge, first):
    e = start(edge)
    c = e.client(source=STRANGER)
    c.send(first)
    assert c.response().status == 400


def test_strangers_speak_without_a_header(edge):
    e = start(edge)
    c = e.client(source=STRANGER)
    assert c.get(fields=b"X-Forwarded-For: 6.6.6.6\r\n").status == 200
    assert seen(e)[0].get(b"X-Forwarded-For") == STRANGER.encode()


def test_the_admin_listener_takes_no_header(edge):
    e = start(edge)
    assert e.ramjet.admin("/healthz").status == 200


def test_the_header_has_a_total_time(fresh):
    e = start(fresh, "[ramjet]\nuse-proxy-protocol = true\nproxy-real-ip-cidr = 127.0.0.1\nproxy-protocol-header-timeout = 300ms\nclient-header-timeout = 60s\n")
    silent, slow = e.client(), e.client()
    slow.send(V1[:20])
    silent.ended()
    slow.ended()
    assert not silent.wire.raw and not slow.wire.raw
    until(lambda: refused(e) == 2, what="both to be counted")
    c = e.client()                                                  # then the head has its own time
    c.send(V1)
    until(lambda: e.ramjet.metric("ramjet_refused_total", reason="proxy_header") == 2)
    c.sock.settimeout(0.6)
    with pytest.raises(TimeoutError):
        c.sock.recv(1)
    assert c.get().status == 200


def test_the_head_behind_a_header_has_its_own_time(fresh):
    e = start(fresh, "[ramjet]\nuse-proxy-protocol = true\nproxy-real-ip-cidr = 127.0.0.1\nproxy-protocol-header-timeout = 60s\nclient-header-timeout = 300ms\n")
    c = e.client()
    c.send(V1, b"GET / HT")
    assert c.response().status == 408
    assert e.log_line()["client"] == "192.0.2.7"


def test_a_flood_of_bad_headers_is_one_log_line_a_second(fresh):
    e = start(fresh)
    for _ in range(100):
        c = e.client()
        c.send_lossy(b"x")
        c.ended()
    until(lambda: refused(e) == 100, what="all to be counted")
    lines = [l for l in e.ramjet.stderr().splitlines() if "no PROXY header" in l]
    assert 1 <= len(lines) < 50
    assert "127.0.0.1:" in lines[0] and " info px: " in lines[0]


def test_an_end_within_a_header_is_counted_and_a_bare_connect_is_not(edge):
    e = start(edge)
    before = refused(e)
    e.client().half_close().ended()                                 # how load balancers look whether a port is open
    assert refused(e) == before
    e.client().send(V1[:-1]).half_close().ended()
    until(lambda: refused(e) == before + 1, what="the refusal to be counted")


def test_the_conveyed_address_chooses_the_endpoint(edge):
    e = start(edge, ON, ONE.replace("$U", "$A\nendpoint = $B\nload-balance = ip_hash"))
    by_client = {}
    for i in range(24):
        for _ in range(2):
            with e.client() as c:
                c.send(b"PROXY TCP4 192.0.2.%d 198.51.100.9 4%d 80\r\n" % (i, i) + GET)
                assert c.response().status == 200
    for up in (e.A, e.B):
        for q in up.requests:
            by_client.setdefault(q.get(b"X-Real-IP"), set()).add(up.name)
    assert len(by_client) == 24 and all(len(names) == 1 for names in by_client.values()) and len(set.union(*by_client.values())) == 2


def test_trust_in_forwarding_fields_is_judged_on_the_conveyed_address(edge):
    e = start(edge, "[ramjet]\nuse-proxy-protocol = true\nuse-forwarded-headers = true\nproxy-real-ip-cidr = 127.0.0.1, 10.0.0.0/8\n")
    request = b"GET / HTTP/1.1\r\nHost: a.test\r\nX-Forwarded-For: 203.0.113.5\r\n\r\n"
    for header, client in ((V1, b"192.0.2.7"), (b"PROXY TCP4 10.1.2.3 10.0.0.1 1 80\r\n", b"203.0.113.5"), (b"PROXY UNKNOWN\r\n", b"203.0.113.5")):
        with e.client() as c:
            c.send(header + request)
            assert c.response().status == 200
        assert seen(e)[-1].get(b"X-Real-IP") == client
        e.U.reset()
        e.U.play(OK)


def test_port_443_behind_a_proxy_that_ends_tls(edge):
    """As ingress-nginx has it: whoever spoke to port 443 of the proxy in front spoke TLS."""
    e = start(edge)
    e.talk(b"PROXY TCP4 192.0.2.7 198.51.100.9 40000 443\r\n" + GET)
    q = seen(e)[0]
    assert (q.get(b"X-Forwarded-Proto"), q.get(b"X-Forwarded-Scheme"), q.get(b"X-Forwarded-Port")) == (b"https", b"https", b"443")


def test_a_reload_switches_it(fresh):
    e = start(fresh, "")
    kept = e.client()
    assert kept.get().status == 200
    e.ramjet.write(e.fill(ON + ONE))
    until(lambda: b"PROXY" not in e.ramjet.stdout() and closes(e), 10, "new connections to need a header")
    assert kept.get().status == 200                                 # what is open stays as it is
    e.talk(V1 + GET)
    assert seen(e)[-1].get(b"X-Real-IP") == b"192.0.2.7"


def closes(edge):
    with edge.client() as c:
        try:
            c.send(GET)
            return c.response().status != 200
        except (AssertionError, ConnectionError):
            return True


def test_it_needs_trusted_peers():
    with tempfile.TemporaryDirectory() as d:
        path = os.path.join(d, "edge.ini")
        with open(path, "w") as f:
            f.write("[ramjet]\nuse-proxy-protocol = true\n")
        status, out, err = run_ramjet("check", path)
        assert status == 2 and "use-proxy-protocol: found true without proxy-real-ip-cidr" in out + err


@pytest.mark.parametrize("option", ["send-proxy", "send-proxy-v2", "send-proxy-v2 proxy-v2-options unique-id,crc32c"])
def test_haproxy_in_front(edge, option):
    e = start(edge)
    with tempfile.TemporaryDirectory() as d:
        port = free_port()
        path = os.path.join(d, "haproxy.cfg")
        with open(path, "w") as f:
            f.write(f"""
global
    log stderr local0 err
defaults
    mode tcp
    timeout connect 10s
    timeout client 30s
    timeout server 30s
frontend f
    bind 127.0.0.1:{port}
    unique-id-format %rt
    default_backend b
backend b
    server ramjet 127.0.0.1:{e.ramjet.port} {option}
""")
        run_in_front(e, [shutil.which("haproxy") or "/usr/sbin/haproxy", "-db", "-f", path], port)


def test_nginx_in_front(edge):
    e = start(edge)
    with tempfile.TemporaryDirectory() as d:
        port = free_port()
        path = os.path.join(d, "nginx.conf")
        module = "/usr/lib/nginx/modules/ngx_stream_module.so"
        with open(path, "w") as f:
            f.write(f"""
{"load_module " + module + ";" if os.path.exists(module) else ""}
daemon off;
master_process off;
pid {d}/pid;
error_log stderr;
events {{}}
stream {{
    server {{
        listen 127.0.0.1:{port};
        proxy_pass 127.0.0.1:{e.ramjet.port};
        proxy_protocol on;
    }}
}}
""")
        run_in_front(e, [shutil.which("nginx") or "/usr/sbin/nginx", "-p", d, "-c", path], port)


def run_in_front(e, command, port):
    """A real sender: 20 requests of 5 clients through it, each known by its own address."""
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        until(lambda: child.poll() is not None or listens(port), 10, "the proxy in front")
        assert child.poll() is None, child.stderr.read().decode()[-2000:]
        for i in range(20):
            with socket.create_connection(("127.0.0.1", port), 10, (f"127.0.0.{20 + i % 5}", 0)) as s:
                s.settimeout(10)
                s.sendall(b"GET /%d HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n" % i)
                answer = b""
                while part := s.recv(4096):
                    answer += part
                assert answer.startswith(b"HTTP/1.1 200 "), answer
        want = {(b"/%d" % i, b"127.0.0.%d" % (20 + i % 5), b"%d" % port) for i in range(20)}
        got = {(q.target, q.get(b"X-Forwarded-For"), q.get(b"X-Forwarded-Port")) for q in seen(e, 20)}
        assert got == want
    finally:
        child.kill()
        child.wait()
        child.stderr.close()


def listens(port):
    """Looks at the kernel's table: a connection would be one more client of ramjet."""
    with open("/proc/net/tcp") as f:
        return any(line.split()[1].endswith(":%04X" % port) and line.split()[3] == "0A" for line in f)
