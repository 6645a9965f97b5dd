"""Files and disks that fail, configurations that are huge or change all the time: what serves goes on serving."""
import collections
import os
import selectors
import shutil
import socket
import subprocess
import threading
import time

import pytest

from harness import OK, ONE, SLACK, Client, Edge, mib, until
from test_process import OTHER, ROUTE, Load, rename_over, serves, serving, tagged

LOST_CAPS = ("setpriv", "--bounding-set", "-dac_override,-dac_read_search")      # root that a mode of 000 stops


def cpu_s(pid):
    with open(f"/proc/{pid}/stat") as f:
        fields = f.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# ---------------------------------------------------------------------------------------------------------------------------
# a full disk

@pytest.fixture
def small_disk(tmp_path):
    """A tmpfs of 256 KiB."""
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", tmp_path], stderr=subprocess.DEVNULL).returncode:
        pytest.skip("no right to mount a tmpfs")
    yield tmp_path
    subprocess.run(["umount", "-l", tmp_path], check=True)


@pytest.mark.long
def test_access_log_on_a_full_disk(fresh, small_disk):
    """Requests do not notice; it is told once, nothing spins, what finds no room is counted, and lines come again when there is room."""
    log = small_disk / "access.log"
    e = fresh(f"[ramjet]\naccess-log-path = {log}\n" + ONE)
    e.U.play(OK)
    filler = small_disk / "filler"
    with open(filler, "wb", buffering=0) as f:
        try:
            while True:
                f.write(bytes(4096))
        except OSError:
            pass
    c = e.client()
    long = "/" + "x" * 6000

    def dropped():
        for _ in range(100):
            if c.wire.eof or c.get(long).get(b"Connection") == b"close":
                c.__init__(e.ramjet.port)
        return e.ramjet.metric("ramjet_log_dropped_total")
    until(dropped, 20, "records without room")
    assert e.ramjet.stderr().count("No space left on device") == 1, e.ramjet.stderr()[-2000:]
    before, began = cpu_s(e.ramjet.pid), time.monotonic()
    until(lambda: time.monotonic() - began > 1, 5)
    assert cpu_s(e.ramjet.pid) - before < 0.3 * (time.monotonic() - began), "it spins on a full disk"
    assert e.ramjet.admin("/readyz").status == 200
    os.unlink(filler)
    os.truncate(log, 0)
    reader = [0]

    def found():
        c2 = Client(e.ramjet.port)
        assert c2.get("/again").status == 200
        c2.close()
        os.truncate(log, 0) if reader[0] % 4 == 3 else None     # the rest of what waited may fill it again
        reader[0] += 1
        return b'"/again"' in log.read_bytes()
    until(found, 10, "lines again")


# ---------------------------------------------------------------------------------------------------------------------------
# a file that cannot be read

def into_a_folder(path):
    os.unlink(path)
    os.mkdir(path)


def into_a_link_to_nowhere(path):
    os.symlink(path + ".nowhere", path + ".link")
    os.rename(path + ".link", path)


def into_a_link_to_itself(path):
    os.symlink(path, path + ".link")
    os.rename(path + ".link", path)


def out_of_reach(path):
    os.chmod(path, 0)


@pytest.mark.long
@pytest.mark.parametrize("fault", [into_a_folder, into_a_link_to_nowhere, into_a_link_to_itself, out_of_reach, os.unlink])
def test_unreadable_file(engine, request, fault):
    """Without any signal: the last table serves, the fault is told once, and the next readable file is followed."""
    if fault is out_of_reach and (os.geteuid() or not shutil.which("setpriv")):
        pytest.skip("needs root and setpriv")
    e = Edge(engine, ROUTE, prefix=LOST_CAPS if fault is out_of_reach else ())
    request.addfinalizer(e.kill)
    path = e.ramjet.path
    e.U.play(tagged(b"1")), e.V.play(tagged(b"2"))
    assert e.get().body == b"1"
    generation = serving(e)
    fault(path)
    until(lambda: e.ramjet.metric("ramjet_config_ok") == 0, 10, "the metric")
    assert b"config: " in e.ramjet.admin("/readyz").body and e.ramjet.admin("/readyz").status == 200
    began = time.monotonic()
    n = 0

    def touched():
        nonlocal n
        n += 1
        with open(path + ".other", "w") as f:                   # an event in the folder each time
            f.write(str(n))
        assert e.get().body == b"1"
        return time.monotonic() - began > 2.5
    until(touched, 10)
    assert e.ramjet.stderr().count("cannot be read") == 1, e.ramjet.stderr()
    assert serving(e) == generation
    if os.path.isdir(path):
        os.rmdir(path)
    rename_over(e, OTHER)
    serves(e, b"2")
    until(lambda: e.ramjet.metric("ramjet_config_ok") == 1, 5, "the metric")
    e.stop()


def test_the_same_file_comes_back(fresh):
    """A file that was away and is what it was: served as before, and no longer counted as a fault."""
    e = fresh(ROUTE)
    e.U.play(tagged(b"1")), e.V.play(tagged(b"2"))
    os.rename(e.ramjet.path, e.ramjet.path + ".away")
    until(lambda: e.ramjet.metric("ramjet_config_ok") == 0, 10, "the metric")
    os.rename(e.ramjet.path + ".away", e.ramjet.path)
    until(lambda: e.ramjet.metric("ramjet_config_ok") == 1, 5, "the metric")
    serves(e, b"1")


# ---------------------------------------------------------------------------------------------------------------------------
# a file that changes all the time

@pytest.mark.long
def test_a_file_replaced_a_thousand_times(fresh):
    """The last one is served; reads and generations are bounded by time, not by renames; nothing grows; requests do not notice."""
    e = fresh(ROUTE, workers=2)
    e.U.play(tagged(b"1")), e.V.play(tagged(b"2"))
    texts = []
    for i in range(1000):
        e.ramjet.config = e.fill((OTHER if i % 2 else ROUTE) + f"\n[route n{i}]\nhost = n{i}.test\npath = /\ntype = prefix\nbackend = s\n")
        texts.append(e.ramjet.text())

    def storm():
        began = time.monotonic()
        for text in texts:
            with open(e.ramjet.path + ".new", "w") as f:
                f.write(text)
            os.replace(e.ramjet.path + ".new", e.ramjet.path)
        until(lambda: e.get(host="n999.test").status == 200, 10, "the last file")
        return time.monotonic() - began
    storm()                                                     # what the first one leaves is not growth
    fds, rss, generation, told = e.ramjet.fds(), e.ramjet.rss(), serving(e), e.ramjet.stderr().count("was read again")
    load = Load(e.ramjet.port, bodies=(b"1", b"2"))
    try:
        took = storm()
    finally:
        load.stop()
    bound = took / 0.020 + 3
    reads, generations = e.ramjet.stderr().count("was read again") - told, serving(e) - generation
    print(f"figures: 1000 renames and served after {took:.2f} s: {reads} reads, {generations} generations, {load.done} requests, RSS {(e.ramjet.rss() - rss) // 1024:+d} KiB")
    assert 1 <= reads <= bound and 1 <= generations <= bound, (reads, generations, bound)
    assert e.get(host="n998.test").status == 404
    assert e.get().body == b"2"
    assert e.ramjet.rss() - rss < mib(4)
    e.settle()
    until(lambda: e.ramjet.fds() <= fds, 5, "descriptors as before")


# ---------------------------------------------------------------------------------------------------------------------------
# many routes

def many_routes(n, last):
    return ROUTE + "".join(f"[route n{i}]\nhost = n{i}.test\npath = /\ntype = prefix\nbackend = s\n" for i in range(n)) \
        + f"[route last]\nhost = {last}.test\nbackend = s\n"


class Latency:
    """One client that asks on and on; .worst and .all in seconds."""

    def __init__(self, port, host):
        self.port, self.host, self.all, self.stopped, self.why = port, host, [], threading.Event(), None
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        try:
            while not self.stopped.is_set():
                with Client(self.port) as c:
                    for _ in range(500):
                        began = time.monotonic()
                        assert c.get(host=self.host).status == 200
                        self.all.append(time.monotonic() - began)
                        if self.stopped.wait(0.001):
                            break
        except Exception as why:                                # noqa: BLE001
            self.why = why

    def stop(self):
        self.stopped.set()
        self.thread.join()
        assert self.why is None, repr(self.why)
        return sorted(self.all)


def figures_of(times):
    return f"median {times[len(times) // 2] * 1000:.2f}, p99 {times[int(len(times) * .99)] * 1000:.2f}, max {times[-1] * 1000:.1f} ms of {len(times)}"


@pytest.mark.long
@pytest.mark.parametrize("n", [5000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_many_routes_in_one_file(fresh, n):
    """Loaded, served, and changed in one route beside requests, none of which fails or waits for it."""
    e = fresh(ROUTE)
    e.U.play(tagged(b"1"))
    empty, began = e.ramjet.rss(), time.monotonic()
    rename_over(e, many_routes(n, "first"))
    until(lambda: e.get(host="first.test").status == 200, 120, "the last route")
    loaded, rss = time.monotonic() - began, e.ramjet.rss()
    assert e.get(host=f"n{n - 1}.test").status == e.get(host="n0.test").status == 200
    probe = Latency(e.ramjet.port, "n7.test")
    began = time.monotonic()
    until(lambda: time.monotonic() - began > 1.5, 10)
    quiet = probe.stop()
    text = many_routes(n, "second")
    probe = Latency(e.ramjet.port, "n7.test")
    times = []
    try:
        for word in ("second", "third", "fourth"):
            text = many_routes(n, word)
            began = time.monotonic()
            rename_over(e, text)
            until(lambda: e.get(host=f"{word}.test").status == 200, 120, "the changed route")
            times.append(time.monotonic() - began)
    finally:
        during = probe.stop()
    assert e.get(host="first.test").status == 404
    print(f"figures: {n} routes loaded in {loaded:.2f} s, RSS {empty >> 10} -> {rss >> 10} KiB ({e.ramjet.rss() >> 10} after the changes); "
          f"one route changed: {', '.join(f'{t:.2f}' for t in times)} s; a request: quiet {figures_of(quiet)}; meanwhile {figures_of(during)}")
    assert rss - empty < mib(4 + n / 1000)
    assert e.ramjet.rss() - rss < mib(8) + (rss - empty), "changes leave memory behind"
    assert during[int(len(during) * .99)] < 0.25 * SLACK + 4 * quiet[int(len(quiet) * .99)]


# ---------------------------------------------------------------------------------------------------------------------------
# many endpoints

class Everywhere:
    """Answers on one port of every 127/8 address with the address that was asked."""

    def __init__(self):
        self.sock = socket.socket()
        self.sock.bind(("0.0.0.0", 0))
        self.sock.listen(4096)
        self.sock.setblocking(False)
        self.port = self.sock.getsockname()[1]
        self.hits = collections.Counter()
        self.stopped = False
        self.poll = selectors.DefaultSelector()
        self.poll.register(self.sock, selectors.EVENT_READ)
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        while not self.stopped:
            for key, _ in self.poll.select(0.1):
                if key.fileobj is self.sock:
                    try:
                        conn, _ = self.sock.accept()
                    except OSError:
                        continue
                    conn.setblocking(False)
                    self.poll.register(conn, selectors.EVENT_READ)
                    continue
                try:
                    data = key.fileobj.recv(65536)
                    if data:
                        name = key.fileobj.getsockname()[0].encode()
                        self.hits[name] += data.count(b"\r\n\r\n")
                        key.fileobj.send(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(name), name))
                except OSError:
                    pass
                self.poll.unregister(key.fileobj)
                key.fileobj.close()

    def close(self):
        self.stopped = True
        self.thread.join()
        self.sock.close()


def many_endpoints(n, port, more=""):
    return "[backend s]\n" + more + "".join(f"endpoint = 127.{1 + i // 62500}.{i // 250 % 250}.{1 + i % 250}:{port}\n" for i in range(n)) \
        + "[route r]\nhost = a.test\nbackend = s\n"


@pytest.mark.long
@pytest.mark.parametrize("n", [500, pytest.param(5000, marks=pytest.mark.slow)])
def test_a_backend_of_many_endpoints(fresh, n):
    """Each gets its share by turns, a key stays where it is, and one endpoint more takes no time."""
    u = Everywhere()
    try:
        began = time.monotonic()
        e = fresh(many_endpoints(n, u.port))
        started = time.monotonic() - began
        c = e.client()

        def rounds(times):
            nonlocal c
            u.hits.clear()
            for k in range(times * n):
                if k % 900 == 899:
                    c = e.client()
                assert c.get().status == 200
            return u.hits
        hits = rounds(2)
        assert len(hits) == n and set(hits.values()) == {2}, (len(hits), collections.Counter(hits.values()))
        began = time.monotonic()
        rename_over(e, many_endpoints(n + 1, u.port))
        until(lambda: len(e.ramjet.admin_json("/admin/upstreams")["backends"][0]["endpoints"]) == n + 1, 10, "one endpoint more")
        published = time.monotonic() - began
        began = time.monotonic()
        rename_over(e, many_endpoints(n, u.port, "upstream-hash-by = $arg_k\n"))
        c = e.client()
        until(lambda: len({e.get(f"/?k={k % 3}").body for k in range(12)}) <= 3, 10, "hashing")
        where = {k: c.get(f"/?k={k}").body for k in range(400)}
        c = e.client()
        assert {k: c.get(f"/?k={k}").body for k in range(400)} == where
        assert len(set(where.values())) > 0.5 * min(n, 400)
        print(f"figures: {n} endpoints: started in {started:.2f} s, one more published in {published * 1000:.0f} ms, RSS {e.ramjet.rss() >> 10} KiB")
    finally:
        u.close()
