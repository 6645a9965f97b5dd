"""Measurements on a real API server: how fast changes are served, and what they cost.

    tests/cluster/run --show [--engines epoll,uring] [--parts changes,churn,scale,loss,silent,lookup,faults] [--count 5000] [--quick]

Prints a Markdown table and writes bench/results/cluster.json, in which parts that were not measured keep their figures. The binary is
RAMJET_BIN, else build/ramjet, else ./ramjet.

changes  Ingress create, change, delete and EndpointSlice change, 50 times each
churn    1,000 Ingress creates and deletes beside a steady load on another host
scale    --count Ingresses with two paths, a service and a slice each
loss     SIGKILL and restart of the API server under load; token rotation
silent   a watch that says nothing any more
faults   the API server's faults of faults.py, --fault-seconds each, beside a load of 100 requests a second; after a fault that waits for a
         retry, the pause between two tries is what its end costs
lookup   CPU per request with one host and with --count hosts before the same upstream
"""

import argparse
import concurrent.futures
import glob
import json
import os
import shutil
import statistics
import subprocess
import sys
import threading
import time

import harness
from harness import BUILD, CA, ENGINES, LOAD, ROOT, WORK, ApiServer, Ramjet, Steady, app, eventually, ingress, ingress_class, kubeconfig, slice_

A, B = "10.77.1.1", "10.77.1.2"


# -------------------------------------------------------------------- helpers

def say(text):
    print(text, file=sys.stderr, flush=True)


def median(values):
    return statistics.median(values) if values else None


def percentile(values, q):
    values = sorted(values)
    return values[min(len(values) - 1, int(q * len(values)))] if values else None


def spread(values, digits=2):
    """{n, median, p99, max} of values."""
    return {"n": len(values), "median": round(median(values), digits), "p99": round(percentile(values, .99), digits),
            "max": round(max(values), digits)} if values else None


def cpu_ns(pid):
    """CPU time of every thread: {thread id: (name, ns)}."""
    out = {}
    for task in glob.glob("/proc/%d/task/*" % pid):
        try:
            with open(task + "/schedstat") as f, open(task + "/comm") as g:
                out[os.path.basename(task)] = (g.read().strip(), int(f.read().split()[0]))
        except OSError:
            pass
    return out


def cpu_since(pid, before):
    return {t: (name, ns - before.get(t, (name, 0))[1]) for t, (name, ns) in cpu_ns(pid).items()}


def total_us(cpu):
    return sum(ns for _, ns in cpu.values()) / 1000


def stalled_us():
    """Microseconds since the start of the machine in which some task waited for a CPU; 0 where the kernel does not say."""
    try:
        with open("/proc/pressure/cpu") as f:
            return int(f.readline().rsplit("total=", 1)[1])
    except OSError:
        return 0


def resident(pid):
    """VmRSS and RssAnon in KiB."""
    with open("/proc/%d/status" % pid) as f:
        fields = dict(line.split(":", 1) for line in f.read().split("\n") if ":" in line)
    return {k: int(fields[k].split()[0]) for k in ("VmRSS", "RssAnon")}


class Poller:
    """load poll: tells when an answer became what it should be."""

    def __init__(self, r, limit="30s"):
        self.run = subprocess.Popen([LOAD, "poll", "--addr", "%s:%d" % r.address, "--limit", limit], stdin=subprocess.PIPE,
                                    stdout=subprocess.PIPE, text=True)

    def want(self, host, path="/", status=200, upstream=None):
        self.run.stdin.write("%s %s %d %s\n" % (host, path, status, upstream + ":8080" if upstream else "-"))
        self.run.stdin.flush()
        line = self.run.stdout.readline()
        assert line == "polling\n", line

    def seen(self):
        got = json.loads(self.run.stdout.readline())
        assert not got["late"], "never served"
        return got

    def close(self):
        self.run.stdin.close()
        self.run.wait(10)


def newest(r):
    """The generation that serves now."""
    g = r.fetch_json("/admin/generations")
    return next((x for x in g["generations"] if x["generation"] == g["serving"]), {})


def timed(call):
    """Runs an API call; wall-clock time in ns at which its answer was there."""
    call()
    return time.time_ns()


ALONE_S = 0.05          # more than twice publish-interval


def one_change(r, poller, call, host, path="/", status=200, upstream=None, alone=True):
    """Milliseconds from the API's answer to the first right response, and the generation's own figures. Alone: the publish interval
    of the change before is over, so that this is no burst."""
    if alone:
        time.sleep(ALONE_S)
    poller.want(host, path, status, upstream)
    answered = timed(call)
    seen = poller.seen()

    def settled():
        g = newest(r)
        return g if g.get("event_to_request_us") is not None else None
    try:
        g = eventually(settled, 1, "event_to_request_us")
    except AssertionError:
        g = newest(r)
    return (seen["unix_ns"] - answered) / 1e6, g


def figures(samples):
    ms = [s[0] for s in samples]

    def own(key):
        return spread([s[1][key] / 1000 for s in samples if s[1].get(key) is not None], 3)
    return {"api_answer_to_response_ms": spread(ms), "event_to_publish_ms": own("event_to_publish_us"),
            "event_to_request_ms": own("event_to_request_us"), "compile_ms": own("compile_us")}


class Bed:
    """The API server and the upstream of the whole run."""

    def __init__(self):
        shutil.rmtree(WORK, ignore_errors=True)
        os.makedirs(WORK)
        self.ca = CA(os.path.join(WORK, "ca"))
        self.api = ApiServer(os.path.join(WORK, "api"), self.ca).start()
        self.kube = self.api.client()
        self.kube.create(ingress_class("ramjet"))
        self.config = kubeconfig(os.path.join(WORK, "kubeconfig"), self.api.url, ca_data=self.ca.cert, token=self.api.ADMIN)
        # Bound to every address: each endpoint of 10.77.0.0/16 on port 8080 answers with its own.
        self.upstream = subprocess.Popen([LOAD, "upstream", "--listen", "0.0.0.0:8080"], stdin=subprocess.PIPE,
                                         stdout=subprocess.PIPE)
        self.upstream.stdout.readline()

    def ramjet(self, engine, **options):
        options.setdefault("kubeconfig", self.config)
        options.setdefault("disable_access_log", True)
        return Ramjet(engine, **options)

    def close(self):
        harness.end_process(self.upstream)
        self.api.stop()


# ------------------------------------------------------------- measurements

def changes(bed, engine, times):
    """Point 5: one change at a time on a quiet table; then creates in a row, each as soon as the one before is served."""
    kube, ns = bed.kube, bed.kube.namespace("changes-" + engine)
    kube.create(*app(ns, "a", A), *app(ns, "b", B), *app(ns, "moving", A))
    out = {"create": [], "change": [], "delete": [], "slice": [], "row": []}
    with bed.ramjet(engine) as r:
        poller = Poller(r)
        kube.create(ingress(ns, "fixed", [("fixed." + ns, "/", "Prefix", "moving", 80)]))
        r.expect("fixed." + ns, "/", A + ":8080")
        for i in range(times):
            host, name = "h%d.%s" % (i, ns), "i%d" % i
            out["create"].append(one_change(r, poller, lambda: kube.create(ingress(ns, name, [(host, "/", "Prefix", "a", 80)])), host, upstream=A))
            out["change"].append(one_change(r, poller, lambda: kube.replace(ingress(ns, name, [(host, "/", "Prefix", "b", 80)])), host, upstream=B))
            out["delete"].append(one_change(r, poller, lambda: kube.delete("Ingress", ns, name), host, status=404))
            to = B if i % 2 == 0 else A
            out["slice"].append(one_change(r, poller, lambda: kube.replace(slice_(ns, "moving", [to])), "fixed." + ns, upstream=to))
        for i in range(times):
            host = "row%d.%s" % (i, ns)
            out["row"].append(one_change(r, poller, lambda: kube.create(ingress(ns, "row%d" % i, [(host, "/", "Prefix", "a", 80)])), host, upstream=A, alone=False))
        poller.close()
    kube.delete_all("Ingress", ns)
    return {k: figures(v) for k, v in out.items()}


def paced(rate, count, call):
    """Calls call(i) count times at the rate; returns the seconds it took."""
    began = time.monotonic()
    for i in range(count):
        wait = began + i / rate - time.monotonic()
        if wait > 0:
            time.sleep(wait)
        call(i)
    return time.monotonic() - began


def churn(bed, engine, count, rate):
    """Point 6: 100 changes a second beside a load on another host. The control window makes the same
    number of API calls, on ConfigMaps, which are none of Ramjet's business: it shows what the API server itself costs."""
    kube, ns = bed.kube, bed.kube.namespace("churn-" + engine)
    kube.create(*app(ns, "a", A), ingress(ns, "steady", [("steady." + ns, "/", "Prefix", "a", 80)]))

    def configmap(i):
        if i % 2 == 0:
            kube.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": ns, "name": "c%d" % i}})
        else:
            kube.delete("ConfigMap", ns, "c%d" % (i - 1))

    def change(i):
        # One in, one out, fifty apart, so that about fifty exist at any time.
        if i % 2 == 0:
            kube.create(ingress(ns, "i%d" % (i // 2), [("h%d.%s" % (i // 2, ns), "/", "Prefix", "a", 80)]))
        elif i // 2 >= 50:
            kube.delete("Ingress", ns, "i%d" % (i // 2 - 50))
    with bed.ramjet(engine) as r:
        r.expect("steady." + ns, "/", A + ":8080")
        before = newest(r).get("generation", 0)
        load = Steady(r, "steady." + ns, conns=16, rate=1000, idle=100)
        load.mark("quiet 1")
        paced(rate, count // 4, lambda i: None)
        load.mark("control")
        paced(rate, count // 2, configmap)
        load.mark("churn")
        took = paced(rate, 2 * count, change)
        load.mark("rest")
        for i in range(max(0, count - 50), count):
            kube.delete("Ingress", ns, "i%d" % i)
        load.mark("quiet 2")
        paced(rate, count // 4, lambda i: None)
        result = load.stop()
        generations = newest(r).get("generation", 0) - before
    w = {x["name"]: x for x in result["windows"]}
    quiet = median([w["quiet 1"]["p99_us"], w["quiet 2"]["p99_us"]])
    return {"changes": 2 * count, "changes_per_second": round(2 * count / took, 1), "generations": generations,
            "requests": sum(x["requests"] for x in result["windows"]), "failed": sum(x["failed"] for x in result["windows"]),
            "idle": result["idle"], "idle_lost": result["idle_lost"],
            "p99_us": {"quiet": quiet, "control": w["control"]["p99_us"], "churn": w["churn"]["p99_us"]},
            "p50_us": {"quiet": w["quiet 1"]["p50_us"], "control": w["control"]["p50_us"], "churn": w["churn"]["p50_us"]},
            "p99_ratio_to_quiet": round(w["churn"]["p99_us"] / quiet, 2),
            "p99_ratio_to_control": round(w["churn"]["p99_us"] / w["control"]["p99_us"], 2)}


def fill(bed, ns, count):
    """Creates count applications: a service, a slice, and an Ingress with two paths each."""
    local = threading.local()

    def one(n):
        if not hasattr(local, "kube"):
            local.kube = bed.api.client()
        name, address = "app%d" % n, "10.77.%d.%d" % (100 + n // 250, 1 + n % 250)
        local.kube.create(*app(ns, name, address))
        local.kube.create(ingress(ns, name, [("h%d.%s" % (n, ns), "/", "Prefix", name, 80), ("h%d.%s" % (n, ns), "/api", "Prefix", name, 80)]))
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        list(pool.map(one, range(count)))


def cpu_of_one_change(r, kube, ns, times, window=0.25):
    """Microseconds of all threads for one change, the idle cost of the same time taken off; medians."""
    total, control, idle = [], [], []
    for i in range(times):
        for changed in (False, True):
            before = cpu_ns(r.process.pid)
            end = time.monotonic() + window
            if changed:
                kube.patch("Ingress", ns, "app7", {"spec": {"rules": ingress(ns, "app7", [
                    ("h7.%s" % ns, "/", "Prefix", "app7", 80), ("h7.%s" % ns, "/api" + str(i), "Prefix", "app7", 80)])["spec"]["rules"]}})
            time.sleep(max(0, end - time.monotonic()))
            spent = cpu_since(r.process.pid, before)
            (total if changed else idle).append(total_us(spent))
            if changed:
                control.append(max(ns_ for _, ns_ in spent.values()) / 1000)
    return {"n": times, "median_us": round(median(total) - median(idle), 1), "p90_us": round(percentile(total, .9) - median(idle), 1),
            "busiest_thread_us": round(median(control), 1), "idle_us_per_window": round(median(idle), 1), "window_s": window}


def cpu_per_request(pairs, seconds, rounds):
    """Interleaved windows of closed-loop load; median microseconds of CPU per request of each (name, Ramjet, flags)."""
    got = {name: [] for name, _, _ in pairs}
    for _ in range(rounds):
        for name, r, flags in pairs:
            load = Steady(r, conns=16, **flags)
            time.sleep(0.2)
            load.mark("measured")
            before = cpu_ns(r.process.pid)
            time.sleep(seconds)
            spent = total_us(cpu_since(r.process.pid, before))
            load.mark("end")
            windows = load.stop()["windows"]
            measured = windows[1]
            assert measured["failed"] == 0, measured
            got[name].append(spent / measured["requests"])
    return {name: round(median(v), 3) for name, v in got.items()}


def start_to_ready(bed, engine, ns, count):
    """Seconds from the start to ready, and what every host and path answers right after."""
    r = bed.ramjet(engine)
    run = subprocess.Popen([LOAD, "sweep", "--addr", "%s:%d" % r.address, "--ready", "%s:%d" % r.admin_address, "--format", "h%d." + ns,
                            "--count", str(count), "--paths", "/,/api/x"], stdout=subprocess.PIPE, text=True)
    began = time.time()
    r.start(ready=False)
    try:
        got = json.loads(run.communicate(timeout=120)[0])
    except BaseException:
        r.stop()
        raise
    finally:
        run.kill()
    w = got["window"]
    return r, {"ready_s": round(got["ready_unix"] - began, 3), "asked": w["requests"], "wrong": w["failed"], "status": w["status"],
               "resident": resident(r.process.pid)}


def scale(bed, engine, count, times, state):
    """Point 7."""
    kube, ns = bed.kube, bed.kube.namespace("scale")
    empty = bed.kube.namespace("empty")
    out = {"ingresses": count}
    if "filled" not in state:
        kube.apply(*app(empty, "a", A), ingress(empty, "one", [("one." + empty, "/", "Prefix", "a", 80)]))
        with bed.ramjet(engine) as live:
            live.expect("one." + empty, "/", A + ":8080")
            before = resident(live.process.pid)
            began = time.monotonic()
            fill(bed, ns, count)
            state["filled"] = {"create_s": round(time.monotonic() - began, 1)}
            live.expect("h%d.%s" % (count - 1, ns), "/", timeout=30)
            eventually(lambda: len(live.routes()) >= 2 * count, 30, "all routes", every=0.1)
            after = resident(live.process.pid)
            out["grown_live_kib"] = {k: after[k] - before[k] for k in after}
    runs = []
    for _ in range(3):
        r, figures_ = start_to_ready(bed, engine, ns, count)
        runs.append(figures_)
        r.stop()
    out["start"] = {"ready_s": [x["ready_s"] for x in runs], "ready_median_s": median([x["ready_s"] for x in runs]),
                    "asked": sum(x["asked"] for x in runs), "wrong": sum(x["wrong"] for x in runs)}
    with bed.ramjet(engine, watch_namespace=empty) as small, bed.ramjet(engine) as r:
        small.expect("one." + empty, "/", A + ":8080")
        r.expect("h0." + ns, "/")
        out["resident_kib"] = {"one": resident(small.process.pid), "all": resident(r.process.pid)}
        out["resident_growth_kib"] = {k: out["resident_kib"]["all"][k] - out["resident_kib"]["one"][k] for k in ("VmRSS", "RssAnon")}
        out["cpu_of_one_change"] = cpu_of_one_change(r, kube, ns, times)
        poller = Poller(r)
        made = []
        for i in range(times):
            host, name = "new%d.%s" % (i, ns), "new%d" % i
            made.append(one_change(r, poller, lambda: kube.create(ingress(ns, name, [(host, "/", "Prefix", "app0", 80)])), host))
            made.append(one_change(r, poller, lambda: kube.delete("Ingress", ns, name), host, status=404))
        poller.close()
        out["propagation"] = figures(made)
        out["cpu_us_per_request"] = cpu_per_request(
            [("one host", small, {"host": "one." + empty}), ("all, one host", r, {"host": "h5." + ns}),
             ("all, every host in turn", r, {"format": "h%d." + ns, "count": count})], 2 if times > 5 else 0.5, 5 if times > 5 else 1)
        out["resident_after_changes_kib"] = resident(r.process.pid)
    return out


def lookup(bed, engine, count, quick):
    """Point 7, without what many upstreams cost (a pooled connection to each): all hosts lead to one backend, from a file."""
    def start(hosts):
        path = os.path.join(WORK, "lookup-%d.ini" % hosts)
        with open(path, "w") as f:
            f.write("[backend s]\nendpoint = %s:8080\n" % A)
            for i in range(hosts):
                f.write("[route r%d]\nhost = h%d.lookup\nbackend = s\n[route a%d]\nhost = h%d.lookup\npath = /api\nbackend = s\n" % (i, i, i, i))
        return bed.ramjet(engine, kubeconfig=None, config=path)
    with start(1) as one, start(count) as many:
        return cpu_per_request([("one host", one, {"host": "h0.lookup"}), ("many, one host", many, {"host": "h5.lookup"}),
                                ("many, every host in turn", many, {"format": "h%d.lookup", "count": count})], 0.5 if quick else 2, 1 if quick else 7)


def loss(bed, engine, times):
    """Point 8: SIGKILL and restart under load, then the same with a token that rotated meanwhile."""
    kube, api, ns = bed.kube, bed.api, bed.kube.namespace("loss-" + engine)
    kube.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"namespace": ns, "name": "edge"}})
    kube.create({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": ns},
                 "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
                 "subjects": [{"kind": "ServiceAccount", "namespace": ns, "name": "edge"}]})
    kube.create(*app(ns, "a", A), *app(ns, "b", B), ingress(ns, "steady", [("steady." + ns, "/", "Prefix", "a", 80)]))
    for n in range(40):
        kube.create(ingress(ns, "i%d" % n, [("n%d.%s" % (n, ns), "/", "Prefix", "a", 80)]))
    token = os.path.join(WORK, ns + ".token")
    config = kubeconfig(os.path.join(WORK, ns + ".kubeconfig"), api.url, ca_data=bed.ca.cert, token_file=token)
    out = {"plain": [], "token rotated": []}
    serial = [0]

    def token_of(secret):
        kube.create({"apiVersion": "v1", "kind": "Secret", "metadata": {"namespace": ns, "name": secret}})
        harness.write_file(token, kube.service_account_token(ns, "edge", bound_secret=secret))
    token_of("token0")
    equal = True
    with bed.ramjet(engine, kubeconfig=config, watch_namespace=ns) as r:
        r.expect("n39." + ns, "/", A + ":8080")
        load, poller = Steady(r, "steady." + ns, conns=8, rate=1000, idle=50), Poller(r)
        for kind in out:
            for i in range(times):
                serial[0] += 1
                n = serial[0]
                if kind != "plain":
                    token_of("token%d" % n)         # the file has the new one; the old one is revoked
                    for old in range(n):
                        kube.delete("Secret", ns, "token%d" % old, missing_ok=True)
                api.kill()
                eventually(lambda: (r.metric("ramjet_kube_watch_up") or 0) == 0, 10, "the loss is seen")
                poller.want("next%d.%s" % (n, ns), upstream=B)
                api.start()
                ready = time.time_ns()
                kube.delete("Ingress", ns, "i%d" % (n % 40))
                kube.create(ingress(ns, "next%d" % n, [("next%d.%s" % (n, ns), "/", "Prefix", "b", 80)]))
                out[kind].append((poller.seen()["unix_ns"] - ready) / 1e9)

                def same():
                    want = {(rule["host"], p["path"], ns + "/" + o["metadata"]["name"]) for o in kube.list("Ingress", ns)
                            for rule in o["spec"]["rules"] for p in rule["http"]["paths"]}
                    return r.route_set() == want
                try:
                    eventually(same, 10, "store equal to the server's", every=0.05)
                except AssertionError as e:
                    equal = False
                    say(str(e))
                kube.create(ingress(ns, "i%d" % (n % 40), [("n%d.%s" % (n % 40, ns), "/", "Prefix", "a", 80)]))
        poller.close()
        result = load.stop()
    kube.delete_all("Ingress", ns)
    return {"served_after_ready_s": {k: spread(v, 3) for k, v in out.items()}, "store_equal": equal,
            "requests": sum(w["requests"] for w in result["windows"]), "failed": sum(w["failed"] for w in result["windows"]),
            "idle": result["idle"], "idle_lost": result["idle_lost"]}


def silent(bed, engine):
    """Seconds from the moment a watch falls silent, with a change held back, until that change is served."""
    import scripted
    server = scripted.Scripted(bed.ca)
    server.put(ingress_class("ramjet"), *app("shop", "web", A), ingress("shop", "web", [("web.test", "/", "Prefix", "web", 80)]))
    try:
        with bed.ramjet(engine, kubeconfig=scripted.scripted_kubeconfig(server, WORK)) as r:
            r.expect("web.test", "/", A + ":8080")
            eventually(lambda: {w.request.kind for w in server.watches} >= {"Ingress", "Service", "EndpointSlice"}, 10, "watches open")
            server.silence()
            began = time.monotonic()
            server.put(ingress("shop", "late", [("late.test", "/", "Prefix", "web", 80)]))
            r.expect("late.test", "/", A + ":8080", timeout=120)
            return {"noticed_after_s": round(time.monotonic() - began, 1)}
    finally:
        server.close()


def faults(bed, engine, seconds, state):
    """Every fault once, one Ramjet each."""
    import faults as table
    import scripted
    if "other" not in state:
        state["other"] = CA(os.path.join(WORK, "other-ca"), "another CA")
    out = {}

    def one(name, stage, run, fault, host, **options):
        with bed.ramjet(engine, **stage.options(), **options) as r:
            r.expect(host, "/", A + ":8080")
            load = Steady(r, host, rate=100, conns=2, idle=20)
            try:
                got = run(fault, stage, r, load, seconds, 1, wait_s=60)
            finally:
                figures_ = load.stop()
        got.update(told=len(got["told"]), recovered=len(got["recovered"]), idle_lost=figures_["idle_lost"],
                   requests=sum(w["requests"] for w in figures_["windows"]), failed=sum(w["failed"] for w in figures_["windows"]))
        out[name] = got
    for name, fault in table.FAULTS.items():
        server = scripted.Scripted(bed.ca)
        try:
            server.put(ingress_class("ramjet"), *app("shop", "web", A), ingress("shop", "web", [("web.test", "/", "Prefix", "web", 80)]))
            one(name, table.Stage(server, bed.ca, state["other"], os.path.join(WORK, "account-%s-%d" % (engine, server.port))),
                table.run_fault, fault, "web.test")
        finally:
            server.close()
    for n, (name, fault) in enumerate(table.REAL_FAULTS.items()):
        ns = bed.kube.namespace("fault%d-%s" % (n, engine))
        stage = table.RealStage(bed.api, bed.kube, state["other"], ns, os.path.join(WORK, "account-" + ns))
        try:
            one("real server: " + name, stage, table.run_real_fault, fault, "web." + ns, watch_namespace=ns)
        finally:
            stage.close()
    return out


# -------------------------------------------------------------------- output

def rows(results):
    """(what, goal, {engine: text}) of every figure."""
    out = []

    def add(what, goal, get):
        cells = {}
        for engine, r in results.items():
            try:
                cells[engine] = get(r)
            except (KeyError, TypeError):
                cells[engine] = "-"
        if any(v != "-" for v in cells.values()):
            out.append((what, goal, cells))

    def two(d, unit="ms"):
        return "%g / %g %s" % (d["median"], d["p99"], unit)
    for key, name in (("create", "Ingress create"), ("change", "Ingress change"), ("delete", "Ingress delete"), ("slice", "EndpointSlice change"),
                      ("row", "Ingress creates in a row, at most one publication in 20 ms")):
        add(name + ": event to published, median / p99", "", lambda r: two(r["changes"][key]["event_to_publish_ms"]))
        add(name + ": event to first request, median / p99", "5 ms" if key != "row" else "", lambda r: two(r["changes"][key]["event_to_request_ms"]))
        add(name + ": API's answer to first right response, median / p99", "", lambda r: two(r["changes"][key]["api_answer_to_response_ms"]))
    add("churn: changes, failed of requests", "0", lambda r: "%d changes, %d of %d" % (r["churn"]["changes"], r["churn"]["failed"], r["churn"]["requests"]))
    add("churn: idle connections lost", "0", lambda r: "%d of %d" % (r["churn"]["idle_lost"], r["churn"]["idle"]))
    add("churn: p99 quiet / same API calls on ConfigMaps / churn", "", lambda r: "%(quiet)g / %(control)g / %(churn)g us" % r["churn"]["p99_us"])
    add("churn: p99 against quiet, against ConfigMaps", "1.5", lambda r: "%g, %g" % (r["churn"]["p99_ratio_to_quiet"], r["churn"]["p99_ratio_to_control"]))
    add("many: Ingresses", "", lambda r: str(r["scale"]["ingresses"]))
    add("many: resident growth (anonymous)", "10 MB", lambda r: "%.1f MB (%.1f)" % (r["scale"]["resident_growth_kib"]["VmRSS"] * 1.024e-3, r["scale"]["resident_growth_kib"]["RssAnon"] * 1.024e-3))
    add("many: CPU of one change, all threads, median / p90", "5 ms", lambda r: "%.2f / %.2f ms" % (r["scale"]["cpu_of_one_change"]["median_us"] / 1e3, r["scale"]["cpu_of_one_change"]["p90_us"] / 1e3))
    add("many: event to first request, median / p99", "10 ms", lambda r: two(r["scale"]["propagation"]["event_to_request_ms"]))
    add("many: API's answer to first right response, median / p99", "10 ms", lambda r: two(r["scale"]["propagation"]["api_answer_to_response_ms"]))
    add("many: start to ready", "1 s", lambda r: "%g s" % r["scale"]["start"]["ready_median_s"])
    add("many: wrong answers after ready", "0", lambda r: "%d of %d" % (r["scale"]["start"]["wrong"], r["scale"]["start"]["asked"]))
    add("many: CPU per request, one Ingress / all, one host / all, every host", "equal",
        lambda r: "%g / %g / %g us" % tuple(r["scale"]["cpu_us_per_request"][k] for k in ("one host", "all, one host", "all, every host in turn")))
    add("many hosts, one upstream: CPU per request, one host / many, one host / many, every host", "equal",
        lambda r: "%g / %g / %g us" % tuple(r["lookup"][k] for k in ("one host", "many, one host", "many, every host in turn")))
    add("loss: failed of requests; idle connections lost", "0; 0", lambda r: "%d of %d; %d of %d" % tuple(r["loss"][k] for k in ("failed", "requests", "idle_lost", "idle")))
    add("loss: routes equal to the server's afterwards", "yes", lambda r: "yes" if r["loss"]["store_equal"] else "NO")
    add("loss: next change served after the server is ready, median / max", "1.5 s",
        lambda r: "%(median)g / %(max)g s" % r["loss"]["served_after_ready_s"]["plain"])
    add("loss, token rotated meanwhile, median / max", "1.5 s", lambda r: "%(median)g / %(max)g s" % r["loss"]["served_after_ready_s"]["token rotated"])
    for name in sorted({f for r in results.values() for f in r.get("faults", {})}):
        add("fault, %s: until the store is right; CPU s/s meanwhile (before); lines; failed of requests" % name, "-; -; -; 0",
            lambda r: "%(healed_s)g s; %(cpu)g (%(idle_cpu)g); %(told)d + %(recovered)d; %(failed)d of %(requests)d" % r["faults"][name])
    add("silent watch noticed", "40 s", lambda r: "%g s" % r["silent"]["noticed_after_s"])
    return out


def table(results):
    engines = list(results)
    lines = ["| | goal | " + " | ".join(engines) + " |", "| --- | --- |" + " --- |" * len(engines)]
    return "\n".join(lines + ["| %s | %s | %s |" % (what, goal, " | ".join(cells[e] for e in engines)) for what, goal, cells in rows(results)])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", default=",".join(ENGINES))
    parser.add_argument("--parts", default="changes,churn,scale,loss,silent,lookup,faults")
    parser.add_argument("--count", type=int, default=5000, help="Ingresses of the part `scale`")
    parser.add_argument("--fault-seconds", type=float, default=10, help="how long a fault of the part `faults` lasts")
    parser.add_argument("--quick", action="store_true", help="few repetitions, to see that it works")
    options = parser.parse_args()
    parts, quick = options.parts.split(","), options.quick
    if "RAMJET_BIN" not in os.environ and os.path.exists(os.path.join(BUILD, "ramjet")):
        os.environ["RAMJET_BIN"] = os.path.join(BUILD, "ramjet")
    try:
        version = subprocess.run([harness.ramjet_binary(), "version"], stdout=subprocess.PIPE, text=True, timeout=10).stdout.split("\n")[0]
    except (OSError, subprocess.TimeoutExpired) as e:
        sys.exit("show: %s" % e)
    results, state, failed, bed = {}, {}, False, Bed()
    began, stalled = time.monotonic(), stalled_us()
    run = {"changes": lambda e: changes(bed, e, 5 if quick else 50), "churn": lambda e: churn(bed, e, 60 if quick else 1000, 100),
           "scale": lambda e: scale(bed, e, options.count, 3 if quick else 20, state), "loss": lambda e: loss(bed, e, 1 if quick else 5),
           "faults": lambda e: faults(bed, e, 2 if quick else options.fault_seconds, state),
           "silent": lambda e: silent(bed, e), "lookup": lambda e: lookup(bed, e, options.count, quick)}
    try:
        # The table of the other parts stays small: `scale` comes last.
        for part in sorted(parts, key=lambda p: p == "scale"):
            for engine in options.engines.split(","):
                say("show: %s, %s" % (part, engine))
                try:
                    results.setdefault(engine, {})[part] = run[part](engine)
                except (AssertionError, RuntimeError, OSError, harness.ApiError) as e:
                    failed = True
                    say("show: %s, %s: FAILED: %s" % (part, engine, e))
    finally:
        bed.close()
    with open("/proc/cpuinfo") as f:
        cpu = next((line.split(":")[1].strip() for line in f if line.startswith("model name")), "unknown")
    about = {"binary": version, "cpu": cpu, "cpus": os.cpu_count(), "kernel": os.uname().release, "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
             "quick": quick, "percent_of_time_a_task_waited_for_a_cpu": round((stalled_us() - stalled) / (time.monotonic() - began) / 1e4)}
    folder = os.path.join(ROOT, "bench", "results")
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, "cluster.json")
    kept = {"about": {}, "results": {}}
    if os.path.exists(path):
        with open(path) as f:
            kept = json.load(f)
    whole = {e: dict(kept["results"].get(e, {}), **results.get(e, {})) for e in {**kept["results"], **results}}
    # The figures of each part say under what they were measured; `about` is the last whole run's.
    if set(parts) >= {"changes", "churn", "scale", "loss", "silent", "lookup"} or not kept["about"]:
        kept["about"] = dict(about)
    else:
        kept["about"].setdefault("parts", {}).update({part: about for part in parts})
    with open(path, "w") as f:
        json.dump({"about": kept["about"], "results": whole}, f, indent=1)
        f.write("\n")
    print("%s, %d CPUs (%s), Linux %s; during %d %% of the time some task of the machine waited for a CPU\n"
          % (version, about["cpus"], cpu, about["kernel"], about["percent_of_time_a_task_waited_for_a_cpu"]))
    print(table(results))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
