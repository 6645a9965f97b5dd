"""A watch that says nothing any more while TCP is alive. The scenario starts with
the session (conftest.silent_watches), because noticing it may take 40 s."""

import time


def test_silent_watch_is_noticed(engine, silent_watches):
    server, r, since = silent_watches[engine]
    assert since, "the scenario could not start:\n" + r.log()
    r.expect("late.test", "/", "10.77.1.2:8080", timeout=max(1, since + 40 - time.monotonic()))
    assert r.ask("web.test").upstream == "10.77.1.1:8080"
