"""A scripted API server: list and watch of a few kinds over TLS, plus everything
a real one does not do on demand. The test drives it from its own thread:

    server = Scripted(ca)                          # listens at once
    server.put(ingress(...))                       # stored, and sent to watchers
    server.delete("Ingress", "ns", "name")
    server.put(obj, event=False)                   # changed while nobody was told
    server.on(status(429, retry_after=1), verb="list", kind="Ingress", times=2)
    server.drop_watches("reset")                   # also "end", "fin", "mid-chunk"
    server.silence()                               # present watches stay open and say nothing
    server.chunk_size, server.write_size = 7, 3    # cut HTTP chunks, and writes
    server.inject("Ingress", b'{"type":"MODI')     # raw bytes into the watch stream
    server.compact()                               # old resource versions get 410
    server.pause_s = 0.5                           # before every answer, and a tenth of it between pieces of write_size
    server.deaf.clear()                            # new connections are taken, and nothing is said on them until deaf.set()
    server.date = "Tue, 01 Jan 1980 00:00:00 GMT"  # a Date field in every answer
"""

import base64
import copy
import json
import os
import queue
import re
import select
import socket
import ssl
import struct
import threading
import time
import urllib.parse

from harness import KINDS, SERVER_IP, SERVER_SANS, new_port

GROUP_OF = {plural: (prefix, kind) for kind, (prefix, plural, _) in KINDS.items()}


class Request:
    def __init__(self, method, target, headers):
        self.time, self.method, self.headers = time.monotonic(), method, headers
        self.path, _, query = target.partition("?")
        self.query = dict(urllib.parse.parse_qsl(query, keep_blank_values=True))
        self.kind = self.namespace = self.name = None
        self.verb = method.lower()
        m = re.match(r"(/api/v1|/apis/[^/]+/[^/]+)(?:/namespaces/([^/]+))?/([^/]+)(?:/([^/]+))?$", self.path)
        if m and GROUP_OF.get(m.group(3), ("",))[0] == m.group(1):
            self.kind = GROUP_OF[m.group(3)][1]
            self.namespace, self.name = m.group(2), m.group(4)
            if method == "GET":
                watching = self.query.get("watch", "false") not in ("false", "0")
                self.verb = "watch" if watching else "get" if self.name else "list"
        self.token = re.sub(r"^[Bb]earer\s+", "", headers.get("authorization", "")) or None

    def __repr__(self):
        return "%s %s %r" % (self.verb, self.path, self.query)


class Close(Exception):
    """The connection ends here."""


class Gone(Exception):
    """The resource version, or the continue token, is too old."""


# -------------------------------------------------------------------- faults
# Each makes an action for Scripted.on(): called with the connection and the
# request; it answers, or raises Close.

def status(code, reason="", retry_after=None, message="scripted"):
    def act(conn, _request):
        fields = {"Retry-After": str(retry_after)} if retry_after is not None else {}
        conn.send_json(code, status_object(code, reason, message), fields)
    return act


def raw_body(data, code=200, content_type="application/json"):
    """Any bytes as the body: garbage JSON, HTML, half an object."""
    def act(conn, _request):
        conn.send(code, data, {"Content-Type": content_type})
    return act


def raw_bytes(data):
    """Any bytes instead of an HTTP response."""
    def act(conn, _request):
        conn.write(data)
        raise Close
    return act


def cut_list(fraction=0.5, reset=True):
    """A list whose connection ends (with a reset, or quietly) in its middle."""
    def act(conn, request):
        body = conn.server.list_body(request)
        conn.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
                   + body[:int(len(body) * fraction)])
        if reset:
            conn.reset()
        raise Close
    return act


def stall(release, first=b""):
    """Sends `first` and then nothing until the event `release` is set."""
    def act(conn, _request):
        if first:
            conn.write(first)
        release.wait(120)
        raise Close
    return act


def status_object(code, reason="", message="scripted"):
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message,
            "reason": reason or {401: "Unauthorized", 403: "Forbidden", 404: "NotFound", 410: "Expired",
                                 429: "TooManyRequests", 500: "InternalError"}.get(code, ""), "code": code}


# -------------------------------------------------------------------- server

class Scripted:
    def __init__(self, ca, token="scripted-token", ec=False):
        self.ca, self.tokens = ca, {token}
        self.token = token
        self.store = {kind: {} for kind in KINDS}
        self.rv, self.oldest = 100, 100
        self.history = []
        self.lock = threading.RLock()
        self.requests, self.watches, self.rules, self.pages = [], [], [], {}
        self.page_count = 0
        self.page_size = None           # the largest page, whatever limit the client asks for
        self.expire_continue = 0        # how many continue tokens are refused with 410
        self.chunk_size = self.write_size = None
        self.list_chunked = False
        self.pause_s, self.date = 0, None
        self.deaf = threading.Event()
        self.deaf.set()
        self.port = new_port()
        self.url = "https://%s:%d" % (SERVER_IP, self.port)
        self.use_certificate(*ca.issue("scripted-ec" if ec else "scripted", "/CN=scripted", SERVER_SANS, ec=ec))
        self.connections = set()
        self.closed = False
        self.listener = None
        self.listen()

    # -- control of the test

    def use_certificate(self, cert, key):
        """The certificate of new connections."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(cert, key)
        self.context = context

    def listen(self):
        if self.listener:
            return
        self.listener = socket.socket()
        self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.listener.bind((SERVER_IP, self.port))
        self.listener.listen(64)
        threading.Thread(target=self._accept, args=(self.listener,), daemon=True).start()

    def unlisten(self, how="reset"):
        """Refuses connections from now on and ends the present ones."""
        listener, self.listener = self.listener, None
        if listener:
            listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        for conn in list(self.connections):
            conn.end(how)

    def close(self):
        self.closed = True
        self.deaf.set()
        self.unlisten()

    def put(self, *objs, event=True):
        for obj in objs:
            with self.lock:
                obj = copy.deepcopy(obj)
                self.rv += 1
                meta, kind = obj["metadata"], obj["kind"]
                key = (meta.get("namespace"), meta["name"])
                old = self.store[kind].get(key)
                meta.setdefault("uid", old["metadata"]["uid"] if old else "uid-%d" % self.rv)
                meta.setdefault("creationTimestamp", old["metadata"]["creationTimestamp"] if old
                                else time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))
                meta["resourceVersion"] = str(self.rv)
                self.store[kind][key] = obj
                self._publish("MODIFIED" if old else "ADDED", obj, event)

    def delete(self, kind, namespace, name, event=True):
        with self.lock:
            obj = copy.deepcopy(self.store[kind].pop((namespace, name)))
            self.rv += 1
            obj["metadata"]["resourceVersion"] = str(self.rv)
            self._publish("DELETED", obj, event)

    def _publish(self, event_type, obj, event):
        self.history.append((self.rv, event_type, obj))
        if event:
            for w in self.watches:
                if w.wants(obj):
                    w.queue.put(("event", event_type, obj))

    def emit(self, event_type, obj):
        """An event that changes nothing in the store: duplicates, false deletes, errors."""
        with self.lock:
            for w in self.watches:
                if obj.get("kind") == "Status" or w.wants(obj):
                    w.queue.put(("event", event_type, obj))

    def error_event(self, kind, code, reason=""):
        with self.lock:
            for w in self.watches_of(kind):
                w.queue.put(("event", "ERROR", status_object(code, reason)))

    def bookmark(self, kind=None, rv=None):
        with self.lock:
            self.rv += 1
            for w in self.watches_of(kind):
                w.queue.put(("bookmark", rv or str(self.rv)))
        return rv or str(self.rv)

    def inject(self, kind, data):
        """Raw bytes into the watch streams of the kind, as one chunk."""
        with self.lock:
            for w in self.watches_of(kind):
                w.queue.put(("raw", data))

    def drop_watches(self, how="end", kind=None):
        with self.lock:
            for w in self.watches_of(kind):
                w.queue.put(("drop", how))

    def watches_of(self, kind=None):
        with self.lock:
            return [w for w in self.watches if kind is None or w.request.kind == kind]

    def silence(self, kind=None):
        """The present watches say nothing any more, not even an end."""
        with self.lock:
            for w in self.watches_of(kind):
                w.silent = True

    def compact(self):
        """Forgets the history: a watch from an older resource version gets 410."""
        with self.lock:
            self.rv += 1
            self.oldest = self.rv
            self.history.clear()

    def on(self, action, verb=None, kind=None, times=1, match=None):
        """The next `times` matching requests get the action instead of the normal answer."""
        rule = {"action": action, "verb": verb, "kind": kind, "left": times, "match": match, "hits": 0}
        with self.lock:
            self.rules.append(rule)
        return rule

    def count(self, verb=None, kind=None):
        with self.lock:
            return sum(1 for r in self.requests if (verb is None or r.verb == verb) and (kind is None or r.kind == kind))

    def seen(self, verb=None, kind=None):
        with self.lock:
            return [r for r in self.requests if (verb is None or r.verb == verb) and (kind is None or r.kind == kind)]

    # -- connections

    def _accept(self, listener):
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            conn = Connection(self, sock)
            self.connections.add(conn)
            threading.Thread(target=conn.run, daemon=True).start()

    def answer(self, conn, request):
        if self.pause_s:
            time.sleep(self.pause_s)
        with self.lock:
            self.requests.append(request)
            rule = next((r for r in self.rules if r["left"] > 0 and r["verb"] in (None, request.verb)
                         and r["kind"] in (None, request.kind) and (r["match"] is None or r["match"](request))), None)
            if rule:
                rule["left"] -= 1
                rule["hits"] += 1
        if rule:
            return rule["action"](conn, request)
        if request.token not in self.tokens:
            return status(401, message="Unauthorized")(conn, request)
        if request.path == "/version":
            return conn.send_json(200, {"major": "1", "minor": "36", "gitVersion": "v1.36.3"})
        if request.kind is None or request.verb not in ("get", "list", "watch"):
            return status(404, message="the server could not find the requested resource")(conn, request)
        try:
            if request.verb == "watch":
                Watch(conn, request).run()
            elif request.verb == "get":
                obj = self.store[request.kind].get((request.namespace, request.name))
                if obj is None:
                    return status(404)(conn, request)
                conn.send_json(200, obj)
            else:
                conn.send(200, self.list_body(request), {"Content-Type": "application/json"}, self.list_chunked)
        except Gone:
            status(410, message="too old resource version")(conn, request)

    def list_body(self, request):
        with self.lock:
            limit = int(request.query.get("limit") or 0)
            if self.page_size:
                limit = min(limit or self.page_size, self.page_size)
            token = request.query.get("continue")
            if token:
                if self.expire_continue:
                    self.expire_continue -= 1
                    raise Gone
                if token not in self.pages:
                    raise Gone
                rv, items = self.pages.pop(token)
            else:
                rv = self.rv
                items = [o for (ns, _), o in sorted(self.store[request.kind].items(), key=lambda kv: (kv[0][0] or "", kv[0][1]))
                         if request.namespace in (None, ns)]
                items = copy.deepcopy(items)
            meta = {"resourceVersion": str(rv)}
            if limit and len(items) > limit:
                rest, items = items[limit:], items[:limit]
                # A real token is base64 of JSON; this one needs escaping in a query for sure.
                self.page_count += 1
                new = base64.b64encode(json.dumps({"v": "meta.k8s.io/v1", "rv": rv, "page": self.page_count}).encode()).decode() + "+/=&%"
                self.pages[new] = (rv, rest)
                meta["continue"], meta["remainingItemCount"] = new, len(rest)
        prefix = KINDS[request.kind][0]
        for o in items:                 # a real list leaves these out of its items
            o.pop("kind", None)
            o.pop("apiVersion", None)
        return json.dumps({"kind": request.kind + "List", "apiVersion": re.sub("^/apis?/", "", prefix),
                           "metadata": meta, "items": items}).encode()


class Connection:
    def __init__(self, server, sock):
        self.server, self.sock, self.raw = server, sock, sock
        self.buffer = b""
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def run(self):
        try:
            if not self.server.deaf.is_set():
                self.server.deaf.wait(120)
                raise Close
            self.raw.settimeout(10)
            self.sock = self.server.context.wrap_socket(self.raw, server_side=True)
            self.sock.settimeout(120)
            while not self.server.closed:
                request = self._read_request()
                self.server.answer(self, request)
                if request.headers.get("connection", "").lower() == "close":
                    break
            self.end("fin")
        except (Close, OSError, ValueError, IndexError):
            self.end("fin")
        finally:
            self.server.connections.discard(self)

    def _read_request(self):
        while b"\r\n\r\n" not in self.buffer:
            data = self.sock.recv(65536)
            if not data:
                raise Close
            self.buffer += data
        head, _, self.buffer = self.buffer.partition(b"\r\n\r\n")
        line, *fields = head.decode("latin-1").split("\r\n")
        method, target, _ = line.split(" ")
        headers = {k.strip().lower(): v.strip() for k, _, v in (f.partition(":") for f in fields)}
        length = int(headers.get("content-length", 0))
        while len(self.buffer) < length:
            data = self.sock.recv(65536)
            if not data:
                raise Close
            self.buffer += data
        self.buffer = self.buffer[length:]
        return Request(method, target, headers)

    def write(self, data):
        """Every piece of write_size bytes is a TLS record and a segment of its own."""
        size = self.server.write_size or len(data) or 1
        for i in range(0, len(data), size):
            if i and self.server.pause_s:
                time.sleep(self.server.pause_s / 10)
            self.sock.sendall(data[i:i + size])

    def chunk(self, data):
        size = self.server.chunk_size or len(data) or 1
        self.write(b"".join(b"%x\r\n%s\r\n" % (len(data[i:i + size]), data[i:i + size]) for i in range(0, len(data), size)))

    def send(self, code, body, fields=None, chunked=False):
        fields = dict(fields or {}, **({"Date": self.server.date} if self.server.date else {}))
        head = "HTTP/1.1 %d Scripted\r\n" % code + "".join("%s: %s\r\n" % f for f in fields.items())
        if chunked:
            self.write((head + "Transfer-Encoding: chunked\r\n\r\n").encode())
            self.chunk(body)
            self.write(b"0\r\n\r\n")
        else:
            self.write((head + "Content-Length: %d\r\n\r\n" % len(body)).encode() + body)

    def send_json(self, code, value, fields=None):
        self.send(code, json.dumps(value).encode(), dict({"Content-Type": "application/json"}, **(fields or {})))

    def peer_closed(self):
        if isinstance(self.sock, ssl.SSLSocket) and self.sock.pending() == 0 \
                and not select.select([self.sock], [], [], 0)[0]:
            return False
        self.sock.settimeout(1)
        try:
            data = self.sock.recv(4096)
            self.buffer += data
            return not data
        except (socket.timeout, ssl.SSLWantReadError):
            return False
        except OSError:
            return True
        finally:
            self.sock.settimeout(120)

    def reset(self):
        try:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        except OSError:
            pass
        self.end("close")

    def end(self, how):
        if how == "reset":
            return self.reset()
        try:
            self.sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        if how != "shutdown":
            self.sock.close()


class Watch:
    """One watch stream, served by the thread of its connection."""

    def __init__(self, conn, request):
        self.conn, self.request, self.server = conn, request, conn.server
        self.queue, self.silent = queue.Queue(), False

    def wants(self, obj):
        return obj["kind"] == self.request.kind and self.request.namespace in (None, obj["metadata"].get("namespace"))

    def run(self):
        server, query = self.server, self.request.query
        with server.lock:
            rv = query.get("resourceVersion", "")
            if query.get("sendInitialEvents") == "true" or rv in ("", "0"):
                for obj in server.store[self.request.kind].values():
                    if self.wants(obj):
                        self.queue.put(("event", "ADDED", obj))
                if query.get("sendInitialEvents") == "true":
                    self.queue.put(("initial-end", str(server.rv)))
            else:
                since = int(rv) if rv.isdigit() else server.rv
                if since < server.oldest:
                    raise Gone
                for at, event_type, obj in server.history:
                    if at > since and self.wants(obj):
                        self.queue.put(("event", event_type, obj))
            server.watches.append(self)
        try:
            date = b"Date: %s\r\n" % server.date.encode() if server.date else b""
            self.conn.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n" + date + b"Transfer-Encoding: chunked\r\n\r\n")
            end = time.monotonic() + float(query.get("timeoutSeconds") or 1800)
            while True:
                if self.conn.peer_closed():
                    raise Close
                if self.silent:
                    time.sleep(0.01)
                    continue
                if time.monotonic() > end:
                    break
                try:
                    item = self.queue.get(timeout=min(0.02, max(0.001, end - time.monotonic())))
                except queue.Empty:
                    continue
                if not self.silent and self._deliver(item):
                    break
            self.conn.write(b"0\r\n\r\n")
        finally:
            with server.lock:
                server.watches.remove(self)

    def _deliver(self, item):
        """Writes one item; true when the stream ends in order after it."""
        if item[0] == "event":
            self._event(item[1], item[2])
        elif item[0] in ("bookmark", "initial-end"):
            meta = {"resourceVersion": item[1]}
            if item[0] == "initial-end":
                meta["annotations"] = {"k8s.io/initial-events-end": "true"}
            prefix = KINDS[self.request.kind][0]
            self._event("BOOKMARK", {"kind": self.request.kind, "apiVersion": re.sub("^/apis?/", "", prefix),
                                     "metadata": meta, "spec": {}})
        elif item[0] == "raw":
            self.conn.chunk(item[1])
        elif item[1] == "end":
            return True
        elif item[1] == "mid-chunk":
            self.conn.write(b"400\r\n" + b'{"type":"MODIFIED","object":{"kind":"')
            raise Close
        elif item[1] == "reset":
            self.conn.reset()
            raise Close
        else:
            raise Close
        return False

    def _event(self, event_type, obj):
        self.conn.chunk(json.dumps({"type": event_type, "object": obj}).encode() + b"\n")


def scripted_kubeconfig(server, folder, **more):
    """A kubeconfig for the server; returns its path."""
    from harness import kubeconfig
    path = os.path.join(folder, "scripted-%d.kubeconfig" % server.port)
    more.setdefault("token", server.token)
    return kubeconfig(path, server.url, ca_data=server.ca.cert, **more)
