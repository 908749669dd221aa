"""What is asked of a Kubernetes cluster, with a `kubectl` that knows these objects."""

import json
import stat
import sys

import pytest
import yaml

from cluster.kuberay import preflight
from tests.unit.cluster.kuberay.test_rollout import KUEUE, UPGRADE, settings_of

CRD = {"spec": {"versions": [{"name": "v1", "served": True}]}}
RAYSERVICE = {"spec": {"versions": [{"name": "v1", "schema": {"upgradeStrategy": {"clusterUpgradeOptions": {}}}}]}}
VOLCANO = {"name": "gpus", "scheduler": "volcano"}


def operator(image="quay.io/kuberay/operator:v1.7.0", *arguments):
    container = {"image": image, "command": ["/manager"], "args": list(arguments)}
    other = {"image": "registry.example.com/proxy:v1.2", "args": []}
    return {"items": [{"spec": {"template": {"spec": {"containers": [other, container]}}}}]}


def gateway_class(status="True"):
    return {"status": {"conditions": [{"type": "Accepted", "status": status}]}}


ALL = {
    "crd rayservices.ray.io": RAYSERVICE,
    "crd gateways.gateway.networking.k8s.io": CRD,
    "crd httproutes.gateway.networking.k8s.io": CRD,
    "crd localqueues.kueue.x-k8s.io": CRD,
    "gatewayclass istio": gateway_class(),
    "deployments --namespace kuberay-system": operator(),
    "localqueue gpus --namespace skim": {},
}

KUBECTL = """#!{python}
import json, pathlib, sys
_, what, *words, output, form = sys.argv
assert (what, output, form) == ("get", "--output", "json"), "only reads"
found = json.loads(pathlib.Path({objects!r}).read_text())
name = " ".join(words)
if "error" in found:
    sys.exit("E1126 a detail\\n" + found["error"])
if name not in found:
    sys.exit('Error from server (NotFound): "%s" not found' % name)
print(json.dumps(found[name]))
"""


@pytest.fixture
def ask(skim, tmp_path, monkeypatch):
    """Runs `skim manifests --check-cluster` where the cluster has ALL and `objects`; None takes one away."""

    def run(kubernetes, **objects):
        found = {name: thing for name, thing in {**ALL, **objects}.items() if thing is not None}
        (tmp_path / "objects").write_text(json.dumps(found))
        kubectl = tmp_path / "bin" / "kubectl"
        kubectl.parent.mkdir(exist_ok=True)
        kubectl.write_text(KUBECTL.format(python=sys.executable, objects=str(tmp_path / "objects")))
        kubectl.chmod(stat.S_IRWXU)
        monkeypatch.setenv("PATH", str(kubectl.parent))
        (tmp_path / "skim.yaml").write_text(yaml.safe_dump(settings_of(**kubernetes)))
        return skim("manifests", tmp_path / "skim.yaml", "-o", tmp_path / "out", "--check-cluster")

    return run


@pytest.mark.parametrize("kubernetes", [{}, {"upgrade": UPGRADE}, {"queue": KUEUE}], ids=["plain", "upgrade", "kueue"])
def test_a_cluster_that_has_everything(ask, kubernetes):
    ran = ask(kubernetes)
    assert ran.code == 0, ran.err
    assert ran.out.endswith("The cluster has what the objects need\n")


@pytest.mark.parametrize(
    ("kubernetes", "objects", "problem"),
    [
        ({}, {"crd rayservices.ray.io": None}, "KubeRay is not installed"),
        ({}, {"deployments --namespace kuberay-system": {"items": []}}, "no KubeRay operator runs in the"),
        ({}, {"deployments --namespace kuberay-system": operator("q/kuberay/operator:v1.6.2")}, "needs KubeRay 1.7"),
        ({"upgrade": UPGRADE}, {"crd rayservices.ray.io": CRD}, "knows no clusterUpgradeOptions"),
        (
            {"upgrade": UPGRADE},
            {"deployments --namespace kuberay-system": operator(
                "kuberay/operator:v1.8.1", "--feature-gates=A=true,RayServiceIncrementalUpgrade=false")},
            "RayServiceIncrementalUpgrade is off",
        ),
        ({"upgrade": UPGRADE}, {"crd httproutes.gateway.networking.k8s.io": None}, "no CRD httproutes.gateway"),
        (
            {"upgrade": UPGRADE},
            {"crd gateways.gateway.networking.k8s.io": {"spec": {"versions": [{"name": "v1beta1", "served": True}]}}},
            "no CRD gateways.gateway.networking.k8s.io that serves v1",
        ),
        ({"upgrade": UPGRADE}, {"gatewayclass istio": None}, "there is no GatewayClass istio"),
        ({"upgrade": UPGRADE}, {"gatewayclass istio": gateway_class("Unknown")}, "has accepted the GatewayClass istio"),
        ({"upgrade": UPGRADE}, {"gatewayclass istio": {}}, "has accepted the GatewayClass istio"),
        ({"queue": KUEUE}, {"crd localqueues.kueue.x-k8s.io": None}, "Kueue is not installed"),
        ({"queue": KUEUE}, {"localqueue gpus --namespace skim": None}, "the namespace skim has no LocalQueue gpus"),
        ({"queue": VOLCANO}, {}, "not started with --batch-scheduler=volcano"),
    ],
)  # fmt: skip
def test_what_is_missing_is_said(ask, kubernetes, objects, problem):
    ran = ask(kubernetes, **objects)
    assert ran.code == 1
    said = [line for line in ran.out.splitlines() if line.startswith("The cluster")]
    assert len(said) == 1
    assert problem in said[0]


@pytest.mark.parametrize("argument", ["--batch-scheduler=volcano", "--config"])
def test_an_operator_with_the_scheduler(ask, argument):
    """With --config, its scheduler is in a file, which is not read."""
    assert (
        ask(
            {"queue": VOLCANO}, **{"deployments --namespace kuberay-system": operator("kuberay/operator", argument)}
        ).code
        == 0
    )


@pytest.mark.parametrize(
    ("kubernetes", "objects"),
    [
        ({}, {"gatewayclass istio": None, "localqueue gpus --namespace skim": None}),
        ({"queue": KUEUE}, {"gatewayclass istio": None}),
    ],
)
def test_what_is_not_needed_is_not_asked_for(ask, kubernetes, objects):
    """Negative control."""
    assert ask(kubernetes, **objects).code == 0


def test_a_cluster_that_does_not_answer(ask, monkeypatch):
    ran = ask({}, error="The connection to the server was refused")
    assert ran.code == 2
    assert ran.error == ("skim: `kubectl get crd rayservices.ray.io` failed: The connection to the server was refused")
    monkeypatch.setattr(preflight, "LIMIT_S", 0)
    assert "did not answer kubectl in 0 s" in ask({}).error


def test_without_kubectl(skim, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "skim.yaml").write_text(yaml.safe_dump(settings_of()))
    ran = skim("manifests", tmp_path / "skim.yaml", "-o", tmp_path / "out", "--check-cluster")
    assert ran.code == 2
    assert "--check-cluster needs kubectl" in ran.error
