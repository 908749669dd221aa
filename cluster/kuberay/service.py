"""The RayService: one Ray cluster with a worker group per pool and the Serve application; and the RayJob of a batch."""

import json
import math
import shlex
from importlib.metadata import version
from typing import Any

import yaml

from cluster.config.kubernetes import BatchConfig, KubernetesConfig, PodConfig
from cluster.config.pools import PoolConfig
from cluster.config.schema import DeploymentConfig
from cluster.kuberay.pods import (
    CONTAINER_SECURITY,
    USER,
    WRITABLE,
    Object,
    api_object,
    check_ports,
    metadata,
    ray_pod,
    resources,
    variables,
)
from cluster.kuberay.serve_config import ROUTER_RESOURCE, serve_config
from cluster.serve.placement import ACCELERATOR, RESOURCES
from skim_common.errors import SkimError

AUTOSCALER: Object = {
    "enableInTreeAutoscaling": True,
    "autoscalerOptions": {
        "version": "v2",
        "idleTimeoutSeconds": 300,  # long, because a new node pulls an image and loads a model
        "resources": resources("500m", "1Gi"),
        "env": variables(USER),
        "securityContext": CONTAINER_SECURITY,
        # It runs in the head pod and shares its volumes.
        "volumeMounts": [{"name": name, "mountPath": path} for name, path in WRITABLE.items()],
    },
}


def ray_service(config: DeploymentConfig) -> Object:
    """The RayService of `config`. Raises SkimError if `config` cannot run on Kubernetes."""
    check_ports(config)
    config = config.placed(on_gpus=config.kubernetes.gpus)
    settings, router = config.kubernetes, config.router
    cpu = _whole_cores("router", settings.router, router.cpus)
    pod = ray_pod(config, "router", settings.router, cpu=cpu)
    holds = _on_one_node({ROUTER_RESOURCE: 1, **router.resources})
    groups = [
        _worker_group("router", pod, (router.replicas,) * 3, holds),
        *(_pool_group(config, name, pool, getattr(settings, name)) for name, pool in config.pools.items()),
    ]
    return api_object(
        "ray.io/v1/RayService",
        _ray_metadata(settings, **{"ray.io/initializing-timeout": f"{settings.max_start_minutes}m"}),
        {
            "upgradeStrategy": {"type": "NewCluster"},
            "rayClusterDeletionDelaySeconds": 60 + settings.drain_seconds,
            "excludeHeadPodFromServeSvc": True,
            "serveConfigV2": yaml.safe_dump(serve_config(config), sort_keys=False, allow_unicode=True),
            "rayClusterConfig": {
                **_ray_cluster(config, "head", groups),
                **AUTOSCALER,
                **_fault_tolerance(settings),
            },
        },
    )


def batch_job(config: DeploymentConfig, batch: BatchConfig) -> Object:
    """The RayJob of `batch`. It needs no GPUs, because the pools of the RayService answer the rows."""
    settings = config.kubernetes
    pod = ray_pod(config, "batch", batch.pod, cpu=batch.pod.cpu or "2", data=batch.claim)
    endpoint = batch.endpoint or f"http://{settings.name}-serve-svc:{config.router.port}"
    files = ["--input", batch.input, "--output", batch.output, "--endpoint", endpoint]
    groups = [_worker_group("batch", pod, (batch.nodes,) * 3, {})]
    return api_object(
        "ray.io/v1/RayJob",
        _ray_metadata(settings, "batch"),
        {
            "entrypoint": shlex.join(["python", "-m", "cluster.batch", *files]),
            "submissionMode": "SidecarMode",
            "shutdownAfterJobFinishes": True,
            "ttlSecondsAfterFinished": batch.keep_minutes * 60,
            "backoffLimit": batch.retries,  # a retried job continues where it stopped
            "rayClusterSpec": _ray_cluster(config, "batch", groups, batch.claim),
        },
    )


def _ray_cluster(config: DeploymentConfig, component: str, groups: list[Object], data: str | None = None) -> Object:
    """A Ray cluster's spec. The head runs no actors. component, data: as in `ray_pod`."""
    pod = config.kubernetes.head
    return {
        "rayVersion": version("ray"),
        "authOptions": {"mode": "token"},
        "headGroupSpec": {
            # The operator configures Serve through the dashboard; the network policy lets nobody else in.
            "rayStartParams": {"num-cpus": "0", "dashboard-host": "0.0.0.0"},
            "template": ray_pod(config, component, pod, cpu=pod.cpu or "2", head=True, data=data),
        },
        "workerGroupSpecs": groups,
    }


def _ray_metadata(settings: KubernetesConfig, suffix: str = "", **annotations: str) -> Object:
    """Of a RayService or a RayJob: with the labels and annotations of the deployment file."""
    annotations |= settings.annotations
    described = metadata(settings, suffix, suffix or None, settings.labels)
    return described | ({"annotations": annotations} if annotations else {})


def _worker_group(name: str, template: Object, sizes: tuple[int, int, int], holds: dict[str, int]) -> Object:
    """A worker group. sizes: nodes at the start, minimum, maximum. holds: custom Ray resources of one node."""
    replicas, at_least, at_most = sizes
    return {
        "groupName": name,
        "replicas": replicas,
        "minReplicas": at_least,
        "maxReplicas": at_most,
        # KubeRay puts this on a command line, so the JSON is quoted and its own quotes are escaped.
        "rayStartParams": {"resources": json.dumps(json.dumps(holds))} if holds else {},
        "template": template,
    }


def _pool_group(config: DeploymentConfig, name: str, pool: PoolConfig, pod: PodConfig) -> Object:
    """Nodes of one replica only: Kubernetes places pods on machines, so Ray does not have to."""
    gpus = (pool.gpus_per_replica or 0.0) / pool.nodes_per_replica
    cpu = _whole_cores(name, pod, pool.cpus_per_replica)
    holds = _on_one_node({RESOURCES[name]: 1, **pool.resources})
    if pool.accelerator_type:
        # Ray detects the GPU type when a node starts; the autoscaler must know it before.
        holds[ACCELERATOR + pool.accelerator_type] = 1
    at_least = pool.autoscaling.min_replicas if pool.autoscaling else pool.replicas
    sizes = (pool.replicas, at_least, pool.most_replicas)
    group = _worker_group(name, ray_pod(config, name, pod, cpu=cpu, gpus=math.ceil(gpus)), sizes, holds)
    if pool.nodes_per_replica > 1:
        group["numOfHosts"] = pool.nodes_per_replica  # sizes count groups of this many pods
    return group | ({"labels": dict(pool.node_labels)} if pool.node_labels else {})


def _on_one_node(taken: dict[str, Any]) -> dict[str, int]:
    """Resources that a node must offer for one replica; Ray on Kubernetes supports whole numbers only."""
    return {resource: math.ceil(amount) for resource, amount in taken.items()}


def _whole_cores(name: str, pod: PodConfig, cpus: float) -> str:
    if pod.cpu is None:
        return str(max(1, math.ceil(cpus)))
    offered = float(pod.cpu.removesuffix("m")) / (1000 if pod.cpu.endswith("m") else 1)
    if math.ceil(offered) < cpus:
        raise SkimError(
            f"kubernetes.{name}.cpu: is {pod.cpu}, but a replica reserves {cpus:g} cores and would never be placed: "
            "raise it, or remove it"
        )
    return pod.cpu


def _fault_tolerance(settings: KubernetesConfig) -> Object:
    """Ray's cluster state in Redis, beyond the head's life. Empty without Redis."""
    redis = settings.redis
    if redis is None:
        return {}
    password = {"name": redis.password_secret or settings.secret, "key": redis.password_key}
    options = {"redisAddress": redis.address, "redisPassword": {"valueFrom": {"secretKeyRef": password}}}
    if redis.username:
        options["redisUsername"] = {"value": redis.username}
    return {"gcsFaultToleranceOptions": options}
