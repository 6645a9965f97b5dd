"""The Helm chart on a real API server: its manifests are accepted, and its ServiceAccount is enough, and no more."""

import os
import shutil
import subprocess

import pytest

from conftest import need
from harness import BUILD, ROOT, SERVER_IP, app, eventually, ingress, service_account_dir

A = "10.77.1.1:8080"
SPACE = "ramjet-system"


def helm():
    built = os.path.join(BUILD, "tools", "helm")
    return built if os.path.exists(built) else shutil.which("helm")


def render(*values):
    need(helm(), "helm is missing")
    need(os.path.exists(os.path.join(ROOT, "chart", "Chart.yaml")), "chart/ is missing")
    done = subprocess.run([helm(), "template", "edge", os.path.join(ROOT, "chart"), "--namespace", SPACE, *values],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="session")
def installed(api):
    """What the server stored of the chart's manifests."""
    text = render("--set", "ingressClass.name=charted", "--set", "ingressClass.controller=test.io/charted")
    kube = api.client()
    kube.namespace(SPACE)
    made = kube.create_yaml(text)
    yield made
    for obj in reversed(made):
        kube.delete(obj["kind"], obj["metadata"].get("namespace"), obj["metadata"]["name"], missing_ok=True)
    kube.close()


def of_kind(objs, *kinds):
    return [o for o in objs if o["kind"] in kinds]


@pytest.fixture(scope="session")
def token(api, installed):
    account = of_kind(installed, "ServiceAccount")[0]["metadata"]
    kube = api.client()
    yield kube.service_account_token(account["namespace"], account["name"])
    kube.close()


def test_manifests_are_complete(installed):
    kinds = {o["kind"] for o in installed}
    assert kinds >= {"Service", "IngressClass", "ServiceAccount", "ClusterRole", "ClusterRoleBinding"}, kinds
    assert len(of_kind(installed, "Deployment", "DaemonSet")) == 1, kinds


@pytest.mark.parametrize("kind", ["Deployment", "DaemonSet"])
def test_pod_is_locked_down(api, kind):
    """Deployment and DaemonSet are both accepted, and both run without rights."""
    kube = api.client()
    space = kube.namespace(SPACE + "-" + kind.lower())
    text = render("--set", "kind=" + kind).replace("namespace: " + SPACE, "namespace: " + space)
    docs = [d for d in text.split("\n---") if "kind: " + kind in d]
    assert docs, "the chart makes a %s with --set kind=%s" % (kind, kind)
    obj = kube.create_yaml("---\n".join(docs))[0]
    pod = obj["spec"]["template"]["spec"]
    box = pod["containers"][0]
    inner, outer = box.get("securityContext", {}), pod.get("securityContext", {})
    assert inner.get("readOnlyRootFilesystem") is True
    assert inner.get("allowPrivilegeEscalation") is False
    assert inner.get("capabilities", {}).get("drop") == ["ALL"]
    assert dict(outer, **inner).get("runAsNonRoot") is True
    assert dict(outer, **inner).get("seccompProfile") == {"type": "RuntimeDefault"}
    assert box["livenessProbe"]["httpGet"]["path"] == "/healthz"
    assert box["readinessProbe"]["httpGet"]["path"] == "/readyz"
    kube.delete(kind, space, obj["metadata"]["name"])
    kube.close()


def test_runs_with_the_charts_service_account(ramjet, api, kube, ns, host, installed, token, tmp_path):
    """In-cluster mode, with the token of the chart's own ServiceAccount: RBAC is enough."""
    name = of_kind(installed, "IngressClass")[0]["metadata"]["name"]
    controller = of_kind(installed, "IngressClass")[0]["spec"]["controller"]
    folder = service_account_dir(str(tmp_path / "sa"), api.ca.cert, token, SPACE)
    kube.create(*app(ns, "web", "10.77.1.1"), ingress(ns, "web", [(host, "/", "Prefix", "web", 80)], cls=name))
    r = ramjet(kubeconfig=None, serviceaccount_dir=folder, ingress_class=name, controller_class=controller,
               env={"KUBERNETES_SERVICE_HOST": SERVER_IP, "KUBERNETES_SERVICE_PORT": str(api.port)})
    r.expect(host, "/", A)
    kube.create(ingress(ns, "next", [("next." + host, "/", "Prefix", "web", 80)], cls=name))
    r.expect("next." + host, "/", A)
    assert "403" not in r.log() and "orbidden" not in r.log(), r.log()[-2000:]


def test_a_token_without_rights_is_named(ramjet, api, ns, tmp_path):
    folder = service_account_dir(str(tmp_path / "sa"), api.ca.cert, "nobody-token", SPACE)
    r = ramjet(ready=False, kubeconfig=None, serviceaccount_dir=folder,
               env={"KUBERNETES_SERVICE_HOST": SERVER_IP, "KUBERNETES_SERVICE_PORT": str(api.port)})
    r.expect_log(r"(?m)^\S+ (warn|error) .*(403|[Ff]orbidden)")
    assert r.readyz().status == 503


def test_rights_are_exactly_the_verbs_used(on_fake, fake, installed):
    """The rules of the chart's ClusterRole are what Ramjet asks for, seen from the server's side."""
    granted = set()
    for role in of_kind(installed, "ClusterRole", "Role"):
        for rule in role["rules"]:
            assert "*" not in rule["verbs"] + rule["resources"] + rule["apiGroups"], rule
            granted |= {(g, res, verb) for g in rule["apiGroups"] for res in rule["resources"] for verb in rule["verbs"]}
    r = on_fake()
    eventually(lambda: len({w.request.kind for w in fake.watches}) >= 4, 5, "every watch is open")
    used = set()
    for q in fake.requests:
        if q.kind:
            group = q.path.split("/")[2] if q.path.startswith("/apis/") else ""
            plural = [part for part in q.path.split("/")][-1]
            used.add((group, plural, q.verb))
    assert used <= granted, used - granted
    assert granted <= used, granted - used
    r.stop()


@pytest.mark.parametrize("method,path", [
    ("GET", "/api/v1/secrets"), ("GET", "/api/v1/pods"), ("GET", "/api/v1/namespaces"), ("GET", "/api/v1/nodes"),
    ("DELETE", "/apis/networking.k8s.io/v1/namespaces/default/ingresses/none"),
    ("DELETE", "/api/v1/namespaces/default/services/none"),
])
def test_other_rights_are_refused(api, token, method, path):
    client = api.client(token)
    assert client.raw(method, path)[0] == 403
    client.close()
