"""Updates by steps, and labels that batch schedulers read."""

from types import SimpleNamespace

import pytest
import yaml

from cluster.config.load import config_from_settings
from cluster.kuberay.write import manifests
from skim_common.errors import SkimError
from tests.unit.cluster.kuberay.conftest import ROOT
from tests.unit.cluster.kuberay.crd_schema import crd_errors
from tests.unit.cluster.kuberay.operator_rules import broken_rules
from tests.unit.cluster.kuberay.test_schemas import set_in

GATEWAY = "http://skim-gateway-istio:80"
UPGRADE = {"gateway_class": "istio"}
QUEUES = {
    "kueue": {
        "labels": {"kueue.x-k8s.io/queue-name": "gpus"},
        "annotations": {"kueue.x-k8s.io/elastic-job": "true"},
    },
    "volcano": {"labels": {"volcano.sh/queue-name": "gpus"}},
    "yunikorn": {
        "labels": {
            "yunikorn.apache.org/queue": "root.gpus",
            "yunikorn.apache.org/app-id": "skim",
            "ray.io/gang-scheduling-enabled": "true",
        }
    },
}
"""As docs/kubernetes.md has them."""


def settings_of(name="multi-node", **kubernetes):
    """The settings of an example with other settings of `kubernetes:`."""
    settings = yaml.safe_load((ROOT / "examples" / f"{name}.yaml").read_text())
    settings["kubernetes"] |= kubernetes
    if "upgrade" in kubernetes:
        settings["kubernetes"]["batch"]["endpoint"] = GATEWAY
    return settings


def config(name="multi-node", **kubernetes):
    return config_from_settings(settings_of(name, **kubernetes))


def fixed(**kubernetes):
    """The example with pools of fixed sizes."""
    settings = settings_of(**kubernetes)
    for pool in (settings["speculator"], settings["target"], settings["target"].get("prefill") or {}):
        pool.pop("autoscaling", None)
    return config_from_settings(settings)


def ray_objects(found):
    objects = manifests(found)
    return SimpleNamespace(service=objects["rayservice.yaml"][0], job=objects["jobs/batch.yaml"][0])


@pytest.mark.parametrize("name", ["multi-node", "llama-70b-1b", "llama-405b", "hub-names"])
@pytest.mark.parametrize(
    "kubernetes",
    [
        {"upgrade": UPGRADE},
        QUEUES["kueue"],
        {"upgrade": UPGRADE, **QUEUES["volcano"]},
        QUEUES["yunikorn"],
    ],
    ids=["upgrade", "kueue", "volcano", "yunikorn"],
)
def test_kuberay_takes_them(crds, name, kubernetes):
    settings = settings_of(name)
    if "batch" not in settings["kubernetes"]:
        settings["kubernetes"]["batch"] = {"input": "s3://a/in", "output": "s3://a/out"}
    settings["kubernetes"]["batch"]["endpoint"] = GATEWAY
    settings["kubernetes"] |= kubernetes
    for thing in vars(ray_objects(config_from_settings(settings))).values():
        assert crd_errors(crds, thing) == []
        assert broken_rules(thing) == []


def test_an_upgrade_by_steps_is_what_the_file_says(crds):
    found = config(upgrade={**UPGRADE, "max_surge_percent": 20, "step_size_percent": 10, "interval_seconds": 90})
    service = ray_objects(found).service
    assert service["spec"]["upgradeStrategy"] == {
        "type": "NewClusterWithIncrementalUpgrade",
        "clusterUpgradeOptions": {
            "gatewayClassName": "istio", "maxSurgePercent": 20, "stepSizePercent": 10, "intervalSeconds": 90,
        },
    }  # fmt: skip
    service["spec"]["upgradeStrategy"]["clusterUpgradeOptions"]["stepPercent"] = 10
    assert len(crd_errors(crds, service)) == 1


OPTIONS = ("spec", "upgradeStrategy", "clusterUpgradeOptions")


@pytest.mark.parametrize(
    ("path", "value", "rule"),
    [
        ((*OPTIONS, "maxSurgePercent"), 101, "maxSurgePercent"),
        ((*OPTIONS, "maxSurgePercent"), 20, "stepSizePercent"),
        ((*OPTIONS, "intervalSeconds"), 0, "intervalSeconds"),
        ((*OPTIONS, "gatewayClassName"), "", "gatewayClassName"),
        (OPTIONS, None, "clusterUpgradeOptions are missing"),
        (("spec", "rayClusterConfig", "enableInTreeAutoscaling"), False, "an upgrade by steps needs the autoscaler"),
    ],
)
def test_each_rule_of_the_operator_is_looked_at(path, value, rule):
    service = ray_objects(config(upgrade=UPGRADE)).service
    assert broken_rules(service) == []
    assert rule in broken_rules(set_in(service, path, value))


@pytest.mark.parametrize("find", [config, fixed])
def test_the_second_cluster_begins_empty_and_grows_with_the_replicas(find):
    """The operator starts it with `minReplicas`. With the numbers of a whole one, it would take all GPUs at once."""
    whole, steps = (ray_objects(found).service["spec"]["rayClusterConfig"] for found in (find(), find(upgrade=UPGRADE)))
    sizes = [[(group["minReplicas"], group["maxReplicas"]) for group in cluster["workerGroupSpecs"]]
             for cluster in (whole, steps)]  # fmt: skip
    assert all(least >= 1 for least, _ in sizes[0])
    assert sizes[1] == [(0, most) for _, most in sizes[0]]
    assert steps["enableInTreeAutoscaling"], "the operator refuses an upgrade by steps without the autoscaler"
    idle = [cluster["autoscalerOptions"]["idleTimeoutSeconds"] for cluster in (whole, steps)]
    assert idle[1] < idle[0], "each step waits for the nodes that the one before left"


def test_the_batch_job_of_an_upgrade_by_steps_asks_the_gateway():
    job = ray_objects(config(upgrade=UPGRADE)).job
    assert f"--endpoint {GATEWAY}" in job["spec"]["entrypoint"]
    policies = {p["metadata"]["name"]: p["spec"] for p in manifests(config(upgrade=UPGRADE))["network-policies.yaml"]}
    assert [port["port"] for port in policies["skim-batch"]["egress"][0]["ports"]] == [80, 443]


@pytest.mark.parametrize(
    ("kubernetes", "message"),
    [
        ({"upgrade": {**UPGRADE, "step_size_percent": 30}}, "step_size_percent is 30, more than max_surge_percent"),
        ({"upgrade": {**UPGRADE, "max_surge_percent": 0}}, "max_surge_percent"),
        ({"upgrade": {**UPGRADE, "interval_seconds": 0}}, "interval_seconds"),
        ({"upgrade": {}}, "gateway_class"),
        ({"queue": {"name": "gpus"}}, "queue"),
        ({"labels": ["gpus"]}, "labels"),
    ],
)
def test_what_cannot_work_is_refused(kubernetes, message):
    with pytest.raises(SkimError, match=message):
        config(**kubernetes)


def test_a_batch_job_needs_the_gateways_address():
    settings = settings_of()
    settings["kubernetes"]["upgrade"] = UPGRADE
    with pytest.raises(SkimError, match=r"batch.endpoint: is not set, but with upgrade"):
        config_from_settings(settings)


@pytest.mark.parametrize("scheduler", QUEUES)
def test_labels_and_annotations_are_where_the_scheduler_looks(scheduler):
    found, plain = ray_objects(config(**QUEUES[scheduler])), ray_objects(config())
    for thing, without in ((found.service, plain.service), (found.job, plain.job)):
        for kind in ("labels", "annotations"):
            before = without["metadata"].get(kind, {})
            assert thing["metadata"].get(kind, {}) == before | QUEUES[scheduler].get(kind, {})


def test_pods_keep_their_own_labels():
    """Network policies and monitors select pods by them."""
    found, plain = ray_objects(config(**QUEUES["kueue"])), ray_objects(config())
    assert found.service["spec"] == plain.service["spec"]
    assert found.job["spec"] == plain.job["spec"]
