"""The RayJob of batch inference: a separate Ray cluster that sends rows to the endpoint and then stops."""

import shlex

from cluster.config.kubernetes import BatchConfig
from cluster.config.schema import DeploymentConfig
from cluster.kuberay.pods import Object, ray_pod
from cluster.kuberay.service import API_VERSION, ray_cluster, ray_metadata, worker_group


def batch_job(config: DeploymentConfig, batch: BatchConfig) -> Object:
    """The RayJob of `batch`. It needs no GPUs, because the pools of the RayService answer the rows."""
    settings = config.kubernetes
    pod = ray_pod(config, "batch", batch.pod, cpu=batch.pod.cpu or "2", data=batch.claim)
    return {
        "apiVersion": API_VERSION,
        "kind": "RayJob",
        "metadata": ray_metadata(settings, "batch"),
        "spec": {
            "entrypoint": shlex.join(_command(config, batch)),
            "submissionMode": "SidecarMode",
            "shutdownAfterJobFinishes": True,
            "ttlSecondsAfterFinished": batch.keep_minutes * 60,
            # A retried job continues where it stopped.
            "backoffLimit": batch.retries,
            "rayClusterSpec": {
                **ray_cluster(config, "batch", batch.claim),
                "workerGroupSpecs": [worker_group("batch", pod, (batch.nodes,) * 3, {})],
            },
        },
    }


def _command(config: DeploymentConfig, batch: BatchConfig) -> list[str]:
    endpoint = batch.endpoint or f"http://{config.kubernetes.name}-serve-svc:{config.router.port}"
    return ["python", "-m", "cluster.batch", "--input", batch.input, "--output", batch.output, "--endpoint", endpoint]
