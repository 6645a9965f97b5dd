"""The cluster test bed: network namespace, test CA, API server, REST client,
object builders, upstreams, Ramjet.

Everything runs inside one network namespace per session, because the API
server refuses EndpointSlices with loopback addresses. `tests/cluster/run` (or
`python3 harness.py --in-namespace COMMAND...`) makes the namespace, runs the
command in it and deletes it. All of 10.77.0.0/16 and fd77::1 to fd77::9 are
local there.

Standard library only. Nothing here sleeps for a fixed time: `eventually()`
waits for a condition.
"""

import asyncio
import base64
import http.client
import json
import os
import re
import shutil
import signal
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
BUILD = os.path.join(ROOT, "build")
LOAD = os.path.join(BUILD, "load")                       # the load generator, built from load/
WORK = os.environ.get("RAMJET_CLUSTER_DIR") or os.path.join(BUILD, "cluster")
IN_NS = "RAMJET_CLUSTER_NS"
SERVER_IP = "10.77.0.1"
EDGE_IP = "10.77.0.2"
DNS_IP = "10.77.0.3"
ENGINES = ("epoll", "uring")


# ---------------------------------------------------------------- namespace

def _ip(*args, check=True):
    return subprocess.run(("ip",) + args, check=check, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True)


def _pid_alive(pid):
    try:
        os.kill(pid, 0)
        return True
    except ProcessLookupError:
        return False
    except PermissionError:
        return True


def _delete_namespace(name):
    """Ends what still runs in the namespace (all of it was started by this
    session) and deletes it."""
    for sig in (signal.SIGTERM, signal.SIGKILL):
        pids = _ip("netns", "pids", name, check=False).stdout.split()
        if not pids:
            break
        for pid in pids:
            try:
                os.kill(int(pid), sig)
            except ProcessLookupError:
                pass
        end = time.monotonic() + 3
        while time.monotonic() < end and _ip("netns", "pids", name, check=False).stdout.split():
            time.sleep(0.02)
    _ip("netns", "del", name, check=False)


def run_in_namespace(command):
    """Runs the command in a new network namespace and returns its exit status."""
    for old in _ip("netns", "list", check=False).stdout.split("\n"):
        m = re.match(r"rj-(\d+)\b", old)
        if m and not _pid_alive(int(m.group(1))):
            _delete_namespace(m.group(0))       # left by a session that was killed
    name = "rj-%d" % os.getpid()
    _ip("netns", "add", name)
    child = None
    stopping = []

    def on_signal(number, _frame):
        stopping.append(number)
        if child and child.poll() is None:
            child.send_signal(number)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, on_signal)
    try:
        _ip("-n", name, "link", "set", "lo", "up")
        _ip("-n", name, "addr", "add", "10.77.0.1/16", "dev", "lo")
        if os.path.exists("/proc/net/if_inet6"):
            for n in range(1, 10):
                _ip("-n", name, "addr", "add", "fd77::%d/64" % n, "dev", "lo", "nodad")
        child = subprocess.Popen(["ip", "netns", "exec", name] + command,
                                 env=dict(os.environ, **{IN_NS: name}))
        while True:
            try:
                return child.wait()
            except InterruptedError:
                continue
    finally:
        _delete_namespace(name)


def has_ipv6():
    try:
        with socket.socket(socket.AF_INET6) as s:
            s.bind(("fd77::1", 0))
        return True
    except OSError:
        return False


# ------------------------------------------------------------------ waiting

def eventually(check, timeout=10.0, what="", every=0.002):
    """Calls check() until it returns something true, and returns that. An
    AssertionError inside check counts as "not yet" and is shown in the end."""
    end = time.monotonic() + timeout
    while True:
        try:
            value = check()
            if value:
                return value
            last = "last value %r" % (value,)
        except (AssertionError, OSError, http.client.HTTPException) as e:
            last = "%s: %s" % (type(e).__name__, e)
        if time.monotonic() > end:
            raise AssertionError("after %g s: %s (%s)" % (timeout, what or "condition not met", last))
        time.sleep(every)


_next_port = [20000]
_port_lock = threading.Lock()


def new_port():
    """A port below the ephemeral range that this session has not used."""
    with _port_lock:
        while True:
            _next_port[0] += 1
            with socket.socket() as s:
                s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    s.bind(("0.0.0.0", _next_port[0]))
                    return _next_port[0]
                except OSError:
                    continue


def end_process(process, sig=signal.SIGTERM, timeout=10):
    if process and process.poll() is None:
        process.send_signal(sig)
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)


# ----------------------------------------------------------------------- CA

class CA:
    """A test CA in a folder of its own, made with openssl."""

    def __init__(self, folder, name="ramjet test CA"):
        self.folder = folder
        os.makedirs(folder, exist_ok=True)
        self.cert = os.path.join(folder, "ca.crt")
        self.key = os.path.join(folder, "ca.key")
        if not os.path.exists(self.cert):
            self._openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-sha256", "-days", "3650",
                          "-subj", "/CN=" + name, "-keyout", self.key, "-out", self.cert,
                          "-addext", "basicConstraints=critical,CA:TRUE",
                          "-addext", "keyUsage=critical,keyCertSign,cRLSign")

    def _openssl(self, *args):
        done = subprocess.run(("openssl",) + args, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode:
            raise RuntimeError("openssl %s: %s" % (args[0], done.stdout))

    def issue(self, name, subject, sans=(), client=False, ec=False, dates=None):
        """Issues name.crt and name.key; returns both paths. dates: when it begins and ends to be valid, as 20400101000000Z; else from now."""
        cert, key = (os.path.join(self.folder, name + end) for end in (".crt", ".key"))
        if os.path.exists(cert):
            return cert, key
        csr, ext = (os.path.join(self.folder, name + end) for end in (".csr", ".ext"))
        kind = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"] if ec else ["-newkey", "rsa:2048"]
        self._openssl("req", "-new", "-nodes", "-sha256", *kind, "-subj", subject, "-keyout", key, "-out", csr)
        with open(ext, "w") as f:
            f.write("basicConstraints=CA:FALSE\nkeyUsage=digitalSignature,keyEncipherment\n")
            f.write("extendedKeyUsage=%s\n" % ("clientAuth" if client else "serverAuth"))
            if sans:
                f.write("subjectAltName=" + ",".join(sans) + "\n")
        if dates:
            self._issue_dated(csr, ext, cert, dates)
        else:
            self._openssl("x509", "-req", "-sha256", "-days", "3650", "-in", csr, "-CA", self.cert, "-CAkey", self.key,
                          "-CAcreateserial", "-extfile", ext, "-out", cert)
        return cert, key

    def _issue_dated(self, csr, ext, cert, dates):
        """`openssl x509` sets no dates; `openssl ca` does, and wants a folder of files for it."""
        config, index = cert + ".cnf", cert + ".index"
        open(index, "w").close()
        with open(config, "w") as f:
            f.write("[ca]\ndefault_ca=c\n[c]\ndatabase=%s\nrand_serial=yes\ndefault_md=sha256\npolicy=p\nunique_subject=no\n[p]\ncommonName=supplied\n" % index)
        self._openssl("ca", "-batch", "-notext", "-config", config, "-in", csr, "-out", cert, "-outdir", self.folder, "-cert", self.cert,
                      "-keyfile", self.key, "-extfile", ext, "-startdate", dates[0], "-enddate", dates[1])


SERVER_SANS = ("DNS:localhost", "DNS:kubernetes", "DNS:kubernetes.default", "DNS:kubernetes.default.svc",
               "DNS:api.cluster.test", "IP:127.0.0.1", "IP:" + SERVER_IP, "IP:10.96.0.1")


# -------------------------------------------------------------- API server

class ApiServer:
    """The real API server (build/apiserver), one process with its etcd."""

    ADMIN = "admin-token-of-the-test"

    def __init__(self, folder, ca=None, extra=()):
        os.makedirs(folder, exist_ok=True)
        self.folder = folder
        self.ca = ca or CA(os.path.join(folder, "ca"))
        self.port, self.etcd_port, self.peer_port = new_port(), new_port(), new_port()
        self.url = "https://%s:%d" % (SERVER_IP, self.port)
        self.cert, self.key = self.ca.issue("apiserver", "/CN=kube-apiserver", SERVER_SANS)
        self.sa_key = os.path.join(folder, "sa.key")
        self.sa_pub = os.path.join(folder, "sa.pub")
        if not os.path.exists(self.sa_key):
            self.ca._openssl("genrsa", "-out", self.sa_key, "2048")
            self.ca._openssl("rsa", "-in", self.sa_key, "-pubout", "-out", self.sa_pub)
        self.tokens = os.path.join(folder, "tokens.csv")
        with open(self.tokens, "w") as f:
            f.write('%s,admin,1,"system:masters"\n' % self.ADMIN)
            f.write('nobody-token,nobody,2,"nobodies"\n')
        self.extra = list(extra)
        self.log = os.path.join(folder, "apiserver.log")
        self.process = None

    def start(self, wait=True):
        args = [os.path.join(BUILD, "apiserver"), "--data-dir", os.path.join(self.folder, "data"),
                "--bind-address", SERVER_IP, "--secure-port", str(self.port),
                "--etcd-port", str(self.etcd_port), "--etcd-peer-port", str(self.peer_port),
                "--tls-cert-file", self.cert, "--tls-private-key-file", self.key,
                "--client-ca-file", self.ca.cert, "--token-auth-file", self.tokens,
                "--service-account-key-file", self.sa_pub, "--service-account-signing-key-file", self.sa_key]
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(args + ["--"] + self.extra, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        if wait:
            self.wait_ready()
        return self

    def wait_ready(self, timeout=90):
        api = Kube(self.url, self.ca.cert, self.ADMIN)

        def ready():
            if self.process.poll() is not None:
                with open(self.log, errors="replace") as f:
                    raise RuntimeError("the API server ended:\n" + f.read()[-4000:])
            return api.raw("GET", "/readyz")[0] == 200
        try:
            eventually(ready, timeout, "API server ready", every=0.01)
        finally:
            api.close()

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self):
        # Nothing in it needs an orderly end: the store survives SIGKILL, and the folder goes away.
        end_process(self.process, signal.SIGKILL)

    def client(self, token=None):
        return Kube(self.url, self.ca.cert, token or self.ADMIN)


# -------------------------------------------------------------- REST client

class ApiError(Exception):
    def __init__(self, code, body):
        super().__init__("%d %s" % (code, body.get("message", body) if isinstance(body, dict) else body))
        self.code, self.body = code, body


KINDS = {  # kind: (API prefix, plural, is namespaced)
    "ClusterRole": ("/apis/rbac.authorization.k8s.io/v1", "clusterroles", False),
    "ClusterRoleBinding": ("/apis/rbac.authorization.k8s.io/v1", "clusterrolebindings", False),
    "ConfigMap": ("/api/v1", "configmaps", True),
    "DaemonSet": ("/apis/apps/v1", "daemonsets", True),
    "Deployment": ("/apis/apps/v1", "deployments", True),
    "EndpointSlice": ("/apis/discovery.k8s.io/v1", "endpointslices", True),
    "HorizontalPodAutoscaler": ("/apis/autoscaling/v2", "horizontalpodautoscalers", True),
    "Ingress": ("/apis/networking.k8s.io/v1", "ingresses", True),
    "IngressClass": ("/apis/networking.k8s.io/v1", "ingressclasses", False),
    "Namespace": ("/api/v1", "namespaces", False),
    "NetworkPolicy": ("/apis/networking.k8s.io/v1", "networkpolicies", True),
    "PodDisruptionBudget": ("/apis/policy/v1", "poddisruptionbudgets", True),
    "Role": ("/apis/rbac.authorization.k8s.io/v1", "roles", True),
    "RoleBinding": ("/apis/rbac.authorization.k8s.io/v1", "rolebindings", True),
    "Secret": ("/api/v1", "secrets", True),
    "Service": ("/api/v1", "services", True),
    "ServiceAccount": ("/api/v1", "serviceaccounts", True),
}


class Kube:
    """A small keep-alive client of the API server. One thread at a time."""

    def __init__(self, url, ca, token=None, cert=None):
        self.host, port = re.match(r"https://\[?([^\]/]+?)\]?:(\d+)$", url).groups()
        self.port = int(port)
        self.context = ssl.create_default_context(cafile=ca)
        if cert:
            self.context.load_cert_chain(*cert)
        self.token = token
        self.conn = None

    def close(self):
        if self.conn:
            self.conn.close()
            self.conn = None

    def raw(self, method, path, body=None, content_type="application/json"):
        """One exchange: (status, body bytes). Reconnects once when the kept connection is gone."""
        headers = {"Accept": "application/json"}
        if self.token:
            headers["Authorization"] = "Bearer " + self.token
        if body is not None:
            headers["Content-Type"] = content_type
        for attempt in (0, 1):
            fresh = self.conn is None
            if fresh:
                self.conn = http.client.HTTPSConnection(self.host, self.port, context=self.context, timeout=30)
            try:
                self.conn.request(method, path, body, headers)
                answer = self.conn.getresponse()
                return answer.status, answer.read()
            except (OSError, http.client.HTTPException):
                self.close()
                if fresh or attempt:
                    raise

    def call(self, method, path, body=None, content_type="application/json"):
        if body is not None and not isinstance(body, (bytes, str)):
            body = json.dumps(body)
        status, data = self.raw(method, path, body, content_type)
        try:
            value = json.loads(data) if data else {}
        except ValueError:
            value = data.decode("utf-8", "replace")
        if status >= 300:
            raise ApiError(status, value)
        return value

    @staticmethod
    def path(kind, namespace=None, name=None):
        prefix, plural, namespaced = KINDS[kind]
        path = prefix + ("/namespaces/" + namespace if namespaced and namespace else "") + "/" + plural
        return path + ("/" + name if name else "")

    def _own_path(self, obj, name=True):
        meta = obj["metadata"]
        return self.path(obj["kind"], meta.get("namespace"), meta["name"] if name else None)

    def create(self, *objs):
        made = [self.call("POST", self._own_path(o, False), o) for o in objs]
        return made[0] if len(made) == 1 else made

    def replace(self, obj):
        return self.call("PUT", self._own_path(obj), obj)

    def apply(self, *objs):
        """Creates, or replaces what is there."""
        for o in objs:
            try:
                self.create(o)
            except ApiError as e:
                if e.code != 409:
                    raise
                self.replace(o)

    def get(self, kind, namespace, name):
        return self.call("GET", self.path(kind, namespace, name))

    def patch(self, kind, namespace, name, patch):
        return self.call("PATCH", self.path(kind, namespace, name), patch, "application/merge-patch+json")

    def delete(self, kind, namespace, name, missing_ok=False):
        try:
            return self.call("DELETE", self.path(kind, namespace, name))
        except ApiError as e:
            if not (missing_ok and e.code == 404):
                raise

    def delete_all(self, kind, namespace=None):
        return self.call("DELETE", self.path(kind, namespace))

    def list(self, kind, namespace=None):
        return self.call("GET", self.path(kind, namespace))["items"]

    def create_yaml(self, text):
        """Creates every object of a multi-document YAML text; returns them as the server stored them."""
        made = []
        for doc in re.split(r"(?m)^---[ \t]*$", text):
            if not re.search(r"(?m)^kind:", doc):
                continue
            kind = re.search(r"(?m)^kind:\s*\"?(\w+)", doc).group(1)
            namespace = re.search(r"(?m)^  namespace:\s*\"?([\w.-]+)", doc)
            path = self.path(kind, namespace.group(1) if namespace else "default")
            made.append(self.call("POST", path, doc.encode(), "application/yaml"))
        return made

    def service_account_token(self, namespace, name, seconds=3600, bound_secret=None):
        """A real bound token through the TokenRequest API."""
        spec = {"expirationSeconds": seconds}
        if bound_secret:
            spec["boundObjectRef"] = {"kind": "Secret", "apiVersion": "v1", "name": bound_secret}
        return self.call("POST", self.path("ServiceAccount", namespace, name) + "/token",
                         {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
                         )["status"]["token"]

    def namespace(self, name):
        try:
            self.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        except ApiError as e:
            if e.code != 409:
                raise
        return name


# ------------------------------------------------------------------ objects

def ingress(namespace, name, rules=(), cls="ramjet", default=None, annotations=None, **spec):
    """rules: tuples (host or None, path or None, type, service, port[name or number])."""
    meta = {"namespace": namespace, "name": name}
    if annotations:
        meta["annotations"] = annotations
    if cls:
        spec["ingressClassName"] = cls
    if default:
        spec["defaultBackend"] = backend(*default)
    by_host = {}
    for host, path, path_type, service_name, port in rules:
        entry = {"pathType": path_type, "backend": backend(service_name, port)}
        if path is not None:
            entry["path"] = path
        by_host.setdefault(host, []).append(entry)
    if by_host:
        spec["rules"] = [dict({"http": {"paths": p}}, **({"host": h} if h else {})) for h, p in by_host.items()]
    return {"apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "metadata": meta, "spec": spec}


def backend(service_name, port):
    return {"service": {"name": service_name, "port": {"name" if isinstance(port, str) else "number": port}}}


def ingress_class(name, controller="ramjet.io/ingress-controller", is_default=False):
    meta = {"name": name}
    if is_default:
        meta["annotations"] = {"ingressclass.kubernetes.io/is-default-class": "true"}
    return {"apiVersion": "networking.k8s.io/v1", "kind": "IngressClass", "metadata": meta,
            "spec": {"controller": controller}}


def service(namespace, name, ports=((None, 80),), **spec):
    """ports: tuples (name or None, number)."""
    if ports:
        spec["ports"] = [dict({"port": number, "protocol": "TCP"}, **({"name": n} if n else {})) for n, number in ports]
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"namespace": namespace, "name": name}, "spec": spec}


def slice_(namespace, service_name, endpoints, port=8080, port_name=None, name=None, family="IPv4", ports=None, **top):
    """endpoints: addresses, or tuples (address, conditions dict or None)."""
    items = []
    for e in endpoints:
        address, conditions = e if isinstance(e, tuple) else (e, {"ready": True})
        item = {"addresses": [address] if isinstance(address, str) else list(address)}
        if conditions is not None:
            item["conditions"] = conditions
        items.append(item)
    if ports is None:
        ports = [dict({"port": port, "protocol": "TCP"}, **({"name": port_name} if port_name else {}))]
    return dict({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
                 "metadata": {"namespace": namespace, "name": name or service_name + "-1",
                              "labels": {"kubernetes.io/service-name": service_name}},
                 "addressType": family, "endpoints": items, "ports": ports}, **top)


def app(namespace, name, address, port=8080):
    """A service with one port (80, unnamed) and one ready endpoint."""
    return service(namespace, name), slice_(namespace, name, [address], port)


# -------------------------------------------------------------- kubeconfigs

def kubeconfig(path, url, ca=None, token=None, token_file=None, cert=None, cert_data=None, ca_data=None,
               insecure=False, form="json", user_extra=None, cluster_extra=None):
    """Writes a kubeconfig in JSON or in kubectl's YAML; returns the path."""
    def b64(file):
        with open(file, "rb") as f:
            return base64.b64encode(f.read()).decode()
    cluster, user = {}, {}
    if ca_data:
        cluster["certificate-authority-data"] = b64(ca_data)
    if ca:
        cluster["certificate-authority"] = ca
    if insecure:
        cluster["insecure-skip-tls-verify"] = True
    cluster["server"] = url
    cluster.update(cluster_extra or {})
    if cert:
        user["client-certificate"], user["client-key"] = cert
    if cert_data:
        user["client-certificate-data"], user["client-key-data"] = b64(cert_data[0]), b64(cert_data[1])
    if token:
        user["token"] = token
    if token_file:
        user["tokenFile"] = token_file
    user.update(user_extra or {})
    if form == "json":
        text = json.dumps({
            "apiVersion": "v1", "kind": "Config", "current-context": "test", "preferences": {},
            "clusters": [{"name": "other", "cluster": {"server": "https://10.77.255.1:1"}},
                         {"name": "test-cluster", "cluster": cluster}],
            "users": [{"name": "other", "user": {}}, {"name": "test-user", "user": user}],
            "contexts": [{"name": "other", "context": {"cluster": "other", "user": "other"}},
                         {"name": "test", "context": {"cluster": "test-cluster", "user": "test-user"}}]}, indent=1)
    else:
        def block(fields, indent):
            return _yaml(fields, indent) if fields else " " * indent + "{}\n"
        text = ("apiVersion: v1\nclusters:\n- cluster:\n    server: https://10.77.255.1:1\n  name: other\n"
                "- cluster:\n" + block(cluster, 4) + "  name: test-cluster\n"
                "contexts:\n- context:\n    cluster: other\n    user: other\n  name: other\n"
                "- context:\n    cluster: test-cluster\n    user: test-user\n  name: test\n"
                "current-context: test\nkind: Config\npreferences: {}\nusers:\n- name: other\n  user: {}\n"
                "- name: test-user\n  user:\n" + block(user, 4))
    with open(path, "w") as f:
        f.write(text)
    return path


def _yaml(fields, indent):
    """Nested mappings, lists of scalars or mappings: what a kubeconfig holds."""
    pad, out = " " * indent, ""
    for key, value in fields.items():
        if isinstance(value, dict):
            out += "%s%s:\n%s" % (pad, key, _yaml(value, indent + 2))
        elif isinstance(value, list):
            out += "%s%s:\n" % (pad, key) + "".join("%s- %s\n" % (pad, v) for v in value)
        else:
            out += "%s%s: %s\n" % (pad, key, {True: "true", False: "false"}.get(value, value) if isinstance(value, bool) else value)
    return out


def service_account_dir(folder, ca, token, namespace="default"):
    """The three files that a kubelet mounts."""
    os.makedirs(folder, exist_ok=True)
    shutil.copyfile(ca, os.path.join(folder, "ca.crt"))
    write_file(os.path.join(folder, "token"), token)
    write_file(os.path.join(folder, "namespace"), namespace)
    return folder


def write_file(path, text):
    """Replaces a file by rename, as a kubelet and careful editors do."""
    temporary = path + ".new"
    with open(temporary, "w") as f:
        f.write(text)
    os.rename(temporary, path)


# ---------------------------------------------------------------- upstreams

class Upstreams:
    """HTTP servers on any number of addresses, one asyncio thread for all.

    The answer of each is its own address, in the body and in X-Upstream; the
    request head comes back in X-Method, X-Path and X-Host."""

    def __init__(self):
        self.loop = asyncio.new_event_loop()
        self.servers, self.requests = {}, []
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()

    def _call(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(10)

    def add(self, address, port=8080):
        """Listens (once) and returns "address:port" as Ramjet writes it."""
        name = "[%s]:%d" % (address, port) if ":" in address else "%s:%d" % (address, port)
        if name not in self.servers:
            async def listen():
                return await asyncio.start_server(lambda r, w: self._serve(name, r, w), address, port, backlog=512)
            self.servers[name] = self._call(listen())
        return name

    def remove(self, name):
        server = self.servers.pop(name)

        async def stop():
            server.close()
        self._call(stop())

    def close(self):
        for name in list(self.servers):
            self.remove(name)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(5)

    async def _serve(self, name, reader, writer):
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                line, *fields = head.split("\r\n")
                method, path, _version = line.split(" ", 2)
                headers = {k.strip().lower(): v.strip() for k, _, v in (f.partition(":") for f in fields if f)}
                if "content-length" in headers:
                    await reader.readexactly(int(headers["content-length"]))
                self.requests.append((name, method, path, headers))
                body = name.encode()
                writer.write(("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %d\r\nX-Upstream: %s\r\n"
                              "X-Method: %s\r\nX-Path: %s\r\nX-Host: %s\r\n\r\n"
                              % (len(body), name, method, path, headers.get("host", ""))).encode("latin-1")
                             + (b"" if method == "HEAD" else body))
                await writer.drain()
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError, ValueError):
            pass
        finally:
            writer.close()


class Dns:
    """A DNS server with a fixed table: name -> list of IPv4 or IPv6 addresses."""

    def __init__(self, address=DNS_IP, port=53):
        self.table, self.queries = {}, []
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind((address, port))
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self):
        while True:
            try:
                query, peer = self.socket.recvfrom(2048)
            except OSError:
                return
            try:
                self.socket.sendto(self._answer(query), peer)
            except (IndexError, struct.error, OSError):
                continue

    def _answer(self, query):
        labels, at = [], 12
        while query[at]:
            labels.append(query[at + 1:at + 1 + query[at]].decode("latin-1"))
            at += 1 + query[at]
        name = ".".join(labels).lower()
        kind = struct.unpack(">H", query[at + 1:at + 3])[0]
        question = query[12:at + 5]
        self.queries.append((name, kind))
        addresses = self.table.get(name)
        family = {1: socket.AF_INET, 28: socket.AF_INET6}.get(kind)
        records = [socket.inet_pton(family, a) for a in addresses or () if family and (":" in a) == (kind == 28)]
        flags = 0x8180 | (0 if addresses is not None else 3)
        answer = query[:2] + struct.pack(">HHHHH", flags, 1, len(records), 0, 0) + question
        for r in records:
            answer += struct.pack(">HHHIH", 0xC00C, kind, 1, 1, len(r)) + r
        return answer

    def close(self):
        self.socket.close()


# -------------------------------------------------------------- HTTP client

class Answer:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body
        self.upstream = headers.get("x-upstream")
        self.path = headers.get("x-path")

    def __repr__(self):
        return "Answer(%d, upstream=%s, %r)" % (self.status, self.upstream, self.body[:80])


class Http:
    """A keep-alive HTTP/1.1 client for one address; reconnects when told to close."""

    def __init__(self, address, timeout=10):
        self.address, self.timeout, self.conn = address, timeout, None

    def ask(self, host=None, path="/", method="GET", body=None, headers=None):
        for attempt in (0, 1):
            fresh = self.conn is None
            if fresh:
                self.conn = http.client.HTTPConnection(*self.address, timeout=self.timeout)
            try:
                self.conn.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
                self.conn.putheader("Host", host or "%s:%d" % self.address)
                for k, v in (headers or {}).items():
                    self.conn.putheader(k, v)
                if body is not None:
                    self.conn.putheader("Content-Length", str(len(body)))
                self.conn.endheaders(body)
                r = self.conn.getresponse()
                answer = Answer(r.status, {k.lower(): v for k, v in r.getheaders()}, r.read())
                if r.will_close:
                    self.close()
                return answer
            except (OSError, http.client.HTTPException):
                self.close()
                if fresh or attempt:
                    raise

    def close(self):
        if self.conn:
            self.conn.close()
            self.conn = None


# ------------------------------------------------------------------- Ramjet

def ramjet_binary():
    return os.path.abspath(os.path.join(ROOT, os.environ.get("RAMJET_BIN", "ramjet")))


class Ramjet:
    """One running Ramjet. Options are keyword arguments with underscores:
    Ramjet("epoll", kubeconfig=path, watch_namespace="a").start()"""

    count = 0

    def __init__(self, engine, env=None, config=None, folder=None, **options):
        Ramjet.count += 1
        self.folder = folder or os.path.join(WORK, "ramjet")
        os.makedirs(self.folder, exist_ok=True)
        self.address = (EDGE_IP, new_port())
        self.admin_address = ("127.0.0.1", new_port())
        self.options = dict(engine=engine, http="%s:%d" % self.address, admin="%s:%d" % self.admin_address,
                            worker_processes=2)
        self.options.update(options)
        self.config = config
        self.env = dict((k, v) for k, v in os.environ.items()
                        if not k.startswith(("RAMJET_", "KUBERNETES_")) and k != "KUBECONFIG")
        self.env.update(env or {})
        name = "%03d-%s" % (Ramjet.count, engine)
        self.out_path = os.path.join(self.folder, name + ".out")
        self.log_path = os.path.join(self.folder, name + ".log")
        self.process = None
        self.http = Http(self.address)
        self.admin = Http(self.admin_address)

    def command(self):
        args = [ramjet_binary(), "run"]
        if self.config:
            args += ["--config", self.config]
        for key, value in self.options.items():
            if value is not None:
                args += ["--" + key.replace("_", "-"), {True: "true", False: "false"}.get(value, str(value))
                         if isinstance(value, bool) else str(value)]
        return args

    def start(self, ready=True, timeout=15):
        with open(self.out_path, "wb") as out, open(self.log_path, "wb") as log:
            self.started_at = time.monotonic()
            self.process = subprocess.Popen(self.command(), stdout=out, stderr=log, stdin=subprocess.DEVNULL,
                                            env=self.env, cwd=self.folder)
        if ready:
            self.wait_ready(timeout)
        return self

    def alive(self):
        if self.process.poll() is not None:
            raise RuntimeError("ramjet ended with status %s:\n%s" % (self.process.returncode, self.log()[-4000:]))
        return True

    def wait_ready(self, timeout=15):
        try:
            return eventually(lambda: self.alive() and self.is_ready(), timeout, "ramjet ready")
        except AssertionError as e:
            raise AssertionError("%s\nreadyz: %s\n%s" % (e, self.readyz(), self.log()[-4000:])) from None

    def readyz(self):
        try:
            return self.admin.ask(path="/readyz")
        except (OSError, http.client.HTTPException) as e:
            return Answer(0, {}, str(e).encode())

    def is_ready(self):
        return self.readyz().status == 200

    def stop(self):
        self.http.close()
        self.admin.close()
        end_process(self.process)

    def __enter__(self):
        return self if self.process else self.start()

    def __exit__(self, *_):
        self.stop()

    def log(self):
        with open(self.log_path, errors="replace") as f:
            return f.read()

    def ask(self, host=None, path="/", **more):
        return self.http.ask(host, path, **more)

    def fetch_json(self, path):
        a = self.admin.ask(path=path)
        assert a.status == 200, a
        return json.loads(a.body)

    def routes(self):
        return self.fetch_json("/admin/routes")["routes"]

    def route_set(self):
        """(host, path, source) of every route, for comparisons with the API server."""
        return {(r["host"], r["path"], r["source"]) for r in self.routes()}

    def generation(self):
        return self.fetch_json("/admin/generations")["serving"]

    def metric(self, name, **labels):
        """Sum of the samples with these labels; None when there is none."""
        total, found = 0.0, False
        for line in self.admin.ask(path="/metrics").body.decode().split("\n"):
            m = re.match(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)", line)
            if not m or m.group(1) != name:
                continue
            have = dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', m.group(2) or ""))
            if all(have.get(k) == v for k, v in labels.items()):
                total, found = total + float(m.group(3)), True
        return total if found else None

    # Expectations, each waiting for its condition.

    def expect(self, host, path="/", upstream=None, status=200, timeout=10, **more):
        """Waits until the request is answered by the upstream (or with the status)."""
        def check():
            self.alive()
            a = self.ask(host, path, **more)
            assert a.status == status and (upstream is None or a.upstream == upstream), a
            return a
        return eventually(check, timeout, "%s%s answered by %s with %d" % (host, path, upstream, status))

    def expect_spread(self, host, path, upstreams, timeout=10):
        """Waits until the requests are spread over exactly these upstreams."""
        want = set(upstreams)

        def check():
            self.alive()
            got = [self.ask(host, path) for _ in range(3 * len(want) + 4)]
            assert all(a.status == 200 for a in got) and {a.upstream for a in got} == want, got
            return True
        return eventually(check, timeout, "%s%s spread over %s" % (host, path, sorted(want)))

    def expect_log(self, pattern, timeout=10):
        return eventually(lambda: re.search(pattern, self.log()), timeout, "log line matching %r" % pattern, every=0.01)


if __name__ == "__main__":
    if len(sys.argv) < 3 or sys.argv[1] != "--in-namespace":
        sys.exit("usage: harness.py --in-namespace COMMAND [ARGUMENT...]")
    sys.exit(run_in_namespace(sys.argv[2:]))


# ---------------------------------------------------------------- load

class Steady:
    """A steady load (load steady --FLAG VALUE ...) whose end gives its figures."""

    def __init__(self, r, host="", **flags):
        args = [LOAD, "steady", "--addr", "%s:%d" % r.address, "--host", host]
        for k, v in flags.items():
            args += ["--" + k, str(v)]
        self.run = subprocess.Popen(args, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        line = self.run.stderr.readline()
        assert line == "started\n", line

    def mark(self, name):
        self.run.stdin.write("mark %s\n" % name)
        self.run.stdin.flush()

    def stop(self):
        out, err = self.run.communicate("stop\n", timeout=60)
        assert out, err
        return json.loads(out)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.run.poll() is None:
            self.run.kill()
            self.run.communicate()
