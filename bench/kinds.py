"""One function per kind of scenario: it drives the proxies and returns what it saw."""
import statistics

from stand import MIB

BASE = "nginx"


def cost(window, mib):
    """Nanoseconds of the proxy's CPU per request or per MiB; None when too little was done for a figure (another load had the machine)."""
    units = (window["bytes_in"] + window["bytes_out"]) / MIB if mib else window["requests"]
    return window["cpu_ns"] / units if units >= (8 if mib else 100) else None


def summarize(scenario, rounds):
    """Per proxy: the median of the per-round ratios to nginx, with the lowest and the highest, and medians of the rest."""
    table = {}
    for name in rounds[0]:
        windows = [r[name] for r in rounds if name in r]
        costs = [c for w in windows if (c := cost(w, scenario.mib))]
        if not costs:
            table[name] = {"failed": True, "errors": sum(w["errors"] for w in windows)}
            continue
        row = {"cost_us": statistics.median(costs) / 1000, "errors": sum(w["errors"] for w in windows)}
        row["per_second"] = statistics.median((w["bytes_in"] + w["bytes_out"]) / MIB / w["seconds"] if scenario.mib else w["requests"] / w["seconds"] for w in windows)
        for key in ("share", "load_share", "p50_us", "p99_us", "p999_us"):
            row[key] = statistics.median(w[key] for w in windows)
        pairs = [(cost(r[name], scenario.mib), cost(r[BASE], scenario.mib)) for r in rounds if BASE in r]
        ratios = sorted(c / b for c, b in pairs if b and c)
        if ratios:
            row.update(ratio=statistics.median(ratios), ratio_low=ratios[0], ratio_high=ratios[-1], rounds=len(ratios))
        table[name] = row
    for engine in ("epoll", "uring"):                           # the goal that no machine changes
        name, relay = f"ramjet-{engine}", next((r for r in (f"relay-{engine}", f"body-{engine}") if r in table), None)
        if relay and "cost_us" in table.get(name, {}) and "cost_us" in table[relay]:
            pairs = [(cost(r[name], scenario.mib), cost(r[relay], scenario.mib)) for r in rounds]
            if ratios := [c / b for c, b in pairs if b and c]:
                table[name]["relay_ratio"] = statistics.median(ratios)
    return table


def measure(bench, scenario):
    options = bench.options
    names = [n for n in scenario.who if (not options.only or n in options.only) and bench.proxy(n)]
    seconds = scenario.seconds or options.seconds
    rounds = []
    for i in range(options.rounds):
        windows = {}
        for k in range(len(names)):
            name = names[(k + i) % len(names)]                  # nobody is always first
            windows[name] = bench.window(bench.proxies[name], scenario.load, seconds)
        rounds.append({n: windows[n] for n in names})
    return {"scenario": scenario.name, "title": scenario.title, "unit": "MiB" if scenario.mib else "request", "load": " ".join(scenario.load),
            "window_s": seconds, "rounds": rounds, "summary": summarize(scenario, rounds)}
