"""Which backend a request reaches."""
import pytest

from harness import OK


def tagged(text):
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(text), text)


HOSTS = """
[backend one]
endpoint = $U
[backend two]
endpoint = $V
[backend three]
endpoint = $W

[route wildcard]
host = *.b.test
path = /
type = prefix
backend = one

[route exact-host]
host = x.b.test
path = /only
type = prefix
backend = two

[route any]
path = /
type = prefix
backend = three
"""


@pytest.mark.parametrize("host, path, answer", [
    ("x.b.test", "/only", b"two"),
    ("x.b.test", "/only/deeper", b"two"),
    ("x.b.test", "/other", None),              # an exact host does not fall through to the wildcard
    ("x.b.test", "/", None),
    ("X.B.Test", "/only", b"two"),
    ("x.b.test:8080", "/only", b"two"),
    ("x.b.test.", "/only", b"two"),
    ("y.b.test", "/", b"one"),
    ("y.b.test", "/only", b"one"),
    ("Y.B.TEST:1", "/any/thing", b"one"),
    ("b.test", "/", b"three"),                 # a wildcard is one label, no less
    ("q.x.b.test", "/", b"three"),             # and no more
    ("q.y.b.test", "/", b"three"),
    (".b.test", "/", None),
    ("other.test", "/", b"three"),
    ("10.0.0.1", "/", b"three"),
    ("[::1]:80", "/", b"three"),
])
def test_host(edge, host, path, answer):
    e = edge(HOSTS)
    e.U.play(tagged(b"one")), e.V.play(tagged(b"two")), e.W.play(tagged(b"three"))
    r = e.get(path, host)
    if answer:
        assert (r.status, r.body) == (200, answer)
    elif host == ".b.test":
        assert r.status in (200, 400, 404) and r.body != b"one"
    else:
        assert (r.status, r.body) == (404, b"404 Not Found\n")


PATHS = """
[backend one]
endpoint = $U
[backend two]
endpoint = $V
[backend three]
endpoint = $W

[route root]
host = a.test
path = /
type = prefix
backend = one

[route root-exact]
host = a.test
path = /
type = exact
backend = two

[route api]
host = a.test
path = /api
type = prefix
backend = two

[route api-exact]
host = a.test
path = /api/v1
type = exact
backend = three

[route slash]
host = a.test
path = /dir/
type = prefix
backend = three

[route long]
host = a.test
path = /api/v1/users
type = prefix
backend = one

[route exact-only]
host = e.test
path = /e
type = exact
backend = one

[route case]
host = e.test
path = /Case
type = prefix
backend = two
"""


@pytest.mark.parametrize("host, path, answer", [
    ("a.test", "/", b"two"),                   # exact before prefix
    ("a.test", "/?q", b"two"),
    ("a.test", "/x", b"one"),
    ("a.test", "//", b"one"),
    ("a.test", "/api", b"two"),
    ("a.test", "/api/", b"two"),
    ("a.test", "/api?x=/api/v1", b"two"),
    ("a.test", "/apix", b"one"),               # by element, not by octet
    ("a.test", "/api.x", b"one"),
    ("a.test", "/API", b"one"),                # paths have letter case
    ("a.test", "/api/v1", b"three"),
    ("a.test", "/api/v1/", b"two"),
    ("a.test", "/api/v1/x", b"two"),
    ("a.test", "/api/v1/users", b"one"),       # the longest
    ("a.test", "/api/v1/users/7", b"one"),
    ("a.test", "/api/v1/usersx", b"two"),
    ("a.test", "/dir/", b"three"),
    ("a.test", "/dir", b"three"),              # a trailing slash of a prefix does not count
    ("a.test", "/dir/x", b"three"),
    ("a.test", "/dirx", b"one"),
    ("a.test", "/%61pi", b"two"),              # an escaped letter is the letter
    ("a.test", "/api%2fv1", b"one"),           # an escaped slash separates nothing
    ("a.test", "/x/../api/y", b"two"),
    ("a.test", "/x/%2e%2e/api/y", b"two"),
    ("a.test", "/./api", b"two"),
    ("e.test", "/e", b"one"),
    ("e.test", "/e?x", b"one"),
    ("e.test", "/e/", None),
    ("e.test", "/e/x", None),
    ("e.test", "/ex", None),
    ("e.test", "/E", None),
    ("e.test", "/", None),
    ("e.test", "/Case/x", b"two"),
    ("e.test", "/case", None),
    ("none.test", "/", None),
])
def test_path(edge, host, path, answer):
    e = edge(PATHS)
    e.U.play(tagged(b"one")), e.V.play(tagged(b"two")), e.W.play(tagged(b"three"))
    r = e.get(path, host)
    if answer:
        assert (r.status, r.body) == (200, answer)
    else:
        assert (r.status, r.body) == (404, b"404 Not Found\n")
        assert not e.U.requests + e.V.requests + e.W.requests


GUARDED = """
[backend open]
endpoint = $U
[backend guarded]
endpoint = $V

[route public]
host = a.test
path = /public
type = prefix
backend = open

[route admin]
host = a.test
path = /admin
type = prefix
backend = guarded
"""


def resolve(target):
    """What an upstream that decodes and removes dot segments makes of a target."""
    import posixpath
    import urllib.parse
    path = urllib.parse.unquote(target.decode("latin-1").split("?")[0])
    return posixpath.normpath(path)


@pytest.mark.parametrize("path", ["/public/../admin", "/public/%2e%2e/admin", "/public/.%2e/admin", "/public/%2E./admin", "/public/./../admin", "/../admin",
                                  "/public/../../admin", "/public/..;/admin", "/public/./x", "/public/x/../y", "/public//../admin", "/public/%2e%2e%2fadmin"])
def test_dot_segments_reach_no_other_route(edge, path):
    e = edge(GUARDED)
    e.U.play(tagged(b"open")), e.V.play(tagged(b"guarded"))
    r = e.get(path)
    assert r.status in (200, 400, 404)
    for q in e.U.requests:
        if "%2f" not in path.lower():
            assert not resolve(q.target).startswith("/admin"), f"{path} got to the open backend as {q.target!r}"
    for q in e.V.requests:
        assert resolve(q.target).startswith("/admin")
    if path in ("/../admin", "/public/../../admin"):
        assert r.status == 400
    if path in ("/public/./x", "/public/x/../y"):
        assert r.body == b"open"


FALLBACK = """
[ramjet]
default-backend-service = rest

[backend s]
endpoint = $U
[backend rest]
endpoint = $V

[route r]
host = a.test
path = /api
type = prefix
backend = s
"""


@pytest.mark.parametrize("host, path, answer", [("a.test", "/api", b"one"), ("a.test", "/", b"rest"), ("zzz.test", "/api", b"rest"), ("10.0.0.1", "/", b"rest")])
def test_default_backend(edge, host, path, answer):
    e = edge(FALLBACK)
    e.U.play(tagged(b"one")), e.V.play(tagged(b"rest"))
    assert e.get(path, host).body == answer


def test_keep_alive_may_change_hosts(edge):
    e = edge(HOSTS)
    c = e.client()
    e.U.play(tagged(b"one")), e.V.play(tagged(b"two")), e.W.play(tagged(b"three"))
    assert c.get("/", "y.b.test").body == b"one"
    assert c.get("/only", "x.b.test").body == b"two"
    assert c.get("/none", "x.b.test").status == 404
    assert c.get("/", "c.test").body == b"three"
    assert c.get("/", "y.b.test").body == b"one"


def test_not_found_keeps_the_connection(edge):
    e = edge()
    c = e.client().send(b"GET / HTTP/1.1\r\nHost: none.test\r\n\r\n" b"POST / HTTP/1.1\r\nHost: none.test\r\nContent-Length: 5\r\n\r\nhello" + b"GET / HTTP/1.1\r\nHost: a.test\r\n\r\n")
    e.U.play(OK)
    assert c.response().status == 404
    r = c.response("POST")
    assert r.status == 404
    if (r.get(b"Connection") or b"").lower() != b"close":
        assert c.response().status == 200
    else:
        c.closed()


def test_no_host_without_any_route(edge):
    e = edge("""
[backend three]
endpoint = $W
[route any]
path = /
type = prefix
backend = three
""")
    c = e.client().send(b"GET / HTTP/1.0\r\n\r\n")
    e.W.play(tagged(b"three"))
    r = c.response()
    assert r.status in (200, 400)
    c.closed()
