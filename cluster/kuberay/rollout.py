"""How the operator replaces a cluster, and which scheduler starts its pods.

Sources: KubeRay 1.7 (`ray-operator/controllers/ray/rayservice_controller.go`, `batchscheduler/`) and Kueue 0.19
(`pkg/controller/jobs/rayservice`, `raycluster`).
"""

from cluster.config.kubernetes import UpgradeConfig
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
