"""How the operator replaces a cluster, and which scheduler starts its pods.

Sources: KubeRay 1.7 (`ray-operator/controllers/ray/rayservice_controller.go`, `batchscheduler/`) and Kueue 0.19
(`pkg/controller/jobs/rayservice`, `raycluster`).
"""

import math
from collections.abc import Iterator
from decimal import ROUND_HALF_UP, Decimal

from cluster.config.kubernetes import UpgradeConfig
from cluster.config.pools import PoolConfig
from cluster.config.schema import DeploymentConfig
from cluster.kuberay.pods import Object

QUEUE_LABELS = {
    "kueue": "kueue.x-k8s.io/queue-name",
    "volcano": "volcano.sh/queue-name",
    "yunikorn": "yunikorn.apache.org/queue",
}
GANG_LABEL = "ray.io/gang-scheduling-enabled"
APPLICATION_LABEL = "yunikorn.apache.org/app-id"
ELASTIC = {"kueue.x-k8s.io/elastic-job": "true"}
"""Kueue's annotation of jobs that change their size; its feature gate is ElasticJobsViaWorkloadSlices."""


def upgrade_strategy(upgrade: UpgradeConfig | None) -> Object:
    """The RayService's `upgradeStrategy`. None: the operator switches when all of the second cluster is ready."""
    if upgrade is None:
        return {"type": "NewCluster"}
    return {
        "type": "NewClusterWithIncrementalUpgrade",
        "clusterUpgradeOptions": {
            "gatewayClassName": upgrade.gateway_class,
            "maxSurgePercent": upgrade.max_surge_percent,
            "stepSizePercent": upgrade.step_size_percent,
            "intervalSeconds": upgrade.interval_seconds,
        },
    }


def with_queue(metadata: Object, config: DeploymentConfig) -> Object:
    """The metadata of a RayService or RayJob with what the scheduler of `kubernetes.queue` reads.

    Volcano schedules each cluster as a gang by itself, and Kueue admits it as a whole; YuniKorn must be asked.
    """
    queue = config.kubernetes.queue
    if queue is None:
        return metadata
    labels = {**metadata["labels"], QUEUE_LABELS[queue.scheduler]: queue.name}
    if queue.scheduler == "yunikorn":
        labels |= {GANG_LABEL: "true", APPLICATION_LABEL: metadata["name"]}
    found = {**metadata, "labels": labels}
    if queue.scheduler == "kueue" and autoscales(config) and "annotations" in metadata:
        found["annotations"] = metadata["annotations"] | ELASTIC
    return found


def autoscales(config: DeploymentConfig) -> bool:
    """Whether the cluster needs Ray's autoscaler. Kueue takes it only for jobs that it treats as elastic."""
    queue = config.kubernetes.queue
    return queue is None or queue.scheduler != "kueue" or any(pool.autoscaling for pool in config.pools.values())


def upgrade_gpus(config: DeploymentConfig) -> tuple[int, int]:
    """GPUs of the deployment at its largest size, and the most that it holds during an update, both clusters together.

    config: placed. Without `kubernetes.upgrade` an update takes twice as many.
    """
    pools = [(pool.most_replicas, _gpus_of(pool)) for pool in config.pools.values()]

    def gpus(*capacities: int) -> int:
        return sum(at_capacity(replicas, share) * each for replicas, each in pools for share in capacities)

    upgrade = config.kubernetes.upgrade
    if upgrade is None:
        return gpus(100), 2 * gpus(100)
    return gpus(100), max(gpus(old, new) for old, new in _capacities(upgrade.max_surge_percent))


def upgrade_notice(config: DeploymentConfig) -> str:
    """What an update by steps takes, for the user of `skim manifests`; empty without one, and without GPUs."""
    normal, most = upgrade_gpus(config.placed(on_gpus=config.kubernetes.gpus))
    if config.kubernetes.upgrade is None or not normal:
        return ""
    saved = "" if most < 2 * normal else ", because a pool with a single replica cannot move in parts"
    return f"An update takes up to {most} GPUs; the deployment has {normal}, two of it have {2 * normal}{saved}"


def _gpus_of(pool: PoolConfig) -> int:
    """GPUs of the pods of one replica."""
    return math.ceil((pool.gpus_per_replica or 0.0) / pool.nodes_per_replica) * pool.nodes_per_replica


def at_capacity(replicas: int, percent: int) -> int:
    """Replicas that Serve runs at a `target_capacity` (ray.serve._private.utils.get_capacity_adjusted_num_replicas)."""
    if not percent or not replicas:
        return 0
    return max(1, int((Decimal(replicas * percent) / 100).to_integral_value(rounding=ROUND_HALF_UP)))


def _capacities(surge: int) -> Iterator[tuple[int, int]]:
    """Percent of the old and of the new cluster, as the operator changes them (reconcileServeTargetCapacity)."""
    old, new = 100, 0
    while old or new < 100:
        if old + new > 100:
            old = max(0, old - surge)
        else:
            new = min(100, new + surge)
        yield old, new
