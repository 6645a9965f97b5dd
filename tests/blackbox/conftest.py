"""Fixtures: edge (a shared ramjet per engine and configuration) and fresh (one of its own, stopped and checked after the test)."""
import os
import subprocess
import sys

import pytest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import harness  # noqa: E402


def pytest_addoption(parser):
    parser.addoption("--slow", action="store_true", help="also run the tests marked slow")
    parser.addoption("--quick", action="store_true", help="leave out the tests marked long")
    parser.addoption("--engine", action="append", choices=harness.ENGINES, help="only this engine (may be repeated)")


def pytest_configure(config):
    config.addinivalue_line("markers", "slow: takes long; left out of the quick tier")
    config.addinivalue_line("markers", "long: takes seconds; left out of --quick")
    config.edges = harness.Pool()


def pytest_generate_tests(metafunc):
    if "engine" in metafunc.fixturenames:
        metafunc.parametrize("engine", metafunc.config.getoption("--engine") or harness.ENGINES)


LONG_FILES = ("test_balance.py", "test_cases.py", "test_config_faults.py", "test_differential.py", "test_dns.py", "test_handover.py",
              "test_proxy_protocol.py", "test_rules.py", "test_tunnel.py", "test_websocket.py") # left out of --quick


def pytest_collection_modifyitems(config, items):
    """What a tier leaves out is deselected, not skipped. A test that knows no engine runs where the first engine does."""
    chosen = config.getoption("--engine") or harness.ENGINES
    keep, drop = [], []
    for item in items:
        long = item.get_closest_marker("long") or item.path.name in LONG_FILES
        slow = (item.get_closest_marker("slow") and not config.getoption("--slow")) or (long and config.getoption("--quick"))
        other = "engine" not in item.fixturenames and harness.ENGINES[0] not in chosen
        (drop if slow or other else keep).append(item)
    config.hook.pytest_deselected(items=drop)
    items[:] = keep


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    report = (yield).get_result()
    if report.when == "call":
        item.call_failed = report.failed
    if report.when == "call" and report.failed:
        for e in getattr(item, "edges", []):
            text = last_words(e.ramjet)
            if text:
                report.sections.append((f"ramjet, {e.engine}", text))


def pytest_terminal_summary(terminalreporter):
    """Rows of strictness, to be quoted."""
    counts = {"request": [0, 0], "response": [0, 0]}
    for outcome in ("passed", "failed"):
        for report in terminalreporter.stats.get(outcome, []):
            kind = next((k for k in counts if f"test_rows.py::test_{k}[" in report.nodeid and report.when == "call"), None)
            if kind:
                counts[kind][0] += outcome == "passed"
                counts[kind][1] += 1
    if any(total for _, total in counts.values()):
        terminalreporter.write_line("strictness: " + ", ".join(f"{good} of {total} {kind} rows" for kind, (good, total) in counts.items()) + " as they must be")


def last_words(ramjet):
    """What a ramjet that died or complained has said; nothing when all is well with it."""
    try:
        if ramjet.complaints() or ramjet.process.wait(0.2) not in (0, 1, 2):
            return f"status {ramjet.process.poll()}\n{ramjet.stderr()[:6000]}"
    except (OSError, subprocess.TimeoutExpired):
        pass
    return ""


def finish(request, edges):
    """Settles the edges of a test; after a failure they are thrown away, so that one fault shows once."""
    failed = getattr(request.node, "call_failed", True)
    for e in edges:
        try:
            e.settle()
        except AssertionError:
            request.config.edges.drop(e)
            if not failed:
                raise
        else:
            if failed:
                request.config.edges.drop(e)


@pytest.fixture
def edge(request, engine):
    used = request.node.edges = []

    def get(template=harness.ONE, args=(), workers=1):
        e = request.config.edges.get(engine, template, args, workers)
        if e not in used:
            used.append(e)
            e.new_log()
        return e

    yield get
    finish(request, used)


@pytest.fixture
def fresh(request, engine):
    made = request.node.edges = []

    def get(template=harness.ONE, args=(), workers=1, env=None, keep=True, prefix=()):
        made.append(harness.Edge(engine, template, args, workers, env, keep, prefix))
        return made[-1]

    yield get
    failed = getattr(request.node, "call_failed", True)
    for e in made:
        if failed or not e.ramjet.alive():
            e.kill()
        else:
            e.stop()


@pytest.fixture(scope="session", autouse=True)
def all_edges(request):
    yield
    request.config.edges.close()
