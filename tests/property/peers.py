"""Other servers behind the proxy: each must read what the proxy meant. What they read goes on to the driver's upstream, the recorder.

nginx and HAProxy are proxies in front of the recorder; Go's net/http, Node and Python's http.server are small servers (peers/) that tell it what
they read. A peer may refuse what the proxy forwarded: that is counted by kind. A peer that reads other requests, other bodies, more or fewer, is a fault."""
import os
import random
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time

import grammar
import judge

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
NAMES = ("go", "haproxy", "nginx", "node", "python")

NGINX = """
user root;
worker_processes 1;
daemon off;
pid %(folder)s/nginx-%(port)d.pid;
error_log %(folder)s/nginx-%(port)d.log error;
events { worker_connections 4096; }
http {
    access_log off;
    client_body_temp_path %(folder)s/nginx-body-%(port)d;
    proxy_temp_path %(folder)s/nginx-proxy-%(port)d;
    fastcgi_temp_path %(folder)s/nginx-f-%(port)d;
    uwsgi_temp_path %(folder)s/nginx-u-%(port)d;
    scgi_temp_path %(folder)s/nginx-s-%(port)d;
    upstream recorder { server 127.0.0.1:%(recorder)d; keepalive 64; }
    server {
        listen 127.0.0.1:%(port)d backlog=4096;
        client_max_body_size 0;
        large_client_header_buffers 8 64k;
        keepalive_requests 1000000;
        keepalive_timeout 600s;
        location / {
            proxy_pass http://recorder;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_set_header Host $http_host;
        }
    }
}
"""

HAPROXY = """
global
    maxconn 8192
    nbthread 1
    tune.bufsize 131072
    tune.http.maxhdr 256
defaults
    mode http
    timeout connect 10s
    timeout client 600s
    timeout server 600s
    timeout http-keep-alive 600s
    http-reuse always
listen peer
    bind 127.0.0.1:%(port)d
    server recorder 127.0.0.1:%(recorder)d
"""


def is_here(name):
    return shutil.which({"python": "python3"}.get(name, name), path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/go/bin") is not None


def tool(name):
    return shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/go/bin")


def go_server():
    out, source = os.path.join(ROOT, "build", "property", "peer-go"), os.path.join(HERE, "peers", "server.go")
    if not os.path.exists(out) or os.path.getmtime(out) < os.path.getmtime(source):
        new = "%s.%d" % (out, os.getpid())
        subprocess.run([tool("go"), "build", "-o", new, source], check=True)
        os.rename(new, out)
    return out


class Peer:
    def __init__(self, name, recorder, folder, start_process):
        self.port = 0
        if name in ("nginx", "haproxy"):
            with socket.socket() as s:
                while not self.port:
                    try:
                        s.bind(("127.0.0.1", random.randrange(10000, 32000)))
                        self.port = s.getsockname()[1]
                    except OSError:
                        pass
            path = os.path.join(folder, "%s-%d.conf" % (name, self.port))
            with open(path, "w") as f:
                f.write((NGINX if name == "nginx" else HAPROXY) % {"folder": folder, "port": self.port, "recorder": recorder})
            command = [tool("nginx"), "-c", path, "-e", "stderr"] if name == "nginx" else [tool("haproxy"), "-f", path]
            self.process = start_process(command, stdout=subprocess.DEVNULL, stderr=open(os.path.join(folder, "%s-%d.err" % (name, self.port)), "wb"))
            self.wait(name)
            return
        command = {"go": lambda: [go_server()], "node": lambda: [tool("node"), os.path.join(HERE, "peers", "server.js")],
                   "python": lambda: [sys.executable, "-B", os.path.join(HERE, "peers", "server.py")]}[name]()
        self.process = start_process(command + [str(recorder)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self.port = int(self.process.stdout.readline())

    def wait(self, name):
        end = time.monotonic() + 20
        while time.monotonic() < end and self.process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", self.port), 5).close()
                return
            except OSError:
                time.sleep(0.02)
        raise SystemExit("%s does not listen" % name)

    def stop(self):
        self.process.terminate()
        self.process.wait()


REQUEST = re.compile(rb">([^ ]+) ([^ ]+) ([^ ]*) ([0-9]+):")


def seen_requests(text):
    """The lines of the transcript, [] with None at the end when it holds anything else."""
    out, at = [], 0
    while at < len(text):
        m = REQUEST.match(text, at)
        if not m or text[m.end() + int(m[4]):m.end() + int(m[4]) + 1] != b"\n":
            return out + [None]
        end = m.end() + int(m[4]) + 1
        out.append(text[at:end])
        at = end
    return out


def split(transcript):
    """Requests that were read, the answers, whether one was begun and not ended."""
    partial = transcript.endswith(b"~")
    seen, _, answers = (transcript[:-1] if partial else transcript).rpartition(b"|")
    return seen_requests(seen), answers.split(b" "), partial


def refusals(reading, transcript):
    """The requests that the peer refused, with its status, when everything else is as it was meant. None when it is not."""
    seen, answers, _ = split(transcript)
    out, s, a = [], 0, 0
    early = re.search(rb"\|(?:[^|]* )?\?HTTP/1\.1 (4[0-9][0-9])[^|]*\.\Z", transcript, re.S)
    if early:                                                        # the peer's answer ended with the connection, or was cut where the body goes wrong
        answers = answers[:[w.startswith(b"?") for w in answers].index(True)] + [early[1] + b"!", b"."]
    for q in reading.requests:
        if a >= len(answers) or answers[a] in (b".", b"R"):
            return None
        m = re.match(rb"([0-9]+)(#([0-9]+))?(!?)\Z", answers[a])
        if not m:
            return None
        a += 1
        if q.routed and m[2]:
            if s >= len(seen) or seen[s] != judge.line(q) or int(m[3]) != s or m[1] != b"200":
                return None
            s += 1
        elif q.routed:
            if int(m[1]) < 400:
                return None
            out.append((q, int(m[1])))
        elif m[1] != b"404":
            return None
        if m[4]:
            return out if s == len(seen) and answers[a:] in ([b"."], [b"R"]) and (q.closes or q.may_close or out or not q.routed) else None
    if s != len(seen):
        return None
    if early and reading.within_body and answers[a:] == [early[1] + b"!", b"."]:
        return out + [(reading.last, int(early[1]))]
    rest = b" ".join(answers[a:])
    if reading.end == "refused":
        good = [b"%d! ." % status for status in reading.statuses]
    else:
        good = [b".", b"400! ."]
    if reading.within_body and not reading.last.routed:
        return out if re.match(rb"404!? (400!? )?\.\Z", rest) or rest in good else None
    if reading.within_body:                                          # the peer may have refused by the head alone
        m = re.match(rb"([45][0-9][0-9])!? ?\.\Z", rest)
        if m and rest not in good:
            out.append((reading.last, int(m[1])))
            return out
    return out if rest in good else None


def kind_of(q, status, octets):
    if q.method in (b"GETX", b"M-SEARCH", b"get"):
        what = "method " + q.method.decode()
    elif q.method not in (b"GET", b"POST", b"PUT", b"HEAD", b"DELETE", b"PATCH", b"OPTIONS"):
        what = "other unknown method"
    elif octets.lower().count(b"if-match:") > 1:
        what = "If-Match twice"
    elif q.target == b"*":
        what = "target *"
    elif not q.host:
        what = "no Host in HTTP/1.0"
    elif not re.match(rb"a\.test\Z", q.host, re.I):
        what = "Host %r" % q.host.decode("latin-1")
    elif re.search(rb"[\[\]^`{|}\\]", q.target):
        what = "octets of the target that RFC 3986 does not have"
    elif q.target.startswith(b"//"):
        what = "target begins with //"
    elif q.expects:
        what = "Expect"
    else:
        what = "other"
    return "%d: %s" % (status, what)


def report(stand):
    """(faults, refusals by kind) of one engine and peer; shows the faults."""
    kinds, faults, examples = {}, 0, {}
    for seed, transcript in stand.found:
        octets, pieces, fin = grammar.stream(seed)
        reading = judge.reference.read(octets)
        refused = refusals(reading, transcript)
        if refused is None or not refused:
            faults += 1
            if faults <= 10:
                print("  %s, seed %d: %s" % (stand.name, seed, judge.verdict(reading, transcript)))
                print("    octets: %r, cut into %s%s" % (octets, pieces, ", then the end" if fin else ""))
                print("    expected: %r" % (judge.ways(reading)[0][2],))
                print("    got:      %r" % transcript, flush=True)
            continue
        for q, status in refused:
            kind = kind_of(q, status, octets)
            kinds[kind] = kinds.get(kind, 0) + 1
            examples.setdefault(kind, seed)
    for text in stand.counts["said"]:
        print("  " + text)
    return faults + stand.counts["orphans"], kinds, examples


def main(args, stand_of, generators_of, feed):
    start, skipped = time.monotonic(), 0
    names = [n for n in NAMES if n in (args.peer or NAMES)]
    for name in list(names):
        if not is_here(name):
            print("SKIP %s is not installed" % name)
            names.remove(name)
            skipped += 1
    with tempfile.TemporaryDirectory(prefix="ramjet-peers-") as folder:
        os.chmod(folder, 0o755)
        stands = [stand_of(engine, folder, peer=name) for engine in args.engines for name in names]
        sums = feed(stands, generators_of(args.seed, args.jobs, 200), args.messages, args.seconds)
        total = 0
        for stand in stands:
            stand.finish()
        for stand in stands:
            c = stand.counts
            faults, kinds, examples = report(stand)
            total += faults
            print("%s: %d messages in %d streams, %d requests read, %d disagreements; refused by the peer: %d" % (stand.name, sums[0], c["streams"], c["forwarded"], faults, sum(kinds.values())))
            for kind in sorted(kinds):
                print("    %6d  %s (seed %d)" % (kinds[kind], kind, examples[kind]))
    print("%.0f s" % (time.monotonic() - start))
    print("%d passed, %d failed, %d skipped" % (sums[0] * len(stands) - total, total, skipped))
    return 1 if total else 0
