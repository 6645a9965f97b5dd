"""The goals of the project that concern no TLS, and the figures of a run beside them.

Some are ratios that depend on what a system call costs on the machine: of those the column of its kind holds. Figures of a cluster are not measured by
bench/run; they come from bench/results/cluster.json and the table says of when."""
import json
import os

from stand import HERE, output

DEAR_CALL_NS = 500                                              # the cheapest empty system call of a run: about 1,050 ns on one kind of machine, 106 to 190 ns on most
RAMJETS = {"ramjet-uring": 0, "ramjet-epoll": 1}

# Scenario, what is shown, goals of (io_uring, epoll) where a system call is dear and where it is cheap
RATIOS = [
    ("small-64", "128 B, 64 connections", (0.40, 0.65), (0.60, 0.68)),
    ("small-256", "128 B, 256 connections", (0.36, 0.60), (0.55, 0.60)),
    ("new", "a new connection per request", (0.65, 0.80), (0.82, 0.87)),
    ("down-100K", "100 KiB bodies", (0.60, 0.62), (0.57, 0.57)),
    ("down-4M", "4 MiB bodies", (0.35, 0.35), (0.35, 0.35)),
]
RELAY = 1.2


def figure(text, value, goal):
    return {"text": text, "value": value, "met": None if goal is None else value <= goal}


def row(title, goal, figures, source="this run"):
    return {"title": title, "goal": goal, "figures": figures, "from": source}


def ranged(s, key, low, high, form="{:.2f}"):
    return f"{form.format(s[key])} ({form.format(s[low])} to {form.format(s[high])})"


def of_ratios(found, dear):
    for name, title, if_dear, if_cheap in RATIOS:
        if name in found:
            limits = if_dear if dear else if_cheap
            figures = {n: figure(ranged(s, "ratio", "ratio_low", "ratio_high"), s["ratio"], limits[RAMJETS[n]] if n in RAMJETS else None)
                       for n, s in found[name]["summary"].items() if "ratio" in s and not n.startswith(("relay", "body"))}
            yield row(title, f"{limits[0]:.2f} / {limits[1]:.2f}", figures)
    for name, title, *_ in RATIOS:
        if name in found:
            figures = {n: figure(ranged(s, "relay_ratio", "relay_low", "relay_high"), s["relay_ratio"], RELAY) for n, s in found[name]["summary"].items() if "relay_ratio" in s}
            if figures:
                yield row(f"{title}, against a bare relay", f"{RELAY}", figures)


def of_the_rest(info, found):
    ramjet = lambda name, goal: goal if name in RAMJETS else None       # noqa: E731
    if "idle" in found:
        s = found["idle"]["summary"]
        yield row("user memory per idle connection, octets", "256", {n: figure(f"{v['per_connection']:,.0f}", v["per_connection"], ramjet(n, 256)) for n, v in s.items()})
        yield row("resident, idle, 2 workers, MiB", "4", {n: figure(f"{v['two_workers']['Rss'] / 1048576:.1f}", v["two_workers"]["Rss"] / 1048576, ramjet(n, 4)) for n, v in s.items()})
    size = info["ramjet_bytes"] / 1048576
    yield row("binary, stripped, MiB", "1", {n: figure(f"{size:.2f}", size, 1) for n in RAMJETS})
    if "micro" in found:
        value = next(r["value"] for r in found["micro"]["rows"] if "10,001 routes" in r["name"])
        yield row("route lookup, 1,000 hosts, 10,001 routes, ns", "30", {n: figure(f"{value:.1f}", value, 30) for n in RAMJETS})
    if "start" in found:
        figures = {n: figure(ranged(s, "ms", "low", "high", "{:.1f}"), s["ms"], ramjet(n, 5)) for n, s in found["start"]["summary"].items() if "@" not in n}
        yield row("start to serving, ms", "5", figures)
    if "workers-2" in found:
        figures = {}
        for n, s in found["workers-2"]["summary"].items():
            if "own_ratio" in s:
                low, mid, high = (2 / s[k] for k in ("own_high", "own_ratio", "own_low"))
                plain = n.partition("/")[0]
                figures[plain] = {"text": f"{mid:.2f} ({low:.2f} to {high:.2f})", "value": mid, "met": mid >= 1.9 if plain in RAMJETS else None}
        yield row("two workers: work for the CPU of one, times two", "1.9", figures)
    if "churn" in found:
        s = found["churn"]["summary"]
        for key, title in (("failed", "failed requests, a reload every 200 ms"), ("idle_lost", "idle connections lost, a reload every 200 ms")):
            yield row(title, "0", {n: figure(f"{v[key]:,}", v[key], ramjet(n, 0)) for n, v in s.items()})


def of_the_cluster():
    """(title, goal, value and text of one engine's results)."""
    ms = lambda t, part: (t["event_to_request_ms"]["median"], f"{t['event_to_request_ms']['median']:.2f} (p99 {t['event_to_request_ms']['p99']:.2f})")   # noqa: E731
    plain = lambda v, form="{}": (v, form.format(v))                    # noqa: E731
    return [
        ("event received to first request served by it, ms", 5, lambda e: max((ms(e["changes"][k], k) for k in ("create", "change", "slice")))),
        ("the same with 5,000 Ingresses, ms", 10, lambda e: ms(e["scale"]["propagation"], "")),
        ("5,000 Ingresses: resident growth, MB", 10, lambda e: plain(e["scale"]["resident_growth_kib"]["VmRSS"] / 976.5625, "{:.1f}")),
        ("5,000 Ingresses: CPU of one change, ms", 5, lambda e: plain(e["scale"]["cpu_of_one_change"]["median_us"] / 1000, "{:.2f}")),
        ("start with 5,000 Ingresses until all are served, s", 1, lambda e: plain(e["scale"]["start"]["ready_median_s"], "{:.2f}")),
        ("wrong answers after ready", 0, lambda e: plain(e["scale"]["start"]["wrong"])),
        ("change served after the API server is back, s", 1.5, lambda e: plain(e["loss"]["served_after_ready_s"]["plain"]["median"], "{:.3f}")),
        ("failed requests under 100 changes a second", 0, lambda e: plain(e["churn"]["failed"])),
        ("idle connections lost under 100 changes a second", 0, lambda e: plain(e["churn"]["idle_lost"])),
        ("p99 of another host under 100 changes a second, against quiet", 1.5, lambda e: plain(e["churn"]["p99_ratio_to_quiet"], "{:.2f}")),
    ]


def from_cluster():
    path = os.path.join(HERE, "results", "cluster.json")
    if not os.path.exists(path):
        return
    with open(path) as f:
        run = json.load(f)
    commit = run["about"].get("commit") or output("git", "log", "-1", "--format=%h", "--", path)
    source = f"`cluster.json`, {run['about']['when']}, commit {commit[:12]}"
    for title, goal, take in of_the_cluster():
        figures = {}
        for name in RAMJETS:
            try:
                value, text = take(run["results"][name.removeprefix("ramjet-")])
            except (KeyError, TypeError):
                continue                                        # that part was not measured
            figures[name] = figure(text, value, goal)
        yield row(title, str(goal), figures, source)


def table(info, results):
    """All rows whose scenario is among the results, and those of the cluster."""
    found = {r["scenario"]: r for r in results}
    dear = bool(info.get("syscall_ns")) and info["syscall_ns"]["low"] > DEAR_CALL_NS
    return [*of_ratios(found, dear), *of_the_rest(info, found), *from_cluster()]
