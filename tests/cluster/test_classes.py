"""Which Ingresses are ours."""

import pytest

from harness import app, eventually, ingress, ingress_class

A = "10.77.1.1:8080"


@pytest.fixture
def classes(kube):
    """Creates IngressClasses and removes them after the test."""
    made = []

    def make(obj):
        made.append(obj["metadata"]["name"])
        return kube.create(obj)
    yield make
    for name in made:
        kube.delete("IngressClass", None, name, missing_ok=True)


@pytest.fixture
def show(kube, ns, host):
    """Creates an Ingress for NAME.host; the names of classes are the test's own (prefix ns)."""
    kube.create(*app(ns, "web", "10.77.1.1"))

    def make(name, **more):
        kube.create(ingress(ns, name, [(name + "." + host, "/", "Prefix", "web", 80)], **more))
        return name + "." + host
    return make


def own(ns, **more):
    """Options of a Ramjet whose class is the test's own."""
    return dict(watch_namespace=ns, ingress_class=ns + "-class", controller_class="test.io/" + ns, **more)


OLD = "kubernetes.io/ingress.class"


def test_class_by_controller(ramjet, classes, show, ns):
    classes(ingress_class(ns + "-class", "test.io/" + ns))
    classes(ingress_class(ns + "-second", "test.io/" + ns))
    classes(ingress_class(ns + "-foreign", "someone.else/controller"))
    r = ramjet(**own(ns))
    first, second = show("first", cls=ns + "-class"), show("second", cls=ns + "-second")
    foreign, unknown, none = show("foreign", cls=ns + "-foreign"), show("unknown", cls=ns + "-unknown"), show("none", cls=None)
    last = show("last", cls=ns + "-class")
    for name in (first, second, last):
        r.expect(name, "/", A)
    for name in (foreign, unknown, none):
        assert r.ask(name).status == 404, name


def test_old_annotation(ramjet, classes, show, ns):
    classes(ingress_class(ns + "-class", "test.io/" + ns))
    r = ramjet(**own(ns))
    ours = show("ours", cls=None, annotations={OLD: ns + "-class"})
    foreign = show("foreign", cls=None, annotations={OLD: "nginx"})
    last = show("last", cls=ns + "-class")
    r.expect(ours, "/", A)
    r.expect(last, "/", A)
    assert r.ask(foreign).status == 404


def test_class_comes_and_goes(ramjet, kube, classes, show, ns):
    r = ramjet(**own(ns))
    name = show("web", cls=ns + "-late")
    assert r.ask(name).status == 404
    classes(ingress_class(ns + "-late", "test.io/" + ns))
    r.expect(name, "/", A)
    kube.delete("IngressClass", None, ns + "-late")
    r.expect(name, "/", status=404)


def test_ingress_changes_class(ramjet, kube, classes, show, ns):
    classes(ingress_class(ns + "-class", "test.io/" + ns))
    classes(ingress_class(ns + "-foreign", "someone.else/controller"))
    r = ramjet(**own(ns))
    name = show("web", cls=ns + "-class")
    r.expect(name, "/", A)
    kube.patch("Ingress", ns, "web", {"spec": {"ingressClassName": ns + "-foreign"}})
    r.expect(name, "/", status=404)
    kube.patch("Ingress", ns, "web", {"spec": {"ingressClassName": ns + "-class"}})
    r.expect(name, "/", A)


def test_default_class(ramjet, kube, classes, show, ns):
    """An Ingress made before the default class existed has no class name: it is ours all the same."""
    r = ramjet(**own(ns))
    before = show("before", cls=None)
    assert r.ask(before).status == 404
    classes(ingress_class(ns + "-class", "test.io/" + ns, is_default=True))
    r.expect(before, "/", A)
    # The admission plugin writes the class name once its own informer knows the class.

    def named():
        kube.delete("Ingress", ns, "after", missing_ok=True)
        made = kube.create(ingress(ns, "after", [("after.test", "/", "Prefix", "web", 80)], cls=None))
        return made["spec"].get("ingressClassName") == ns + "-class"
    eventually(named, 5, "class written at creation", every=0.05)
    r.expect("after.test", "/", A)
    kube.patch("IngressClass", None, ns + "-class", {"metadata": {"annotations": {"ingressclass.kubernetes.io/is-default-class": "false"}}})
    r.expect(before, "/", status=404)
    assert r.ask("after.test").upstream == A


def test_watch_ingress_without_class(ramjet, classes, show, ns):
    classes(ingress_class(ns + "-class", "test.io/" + ns))
    r = ramjet(**own(ns, watch_ingress_without_class=True))
    none, foreign, last = show("none", cls=None), show("foreign", cls=None, annotations={OLD: "nginx"}), show("last", cls=ns + "-class")
    r.expect(none, "/", A)
    r.expect(last, "/", A)
    assert r.ask(foreign).status == 404


def test_takes_over_ingress_nginx(ramjet, classes, show, ns):
    classes(ingress_class(ns + "-nginx", "k8s.io/ingress-nginx"))
    r = ramjet(watch_namespace=ns, controller_class="k8s.io/ingress-nginx", ingress_class="nginx")
    r.expect(show("web", cls=ns + "-nginx"), "/", A)
    r.expect(show("old", cls=None, annotations={OLD: "nginx"}), "/", A)
