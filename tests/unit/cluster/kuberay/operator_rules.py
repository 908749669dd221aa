"""Rules of the KubeRay operator beyond its CRDs, for the fields that we could use.

Source: `ray-operator/controllers/ray/utils/validation.go` of KubeRay 1.7: ValidateRayClusterSpec,
ValidateRayServiceSpec, ValidateRayServiceMetadata, ValidateRayJobSpec, ValidateRayJobMetadata. Each rule yields the
errors that it finds.
"""

import re
from collections.abc import Iterator
from typing import Any

Object = dict[str, Any]

MAX_NAME = 47
DNS_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
DURATION = re.compile(r"([0-9]+(\.[0-9]+)?(h|m|s))+|[0-9]+")
GATED = ("networkPolicy", "tlsOptions", "historyServerOptions")
IN_START_PARAMS = ("num-cpus", "num-gpus", "memory", "resources")


def broken_rules(resource: Object) -> list[str]:
    """All errors for which the operator would refuse a RayService or RayJob."""
    name = resource["metadata"]["name"]
    broken = [] if DNS_1035.fullmatch(name) and len(name) <= MAX_NAME else [f"name {name}"]
    spec = resource["spec"]
    annotations = resource["metadata"].get("annotations", {})
    if resource["kind"] == "RayService":
        return [*broken, *_service(spec, annotations), *_cluster(spec["rayClusterConfig"], annotations)]
    return [*broken, *_job(spec), *_cluster(spec["rayClusterSpec"], annotations)]


def _service(spec: Object, annotations: Object) -> Iterator[str]:
    timeout = annotations.get("ray.io/initializing-timeout")
    if timeout and (not DURATION.fullmatch(timeout) or not re.search(r"[1-9]", timeout)):
        yield "initializing-timeout"
    if spec["rayClusterConfig"]["headGroupSpec"].get("headService", {}).get("metadata", {}).get("name"):
        yield "headService has a name"
    if spec.get("upgradeStrategy", {}).get("type", "None") not in ("None", "NewCluster"):
        yield "upgradeStrategy.type"
    if spec.get("rayClusterDeletionDelaySeconds", 0) < 0:
        yield "rayClusterDeletionDelaySeconds"


def _job(spec: Object) -> Iterator[str]:
    if not spec.get("shutdownAfterJobFinishes") and spec.get("ttlSecondsAfterFinished", 0) > 0:
        yield "ttlSecondsAfterFinished needs shutdownAfterJobFinishes"
    if spec.get("ttlSecondsAfterFinished", 0) < 0 or spec.get("backoffLimit", 0) < 0:
        yield "a negative number"
    if spec.get("deletionStrategy"):
        yield "deletionStrategy needs a feature gate"
    if spec.get("submissionMode") == "SidecarMode":
        if {"submitterPodTemplate", "submitterConfig", "clusterSelector"} & spec.keys():
            yield "SidecarMode with a submitter"
        if _pod(spec["rayClusterSpec"]["headGroupSpec"]).get("restartPolicy", "Never") != "Never":
            yield "SidecarMode and the head's restartPolicy"


def _cluster(spec: Object, annotations: Object) -> Iterator[str]:
    head, workers = spec["headGroupSpec"], spec.get("workerGroupSpecs", [])
    yield from (f"{gate} needs a feature gate" for gate in GATED if gate in spec)
    if "upgradeStrategy" in spec:
        yield "upgradeStrategy of a cluster that a RayService or RayJob makes"
    for name, group in [("head", head), *((worker["groupName"], worker) for worker in workers)]:
        yield from _group(name, group)
    for worker in workers:
        yield from _sizes(worker, spec)
    yield from _fault_tolerance(spec, annotations)
    yield from _autoscaler(spec)
    if spec.get("authOptions", {}).get("mode") == "token":
        if not spec.get("rayVersion"):
            yield "token auth without rayVersion"
        elif tuple(map(int, spec["rayVersion"].split(".")[:2])) < (2, 52):
            yield "token auth needs Ray 2.52"


def _group(name: str, group: Object) -> Iterator[str]:
    parameters = group.get("rayStartParams", {})
    if not _pod(group).get("containers"):
        yield f"{name} has no container"
    if any(parameters.get(key) for key in IN_START_PARAMS) and group.get("resources"):
        yield f"{name} gives resources twice"
    if "labels" in parameters:
        yield f"{name} has labels in rayStartParams"
    for key, value in group.get("labels", {}).items():
        if not LABEL_VALUE.fullmatch(value) or not LABEL_VALUE.fullmatch(key.rpartition("/")[2]):
            yield f"{name} has the label {key}={value}"


def _sizes(worker: Object, spec: Object) -> Iterator[str]:
    least, most = worker.get("minReplicas"), worker.get("maxReplicas")
    if not spec.get("enableInTreeAutoscaling") and None in (least, most):
        yield "minReplicas and maxReplicas are needed without autoscaling"
    if (least or 0) < 0 or (most or 0) < 0 or (None not in (least, most) and least > most):
        yield f"{worker['groupName']}: minReplicas {least}, maxReplicas {most}"


def _fault_tolerance(spec: Object, annotations: Object) -> Iterator[str]:
    parameters, env = spec["headGroupSpec"].get("rayStartParams", {}), _env(spec["headGroupSpec"])
    if parameters.get("redis-username") or "REDIS_USERNAME" in env:
        yield "the Redis user name belongs into gcsFaultToleranceOptions"
    if "gcsFaultToleranceOptions" not in spec:
        if "RAY_REDIS_ADDRESS" in env:
            yield "RAY_REDIS_ADDRESS without gcsFaultToleranceOptions"
        return
    if parameters.get("redis-password") or {"REDIS_PASSWORD", "RAY_REDIS_ADDRESS"} & env:
        yield "Redis address and password belong into gcsFaultToleranceOptions"
    if {"ray.io/ft-enabled", "ray.io/external-storage-namespace"} & annotations.keys():
        yield "an annotation beside gcsFaultToleranceOptions"
    if "storage" in spec["gcsFaultToleranceOptions"]:
        yield "storage is for the rocksdb backend"


def _autoscaler(spec: Object) -> Iterator[str]:
    options, groups = spec.get("autoscalerOptions", {}), [spec["headGroupSpec"], *spec.get("workerGroupSpecs", [])]
    if options.get("idleTimeoutSeconds", 0) < 0:
        yield "idleTimeoutSeconds"
    if "RAY_enable_autoscaler_v2" in _env(spec["headGroupSpec"]):
        yield "the autoscaler's version is given by an environment variable"
    if any(worker.get("suspend") for worker in groups):
        yield "a suspended group"
    if options.get("version") == "v2" and any(_pod(g).get("restartPolicy", "Never") != "Never" for g in groups):
        yield "restartPolicy with autoscaler v2"


def _pod(group: Object) -> Object:
    return group["template"]["spec"]


def _env(group: Object) -> set[str]:
    return {variable["name"] for variable in _pod(group)["containers"][0].get("env", [])}
