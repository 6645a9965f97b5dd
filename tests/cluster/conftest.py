"""Fixtures of the cluster tests. Run them with tests/cluster/run."""

import ctypes
import os
import shutil
import sys
import time

import pytest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import harness
import scripted
from harness import ENGINES, IN_NS, WORK, CA, ApiServer, Dns, Ramjet, Upstreams, app, eventually, ingress, ingress_class


def need(condition, what):
    """A tool or right that the machine lacks: a skip here, a failure in CI."""
    if not condition:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(what)


def uring_works():
    libc = ctypes.CDLL(None, use_errno=True)
    fd = libc.syscall(425, 4, ctypes.create_string_buffer(120))      # io_uring_setup
    if fd >= 0:
        os.close(fd)
    return fd >= 0


# ------------------------------------------------------------------ session

def pytest_addoption(parser):
    parser.addoption("--slow", action="store_true", help="also run the tests marked slow")


def pytest_collection_modifyitems(config, items):
    slow = [] if config.getoption("--slow") else [i for i in items if i.get_closest_marker("slow")]
    config.hook.pytest_deselected(items=slow)
    items[:] = [i for i in items if i not in slow]


def pytest_configure(config):
    config.addinivalue_line("markers", "slow: takes a minute or more; run with --slow")
    if not os.environ.get(IN_NS) and not config.option.collectonly:
        pytest.exit("the cluster tests need a network namespace of their own: run tests/cluster/run", 2)
    if not config.option.collectonly:
        shutil.rmtree(WORK, ignore_errors=True)
        os.makedirs(WORK)


_counts = {"passed": 0, "failed": 0, "skipped": 0}


def pytest_runtest_logreport(report):
    if report.when == "call" or report.outcome != "passed":
        _counts[report.outcome] += 1


def pytest_collectreport(report):
    if report.failed:
        _counts["failed"] += 1


def pytest_sessionfinish():
    if os.path.isdir(WORK):
        with open(os.path.join(WORK, "summary"), "w") as f:
            f.write("%(passed)d passed, %(failed)d failed, %(skipped)d skipped\n" % _counts)


@pytest.fixture(scope="session", params=os.environ.get("RAMJET_CLUSTER_ENGINES", " ".join(ENGINES)).split())
def engine(request):
    if request.param == "uring":
        need(uring_works(), "io_uring is refused here")
    return request.param


@pytest.fixture(scope="session")
def ca():
    return CA(os.path.join(WORK, "ca"))


@pytest.fixture(scope="session")
def other_ca():
    return CA(os.path.join(WORK, "other-ca"), "another CA")


@pytest.fixture(scope="session")
def api(ca):
    """The real API server. A test that kills it must start it again."""
    server = ApiServer(os.path.join(WORK, "api"), ca).start()
    client = server.client()
    client.create(ingress_class("ramjet"))
    client.close()
    yield server
    server.stop()


@pytest.fixture
def kube(api):
    client = api.client()
    yield client
    client.close()


@pytest.fixture(scope="session")
def admin_kubeconfig(api):
    return harness.kubeconfig(os.path.join(WORK, "admin.kubeconfig"), api.url, ca_data=api.ca.cert, token=api.ADMIN)


@pytest.fixture(scope="session")
def up():
    """Upstreams 10.77.1.1 to 10.77.1.9 on port 8080; more with up.add()."""
    servers = Upstreams()
    for n in range(1, 10):
        servers.add("10.77.1.%d" % n)
    yield servers
    servers.close()


@pytest.fixture(scope="session")
def dns():
    server = Dns()
    yield server
    server.close()


# ----------------------------------------------------------------- per test

_number = [0]


@pytest.fixture
def ns(kube):
    """A Kubernetes namespace of the test, emptied afterwards."""
    _number[0] += 1
    name = kube.namespace("t%03d" % _number[0])
    yield name
    for kind in ("Ingress", "EndpointSlice", "Service"):
        kube.delete_all(kind, name)


@pytest.fixture
def host():
    """A host name that no other test uses."""
    _number[0] += 1
    return "h%03d.example.com" % _number[0]


@pytest.fixture(scope="session")
def edge(engine, api, admin_kubeconfig, up, dns):
    """One Ramjet per engine that watches all namespaces, for tests with hosts of their own."""
    with Ramjet(engine, kubeconfig=admin_kubeconfig, resolver=harness.DNS_IP, log_level="debug") as r:
        yield r


def makes(engine, config):
    """A fixture's value: make(...), whose Ramjets end with the test. config() is the kubeconfig of those that name none."""
    made = []

    def make(start=True, ready=True, **options):
        if "kubeconfig" not in options:
            options["kubeconfig"] = config()
        r = Ramjet(engine, **options)
        made.append(r)
        return r.start(ready=ready) if start else r
    yield make
    for r in made:
        r.stop()


@pytest.fixture
def ramjet(engine, api, admin_kubeconfig, up):
    """Makes Ramjets of the test's own; they end with it."""
    yield from makes(engine, lambda: admin_kubeconfig)


@pytest.fixture
def fake(ca):
    """A scripted API server with one class, one application and one Ingress:
    web.test/ is answered by 10.77.1.1."""
    server = scripted.Scripted(ca)
    server.put(ingress_class("ramjet"))
    publish(server, "web", "web.test", "10.77.1.1")
    yield server
    server.close()


def publish(server, name, host, address, path="/", ns="shop", event=True, **more):
    """Puts service, slice and Ingress of one application into the scripted server."""
    server.put(*app(ns, name, address), event=event)
    server.put(ingress(ns, name, [(host, path, "Prefix", name, 80)], **more), event=event)


@pytest.fixture
def on_fake(engine, fake, up):
    """Makes Ramjets on the scripted server."""
    yield from makes(engine, lambda: scripted.scripted_kubeconfig(fake, WORK))


@pytest.fixture(scope="session", autouse=True)
def silent_watches(request):
    """Starts the scenario of test_b47_silent_watch_is_replaced early: it takes up to 40 s, and
    the other tests run meanwhile."""
    engines = sorted({i.callspec.params["engine"] for i in request.session.items
                      if i.name.startswith("test_b47_silent_watch") and hasattr(i, "callspec")})
    if not engines:
        yield {}
        return
    request.getfixturevalue("up")
    running = {}
    for name in engines:
        if name == "uring" and not uring_works():
            continue
        server = scripted.Scripted(request.getfixturevalue("ca"))
        server.put(ingress_class("ramjet"))
        publish(server, "web", "web.test", "10.77.1.1")
        r = Ramjet(name, kubeconfig=scripted.scripted_kubeconfig(server, WORK))
        running[name] = (server, r, None)
        try:
            r.start()
            eventually(lambda: {w.request.kind for w in server.watches} >= {"Ingress", "Service", "EndpointSlice"},
                       10, "watches open")
            server.silence()
            publish(server, "late", "late.test", "10.77.1.2")
            running[name] = (server, r, time.monotonic())
        except (AssertionError, RuntimeError, OSError):
            pass                        # reported by the test itself
    yield running
    for server, r, _ in running.values():
        r.stop()
        server.close()
