"""Ingress matching: hosts, path types, precedence, default backends."""

import pytest

from harness import app, ingress

A, B, C = "10.77.1.1:8080", "10.77.1.2:8080", "10.77.1.3:8080"


@pytest.fixture
def apps(kube, ns):
    """Services a, b and c, each with one upstream."""
    for name, address in (("a", "10.77.1.1"), ("b", "10.77.1.2"), ("c", "10.77.1.3")):
        kube.create(*app(ns, name, address))
    return {"a": A, "b": B, "c": C}


# rules (type, path, service); then requests and the service that answers, None for 404
TABLE = [
    ("prefix / takes all", [("Prefix", "/", "a")], {"/": "a", "/x": "a", "/x/y/": "a", "//": "a"}),
    ("exact", [("Exact", "/foo", "a")], {"/foo": "a", "/bar": None, "/foo/": None, "/foo/x": None, "/": None}),
    ("exact with slash", [("Exact", "/foo/", "a")], {"/foo/": "a", "/foo": None}),
    ("prefix", [("Prefix", "/foo", "a")], {"/foo": "a", "/foo/": "a", "/foo/x": "a", "/foobar": None, "/": None}),
    ("prefix with slash", [("Prefix", "/foo/", "a")], {"/foo": "a", "/foo/": "a", "/foo/x": "a", "/foobar": None}),
    ("prefix of an element", [("Prefix", "/aaa/bb", "a")], {"/aaa/bb": "a", "/aaa/bbb": None}),
    ("prefix by element", [("Prefix", "/aaa/bbb", "a")],
     {"/aaa/bbb": "a", "/aaa/bbb/": "a", "/aaa/bbb/ccc": "a", "/aaa/bbbxyz": None, "/aaa": None}),
    ("prefix by element with slash", [("Prefix", "/aaa/bbb/", "a")], {"/aaa/bbb": "a", "/aaa/bbb/ccc": "a"}),
    ("longest of two", [("Prefix", "/", "a"), ("Prefix", "/aaa", "b")], {"/aaa/ccc": "b", "/ccc": "a", "/aaa": "b"}),
    ("longest of three", [("Prefix", "/", "a"), ("Prefix", "/aaa", "b"), ("Prefix", "/aaa/bbb", "c")],
     {"/aaa/bbb": "c", "/aaa/bbb/x": "c", "/aaa/x": "b", "/x": "a"}),
    ("no match", [("Prefix", "/aaa", "a")], {"/aaa": "a", "/ccc": None}),
    ("exact before prefix", [("Prefix", "/foo", "a"), ("Exact", "/foo", "b")], {"/foo": "b", "/foo/": "a", "/foo/x": "a"}),
    ("exact before prefix, other order", [("Exact", "/foo", "b"), ("Prefix", "/foo", "a")], {"/foo": "b", "/foo/x": "a"}),
    ("longer prefix, shorter exact", [("Exact", "/foo", "a"), ("Prefix", "/foo/bar", "b")], {"/foo": "a", "/foo/bar": "b"}),
    ("case counts", [("Prefix", "/Foo", "a"), ("Prefix", "/foo", "b")], {"/Foo": "a", "/foo": "b", "/FOO": None}),
    ("query does not count", [("Exact", "/foo", "a")], {"/foo?x=/bar": "a", "/foo?": "a", "/x?/foo": None}),
    ("implementation specific is prefix", [("ImplementationSpecific", "/foo", "a")], {"/foo": "a", "/foo/x": "a", "/x": None}),
    ("implementation specific without path", [("ImplementationSpecific", None, "a")], {"/": "a", "/x": "a"}),
]


@pytest.mark.parametrize("rules,requests", [t[1:] for t in TABLE], ids=[t[0].replace(" ", "-") for t in TABLE])
def test_path(edge, kube, ns, host, apps, rules, requests):
    kube.create(ingress(ns, "web", [(host, path, kind, name, 80) for kind, path, name in rules]))
    for path, name in sorted(requests.items(), key=lambda r: r[1] is None):     # what must match first
        if name:
            edge.expect(host, path, apps[name])
        else:
            assert edge.ask(host, path).status == 404, path


def test_hosts(edge, kube, ns, host, apps):
    kube.create(ingress(ns, "web", [("exact." + host, "/foo", "Prefix", "a", 80), ("*." + host, "/", "Prefix", "b", 80)]))
    edge.expect("x." + host, "/", B)
    edge.expect("exact." + host, "/foo", A)
    assert edge.ask("x." + host + ":8080").upstream == B, "the port does not count"
    assert edge.ask(("X." + host).upper()).upstream == B, "the case of a host does not count"
    assert edge.ask("EXACT." + host, "/foo").upstream == A
    assert edge.ask(host).status == 404, "a wildcard stands for one label"
    assert edge.ask("a.b." + host).status == 404, "a wildcard stands for exactly one label"
    assert edge.ask("exact." + host, "/bar").status == 404, "no fall-through from an exact host to a wildcard"
    assert edge.ask("other-" + host).status == 404


def test_longer_wildcard_is_its_own_host(edge, kube, ns, host, apps):
    kube.create(ingress(ns, "web", [("*.b." + host, "/", "Prefix", "a", 80), ("*." + host, "/", "Prefix", "b", 80)]))
    edge.expect("x.b." + host, "/", A)
    edge.expect("b." + host, "/", B)
    assert edge.ask("x.y.b." + host).status == 404


def test_rules_of_several_ingresses_merge(edge, kube, ns, host, apps):
    kube.create(ingress(ns, "one", [(host, "/a", "Prefix", "a", 80)]))
    kube.create(ingress(ns, "two", [(host, "/b", "Prefix", "b", 80)]))
    edge.expect(host, "/a", A)
    edge.expect(host, "/b", B)
    assert edge.ask(host, "/").status == 404


def test_any_host(ramjet, kube, ns, host, apps):
    r = ramjet(watch_namespace=ns)
    kube.create(ingress(ns, "any", [(None, "/any", "Prefix", "a", 80), (host, "/own", "Prefix", "b", 80)]))
    r.expect("whatever.test", "/any", A)
    r.expect(host, "/own", B)
    r.expect("10.77.0.2", "/any", A)
    assert r.ask(host, "/any").status == 404, "an exact host takes its requests alone"


def test_default_backend_takes_all(ramjet, kube, ns, apps):
    r = ramjet(watch_namespace=ns)
    assert r.ask("x.test").status == 404
    kube.create(ingress(ns, "all", default=("c", 80)))
    r.expect("x.test", "/", C)
    r.expect("y.test", "/any/path", C)


def test_default_backend_takes_the_rest(ramjet, kube, ns, host, apps):
    r = ramjet(watch_namespace=ns)
    kube.create(ingress(ns, "web", [(host, "/a", "Prefix", "a", 80)], default=("c", 80)))
    r.expect(host, "/a", A)
    r.expect(host, "/other", C)
    r.expect("other.test", "/", C)
    kube.patch("Ingress", ns, "web", {"spec": {"defaultBackend": None}})
    r.expect(host, "/other", status=404)
    r.expect("other.test", "/", status=404)
    r.expect(host, "/a", A)


def test_default_backend_service_option(ramjet, kube, ns, host, apps):
    r = ramjet(watch_namespace=ns, default_backend_service=ns + "/b:80")
    kube.create(ingress(ns, "web", [(host, "/a", "Prefix", "a", 80)]))
    r.expect(host, "/a", A)
    r.expect("other.test", "/", B)


def test_routes_are_listed(edge, kube, ns, host, apps):
    kube.create(ingress(ns, "web", [(host, "/a", "Prefix", "a", 80), (host, "/b", "Exact", "b", 80)]))
    edge.expect(host, "/a", A)
    mine = sorted((r for r in edge.routes() if r["host"] == host), key=lambda r: r["path"])
    assert [(r["path"], r["type"].lower(), r["backend"], r["source"]) for r in mine] == [
        ("/a", "prefix", ns + "/a:80", ns + "/web"), ("/b", "exact", ns + "/b:80", ns + "/web")]
