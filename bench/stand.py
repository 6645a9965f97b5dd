"""The stand of the benchmarks: the tools, the upstream and the proxies, each in a process on the CPU that is its own."""
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
BUILD = os.path.join(ROOT, "build", "bench")
RAMJET = os.path.abspath(os.environ.get("RAMJET_BIN", os.path.join(ROOT, "build", "ramjet")))
PROXY_CPU, LOAD_CPU = 0, 1
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
    def __init__(self, command, port, cpus, where, **more):
        self.command, self.port = command, port
        self.log = open(os.path.join(where, f"{os.path.basename(command[0])}-{port}.out"), "wb")
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log, stdin=subprocess.DEVNULL, start_new_session=True,
                                        preexec_fn=lambda: os.sched_setaffinity(0, cpus), **more)
        try:
            until(lambda: listens(port) or self.process.poll() is not None, 10, f"{command[0]} on port {port}")
        except RuntimeError:
            self.stop()
            raise
        if self.process.poll() is not None:
            with open(self.log.name) as f:
                raise RuntimeError(f"{' '.join(command)} ended: {f.read()[-2000:]}")

    @property
    def pid(self):
        return self.process.pid

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(3)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)     # a session that we opened
                self.process.wait()
        self.log.close()


class Bench:
    """The upstream and the proxies of one run; a proxy starts at its first use."""

    def __init__(self, options):
        self.options = options
        self.dir = tempfile.mkdtemp(prefix="ramjet-bench-")
        self.proxies, self.missing = {}, {}
        self.upstream = None

    def __enter__(self):
        os.makedirs(BUILD, exist_ok=True)
        for name in ("load", "relay"):
            compile_tool(name)
        port = free_port()
        self.upstream = Process([os.path.join(BUILD, "load"), "up", "--port", str(port), "--cpu", str(LOAD_CPU)], port, {LOAD_CPU}, self.dir)
        return self

    def __exit__(self, *_):
        for p in [*self.proxies.values(), self.upstream]:
            p.stop()
        shutil.rmtree(self.dir, ignore_errors=True)

    def start(self, name, workers=1, cpus=(PROXY_CPU,), routes="", access_log=False):
        """Starts a proxy by name; None when it is not on this machine."""
        port, up = free_port(), self.upstream.port
        values = {"port": port, "upstream": up, "dir": self.dir, "workers": workers, "routes": routes, "admin": free_port()}
        kind, _, engine = name.partition("-")
        if kind == "nginx":
            values["access_log"] = f"{self.dir}/nginx-access.log" if access_log else "off"
            command = [shutil.which("nginx") or "/usr/sbin/nginx", "-p", self.dir, "-c", self.config("nginx.conf", values)]
        elif kind == "haproxy":
            command = [shutil.which("haproxy") or "/usr/sbin/haproxy", "-q", "-db", "-f", self.config("haproxy.cfg", values)]
        elif kind == "ramjet":
            values.update(no_access_log="false" if access_log else "true", access_log=f"{self.dir}/{name}-access.log")
            command = [RAMJET, "run", "--config", self.config("ramjet.ini", values, name), "--engine", engine]
        elif kind in ("relay", "body"):
            command = [os.path.join(BUILD, "relay"), engine, str(port), str(up)] + (["65536", "64"] if kind == "body" else [])
        elif kind == "caddy":
            command = [os.path.join(BUILD, "caddy"), "run", "--adapter", "caddyfile", "--config", self.config("Caddyfile", values)]
        elif kind == "traefik":
            values.update(routes_file=self.config("traefik-routes.yaml", values), fast="experimental:\n  fastProxy: {}" if engine == "fast" else "")
            command = [os.path.join(BUILD, "traefik"), "--configFile=" + self.config("traefik.yaml", values)]
        else:
            command = [os.path.join(BUILD, kind), str(port), str(up), str(workers)]
        if not os.path.exists(command[0]):
            return None
        more = {"env": {**os.environ, "GOMAXPROCS": str(workers), "HOME": self.dir}} if kind in ("caddy", "traefik") else {}
        return Process(command, port, set(cpus), self.dir, **more)

    def config(self, template, values, name=None):
        path = os.path.join(self.dir, f"{values['port']}-{name or template}")
        with open(path, "w") as f:
            f.write(render(template, **values))
        return path

    def proxy(self, name):
        if name not in self.proxies and name not in self.missing:
            p = self.start(name)
            if p is None:
                self.missing[name] = "not built"
            else:
                self.proxies[name] = p
                until(lambda: fetch(p.port, "/128")[0] == 200, 10, f"{name} serves")        # Traefik listens before it has its routes
                gate(name, p.port, self.upstream.port)
        return self.proxies.get(name)

    def window(self, proxy, arguments, seconds, warmup=0.15):
        command = [os.path.join(BUILD, "load"), "load", "--port", str(proxy.port), "--pids", str(proxy.pid), "--cpu", str(LOAD_CPU), "--cal-cpu", str(PROXY_CPU),
                   "--seconds", str(seconds), "--warmup", str(warmup), *arguments]
        p = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 60)
        if p.returncode:
            raise RuntimeError(f"{' '.join(command)}: {p.stderr}")
        return json.loads(p.stdout)


def compile_tool(name):
    source, target = os.path.join(HERE, f"{name}.c"), os.path.join(BUILD, name)
    newest = max(os.path.getmtime(os.path.join(HERE, f)) for f in (f"{name}.c", "ring.h"))
    if not os.path.exists(target) or os.path.getmtime(target) < newest:
        subprocess.run(["gcc", "-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-o", target, source], check=True)


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
