"""The `kubernetes:` section of a config: what the objects need to know beyond the deployment itself."""

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

# KubeRay appends up to 6 characters and allows 53 in all; the object's kind may follow in ours.
Name = Annotated[str, Field(pattern=r"^[a-z]([-a-z0-9]*[a-z0-9])?$", max_length=40)]
Quantity = Annotated[str, Field(pattern=r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|Ki|Mi|Gi|Ti)?$")]


class TolerationConfig(BaseModel):
    """A taint of nodes that pods may be placed on all the same."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    key: str
    operator: Literal["Exists", "Equal"] = "Exists"
    value: str | None = None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None


class PodConfig(BaseModel):
    """The pods of one worker group. A pod is one Ray node and holds one replica."""

    model_config = ConfigDict(extra="forbid", frozen=True, coerce_numbers_to_str=True)

    cpu: Quantity | None = Field(None, description="null: the whole cores that its replica sets aside")
    memory: Quantity = "8Gi"
    shared_memory: Quantity = Field("2Gi", description="size of /dev/shm; it counts towards memory")
    node_selector: dict[str, str] = Field(default_factory=dict, description="labels of the Kubernetes nodes to use")
    tolerations: tuple[TolerationConfig, ...] = Field(
        (), description="besides the GPU taint, which pods with GPUs tolerate"
    )


class ModelVolumeConfig(BaseModel):
    """Where pods find the model folders."""

    model_config = ConfigDict(extra="forbid", frozen=True, coerce_numbers_to_str=True)

    mount_path: str = Field(
        "/models",
        pattern=r"^/[^ :]+$",
        description="folder in the pods; a model folder outside of it is taken from here by its name",
    )
    claim: Name | None = Field(None, description="persistent volume claim that holds them; null: the image does")
    size: Quantity | None = Field(None, description="write that claim too, of this size; null: it is there already")
    storage_class: str | None = Field(None, description="storage class of a claim that is written; null: the default")


class RedisConfig(BaseModel):
    """Redis keeps Ray's cluster state, so that a new head finds its workers again."""

    model_config = ConfigDict(extra="forbid", frozen=True, coerce_numbers_to_str=True)

    address: str | None = Field(None, description="host:port of a Redis that is there already; null: one is written")
    image: str = "redis:7.4"
    size: Quantity = Field("1Gi", description="its volume")


class BatchConfig(BaseModel):
    """The batch job: rows in, answers out."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    input: str = Field(description="rows in OpenAI's batch format: a file under /data, or an fsspec URL")
    output: str = Field(description="where the answers go: a file under /data, or an fsspec URL")
    claim: Name | None = Field(None, description="persistent volume claim that is mounted at /data; null: none")
    nodes: int = Field(1, ge=1, description="nodes that send requests")
    retries: int = Field(3, ge=0, description="a job that fails starts again, where it stopped")
    keep_minutes: int = Field(60, ge=0, description="how long a finished job can be looked at")
    pod: PodConfig = Field(default_factory=lambda: PodConfig(cpu="2", memory="8Gi"))

    @model_validator(mode="after")
    def _files_outlive_pods(self) -> Self:
        """A file of the pod's own goes with it."""
        for place in (self.input, self.output):
            if "://" not in place and not (self.claim and place.startswith("/data/")):
                raise ValueError(f"{place} is a local file: put it under /data and name its claim, or give a URL")
        return self


class NetworkConfig(BaseModel):
    """Who may reach the pods; all else is closed."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    client_namespaces: tuple[str, ...] = Field((), description="namespaces of clients, besides our own")
    operator_namespace: str = Field("kuberay-system", description="where the KubeRay operator runs")
    monitoring_namespace: str = Field("monitoring", description="where Prometheus runs")


class KubernetesConfig(BaseModel):
    """What `skim manifests` writes."""

    model_config = ConfigDict(extra="forbid", frozen=True, coerce_numbers_to_str=True)

    name: Name = "skim"
    namespace: str = Field("default", pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=63)
    image: str = Field("skim:gpu", min_length=1, description="image of all pods; see docker/")
    image_pull_secret: str | None = None
    gpus: bool = Field(True, description="pools whose gpus_per_replica is null get one GPU per rank")
    gpu_resource: str = Field("nvidia.com/gpu", description="Kubernetes' name of a GPU, and of the taint on GPU nodes")
    secret: str = Field("skim-secrets", description="Secret with redis-password and, if wanted, channel-token, api-key")
    tls_secret: str | None = Field(
        None, description="Secret with tls.crt, tls.key, ca.crt for the draft channel; null: no TLS"
    )
    max_start_minutes: int = Field(30, ge=1, description="how long a node, and the whole service, may take to come up")
    drain_seconds: int = Field(120, ge=0, description="how long a pod that ends may finish its answers")
    monitor_labels: dict[str, str] = Field(
        default_factory=lambda: {"release": "prometheus"},
        description="labels by which Prometheus finds PodMonitors",
    )
    models: ModelVolumeConfig = Field(default_factory=lambda: ModelVolumeConfig())
    redis: RedisConfig = Field(default_factory=lambda: RedisConfig())
    network: NetworkConfig = Field(default_factory=lambda: NetworkConfig())
    batch: BatchConfig | None = Field(None, description="a batch job over these pools; null: none is written")
    head: PodConfig = Field(default_factory=lambda: PodConfig(cpu="2", memory="8Gi"))
    router: PodConfig = Field(default_factory=lambda: PodConfig())
    speculator: PodConfig = Field(default_factory=lambda: PodConfig(memory="32Gi", shared_memory="4Gi"))
    target: PodConfig = Field(default_factory=lambda: PodConfig(memory="64Gi", shared_memory="16Gi"))
    prefill: PodConfig = Field(default_factory=lambda: PodConfig(memory="64Gi", shared_memory="16Gi"))
