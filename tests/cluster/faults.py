"""Faults of an API server, each with a beginning and an end. FAULTS and REAL_FAULTS are the tables; run_fault() puts one upon a running
Ramjet beside a load, with changes made meanwhile, and measures:

    healed_s   from the end of the fault until the store equals the server's and a change made during the fault is served
    cpu        CPU seconds per second of the fault, of all threads (from /proc/PID/stat); idle_cpu is the same load before it
    told       lines of the log about it; recovered: lines that say it is over
"""

import os
import re
import threading
import time

from harness import SERVER_SANS, app, eventually, ingress, service_account_dir, write_file
from scripted import status

CONTROL = re.compile(r"(?m)^\S+ (?:warn|error) (?:k8s|ctl|dns): .*$")
RECOVERED = re.compile(r"(?m)^\S+ info k8s: .*recovered, watching$")
TICK = os.sysconf("SC_CLK_TCK")


def cpu_s(pid):
    """User and system time of the process in seconds (proc_pid_stat(5))."""
    with open("/proc/%d/stat" % pid) as f:
        fields = f.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICK


class Stage:
    """What a fault works on: the scripted server, both CAs, and the service account's folder that Ramjet reads."""

    def __init__(self, server, ca, other_ca, folder):
        self.server, self.ca, self.other_ca, self.folder = server, ca, other_ca, folder
        self.rules = []
        service_account_dir(folder, ca.cert, server.token)

    def options(self):
        """Options of the Ramjet that finds the server as a pod does."""
        host, port = re.match(r"https://(.*):(\d+)$", self.server.url).groups()
        return dict(kubeconfig=None, serviceaccount_dir=self.folder,
                    env={"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port})

    def reconnect(self):
        self.server.unlisten()
        self.server.listen()

    def rule(self, action, **which):
        self.rules.append(self.server.on(action, times=1 << 30, **which))

    def end_rules(self):
        for r in self.rules:
            r["left"] = 0
        self.rules = []


class Fault:
    """max_told: lines that it may cost. is_visible: false for what Ramjet need not notice at all."""

    max_told, is_visible = 2, True

    def begin(self, stage):
        raise NotImplementedError

    def end(self, stage):
        raise NotImplementedError


class Killed(Fault):
    def begin(self, stage):
        stage.server.unlisten("reset")

    def end(self, stage):
        stage.server.listen()


class Deaf(Fault):
    """Connections are taken, and nothing is ever said on them."""

    def begin(self, stage):
        stage.server.deaf.clear()
        stage.reconnect()

    def end(self, stage):
        stage.server.deaf.set()


class Slow(Fault):
    """Every answer comes half a second late, in pieces of 100 bytes with pauses."""

    is_visible = False

    def begin(self, stage):
        stage.server.write_size, stage.server.pause_s = 100, 0.5
        stage.server.drop_watches("end")

    def end(self, stage):
        stage.server.write_size, stage.server.pause_s = None, 0


class Flapping(Fault):
    """The server is there for a moment, then not, and so on."""

    max_told = 3

    def begin(self, stage):
        self.over = threading.Event()

        def flap():
            while not self.over.wait(0.3):
                stage.server.unlisten("reset")
                self.over.wait(0.3)
                stage.server.listen()
        self.thread = threading.Thread(target=flap, daemon=True)
        self.thread.start()

    def end(self, stage):
        self.over.set()
        self.thread.join()
        stage.server.listen()


class WatchesEndAtOnce(Fault):
    """Every watch is taken, and ends (or breaks) with its first bytes."""

    def __init__(self, how):
        self.how = how

    def begin(self, stage):
        def act(conn, _request):
            conn.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
            if self.how == "end":
                conn.write(b"0\r\n\r\n")
            else:
                conn.reset()
        stage.rule(act, verb="watch")
        stage.server.drop_watches("end")

    def end(self, stage):
        stage.end_rules()


class OneKind(Fault):
    """One kind is refused, the others work."""

    def __init__(self, code, kind, verb=None):
        self.code, self.kind, self.verb = code, kind, verb

    def begin(self, stage):
        stage.rule(status(self.code), kind=self.kind, verb=self.verb)
        stage.server.drop_watches("reset", self.kind)

    def end(self, stage):
        stage.end_rules()


class AlwaysGone(Fault):
    """Every watch of a kind is too old, however fresh the list."""

    max_told = 0

    def begin(self, stage):
        stage.rule(status(410), kind="Ingress", verb="watch")
        stage.server.drop_watches("end", "Ingress")

    def end(self, stage):
        stage.end_rules()


class Certificate(Fault):
    """Another certificate, one that is not valid now by Ramjet's clock."""

    def __init__(self, name, **dates):
        self.name, self.dates = name, dates

    def begin(self, stage):
        stage.server.use_certificate(*stage.ca.issue(self.name, "/CN=scripted", SERVER_SANS, **self.dates))
        stage.reconnect()

    def end(self, stage):
        stage.server.use_certificate(*stage.ca.issue("scripted", "/CN=scripted", SERVER_SANS))
        stage.reconnect()


class CertificateRenewed(Fault):
    """Another key and certificate of the same CA: nothing that needs a word but the broken connections."""

    def begin(self, stage):
        stage.server.use_certificate(*stage.ca.issue("renewed", "/CN=scripted", SERVER_SANS))
        stage.reconnect()

    def end(self, stage):
        pass


class Date(Fault):
    """The server's clock is decades off: its Date field says so."""

    is_visible = False

    def begin(self, stage):
        stage.server.date = "Tue, 01 Jan 1980 00:00:00 GMT"
        stage.server.drop_watches("end")

    def end(self, stage):
        stage.server.date = None


class CaReplaced(Fault):
    """The server has a certificate of another CA; the end is the new ca.crt."""

    def begin(self, stage):
        stage.server.use_certificate(*stage.other_ca.issue("scripted-other", "/CN=scripted", SERVER_SANS))
        stage.reconnect()

    def end(self, stage):
        service_account_dir(stage.folder, stage.other_ca.cert, stage.server.token)


class TokenExpired(Fault):
    """401 for all; the end is the new token in its file."""

    def begin(self, stage):
        stage.server.tokens = {"renewed-token"}
        stage.server.drop_watches("end")

    def end(self, stage):
        write_file(os.path.join(stage.folder, "token"), "renewed-token")


class TokenUnreadable(TokenExpired):
    """The same, and the file is a link to nowhere meanwhile."""

    max_told = 3

    def begin(self, stage):
        path = os.path.join(stage.folder, "token")
        os.symlink(os.path.join(stage.folder, "nowhere"), path + ".link")
        os.rename(path + ".link", path)
        super().begin(stage)


FAULTS = {
    "410 to every watch of one kind": AlwaysGone(),
    "403 for one kind": OneKind(403, "EndpointSlice"),
    "500 for one kind": OneKind(500, "Ingress"),
    "500 for the watches of one kind": OneKind(500, "Service", "watch"),
    "CA replaced": CaReplaced(),
    "a clock decades off (Date)": Date(),
    "certificate expired": Certificate("expired", dates=("20200101000000Z", "20210101000000Z")),
    "certificate not yet valid": Certificate("future", dates=("20400101000000Z", "20410101000000Z")),
    "certificate renewed": CertificateRenewed(),
    "flapping": Flapping(),
    "killed": Killed(),
    "no answer at all": Deaf(),
    "slow": Slow(),
    "token expired": TokenExpired(),
    "token expired, its file a link to nowhere": TokenUnreadable(),
    "watches break at once": WatchesEndAtOnce("reset"),
    "watches end at once": WatchesEndAtOnce("end"),
}


# ------------------------------------------------------------------ the real server

class RealStage(Stage):
    """The real API server and a service account of it, whose bound token its Secret revokes."""

    def __init__(self, api, kube, other_ca, ns, folder):
        self.api, self.kube, self.other_ca, self.ns, self.folder = api, kube, other_ca, ns, folder
        self.server, self.was = api, (api.ca, api.cert, api.key)
        kube.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"namespace": ns, "name": "edge"}},
                    {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": ns},
                     "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
                     "subjects": [{"kind": "ServiceAccount", "namespace": ns, "name": "edge"}]})
        kube.create(*app(ns, "web", "10.77.1.1"), *app(ns, "two", "10.77.1.2"), ingress(ns, "web", [("web." + ns, "/", "Prefix", "web", 80)]))
        self.serial = 0
        service_account_dir(folder, api.ca.cert, self.token(), ns)

    def token(self):
        self.serial += 1
        name = "token%d" % self.serial
        self.kube.create({"apiVersion": "v1", "kind": "Secret", "metadata": {"namespace": self.ns, "name": name}})
        return self.kube.service_account_token(self.ns, "edge", bound_secret=name)

    def restart(self):
        self.api.kill()
        self.api.start()

    def trust(self, ca, cert, key):
        """The server and the test's own client go on with this CA and certificate."""
        self.api.kill()
        self.api.ca, self.api.cert, self.api.key = ca, cert, key
        self.api.start()
        fresh = self.api.client()
        self.kube.close()
        self.kube.context = fresh.context

    def close(self):
        if self.api.process.poll() is not None:
            self.api.start()
        if self.api.ca is not self.was[0]:
            self.trust(*self.was)
        self.kube.delete("ClusterRoleBinding", None, self.ns)
        for kind in ("Ingress", "EndpointSlice", "Service", "Secret"):
            self.kube.delete_all(kind, self.ns)
        self.kube.delete("ServiceAccount", self.ns, "edge")


class RealKilled(Fault):
    def begin(self, stage):
        stage.api.kill()

    def end(self, stage):
        stage.api.start()


class RealTokenRevoked(Fault):
    def begin(self, stage):
        stage.kube.delete("Secret", stage.ns, "token%d" % stage.serial)
        stage.restart()                 # it would remember the token for 10 s

    def end(self, stage):
        write_file(os.path.join(stage.folder, "token"), stage.token())


class RealCaReplaced(Fault):
    def begin(self, stage):
        stage.trust(stage.other_ca, *stage.other_ca.issue("real-other", "/CN=kube-apiserver", SERVER_SANS))

    def end(self, stage):
        write_file(os.path.join(stage.folder, "ca.crt"), open(stage.other_ca.cert).read())


REAL_FAULTS = {
    "CA replaced": RealCaReplaced(),
    "killed": RealKilled(),
    "token revoked": RealTokenRevoked(),
}


def run_real_fault(fault, stage, r, load, seconds, serial, wait_s=30):
    """As run_fault. A server that is dead takes no change: it gets it when it is back, and the time until then is not Ramjet's."""
    kube, ns, host = stage.kube, stage.ns, "next%d.%s" % (serial, stage.ns)

    def change():
        kube.create(ingress(ns, "next%d" % serial, [(host, "/", "Prefix", "two", 80)]))
        kube.delete("Ingress", ns, "next%d" % (serial - 1), missing_ok=True)

    def end():
        fault.end(stage)
        if isinstance(fault, RealKilled):
            change()

    def is_right():
        a = r.ask(host)
        return a.status == 200 and a.upstream == "10.77.1.2:8080" and r.route_set() == {
            (rule["host"], p["path"], ns + "/" + i["metadata"]["name"]) for i in kube.list("Ingress", ns) for rule in i["spec"]["rules"] for p in rule["http"]["paths"]}
    return measure(r, load, seconds, lambda: fault.begin(stage), (lambda: None) if isinstance(fault, RealKilled) else change, end, is_right, wait_s)


# ------------------------------------------------------------------ running one

def hosts_of(server):
    """(host, path, source) of every rule in the scripted server's store."""
    return {(rule["host"], p["path"], "%s/%s" % key) for key, o in server.store["Ingress"].items()
            for rule in o["spec"].get("rules", []) for p in rule["http"]["paths"]}


def lines_since(r, at):
    text = r.log()[at:]
    return CONTROL.findall(text), RECOVERED.findall(text)


def measure(r, load, seconds, begin, change, end, is_right, wait_s=30):
    """The fault lasts that long, with the change in its middle. The load runs beside it from before to after."""
    at = len(r.log())
    load.mark("quiet")
    before, began = cpu_s(r.process.pid), time.monotonic()
    eventually(lambda: time.monotonic() - began >= max(1.0, seconds / 4), 60, every=0.02)
    idle = (cpu_s(r.process.pid) - before) / (time.monotonic() - began)
    load.mark("fault")
    before, began = cpu_s(r.process.pid), time.monotonic()
    begin()
    change()
    eventually(lambda: time.monotonic() - began >= seconds, seconds + 60, every=0.02)
    took = time.monotonic() - began
    cpu = (cpu_s(r.process.pid) - before) / took
    load.mark("after")
    end()
    ended = time.monotonic()
    eventually(is_right, wait_s, "the store is right", every=0.01)
    healed = time.monotonic() - ended
    told, _ = lines_since(r, at)
    if told:
        eventually(lambda: lines_since(r, at)[1], 20, "the log says that it is over", every=0.05)
    told, recovered = lines_since(r, at)
    return {"fault_s": round(took, 2), "healed_s": round(healed, 3), "cpu": round(cpu, 4), "idle_cpu": round(idle, 4), "told": told, "recovered": recovered}


def put_change(server, serial):
    """A change that one kind alone cannot show: an application comes, and another goes. Nobody is told who does not watch."""
    from conftest import publish
    publish(server, "next%d" % serial, "next%d.test" % serial, "10.77.1.2")
    if ("shop", "next%d" % (serial - 1)) in server.store["Ingress"]:
        server.delete("Ingress", "shop", "next%d" % (serial - 1))


def run_fault(fault, stage, r, load, seconds, serial, wait_s=30):
    server = stage.server

    def is_right():
        a = r.ask("next%d.test" % serial)
        return a.status == 200 and a.upstream == "10.77.1.2:8080" and r.route_set() == hosts_of(server)
    return measure(r, load, seconds, lambda: fault.begin(stage), lambda: put_change(server, serial), lambda: fault.end(stage), is_right, wait_s)
