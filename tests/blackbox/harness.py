"""What every black-box test stands on: a strict HTTP/1.1 reader, a raw client, a scripted upstream and a running ramjet.

A test shows config, client bytes, upstream bytes and expectation, in that order, and waits for conditions (until()), never for time.
Both parsers here are slow and obviously right: one field line at a time, and whatever RFC 9112 does not allow raises Bad.

Environment: RAMJET_BIN  the binary (default: ./ramjet of the repository root)
             RAMJET_SLACK  factor on every deadline, for sanitizer builds and busy machines (default 1)
"""
import errno
import hashlib
import json
import os
import random
import re
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BIN = os.path.abspath(os.environ.get("RAMJET_BIN") or os.path.join(ROOT, "ramjet"))


def is_sanitized():
    """True for a binary built with the address or thread sanitizer: slower, and larger than what the tests of memory allow."""
    try:
        with open(BIN, "rb") as f:
            text = f.read()
    except OSError:
        return False
    return b"__asan_" in text or b"__tsan_" in text


SANITIZED = is_sanitized()
SLACK = float(os.environ.get("RAMJET_SLACK") or (4 if SANITIZED else 1))
DEADLINE = 10.0 * SLACK          # for what ought to be there at once
ENGINES = ("epoll", "uring")

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
GET = b"GET / HTTP/1.1\r\nHost: a.test\r\n\r\n"

# One backend behind everything of one host: enough for every test that is not about routing.
ONE = """
[backend s]
endpoint = $U

[route r]
host = a.test
path = /
type = prefix
backend = s
"""
TWO = ONE.replace("endpoint = $U\n", "endpoint = $U\nendpoint = $V\n")


class Bad(AssertionError):
    """The peer sent what HTTP/1.1 does not allow."""


class Eof(AssertionError):
    """The peer ended the stream where more was due."""


def until(condition, seconds=5.0, what="the condition"):
    """Waits until condition() is true and returns its value; fails after the given seconds."""
    end = time.monotonic() + seconds * SLACK
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"waited {seconds * SLACK:g} s for {what}; last value: {value!r}")
        time.sleep(0.002)


# ---------------------------------------------------------------------------------------------------------------------------
# Reading HTTP/1.1, strictly

TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
FIELD = re.compile(rb"(" + TOKEN + rb"):[ \t]*((?:[\t\x20-\x7e\x80-\xff]*[\x21-\x7e\x80-\xff])?)[ \t]*")
STATUS_LINE = re.compile(rb"HTTP/1\.([01]) ([1-5][0-9][0-9]) ([\t\x20-\x7e\x80-\xff]*)")
REQUEST_LINE = re.compile(rb"(" + TOKEN + rb") ([\x21-\x7e]+) HTTP/1\.([01])")


class Wire:
    """Bytes of one direction of a socket: everything read is kept in .raw (while keep is set), what is not used yet in .buf."""

    def __init__(self, sock, keep=True):
        self.sock, self.buf, self.raw, self.keep, self.eof = sock, bytearray(), bytearray(), keep, False

    def fill(self):
        """Reads once. False at the end of the stream."""
        if self.eof:
            return False
        data = self.sock.recv(1 << 18)
        if not data:
            self.eof = True
            return False
        self.buf += data
        if self.keep:
            self.raw += data
        return True

    def take(self, n):
        data = bytes(self.buf[:n])
        del self.buf[:n]
        return data

    def exactly(self, n):
        while len(self.buf) < n:
            if not self.fill():
                raise Eof(f"ended {n - len(self.buf)} octets early")
        return self.take(n)

    def line(self):
        """One line without its CRLF. A bare CR or LF is refused."""
        at = 0
        while True:
            for i in range(at, len(self.buf)):
                if self.buf[i] == 10:
                    if i == 0 or self.buf[i - 1] != 13:
                        raise Bad(f"bare LF after {bytes(self.buf[:i])!r}")
                    text = self.take(i + 1)[:-2]
                    if b"\r" in text:
                        raise Bad(f"bare CR in {text!r}")
                    return text
            at = len(self.buf)
            if not self.fill():
                raise Eof(f"ended within a line: {bytes(self.buf)!r}")


class Message:
    """One request or response: start line parts, fields in order, body, trailers."""

    def __init__(self):
        self.fields, self.trailers, self.body, self.framing, self.interim = [], [], b"", None, []
        self.complete = False
        self.chunks = []

    def all(self, name):
        return [v for n, v in self.fields if n.lower() == name.lower()]

    def get(self, name):
        """The value of a field, repeated ones joined as a list; None when absent."""
        values = self.all(name)
        return b", ".join(values) if values else None

    def __repr__(self):
        start = getattr(self, "start", None)
        body = self.body if len(self.body) <= 60 else self.body[:60] + b"..."
        return f"<{start!r} {self.fields!r} {body!r}>"


def read_fields(wire):
    fields = []
    while True:
        line = wire.line()
        if not line:
            return fields
        m = FIELD.fullmatch(line)
        if not m:
            raise Bad(f"field line {line!r}")
        fields.append((m[1], m[2]))


def read_framing(m):
    """Content-Length or 'chunked' or None from the fields of m; anything that two readers could read differently is Bad."""
    length, coding = m.all(b"Content-Length"), m.all(b"Transfer-Encoding")
    if len(length) > 1 or len(coding) > 1 or (length and coding):
        raise Bad(f"ambiguous framing: {length!r} {coding!r}")
    if coding:
        if coding[0].lower() != b"chunked":
            raise Bad(f"Transfer-Encoding {coding[0]!r}")
        return "chunked"
    if length:
        if not re.fullmatch(rb"0|[1-9][0-9]{0,18}", length[0]):
            raise Bad(f"Content-Length {length[0]!r}")
        return int(length[0])
    return None


def read_chunked(wire, m, sink):
    while True:
        line = wire.line()
        if not re.fullmatch(rb"[0-9A-Fa-f]{1,16}", line):
            raise Bad(f"chunk size line {line!r}")
        size = int(line, 16)
        if size == 0:
            break
        m.chunks.append(size)
        sink(wire.exactly(size))
        if wire.exactly(2) != b"\r\n":
            raise Bad("no CRLF after chunk data")
    m.trailers = read_fields(wire)


def read_body(wire, m, to_close, sink=None):
    """Reads the body that m.framing announces. With a sink the octets go there and m.body stays empty."""
    parts = []
    put = sink or parts.append
    try:
        if m.framing == "chunked":
            read_chunked(wire, m, put)
        elif m.framing is None:
            if to_close:
                while True:
                    if wire.buf:
                        put(wire.take(len(wire.buf)))
                    if not wire.fill():
                        break
        else:
            left = m.framing
            while left:
                if not wire.buf and not wire.fill():
                    raise Eof(f"body ended {left} octets early")
                data = wire.take(min(left, len(wire.buf)))
                put(data)
                left -= len(data)
        m.complete = True
    finally:
        m.body = b"".join(parts)


def read_head(wire, pattern):
    m = Message()
    m.start = wire.line()
    m.match = pattern.fullmatch(m.start)
    if not m.match:
        raise Bad(f"start line {m.start!r}")
    m.fields = read_fields(wire)
    return m


def read_response(wire, method="GET", sink=None):
    """The next final response; the 1xx before it are in .interim. 101 is final. Raises Eof when the stream ends before a whole one."""
    interim = []
    while True:
        m = read_head(wire, STATUS_LINE)
        m.minor, m.status, m.reason = int(m.match[1]), int(m.match[2]), m.match[3]
        m.framing = read_framing(m)
        if m.status < 200 or m.status == 204:
            if m.framing is not None:
                raise Bad(f"framing fields in a {m.status}")
        if m.status < 200 and m.status != 101:
            interim.append(m)
            continue
        m.interim = interim
        break
    if method == "HEAD" or m.status in (101, 204, 304):
        m.complete = True
    else:
        read_body(wire, m, m.framing is None, sink)
    return m


def read_request(wire, body=True):
    """The next request as an upstream sees it, None at a clean end of the stream."""
    if not wire.buf and not wire.fill():
        return None
    m = read_head(wire, REQUEST_LINE)
    m.method, m.target, m.minor = m.match[1], m.match[2], int(m.match[3])
    if len(m.all(b"Host")) != 1:
        raise Bad(f"{len(m.all(b'Host'))} Host fields")
    m.framing = read_framing(m)
    if body:
        read_body(wire, m, False)
    return m


# ---------------------------------------------------------------------------------------------------------------------------
# The raw client

def rx_queue(local, remote):
    """Octets that the process owning the local end has not read yet, or None when there is no such socket."""
    try:
        return rx_queue_of_diag(local, remote)
    except OSError:
        return rx_queue_of_proc(local, remote)


def rx_queue_of_diag(local, remote, which=0):
    """Asks the kernel about this one socket (sock_diag(7)): 20 us, however many sockets there are."""
    sockid = struct.pack(">HH4s12x4s12x", local[1], remote[1], socket.inet_aton(local[0]), socket.inet_aton(remote[0])) + struct.pack("=III", 0, 0xffffffff, 0xffffffff)
    ask = struct.pack("=BBBBI", socket.AF_INET, socket.IPPROTO_TCP, 0, 0, 0xffffffff) + sockid
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 4) as diag:
        diag.send(struct.pack("=IHHII", 16 + len(ask), 20, 1, 0, 0) + ask)
        data = diag.recv(65536)
    if struct.unpack_from("=IH", data)[1] == 2:          # an error; no such socket is one
        error = -struct.unpack_from("=i", data, 16)[0]
        if error == errno.ENOENT:
            return None
        raise OSError(error, "sock_diag")
    if data[16 + 1] == 10:                               # the listener, where there is no such connection (TCP_LISTEN)
        return None
    return struct.unpack_from("=I", data, 16 + 4 + len(sockid) + 4 + 4 * which)[0]


def fields_of_proc(local, remote):
    """What /proc/net/tcp says of this socket, or None."""
    def pack(addr):
        return "%08X:%04X" % (struct.unpack("<I", socket.inet_aton(addr[0]))[0], addr[1])
    key = f"{pack(local)} {pack(remote)}"
    with open("/proc/net/tcp") as f:
        for line in f:
            at = line.find(key)
            if at >= 0 and at < 16:
                return line.split()
    return None


def rx_queue_of_proc(local, remote):
    fields = fields_of_proc(local, remote)
    return fields and int(fields[4].split(":")[1], 16)


def keepalive_timer(local, remote):
    """Seconds until the kernel looks whether the peer of this socket is still there, or None when it does not."""
    fields = fields_of_proc(local, remote)
    kind, when = fields[5].split(":") if fields else ("00", "0")
    return int(when, 16) / os.sysconf("SC_CLK_TCK") if kind == "02" else None


def tx_queue(local, remote):
    """Octets that the process owning the local end has given to the kernel and the remote one has not acknowledged."""
    return rx_queue_of_diag(local, remote, 1)


class Client:
    """A TCP connection to ramjet. send() takes pieces, and sends each only when the one before has been read by the other side (or has
    not been for half a second, as when ramjet holds the client back)."""

    def __init__(self, port, source=None, timeout=None, rcvbuf=None):
        self.sock = socket.socket()
        if rcvbuf:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, rcvbuf)
        if source:
            self.sock.bind((source, 0))
        self.sock.settimeout(timeout or DEADLINE)
        self.sock.connect(("127.0.0.1", port))
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.wire = Wire(self.sock)
        self.peer, self.name = self.sock.getpeername(), self.sock.getsockname()

    def send(self, *pieces):
        for i, piece in enumerate(pieces):
            if i:
                try:
                    until(lambda: not rx_queue(self.peer, self.name), 0.5)
                except AssertionError:
                    pass
            self.sock.sendall(piece)
        return self

    def send_lossy(self, *pieces):
        """As send, but a peer that stopped reading is no error, nor is that the test closes the socket meanwhile. True when everything was taken."""
        try:
            self.send(*pieces)
            return True
        except OSError as e:
            if e.errno not in (errno.EBADF, errno.ECONNRESET, errno.EPIPE):
                raise
            return False

    def half_close(self):
        self.sock.shutdown(socket.SHUT_WR)
        return self

    def reset(self):
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()

    def response(self, method="GET", sink=None):
        return read_response(self.wire, method, sink)

    def saw(self, octets, seconds=5):
        """Reads until the octets are among what came so far."""
        until(lambda: octets in self.wire.raw or (self.wire.fill() and octets in self.wire.raw), seconds, f"{octets!r}")
        return self

    def get(self, target="/", host="a.test", method="GET", fields=b"", body=b""):
        self.send(f"{method} {target} HTTP/1.1\r\nHost: {host}\r\n".encode() + fields + b"\r\n" + body)
        return self.response(method)

    def rest(self):
        """Everything up to a clean end of the stream; a reset fails."""
        while self.wire.fill():
            pass
        return self.wire.take(len(self.wire.buf))

    def closed(self):
        """Asserts that nothing more comes and that the end is a clean one."""
        rest = self.rest()
        assert rest == b"", f"octets after the last response: {rest[:200]!r}"

    def ended(self, seconds=5):
        """Asserts that the connection ends, by FIN or RST, with nothing more."""
        self.sock.settimeout(seconds * SLACK)
        try:
            rest = self.rest()
        except ConnectionResetError:
            rest = b""
        assert rest == b"", f"octets after the last response: {rest[:200]!r}"

    def open(self):
        """True while the peer has neither sent anything more nor closed."""
        self.sock.setblocking(False)
        try:
            return not self.wire.buf and self.sock.recv(1, socket.MSG_PEEK) is None
        except BlockingIOError:
            return not self.wire.buf
        except ConnectionError:
            return False
        finally:
            self.sock.settimeout(DEADLINE)

    def readable(self):
        """True when something (or the end) is there to read."""
        if self.wire.buf:
            return True
        self.sock.setblocking(False)
        try:
            self.sock.recv(1, socket.MSG_PEEK)
            return True
        except BlockingIOError:
            return False
        except ConnectionError:
            return True
        finally:
            self.sock.settimeout(DEADLINE)

    def close(self):
        self.sock.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


# ---------------------------------------------------------------------------------------------------------------------------
# The scripted upstream

class Step:
    def __init__(self, name):
        self.name = name

    def __repr__(self):
        return self.name


EARLY = Step("EARLY")        # first step: answer after the head, without reading the body
BODY = Step("BODY")          # read the body of the request (after EARLY)
CLOSE = Step("CLOSE")        # FIN, then read what still comes, then close
ABRUPT = Step("ABRUPT")      # close at once: FIN, or RST when octets are unread
RST = Step("RST")            # reset
HALF = Step("HALF")          # FIN, and go on reading requests
HOLD = Step("HOLD")          # send nothing more until the peer closes
DEAF = Step("DEAF")          # never read again, until the test is over


class UpstreamConn:
    """One connection that ramjet opened: .raw has the exact octets, .requests the requests as they were understood."""

    def __init__(self, upstream, sock, number):
        self.upstream, self.sock, self.number = upstream, sock, number
        self.requests, self.over, self.ended = [], False, None
        self.stop = threading.Event()
        self.wire = Wire(sock, upstream.keep)

    @property
    def raw(self):
        return bytes(self.wire.raw)

    def send(self, data):
        self.sock.sendall(data)

    def fin(self):
        try:
            self.sock.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def rst(self):
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.over = True
        self.sock.close()

    def drain(self):
        """Reads and records until the peer closes."""
        try:
            while self.wire.fill():
                pass
            self.ended = self.ended or "fin"
        except ConnectionResetError:
            self.ended = "rst"
        except OSError:
            pass

    def body(self, req, sink=None):
        read_body(self.wire, req, False, sink)
        return req

    def play(self, req, script):
        """Answers req. The script is bytes, a list of bytes, steps, threading.Events (waited for) and calls f(conn, req), or one call."""
        if callable(script):
            script(self, req)
            return
        steps = [script] if isinstance(script, (bytes, bytearray)) else list(script)
        if EARLY in steps:
            steps.remove(EARLY)
        else:
            self.body(req)
        for step in steps:
            if isinstance(step, (bytes, bytearray)):
                self.send(step)
            elif isinstance(step, threading.Event):
                end = time.monotonic() + DEADLINE
                while not step.wait(0.02):
                    if self.stop.is_set() or time.monotonic() > end:
                        break
            elif callable(step):
                step(self, req)
            elif step is BODY:
                self.body(req)
            elif step is CLOSE:
                self.fin()
                self.drain()
                self.over = True
            elif step is ABRUPT:
                self.over = True
            elif step is RST:
                self.rst()
            elif step is HALF:
                self.fin()
            elif step is HOLD:
                self.drain()
                self.over = True
            elif step is DEAF:
                self.stop.wait(DEADLINE * 6)
                self.over = True
            else:
                raise TypeError(f"no such step: {step!r}")
            if self.over:
                return

    def serve(self):
        try:
            while not self.over:
                req = read_request(self.wire, body=False)
                if req is None:
                    self.ended = "fin"
                    break
                req.conn, req.index = self.number, len(self.requests)
                self.requests.append(req)
                script = self.upstream.next_script()
                self.play(req, script)
                if not self.over and not req.complete and req.framing not in (None, 0):
                    self.body(req)
                req.complete = req.complete or req.framing in (None, 0)
        except Eof:
            self.ended = "fin"
        except Bad as why:
            self.upstream.errors.append(f"upstream {self.upstream.name} was sent what it must refuse: {why}; octets: {self.raw[-600:]!r}")
        except ConnectionResetError:
            self.ended = "rst"
        except BrokenPipeError:
            self.ended = "pipe"
        except socket.timeout:
            self.ended = "timeout"
        except OSError:
            self.ended = self.ended or "closed"
        finally:
            try:
                self.sock.close()
            except OSError:
                pass


class Upstream:
    """A server on a loopback port, one thread per connection, which answers request after request as told by play()."""

    def __init__(self, name="U", keep=True):
        self.name, self.keep = name, keep
        self.lock = threading.Lock()
        self.told = threading.Condition(self.lock)
        self.sock, self.port = None, 0
        self.conns, self.scripts, self.errors = [], None, []
        self.listen()

    def listen(self):
        self.sock = socket.socket()
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if self.port:
            self.sock.bind(("127.0.0.1", self.port))
        else:
            self.port = bind_free(self.sock)
        self.sock.listen(1024)
        threading.Thread(target=self.accept, args=(self.sock,), daemon=True).start()

    def unlisten(self):
        """Stops accepting: a connect is refused from now on. Open connections go on."""
        try:
            self.sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self.sock.close()

    def accept(self, listener):
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            sock.settimeout(DEADLINE * 6)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self.lock:
                conn = UpstreamConn(self, sock, len(self.conns))
                conn.thread = threading.Thread(target=conn.serve, daemon=True)
                conn.thread.start()
                self.conns.append(conn)

    def play(self, *scripts):
        """Sets the answers: the first request gets the first script, and so on; the last one repeats. A request that comes before
        play() is called waits for it, so a test may send the client's octets first."""
        with self.lock:
            self.scripts = list(scripts)
            self.told.notify_all()
        return self

    def play_by_target(self, table, otherwise=OK):
        self.play(lambda conn, req: conn.play(req, table.get(req.target, otherwise)))
        return self

    def next_script(self):
        with self.lock:
            if not self.told.wait_for(lambda: self.scripts is not None, DEADLINE):
                self.errors.append(f"a request reached upstream {self.name}, which no test told what to answer")
                self.scripts = [OK]
            return self.scripts.pop(0) if len(self.scripts) > 1 else self.scripts[0]

    @property
    def requests(self):
        """All requests whose head arrived, connection after connection."""
        with self.lock:
            return [r for c in self.conns for r in c.requests]

    @property
    def complete(self):
        return [r for r in self.requests if r.complete]

    @property
    def request(self):
        """The only request that arrived."""
        requests = self.requests
        assert len(requests) == 1, f"{len(requests)} requests at upstream {self.name}: {requests}"
        return requests[0]

    def live(self):
        with self.lock:
            return [c for c in self.conns if c.thread.is_alive()]

    def reset(self, seconds=3):
        """Ends all connections and forgets what was recorded. Fails when ramjet keeps a connection that the upstream has closed."""
        with self.lock:
            conns = list(self.conns)
        for c in conns:
            c.stop.set()
            c.fin()
        stuck = []
        end = time.monotonic() + seconds * SLACK
        for c in conns:
            c.thread.join(max(0.0, end - time.monotonic()))
            if c.thread.is_alive():
                stuck.append(c)
        for c in stuck:
            try:
                c.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                c.sock.shutdown(socket.SHUT_RD)
                c.sock.close()
            except OSError:
                pass
        with self.lock:
            self.conns = [c for c in self.conns if c not in conns]
            self.scripts = None
        errors, self.errors = self.errors, []
        assert not errors, errors
        assert not stuck, f"ramjet kept {len(stuck)} connections {seconds * SLACK:g} s after upstream {self.name} closed them"

    def close(self):
        self.unlisten()
        for c in self.live():
            c.stop.set()
            try:
                c.sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


class Dead:
    """A port that refuses connections, reserved as long as this object lives."""

    def __init__(self):
        self.sock = socket.socket()
        self.port = bind_free(self.sock)

    def reset(self):
        pass

    def close(self):
        self.sock.close()


class Hole:
    """A port whose SYNs are dropped: the accept queue is full and nobody accepts."""

    def __init__(self):
        self.sock = socket.socket()
        self.port = bind_free(self.sock)
        self.sock.listen(0)
        self.fill = []
        for _ in range(4):
            s = socket.socket()
            s.setblocking(False)
            s.connect_ex(("127.0.0.1", self.port))
            self.fill.append(s)

    def reset(self):
        pass

    def close(self):
        for s in self.fill:
            s.close()
        self.sock.close()


def bind_free(sock):
    """Binds to a free loopback port below the range that the kernel gives to outgoing connections."""
    for _ in range(200):
        port = random.randrange(12000, 32000)
        try:
            sock.bind(("127.0.0.1", port))
            return port
        except OSError:
            continue
    raise AssertionError("no free port")


def free_port():
    with socket.socket() as s:
        return bind_free(s)


# ---------------------------------------------------------------------------------------------------------------------------
# ramjet itself

def admin_request(port, target, method="GET", fields=b"", body=b"", timeout=None):
    with Client(port, timeout=timeout) as c:
        length = f"Content-Length: {len(body)}\r\n".encode() if body or method in ("POST", "PUT") else b""
        c.send(f"{method} {target} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n".encode() + fields + length + b"\r\n" + body)
        return c.response(method)


def stopped(e):
    """Stops the process, so that what happens now has all happened when it goes on."""
    e.ramjet.signal(signal.SIGSTOP)

    def all_threads():
        for thread in os.listdir(f"/proc/{e.ramjet.pid}/task"):
            with open(f"/proc/{e.ramjet.pid}/task/{thread}/stat") as f:
                if f.read().rsplit(")", 1)[1].split()[0] != "T":
                    return False
        return True
    until(all_threads, 5, "the process to be stopped")


class Ramjet:
    """One process; engine None leaves the choice to the configuration. start() returns when /readyz says yes; stop() checks status 0 and that no sanitizer complained."""

    def __init__(self, engine, config, args=(), env=None, path=None, workers=1, http=True, prefix=()):
        self.engine, self.args, self.env, self.config, self.workers, self.http = engine, list(args), env or {}, config, workers, http
        self.prefix = list(prefix)                       # a program that starts it
        self.dir = tempfile.mkdtemp(prefix="ramjet-test-")
        self.path = path or os.path.join(self.dir, "edge.ini")
        self.process = None

    def text(self):
        """The configuration with listeners and the number of workers put under [ramjet]."""
        own = f"http = 127.0.0.1:{self.port}\nadmin = 127.0.0.1:{self.admin_port}\n"
        if self.workers:
            own += f"worker-processes = {self.workers}\n"
        if "[ramjet]\n" in self.config:
            return self.config.replace("[ramjet]\n", "[ramjet]\n" + own, 1)
        return "[ramjet]\n" + own + self.config

    def write(self, config):
        """Replaces the configuration file by rename, as editors do."""
        self.config = config
        with open(self.path + ".new", "w") as f:
            f.write(self.text())
        os.replace(self.path + ".new", self.path)

    def start(self, ready=True):
        for _ in range(3):
            self.port, self.admin_port = free_port(), free_port()
            with open(self.path, "w") as f:
                f.write(self.text())
            self.spawn()
            if not ready or self.wait_ready():
                return self
            text = self.stderr()
            if "in use" not in text:
                break
            self.process.wait()
        raise AssertionError(f"ramjet did not start (status {self.process.poll()}):\n{text[-2000:]}")

    def restart(self):
        """Starts again on the same ports with the file as it is."""
        os.makedirs(self.dir, exist_ok=True)
        self.spawn()
        assert self.wait_ready(), self.stderr()[-2000:]

    def spawn(self):
        self.out_path, self.err_path = os.path.join(self.dir, "out"), os.path.join(self.dir, "err")
        env = dict(os.environ, ASAN_OPTIONS="abort_on_error=0:exitcode=99:detect_leaks=1",
                   UBSAN_OPTIONS="print_stacktrace=1:halt_on_error=0", **self.env)
        with open(self.out_path, "wb") as out, open(self.err_path, "wb") as err:
            self.process = subprocess.Popen([*self.prefix, BIN, "run", "--config", self.path, *(["--engine", self.engine] if self.engine else []), *self.args],
                                            stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=env)

    def wait_ready(self):
        end = time.monotonic() + DEADLINE
        while time.monotonic() < end and self.process.poll() is None:
            try:
                if admin_request(self.admin_port, "/readyz").status == 200:
                    return True
            except (ConnectionError, Eof):
                pass
            time.sleep(0.002)
        return False

    @property
    def pid(self):
        return self.process.pid

    def alive(self):
        return self.process.poll() is None

    def stderr(self):
        with open(self.err_path, "rb") as f:
            return f.read().decode("utf-8", "replace")

    def stdout(self):
        with open(self.out_path, "rb") as f:
            return f.read()

    def complaints(self):
        """Lines of sanitizer reports, if any."""
        return [line for line in self.stderr().splitlines()
                if "Sanitizer" in line or "runtime error:" in line or "RJ_BUG" in line or "RJ_CHECK" in line or "RJ_NEVER" in line]

    def admin(self, target, method="GET", fields=b"", body=b"", timeout=None):
        return admin_request(self.admin_port, target, method, fields, body, timeout)

    def admin_json(self, target):
        r = self.admin(target)
        assert r.status == 200, r
        return json.loads(r.body)

    def metrics(self):
        """{'name{labels}': value} of /metrics."""
        r = self.admin("/metrics")
        assert r.status == 200, r
        table = {}
        for line in r.body.decode().splitlines():
            if line and not line.startswith("#"):
                key, value = line.rsplit(" ", 1)
                table[key] = float(value)
        return table

    def metric(self, name, **labels):
        """Sum of the samples of a metric that carry the given labels."""
        total, found = 0.0, False
        for key, value in self.metrics().items():
            if key.split("{")[0] == name and all(f'{k}="{v}"' in key for k, v in labels.items()):
                total, found = total + value, True
        return total if found else None

    def fds(self):
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def status_kb(self, field):
        with open(f"/proc/{self.pid}/status") as f:
            for line in f:
                if line.startswith(field + ":"):
                    return int(line.split()[1])
        raise KeyError(field)

    def rss(self):
        return self.status_kb("VmRSS") * 1024

    def signal(self, number):
        self.process.send_signal(number)

    def wait(self, seconds=10):
        try:
            return self.process.wait(seconds * SLACK)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"ramjet is still running after {seconds * SLACK:g} s")

    def stop(self, seconds=10):
        """SIGTERM, then status 0 and a clean bill from the sanitizers."""
        try:
            if self.alive():
                self.signal(signal.SIGTERM)
            try:
                status = self.wait(seconds)
            except AssertionError:
                self.process.kill()
                self.process.wait()
                raise
            assert not self.complaints(), self.stderr()[-6000:]
            assert status == 0, f"exit status {status}:\n{self.stderr()[-2000:]}"
        finally:
            self.cleanup()

    def kill(self):
        if self.process and self.alive():
            self.process.kill()
            self.process.wait()
        self.cleanup()

    def cleanup(self):
        shutil.rmtree(self.dir, ignore_errors=True)

    # the access log

    def log(self):
        """All complete access log lines so far; each must be valid JSON in valid UTF-8."""
        return [json.loads(line.decode("utf-8", "strict")) for line in self.stdout().split(b"\n")[:-1]]


class Edge:
    """A ramjet with its upstreams: every $NAME of the configuration becomes an address. $DEAD* refuses, $HOLE* swallows SYNs."""

    def __init__(self, engine, template, args=(), workers=1, env=None, keep=True, prefix=()):
        self.template, self.peers, self.clients, self.log_seen = template, {}, [], 0
        for name in sorted(set(re.findall(r"\$([A-Z]+[0-9]*)", template))):
            kind = Dead if name.startswith("DEAD") else Hole if name.startswith("HOLE") else None
            self.peers[name] = kind() if kind else Upstream(name, keep)
        self.engine = engine
        self.ramjet = Ramjet(engine, self.fill(template), args, env, workers=workers, prefix=prefix)
        self.ramjet.start()
        self.base_fds = self.ramjet.fds()

    def fill(self, template):
        return re.sub(r"\$([A-Z]+[0-9]*)", lambda m: f"127.0.0.1:{self.peers[m[1]].port}", template)

    def __getattr__(self, name):
        peers = self.__dict__.get("peers", {})
        if name in peers:
            return peers[name]
        raise AttributeError(name)

    def client(self, **options):
        c = Client(self.ramjet.port, **options)
        self.clients.append(c)
        return c

    def get(self, target="/", host="a.test", method="GET", fields=b"", body=b""):
        """One request on a connection of its own."""
        with Client(self.ramjet.port) as c:
            return c.get(target, host, method, fields, body)

    def talk(self, client, upstream=None, methods=("GET",), half_close=False):
        """Sends the client bytes (or pieces) and reads one response for each of methods. Returns (responses, client)."""
        if upstream is not None:
            self.U.play(*(upstream if isinstance(upstream, tuple) else (upstream,)))
        c = self.client()
        c.send(*([client] if isinstance(client, bytes) else client))
        if half_close:
            c.half_close()
        return [c.response(m) for m in methods], c

    def one(self, client, upstream=None, method="GET"):
        """talk() for one request: the response."""
        return self.talk(client, upstream, (method,))[0][0]

    def new_log(self):
        """Forgets the access log lines so far."""
        self.log_seen = len(self.ramjet.stdout())

    def log_line(self, match=lambda line: True, seconds=5):
        """Waits for an access log line since new_log() for which match is true."""
        def find():
            text = self.ramjet.stdout()[self.log_seen:]
            for line in text.split(b"\n")[:-1]:
                record = json.loads(line.decode("utf-8", "strict"))
                if match(record):
                    return record
            return None
        return until(find, seconds, "an access log line")

    def idle(self, backend=None):
        """Idle upstream connections by the admin listener's count."""
        return sum(e["idle"] for b in self.ramjet.admin_json("/admin/upstreams")["backends"]
                   if backend in (None, b["name"]) for e in b["endpoints"])

    def settle(self):
        """After a test: no client left, upstream connections ended, ramjet alive and uncomplaining."""
        for c in self.clients:
            c.close()
        self.clients = []
        problems = []
        for p in self.peers.values():
            try:
                p.reset()
            except AssertionError as why:
                problems.append(str(why))
        assert self.ramjet.alive(), f"ramjet died (status {self.ramjet.process.poll()}):\n{self.ramjet.stderr()[-4000:]}"
        assert not self.ramjet.complaints(), self.ramjet.stderr()[-6000:]
        assert not problems, problems

    def check_fds(self, extra=0, seconds=5):
        """No descriptor more than at the start, once clients and upstream connections are gone."""
        self.settle()
        until(lambda: self.ramjet.fds() <= self.base_fds + extra, seconds,
              f"descriptors to go back from {self.ramjet.fds()} to {self.base_fds}")

    def stop(self):
        try:
            self.settle()
            self.ramjet.stop()
        finally:
            self.kill()

    def kill(self):
        self.ramjet.kill()
        for p in self.peers.values():
            p.close()


class Pool:
    """Running edges, one per (engine, configuration), kept for the whole session; the least recently used ones are stopped."""

    def __init__(self, most=10):
        self.most, self.edges, self.failures = most, {}, []

    def get(self, engine, template, args=(), workers=1):
        key = (engine, template, tuple(args), workers)
        edge = self.edges.pop(key, None)
        if edge is not None and not edge.ramjet.alive():
            edge.kill()
            edge = None
        if edge is None:
            edge = Edge(engine, template, args, workers)
        self.edges[key] = edge
        while len(self.edges) > self.most:
            self.retire(next(iter(self.edges)))
        return edge

    def retire(self, key):
        edge = self.edges.pop(key)
        try:
            edge.stop()
        except AssertionError as why:
            self.failures.append(f"{key[0]}, configuration {key[1]!r}: {why}")

    def drop(self, edge):
        for key, value in list(self.edges.items()):
            if value is edge:
                del self.edges[key]
        edge.kill()

    def close(self):
        for key in list(self.edges):
            self.retire(key)
        failures, self.failures = self.failures, []
        assert not failures, "\n".join(failures)


def chunked(*parts, trailers=b""):
    """The parts as a chunked body."""
    return b"".join(b"%x\r\n%s\r\n" % (len(p), p) for p in parts) + b"0\r\n" + trailers + b"\r\n"


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def noise(n, seed=1):
    """n repeatable octets that do not compress and do not repeat within a buffer."""
    return random.Random(seed).randbytes(n)


def mib(n):
    """n MiB; a sanitizer's shadow memory may take ten times as much."""
    return int(n * (1 << 20)) * (10 if SANITIZED else 1)


def run_ramjet(*args, input=None, timeout=20, env=None):
    """A sub-command that ends by itself: (status, stdout, stderr)."""
    full = dict(os.environ, ASAN_OPTIONS="exitcode=99", **(env or {}))
    p = subprocess.run([BIN, *args], input=input, stdin=None if input is not None else subprocess.DEVNULL,
                       stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=timeout * SLACK, env=full)
    out, err = p.stdout.decode("utf-8", "replace"), p.stderr.decode("utf-8", "replace")
    assert "Sanitizer" not in err and "runtime error:" not in err, err
    return p.returncode, out, err
