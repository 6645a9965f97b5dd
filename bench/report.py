"""What a run writes: the machine, and the Markdown tables."""
import os
import platform
import statistics
import sys
import time

from stand import BUILD, LOAD_CPU, PROXY_CPU, RAMJET, output


def machine(bench):
    cpu = {k.strip(): v.strip() for k, v in (line.split(":", 1) for line in output("lscpu").splitlines() if ":" in line)}
    binary = os.stat(RAMJET)
    versions = {"ramjet": output(RAMJET, "version").splitlines()[0], "nginx": output("/usr/sbin/nginx", "-v").splitlines()[0],
                "haproxy": output("/usr/sbin/haproxy", "-v").splitlines()[0], "gcc": output("gcc", "--version").splitlines()[0]}
    for peer in ("caddy", "pingora", "traefik"):
        if os.path.exists(os.path.join(BUILD, peer)):
            versions[peer] = output(os.path.join(BUILD, peer), "version").splitlines()[0].removeprefix("Version:").strip()
    return {"when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "cpu": cpu.get("Model name"), "cpus": os.cpu_count(), "hypervisor": cpu.get("Hypervisor vendor"),
            "kernel": platform.release(), "machine": platform.machine(), "congestion_control": open("/proc/sys/net/ipv4/tcp_congestion_control").read().strip(),
            "load_average": os.getloadavg(), "commit": output("git", "rev-parse", "HEAD"), "changed": bool(output("git", "status", "--porcelain", "ramjet.c", "ramjet.h")),
            "ramjet_bytes": binary.st_size, "versions": versions, "commands": bench.commands,
            "proxy_cpu": PROXY_CPU, "load_cpu": LOAD_CPU, "arguments": sys.argv[1:]}


def number(value):
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def spread(row, key="ratio", low="ratio_low", high="ratio_high", form="{:.3f}"):
    return f"{form.format(row[key])} ({form.format(row[low])} to {form.format(row[high])})" if key in row else ""


def syscall_ns(results):
    values = [c for r in results for windows in r.get("rounds", []) for w in windows.values() for c in w["cal_ns"] if c]
    return {"median": statistics.median(values), "low": min(values), "high": max(values)} if values else None


# ---- One function per kind: the lines of its table -------------------------------------------------------------------------------------------


def costs(r):
    unit, own = r["unit"], any("own_ratio" in s for s in r["summary"].values())
    yield (f"| proxy | CPU, nginx = 1 | us per {unit} | {'against its plain form' if own else 'against the relay'} | {unit}s/s | p50 us | p99 us | p99.9 us | CPU share | errors |")
    yield "|---|---|--:|--:|--:|--:|--:|--:|--:|--:|"
    for name, s in r["summary"].items():
        if s.get("failed"):
            yield f"| {name} | too little was done for a figure | | | | | | | | {s['errors']} |"
            continue
        against = spread(s, "own_ratio", "own_low", "own_high") if own else number(s["relay_ratio"]) if "relay_ratio" in s else ""
        yield (f"| {name} | {spread(s)} | {number(s['cost_us'])} | {against} | {number(s['per_second'])} | {number(s['p50_us'])} "
               f"| {number(s['p99_us'])} | {number(s['p999_us'])} | {s['share']:.0%} | {s['errors']} |")


def churn(r):
    yield "| proxy | reloads | requests | failed | lost | idle ones closed, of 100 | p99 us, quiet | p99 us, reloads | p99 against quiet | new file to first answer by it, ms (highest) |"
    yield "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|"
    for name, s in r["summary"].items():
        yield (f"| {name} | {s['reloads']} | {s['requests']:,} | {s['failed']} | {s['lost']} | {s['idle_lost']} | {number(s['quiet_p99_us'])} | {number(s['churn_p99_us'])} "
               f"| {spread(s, 'p99_ratio', 'p99_low', 'p99_high', '{:.2f}')} | {number(s['applied_ms'])} ({number(s['applied_max_ms'])}) |")


def idle(r):
    memories = [s["memory"] for s in r["summary"].values()]
    counts = [n for n in memories[0] if isinstance(n, int) or n == list(memories[0])[-1]] if memories else []     # of those that are closed the last
    yield "| proxy | " + " | ".join(f"PSS MB, {n:,}" if isinstance(n, int) else "PSS MB, 2 s after they closed" for n in counts) + " | octets per connection | kept per connection after | RSS MB, 2 workers |"
    yield "|---|" + "--:|" * (len(counts) + 3)
    for name, s in r["summary"].items():
        yield (f"| {name} | " + " | ".join(number(s["memory"][n]["Pss"] / 1e6) for n in counts)
               + f" | {s['per_connection']:,.0f} | {s['kept_per_connection']:,.0f} | {number(s['two_workers']['Rss'] / 1e6)} |")


def start(r):
    yield "| proxy | exec to first answer, ms (lowest to highest) | times |"
    yield "|---|--:|--:|"
    for name, s in r["summary"].items():
        yield f"| {name.replace('@5000', ', 5,000 routes')} | {spread(s, 'ms', 'low', 'high', '{:.1f}')} | {s['times']} |"


def micro(r):
    yield "| | figure | published beside it |"
    yield "|---|--:|---|"
    for row in r["rows"]:
        more = f" ({row['reference_cycles']:,.0f} reference cycles)" if "reference_cycles" in row else ""
        yield f"| {row['name']} | {number(row['value'])} {row['unit']}{more} | {row.get('published', '')} |"


TABLES = {"costs": costs, "churn": churn, "idle": idle, "start": start, "micro": micro}


def goals(rows):
    """The table of goals: `rows` are goals.table's."""
    names = list(dict.fromkeys(n for r in rows for n in r["figures"]))
    lines = ["### Goals", "", "CPU is against nginx = 1.00 (lowest to highest round); of goals that depend on the price of a system call those of this machine's kind. "
             "A figure that misses its goal is marked with *.", "",
             "| | goal, io_uring / epoll | " + " | ".join(names) + " | from |", "|---|---|" + "--:|" * len(names) + "---|"]
    for r in rows:
        cells = [r["figures"].get(n, {"text": ""}) for n in names]
        lines.append(f"| {r['title']} | {r['goal']} | " + " | ".join(c["text"] + ("*" if c.get("met") is False else "") for c in cells) + f" | {r['from']} |")
    return lines + [""]


def markdown(info, results, goal_rows):
    lines = [f"{info['cpu']}, {info['cpus']} CPUs, Linux {info['kernel']}, {info['when']}, commit {info['commit'][:12]}{' (changed)' if info['changed'] else ''}, {info['minutes']:.1f} minutes."]
    if info.get("syscall_ns"):
        lines.append(f"An empty system call costs {info['syscall_ns']['median']:.0f} ns (median of the brackets around the windows; lowest {info['syscall_ns']['low']:.0f}).")
    lines += [f"Not measured: {p}" for p in info["problems"]]
    lines += ["", "CPU time against nginx = 1.00 in the same round: median of the rounds (lowest to highest).", ""]
    for r in results:
        lines += [f"### {r['scenario']}: {r['title']}", "", *([r["note"], ""] if r["note"] else []), *TABLES[r["kind"]](r), ""]
    return "\n".join(lines + (goals(goal_rows) if goal_rows else [])) + "\n"
