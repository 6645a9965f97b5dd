"""What a real API server does not do on demand: faults of lists and watches, odd objects."""

import json
import re
import time

import pytest

from conftest import publish
from harness import app, eventually, ingress, ingress_class, service, slice_
from scripted import cut_list, raw_body, raw_bytes, status

A, B, C = "10.77.1.1:8080", "10.77.1.2:8080", "10.77.1.3:8080"
KINDS = ("Ingress", "IngressClass", "Service", "EndpointSlice")


def watching(fake):
    eventually(lambda: {w.request.kind for w in fake.watches} >= set(KINDS), 20, "every watch is open")


def next_change(fake, r, n=2, timeout=20):
    """A new application is served: the stream of changes works (again)."""
    name = "after%d" % n
    publish(fake, name, name + ".test", "10.77.1.%d" % n)
    r.expect(name + ".test", "/", "10.77.1.%d:8080" % n, timeout=timeout)
    assert r.ask("web.test").upstream == A


def resident_kb(r):
    with open("/proc/%d/status" % r.process.pid) as f:
        return int(re.search(r"VmRSS:\s+(\d+)", f.read()).group(1))


# ------------------------------------------------------------ normal protocol

def test_watch_begins_where_the_list_ended(on_fake, fake):
    r = on_fake()
    watching(fake)
    for kind in KINDS:
        q = fake.seen("watch", kind)[0]
        assert q.query.get("allowWatchBookmarks") in ("true", "1"), q
        assert int(q.query["timeoutSeconds"]) > 0, q
        assert q.query["resourceVersion"] == str(fake.rv), q
        assert fake.count("list", kind) <= 1
    next_change(fake, r)


def test_watch_that_ends_goes_on_without_a_list(on_fake, fake):
    r = on_fake()
    watching(fake)
    lists = fake.count("list")
    for n in (2, 3, 4):
        fake.drop_watches("end")
        next_change(fake, r, n)
    watching(fake)
    assert fake.count("list") == lists


@pytest.mark.parametrize("how", ["fin", "reset", "mid-chunk"])
def test_watch_that_breaks_goes_on(on_fake, fake, how):
    r = on_fake()
    watching(fake)
    fake.drop_watches(how)
    next_change(fake, r)


def test_bookmark_moves_the_resource_version(on_fake, fake):
    r = on_fake()
    watching(fake)
    rv = fake.bookmark()
    fake.compact()                      # only the bookmark is young enough now
    fake.oldest = int(rv)
    lists, watches = fake.count("list"), fake.count("watch")
    fake.drop_watches("end")
    eventually(lambda: fake.count("watch") >= watches + 4, 20, "watching again")
    assert {q.query["resourceVersion"] for q in fake.seen("watch")[watches:]} == {rv}
    assert fake.count("list") == lists
    next_change(fake, r)


def test_resource_version_is_opaque(on_fake, fake):
    """Whatever the server calls it, it comes back as it was."""
    r = on_fake()
    watching(fake)
    odd = 'v/1+2=3&x y%41"'
    watches = fake.count("watch")
    fake.bookmark(rv=odd)
    fake.drop_watches("end")
    eventually(lambda: fake.count("watch") >= watches + 4, 20, "watching again")
    assert {q.query["resourceVersion"] for q in fake.seen("watch")[watches:watches + 4]} == {odd}
    next_change(fake, r)


def test_list_in_pages(on_fake, fake):
    for n in range(9):
        publish(fake, "p%d" % n, "p%d.test" % n, "10.77.1.%d" % (n + 1))
    fake.page_size = 2
    r = on_fake()
    for n in range(9):
        assert r.ask("p%d.test" % n).upstream == "10.77.1.%d:8080" % (n + 1)
    assert fake.count("list", "Ingress") == 5
    assert all(int(q.query.get("limit", 0)) > 0 for q in fake.seen("list", "Ingress"))


def test_continue_token_expires(on_fake, fake):
    """410 in the middle of a paged list: it begins again, with nothing twice and nothing lost."""
    for n in range(9):
        publish(fake, "p%d" % n, "p%d.test" % n, "10.77.1.%d" % (n + 1))
    fake.page_size, fake.expire_continue = 3, 2
    r = on_fake()
    for n in range(9):
        assert r.ask("p%d.test" % n).upstream == "10.77.1.%d:8080" % (n + 1)
    assert len([x for x in r.routes() if x["source"].startswith("shop/p")]) == 9
    assert fake.expire_continue == 0


def test_object_vanishes_between_two_attempts_of_a_list(on_fake, fake):
    """What only the aborted attempt held is not kept."""
    for n in range(6):
        publish(fake, "p%d" % n, "p%d.test" % n, "10.77.1.%d" % (n + 1))
    fake.page_size = 2

    def expire(conn, request):
        fake.delete("Ingress", "shop", "p0", event=False)
        status(410)(conn, request)
    fake.on(expire, verb="list", kind="Ingress", match=lambda q: "continue" in q.query)
    r = on_fake()
    assert r.ask("p5.test").upstream == "10.77.1.6:8080"
    assert r.ask("p0.test").status == 404


def test_chunked_list(on_fake, fake):
    fake.list_chunked, fake.chunk_size = True, 11
    r = on_fake()
    assert r.ask("web.test").upstream == A


@pytest.mark.parametrize("chunk,write", [(1, None), (2, None), (3, 5), (7, 3), (None, 1), (None, 2), (13, 17), (1, 1)])
def test_streams_cut_anywhere(on_fake, fake, chunk, write):
    """Chunks, TLS records and segments end inside keys, escapes, numbers and chunk sizes."""
    r = on_fake()
    watching(fake)
    fake.chunk_size, fake.write_size = chunk, write
    for n in (2, 3):
        publish(fake, "cut%d" % n, "cut%d.test" % n, "10.77.1.%d" % n,
                annotations={"note": "quote \" backslash \\ \u00fc \u20ac \U0001f680 \n }{][\",:"})
    r.expect("cut2.test", "/", B)
    r.expect("cut3.test", "/", C)
    fake.delete("Ingress", "shop", "cut2")
    r.expect("cut2.test", "/", status=404)


def test_many_events_in_one_chunk(on_fake, fake):
    r = on_fake()
    watching(fake)
    data = b""
    for n in range(2, 9):
        fake.put(*app("shop", "m%d" % n, "10.77.1.%d" % n))
        fake.put(ingress("shop", "m%d" % n, [("m%d.test" % n, "/", "Prefix", "m%d" % n, 80)]), event=False)
        data += json.dumps({"type": "ADDED", "object": fake.store["Ingress"]["shop", "m%d" % n]}).encode() + b"\n"
    fake.inject("Ingress", data)
    for n in range(2, 9):
        r.expect("m%d.test" % n, "/", "10.77.1.%d:8080" % n)


# -------------------------------------------------------------------- watches

def test_half_an_event_then_its_rest(on_fake, fake):
    r = on_fake()
    watching(fake)
    fake.put(*app("shop", "half", "10.77.1.2"))
    fake.put(ingress("shop", "half", [("half.test", "/", "Prefix", "half", 80)]), event=False)
    data = json.dumps({"type": "ADDED", "object": fake.store["Ingress"]["shop", "half"]}).encode() + b"\n"
    fake.inject("Ingress", data[:len(data) // 2])
    next_change_of_services(fake, r)
    assert r.ask("half.test").status == 404
    fake.inject("Ingress", data[len(data) // 2:])
    r.expect("half.test", "/", B)


def next_change_of_services(fake, r):
    """The other streams go on while one hangs: the slice of web moves and comes back."""
    fake.put(slice_("shop", "web", ["10.77.1.3"]))
    r.expect("web.test", "/", C)
    fake.put(slice_("shop", "web", ["10.77.1.1"]))
    r.expect("web.test", "/", A)


def test_half_an_event_then_a_reset(on_fake, fake):
    """The half is forgotten; the whole comes with the next watch."""
    r = on_fake()
    watching(fake)
    fake.put(*app("shop", "half", "10.77.1.2"))
    fake.put(ingress("shop", "half", [("half.test", "/", "Prefix", "half", 80)]), event=False)
    data = json.dumps({"type": "ADDED", "object": fake.store["Ingress"]["shop", "half"]}).encode()
    fake.inject("Ingress", data[:-20])
    fake.drop_watches("reset", "Ingress")
    r.expect("half.test", "/", B, timeout=20)
    assert r.ask("web.test").upstream == A


def test_410_as_status(on_fake, fake):
    publish(fake, "old", "old.test", "10.77.1.3")
    r = on_fake()
    watching(fake)
    fake.on(status(410), verb="watch", kind="Ingress")
    fake.drop_watches("reset", "Ingress")
    fake.delete("Ingress", "shop", "old", event=False)
    next_change(fake, r)
    r.expect("old.test", "/", status=404)
    assert fake.count("list", "Ingress") == 2


def test_410_as_event(on_fake, fake):
    publish(fake, "old", "old.test", "10.77.1.3")
    r = on_fake()
    watching(fake)
    fake.delete("Ingress", "shop", "old", event=False)
    fake.compact()
    fake.error_event("Ingress", 410, "Expired")
    r.expect("old.test", "/", status=404, timeout=20)
    next_change(fake, r)
    assert fake.count("list", "Ingress") == 2
    assert fake.count("list", "Service") == 1, "only the kind concerned is listed again"


def test_410_keeps_serving_while_it_lists(on_fake, fake):
    """A relist that takes its time, and fails at first, takes no route away."""
    r = on_fake()
    watching(fake)
    rule = fake.on(status(500), verb="list", times=3)
    fake.compact()
    for kind in KINDS:
        fake.error_event(kind, 410)
    eventually(lambda: r.ask("web.test").upstream == A and rule["left"] == 0, 20)
    next_change(fake, r)


@pytest.mark.parametrize("code", [500, 504, 429])
def test_another_error_event(on_fake, fake, code):
    r = on_fake()
    watching(fake)
    for kind in KINDS:
        fake.error_event(kind, code)
    next_change(fake, r)
    assert r.is_ready()


@pytest.mark.parametrize("data", [
    b"garbage\n", b"{}\n", b'{"type":"ADDED"}\n', b'{"type":"ADDED","object":null}\n', b'{"type":17,"object":{}}\n',
    b'{"type":"STRANGE","object":{"metadata":{"name":"x"}}}\n', b'[1,2,3]\n', b"\x00\xff\xfe\n", b'{"type":"ADDED","object":{"a":1}}}\n',
    b'{"type":"MODIFIED","object":' + b'{"a":' * 5000 + b"1" + b"}" * 5000 + b"}\n",
], ids=["text", "empty", "no-object", "null", "number", "type", "array", "bytes", "brace", "deep"])
def test_garbage_in_a_watch(on_fake, fake, data):
    r = on_fake()
    watching(fake)
    fake.inject("Ingress", data)
    next_change(fake, r)


def test_duplicate_and_foreign_events(on_fake, fake):
    r = on_fake()
    watching(fake)
    web = fake.store["Ingress"]["shop", "web"]
    piece = fake.store["EndpointSlice"]["shop", "web-1"]
    generation = r.generation()
    for event_type in ("ADDED", "MODIFIED", "ADDED", "MODIFIED"):
        fake.emit(event_type, web)
        fake.emit(event_type, piece)
    ghost = ingress("shop", "ghost", [("ghost.test", "/", "Prefix", "web", 80)])
    ghost["metadata"].update(uid="ghost", resourceVersion="1")
    fake.emit("DELETED", ghost)
    fake.emit("DELETED", ghost)
    publish(fake, "more", "more.test", "10.77.1.2")
    r.expect("more.test", "/", B)
    assert r.ask("web.test").upstream == A
    assert len([x for x in r.routes() if x["source"] == "shop/web"]) == 1
    assert r.generation() <= generation + 3, "events that change nothing publish nothing"


# ------------------------------------------------------------ refusals, pauses

def test_429_waits_as_long_as_told(on_fake, fake):
    fake.on(status(429, retry_after=2), verb="list", kind="Ingress")
    r = on_fake()
    first, second = fake.seen("list", "Ingress")[:2]
    assert second.time - first.time >= 1.95
    assert r.ask("web.test").upstream == A


def test_429_on_a_watch(on_fake, fake):
    r = on_fake()
    watching(fake)
    rule = fake.on(status(429, retry_after=1), verb="watch", kind="Ingress")
    before = fake.count("watch", "Ingress")
    fake.drop_watches("end", "Ingress")
    next_change(fake, r)
    refused, again = fake.seen("watch", "Ingress")[before:before + 2]
    assert rule["hits"] == 1 and again.time - refused.time >= 0.95
    assert fake.count("list", "Ingress") == 1


def test_backs_off(on_fake, fake):
    """Failures in a row are answered with growing pauses, not with a storm."""
    r = on_fake()
    watching(fake)
    before = fake.count("watch", "Ingress")
    rule = fake.on(status(500), verb="watch", kind="Ingress", times=5)
    fake.drop_watches("end", "Ingress")
    eventually(lambda: rule["left"] == 0, 30, "five failures")
    times = [q.time for q in fake.seen("watch", "Ingress")[before:]]
    gaps = [b - a for a, b in zip(times, times[1:])]
    assert max(gaps) > 2 * min(gaps) or min(gaps) > 0.2, gaps
    assert sum(gaps) > 0.5, gaps
    next_change(fake, r, timeout=30)


@pytest.mark.parametrize("fault", [
    status(500), status(503), raw_body(b'{"kind":"IngressList","items":[{"metadata":'), raw_body(b"not json"), raw_body(b""),
    raw_body(b'{"kind":"Status","code":500}'), raw_body(b"<html>", content_type="text/html"), raw_bytes(b"SSH-2.0-OpenSSH\r\n"),
    raw_bytes(b""), raw_bytes(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef"),
    status(302), cut_list(0.5), cut_list(0.5, reset=False), cut_list(0.0),
], ids=["500", "503", "half-json", "text", "empty", "status-object", "html", "ssh", "close", "two-lengths", "302", "reset", "fin", "reset-early"])
def test_first_list_fails(on_fake, fake, fault):
    """A list that fails is asked for again; nothing of it counts."""
    rule = fake.on(fault, verb="list", kind="Ingress", times=1)
    r = on_fake()
    assert rule["hits"] == 1 and fake.count("list", "Ingress") >= 2
    assert r.ask("web.test").upstream == A


def test_relist_cut_in_the_middle_deletes_nothing(on_fake, fake):
    for n in range(2, 8):
        publish(fake, "p%d" % n, "p%d.test" % n, "10.77.1.%d" % n)
    r = on_fake()
    watching(fake)
    fake.on(cut_list(0.4), verb="list", kind="Ingress", times=2)
    fake.on(status(500), verb="list", kind="Ingress", times=1)
    fake.compact()
    fake.error_event("Ingress", 410)
    eventually(lambda: fake.count("list", "Ingress") >= 3, 20, "two bad lists")
    for n in range(2, 8):
        assert r.ask("p%d.test" % n).upstream == "10.77.1.%d:8080" % n
    next_change(fake, r, 8)


# --------------------------------------------------------------------- objects

def big(name):
    return ingress("shop", name, [(name + ".test", "/", "Prefix", "web", 80)],
                   annotations={"big/%d" % n: "x" * 1024 * 1024 for n in range(5)})


def test_an_object_of_5_mb_in_a_list(on_fake, fake):
    fake.put(big("big"))
    r = on_fake()
    assert r.ask("web.test").upstream == A
    assert r.ask("big.test").upstream == A or re.search("shop/big", r.log())
    assert resident_kb(r) < 32 * 1024
    next_change(fake, r)


def test_an_object_of_5_mb_in_a_watch(on_fake, fake):
    r = on_fake()
    watching(fake)
    fake.put(big("big"))
    next_change(fake, r)
    eventually(lambda: r.ask("big.test").upstream == A or re.search("shop/big", r.log()), 10, "served, or named")
    assert resident_kb(r) < 32 * 1024


def rule(**more):
    path = {"path": "/", "pathType": "Prefix", "backend": {"service": {"name": "web", "port": {"number": 80}}}}
    path.update(more)
    return [{"host": "bad.test", "http": {"paths": [path]}}]


BAD_INGRESSES = {
    "path-without-slash": {"rules": rule(path="foo")},
    "path-type": {"rules": rule(pathType="Glob")},
    "path-type-number": {"rules": rule(pathType=1)},
    "exact-without-path": {"rules": rule(pathType="Exact", path="")},
    "backend-missing": {"rules": [{"host": "bad.test", "http": {"paths": [{"path": "/", "pathType": "Prefix"}]}}]},
    "backend-empty": {"rules": rule(backend={})},
    "service-without-name": {"rules": rule(backend={"service": {"port": {"number": 80}}})},
    "service-without-port": {"rules": rule(backend={"service": {"name": "web"}})},
    "port-both": {"rules": rule(backend={"service": {"name": "web", "port": {"number": 80, "name": "http"}}})},
    "port-text": {"rules": rule(backend={"service": {"name": "web", "port": {"number": "80"}}})},
    "port-big": {"rules": rule(backend={"service": {"name": "web", "port": {"number": 65536}}})},
    "port-float": {"rules": rule(backend={"service": {"name": "web", "port": {"number": 80.5}}})},
    "host-with-port": {"rules": [{"host": "bad.test:80", "http": rule()[0]["http"]}]},
    "host-inner-wildcard": {"rules": [{"host": "a.*.test", "http": rule()[0]["http"]}]},
    "host-number": {"rules": [{"host": 7, "http": rule()[0]["http"]}]},
    "rules-text": {"rules": "all"},
    "rules-object": {"rules": {"host": "bad.test"}},
    "paths-null-element": {"rules": [{"host": "bad.test", "http": {"paths": [None]}}]},
    "spec-text": "nothing",
    "spec-array": [],
}


@pytest.mark.parametrize("name", sorted(BAD_INGRESSES))
def test_bad_ingress_is_named_and_harms_nobody(on_fake, fake, name):
    bad = {"apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "metadata": {"namespace": "shop", "name": "bad-" + name},
           "spec": BAD_INGRESSES[name]}
    if isinstance(bad["spec"], dict):
        bad["spec"]["ingressClassName"] = "ramjet"
    fake.put(bad)                       # in the list
    r = on_fake()
    assert r.ask("web.test").upstream == A
    if isinstance(bad["spec"], dict):
        r.expect_log(r"(?m)^\S+ (warn|error) .*shop/bad-" + re.escape(name))
    bad["metadata"]["labels"] = {"again": "1"}
    fake.put(bad)                       # in a watch
    next_change(fake, r)


BAD_OTHERS = {
    "service-port-text": dict(service("shop", "bad"), spec={"ports": [{"port": "eighty"}]}),
    "service-ports-object": dict(service("shop", "bad"), spec={"ports": {"port": 80}}),
    "service-spec-null": dict(service("shop", "bad"), spec=None),
    "service-external-name-empty": dict(service("shop", "bad"), spec={"type": "ExternalName", "externalName": ""}),
    "slice-address": slice_("shop", "bad", ["not an address"]),
    "slice-address-number": slice_("shop", "bad", [[17]]),
    "slice-no-addresses": dict(slice_("shop", "bad", []), endpoints=[{"conditions": {"ready": True}}]),
    "slice-empty-addresses": dict(slice_("shop", "bad", []), endpoints=[{"addresses": []}]),
    "slice-endpoints-text": dict(slice_("shop", "bad", []), endpoints="none"),
    "slice-endpoints-null": dict(slice_("shop", "bad", []), endpoints=None),
    "slice-ports-null": dict(slice_("shop", "bad", ["10.77.1.2"]), ports=None),
    "slice-port-big": slice_("shop", "bad", ["10.77.1.2"], 70000),
    "slice-port-negative": slice_("shop", "bad", ["10.77.1.2"], -1),
    "slice-family": slice_("shop", "bad", ["10.77.1.2"], family="FQDN"),
    "slice-family-wrong": slice_("shop", "bad", ["10.77.1.2"], family="IPv6"),
    "slice-ready-text": slice_("shop", "bad", [("10.77.1.2", {"ready": "yes"})]),
    "slice-without-label": dict(slice_("shop", "bad", ["10.77.1.2"]), metadata={"namespace": "shop", "name": "bad-1"}),
    "class-without-controller": dict(ingress_class("bad"), spec={}),
    "class-spec-null": dict(ingress_class("bad"), spec=None),
}


@pytest.mark.parametrize("name", sorted(BAD_OTHERS))
def test_bad_object_harms_nobody(on_fake, fake, name):
    fake.put(ingress("shop", "user", [("user.test", "/", "Prefix", "bad", 80)]))
    if BAD_OTHERS[name]["kind"] == "EndpointSlice":
        fake.put(service("shop", "bad"))
    fake.put(BAD_OTHERS[name])          # in the list
    r = on_fake()
    assert r.ask("web.test").upstream == A
    assert r.ask("user.test").status in (200, 502, 503)
    fake.put(BAD_OTHERS[name])          # in a watch
    next_change(fake, r, 3)


def test_objects_without_metadata(on_fake, fake):
    """Items that have no name cannot be kept; the others of the list are."""
    def act(conn, request):
        body = json.loads(fake.list_body(request))
        body["items"] = [None, {}, {"metadata": None}, {"metadata": {"name": ""}}, {"metadata": {"name": 5}}, "text"] + body["items"]
        conn.send_json(200, body)
    fake.on(act, verb="list", kind="Ingress", times=1000)
    r = on_fake()
    assert r.ask("web.test").upstream == A


def test_empty_list_as_null(on_fake, fake):
    """Go writes an empty slice as null at times."""
    def act(conn, request):
        conn.send_json(200, {"kind": "IngressClassList", "metadata": {"resourceVersion": str(fake.rv)}, "items": None})
    fake.on(act, verb="list", kind="IngressClass", times=1000)
    r = on_fake()
    fake.put(ingress_class("ramjet"))
    r.expect("web.test", "/", A)


def test_unicode_and_escapes_in_names(on_fake, fake):
    fake.put(ingress("shop", "esc", [("esc.test", "/\u00fc\u20ac", "Prefix", "web", 80), ("esc.test", "/a\"b\\c", "Prefix", "web", 80),
                                     ("esc.test", "/ok", "Prefix", "web", 80)]))
    r = on_fake()
    r.expect("esc.test", "/ok", A)
    assert json.dumps(r.routes())


def test_error_statuses_do_not_reach_requests(on_fake, fake):
    """Every kind fails at once, again and again: requests do not notice."""
    r = on_fake()
    watching(fake)
    for kind in KINDS:
        fake.on(status(500), verb="watch", kind=kind, times=2)
    fake.drop_watches("reset")
    end = time.monotonic() + 0.5
    while time.monotonic() < end:
        assert r.ask("web.test").upstream == A
    next_change(fake, r)
