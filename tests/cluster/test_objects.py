"""Services, EndpointSlices, changes, conflicts, bad objects."""

import time

import pytest

import harness
from conftest import need
from harness import app, eventually, ingress, service, slice_

A, B, C, D = ("10.77.1.%d:8080" % n for n in (1, 2, 3, 4))
READY = {"ready": True, "serving": True, "terminating": False}
LEAVING = {"ready": False, "serving": True, "terminating": True}
DOWN = {"ready": False, "serving": False, "terminating": False}


@pytest.fixture
def web(kube, ns, host):
    """An Ingress for the host whose service and slices the test makes."""
    kube.create(ingress(ns, "web", [(host, "/", "Prefix", "web", 80)]))


def endpoints(edge, ns, name="web", port=80):
    """Addresses that Ramjet holds for a backend, sorted, with repeats."""
    for b in edge.fetch_json("/admin/upstreams")["backends"]:
        if b["name"] == "%s/%s:%s" % (ns, name, port):
            return sorted(e["address"] for e in b["endpoints"])
    return []


def test_port_by_number_and_by_name(edge, kube, ns, host, up):
    up.add("10.77.1.1", 8081)
    kube.create(service(ns, "web", [("http", 80), ("admin", 9000)]))
    kube.create(slice_(ns, "web", ["10.77.1.1"], ports=[{"name": "http", "port": 8080}, {"name": "admin", "port": 8081}]))
    kube.create(ingress(ns, "web", [(host, "/number", "Prefix", "web", 80), (host, "/name", "Prefix", "web", "http"),
                                    (host, "/admin", "Prefix", "web", "admin"), (host, "/9000", "Prefix", "web", 9000),
                                    (host, "/absent", "Prefix", "web", "metrics"), (host, "/81", "Prefix", "web", 81)]))
    for path, upstream in (("/number", A), ("/name", A), ("/admin", "10.77.1.1:8081"), ("/9000", "10.77.1.1:8081")):
        edge.expect(host, path, upstream)
    assert edge.ask(host, "/absent").status == 503
    assert edge.ask(host, "/81").status == 503
    edge.expect_log(r"(?m)^\S+ warn.*%s/web.*metrics" % ns)


def test_a_port_name_with_several_numbers(edge, kube, ns, host, web, up):
    """Pods of one service may resolve a named target port differently."""
    up.add("10.77.1.2", 8082)
    kube.create(service(ns, "web", [("http", 80)]), slice_(ns, "web", ["10.77.1.1"], 8080, "http", "s1"),
                slice_(ns, "web", ["10.77.1.2"], 8082, "http", "s2"))
    edge.expect_spread(host, "/", [A, "10.77.1.2:8082"])


def test_missing_service_then_present(edge, kube, ns, host, web):
    edge.expect(host, "/", status=503)
    kube.create(service(ns, "web"))
    edge.expect(host, "/", status=503)
    kube.create(slice_(ns, "web", ["10.77.1.1"]))
    edge.expect(host, "/", A)
    kube.delete("Service", ns, "web")
    edge.expect(host, "/", status=503)
    kube.create(service(ns, "web"))
    edge.expect(host, "/", A)


def test_external_name(edge, kube, ns, host, web, dns):
    dns.table["db.outside.test"] = ["10.77.1.5"]
    kube.create(service(ns, "web", [(None, 8080)], type="ExternalName", externalName="db.outside.test"))
    kube.patch("Ingress", ns, "web", {"spec": {"rules": ingress(ns, "web", [(host, "/", "Prefix", "web", 8080)])["spec"]["rules"]}})
    edge.expect(host, "/", "10.77.1.5:8080")


def test_external_name_without_ports(edge, kube, ns, host, dns):
    """The port number of an ExternalName service is taken as it is."""
    dns.table["bare.outside.test"] = ["10.77.1.6"]
    kube.create(service(ns, "web", None, type="ExternalName", externalName="bare.outside.test"),
                ingress(ns, "web", [(host, "/", "Prefix", "web", 8080)]))
    edge.expect(host, "/", "10.77.1.6:8080")


def test_headless(edge, kube, ns, host, web):
    kube.create(service(ns, "web", clusterIP="None"), slice_(ns, "web", ["10.77.1.1", "10.77.1.2"]))
    edge.expect_spread(host, "/", [A, B])


def test_several_slices(edge, kube, ns, host, web):
    kube.create(service(ns, "web"), slice_(ns, "web", ["10.77.1.1"], name="x1"),
                slice_(ns, "web", ["10.77.1.2", "10.77.1.3"], name="x2"))
    edge.expect_spread(host, "/", [A, B, C])
    kube.delete("EndpointSlice", ns, "x2")
    edge.expect_spread(host, "/", [A])


def test_endpoint_in_two_slices(edge, kube, ns, host, web):
    kube.create(service(ns, "web"), slice_(ns, "web", ["10.77.1.1", "10.77.1.2"], name="x1"),
                slice_(ns, "web", ["10.77.1.2", "10.77.1.3"], name="x2"))
    eventually(lambda: endpoints(edge, ns) == [A, B, C], 5, "each endpoint once")
    kube.delete("EndpointSlice", ns, "x1")
    eventually(lambda: endpoints(edge, ns) == [B, C], 5, "what another slice holds stays")
    edge.expect_spread(host, "/", [B, C])


def test_slice_of_another_service_or_namespace(edge, kube, ns, host, web):
    kube.namespace(ns + "-b")
    kube.create(service(ns, "web"), slice_(ns, "web", ["10.77.1.1"], name="x1"), slice_(ns, "other", ["10.77.1.2"], name="x2"),
                slice_(ns + "-b", "web", ["10.77.1.3"], name="x3"))
    edge.expect(host, "/", A)
    assert endpoints(edge, ns) == [A]
    kube.delete_all("EndpointSlice", ns + "-b")


def test_slice_moves_to_another_service(edge, kube, ns, host, web):
    kube.create(service(ns, "web"), slice_(ns, "web", ["10.77.1.1"], name="x1"))
    edge.expect(host, "/", A)
    kube.patch("EndpointSlice", ns, "x1", {"metadata": {"labels": {"kubernetes.io/service-name": "other"}}})
    edge.expect(host, "/", status=503)


CONDITIONS = [
    ("nil conditions are ready", [("10.77.1.1", None)], [A]),
    ("empty conditions are ready", [("10.77.1.1", {})], [A]),
    ("ready ones only", [("10.77.1.1", READY), ("10.77.1.2", DOWN), ("10.77.1.3", LEAVING)], [A]),
    ("serving and terminating when none is ready", [("10.77.1.1", DOWN), ("10.77.1.2", LEAVING)], [B]),
    ("terminating with serving nil", [("10.77.1.2", {"ready": False, "terminating": True})], [B]),
    ("none", [("10.77.1.1", DOWN)], []),
    ("serving but not terminating is not enough", [("10.77.1.1", {"ready": False, "serving": True})], []),
    ("terminating and not serving", [("10.77.1.1", {"ready": False, "serving": False, "terminating": True})], []),
    ("ready while terminating", [("10.77.1.1", {"ready": True, "terminating": True})], [A]),
    ("the first address only", [(["10.77.1.1", "10.77.1.2"], READY)], [A]),
]


@pytest.mark.parametrize("items,answered", [c[1:] for c in CONDITIONS], ids=[c[0].replace(" ", "-") for c in CONDITIONS])
def test_conditions(edge, kube, ns, host, items, answered):
    kube.create(*app(ns, "mark", "10.77.1.9"), service(ns, "web"))
    kube.create(slice_(ns, "web", items))
    kube.create(ingress(ns, "web", [(host, "/", "Prefix", "web", 80), (host, "/mark", "Prefix", "mark", 80)]))
    edge.expect(host, "/mark", "10.77.1.9:8080")
    if answered:
        edge.expect_spread(host, "/", answered)
    else:
        edge.expect(host, "/", status=503)
    eventually(lambda: endpoints(edge, ns) == answered or not answered, 5)


def test_terminating_fallback_across_slices(edge, kube, ns, host, web):
    """A ready endpoint in one slice keeps the terminating ones of the others out."""
    kube.create(service(ns, "web"), slice_(ns, "web", [("10.77.1.1", LEAVING)], name="x1"),
                slice_(ns, "web", [("10.77.1.2", READY)], name="x2"))
    edge.expect_spread(host, "/", [B])
    kube.replace(slice_(ns, "web", [("10.77.1.2", DOWN)], name="x2"))
    edge.expect_spread(host, "/", [A])
    kube.replace(slice_(ns, "web", [("10.77.1.2", READY)], name="x2"))
    edge.expect_spread(host, "/", [B])


def test_dual_stack_counts_pods_once(edge, kube, ns, host, web, up):
    need(harness.has_ipv6(), "no IPv6 here")
    up.add("fd77::5")
    kube.create(service(ns, "web"), slice_(ns, "web", ["10.77.1.1"], name="x4"),
                slice_(ns, "web", ["fd77::5"], name="x6", family="IPv6"))
    edge.expect(host, "/")
    eventually(lambda: len(endpoints(edge, ns)) == 1, 5, "one family")


def test_ipv6_only(edge, kube, ns, host, web, up):
    need(harness.has_ipv6(), "no IPv6 here")
    kube.create(service(ns, "web"), slice_(ns, "web", ["fd77::5"], name="x6", family="IPv6"))
    edge.expect(host, "/", up.add("fd77::5"))


def test_endpoints_change(edge, kube, ns, host, web):
    kube.create(service(ns, "web"), slice_(ns, "web", ["10.77.1.1"], name="x1"))
    edge.expect(host, "/", A)
    for n in (2, 3, 4, 1):
        kube.replace(slice_(ns, "web", ["10.77.1.%d" % n], name="x1"))
        edge.expect(host, "/", "10.77.1.%d:8080" % n)
        assert {edge.ask(host).upstream for _ in range(20)} == {"10.77.1.%d:8080" % n}


def test_no_request_fails_while_endpoints_change(edge, kube, ns, host, web):
    kube.create(service(ns, "web"), slice_(ns, "web", ["10.77.1.1", "10.77.1.2"], name="x1"))
    edge.expect_spread(host, "/", [A, B])
    for i in range(40):
        kube.replace(slice_(ns, "web", ["10.77.1.%d" % (1 + i % 4), "10.77.1.%d" % (1 + (i + 1) % 4)], name="x1"))
        for _ in range(5):
            assert edge.ask(host).status == 200


def test_ingress_changes_and_goes(edge, kube, ns, host):
    kube.create(*app(ns, "a", "10.77.1.1"), *app(ns, "b", "10.77.1.2"))
    kube.create(ingress(ns, "web", [(host, "/", "Prefix", "a", 80)]))
    edge.expect(host, "/", A)
    kube.replace(ingress(ns, "web", [(host, "/", "Prefix", "b", 80)]))
    edge.expect(host, "/", B)
    kube.replace(ingress(ns, "web", [(host, "/only", "Exact", "b", 80)]))
    edge.expect(host, "/", status=404)
    edge.expect(host, "/only", B)
    kube.replace(ingress(ns, "web", [("new." + host, "/", "Prefix", "a", 80)]))
    edge.expect("new." + host, "/", A)
    assert edge.ask(host, "/only").status == 404
    kube.delete("Ingress", ns, "web")
    edge.expect("new." + host, "/", status=404)


def test_an_equal_change_publishes_nothing(ramjet, kube, ns, host):
    edge = ramjet(watch_namespace=ns)
    kube.create(*app(ns, "web", "10.77.1.1"), *app(ns, "mark", "10.77.1.2"))
    kube.create(ingress(ns, "web", [(host, "/", "Prefix", "web", 80)]))
    edge.expect(host, "/", A)
    eventually(lambda: any(b["name"].startswith(ns + "/web") for b in edge.fetch_json("/admin/upstreams")["backends"]), 5)
    before = edge.generation()
    events = edge.metric("ramjet_kube_events_total") or 0
    for i in range(5):
        kube.patch("Ingress", ns, "web", {"metadata": {"labels": {"unrelated": str(i)}}})
    eventually(lambda: (edge.metric("ramjet_kube_events_total") or 0) >= events + 5, 5, "the events were seen")
    kube.create(ingress(ns, "more", [("more." + host, "/", "Prefix", "mark", 80)]))
    edge.expect("more." + host, "/", B)
    assert edge.generation() == before + 1


def test_conflict_oldest_wins(edge, kube, ns, host):
    kube.create(*app(ns, "a", "10.77.1.1"), *app(ns, "b", "10.77.1.2"))
    made = kube.create(ingress(ns, "zz-old", [(host, "/", "Prefix", "a", 80)]))["metadata"]["creationTimestamp"]
    edge.expect(host, "/", A)
    eventually(lambda: time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()) > made, 3, "the next second")
    kube.create(ingress(ns, "aa-new", [(host, "/", "Prefix", "b", 80), ("mark." + host, "/", "Prefix", "b", 80)]))
    edge.expect("mark." + host, "/", B)
    assert edge.ask(host).upstream == A, "the older Ingress wins, whatever its name"
    kube.delete("Ingress", ns, "zz-old")
    edge.expect(host, "/", B)
    kube.create(ingress(ns, "aa-newer", [(host, "/", "Prefix", "a", 80), ("mark2." + host, "/", "Prefix", "a", 80)]))
    edge.expect("mark2." + host, "/", A)
    assert edge.ask(host).upstream == B, "coming back makes it young"


def test_conflict_of_equal_age_goes_by_name(edge, kube, ns, host):
    kube.create(*app(ns, "a", "10.77.1.1"), *app(ns, "b", "10.77.1.2"))
    for attempt in range(10):
        one = kube.create(ingress(ns, "bbb-%d" % attempt, [(host, "/%d" % attempt, "Prefix", "b", 80)]))
        two = kube.create(ingress(ns, "aaa-%d" % attempt, [(host, "/%d" % attempt, "Prefix", "a", 80)]))
        if one["metadata"]["creationTimestamp"] == two["metadata"]["creationTimestamp"]:
            break
    edge.expect(host, "/%d" % attempt, A)


def test_conflict_of_one_path_leaves_the_others(edge, kube, ns, host):
    kube.create(*app(ns, "a", "10.77.1.1"), *app(ns, "b", "10.77.1.2"))
    made = kube.create(ingress(ns, "old", [(host, "/x", "Prefix", "a", 80)]))["metadata"]["creationTimestamp"]
    eventually(lambda: time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()) > made, 3, "the next second")
    kube.create(ingress(ns, "new", [(host, "/x", "Prefix", "b", 80), (host, "/y", "Prefix", "b", 80)]))
    edge.expect(host, "/y", B)
    assert edge.ask(host, "/x").upstream == A
    edge.expect_log(r"%s/new.*%s/old|%s/old.*%s/new" % (ns, ns, ns, ns))


def test_resource_backend_sends_nothing_elsewhere(edge, kube, ns, host):
    kube.create(*app(ns, "a", "10.77.1.1"))
    obj = ingress(ns, "web", [(host, "/ok", "Prefix", "a", 80)])
    obj["spec"]["rules"][0]["http"]["paths"].append({"path": "/bucket", "pathType": "Prefix", "backend": {
        "resource": {"apiGroup": "storage.test", "kind": "Bucket", "name": "static"}}})
    kube.create(obj)
    edge.expect(host, "/ok", A)
    assert edge.ask(host, "/bucket").status in (500, 503)
    edge.expect_log(r"(?m)^\S+ warn.*%s/web" % ns)


def test_slice_without_ports_harms_nobody(edge, kube, ns, host):
    kube.create(*app(ns, "a", "10.77.1.1"), service(ns, "web"))
    kube.create(slice_(ns, "web", ["10.77.1.2"], ports=[]))
    kube.create(ingress(ns, "web", [(host, "/a", "Prefix", "a", 80), (host, "/web", "Prefix", "web", 80)]))
    edge.expect(host, "/a", A)
    assert edge.ask(host, "/web").status in (502, 503)


def test_watch_namespace(ramjet, kube, ns, host):
    other = kube.namespace(ns + "-other")
    third = kube.namespace(ns + "-third")
    for n, space in enumerate((ns, other, third)):
        kube.create(*app(space, "web", "10.77.1.%d" % (n + 1)), ingress(space, "web", [("%d.%s" % (n, host), "/", "Prefix", "web", 80)]))
    r = ramjet(watch_namespace=ns + "," + other)
    r.expect("0." + host, "/", A)
    r.expect("1." + host, "/", B)
    assert r.ask("2." + host).status == 404
    assert not [x for x in r.routes() if x["source"].startswith(third + "/")]
    for space in (other, third):
        for kind in ("Ingress", "EndpointSlice", "Service"):
            kube.delete_all(kind, space)
