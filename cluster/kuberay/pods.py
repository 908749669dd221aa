"""The pod of a Ray node: container, resources, probes, volumes and security context."""

from collections.abc import Mapping
from typing import Any

from cluster.config.kubernetes import KubernetesConfig, PodConfig
from cluster.config.schema import DeploymentConfig
from cluster.config.vllm_options import hub_names
from cluster.serve.app import CHANNEL_TOKEN, SERVE_SWITCHES
from cluster.serve.pod_draining import DRAINING_FILE, DRAINING_SWITCHES
from skim_common.errors import SkimError
from skim_common.models.source import is_hub_name
from skim_common.proxies import DIRECT_GRPC

Object = dict[str, Any]

SERVING = ("router", "speculator", "target", "prefill")
"""Components whose pods hold replicas of the Serve application."""

TLS_PATH = "/etc/skim/tls"
API_KEYS_PATH = "/etc/skim/api-keys"
# Ray's node agent reports the health of the whole node. The metrics exporter uses the port that KubeRay expects.
AGENT_PORT, METRICS_PORT = 52365, 8080
HEAD_PORTS = {"gcs": 6379, "dashboard": 8265, "client": 10001, "as-metrics": 44217, "dash-metrics": 44227}
PROBE_EVERY_S = 10
DRAIN_COMMAND_S = 20
"""Maximum time of `ray drain-node`, which starts Python and joins the cluster."""

# The router checks the endpoint's key, the batch job sends it.
API_KEYS = {"router": "VLLM_API_KEY", "batch": "OPENAI_API_KEY"}

POD_SECURITY = {
    "runAsNonRoot": True,
    "runAsUser": 1000,
    "runAsGroup": 1000,
    "fsGroup": 1000,
    "fsGroupChangePolicy": "OnRootMismatch",
    "seccompProfile": {"type": "RuntimeDefault"},
}
CONTAINER_SECURITY = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
}
# Ray's sessions and logs, and Inductor's cache, are in /tmp; vLLM and Triton write caches to the home of their user.
HOME = "/home/skim"
USER = {"HOME": HOME, "USER": "skim"}
"""Environment. An image without an entry for user 1000 has neither home nor name, and torch asks for the name."""
WRITABLE = {"tmp": "/tmp", "home": HOME}


def check_ports(config: DeploymentConfig) -> None:
    """Raise SkimError if a port of the deployment is one that Ray takes in the pods."""
    taken = {AGENT_PORT, METRICS_PORT, *HEAD_PORTS.values()}
    for setting, port in (("router.port", config.router.port), ("channel.port", config.channel.port)):
        if port in taken:
            raise SkimError(f"{setting}: is {port}, which is taken in the pods: choose another port")
        taken.add(port)


def api_object(kind: str, meta: Object, spec: Object) -> Object:
    """A Kubernetes object. kind: with its group and version, as in policy/v1/PodDisruptionBudget."""
    version, _, name = kind.rpartition("/")
    return {"apiVersion": version, "kind": name, "metadata": meta, "spec": spec}


def labels(settings: KubernetesConfig, component: str | None = None) -> dict[str, str]:
    """Labels of the pods of this deployment, or of one component (head, router, target, ...)."""
    part = {"app.kubernetes.io/component": component} if component else {}
    return {"app.kubernetes.io/name": "skim", "app.kubernetes.io/instance": settings.name, **part}


def metadata(
    settings: KubernetesConfig, suffix: str = "", component: str | None = None, more_labels: Mapping[str, str] = {}
) -> Object:
    name = f"{settings.name}-{suffix}" if suffix else settings.name
    return {"name": name, "namespace": settings.namespace, "labels": {**labels(settings, component), **more_labels}}


def ray_pod(
    config: DeploymentConfig,
    component: str,
    pod: PodConfig,
    *,
    cpu: str,
    gpus: int = 0,
    head: bool = False,
    data: str | None = None,
) -> Object:
    """The pod template of one group of Ray nodes.

    head: whether the pod runs Ray's head. data: the volume claim at /data.
    """
    settings, serves = config.kubernetes, component in SERVING
    ports = {"serve": config.router.port, "metrics": METRICS_PORT, **(HEAD_PORTS if head else {})}
    volumes = _volumes(config, component, pod)
    if data:
        volumes["data"] = (_claim(data), {"mountPath": "/data"})
    gpu_taints: list[dict[str, str | int]] = [{"key": settings.gpu_resource, "effect": "NoSchedule"}] if gpus else []
    tolerations = [{"operator": "Exists", **taint} for taint in (*pod.tolerations, *gpu_taints)]
    spec: Object = {
        "restartPolicy": "Never",  # the autoscaler (v2) replaces pods itself
        "terminationGracePeriodSeconds": settings.drain_seconds + DRAIN_COMMAND_S + 10,
        "securityContext": POD_SECURITY,
        "containers": [
            {
                "name": "ray-head" if head else "ray-worker",
                "image": settings.image,
                "ports": [{"name": name, "containerPort": port} for name, port in ports.items()],
                "env": _environment(config, component),
                "resources": resources(cpu, pod.memory, pod.devices | ({settings.gpu_resource: gpus} if gpus else {})),
                "securityContext": CONTAINER_SECURITY,
                **_probes(config, component),
                **({"lifecycle": _drain(settings.drain_seconds)} if serves else {}),
                "volumeMounts": [{"name": name, **mount} for name, (_, mount) in volumes.items()],
            }
        ],
        "volumes": [{"name": name, **source} for name, (source, _) in volumes.items()],
    }
    if component != "head":
        spec["automountServiceAccountToken"] = False  # only the autoscaler, in the head pod, calls Kubernetes
    pull = [{"name": settings.image_pull_secret}] if settings.image_pull_secret else []
    more = {"imagePullSecrets": pull, "nodeSelector": dict(pod.node_selector), "tolerations": tolerations}
    spec |= {name: value for name, value in more.items() if value}
    return {"metadata": {"labels": labels(settings, component)}, "spec": spec}


def resources(cpu: str, memory: str, others: Mapping[str, int] = {}) -> Object:
    """Requests equal limits: Ray counts the limits, and Kubernetes then never takes resources away under load."""
    amounts = {"cpu": cpu, "memory": memory, **{name: str(amount) for name, amount in others.items()}}
    return {"requests": dict(amounts), "limits": dict(amounts)}


def _drain(seconds: int) -> Object:
    """A hook before a pod ends: its proxy sends clients away, Serve moves its replicas, running answers are finished.

    If the whole cluster is deleted, the head may be gone already. Ray would wait for it for more than a minute.
    """
    drain = (
        f'touch "${DRAINING_FILE}"; timeout {DRAIN_COMMAND_S} '
        "ray drain-node --reason DRAIN_NODE_REASON_PREEMPTION --reason-message 'the pod is ending' "
        f"--deadline-remaining-seconds {seconds}; sleep {seconds}"
    )
    return {"preStop": {"exec": {"command": ["bash", "-c", drain]}}}


def _environment(config: DeploymentConfig, component: str) -> list[Object]:
    """Environment variables. Secrets are references, never values. A secret that the config uses must exist."""
    values = {"DO_NOT_TRACK": "1", "VLLM_NO_USAGE_STATS": "1", "RAY_USAGE_STATS_ENABLED": "0", **USER}
    values |= {**SERVE_SWITCHES, **DRAINING_SWITCHES, **DIRECT_GRPC}
    secret, hub = config.kubernetes.secret, config.kubernetes.hub
    is_online = downloads(config, component)
    hub_values = {"HF_HOME": hub.mount_path, **({"HF_ENDPOINT": hub.endpoint} if hub.endpoint else {})}
    env = variables({**values, **(hub_values if is_online else {"HF_HUB_OFFLINE": "1"})})
    if is_online:
        env.append(_secret("HF_TOKEN", hub.token_secret or secret, hub.token_key, needed=hub.token_secret is not None))
    env.append(_secret(CHANNEL_TOKEN, secret, "channel-token", needed=config.channel.token is not None))
    if variable := API_KEYS.get(component):
        env.append(_secret(variable, secret, "api-key", needed="api_key" in config.target.engine_options))
    return env


def variables(values: Mapping[str, str]) -> list[Object]:
    """Environment variables of a container."""
    return [{"name": name, "value": value} for name, value in values.items()]


def _secret(variable: str, secret: str, key: str, *, needed: bool) -> Object:
    reference = {"name": secret, "key": key, "optional": not needed}
    return {"name": variable, "valueFrom": {"secretKeyRef": reference}}


def _probes(config: DeploymentConfig, component: str) -> Object:
    """A node is alive while Ray's agent is healthy, and ready once its Serve proxy is. The image needs no wget."""
    alive = {"httpGet": {"path": "/api/healthz", "port": AGENT_PORT}, "periodSeconds": PROBE_EVERY_S}
    serves = {"httpGet": {"path": "/-/healthz", "port": config.router.port}, "periodSeconds": PROBE_EVERY_S}
    failures = config.kubernetes.max_start_minutes * 60 // PROBE_EVERY_S
    return {
        "startupProbe": {**alive, "timeoutSeconds": 5, "failureThreshold": failures},
        "livenessProbe": {**alive, "timeoutSeconds": 5, "failureThreshold": 12},
        "readinessProbe": {**(serves if component in SERVING else alive), "timeoutSeconds": 5},
    }


def _volumes(config: DeploymentConfig, component: str, pod: PodConfig) -> dict[str, tuple[Object, Object]]:
    """Volumes by name: (source, mount)."""
    settings = config.kubernetes
    memory = {"emptyDir": {"medium": "Memory", "sizeLimit": pod.shared_memory}}
    # Ray's object store and the ranks of an engine communicate through /dev/shm; the default of a pod is 64 MiB.
    volumes: dict[str, tuple[Object, Object]] = {"shared-memory": (memory, {"mountPath": "/dev/shm"})}
    volumes |= {name: ({"emptyDir": {}}, {"mountPath": path}) for name, path in WRITABLE.items()}
    if component in SERVING and (claim := settings.models.claim):
        volumes["models"] = (_claim(claim, readOnly=True), {"mountPath": settings.models.mount_path, "readOnly": True})
    if downloads(config, component):
        hub = settings.hub
        volumes["hub-cache"] = (_claim(hub.claim) if hub.claim else {"emptyDir": {}}, {"mountPath": hub.mount_path})
    if component in SERVING and settings.tls_secret:
        volumes["channel-tls"] = _secret_folder(settings.tls_secret, TLS_PATH)
    if component == "router" and settings.api_keys_secret:
        # A whole folder: Kubernetes updates it when the Secret changes, and a single file never.
        volumes["api-keys"] = _secret_folder(settings.api_keys_secret, API_KEYS_PATH)
    return volumes


def _claim(name: str, **options: bool) -> Object:
    return {"persistentVolumeClaim": {"claimName": name, **options}}


def _secret_folder(secret: str, path: str) -> tuple[Object, Object]:
    return {"secret": {"secretName": secret, "defaultMode": 0o440}}, {"mountPath": path, "readOnly": True}


def downloads(config: DeploymentConfig, component: str) -> bool:
    """Whether the pods of `component` download from a hub: a serving pod, if any pool names a repository of a hub."""
    return component in SERVING and any(
        is_hub_name(pool.model) or hub_names(pool.engine_options) for pool in config.pools.values()
    )
