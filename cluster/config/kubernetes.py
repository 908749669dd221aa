"""The `kubernetes:` section of a config: settings of the Kubernetes objects."""

import posixpath
import re  # noqa: TID251  a deployment file
from contextlib import suppress
from pathlib import PurePosixPath
from typing import Annotated, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, Field, model_validator

MANY, A_MONTH_MIN = 10_000, 30 * 24 * 60
"""Bounds of numbers, so that none is larger than Kubernetes' fields, which have 32 bits."""
POD_FOLDERS = ("/tmp", "/home/skim", "/dev/shm", "/etc/skim")
"""Folders that pods have besides those of the models and the hub (`cluster.kuberay.pods`)."""


def _like(pattern: str, what: str) -> AfterValidator:
    """The API server refuses a text that `pattern` does not match. what: what it must be, for the error."""

    def check(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError(f"must be {what}")
        return text

    return AfterValidator(check)


def _with_port(url: str) -> str:
    with suppress(ValueError):
        if urlsplit(url if "://" in url else f"//{url}").port != 0:
            return url
    raise ValueError("must have a port between 1 and 65535")


_LABEL = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
_NAMED = r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_DOMAIN = rf"{_LABEL}(\.{_LABEL})*"

# KubeRay appends up to 6 characters and allows 53 in total. We append a suffix for the kind of object.
Name = Annotated[str, _like(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?", "a name of at most 40 of a-z, 0-9 and -, as in skim-1")]
Namespace = Annotated[str, _like(_LABEL, "a name of at most 63 of a-z, 0-9 and -")]
ObjectName = Annotated[str, _like(rf"(?=.{{1,253}}$){_DOMAIN}", "the name of an object, of a-z, 0-9, - and .")]
SecretKey = Annotated[
    str, _like(r"(?!\.\.?$)[-._a-zA-Z0-9]{1,253}", "a key of a Secret, of letters, digits, -, _ and .")
]
Cores = Annotated[
    str, _like(r"(?=.*[1-9])([0-9]+m|[0-9]+(\.[0-9]{1,3})?)", "a number of cores above 0, such as 4, 0.5 or 500m")
]
Memory = Annotated[
    str,
    _like(r"(?=.*[1-9])([0-9]+(\.[0-9]+)?(k|M|G|T|Ki|Mi|Gi|Ti)|[0-9]+)", "an amount of memory above 0, such as 16Gi"),
]
Resource = Annotated[str, _like(rf"{_DOMAIN}/{_NAMED}", "a resource with its domain, such as nvidia.com/gpu")]
Label = Annotated[str, _like(rf"({_DOMAIN}/)?{_NAMED}", "the key of a label, such as example.com/zone")]
LabelValue = Annotated[str, _like(f"({_NAMED})?", "the value of a label: at most 63 of letters, digits, -, _ and .")]
MountPath = Annotated[
    str,
    _like(r"/+[^/ :][^ :]*", "a folder in the pods, such as /models, without spaces and colons"),
    AfterValidator(lambda path: posixpath.normpath("/" + path.lstrip("/"))),  # equal folders are equal texts
]
Url = Annotated[
    str,
    _like(r"https?://[^/\s:][^/\s]*(/\S*)?", "a URL such as https://hub.example.com"),
    AfterValidator(_with_port),
]


class PodConfig(BaseModel, extra="forbid", frozen=True, coerce_numbers_to_str=True):
    """The pods of one worker group. A pod is one Ray node and holds one replica, or a part of one."""

    cpu: Cores | None = Field(None, description="null: the cores that its replica reserves, rounded up")
    memory: Memory = "8Gi"
    shared_memory: Memory = Field("2Gi", description="size of /dev/shm; it counts towards memory")
    devices: dict[Resource, Annotated[int, Field(gt=0)]] = Field(
        {}, description="devices of a pod besides GPUs, by the resource name of their device plugin"
    )
    node_selector: dict[Label, LabelValue] = Field({}, description="labels of the Kubernetes nodes to use")
    tolerations: tuple[dict[str, str | int], ...] = Field(
        (), description="Kubernetes tolerations besides that of GPU nodes"
    )


class ModelVolumeConfig(BaseModel, extra="forbid", frozen=True, coerce_numbers_to_str=True):
    """Where pods find the model folders."""

    mount_path: MountPath = Field(
        "/models", description="folder in the pods; a model folder outside it is looked up here by its name"
    )
    claim: ObjectName | None = Field(None, description="volume claim with the model folders; null: the image has them")


class HubConfig(BaseModel, extra="forbid", frozen=True, coerce_numbers_to_str=True):
    """How pods download models that are hub names (docs/models.md); used only if a model is one."""

    mount_path: MountPath = Field("/hub", description="folder of the cache in the pods (HF_HOME)")
    claim: ObjectName | None = Field(None, description="volume claim for a cache of all pods; null: one for each pod")
    token_secret: ObjectName | None = Field(
        None, description="Secret with the token (HF_TOKEN); null: the Secret of kubernetes.secret, if it has the key"
    )
    token_key: SecretKey = Field("hf-token", description="key of the token in its Secret")
    endpoint: Url | None = Field(None, description="URL of another hub (HF_ENDPOINT)")


class RedisConfig(BaseModel, extra="forbid", frozen=True, coerce_numbers_to_str=True):
    """A Redis of yours that keeps Ray's cluster state, so that a new head finds its workers."""

    address: Annotated[
        str, _like(r"(rediss?://)?[^\s/:]+:[0-9]+", "host:port or rediss://host:port"), AfterValidator(_with_port)
    ] = Field(description="host:port of your Redis, with TLS rediss://host:port")
    username: str | None = Field(None, description="user of the Redis; null: its default user")
    password_secret: ObjectName | None = Field(None, description="Secret with the password; null: kubernetes.secret")
    password_key: SecretKey = Field("redis-password", description="key of the password in its Secret")


class BatchConfig(BaseModel, extra="forbid", frozen=True):
    """The batch job: reads rows and writes answers."""

    input: str = Field(description="rows in OpenAI's batch format: a file under /data, or an fsspec URL")
    output: str = Field(description="answers: a file under /data, or an fsspec URL")
    claim: ObjectName | None = Field(None, description="volume claim to mount at /data; null: none")
    endpoint: Annotated[Url, _like(r"https?://[^/]+", "a URL without a path")] | None = Field(
        None, description="URL to send to; null: this deployment's Service"
    )
    nodes: int = Field(1, ge=1, le=MANY, description="nodes that send requests")
    retries: int = Field(3, ge=0, le=MANY, description="of a failed job; each continues where the last one stopped")
    keep_minutes: int = Field(60, ge=0, le=A_MONTH_MIN, description="how long a finished job's cluster is kept")
    pod: PodConfig = Field(default_factory=lambda: PodConfig(cpu="2", memory="8Gi"))

    @model_validator(mode="after")
    def _files_outlive_pods(self) -> Self:
        """A file on the pod's own disk would be lost with the pod."""
        for place in (self.input, self.output):
            if "://" not in place and not (self.claim and place.startswith("/data/")):
                raise ValueError(f"{place} is a local file: put it under /data and name its claim, or give a URL")
        return self


class NetworkConfig(BaseModel, extra="forbid", frozen=True):
    """Namespaces whose pods may connect to ours; all others are blocked."""

    client_namespaces: tuple[Namespace, ...] = Field((), description="namespaces of clients, besides our own")
    operator_namespace: Namespace = Field("kuberay-system", description="namespace of the KubeRay operator")
    monitoring_namespace: Namespace = Field("monitoring", description="namespace of Prometheus")


class KubernetesConfig(BaseModel, extra="forbid", frozen=True, coerce_numbers_to_str=True):
    """Settings of `skim manifests`."""

    name: Name = "skim"
    namespace: Namespace = "default"
    image: Annotated[str, _like(r"\S+", "the name of an image")] = Field(
        "skim:gpu", description="image of all pods; see docker/"
    )
    image_pull_secret: ObjectName | None = None
    gpus: bool = Field(True, description="pools whose gpus_per_replica is null get one GPU per rank")
    gpu_resource: Resource = Field("nvidia.com/gpu", description="resource name of a GPU, also the taint of GPU nodes")
    secret: ObjectName = Field(
        "skim-secrets", description="Secret with channel-token, api-key, hf-token, redis-password, where they are used"
    )
    api_keys_secret: ObjectName | None = Field(
        None, description="Secret with keys.yaml, the router's file of API keys (SECURITY.md); null: none"
    )
    tls_secret: ObjectName | None = Field(
        None, description="Secret with tls.crt, tls.key, ca.crt for the draft channel; null: no TLS"
    )
    max_start_minutes: int = Field(30, ge=1, le=A_MONTH_MIN, description="limit of a node's start, and of the whole")
    drain_seconds: int = Field(120, ge=0, le=60 * A_MONTH_MIN, description="time of a stopping pod for its answers")
    monitor_labels: dict[Label, LabelValue] = Field(
        {"release": "prometheus"}, description="labels by which Prometheus finds PodMonitors"
    )
    models: ModelVolumeConfig = Field(default_factory=lambda: ModelVolumeConfig())
    hub: HubConfig = Field(default_factory=lambda: HubConfig())
    redis: RedisConfig | None = Field(None, description="null: the whole cluster starts again when the head ends")
    network: NetworkConfig = Field(default_factory=lambda: NetworkConfig())
    labels: dict[Label, LabelValue] = Field(
        {}, description="further labels of the RayService and the RayJob, such as a scheduler's queue"
    )
    annotations: dict[Label, str] = Field({}, description="further annotations of both")
    batch: BatchConfig | None = Field(None, description="a batch job on these pools; null: none")
    head: PodConfig = Field(default_factory=lambda: PodConfig(cpu="2", memory="8Gi"))
    router: PodConfig = Field(default_factory=lambda: PodConfig())
    speculator: PodConfig = Field(default_factory=lambda: PodConfig(memory="32Gi", shared_memory="4Gi"))
    target: PodConfig = Field(default_factory=lambda: PodConfig(memory="64Gi", shared_memory="16Gi"))
    prefill: PodConfig = Field(default_factory=lambda: PodConfig(memory="64Gi", shared_memory="16Gi"))

    @model_validator(mode="after")
    def _volumes_apart(self) -> Self:
        models, hub = PurePosixPath(self.models.mount_path), PurePosixPath(self.hub.mount_path)
        if models.is_relative_to(hub) or hub.is_relative_to(models):
            raise ValueError(f"hub.mount_path and models.mount_path, {hub} and {models}: neither may hold the other")
        for name, path in (("models", models), ("hub", hub)):
            if hidden := [folder for folder in POD_FOLDERS if PurePosixPath(folder).is_relative_to(path)]:
                raise ValueError(
                    f"{name}.mount_path is {path} and would hide {hidden[0]} of the pods: name another folder"
                )
        return self
