"""Faults of the API server that last a while (faults.py): the store is right in the end, the log tells each once, nothing spins, and the
requests beside them do not notice."""

import pytest

import faults
from conftest import publish
from harness import Ramjet, Steady, ingress_class
from scripted import Scripted

A = "10.77.1.1:8080"
SECONDS = 3
ALWAYS = {"403 for one kind", "410 to every watch of one kind", "CA replaced", "certificate expired", "flapping", "killed", "token expired", "watches break at once"}


@pytest.fixture
def stage(ca, other_ca, tmp_path):
    server = Scripted(ca)
    server.put(ingress_class("ramjet"))
    publish(server, "web", "web.test", "10.77.1.1")
    yield faults.Stage(server, ca, other_ca, str(tmp_path / "account"))
    server.close()


@pytest.mark.parametrize("name", [n if n in ALWAYS else pytest.param(n, marks=pytest.mark.slow) for n in sorted(faults.FAULTS)])
def test_fault(engine, stage, up, name):
    fault = faults.FAULTS[name]
    with Ramjet(engine, **stage.options()) as r:
        r.expect("web.test", "/", A)
        with Steady(r, "web.test", rate=100, conns=2, idle=5) as load:
            got = faults.run_fault(fault, stage, r, load, SECONDS, 1)
            figures = load.stop()
        assert r.is_ready()
    assert sum(w["failed"] for w in figures["windows"]) == 0 and figures["idle_lost"] == 0, figures
    assert len(got["told"]) <= fault.max_told, got["told"]
    assert not fault.is_visible or fault.max_told == 0 or got["told"], "the log says nothing of it"
    assert len(got["recovered"]) <= 1, got["recovered"]
    assert got["cpu"] < got["idle_cpu"] + 0.15, got


@pytest.mark.parametrize("name", sorted(faults.REAL_FAULTS))
def test_fault_of_a_real_server(engine, kube, api, other_ca, ns, up, tmp_path, name):
    stage = faults.RealStage(api, kube, other_ca, ns, str(tmp_path / "account"))
    try:
        with Ramjet(engine, watch_namespace=ns, **stage.options()) as r:
            r.expect("web." + ns, "/", A)
            with Steady(r, "web." + ns, rate=100, conns=2, idle=5) as load:
                got = faults.run_real_fault(faults.REAL_FAULTS[name], stage, r, load, SECONDS, 1)
                figures = load.stop()
    finally:
        stage.close()
    assert sum(w["failed"] for w in figures["windows"]) == 0 and figures["idle_lost"] == 0, figures
    assert 1 <= len(got["told"]) <= 6, got["told"]              # a server that starts may refuse each kind in its own words
    assert len(got["recovered"]) == 1, got["recovered"]
    assert got["cpu"] < got["idle_cpu"] + 0.15, got
