"""The `kubernetes:` section of a config: settings of the Kubernetes objects."""

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

# KubeRay appends up to 6 characters and allows 53 in total. We append a suffix for the kind of object.
Name = Annotated[str, Field(pattern=r"^[a-z]([-a-z0-9]*[a-z0-9])?$", max_length=40)]
Quantity = Annotated[str, Field(pattern=r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|Ki|Mi|Gi|Ti)?$")]


class TolerationConfig(BaseModel):
    """A taint of nodes that the pods tolerate."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    key: str
    operator: Literal["Exists", "Equal"] = "Exists"
    value: str | None = None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None


class PodConfig(BaseModel):
    """The pods of one worker group. A pod is one Ray node and holds one replica, or a part of one."""

    model_config = ConfigDict(extra="forbid", frozen=True, coerce_numbers_to_str=True)

    cpu: Quantity | None = Field(None, description="null: the cores that its replica reserves, rounded up")
    memory: Quantity = "8Gi"
    shared_memory: Quantity = Field("2Gi", description="size of /dev/shm; it counts towards memory")
    devices: dict[str, Annotated[int, Field(gt=0)]] = Field(
        default_factory=dict, description="devices of a pod besides GPUs, by the resource name of their device plugin"
    )
    node_selector: dict[str, str] = Field(default_factory=dict, description="labels of the Kubernetes nodes to use")
    tolerations: tuple[TolerationConfig, ...] = Field(
        (), description="further taints to tolerate; pods with GPUs tolerate the GPU taint"
    )


class ModelVolumeConfig(BaseModel):
    """Where pods find the model folders."""

    model_config = ConfigDict(extra="forbid", frozen=True, coerce_numbers_to_str=True)

    mount_path: str = Field(
        "/models",
        pattern=r"^/[^ :]+$",
        description="folder in the pods; a model folder that is not inside it is looked up here by its name",
    )
    claim: Name | None = Field(
        None, description="persistent volume claim with the model folders; null: the image holds them"
    )


class HubConfig(BaseModel):
    """How pods download models that are hub names (docs/models.md); used only if a model is one."""

    model_config = ConfigDict(extra="forbid", frozen=True, coerce_numbers_to_str=True)

    mount_path: str = Field("/hub", pattern=r"^/[^ :]+$", description="folder of the cache in the pods (HF_HOME)")
    claim: Name | None = Field(
        None, description="persistent volume claim for a cache that all pods share; null: each pod has one of its own"
    )
    token_secret: Name | None = Field(
        None, description="Secret with the token (HF_TOKEN); null: the Secret of kubernetes.secret, if it has the key"
    )
    token_key: str = Field("hf-token", pattern=r"^[-._a-zA-Z0-9]+$", description="key of the token in its Secret")
    endpoint: str | None = Field(
        None, pattern=r"^https?://[^/\s:]+(:[0-9]{1,5})?(/\S*)?$", description="URL of another hub (HF_ENDPOINT)"
    )


class RedisConfig(BaseModel):
    """A Redis of yours that keeps Ray's cluster state, so that a new head finds its workers."""

    model_config = ConfigDict(extra="forbid", frozen=True, coerce_numbers_to_str=True)

    address: str = Field(
        pattern=r"^(rediss?://)?[^\s/:]+:[0-9]{1,5}$",
        description="host:port of your Redis, with TLS rediss://host:port",
    )
    username: str | None = Field(None, description="user of the Redis; null: its default user")
    password_secret: Name | None = Field(None, description="Secret with the password; null: kubernetes.secret")
    password_key: str = Field(
        "redis-password", pattern=r"^[-._a-zA-Z0-9]+$", description="key of the password in its Secret"
    )


class BatchConfig(BaseModel):
    """The batch job: reads rows and writes answers."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    input: str = Field(description="rows in OpenAI's batch format: a file under /data, or an fsspec URL")
    output: str = Field(description="answers: a file under /data, or an fsspec URL")
    claim: Name | None = Field(None, description="persistent volume claim to mount at /data; null: none")
    endpoint: str | None = Field(
        None,
        pattern=r"^https?://[^/\s:]+(:[0-9]{1,5})?$",
        description="URL to send to; null: this deployment's Service",
    )
    nodes: int = Field(1, ge=1, description="nodes that send requests")
    retries: int = Field(3, ge=0, description="retries of a failed job; each continues where the last one stopped")
    keep_minutes: int = Field(60, ge=0, description="minutes for which the cluster of a finished job is kept")
    pod: PodConfig = Field(default_factory=lambda: PodConfig(cpu="2", memory="8Gi"))

    @model_validator(mode="after")
    def _files_outlive_pods(self) -> Self:
        """A file on the pod's own disk would be lost with the pod."""
        for place in (self.input, self.output):
            if "://" not in place and not (self.claim and place.startswith("/data/")):
                raise ValueError(f"{place} is a local file: put it under /data and name its claim, or give a URL")
        return self


class NetworkConfig(BaseModel):
    """Namespaces whose pods may connect to ours; all others are blocked."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    client_namespaces: tuple[str, ...] = Field((), description="namespaces of clients, besides our own")
    operator_namespace: str = Field("kuberay-system", description="namespace of the KubeRay operator")
    monitoring_namespace: str = Field("monitoring", description="namespace of Prometheus")


class KubernetesConfig(BaseModel):
    """Settings of `skim manifests`."""

    model_config = ConfigDict(extra="forbid", frozen=True, coerce_numbers_to_str=True)

    name: Name = "skim"
    namespace: str = Field("default", pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=63)
    image: str = Field("skim:gpu", min_length=1, description="image of all pods; see docker/")
    image_pull_secret: str | None = None
    gpus: bool = Field(True, description="pools whose gpus_per_replica is null get one GPU per rank")
    gpu_resource: str = Field("nvidia.com/gpu", description="resource name of a GPU, also the taint of GPU nodes")
    secret: str = Field(
        "skim-secrets", description="Secret with channel-token, api-key, hf-token, redis-password, where they are used"
    )
    api_keys_secret: Name | None = Field(
        None, description="Secret with keys.yaml, the router's file of API keys (SECURITY.md); null: none"
    )
    tls_secret: str | None = Field(
        None, description="Secret with tls.crt, tls.key, ca.crt for the draft channel; null: no TLS"
    )
    max_start_minutes: int = Field(30, ge=1, description="time limit for the start of a node, and of the whole service")
    drain_seconds: int = Field(120, ge=0, description="how long a stopping pod may take to finish its answers")
    monitor_labels: dict[str, str] = Field(
        default_factory=lambda: {"release": "prometheus"},
        description="labels by which Prometheus finds PodMonitors",
    )
    models: ModelVolumeConfig = Field(default_factory=lambda: ModelVolumeConfig())
    hub: HubConfig = Field(default_factory=lambda: HubConfig())
    redis: RedisConfig | None = Field(
        None, description="null: the whole cluster starts again when the head ends (docs/kubernetes.md)"
    )
    network: NetworkConfig = Field(default_factory=lambda: NetworkConfig())
    labels: dict[str, str] = Field(
        default_factory=dict, description="further labels of the RayService and the RayJob, such as a scheduler's queue"
    )
    annotations: dict[str, str] = Field(default_factory=dict, description="further annotations of both")
    batch: BatchConfig | None = Field(None, description="a batch job on these pools; null: none")
    head: PodConfig = Field(default_factory=lambda: PodConfig(cpu="2", memory="8Gi"))
    router: PodConfig = Field(default_factory=lambda: PodConfig())
    speculator: PodConfig = Field(default_factory=lambda: PodConfig(memory="32Gi", shared_memory="4Gi"))
    target: PodConfig = Field(default_factory=lambda: PodConfig(memory="64Gi", shared_memory="16Gi"))
    prefill: PodConfig = Field(default_factory=lambda: PodConfig(memory="64Gi", shared_memory="16Gi"))

    @model_validator(mode="after")
    def _volumes_apart(self) -> Self:
        if self.hub.mount_path == self.models.mount_path:
            raise ValueError(f"hub.mount_path and models.mount_path are both {self.hub.mount_path}: change one of them")
        return self
