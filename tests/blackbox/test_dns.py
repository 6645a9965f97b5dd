"""Names of endpoints that a DNS server of the test answers: followed within their TTL, under load, and kept while there is no answer."""
import os
import random
import socket
import struct
import threading
import time

import pytest

from harness import DEADLINE, Edge, free_port, until
from test_process import Load

A, CNAME, SOA, AAAA = 1, 5, 6, 28


def wire(name):
    return b"".join(bytes([len(x)]) + x.encode() for x in name.rstrip(".").split(".")) + b"\0"


class Dns:
    """A DNS server over UDP and TCP. .table: name -> ("a", ttl, [addresses]), ("cname", ttl, name), ("servfail",), ("empty", ttl);
    a name that is not there gets NXDOMAIN with .negative_ttl. .truncate: names whose answers over UDP are cut. .silent: no answers."""

    def __init__(self, address="127.0.0.1", port=None):
        self.address, self.table, self.truncate, self.negative_ttl = address, {}, set(), 1
        self.silent = False
        self.asked, self.over_tcp = [], []
        self.tcp = socket.socket()
        self.tcp.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.port = port or free_port()
        self.tcp.bind((address, self.port))
        self.udp.bind((address, self.port))
        self.tcp.listen(64)
        threading.Thread(target=self.run_udp, daemon=True).start()
        threading.Thread(target=self.run_tcp, daemon=True).start()

    def run_udp(self):
        while True:
            try:
                query, peer = self.udp.recvfrom(2048)
                answer = self.answer(query, False) if query else None   # the end of the socket reads as an empty one
                if answer:
                    self.udp.sendto(answer, peer)
            except OSError:
                return

    def run_tcp(self):
        while True:
            try:
                conn, _ = self.tcp.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(conn,), daemon=True).start()

    def serve(self, conn):
        with conn:
            try:
                while True:
                    head = conn.recv(2, socket.MSG_WAITALL)
                    if len(head) < 2:
                        return
                    answer = self.answer(conn.recv(struct.unpack(">H", head)[0], socket.MSG_WAITALL), True)
                    if answer:
                        conn.sendall(struct.pack(">H", len(answer)) + answer)
            except OSError:
                return

    def answer(self, query, tcp):
        labels, at = [], 12
        while query[at]:
            labels.append(query[at + 1:at + 1 + query[at]].decode())
            at += 1 + query[at]
        name, (kind,) = ".".join(labels).lower(), struct.unpack(">H", query[at + 1:at + 3])
        (self.over_tcp if tcp else self.asked).append((name, kind))
        if self.silent:
            return None
        records, rcode, owner, cut = [], 0, name, name in self.truncate and not tcp
        entry = self.table.get(owner)
        while entry and entry[0] == "cname" and len(records) < 10:
            records.append((owner, CNAME, entry[1], wire(entry[2])))
            owner = entry[2]
            entry = self.table.get(owner)
        authority = []
        if entry is None:
            rcode, authority = 3, [("", SOA, self.negative_ttl, b"\0\0" + struct.pack(">IIIII", 1, 2, 3, 4, self.negative_ttl))]
        elif entry[0] == "servfail":
            rcode = 2
        elif entry[0] == "a":
            family = {A: socket.AF_INET, AAAA: socket.AF_INET6}.get(kind)
            records += [(owner, kind, entry[1], socket.inet_pton(family, x)) for x in entry[2] if family and (":" in x) == (kind == AAAA)]
        if cut:
            records = []
        out = query[:2] + struct.pack(">HHHHH", 0x8180 | (0x200 if cut else 0) | rcode, 1, len(records), len(authority), 0) + query[12:at + 5]
        for owner, t, ttl, data in records + authority:
            out += (wire(owner) if owner else b"\0") + struct.pack(">HHIH", t, 1, ttl, len(data)) + data
        return out

    def close(self):
        for s in (self.tcp, self.udp):
            try:
                s.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            s.close()


class At:
    """An upstream on an address of 127/8 with a port that all of them share; answers with its last number."""

    def __init__(self, last, port):
        self.last, self.conns, self.open = last, [], True
        self.sock = socket.socket()
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.sock.bind((f"127.0.0.{last}", port))
        self.sock.listen(512)
        threading.Thread(target=self.run, daemon=True).start()

    def run(self):
        while True:
            try:
                conn, _ = self.sock.accept()
            except OSError:
                return
            self.conns.append(conn)
            threading.Thread(target=self.serve, args=(conn,), daemon=True).start()

    def serve(self, conn):
        data = b""
        with conn:
            try:
                while True:
                    piece = conn.recv(65536)
                    if not piece:
                        return
                    data += piece
                    while b"\r\n\r\n" in data:
                        _, _, data = data.partition(b"\r\n\r\n")
                        conn.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%d" % (len(str(self.last)), self.last))
            except OSError:
                return

    def close(self):
        """As a pod that is gone: nothing listens, and what is open ends."""
        self.sock.close() if not self.open else self.sock.shutdown(socket.SHUT_RDWR)
        self.open = False
        self.sock.close()
        for conn in self.conns:
            try:
                conn.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


CONFIG = """
[ramjet]
resolver = {resolver}

[backend s]
endpoint = {name}:{port}

[route r]
host = a.test
path = /
type = prefix
backend = s
"""


@pytest.fixture
def dns():
    server = Dns()
    yield server
    server.close()


@pytest.fixture
def at():
    """Upstreams on 127.0.0.LAST, all with one port."""
    port, made = free_port(), []

    def make(last):
        made.append(At(last, port))
        return made[-1]
    make.port = port
    yield make
    for u in made:
        u.close()


@pytest.fixture
def named(fresh, dns, at):
    def make(name="app.test", workers=1):
        return fresh(CONFIG.format(resolver=f"127.0.0.1:{dns.port}", name=name, port=at.port), workers=workers)
    return make


def answered_by(e, last, seconds=8):
    until(lambda: e.get().body == b"%d" % last, seconds, f"answers of 127.0.0.{last}")


@pytest.mark.long
def test_addresses_that_change_are_followed_under_load(named, dns, at):
    """Six changes; the old address goes as soon as the new one is used. No request fails, and each change is followed within its TTL."""
    up = at(2)
    dns.table["app.test"] = ("a", 1, ["127.0.0.2"])
    e = named(workers=2)
    answered_by(e, 2)
    load = Load(e.ramjet.port)
    took = []
    try:
        for last in (3, 4, 5, 2, 3, 4):
            new = at(last)
            began = time.monotonic()
            dns.table["app.test"] = ("a", 1, [f"127.0.0.{last}"])
            answered_by(e, last)
            took.append(time.monotonic() - began)
            up.close()
            up = new
    finally:
        load.stop()
    print(f"figures: followed after {', '.join(f'{t:.2f}' for t in took)} s with a TTL of 1 s, {load.done} requests, none failed")
    assert max(took) < 1 + 0.2 * DEADLINE


@pytest.mark.long
def test_addresses_that_come_and_go_under_load(named, dns, at):
    """A name with several addresses, of which one is replaced at a time."""
    ups = {n: at(n) for n in (2, 3, 4)}
    dns.table["app.test"] = ("a", 1, [f"127.0.0.{n}" for n in ups])
    e = named(workers=2)
    until(lambda: {e.get().body for _ in range(9)} == {b"2", b"3", b"4"}, 8, "all three")
    load = Load(e.ramjet.port)
    try:
        for new, old in ((5, 2), (6, 3), (7, 4)):
            ups[new] = at(new)
            dns.table["app.test"] = ("a", 1, [f"127.0.0.{n}" for n in ups if n != old])
            want = {b"%d" % n for n in ups if n != old}
            until(lambda: {e.get().body for _ in range(12)} == want, 8, f"{want}")
            ups.pop(old).close()
    finally:
        load.stop()


@pytest.mark.long
@pytest.mark.parametrize("fault", ["silent", "servfail"])
def test_the_last_addresses_are_kept_while_the_server_is_down(named, dns, at, fault):
    """Requests go on, it is not asked all the time, and what it says afterwards is followed."""
    at(2), at(3)
    dns.table["app.test"] = ("a", 1, ["127.0.0.2"])
    e = named()
    answered_by(e, 2)
    load = Load(e.ramjet.port, bodies=(b"2", b"3"))
    try:
        asked = len(dns.asked)
        dns.silent = fault == "silent"
        if not dns.silent:
            dns.table["app.test"] = ("servfail",)
        until(lambda: len(dns.asked) >= asked + 3, 15, "questions meanwhile")
        before, began = len(dns.asked), time.monotonic()
        until(lambda: time.monotonic() - began > 1, 5)
        assert len(dns.asked) - before < 40, "it asks all the time"
        assert e.get().body == b"2"
        dns.silent = False
        dns.table["app.test"] = ("a", 1, ["127.0.0.3"])
        answered_by(e, 3, 15)
    finally:
        load.stop()


@pytest.mark.parametrize("answer", [None, ("empty", 1)], ids=["nxdomain", "empty"])
def test_a_server_that_says_that_there_are_none_is_believed(named, dns, at, answer):
    """As when the last pod of a headless service goes: 503, and served again when the name is back."""
    at(2)
    dns.table["app.test"] = ("a", 1, ["127.0.0.2"])
    e = named()
    answered_by(e, 2)
    if answer:
        dns.table["app.test"] = answer
    else:
        del dns.table["app.test"]
    until(lambda: e.get().status == 503, 8, "503")
    dns.table["app.test"] = ("a", 1, ["127.0.0.2"])
    answered_by(e, 2)


def test_a_name_that_is_not_there_yet(named, dns, at):
    """503 at first; served when the name comes, after the time that the negative answer may be kept."""
    at(2)
    e = named()
    assert e.get().status in (502, 503)
    dns.table["app.test"] = ("a", 60, ["127.0.0.2"])
    answered_by(e, 2)


def test_truncated_answers_come_over_tcp(named, dns, at):
    """60 addresses: cut over UDP, whole over TCP; all of them are used."""
    ups = range(10, 70)
    for n in ups:
        at(n)
    dns.table["app.test"] = ("a", 60, [f"127.0.0.{n}" for n in ups])
    dns.truncate.add("app.test")
    e = named()
    want = {b"%d" % n for n in ups}
    until(lambda: {e.get().body for _ in range(120)} == want, 8, "all addresses")
    assert ("app.test", A) in dns.over_tcp


def test_chains_of_aliases(named, dns, at):
    """The shortest TTL of the chain counts; a change of any link is followed."""
    at(2), at(3)
    dns.table.update({"app.test": ("cname", 300, "one.test"), "one.test": ("cname", 1, "two.test"),
                      "two.test": ("cname", 300, "three.test"), "three.test": ("a", 300, ["127.0.0.2"]), "four.test": ("a", 300, ["127.0.0.3"])})
    e = named()
    answered_by(e, 2)
    dns.table["one.test"] = ("cname", 1, "four.test")
    answered_by(e, 3)


def test_a_loop_of_aliases_is_no_address(named, dns, at):
    dns.table.update({"app.test": ("cname", 1, "b.test"), "b.test": ("cname", 1, "app.test")})
    e = named()
    assert e.get().status in (502, 503)
    at(2)
    dns.table["b.test"] = ("a", 1, ["127.0.0.2"])
    answered_by(e, 2)


def mounted(tmp_path, **files):
    """A program that starts ramjet where these files stand in for those of /etc."""
    mounts = ""
    for name, text in files.items():
        path = tmp_path / name
        path.write_text(text)
        mounts += f"mount --bind {path} /etc/{name.replace('_', '.')} && "
    return ("unshare", "-m", "sh", "-c", mounts + 'exec "$@"', "sh")


@pytest.fixture
def in_etc(engine, request, at, tmp_path):
    """A ramjet without the option resolver, with its own files in /etc."""
    if os.geteuid():
        pytest.skip("needs root")

    def make(name, **files):
        e = Edge(engine, CONFIG.format(resolver="", name=name, port=at.port).replace("resolver = \n", ""), prefix=mounted(tmp_path, **files))
        request.addfinalizer(e.kill)
        return e
    return make


def test_search_domains(in_etc, at):
    """A short name is tried in each domain; one with enough dots is taken as it is first."""
    at(2), at(3)
    server = Dns(f"127.{random.randrange(1, 250)}.{random.randrange(250)}.{random.randrange(1, 250)}", 53)
    try:
        server.table.update({"web.shop.svc.cluster.local": ("a", 60, ["127.0.0.2"]), "web.shop": ("a", 60, ["127.0.0.3"])})
        conf = f"search shop.svc.cluster.local svc.cluster.local cluster.local\nnameserver {server.address}\noptions ndots:"
        answered_by(in_etc("web", resolv_conf=conf + "5\n"), 2)
        answered_by(in_etc("web.shop", resolv_conf=conf + "5\n"), 2)
        answered_by(in_etc("web.shop", resolv_conf=conf + "1\n"), 3)
        assert ("web.shop.shop.svc.cluster.local", A) in server.asked
    finally:
        server.close()


def test_etc_hosts_comes_first(in_etc, at):
    at(2), at(4)
    server = Dns(f"127.{random.randrange(1, 250)}.{random.randrange(250)}.{random.randrange(1, 250)}", 53)
    try:
        server.table["app.test"] = ("a", 60, ["127.0.0.2"])
        e = in_etc("app.test", resolv_conf=f"nameserver {server.address}\n", hosts="127.0.0.1 localhost\n127.0.0.4 other APP.test # here\n")
        answered_by(e, 4)
        assert not server.asked
    finally:
        server.close()
