#!/usr/bin/env python3
"""Prints tests/STRICTNESS.md: every row of rows.py as a table.

    tests/blackbox/strictness.py >tests/STRICTNESS.md       `make readme` does it; `make lint` holds the file against the rows
"""
import os
import re
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.dont_write_bytecode = True
import rows  # noqa: E402

SHOWN_BYTES = 110
SECTIONS = (("Framing of requests", r"F\d+"), ("Start line, fields and host of requests", r"H\d+"), ("Paths", r"7\.3"), ("Upgrades", r"7\.4"), ("Resources", r"7\.6"),
            ("What broke peers", r"CVE-.*|GHSA-.*"))
ANSWERED = (("Framing of responses", r"F\d+"), ("Status line and fields of responses", r"H\d+"), ("Upgrades that an upstream answers", r"7\.4"))
HEAD = re.compile(rb"(\S+) / HTTP/1\.1\r\nHost: a\.test\r\n(?!\r\n$)")

INTRODUCTION = """\
# What a strict edge answers

Written by `make readme` from the rows of `tests/blackbox/rows*.py`, so it cannot differ from what is tested; `tests/blackbox/run test_rows.py` runs
all of them on both engines, in one piece, cut at random, and in part octet by octet, and prints how many passed. `test_differential.py` compares the engines.

There are {requests} rows of requests and {responses} of responses, for {rules} rules and {cves} published weaknesses of peers.

- A request that can be read in two ways is answered with 400 (413, 414, 431 for sizes, 417 for Expect, 405 for CONNECT and TRACE), the connection
  ends, and no upstream sees it as a whole. Nothing is repaired and sent on.
- A response that can be read in two ways is answered with 502, or the client's connection is cut when its head was sent before the fault came: half an
  answer never looks whole. The upstream's connection is closed and never used again.
- What is unusual but can be read in one way only is served: white space around values, letter case of names and codings, one empty line before a
  request, percent-encoding, repeated fields that are lists.

How to read it: `POST …` stands for the request line and Host (`POST / HTTP/1.1`, `Host: a.test`), ⟨evil⟩ for a whole request of `/evil` that must not be
found, `a*100` for a hundred times `a`. "close" says that the connection ends behind the answer. "never whole" says that the upstream may see a head and
a part of a body, but never the end of it. Names such as SMUG-CL-TE-BOTH are ids of Http11Probe, TROPHY-n of the HTTP Garden (T: its transducer bugs).
"""


def escaped(octets):
    """The octets readable: long runs counted, the smuggled request by its name, what is too long cut."""
    octets = octets.replace(rows.EVIL, b"\0evil\0")
    head = HEAD.match(octets)
    prefix = head[1].decode("latin-1") + " … " if head else ""
    text = repr(octets[head.end() if head else 0:])[2:-1].replace("\\'", "'")
    text = re.sub(r"(\\x..|\\.|[^\\])\1{15,}", lambda m: f"{m[1]}*{len(m[0]) // len(m[1])}", text)
    text = text.replace("\\x00evil\\x00", "⟨evil⟩")
    if len(text) > SHOWN_BYTES:
        text = text[:SHOWN_BYTES - 30] + "…" + text[-20:] + f" ({len(octets)} octets)"
    return prefix + text


def code(text):
    """Text as code in a cell of a table."""
    text = text.replace("|", "\\|")
    if not text:
        return ""
    return f"`` {text} ``" if "`" in text else f"`{text}`"


def answer_of(row):
    parts = ["no answer" if s is None else str(s) for s in row.answers]
    if len(parts) > 6:
        parts = [f"{len(parts)} times {parts[0]}"]
    return ", ".join(parts) + (", close" if row.is_over else "")


def seen_of(want, method):
    """One request at the upstream, as far as the row says more than `it is the same`."""
    parts = [code(want.get("method", method.encode()).decode() + " " + escaped(want.get("target", b"/")))]
    if want.get("body"):
        parts.append("body " + code(escaped(want["body"])))
    if want.get("has"):
        parts.append("with " + ", ".join(code(escaped(n + b": " + v)) for n, v in want["has"].items()))
    if want.get("lacks"):
        parts.append("without " + ", ".join(code(escaped(n)) for n in want["lacks"]))
    if "trailers" in want:
        parts.append("trailers " + ", ".join(code(escaped(n + b": " + v)) for n, v in want["trailers"].items()) if want["trailers"] else "no trailers")
    if want.get("at") == "V":
        parts.append("at the upstream of /secret")
    return ", ".join(parts)


def upstream_of(row):
    if row.sees == rows.NOTHING:
        return "nothing"
    if row.sees == rows.PARTIAL:
        return "never whole"
    seen = [seen_of(want, method) for want, method in zip(row.expected, row.methods)]
    return "; ".join(seen) if len(seen) <= 6 else f"{len(seen)} requests, in order"


def remark_of(row):
    return "; ".join(filter(None, (row.choice, row.ref))).replace("|", "\\|")


def rule_of(row):
    return row.rule or rows.RULES[row.id][1]


def request_cells(row):
    return row.id, row.case.replace("|", "\\|"), code(escaped(row.octets)), answer_of(row), upstream_of(row), rule_of(row), remark_of(row)


def response_cells(row):
    asked = "" if row.request == rows.Response.__new__.__defaults__[row._fields.index("request") - len(row._fields)] else row.method
    if row.request.endswith(b"HTTP/1.0\r\nHost: a.test\r\n\r\n"):
        asked = "1.0"
    elif b"websocket" in row.request:
        asked = "upgrade"
    end = {"": "", "fin": " FIN", "rst": " RST"}[row.end]
    answer = {rows.CUT: "cut", rows.GONE: "502, or cut"}.get(row.status, str(row.status))
    answer = ", ".join([str(n) for n in row.interim[:2]] + (["..."] if len(row.interim) > 2 else []) + [answer])
    parts = []
    if row.status not in (502, rows.CUT, rows.GONE):
        parts.append("body " + code(escaped(row.body)) if row.body else "no body")
        if row.has:
            parts.append("with " + ", ".join(code(escaped(n + b": " + v)) for n, v in row.has.items()))
        if row.lacks:
            parts.append("without " + ", ".join(code(escaped(n)) for n in row.lacks))
    return row.id, row.case.replace("|", "\\|"), asked, code(escaped(row.octets)) + end, answer, ", ".join(parts), "used again" if row.reuse else "closed", rule_of(row), remark_of(row)


def table(head, lines):
    print("| " + " | ".join(head) + " |")
    print("|" + " --- |" * len(head))
    for cells in lines:
        print("| " + " | ".join(cells) + " |")
    print()


def write():
    ids = {r.id for r in rows.REQUESTS + rows.RESPONSES}
    print(INTRODUCTION.format(requests=len(rows.REQUESTS), responses=len(rows.RESPONSES), rules=len(ids & set(rows.RULES)), cves=len(ids - set(rows.RULES))))
    print("## Choices\n\nWhere the rules leave one, the stricter answer that breaks no real client or upstream is taken.\n")
    choices = [("request", r.id, r.case, answer_of(r), r.choice) for r in rows.REQUESTS if r.choice] + [("response", r.id, r.case, response_cells(r)[4], r.choice) for r in rows.RESPONSES if r.choice]
    table(("of a", "id", "case", "answer", "choice"), [[c.replace("|", "\\|") for c in line] for line in choices])
    print("## Rules\n")
    table(("id", "rule", "reference", "rows of requests", "of responses"),
          [(i, title, rule, str(sum(r.id == i for r in rows.REQUESTS)), str(sum(r.id == i for r in rows.RESPONSES))) for i, (title, rule) in rows.RULES.items()])
    for title, pattern in SECTIONS:
        print(f"## {title}\n")
        table(("id", "case", "the client sends", "answer", "the upstream sees", "rule", "remark"), [request_cells(r) for r in rows.REQUESTS if re.fullmatch(pattern, r.id)])
    for title, pattern in ANSWERED:
        print(f"## {title}\n")
        table(("id", "case", "to a", "the upstream sends", "answer", "the client gets", "its connection is", "rule", "remark"), [response_cells(r) for r in rows.RESPONSES if re.fullmatch(pattern, r.id)])


if __name__ == "__main__":
    sys.stdout.reconfigure(encoding="utf-8")
    write()
