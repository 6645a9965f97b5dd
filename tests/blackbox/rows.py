"""What a strict edge answers, as data: requests that clients send and responses that upstreams send.

The names begin with the rule: F = framing, H = start line, fields and host, 7.3 = paths, 7.4 = upgrades, 7.6 = resources, CVE = what broke a peer.
Every row runs on both engines, in one piece and in several (test_rows.py), and against the other engine (test_differential.py).
strictness.py writes them as a table, tests/STRICTNESS.md.
"""
from rows_base import CUT, EVIL, GONE, NOTHING, PARTIAL, RULES, Request, Response, chunks, get, ok, post  # noqa: F401
from rows_requests import REQUESTS  # noqa: F401
from rows_responses import RESPONSES  # noqa: F401
