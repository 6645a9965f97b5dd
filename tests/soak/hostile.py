"""Slow and heavy clients by the thousand, an upstream for them, and one for the good client beside them: each a process of its own.

All three are plain epoll or less, so that what they cost does not hide what the proxy costs; those of the attack are niced.
"""
import dataclasses
import gc
import multiprocessing
import os
import resource
import select
import signal
import socket
import time

TURN_S = 0.01                                            # attackers look around so often
OPEN_PER_TURN = 50
INTERIM = b"HTTP/1.1 103 Early Hints\r\nLink: </a.css>; rel=preload\r\n\r\n"
INTERIM_MAX = 16                                         # what Ramjet passes before it answers 502


@dataclasses.dataclass(frozen=True)
class Kind:
    """What a connection sends first, what it adds at each step, and how many bytes it takes of what it gets."""
    first: bytes
    more: bytes = b""
    every_s: float = 1.5
    takes: int = 65536
    again: bool = False                                  # each answer is followed by the same request
    receive_bytes: int = 0                               # SO_RCVBUF, 0: the system's


def head(line, *fields):
    return "\r\n".join((line + " HTTP/1.1", "Host: bad.test") + fields).encode() + b"\r\n"


BOMB = b"X-Bomb: " + b"b" * 900 + b"\r\n"
ATTACKS = {
    "slow head": Kind(head("GET /") + b"X-Slow: ", b"a"),
    "slow body": Kind(head("PUT /", "Content-Length: 100000", ""), b"b"),
    "tiny chunks": Kind(head("PUT /", "Transfer-Encoding: chunked", ""), b"1\r\nx\r\n" * 10),
    "slow read": Kind(head("GET /down", ""), takes=1, receive_bytes=4096),
    "half open": Kind(b""),
    "header bomb": Kind(head("GET /") + BOMB * 18, BOMB),  # 32 KiB of head are allowed: never whole, and more than memory-limit for all
    "many 1xx": Kind(head("GET /interim", ""), every_s=5, again=True),
}


def raise_files():
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class Process:
    """A child with a pipe; what main sends first is in self.said."""

    def __init__(self, main, *args):
        self.pipe, theirs = multiprocessing.Pipe()
        self.process = multiprocessing.Process(target=self.run, args=(main, theirs, *args), daemon=True)
        self.process.start()
        theirs.close()
        self.said = self.pipe.recv()

    def run(self, main, theirs, *args):
        self.pipe.close()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        raise_files()
        gc.disable()                                     # nothing here makes cycles, and a collection is a pause
        try:
            main(theirs, *args)
        except (EOFError, BrokenPipeError):              # the parent has ended
            pass

    def ask(self, word):
        self.pipe.send(word)
        return self.pipe.recv()

    def cpu_seconds(self):
        with open(f"/proc/{self.process.pid}/stat") as f:
            fields = f.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def end(self):
        self.process.kill()
        self.process.join()


# ---------------------------------------------------------------------------------------------------------------------------
# upstreams

class Answering:
    """One epoll loop: 200 to every GET, a large answer to /down, 103 without end to /interim, and no answer to content."""

    OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
    DOWN = b"HTTP/1.1 200 OK\r\nContent-Length: 1048576\r\n\r\n" + bytes(1 << 20)

    def __init__(self):
        self.listener = socket.socket()
        self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 32768)   # as little of each answer in the kernel as can be
        self.listener.bind(("127.0.0.1", 0))
        self.listener.listen(4096)
        self.listener.setblocking(False)
        self.port = self.listener.getsockname()[1]
        self.poller = select.epoll()
        self.poller.register(self.listener, select.EPOLLIN)
        self.socks, self.out = {}, {}                    # by descriptor; out: what is left of an answer, None: 103 without end

    def accept(self):
        try:
            for _ in range(64):
                s, _ = self.listener.accept()
                s.setblocking(False)
                self.socks[s.fileno()] = s
                self.poller.register(s, select.EPOLLIN)
        except OSError:
            pass

    def close(self, fd):
        self.out.pop(fd, None)
        self.socks.pop(fd).close()

    def take(self, fd, s):
        data = s.recv(65536)
        if not data:
            self.close(fd)
        elif data.startswith(b"GET /down"):
            self.begin(fd, memoryview(self.DOWN))
        elif data.startswith(b"GET /interim"):
            self.begin(fd, None)
        elif data.startswith(b"GET "):
            s.send(self.OK)

    def begin(self, fd, out):
        self.out[fd] = out
        self.poller.modify(fd, select.EPOLLIN | select.EPOLLOUT)

    def give(self, fd, s):
        out = self.out[fd]
        if out is None:
            s.send(INTERIM * 64)
            return
        self.out[fd] = out = out[s.send(out[:65536]):]
        if not out:
            del self.out[fd]
            self.poller.modify(fd, select.EPOLLIN)

    def serve(self):
        while True:
            for fd, event in self.poller.poll():
                if fd == self.listener.fileno():
                    self.accept()
                    continue
                s = self.socks.get(fd)
                try:
                    if s and event & ~select.EPOLLOUT:
                        self.take(fd, s)
                    if event & select.EPOLLOUT and fd in self.out:
                        self.give(fd, s)
                except BlockingIOError:
                    pass
                except OSError:
                    self.close(fd)


def upstream_main(pipe, nice):
    os.nice(nice)
    a = Answering()
    pipe.send(a.port)
    a.serve()


class Upstream(Process):
    def __init__(self, nice=0):
        super().__init__(upstream_main, nice)
        self.port = self.said


# ---------------------------------------------------------------------------------------------------------------------------
# attackers

class Crowd:
    """n connections of one kind: opened, kept open, fed a little in turn, opened again when they are closed."""

    def __init__(self, port, name, n):
        self.port, self.kind, self.n = port, ATTACKS[name], n
        self.socks, self.fresh, self.at, self.begin = [], [], 0, time.monotonic()
        self.opened = self.cut = self.steps = self.interims = 0
        self.answers = {}

    def counts(self):
        return {"opened": self.opened, "cut": self.cut, "steps": self.steps, "interims": self.interims, "answers": self.answers}

    def connect(self):
        s = socket.socket()
        s.setblocking(False)
        if self.kind.receive_bytes:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self.kind.receive_bytes)
        s.connect_ex(("127.0.0.1", self.port))
        self.opened += 1
        return s

    def read(self, s):
        """True when an answer ended that is no interim one."""
        data = s.recv(self.kind.takes)
        if not data:
            raise ConnectionResetError
        self.interims += data.count(INTERIM)
        found = False
        for piece in data.split(b"HTTP/1.1 ")[1:]:
            if not piece.startswith(b"103"):
                self.answers[piece[:3].decode()] = self.answers.get(piece[:3].decode(), 0) + 1
                found = True
        return found

    def step(self, i):
        s = self.socks[i]
        self.steps += 1
        try:
            answered = False
            try:
                answered = self.read(s)
            except BlockingIOError:
                pass
            if answered and self.kind.again:
                s.send(self.kind.first)
            elif self.kind.more:
                s.send(self.kind.more)
        except BlockingIOError:
            pass
        except OSError:
            self.cut += 1
            s.close()
            self.socks[i] = self.connect()
            self.fresh.append(self.socks[i])

    def turn(self):
        fresh, self.fresh = self.fresh, []
        for s in fresh:
            try:
                if self.kind.first:
                    s.send(self.kind.first)
            except BlockingIOError:
                self.fresh.append(s)                     # not connected yet
            except OSError:
                pass                                     # its next step tells
        for _ in range(min(OPEN_PER_TURN, self.n - len(self.socks))):
            self.socks.append(self.connect())
            self.fresh.append(self.socks[-1])
            self.begin, self.done = time.monotonic(), 0
        if len(self.socks) < self.n:
            return
        due = int((time.monotonic() - self.begin) / self.kind.every_s * self.n)
        for _ in range(min(due - self.done, self.n)):
            self.step(self.at)
            self.at = (self.at + 1) % self.n
        self.done = due


def attackers_main(pipe, port, crowds):
    os.nice(19)
    pipe.send("ready")
    assert pipe.recv() == "go"
    crowds = [Crowd(port, name, n) for name, n in crowds]
    said = False
    while True:
        if pipe.poll(TURN_S):
            pipe.recv()
            pipe.send([c.counts() for c in crowds])
        for c in crowds:
            c.turn()
        if not said and all(len(c.socks) == c.n for c in crowds):
            pipe.send("open")
            said = True


class Attackers(Process):
    """Waits for start; crowds: pairs of a kind of attack and how many."""

    def __init__(self, port, crowds):
        super().__init__(attackers_main, port, crowds)

    def start(self):
        return self.ask("go")

    def counts(self):
        return self.ask("counts")
