"""What a run writes: the machine, and the Markdown tables."""
import os
import platform
import statistics
import sys
import time

from stand import BUILD, LOAD_CPU, PROXY_CPU, RAMJET, ROOT, output


def machine(bench):
    cpu = {k.strip(): v.strip() for k, v in (line.split(":", 1) for line in output("lscpu").splitlines() if ":" in line)}
    binary = os.stat(RAMJET)
    versions = {"ramjet": output(RAMJET, "version").splitlines()[0], "nginx": output("/usr/sbin/nginx", "-v").splitlines()[0],
                "haproxy": output("/usr/sbin/haproxy", "-v").splitlines()[0], "gcc": output("gcc", "--version").splitlines()[0]}
    for peer in ("caddy", "pingora", "traefik"):
        if os.path.exists(os.path.join(BUILD, peer)):
            versions[peer] = " ".join(output(os.path.join(BUILD, peer), "version").replace("Version:", "").split()[:2])
    return {"when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "cpu": cpu.get("Model name"), "cpus": os.cpu_count(), "hypervisor": cpu.get("Hypervisor vendor"),
            "kernel": platform.release(), "machine": platform.machine(), "congestion_control": open("/proc/sys/net/ipv4/tcp_congestion_control").read().strip(),
            "load_average": os.getloadavg(), "commit": output("git", "rev-parse", "HEAD"), "changed": bool(output("git", "status", "--porcelain", "ramjet.c", "ramjet.h")),
            "ramjet_bytes": binary.st_size, "versions": versions, "commands": {n: " ".join(p.command).replace(ROOT + "/", "") for n, p in bench.proxies.items()},
            "proxy_cpu": PROXY_CPU, "load_cpu": LOAD_CPU, "arguments": sys.argv[1:]}


def number(value):
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def syscall_ns(results):
    values = [c for r in results for windows in r["rounds"] for w in windows.values() for c in w["cal_ns"] if c]
    return {"median": statistics.median(values), "low": min(values), "high": max(values)} if values else None


def markdown(info, results):
    lines = [f"{info['cpu']}, {info['cpus']} CPUs, Linux {info['kernel']}, {info['when']}, commit {info['commit'][:12]}{' (changed)' if info['changed'] else ''}."]
    if info.get("syscall_ns"):
        lines.append(f"An empty system call costs {info['syscall_ns']['median']:.0f} ns (median of the brackets around the windows; lowest {info['syscall_ns']['low']:.0f}).")
    lines += ["", "CPU time against nginx = 1.00 in the same round: median of the rounds (lowest to highest).", ""]
    for r in results:
        unit = r["unit"]
        lines += [f"### {r['scenario']}: {r['title']}", "",
                  f"| proxy | CPU, nginx = 1 | us per {unit} | against the relay | {unit}s/s | p50 us | p99 us | p99.9 us | CPU share | errors |", "|---|---|--:|--:|--:|--:|--:|--:|--:|--:|"]
        for name, s in r["summary"].items():
            if s.get("failed"):
                lines.append(f"| {name} | failed | | | | | | | | {s['errors']} |")
                continue
            ratio = f"{s['ratio']:.3f} ({s['ratio_low']:.3f} to {s['ratio_high']:.3f})" if "ratio" in s else ""
            lines.append(f"| {name} | {ratio} | {number(s['cost_us'])} | {number(s['relay_ratio']) if 'relay_ratio' in s else ''} | {number(s['per_second'])} | {number(s['p50_us'])} "
                         f"| {number(s['p99_us'])} | {number(s['p999_us'])} | {s['share']:.0%} | {s['errors']} |")
        lines.append("")
    return "\n".join(lines)
