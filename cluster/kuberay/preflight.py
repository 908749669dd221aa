"""Asks a Kubernetes cluster, with `kubectl` and its current context, whether it has what the manifests need.

Nothing is changed. What is missing would otherwise show only as a RayService that never starts, or as an update that
waits for a Gateway without end.
"""

import json
import re
import subprocess
from collections.abc import Iterator, Mapping
from typing import Any

from cluster.config.schema import DeploymentConfig
from skim_common.errors import SkimError

LIMIT_S = 30
LEAST_KUBERAY = (1, 7)
GATE = "RayServiceIncrementalUpgrade"
GATEWAY_KINDS = ("gateways", "httproutes")


def cluster_problems(config: DeploymentConfig) -> list[str]:
    """What is missing, one sentence each. Raises SkimError if kubectl is missing or the cluster does not answer."""
    return [*_kuberay(config), *_gateway(config), *_queue(config)]


def _kuberay(config: DeploymentConfig) -> Iterator[str]:
    settings = config.kubernetes
    crd = _get("crd", "rayservices.ray.io")
    if crd is None:
        yield "KubeRay is not installed: there is no CRD rayservices.ray.io"
        return
    if settings.upgrade and "clusterUpgradeOptions" not in json.dumps(crd):
        yield "the CRD rayservices.ray.io knows no clusterUpgradeOptions: update KubeRay's CRDs, which Helm does not do"
    operator = _operator(settings.network.operator_namespace)
    if operator is None:
        yield (
            f"no KubeRay operator runs in the namespace {settings.network.operator_namespace}: correct"
            " kubernetes.network.operator_namespace"
        )
        return
    arguments = " ".join([*operator.get("command", ()), *operator.get("args", ())])
    release = re.search(r":v?(\d+)\.(\d+)", operator["image"])
    if release and tuple(map(int, release.groups())) < LEAST_KUBERAY:
        yield f"the operator is {operator['image']}: Skim needs KubeRay {'.'.join(map(str, LEAST_KUBERAY))} or newer"
    if settings.upgrade and f"{GATE}=false" in arguments:
        yield f"the operator's feature gate {GATE} is off: kubernetes.upgrade needs it"
    scheduler = settings.queue.scheduler if settings.queue else "kueue"
    # With --config, the scheduler is in a file.
    if scheduler != "kueue" and "--config" not in arguments and f"--batch-scheduler={scheduler}" not in arguments:
        yield f"the operator was not started with --batch-scheduler={scheduler}, so that it ignores kubernetes.queue"


def _gateway(config: DeploymentConfig) -> Iterator[str]:
    upgrade = config.kubernetes.upgrade
    if upgrade is None:
        return
    for kind in GATEWAY_KINDS:
        crd = _get("crd", f"{kind}.gateway.networking.k8s.io")
        versions = crd["spec"]["versions"] if crd else []
        if not any(version["name"] == "v1" and version["served"] for version in versions):
            yield f"the Gateway API is missing: there is no CRD {kind}.gateway.networking.k8s.io that serves v1"
            return
    name = upgrade.gateway_class
    found = _get("gatewayclass", name)
    if found is None:
        yield f"there is no GatewayClass {name}: install its controller, or correct kubernetes.upgrade.gateway_class"
        return
    conditions = found.get("status", {}).get("conditions", [])
    if not any(condition["type"] == "Accepted" and condition["status"] == "True" for condition in conditions):
        yield f"no Gateway controller has accepted the GatewayClass {name}"


def _queue(config: DeploymentConfig) -> Iterator[str]:
    settings = config.kubernetes
    if settings.queue is None or settings.queue.scheduler != "kueue":
        return
    if _get("crd", "localqueues.kueue.x-k8s.io") is None:
        yield "Kueue is not installed: there is no CRD localqueues.kueue.x-k8s.io"
    elif _get("localqueue", settings.queue.name, "--namespace", settings.namespace) is None:
        place, name = settings.namespace, settings.queue.name
        yield f"the namespace {place} has no LocalQueue {name}: make it, or correct kubernetes.queue.name"


def _operator(namespace: str) -> Mapping[str, Any] | None:
    """The container of the KubeRay operator."""
    found = _get("deployments", "--namespace", namespace) or {"items": []}
    containers = [one for item in found["items"] for one in item["spec"]["template"]["spec"]["containers"]]
    return next((container for container in containers if "kuberay" in container["image"]), None)


def _get(*words: str) -> dict[str, Any] | None:
    """The object as JSON; None if it, or its kind, does not exist."""
    command = ["kubectl", "get", *words, "--output", "json"]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    except FileNotFoundError:
        raise SkimError("--check-cluster needs kubectl, which is not on the PATH: install it") from None
    except subprocess.TimeoutExpired:
        raise SkimError(f"the Kubernetes cluster did not answer kubectl in {LIMIT_S} s: check its context") from None
    if ran.returncode == 0:
        found: dict[str, Any] = json.loads(ran.stdout)
        return found
    if "NotFound" in ran.stderr or "doesn't have a resource type" in ran.stderr:
        return None
    lines = ran.stderr.strip().splitlines() or ["it gave no reason"]
    raise SkimError(f"`kubectl get {' '.join(words)}` failed: {lines[-1]}")
