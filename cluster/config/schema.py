"""A deployment as data: which models, on how many replicas of what size, behind which endpoint.

Read from a YAML file, from command-line flags, or from a file with flags over it. Whatever is wrong is one sentence
that names the setting, such as `target.tensor_parallel`, and its line.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, model_validator

from cluster.config.file import line_of, read_settings, sentence
from cluster.kuberay.settings import KubernetesConfig
from kv_transfer.errors import SkimError
from kv_transfer.messages import DecodeOptions, SelectionOptions

CPU_KV_CACHE_GIB = "4"


def _absolute(model: str, info: ValidationInfo) -> str:
    folder: Path = (info.context or {}).get("folder", Path())
    return str((folder / Path(model).expanduser()).resolve())


def _collector(endpoint: str) -> str:
    try:
        url = urlsplit(endpoint)
        right = url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:
        right = False
    if not right:
        raise ValueError("must be an http or https URL, such as http://collector:4318")
    if url.path.rstrip("/").endswith("/v1/traces"):
        raise ValueError("must end before /v1/traces, which is added to it")
    return endpoint


class AutoscalingConfig(BaseModel):
    """How a pool's replicas follow its load, by requests or by seconds of work; Serve's options have Serve's names."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    min_replicas: int = Field(1, ge=0, description="0 lets an idle pool go away; the next request waits for its start")
    max_replicas: int = Field(1, ge=1)
    policy: Literal["requests", "work"] = Field(
        "requests", description="requests: Serve's own, by their number; work: by the seconds that they take"
    )
    target_ongoing_requests: float = Field(
        8.0, gt=0, allow_inf_nan=False, description="requests: per replica, queued ones too, that the pool is sized for"
    )
    drain_s: float = Field(
        5.0,
        gt=0,
        allow_inf_nan=False,
        description="work: seconds of work per replica, queued ones too, that the pool is sized for",
    )
    batch: int = Field(
        1,
        ge=1,
        description="work: requests that a replica works on at once without slowing them down; "
        "1 where it prefills, more where it decodes",
    )
    upscale_delay_s: float = Field(30.0, ge=0, allow_inf_nan=False, description="how long the load must have been high")
    downscale_delay_s: float = Field(600.0, ge=0, allow_inf_nan=False, description="how long it must have been low")
    downscale_to_zero_delay_s: float | None = Field(
        None, ge=0, allow_inf_nan=False, description="the same for the last replica; null: downscale_delay_s"
    )
    upscaling_factor: float = Field(1.0, gt=0, allow_inf_nan=False, description="gain of one step up")
    downscaling_factor: float = Field(1.0, gt=0, allow_inf_nan=False, description="gain of one step down")
    look_back_period_s: float = Field(30.0, gt=0, allow_inf_nan=False, description="window the load is averaged over")
    metrics_interval_s: float = Field(
        10.0, gt=0, allow_inf_nan=False, description="how often replicas and routers report; less than the window"
    )

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.max_replicas < self.min_replicas:
            raise ValueError("max_replicas must be at least min_replicas")
        return self


class PoolConfig(BaseModel):
    """One pool: replicas of one model on one engine. A replica is one Ray actor with its engine's processes."""

    model_config = ConfigDict(extra="forbid", frozen=True, coerce_numbers_to_str=True)

    model: Annotated[str, Field(min_length=1), AfterValidator(_absolute)] = Field(
        description="model folder; relative ones are taken from the config file's folder"
    )
    engine: Literal["vllm", "transformers", "mock"] = "vllm"
    replicas: int = Field(1, ge=1, description="with autoscaling: how many at the start, and after a change of it")
    autoscaling: AutoscalingConfig | None = Field(None, description="null: always as many as `replicas` says")
    tensor_parallel: int = Field(1, ge=1, description="ranks that one replica is split over, on one node")
    cpus_per_replica: float = Field(1.0, ge=0, allow_inf_nan=False, description="CPU cores that Ray sets aside")
    gpus_per_replica: float | None = Field(
        None,
        ge=0,
        allow_inf_nan=False,
        description="GPUs of a replica; null: tensor_parallel of them where Ray has any",
    )
    accelerator_type: str | None = Field(
        None, min_length=1, description="Ray's name of the GPU a replica needs, such as H100 or L4; null: any"
    )
    resources: dict[str, Annotated[float, Field(gt=0, allow_inf_nan=False)]] = Field(
        default_factory=dict, description="custom Ray resources that a replica takes besides its pool's"
    )
    node_labels: dict[str, Annotated[str, Field(pattern=r"^[A-Za-z0-9]([-\w.]*[A-Za-z0-9])?$")]] = Field(
        default_factory=dict, description="Ray node labels that a replica's node must have"
    )
    max_ongoing_requests: int = Field(64, ge=1, description="requests that one replica works on at a time")
    drain_timeout_s: float = Field(
        60.0, ge=0, allow_inf_nan=False, description="how long a replica that is to stop may finish what it works on"
    )
    engine_options: dict[str, Any] = Field(default_factory=dict, description="passed on to the engine as they are")
    env: dict[str, str] = Field(default_factory=dict, description="environment variables of the replicas")

    @model_validator(mode="before")
    @classmethod
    def _start_with_the_fewest(cls, settings: Any) -> Any:
        """A pool that scales and says no `replicas` starts with as few as it may have, but not with none."""
        scaling = settings.get("autoscaling") if isinstance(settings, dict) else None
        if not isinstance(scaling, dict) or "replicas" in settings or not isinstance(scaling.get("min_replicas"), int):
            return settings
        return {**settings, "replicas": max(1, scaling["min_replicas"])}

    @model_validator(mode="after")
    def _a_gpu_for_each_rank(self) -> Self:
        if self.tensor_parallel > 1 and 0 < (self.gpus_per_replica or 0) < self.tensor_parallel:
            raise ValueError("gpus_per_replica must be at least tensor_parallel: each rank has a GPU of its own")
        return self

    @model_validator(mode="after")
    def _starts_in_range(self) -> Self:
        scaling = self.autoscaling
        if scaling and not scaling.min_replicas <= self.replicas <= scaling.max_replicas:
            raise ValueError("replicas must lie between autoscaling.min_replicas and autoscaling.max_replicas")
        return self

    @property
    def most_replicas(self) -> int:
        """The largest number of replicas that the pool may grow to."""
        return self.autoscaling.max_replicas if self.autoscaling else self.replicas

    @property
    def environment(self) -> dict[str, str]:
        """`env`, with what a replica on CPU needs: vLLM alone would take nearly all memory, and there are two pools."""
        return self.env if self.gpus_per_replica else {"VLLM_CPU_KVCACHE_SPACE": CPU_KV_CACHE_GIB, **self.env}


class PrefillConfig(PoolConfig):
    """The pool that prefills for a split target: what it does not say is as the target says, but for its size."""

    model: Annotated[str, AfterValidator(_absolute)] = Field("", description="the target's")


class TargetConfig(PoolConfig):
    """The target pool, and whether another one prefills for it."""

    topology: Literal["unified", "split"] = Field(
        "unified",
        description="unified: one pool prefills and decodes; split: `prefill` does the one, and KV blocks cross",
    )
    prefill: PrefillConfig | None = Field(None, description="the prefilling pool of a split target")

    @model_validator(mode="after")
    def _prefill_is_like_the_target(self) -> Self:
        if self.topology == "unified":
            if self.prefill:
                raise ValueError("prefill is a pool of a split target: set topology to split, or leave it out")
            return self
        if self.engine == "transformers":
            raise ValueError("the transformers engine cannot be split: use vllm")
        prefill = self.prefill or PrefillConfig()
        inherited = PoolConfig.model_fields.keys() - {"replicas", "autoscaling"} - prefill.model_fields_set
        update = {name: getattr(self, name) for name in inherited}
        return self.model_copy(update={"prefill": prefill.model_copy(update=update)})


class RouterConfig(BaseModel):
    """The HTTP endpoint, and when it asks the speculator at all."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    host: str = "127.0.0.1"
    port: int = Field(8000, ge=1, le=65535)
    replicas: int = Field(1, ge=1)
    cpus: float = Field(1.0, ge=0, allow_inf_nan=False, description="CPU cores that Ray sets aside per replica")
    resources: dict[str, Annotated[float, Field(gt=0, allow_inf_nan=False)]] = Field(
        default_factory=dict, description="custom Ray resources that a replica takes"
    )
    max_ongoing_requests: int = Field(256, ge=1, description="requests that one replica works on at a time")
    drain_timeout_s: float = Field(
        60.0, ge=0, allow_inf_nan=False, description="how long a replica that is to stop may finish what it works on"
    )
    min_prompt_tokens: int = Field(1024, ge=1, description="shorter prompts run dense")
    select_timeout_s: float = Field(
        60.0, gt=0, allow_inf_nan=False, description="a selection that takes longer is given up: the prompt runs dense"
    )
    admission_timeout_s: float = Field(
        30.0, gt=0, allow_inf_nan=False, description="a request that no target replica takes for so long gets a 503"
    )
    vllm_args: dict[str, Any] = Field(
        default_factory=dict, description="options of vLLM's HTTP front: api_key, tool_call_parser, chat_template, ..."
    )


class TracesConfig(BaseModel):
    """Spans of each request, sent by OpenTelemetry's protocol (OTLP over HTTP)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    endpoint: Annotated[str, AfterValidator(_collector)] = Field(
        description="collector, such as http://collector:4318; spans go to /v1/traces there"
    )
    sample_ratio: float = Field(
        1.0, ge=0, le=1, description="share of the requests that are traced; one that comes with a trace follows it"
    )
    service_name: str = Field(
        "skim", min_length=1, description="of the whole deployment; its parts are skim-router, skim-target, ..."
    )


class ObservabilityConfig(BaseModel):
    """What the deployment says of itself. Its counters are always exported (Prometheus, on every Ray node)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["text", "json"] = Field("text", description="json: one object per line")
    traces: TracesConfig | None = Field(None, description="null: no traces are made")


def placed(pool: PoolConfig, *, on_gpus: bool) -> PoolConfig:
    """`pool` with its GPUs decided: as it says, else one per rank if `on_gpus`."""
    if pool.gpus_per_replica is not None:
        return pool
    gpus = pool.tensor_parallel if on_gpus and pool.engine != "mock" else 0
    return pool.model_copy(update={"gpus_per_replica": float(gpus)})


class ChannelConfig(BaseModel):
    """The draft channel between target workers and speculators (gRPC). Without token and TLS it trusts the network."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    port: int = Field(
        0,
        ge=0,
        le=65535,
        description="where a speculator replica listens; 0 takes a free port. A fixed one, with one "
        "replica per machine, lets running answers find a replica that was started anew",
    )
    deadline_ms: float = Field(250.0, gt=0, le=10_000, description="a draft that takes longer is done without")
    max_branches: int = Field(64, ge=1, description="guesses that a speculator replica drafts ahead for at a time")
    token: str | None = Field(None, min_length=16, description="shared secret that every target worker must show")
    tls_cert: str | None = Field(None, description="server certificate, PEM file on the pools' machines")
    tls_key: str | None = Field(None, description="its private key, PEM file")
    tls_ca: str | None = Field(None, description="certificate authority that clients trust, PEM file")

    @model_validator(mode="after")
    def _tls_is_whole(self) -> Self:
        given = [name for name in ("tls_cert", "tls_key", "tls_ca") if getattr(self, name)]
        if given and len(given) < 3:
            raise ValueError("tls_cert, tls_key and tls_ca go together")
        return self


class DeploymentConfig(BaseModel):
    """Everything that `skim serve` needs to know."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    served_model_name: str = Field("", description="model name that clients send; the target folder's name if empty")
    speculator: PoolConfig
    target: TargetConfig
    selection: SelectionOptions = Field(default_factory=lambda: SelectionOptions())
    decode: DecodeOptions = Field(default_factory=lambda: DecodeOptions())
    channel: ChannelConfig = Field(default_factory=lambda: ChannelConfig())
    router: RouterConfig = Field(default_factory=lambda: RouterConfig())
    observability: ObservabilityConfig = Field(default_factory=lambda: ObservabilityConfig())
    kubernetes: KubernetesConfig = Field(default_factory=lambda: KubernetesConfig())
    spans_machines: bool = Field(False, description="the model folders lie on the pools' machines, perhaps not on this")

    @property
    def pools(self) -> dict[str, PoolConfig]:
        """The pools by name: speculator, target, and prefill where the target is split."""
        prefill = {"prefill": self.target.prefill} if self.target.prefill else {}
        return {"speculator": self.speculator, "target": self.target, **prefill}

    def placed(self, *, on_gpus: bool) -> "DeploymentConfig":
        """With the GPUs of all pools decided."""
        return self.with_pools({name: placed(pool, on_gpus=on_gpus) for name, pool in self.pools.items()})

    def with_pools(self, pools: Mapping[str, PoolConfig]) -> "DeploymentConfig":
        """With other settings for the pools; `pools` has them all, by the names of `pools`."""
        target = pools["target"].model_copy(update={"prefill": pools.get("prefill")})
        return self.model_copy(update={"speculator": pools["speculator"], "target": target})


def load_config(path: str | Path) -> DeploymentConfig:
    """The deployment that the YAML file at `path` describes. Raises SkimError."""
    return config_from_flags(path, {})


def config_from_flags(path: str | Path | None, overrides: Mapping[str, Any]) -> DeploymentConfig:
    """The deployment of a file, if one is given, with `overrides` over it.

    overrides: values by dotted name, such as {"target.model": Path("big")}; None leaves the file's value. Model folders
    among them are relative to the working directory. Raises SkimError.
    """
    settings, text = read_settings(Path(path)) if path is not None else ({}, "")
    for name, value in overrides.items():
        if value is not None:
            _set(settings, name.split("."), str(value.absolute()) if isinstance(value, Path) else value)
    folder = Path(path).parent if path is not None else Path()
    try:
        config = DeploymentConfig.model_validate(settings, context={"folder": folder.absolute()})
    except ValidationError as error:
        lines = line_of(text, given_elsewhere={name for name, value in overrides.items() if value is not None})
        raise SkimError(f"{path or 'command line'}: {sentence(error, DeploymentConfig, lines)}") from None
    return _named(config)


def config_from_settings(settings: Mapping[str, Any]) -> DeploymentConfig:
    """The deployment that `settings` spell out, with absolute model folders. Raises SkimError."""
    try:
        return _named(DeploymentConfig.model_validate(dict(settings)))
    except ValidationError as error:
        raise SkimError(f"deployment settings: {sentence(error, DeploymentConfig, line_of(''))}") from None


def _named(config: DeploymentConfig) -> DeploymentConfig:
    if config.served_model_name:
        return config
    return config.model_copy(update={"served_model_name": Path(config.target.model).name})


def _set(settings: dict[str, Any], names: list[str], value: Any) -> None:
    """Set settings[a][b] = value, making absent sections; a section of a wrong type is left to validation."""
    *sections, last = names
    for section in sections:
        settings = settings.setdefault(section, {})
        if not isinstance(settings, dict):
            return
    settings[last] = value
