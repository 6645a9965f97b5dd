"""SIGUSR2: a new process takes the listening sockets over; no connect and no request fails."""
import ctypes
import os
import re
import signal
import socket
import struct
import subprocess
import threading
import time

import pytest

import harness
from harness import GET, OK, ONE, SLACK, Client, Eof, stopped, until

PR_SET_CHILD_SUBREAPER = 36


class Successor:
    """A process that ramjet started: ours to wait for, once its parent is gone, because we are a subreaper."""

    def __init__(self, pid):
        self.pid, self.status = pid, None

    def poll(self):
        if self.status is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:                    # its parent has not been collected yet
                return None if os.path.exists(f"/proc/{self.pid}") else 0
            if pid:
                self.status = os.waitstatus_to_exitcode(status)
        return self.status

    def wait(self, seconds=None):
        end = time.monotonic() + (seconds or 60)
        while self.poll() is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired("ramjet", seconds)
            time.sleep(0.005)
        return self.poll()

    def send_signal(self, number):
        os.kill(self.pid, number)

    def kill(self):
        os.kill(self.pid, signal.SIGKILL)


@pytest.fixture(autouse=True)
def subreaper():
    assert ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    yield
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def said(e, pattern, count=1):
    until(lambda: len(re.findall(pattern, e.ramjet.stderr())) >= count, 20 * SLACK, f"{pattern!r} in the log")
    return re.findall(pattern, e.ramjet.stderr())


def hand_over(e):
    """SIGUSR2; returns the old process when the new one serves. e.ramjet is the new one from here on."""
    old = e.ramjet.process
    count = len(re.findall(r"handed over to process", e.ramjet.stderr())) + 1
    old.send_signal(signal.SIGUSR2)
    pid = int(said(e, r"handed over to process (\d+)", count)[-1])
    e.ramjet.process = Successor(pid)
    return old


def answering(e):
    e.U.play_by_target({}, OK)
    return e


class Load:
    """Threads that ask without a pause: half of them keep their connections. Every failure is noted."""

    def __init__(self, port, threads=6):
        self.port, self.ending, self.failed, self.done, self.connects = port, False, [], 0, 0
        self.lock = threading.Lock()
        self.threads = [threading.Thread(target=self.run, args=(i % 2 == 0,)) for i in range(threads)]
        for t in self.threads:
            t.start()

    def run(self, keep):
        while not self.ending:
            try:
                with Client(self.port) as c:
                    with self.lock:
                        self.connects += 1
                    while not self.ending:
                        c.send(GET)
                        r = c.response()
                        assert r.status == 200 and r.body == b"ok", r
                        with self.lock:
                            self.done += 1
                        if not keep or r.get(b"Connection") == b"close":
                            break
            except (OSError, Eof, AssertionError) as error:
                with self.lock:
                    self.failed.append((keep, repr(error)))

    def more(self, n=50):
        want = self.done + n
        until(lambda: self.done >= want or self.failed, 20 * SLACK, "requests")

    def end(self):
        self.ending = True
        for t in self.threads:
            t.join()
        assert not self.failed, (len(self.failed), self.failed[:5])


@pytest.mark.parametrize("workers", [1, 3])
def test_hands_over_under_load_without_a_failed_connect_or_request(fresh, workers):
    e = answering(fresh(ONE, workers=workers))
    load = Load(e.ramjet.port)
    try:
        for _ in range(4):
            load.more()
            old = hand_over(e)
            load.more()
            assert old.wait(20) == 0
    finally:
        load.end()
    assert e.ramjet.stderr().count("handed over") == 4
    assert e.ramjet.admin("/readyz").status == 200


def test_the_new_process_reads_the_configuration_anew(fresh):
    """What a reload cannot change - the number of workers, a listener more - takes effect."""
    e = answering(fresh(ONE, workers=1))
    load = Load(e.ramjet.port, 4)
    second = harness.free_port()
    try:
        for workers in (3, 2, 1):
            e.ramjet.workers = workers
            text = e.ramjet.text().replace("worker-processes", f"http = 127.0.0.1:{second}\nworker-processes", 1)
            with open(e.ramjet.path, "w") as f:
                f.write(text)
            old = hand_over(e)
            load.more(20)
            assert old.wait(20) == 0
            with Client(second) as c:
                c.send(GET)
                assert c.response().body == b"ok"
            assert len(re.findall(r'ramjet_worker_connections{worker=', e.ramjet.admin("/metrics").body.decode())) == workers
    finally:
        load.end()


def test_the_other_engine_takes_over(engine):
    """O_NONBLOCK belongs to the socket: each engine listens on sockets of its own, and the old process serves what waits on its own."""
    other = [name for name in harness.ENGINES if name != engine][0]
    e = answering(harness.Edge(None, f"[ramjet]\nengine = {engine}\n" + ONE))
    try:
        load = Load(e.ramjet.port, 4)
        try:
            for before, name in ((engine, other), (other, engine), (engine, other)):
                e.ramjet.write(e.ramjet.config.replace(f"engine = {before}\n", f"engine = {name}\n"))
                old = hand_over(e)
                load.more(20)
                assert old.wait(20) == 0
                assert f'engine="{name}"' in e.ramjet.admin("/metrics").body.decode()
        finally:
            load.end()
        e.stop()
    except BaseException:
        e.kill()
        raise


def test_a_new_process_that_does_not_start_changes_nothing(fresh):
    e = answering(fresh(ONE))
    load = Load(e.ramjet.port, 4)
    try:
        good = e.ramjet.text()
        for broken in (good.replace("backend = s", "backend = nowhere"), good.replace("worker-processes", "worker-procesess")):
            count = e.ramjet.stderr().count("this one goes on")
            with open(e.ramjet.path, "w") as f:
                f.write(broken)
            e.ramjet.signal(signal.SIGUSR2)
            said(e, r"the new process ended with status 2 before it was ready; this one goes on", count + 1)
            load.more()
            assert e.ramjet.alive()
        with open(e.ramjet.path, "w") as f:
            f.write(good)
        old = hand_over(e)
        load.more()
        assert old.wait(20) == 0
    finally:
        load.end()


def test_what_is_under_way_ends_in_the_old_process(fresh):
    """An answer that is awaited and a connection that is idle are served by the process that has them; both are told to close."""
    e = fresh(ONE)
    gate = threading.Event()
    e.U.play_by_target({b"/slow": [gate, OK]})
    with Client(e.ramjet.port) as slow, Client(e.ramjet.port) as idle:
        slow.send(GET.replace(b" / ", b" /slow "))
        assert idle.get("/idle").body == b"ok"
        until(lambda: len(e.U.requests) == 2, 5, "the slow request")
        old = hand_over(e)
        r = idle.get("/again")
        assert r.body == b"ok" and r.get(b"Connection") == b"close"
        idle.closed()
        assert old.poll() is None
        gate.set()
        r = slow.response()
        assert r.status == 200 and r.get(b"Connection") == b"close"
    assert old.wait(20) == 0
    assert e.get().status == 200


def test_a_unix_socket_is_handed_over(fresh):
    e = answering(fresh(ONE))
    path = os.path.join(e.ramjet.dir, "http.sock")
    text = e.ramjet.text().replace("worker-processes", f"http = unix:{path}\nworker-processes", 1)
    with open(e.ramjet.path, "w") as f:
        f.write(text)
    hand_over(e).wait(20)
    inode = os.stat(path).st_ino
    with open(e.ramjet.path, "a") as f:
        f.write("\n")
    hand_over(e).wait(20)
    assert os.stat(path).st_ino == inode                 # the same socket, not a new one at its path
    with socket.socket(socket.AF_UNIX) as s:
        s.connect(path)
        s.sendall(GET)
        assert s.recv(100).startswith(b"HTTP/1.1 200 ")


NAMED = """
[ramjet]
resolver = 127.0.0.1:{port}

[backend s]
endpoint = slow.test:80

[route r]
backend = s
"""


def dns_answer(query):
    """127.0.0.1 for an A question, nothing for any other; TTL 300."""
    end = query.index(b"\0", 12) + 5
    a = query[end - 4:end - 2] == b"\0\1"
    record = b"\xc0\x0c\0\1\0\1" + struct.pack(">IH", 300, 4) + b"\x7f\0\0\1"
    return query[:2] + b"\x81\x80\0\1" + (b"\0\1" if a else b"\0\0") + b"\0\0\0\0" + query[12:end] + (record if a else b"")


@pytest.mark.parametrize("workers", [1, 3])
def test_nothing_comes_to_a_new_process_before_it_is_ready(fresh, workers):
    """It does not know yet where the upstream is: until it does, the old process serves every connection, and /readyz says yes."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        server.settimeout(0.1)
        gate, ending, asked = threading.Event(), threading.Event(), []

        def serve():
            while not ending.is_set():
                try:
                    query, peer = server.recvfrom(512)
                except TimeoutError:
                    continue
                asked.append(peer)
                if gate.is_set():
                    server.sendto(dns_answer(query), peer)

        thread = threading.Thread(target=serve)
        thread.start()
        load = None
        try:
            gate.set()
            e = answering(fresh(ONE))
            e.ramjet.write(NAMED.format(port=server.getsockname()[1]).replace("slow.test:80", f"slow.test:{e.U.port}"))
            hand_over(e).wait(20)
            assert e.get().status == 200
            e.ramjet.workers = workers
            e.ramjet.write(e.ramjet.config)
            gate.clear()
            load, before, old = Load(e.ramjet.port), len(asked), e.ramjet.process
            old.send_signal(signal.SIGUSR2)
            pid = int(said(e, r"hand-over: process (\d+) is starting", 2)[-1])
            until(lambda: len(asked) > before, 10, "a question of the new process")
            for _ in range(20):
                load.more(20)
                assert e.ramjet.admin("/readyz").status == 200
            gate.set()
            said(e, r"handed over to process (\d+)", 2)
            e.ramjet.process = Successor(pid)
            load.more()
            assert old.wait(20) == 0
        finally:
            ending.set()
            thread.join()
            if load:
                load.end()


def test_a_process_that_ends_lets_no_other_take_over(fresh):
    """SIGTERM while a new process is starting ends both, and cuts nothing that is under way."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        silent.bind(("127.0.0.1", 0))
        e = fresh(ONE)
        gate = threading.Event()
        e.U.play_by_target({b"/slow": [gate, OK]})
        slow = e.client().send(GET.replace(b" / ", b" /slow "))
        until(lambda: len(e.U.requests) == 1, 5, "the slow request")
        e.ramjet.write(NAMED.format(port=silent.getsockname()[1])) # the new one waits five seconds for the name
        e.ramjet.signal(signal.SIGUSR2)
        pid = int(said(e, r"hand-over: process (\d+) is starting")[0])
        e.ramjet.signal(signal.SIGTERM)
        until(lambda: Successor(pid).poll() is not None or not os.path.exists(f"/proc/{pid}"), 3 * SLACK, "the end of the new process")
        assert "handed over" not in e.ramjet.stderr()
        gate.set()
        assert slow.response().status == 200
        assert e.ramjet.wait(20) == 0


def test_a_hand_over_may_follow_one_that_has_just_failed(fresh):
    """The end of the new process and the next SIGUSR2 are seen in one turn of the loop."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        silent.bind(("127.0.0.1", 0))
        e = fresh(NAMED.format(port=silent.getsockname()[1]))
        for turn in range(1, 4):
            e.ramjet.signal(signal.SIGUSR2)
            pid = int(said(e, r"hand-over: process (\d+) is starting", turn)[-1])
            stopped(e)
            os.kill(pid, signal.SIGKILL)
            until(lambda: open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()[0] == "Z", 5, "its end")
            e.ramjet.signal(signal.SIGUSR2)
            e.ramjet.signal(signal.SIGCONT)
            said(e, r"the new process went away; this one goes on", turn)
            said(e, r"hand-over: not now: (?:the last new process has ended just now|a new process is starting already)", turn)
            assert e.ramjet.admin("/readyz").status == 200


def test_the_first_process_of_a_container_passes_signals_on_while_it_drains(engine):
    """After a hand-over SIGTERM goes to process 1, which still has a request under way: the process that serves must end too."""
    e = answering(harness.Edge(engine, ONE, prefix=["unshare", "--pid", "--fork", "--kill-child"]))
    gate = threading.Event()
    try:
        e.U.play_by_target({b"/slow": [gate, OK]}, OK)
        first = int(open(f"/proc/{e.ramjet.pid}/task/{e.ramjet.pid}/children").read().split()[0])
        slow = e.client().send(GET.replace(b" / ", b" /slow "))
        until(lambda: len(e.U.requests) == 1, 5, "the slow request")
        os.kill(first, signal.SIGUSR2)
        said(e, r"handed over to process \d+")
        assert e.get().status == 200
        os.kill(first, signal.SIGTERM)
        until(lambda: len(re.findall(r"draining after", e.ramjet.stderr())) == 2, 10 * SLACK, "the drain of the process that serves")
        gate.set()
        assert e.ramjet.wait(20) == 0
        slow.close()
    finally:
        gate.set()
        e.kill()


def test_a_second_hand_over_waits_for_the_first(fresh):
    """While a new process is starting, another SIGUSR2 is refused with a line in the log; SIGTERM then ends both."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent: # no name is resolved: a start takes its time
        silent.bind(("127.0.0.1", 0))
        e = fresh(NAMED.format(port=silent.getsockname()[1]))
        e.ramjet.signal(signal.SIGUSR2)
        pid = int(said(e, r"hand-over: process (\d+) is starting")[0])
        e.ramjet.signal(signal.SIGUSR2)
        said(e, r"hand-over: not now: a new process is starting already")
        e.ramjet.signal(signal.SIGTERM)
        assert e.ramjet.wait(20) == 0
        until(lambda: not os.path.exists(f"/proc/{pid}") or Successor(pid).poll() is not None, 10 * SLACK, "the end of the new process")


def test_no_descriptor_is_lost_over_hand_overs(fresh):
    e = answering(fresh(ONE))
    before = e.ramjet.fds()
    for _ in range(3):
        hand_over(e).wait(20)
        assert e.get().status == 200
    until(lambda: e.ramjet.fds() <= before + 1, 10 * SLACK, f"{before} descriptors (now {e.ramjet.fds()})")


def test_the_environment_of_a_stranger_is_harmless(fresh):
    """Numbers in the variable that name no socket of ours are left alone."""
    e = answering(fresh(ONE, env={"RJ_LISTENING": "0 1 2 x 99999999999 77 -5"}))
    assert e.get().status == 200
