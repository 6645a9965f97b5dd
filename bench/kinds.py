"""One function per kind of scenario: it drives the proxies and returns what it saw."""
import json
import socket
import statistics
import subprocess
import time

from stand import MIB, PROXY_CPU, Candidate, Held, compile_tool, fetch, until

RELOAD_S, SLOT_MS = 0.2, 100                                    # between two reloads; of the time line


# ---- Costs: interleaved windows, ratios in each round -----------------------------------------------------------------------------------


def cost(window, mib):
    """Nanoseconds of the proxy's CPU per request or per MiB; None when too little was done for a figure (another load had the machine)."""
    units = (window["bytes_in"] + window["bytes_out"]) / MIB if mib else window["requests"]
    return window["cpu_ns"] / units if units >= (8 if mib else 100) else None


def ratio(rounds, name, other, mib):
    """The ratio of two in each round: its median, lowest and highest; None without one."""
    pairs = [(cost(r[name], mib), cost(r[other], mib)) for r in rounds if name in r and other in r]
    ratios = sorted(a / b for a, b in pairs if a and b)
    return {"median": statistics.median(ratios), "low": ratios[0], "high": ratios[-1], "rounds": len(ratios)} if ratios else None


def cheapest_relay(name, rounds, mib):
    """The bare relay that a Ramjet is held against: of its engine, for bodies also the one that splices, whichever costs less."""
    engine = name.removeprefix("ramjet-")
    medians = {}
    for relay in (f"relay-{engine}", f"body-{engine}", "body-splice"):
        if name.startswith("ramjet-") and (values := [v for r in rounds if relay in r and (v := cost(r[relay], mib))]):
            medians[relay] = statistics.median(values)
    return min(medians, key=medians.get, default=None)


def summarize(scenario, candidates, rounds):
    """Per proxy: the medians of the rounds, and the ratios to nginx, to the bare relay (a goal that no machine changes), and to its own plain form."""
    summary = {}
    for c in candidates:
        windows = [r[c.label] for r in rounds if c.label in r]
        costs = [v for w in windows if (v := cost(w, scenario.mib))]
        if not costs:
            summary[c.label] = {"failed": True, "errors": sum(w["errors"] for w in windows)}
            continue
        row = {"cost_us": statistics.median(costs) / 1000, "errors": sum(w["errors"] for w in windows)}
        row["per_second"] = statistics.median((w["bytes_in"] + w["bytes_out"]) / MIB / w["seconds"] if scenario.mib else w["requests"] / w["seconds"] for w in windows)
        for key in ("share", "load_share", "p50_us", "p99_us", "p999_us"):
            row[key] = statistics.median(w[key] for w in windows)
        if r := ratio(rounds, c.label, c.base, scenario.mib):
            row.update(ratio=r["median"], ratio_low=r["low"], ratio_high=r["high"], rounds=r["rounds"])
        for key, other in (("own", c.own), ("relay", cheapest_relay(c.label, rounds, scenario.mib))):
            if other and other != c.label and (r := ratio(rounds, c.label, other, scenario.mib)):
                row.update({f"{key}_ratio": r["median"], f"{key}_low": r["low"], f"{key}_high": r["high"]})
        summary[c.label] = row
    return summary


def costs(bench, scenario):
    options = bench.options
    candidates = [c if isinstance(c, Candidate) else Candidate(c) for c in scenario.who]
    candidates = [c for c in candidates if bench.each([c.proxy], lambda _, c=c: bench.proxy(c))]
    seconds = scenario.seconds or options.seconds
    rounds = []
    for i in range(options.rounds):
        windows = {}
        for k in range(len(candidates)):
            c = candidates[(k + i) % len(candidates)]           # nobody is always first
            windows |= {c.label: w for w in bench.each([c.proxy], lambda _, c=c: bench.window(bench.proxies[c.label], scenario.load, seconds)).values()}
        rounds.append({c.label: windows[c.label] for c in candidates if c.label in windows})
    bench.forget(candidates)
    return {"unit": "MiB" if scenario.mib else "request", "load": " ".join(scenario.load), "window_s": seconds, "rounds": rounds,
            "summary": summarize(scenario, candidates, rounds)}


# ---- Reloads under load -------------------------------------------------------------------------------------------------------------------


def applied_ms(bench, p, dead):
    """From a new configuration until a new connection is answered by it. HAProxy's master may lose a signal while it starts itself anew: then once more."""
    def applies():
        return (fetch(p.port, "/128", headers={"Host": "toggle.bench.test"})[0] != 200) == dead

    for _ in range(10):
        start = time.perf_counter()
        bench.reload(p, 100, dead)
        try:
            until(applies, 1, f"{p.name} takes a new configuration")
            return (time.perf_counter() - start) * 1000
        except RuntimeError:
            pass
    raise RuntimeError(f"{p.name} does not take a new configuration")


def churn_once(bench, name, scenario, quick):
    p = bench.start(name, routes=100, reloads=True)
    if p is None:
        return None
    try:
        p.ready()
        held = Held(bench, p, 100)
        slots = ["--slot", str(SLOT_MS)]
        quiet = bench.window(p, scenario.load + slots, 0.3 if quick else 1.0)
        seconds, reloads = 1.0 if quick else 3.0, 0
        load = bench.load(p, scenario.load + slots, seconds)
        while load.poll() is None:
            time.sleep(RELOAD_S)
            reloads += 1
            bench.reload(p, 100, bool(reloads % 2))
        window = json.loads(load.communicate()[0])
        lost = held.close()
        applied_ms(bench, p, bool(reloads % 2))                 # what is under way ends
        applied = [applied_ms(bench, p, bool((reloads + i) % 2)) for i in range(1, 6)]
        return {"quiet": quiet, "churn": window, "reloads": reloads, "idle": 100, "idle_lost": lost, "applied_ms": applied}
    finally:
        p.stop()


def churn(bench, scenario):
    quick = bench.options.rounds == 1
    runs = {}
    for _ in range(1 if quick else 3):
        for name, r in bench.each(scenario.who, lambda n: churn_once(bench, n, scenario, quick)).items():
            runs.setdefault(name, []).append(r)
    summary, lines = {}, {}
    for name, rs in runs.items():
        ratios = sorted(r["churn"]["p99_us"] / r["quiet"]["p99_us"] for r in rs)
        applied = [ms for r in rs for ms in r["applied_ms"]]
        summary[name] = {"quiet_p99_us": statistics.median(r["quiet"]["p99_us"] for r in rs), "churn_p99_us": statistics.median(r["churn"]["p99_us"] for r in rs),
                         "p99_ratio": statistics.median(ratios), "p99_low": ratios[0], "p99_high": ratios[-1], "requests": sum(r["churn"]["requests"] for r in rs),
                         "failed": sum(r["churn"]["errors"] for r in rs), "lost": sum(r["churn"]["reconnects"] for r in rs), "reloads": sum(r["reloads"] for r in rs),
                         "idle": sum(r["idle"] for r in rs), "idle_lost": sum(r["idle_lost"] for r in rs), "applied_ms": statistics.median(applied), "applied_max_ms": max(applied)}
        both = rs[-1]["quiet"]["line"] + rs[-1]["churn"]["line"]
        begin = -len(rs[-1]["quiet"]["line"])                   # the reloads begin at 0
        lines[name] = [{"ms": (begin + i) * SLOT_MS, "requests": n, "p99_us": p99, "failed": e, "lost": r} for i, (n, p99, e, r) in enumerate(both)]
    return {"load": " ".join(scenario.load), "reload_every_ms": RELOAD_S * 1000, "summary": summary, "lines": lines}


# ---- Memory of idle connections -----------------------------------------------------------------------------------------------------------


def idle_once(bench, name, counts):
    p = bench.start(name)
    if p is None:
        return None
    try:
        p.ready()
        fetch(p.port, "/128")
        time.sleep(0.5)
        memory = {0: p.memory()}
        for n in counts:
            held = Held(bench, p, n)
            time.sleep(0.5)
            memory[n] = p.memory()
            held.close()
            time.sleep(2)                                       # what is asked for: 2 s after they are closed
            memory[f"{n} closed"] = p.memory()
        return memory
    finally:
        p.stop()


def idle_two(bench, name):
    """Resident with two workers after one request."""
    p = bench.start(name, workers=2, cpus=(0, 1))
    try:
        p.ready()
        fetch(p.port, "/128")
        time.sleep(0.5)
        return p.memory()
    finally:
        p.stop()


def idle(bench, scenario):
    counts = (1000,) if bench.options.rounds == 1 else (1000, 8000)
    most = counts[-1]
    less = counts[-2] if len(counts) > 1 else 0                 # from there on: what a proxy has once, like its pool of buffers, is no cost of a connection
    memories = bench.each(scenario.who, lambda n: idle_once(bench, n, counts))
    two = bench.each(memories, lambda n: idle_two(bench, n))
    summary = {}
    for name in two:
        pss = {n: m["Pss"] for n, m in memories[name].items()}
        summary[name] = {"memory": memories[name], "two_workers": two[name], "connections": most, "per_connection": (pss[most] - pss[less]) / (most - less),
                         "kept_per_connection": (pss[f"{most} closed"] - pss[0]) / most}
    return {"summary": summary}


# ---- Start --------------------------------------------------------------------------------------------------------------------------------


def first_answer_ms(bench, name, routes):
    """From the exec until the first answer with 200; refused connects are tried again at once."""
    p = bench.start(name, routes=routes)
    if p is None:
        return None
    host = f"host-{routes - 1}.bench.test" if routes else "bench.test"
    request = f"GET /128 HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode()
    try:
        while True:
            if p.process.poll() is not None or time.perf_counter() - p.started > 30:
                p.ready()
                raise RuntimeError(f"{name} does not answer")
            with socket.socket() as s:
                if s.connect_ex(("127.0.0.1", p.port)):
                    time.sleep(0.0001)
                    continue
                s.sendall(request)
                if s.recv(4096).startswith(b"HTTP/1.1 200"):
                    return (time.perf_counter() - p.started) * 1000
    finally:
        p.stop()


def start(bench, scenario):
    times = 3 if bench.options.rounds == 1 else 10
    summary = {}
    for routes, names in ((0, scenario.who), (5000, scenario.tables)):
        for name, ms in bench.each(names, lambda n: [first_answer_ms(bench, n, routes) for _ in range(times)]).items():
            if None not in ms:
                summary[name + (f"@{routes}" if routes else "")] = {"ms": statistics.median(ms), "low": min(ms), "high": max(ms), "times": times}
    return {"summary": summary}


# ---- Pieces of Ramjet without a kernel ----------------------------------------------------------------------------------------------------


PUBLISHED = {                                                   # by others, on their machines
    "route lookup, 1,000 hosts, 10,001 routes": "25 ns: the matcher of ramjet-ingress (Rust), Apple M2 Pro",
    "parser, browser head of 703 octets": "153 to 160 ns: picohttpparser with SSE4.2, this head (README of the crate thhp 0.2.0); it splits a head and gives no field a meaning",
}


def micro(bench, scenario):
    """Programs of bench/*.c that include ramjet.c; each prints a JSON object per line: {"name", "value", "unit"} and more."""
    rows = []
    libraries = ("-lbearssl", "-linih", "-lpthread")
    for tool in scenario.load:
        program = compile_tool(tool, "../ramjet.c", "../ramjet.h", libraries=libraries)
        p = subprocess.run(["taskset", "-c", str(PROXY_CPU), program], capture_output=True, text=True, check=True)
        rows += [{"program": tool, **json.loads(line)} for line in p.stdout.splitlines()]
    for row in rows:
        row["published"] = PUBLISHED.get(row["name"], "")
    return {"rows": rows}
