"""The stand of the benchmarks: the tools, the upstream and the proxies, each in a process on the CPU that is its own."""
import glob
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
BUILD = os.path.join(ROOT, "build", "bench")
RAMJET = os.path.abspath(os.environ.get("RAMJET_BIN", os.path.join(ROOT, "build", "ramjet")))
PROXY_CPU, LOAD_CPU = 0, 1
BASE = "nginx"
KIB, MIB = 1024, 1024 * 1024


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def until(condition, seconds, what):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise RuntimeError(f"timeout: {what}")
        time.sleep(0.005)


def listens(port):
    with socket.socket() as s:
        return s.connect_ex(("127.0.0.1", port)) == 0


def output(*command):
    try:
        p = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    except OSError:
        return ""
    return (p.stdout + p.stderr).strip()


def render(name, **values):
    with open(os.path.join(HERE, "peers", name)) as f:
        text = f.read()
    for key, value in values.items():
        text = text.replace(f"@{key.upper()}@", str(value))
    return text


class Process:
    def __init__(self, command, port, cpus, where, env=None):
        self.command, self.port = command, port
        self.log = open(os.path.join(where, f"{os.path.basename(command[0])}-{port}.out"), "wb")
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, cpus)                           # the child inherits it: cheaper than a function between fork and exec
        self.started = time.perf_counter()
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log, stdin=subprocess.DEVNULL, start_new_session=True, env=env)
        os.sched_setaffinity(0, before)

    def ready(self):
        try:
            until(lambda: listens(self.port) or self.process.poll() is not None, 20, f"{self.command[0]} on port {self.port}")
        except RuntimeError:
            self.stop()
            raise
        if self.process.poll() is not None:
            with open(self.log.name) as f:
                raise RuntimeError(f"{' '.join(self.command)} ended: {f.read()[-2000:]}")
        until(lambda: fetch(self.port, "/128")[0] == 200, 10, f"{self.command[0]} serves")      # Traefik listens before it has its routes
        return self

    @property
    def pid(self):
        return self.process.pid

    def tree(self):
        """The process and all that came from it."""
        pids = [self.pid]
        for pid in pids:
            for path in glob.glob(f"/proc/{pid}/task/*/children"):
                try:
                    with open(path) as f:
                        pids += [int(p) for p in f.read().split() if int(p) not in pids]
                except OSError:
                    pass                                        # it ended meanwhile
        return pids

    def memory(self):
        """Octets of all its processes: {"Pss", "Rss", "Anonymous"}."""
        sums = dict.fromkeys(("Pss", "Rss", "Anonymous"), 0)
        for pid in self.tree():
            with open(f"/proc/{pid}/smaps_rollup") as f:
                for line in f:
                    if (key := line.split(":")[0]) in sums:
                        sums[key] += int(line.split()[1]) * KIB
        return sums

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(3)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)     # a session that we opened
                self.process.wait()
        self.log.close()


class Candidate:
    """One that is measured: a proxy with what is special of it. `base` has ratio 1, `own` is the plain one of the same proxy."""

    def __init__(self, label, proxy=None, base=BASE, own=None, **options):
        self.label, self.proxy, self.base, self.own, self.options = label, proxy or label, base, own, options


def variants(names, mark, **options):
    """Each proxy as it is, and beside it with the options."""
    return tuple(c for n in names for c in (Candidate(n), Candidate(n + mark, n, BASE + mark, n, **options)))


def table(kind, n, port, where, dead=False):
    """The routes of n hosts as an operator of the proxy writes them; all go to the one upstream. dead: one more, toggle.bench.test, whose upstream is not there."""
    hosts = [f"host-{i}.bench.test" for i in range(n)]
    if kind == "nginx":
        lines = [f"server {{ listen 127.0.0.1:{port}; server_name {h}; location / {{ proxy_pass http://up; }} }}" for h in hosts]
        if dead:
            lines.append(f"server {{ listen 127.0.0.1:{port}; server_name toggle.bench.test; location / {{ proxy_pass http://127.0.0.1:1; }} }}")
    elif kind == "haproxy":
        path = os.path.join(where, f"haproxy-{port}.map")
        write(path, "".join(f"{h} up\n" for h in hosts) + ("toggle.bench.test dead\n" if dead else ""))
        lines = [f"    use_backend %[req.hdr(host),field(1,:),lower,map_str({path},up)]", "backend dead", "    retries 0", "    server s 127.0.0.1:1"] if n else []
    else:
        lines = [f"[route r{i}]\nhost = {h}\npath = /\ntype = prefix\nbackend = up" for i, h in enumerate(hosts)]
        if dead:
            lines.append("[backend dead]\nendpoint = 127.0.0.1:1\n[route dead]\nhost = toggle.bench.test\npath = /\ntype = prefix\nbackend = dead")
    return "\n".join(lines)


def write(path, text):
    """All at once: a reader sees the old file or the new one."""
    with open(path + ".new", "w") as f:
        f.write(text)
    os.rename(path + ".new", path)


class Bench:
    """The upstream and the proxies of one run; a proxy starts at its first use."""

    def __init__(self, options):
        self.options = options
        self.dir = tempfile.mkdtemp(prefix="ramjet-bench-")
        self.proxies, self.missing, self.commands = {}, {}, {}
        self.problems = []                                      # what could not be measured, and why; the rest goes on
        self.upstream, self.scenario = None, ""

    def __enter__(self):
        os.makedirs(BUILD, exist_ok=True)
        for name in ("load", "relay"):
            compile_tool(name, "ring.h")
        port = free_port()
        self.upstream = Process([os.path.join(BUILD, "load"), "up", "--port", str(port), "--cpu", str(LOAD_CPU)], port, {LOAD_CPU}, self.dir).ready()
        return self

    def __exit__(self, *_):
        for p in [*self.proxies.values(), self.upstream]:
            p.stop()
        shutil.rmtree(self.dir, ignore_errors=True)

    def start(self, name, workers=1, cpus=(PROXY_CPU,), routes=0, access_log="", reloads=False):
        """Starts a proxy by name; None when it is not on this machine. reloads: as for one whose configuration changes under load."""
        port, up = free_port(), self.upstream.port
        kind, _, engine = name.partition("-")
        values = {"port": port, "upstream": up, "dir": self.dir, "workers": workers, "routes": table(kind, routes, port, self.dir) if routes else "", "admin": free_port(),
                  "more": f"stats socket {self.dir}/haproxy-{port}.sock expose-fd listeners" if reloads else ""}
        path, template = os.path.join(self.dir, f"{name}-{port}.{'yaml' if kind == 'traefik' else 'conf'}"), {"nginx": "nginx.conf", "haproxy": "haproxy.cfg", "ramjet": "ramjet.ini", "caddy": "Caddyfile", "traefik": "traefik.yaml"}.get(kind)
        if kind == "nginx":
            values["access_log"] = f"{self.dir}/nginx-access.log combined buffer=64k flush=1s" if access_log else "off"
            command = [shutil.which("nginx") or "/usr/sbin/nginx", "-p", self.dir, "-c", path]
        elif kind == "haproxy":
            command = [shutil.which("haproxy") or "/usr/sbin/haproxy", "-q", "-W" if reloads else "-db", "-f", path]
        elif kind == "ramjet":
            values.update(no_access_log="false" if access_log else "true", access_log=f"{self.dir}/{name}-access.log", log_format=access_log or "json")
            command = [RAMJET, "run", "--config", path, "--engine", engine]
        elif kind in ("relay", "body"):
            command = [os.path.join(BUILD, "relay"), engine, str(port), str(up)] + (["65536", "64"] if kind == "body" else [])
        elif kind == "caddy":
            command = [os.path.join(BUILD, "caddy"), "run", "--adapter", "caddyfile", "--config", path]
        elif kind == "traefik":
            values.update(routes_file=f"{path}.routes.yaml", fast="experimental:\n  fastProxy: {}" if engine == "fast" else "")
            write(f"{path}.routes.yaml", render("traefik-routes.yaml", **values))
            command = [os.path.join(BUILD, "traefik"), f"--configFile={path}"]
        else:
            command = [os.path.join(BUILD, kind), str(port), str(up), str(workers)]
        if not os.path.exists(command[0]):
            self.missing[name] = "not built"
            return None
        if template:
            write(path, render(template, **values))
        env = {**os.environ, "GOMAXPROCS": str(workers), "HOME": self.dir} if kind in ("caddy", "traefik") else None
        p = Process(command, port, set(cpus), self.dir, env)
        p.name, p.config, p.template, p.values = name, path, template, values
        self.commands.setdefault(name, " ".join(command).replace(ROOT + "/", ""))
        return p

    def reload(self, p, routes, dead):
        """Gives a running proxy a new table, as its operator does: Ramjet watches its file, nginx takes SIGHUP, HAProxy's master SIGUSR2."""
        kind = p.name.partition("-")[0]
        p.values["routes"] = table(kind, routes, p.port, self.dir, dead)
        write(p.config, render(p.template, **p.values))
        if kind != "ramjet":
            p.process.send_signal({"nginx": signal.SIGHUP, "haproxy": signal.SIGUSR2}[kind])

    def proxy(self, candidate):
        """The running proxy of a candidate; None when it is not on this machine."""
        if candidate.label not in self.proxies:
            if not (p := self.start(candidate.proxy, **candidate.options)):
                return None
            try:
                p.ready()
                gate(candidate.label, p.port, self.upstream.port)
            except BaseException:
                p.stop()
                raise
            self.proxies[candidate.label] = p
        return self.proxies[candidate.label]

    def each(self, names, measure):
        """What measure(name) returns for each proxy that --only lets through, is on this machine and does not fail."""
        done = {}
        for name in names:
            if name in self.missing or (self.options.only and name not in self.options.only):
                continue
            try:
                if (result := measure(name)) is not None:
                    done[name] = result
            except (RuntimeError, OSError, ValueError, subprocess.SubprocessError, http.client.HTTPException) as e:
                problem = f"{self.scenario}: {name}: {type(e).__name__}: {e}".strip().replace("\n", " ")
                print(problem, file=sys.stderr)
                self.problems.append(problem)
        return done

    def forget(self, candidates):
        """Stops what only one scenario needs."""
        for c in candidates:
            if c.options and c.label in self.proxies:
                self.proxies.pop(c.label).stop()

    def load(self, p, arguments, seconds, warmup=0.15):
        command = [os.path.join(BUILD, "load"), "load", "--port", str(p.port), "--pids", str(p.pid), "--cpu", str(LOAD_CPU), "--cal-cpu", str(PROXY_CPU),
                   "--seconds", str(seconds), "--warmup", str(warmup), *arguments]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def window(self, p, arguments, seconds, warmup=0.15):
        load = self.load(p, arguments, seconds, warmup)
        out, error = load.communicate(timeout=seconds + 60)
        if load.returncode:
            raise RuntimeError(f"{' '.join(load.args)}: {error}")
        return json.loads(out)


class Held:
    """Idle connections: each made one request and stays open; `close` says how many the proxy closed."""

    def __init__(self, bench, p, connections):
        self.load = bench.load(p, ["--mode", "hold", "--connections", str(connections)], 0)
        self.started = json.loads(self.load.stdout.readline())

    def close(self):
        out, _ = self.load.communicate("\n", timeout=10)
        return json.loads(out)["lost"]


def compile_tool(name, *needs, libraries=()):
    """Builds bench/NAME.c when it or what it needs is newer than the program; returns the program."""
    source, target = os.path.join(HERE, f"{name}.c"), os.path.join(BUILD, name)
    newest = max(os.path.getmtime(os.path.join(HERE, f)) for f in (f"{name}.c", *needs))
    if not os.path.exists(target) or os.path.getmtime(target) < newest:
        subprocess.run(["gcc", "-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-Wno-unused-function", "-fno-strict-aliasing", "-o", target, source, *libraries], check=True)
    return target


def fetch(port, path, body=None, headers=None):
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        c.request("POST" if body is not None else "GET", path, body, headers or {"Host": "bench.test"}, encode_chunked=isinstance(body, list))
        r = c.getresponse()
        return r.status, r.read()
    finally:
        c.close()


def gate(name, port, upstream):
    """A proxy that changes an octet is not measured."""
    for path in ("/128", "/10240", "/102400", "/102400c", "/4194304", "/4194304c"):
        want, got = fetch(upstream, path), fetch(port, path)
        if got != want:
            raise RuntimeError(f"{name} answers {path} with {got[0]}, {len(got[1])} octets; expected {want[0]}, {len(want[1])} octets")
    big = bytes(300000)
    for body, headers in ((big, {"Host": "bench.test"}), ([big, big], {"Host": "bench.test", "Transfer-Encoding": "chunked"})):
        if fetch(port, "/up", body, headers)[0] != 200:
            raise RuntimeError(f"{name} refuses an upload")
