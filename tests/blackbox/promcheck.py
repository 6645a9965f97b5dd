"""The rules of the Prometheus text format and of `promtool check metrics`, as far as an exposition of our own can break them."""
import re

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\[\\"n])*)"'
SAMPLE = re.compile(rf"({NAME})(?:\{{((?:{LABEL})(?:,{LABEL})*,?)?\}})? (\S+)(?: (-?[0-9]+))?")
NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?|\.[0-9]+|Inf|NaN)")
TYPES = ("counter", "gauge", "histogram", "summary", "untyped")
SUFFIXES = {"histogram": ("_bucket", "_sum", "_count"), "summary": ("", "_sum", "_count")}


def base_name(name, types):
    """The family that a sample belongs to."""
    if name in types:
        return name
    for suffix in ("_bucket", "_sum", "_count"):
        if name.endswith(suffix) and types.get(name[:-len(suffix)]) in ("histogram", "summary"):
            return name[:-len(suffix)]
    return None


def check_histogram(family, samples, problems):
    series = {}
    for name, labels, value in samples:
        key = tuple(sorted((k, v) for k, v in labels.items() if k != "le"))
        series.setdefault(key, {"bucket": [], "sum": None, "count": None})
        if name.endswith("_bucket"):
            if "le" not in labels:
                problems.append(f"{name}: no le")
                continue
            series[key]["bucket"].append((float(labels["le"].replace("Inf", "inf")), value))
        else:
            series[key][name.rsplit("_", 1)[1]] = value
    for key, s in series.items():
        bounds, counts = [b for b, _ in s["bucket"]], [c for _, c in s["bucket"]]
        if bounds != sorted(set(bounds)):
            problems.append(f"{family}{dict(key)}: bounds {bounds}")
        if counts != sorted(counts):
            problems.append(f"{family}{dict(key)}: counts fall {counts}")
        if not bounds or bounds[-1] != float("inf"):
            problems.append(f"{family}{dict(key)}: no +Inf bucket")
        if s["sum"] is None or s["count"] is None:
            problems.append(f"{family}{dict(key)}: no _sum or _count")
        elif counts and counts[-1] != s["count"]:
            problems.append(f"{family}{dict(key)}: +Inf {counts[-1]} is not _count {s['count']}")


def check(text):
    """All problems of an exposition, as lines."""
    problems, types, helps, samples, order, seen = [], {}, {}, {}, [], set()
    if not text.endswith("\n"):
        problems.append("no line feed at the end")
    for number, line in enumerate(text.split("\n")[:-1], 1):
        at = f"line {number}: {line!r}"
        if not line or (line.startswith("#") and not line.startswith(("# HELP ", "# TYPE "))):
            continue
        if line.startswith("# "):
            m = re.fullmatch(rf"# (HELP|TYPE) ({NAME}) (.*)", line)
            if not m:
                problems.append(f"{at}: malformed")
                continue
            table = helps if m[1] == "HELP" else types
            if m[2] in table:
                problems.append(f"{at}: a second {m[1]}")
            if m[1] == "TYPE" and m[3] not in TYPES:
                problems.append(f"{at}: unknown type")
            if m[2] in samples:
                problems.append(f"{at}: after its samples")
            if m[1] == "HELP" and (not m[3].strip() or re.search(r"\\[^\\n]", m[3])):
                problems.append(f"{at}: empty help or bad escape")
            table[m[2]] = m[3]
            continue
        m = SAMPLE.fullmatch(line)
        if not m or not NUMBER.fullmatch(m.groups()[-2]):
            problems.append(f"{at}: malformed")
            continue
        name, value = m[1], float(m.groups()[-2].replace("Inf", "inf"))
        pairs = re.findall(LABEL, m[2] or "")
        labels = dict(pairs)
        if len(labels) != len(pairs):
            problems.append(f"{at}: a label twice")
        if any(k.startswith("__") for k in labels):
            problems.append(f"{at}: reserved label")
        key = (name, tuple(sorted(pairs)))
        if key in seen:
            problems.append(f"{at}: a second sample of the same series")
        seen.add(key)
        family = base_name(name, types)
        if family is None:
            problems.append(f"{at}: no TYPE before it")
            family = name
        if order and order[-1] != family and family in order:
            problems.append(f"{at}: family {family} is not together")
        if not order or order[-1] != family:
            order.append(family)
        if types.get(family) == "counter" and value < 0:
            problems.append(f"{at}: negative counter")
        samples.setdefault(family, []).append((name, labels, value))
    for family, kind in types.items():
        if family not in helps:
            problems.append(f"{family}: no HELP")
        if kind == "counter" and not family.endswith("_total"):
            problems.append(f"{family}: a counter ends in _total")
        if kind != "counter" and family.endswith("_total"):
            problems.append(f"{family}: only a counter ends in _total")
        if kind not in ("histogram", "summary") and re.search(r"_(bucket|count|sum)$", family):
            problems.append(f"{family}: reserved suffix")
        if re.search(r"_(milliseconds|minutes|hours|kilobytes|megabytes|bits|ms|us|ns)(_|$)", family):
            problems.append(f"{family}: not a base unit")
        if re.search(r"[A-Z]", family):
            problems.append(f"{family}: letter case")
        if kind == "histogram":
            check_histogram(family, samples.get(family, []), problems)
    return problems
