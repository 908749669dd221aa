"""Labels and annotations that batch schedulers read."""

import pytest
import yaml

from cluster.config.load import config_from_settings
from cluster.kuberay.write import manifests
from tests.unit.cluster.kuberay.conftest import ROOT
from tests.unit.cluster.kuberay.crd_schema import crd_errors
from tests.unit.cluster.kuberay.operator_rules import broken_rules

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


def ray_objects(**kubernetes):
    """RayService and RayJob of an example with other settings of `kubernetes:`."""
    settings = yaml.safe_load((ROOT / "examples" / "multi-node.yaml").read_text())
    settings["kubernetes"] |= kubernetes
    objects = manifests(config_from_settings(settings))
    return [*objects["rayservice.yaml"], *objects["jobs/batch.yaml"]]


@pytest.mark.parametrize("scheduler", QUEUES)
def test_labels_and_annotations_are_where_the_scheduler_looks(scheduler):
    """Pods keep their own labels: network policies and monitors select pods by them."""
    for found, plain in zip(ray_objects(**QUEUES[scheduler]), ray_objects(), strict=True):
        for kind in ("labels", "annotations"):
            before = plain["metadata"].get(kind, {})
            assert found["metadata"].get(kind, {}) == before | QUEUES[scheduler].get(kind, {})
        assert found["spec"] == plain["spec"]
        assert broken_rules(found) == []


@pytest.mark.parametrize("scheduler", QUEUES)
def test_kuberay_takes_them(crds, scheduler):
    assert [error for found in ray_objects(**QUEUES[scheduler]) for error in crd_errors(crds, found)] == []
