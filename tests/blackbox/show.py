#!/usr/bin/python3 -B
"""Figures of the data path on the release binary, both engines: Markdown on standard output, JSON in bench/results/show.json.

    tests/blackbox/show.py [--engine E] [--requests N] [--mib N] [--reloads N] [--idle N] [--messages N] [load] [bodies] [reloads] [idle] [websocket]

  load     N requests (default 1,000,000) by `h2load --h1` on 64 connections, then ten seconds of wrk: errors, requests per second
  bodies   a body of N MiB (default 1024) each way, SHA-256 compared, with the peak of resident memory
  reloads  N reloads (default 200) of the file under wrk, a broken file every tenth time, 100 idle connections opened before and used after
  idle     resident memory idle with two workers, and user memory per idle connection at N connections (default 8,000)
  websocket  N messages (default 10,000) of 0 to 1 MiB from real WebSocket libraries to others and back, with and without permessage-deflate

RAMJET_BIN names the binary; default is build/ramjet, the release. Needs nginx (as the upstream), wrk and h2load.
"""
import argparse
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
os.environ.setdefault("RAMJET_BIN", os.path.join(ROOT, "build", "ramjet"))
sys.path.insert(0, HERE)
import harness  # noqa: E402
import wspeers  # noqa: E402
from harness import CLOSE, EARLY, ENGINES, Client, Edge, Ramjet, free_port, noise, until  # noqa: E402

POINTS = ("load", "bodies", "reloads", "idle", "websocket")


class Nginx:
    """The upstream: answers 128 octets to everything."""

    def __init__(self):
        self.dir = tempfile.mkdtemp(prefix="ramjet-show-")
        self.port = free_port()
        with open(os.path.join(self.dir, "conf"), "w") as f:
            f.write(f"""daemon off; worker_processes 1; pid {self.dir}/pid; error_log {self.dir}/error;
events {{ worker_connections 8192; }}
http {{
  access_log off; keepalive_requests 100000000; keepalive_timeout 3600s;
  client_body_temp_path {self.dir}/b; proxy_temp_path {self.dir}/p; fastcgi_temp_path {self.dir}/f; uwsgi_temp_path {self.dir}/u; scgi_temp_path {self.dir}/s;
  server {{ listen 127.0.0.1:{self.port} backlog=4096; location / {{ return 200 "{'x' * 128}"; }} }}
}}
""")
        program = shutil.which("nginx") or "/usr/sbin/nginx"
        self.process = subprocess.Popen([program, "-c", os.path.join(self.dir, "conf"), "-p", self.dir], stderr=subprocess.DEVNULL)
        until(self.answers, 5, "nginx")

    def answers(self):
        try:
            with Client(self.port) as c:
                return c.get("/", "x").status == 200
        except ConnectionError:
            return False

    def stop(self):
        self.process.terminate()
        self.process.wait()
        shutil.rmtree(self.dir, ignore_errors=True)


def config(port, more=""):
    return f"""[ramjet]
disable-access-log = true

[backend s]
endpoint = 127.0.0.1:{port}

[route any]
path = /
type = prefix
backend = s
{more}"""


def wrk(port, seconds, connections=64):
    """Runs wrk and returns what it counted."""
    text = subprocess.run(["wrk", "-t", "2", "-c", str(connections), "-d", f"{seconds}s", "--latency", f"http://127.0.0.1:{port}/"], capture_output=True, text=True).stdout
    return read_wrk(text)


def read_wrk(text):
    number = lambda pattern: float(m[1]) if (m := re.search(pattern, text)) else 0.0    # noqa: E731
    errors = re.search(r"Socket errors: connect (\d+), read (\d+), write (\d+), timeout (\d+)", text)
    return {"requests": int(number(r"(\d+) requests in")), "per_second": number(r"Requests/sec:\s+([\d.]+)"), "not_2xx": int(number(r"Non-2xx or 3xx responses: (\d+)")),
            "socket_errors": sum(map(int, errors.groups())) if errors else 0, "p99": (re.search(r"99%\s+(\S+)", text) or [0, ""])[1]}


def show_load(engine, upstream, options):
    r = Ramjet(engine, config(upstream.port), workers=2).start()
    try:
        start = time.monotonic()
        text = subprocess.run(["h2load", "--h1", "-n", str(options.requests), "-c", "64", "-t", "2", f"http://127.0.0.1:{r.port}/"], capture_output=True, text=True).stdout
        took = time.monotonic() - start
        m = re.search(r"requests: (\d+) total, \d+ started, (\d+) done, (\d+) succeeded, (\d+) failed, (\d+) errored, (\d+) timeout", text)
        s = re.search(r"status codes: (\d+) 2xx, (\d+) 3xx, (\d+) 4xx, (\d+) 5xx", text)
        assert m and s, text
        result = {"requests": int(m[1]), "succeeded": int(m[3]), "failed": int(m[4]) + int(m[5]) + int(m[6]), "status_2xx": int(s[1]),
                  "status_other": int(s[2]) + int(s[3]) + int(s[4]), "seconds": round(took, 2), "per_second": round(int(m[1]) / took),
                  "wrk_10_s": wrk(r.port, 10), "rss_after_kb": r.status_kb("VmRSS"), "rss_peak_kb": r.status_kb("VmHWM")}
        result["ok"] = (result["succeeded"] == result["status_2xx"] == options.requests and not result["failed"] and not result["wrk_10_s"]["not_2xx"]
                        and not result["wrk_10_s"]["socket_errors"])
        return result
    finally:
        r.stop()


BODIES = harness.ONE + "proxy-body-size = 0\n"


def show_bodies(engine, _upstream, options):
    block = noise(1 << 20)
    want = hashlib.sha256()
    for _ in range(options.mib):
        want.update(block)
    result = {"mib": options.mib}
    for form in ("counted", "chunked", "to the close"):
        for way in ("download", "upload"):
            if (form, way) == ("to the close", "upload"):
                continue
            e = Edge(engine, BODIES, workers=2, keep=False)
            try:
                head = {"counted": b"Content-Length: %d\r\n" % (options.mib << 20), "chunked": b"Transfer-Encoding: chunked\r\n", "to the close": b""}[form]

                def send(write):
                    for _ in range(options.mib):
                        write(b"100000\r\n" + block + b"\r\n" if form == "chunked" else block)
                    if form == "chunked":
                        write(b"0\r\n\r\n")
                got = hashlib.sha256()
                c = e.client()
                c.wire.keep = False
                before, start = e.ramjet.status_kb("VmRSS"), time.monotonic()
                if way == "download":
                    def answer(conn, req):
                        conn.send(b"HTTP/1.1 200 OK\r\n" + head + b"\r\n")
                        send(conn.send)
                        if form == "to the close":
                            conn.play(req, [EARLY, CLOSE])
                    e.U.play(answer)
                    c.send(b"GET / HTTP/1.1\r\nHost: a.test\r\n\r\n")
                    complete = c.response(sink=got.update).complete
                else:
                    def take(conn, req):
                        conn.body(req, got.update)
                        conn.play(req, [EARLY, b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"])
                    e.U.play(take)
                    c.send(b"POST / HTTP/1.1\r\nHost: a.test\r\n" + head + b"\r\n")
                    send(c.sock.sendall)
                    complete = c.response("POST").status == 200
                took = time.monotonic() - start
                result[f"{way}, {form}"] = {"sha256_equal": complete and got.digest() == want.digest(), "seconds": round(took, 2), "mib_per_second": round(options.mib / took),
                                            "rss_before_kb": before, "rss_peak_kb": e.ramjet.status_kb("VmHWM")}
            finally:
                e.stop()
    result["ok"] = all(v["sha256_equal"] for v in result.values() if isinstance(v, dict))
    return result


def show_reloads(engine, upstream, options):
    r = Ramjet(engine, config(upstream.port), workers=2).start()
    clients = []
    try:
        clients = [Client(r.port) for _ in range(100)]
        assert all(c.get("/", "x").status == 200 for c in clients)
        serving = lambda: r.admin_json("/admin/generations")["serving"]    # noqa: E731
        fds = r.fds()
        load = subprocess.Popen(["wrk", "-t", "2", "-c", "64", "-d", "3600s", "--latency", f"http://127.0.0.1:{r.port}/"], stdout=subprocess.PIPE, text=True)
        try:
            times, broken = [], 0
            rss = None
            for i in range(options.reloads):
                before = serving()
                if i % 10 == 9:
                    r.write(config(upstream.port, "no-such-key = 1\n"))
                    until(lambda: r.metric("ramjet_config_ok") == 0, 5, "the broken file to be refused")
                    broken += 1
                start = time.monotonic()
                r.write(config(upstream.port, f"\n[route n{i}]\nhost = n{i}.test\npath = /\ntype = prefix\nbackend = s\n"))
                until(lambda: serving() != before, 5, f"reload {i}")
                times.append(time.monotonic() - start)
                if i == 20:
                    rss = r.rss()
        finally:
            load.send_signal(2)
            counted = read_wrk(load.communicate()[0])
        lost = sum(not c.open() for c in clients)
        failed = counted["not_2xx"] + counted["socket_errors"]
        used = sum(c.get("/", "x").status == 200 for c in clients) if not lost else 0
        times.sort()
        return {"reloads": options.reloads, "broken_files": broken, "requests": counted["requests"], "failed": failed, "idle_lost": lost, "idle_used_after": used,
                "seen_by_admin_ms_median": round(times[len(times) // 2] * 1000, 1), "seen_by_admin_ms_max": round(times[-1] * 1000, 1),
                "rss_growth_kb": (r.rss() - rss) // 1024 if rss else None, "descriptors_before": fds, "descriptors_after": r.fds(),
                "ok": failed == 0 and lost == 0 and used == 100 and counted["requests"] > 0}
    finally:
        for c in clients:
            c.close()
        r.stop()


def memory(r):
    return {"rss": r.status_kb("VmRSS"), "anon": r.status_kb("RssAnon"), "file": r.status_kb("RssFile"), "shared": r.status_kb("RssShmem")}


def show_idle(engine, upstream, options):
    r = Ramjet(engine, config(upstream.port), workers=2).start()
    clients = []
    try:
        start = memory(r)
        for i in range(64):                                     # warms pools and code, so that the growth is the connections'
            with Client(r.port, source=f"127.0.0.{i % 8 + 2}") as c:
                assert c.get("/", "x").status == 200
        warm = memory(r)
        for i in range(options.idle):
            c = Client(r.port, source=f"127.0.0.{i % 8 + 2}")
            c.wire.keep = False
            clients.append(c)
            assert c.get("/", "x").status == 200
        until(lambda: r.metric("ramjet_connections", side="client", state="idle") == options.idle, 10, "all connections to be idle")
        full = memory(r)
        for c in clients:
            c.close()
        clients = []
        until(lambda: r.metric("ramjet_connections", side="client") == 0, 20, "all connections to be closed")
        after = memory(r)
        per = round((full["anon"] + full["shared"] - warm["anon"] - warm["shared"]) * 1024 / options.idle)
        return {"workers": 2, "rss_idle_kb": start["rss"], "idle": start, "warm": warm, "connections": options.idle, "full": full, "after_close": after,
                "bytes_per_idle_connection": per, "goal_rss_idle_kb": 4096, "goal_bytes_per_idle_connection": 256, "ok": start["rss"] <= 4096 and per <= 256}
    finally:
        for c in clients:
            c.close()
        r.stop()


def show_websocket(engine, _upstream, options):
    why = wspeers.build()
    assert not why, why
    result, ok = {}, True
    for client in wspeers.PEERS:
        for server in wspeers.PEERS:
            for deflate in (False, True):
                one = wspeers.exchange(engine, client, server, deflate, options.messages, 20)
                ok = ok and one["ok"]
                if not one["ok"]:
                    print(f"{engine}, {client} to {server}: {one}", file=sys.stderr, flush=True)
                result[f"{client} to {server}, {'deflate' if deflate else 'plain'}"] = {k: one[k] for k in
                                                                                       ("messages", "lost", "wrong", "pings", "tunnels", "ended_badly", "bytes", "seconds", "rss_peak_kb")}
    total = {k: sum(one[k] for one in result.values()) for k in ("messages", "lost", "wrong", "seconds")}
    return {**result, "total": {**total, "seconds": round(total["seconds"], 1)}, "ok": ok}


def row(*cells):
    print("| " + " | ".join(str(c) for c in cells) + " |")


def print_markdown(results):
    for point in POINTS:
        per_engine = {e: r[point] for e, r in results["engines"].items() if point in r}
        if not per_engine:
            continue
        print(f"\n### {point}\n")
        flat = {e: dict(flatten(r)) for e, r in per_engine.items()}
        row("", *flat)
        row("---", *["---"] * len(flat))
        for key in next(iter(flat.values())):
            row(key, *[f.get(key, "") for f in flat.values()])


def flatten(value, prefix=""):
    for k, v in value.items():
        if isinstance(v, dict):
            yield from flatten(v, f"{prefix}{k}: ")
        else:
            yield prefix + k.replace("_", " "), f"{v:,}" if isinstance(v, int) and not isinstance(v, bool) else v


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("points", nargs="*", metavar="POINT", help=" ".join(POINTS))
    parser.add_argument("--engine", action="append", choices=ENGINES)
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--reloads", type=int, default=200)
    parser.add_argument("--idle", type=int, default=8000)
    parser.add_argument("--messages", type=int, default=10000)
    parser.add_argument("--output", default=os.path.join(ROOT, "bench", "results", "show.json"))
    options = parser.parse_args()
    if set(options.points) - set(POINTS):
        parser.error(f"points are {' '.join(POINTS)}")
    with open(harness.BIN, "rb") as f:
        binary = f.read()
    results = {"binary": os.path.basename(harness.BIN), "size": len(binary), "sha256": hashlib.sha256(binary).hexdigest(), "kernel": platform.release(), "machine": platform.machine(),
               "cpus": len(os.sched_getaffinity(0)), "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "engines": {}}
    print(f"Binary of {len(binary):,} octets, Linux {platform.release()}, {results['cpus']} CPUs.")
    upstream = Nginx()
    bad = []
    try:
        for engine in options.engine or ENGINES:
            results["engines"][engine] = {}
            for point in options.points or POINTS:
                print(f"{engine}: {point} ...", file=sys.stderr, flush=True)
                try:
                    result = globals()[f"show_{point}"](engine, upstream, options)
                except AssertionError as why:
                    result = {"ok": False, "error": str(why)[:500]}
                results["engines"][engine][point] = result
                if not result["ok"]:
                    bad.append(f"{engine} {point}")
    finally:
        upstream.stop()
    print_markdown(results)
    os.makedirs(os.path.dirname(options.output), exist_ok=True)
    with open(options.output, "w") as f:
        json.dump(results, f, indent=1)
        f.write("\n")
    print("\n" + ("Everything as it should be." if not bad else "Not as it should be: " + ", ".join(bad)))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
