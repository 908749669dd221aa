"""Every object against a schema: KubeRay's CRDs and the operator's rules for Ray objects, Kubernetes' for others."""

import json

import kubernetes_validate
import pytest

from cluster.config.load import config_from_flags
from cluster.kuberay.write import manifests
from tests.unit.cluster.kuberay.crd_schema import crd_errors
from tests.unit.cluster.kuberay.operator_rules import broken_rules
from tests.unit.cluster.kuberay.parts import DEMO

KUBERNETES = "1.33"
RAY = ("RayService", "RayJob")


def of_kind(objects, kind):
    return next(thing for thing in objects if thing["kind"] == kind)


def set_in(thing, path, value):
    """A copy of `thing` with thing[a][b] = value for the path (a, b)."""
    changed = json.loads(json.dumps(thing))
    *way, last = path
    inner = changed
    for step in way:
        inner = inner[step]
    inner[last] = value
    return changed


def test_ray_objects_are_what_kuberay_takes(objects, crds):
    ray = [thing for thing in objects if thing["kind"] in RAY]
    assert len(ray) == 2
    assert [error for thing in ray for error in crd_errors(crds, thing)] == []


def test_redis_settings_are_what_kuberay_takes(crds):
    redis = {"address": "rediss://redis.example:6379", "username": "ray"}
    [service] = manifests(config_from_flags(DEMO, {"kubernetes.redis": redis}))["rayservice.yaml"]
    assert crd_errors(crds, service) == []
    assert list(broken_rules(service)) == []


CLUSTER = ("spec", "rayClusterConfig")
WORKER = (*CLUSTER, "workerGroupSpecs", 1)
CONTAINER = (*WORKER, "template", "spec", "containers", 0)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("spec", "serveConfig"), ""),
        ((*CLUSTER, "enableInTreeAutoscaler"), True),
        ((*CLUSTER, "autoscalerOptions", "version"), "v3"),
        ((*CLUSTER, "authOptions", "mode"), "tokens"),
        ((*CLUSTER, "gcsFaultTolerance"), {}),
        ((*WORKER, "minReplica"), 1),
        ((*WORKER, "minReplicas"), "1"),
        ((*WORKER, "rayStartParams", "num-gpus"), 1),
        ((*CONTAINER, "livenesProbe"), {}),
        ((*CONTAINER, "resources", "limits", "memory"), "8 GB"),
        ((*CONTAINER, "securityContext", "runAsNonroot"), True),
        ((*CONTAINER, "ports"), [{"containerPort": 1}, {"containerPort": 1}]),
        ((*WORKER, "template", "spec", "volumes", 0, "emptyDir", "sizelimit"), "1Gi"),
    ],
)
def test_a_typo_in_a_ray_object_is_found(demo, crds, path, value):
    service = of_kind(demo, "RayService")
    assert len(crd_errors(crds, set_in(service, path, value))) == 1


def test_the_other_objects_are_what_kubernetes_takes(objects):
    checked = [t for t in objects if t["kind"] not in (*RAY, "PodMonitor", "PrometheusRule")]
    assert {t["kind"] for t in checked} >= {"PodDisruptionBudget", "NetworkPolicy", "ConfigMap"}
    for thing in checked:
        kubernetes_validate.validate(thing, KUBERNETES, strict=True)


@pytest.mark.parametrize(
    ("kind", "path", "value"),
    [
        ("PodDisruptionBudget", ("spec", "maxUnavaliable"), 1),
        ("NetworkPolicy", ("spec", "policytypes"), []),
        ("NetworkPolicy", ("spec", "ingress", 0, "from", 0, "podselector"), {}),
    ],
)
def test_a_typo_in_another_object_is_found(demo, kind, path, value):
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(set_in(of_kind(demo, kind), path, value), KUBERNETES, strict=True)


def test_the_operator_refuses_nothing(objects):
    assert [rule for thing in objects if thing["kind"] in RAY for rule in broken_rules(thing)] == []


HEAD = (*CLUSTER, "headGroupSpec")
HEAD_POD = (*HEAD, "template", "spec")


@pytest.mark.parametrize(
    ("path", "value", "rule"),
    [
        (("metadata", "name"), "1skim", "name"),
        (("metadata", "name"), "s" * 48, "name"),
        (("metadata", "annotations", "ray.io/initializing-timeout"), "soon", "initializing-timeout"),
        (("spec", "upgradeStrategy", "type"), "Recreate", "upgradeStrategy.type"),
        ((*HEAD, "resources"), {"CPU": "0"}, "head gives resources twice"),
        ((*HEAD_POD, "restartPolicy"), "Always", "restartPolicy with autoscaler v2"),
        ((*HEAD, "rayStartParams", "redis-username"), "x", "the Redis user name"),
        ((*CLUSTER, "rayVersion"), "2.51.0", "token auth needs Ray 2.52"),
        ((*CLUSTER, "networkPolicy"), {}, "networkPolicy needs a feature gate"),
        ((*WORKER, "minReplicas"), 99, "minReplicas 99"),
        ((*WORKER, "rayStartParams", "labels"), "a=b", "labels in rayStartParams"),
        ((*WORKER, "labels"), {"zone": "in(a)"}, "has the label zone"),
        ((*WORKER, "suspend"), True, "a suspended group"),
    ],
)
def test_each_rule_of_the_operator_is_looked_at(demo, path, value, rule):
    service = set_in(of_kind(demo, "RayService"), path, value)
    assert any(rule in broken for broken in broken_rules(service))


def test_rules_of_jobs_are_looked_at(demo):
    job = of_kind(demo, "RayJob")
    assert broken_rules(set_in(job, ("spec", "shutdownAfterJobFinishes"), False))
    assert broken_rules(set_in(job, ("spec", "submitterConfig"), {}))
