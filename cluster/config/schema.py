"""The settings of a deployment: its pools, its endpoint, the draft channel, logs and traces.

`cluster.config.load` reads them from a YAML file and from command-line flags.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo, model_validator

from cluster.config.pools import PoolConfig, TargetConfig, placed
from cluster.kuberay.settings import KubernetesConfig
from kv_transfer.errors import SkimError
from kv_transfer.options import DecodeOptions
from router.policies import PolicyOptions
from target_service.drafting.stages import check_stages


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


def _beside_the_config(file: str, info: ValidationInfo) -> str:
    """An absolute path. A relative one starts at the config file's folder."""
    return str((info.context or {}).get("folder", Path()) / file)


class RouterConfig(BaseModel):
    """The HTTP endpoint, and when it uses the speculator."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    host: str = "127.0.0.1"
    port: int = Field(8000, ge=1, le=65535)
    replicas: int = Field(1, ge=1)
    cpus: float = Field(1.0, ge=0, allow_inf_nan=False, description="CPU cores that Ray reserves per replica")
    resources: dict[str, Annotated[float, Field(gt=0, allow_inf_nan=False)]] = Field(
        default_factory=dict, description="custom Ray resources that a replica takes"
    )
    max_ongoing_requests: int = Field(
        256, ge=1, description="requests that one replica has at a time, running or waiting; more are refused (429)"
    )
    max_wait_s: float | None = Field(
        60.0,
        gt=0,
        allow_inf_nan=False,
        description="a request that would wait longer for its pools, by the measured rate, is refused (429); "
        "null: none is for this reason",
    )
    drain_timeout_s: float = Field(
        60.0, ge=0, allow_inf_nan=False, description="how long a stopping replica may take to finish its requests"
    )
    speculative_prefill: bool | Literal["auto"] = Field(
        "auto", description="default of the request option `enabled`: auto, true or false"
    )
    min_prompt_tokens: int = Field(1024, ge=1, description="shorter prompts run dense")
    select_timeout_s: float = Field(
        60.0,
        gt=0,
        allow_inf_nan=False,
        description="a longer selection is cancelled, and the prompt runs dense",
    )
    on_speculator_failure: Literal["dense", "lexical"] = Field(
        "dense", description="prompts whose selection fails or is late: dense, or selected lexically by the router"
    )
    admission_timeout_s: float = Field(
        30.0, gt=0, allow_inf_nan=False, description="a request that waits longer for a target replica gets a 503"
    )
    deadline_s: float | None = Field(
        None,
        gt=0,
        allow_inf_nan=False,
        description="time for a whole answer, after which the request is stopped everywhere (504); a request's header "
        "x-request-timeout-ms replaces it; null: no limit",
    )
    pool_down_after_s: float = Field(
        30.0,
        ge=0,
        allow_inf_nan=False,
        description="how long requests wait for a pool without a replica; after it they get at once what still works: "
        "without the speculator as in on_speculator_failure, without the target a 503",
    )
    affinity: bool = Field(
        True, description="requests with the same prefix prefer the same replicas, whose caches hold it"
    )
    migration: bool = Field(
        True, description="continue the answers of a lost target replica on another one; false: they end with an error"
    )
    guard: bool = Field(
        True, description="under `auto`, keep more of a prompt, or all, where a selection is likely to fail"
    )
    guard_entropy: float | None = Field(
        None,
        gt=0,
        le=1,
        description="the guard runs a prompt dense if the normalised entropy of its chunks' scores is higher; "
        "`skim calibrate` measures it; null: not judged",
    )
    audit_share: float = Field(
        0.0,
        ge=0,
        le=1,
        description="share of the greedy compressed answers under `auto` that are compared with a dense answer",
    )
    audit_max_ongoing: int = Field(
        4, ge=0, description="no audit runs while a router has more requests than this at the target"
    )
    tls_cert: Annotated[str, AfterValidator(_beside_the_config)] | None = Field(
        None, description="certificate chain of the endpoint, a PEM file on the machines with a Serve proxy; null: HTTP"
    )
    tls_key: Annotated[str, AfterValidator(_beside_the_config)] | None = Field(
        None, description="private key of the certificate, a PEM file"
    )
    api_keys_file: Annotated[str, AfterValidator(_beside_the_config)] | None = Field(
        None,
        description="names and hashes of the API keys that the endpoint takes (SECURITY.md), a file on the routers' "
        "machines; read again when it changes; null: only the keys of vllm_args.api_key and VLLM_API_KEY",
    )
    control_tokens: Literal["text", "refuse", "allow"] = Field(
        "text",
        description="what becomes of control tokens of the target in the text of a chat's messages: plain text, an "
        "error, or control tokens",
    )
    max_body_bytes: int = Field(
        16 * 2**20, ge=1, description="a request with a longer body gets a 413 before it is parsed"
    )
    body_timeout_s: float = Field(
        60.0, gt=0, allow_inf_nan=False, description="a request whose body takes longer to arrive gets a 408"
    )
    body_memory_bytes: int = Field(
        256 * 2**20,
        ge=1,
        description="memory for the bodies over 64 KiB that a router is reading; above it the slowest gets a 503",
    )
    explain_text: bool = Field(False, description="requests may ask that the explain view holds their prompt's text")
    keep_alive_s: float = Field(
        10.0,
        ge=0,
        allow_inf_nan=False,
        description="longest silence of an admitted stream, after which an SSE comment is sent: less than the read "
        "time-out of every proxy before the router; 0: no comments",
    )
    vllm_args: dict[str, Any] = Field(
        default_factory=dict, description="options of vLLM's HTTP front: api_key, tool_call_parser, chat_template, ..."
    )

    @model_validator(mode="after")
    def _tls_is_whole(self) -> Self:
        if bool(self.tls_cert) != bool(self.tls_key):
            raise ValueError("tls_cert and tls_key must be set together")
        return self

    @model_validator(mode="after")
    def _one_keep_alive(self) -> Self:
        if {"sse_keep_alive_interval", "sse-keep-alive-interval"} & self.vllm_args.keys():
            raise ValueError("vllm_args.sse_keep_alive_interval has no effect here: set router.keep_alive_s")
        return self


class TracesConfig(BaseModel):
    """Spans of each request, sent by OTLP over HTTP (OpenTelemetry)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    endpoint: Annotated[str, AfterValidator(_collector)] = Field(
        description="collector, such as http://collector:4318; spans are sent to its path /v1/traces"
    )
    sample_ratio: float = Field(
        1.0,
        ge=0,
        le=1,
        description="share of the requests to trace; a request that carries a trace continues it",
    )
    service_name: str = Field(
        "skim", min_length=1, description="prefix of the service names: skim-router, skim-target, ..."
    )


class ObservabilityConfig(BaseModel):
    """Logs and traces. Metrics are always exported (Prometheus, on every Ray node)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["text", "json"] = Field("text", description="json: one object per line")
    traces: TracesConfig | None = Field(None, description="null: no traces")


class ChannelConfig(BaseModel):
    """The draft channel between target workers and speculators (gRPC). Without token and TLS it trusts the network."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    port: int = Field(
        0,
        ge=0,
        le=65535,
        description="port of a speculator replica; 0: any free port. With a fixed port and one replica per machine, "
        "running answers find a replica that was restarted",
    )
    deadline_ms: float = Field(250.0, gt=0, le=10_000, description="longest wait of a step for its drafts")
    max_branches: int = Field(64, ge=1, description="guessed branches that a speculator replica drafts ahead at a time")
    token: str | None = Field(None, min_length=16, description="shared secret that every target worker must send")
    tls_cert: str | None = Field(None, description="server certificate, a PEM file on the pools' machines")
    tls_key: str | None = Field(None, description="private key of the certificate, a PEM file")
    tls_ca: str | None = Field(None, description="certificate authority that clients trust, a PEM file")

    @model_validator(mode="after")
    def _tls_is_whole(self) -> Self:
        given = [name for name in ("tls_cert", "tls_key", "tls_ca") if getattr(self, name)]
        if given and len(given) < 3:
            raise ValueError("tls_cert, tls_key and tls_ca must be set together")
        return self


class DeploymentConfig(BaseModel):
    """All settings of `skim serve`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    served_model_name: str = Field(
        "", description="model name that clients send; empty: the name of the target's folder, or its hub name"
    )
    speculator: PoolConfig
    target: TargetConfig
    selection: PolicyOptions = Field(default_factory=lambda: PolicyOptions())
    decode: DecodeOptions = Field(default_factory=lambda: DecodeOptions())
    channel: ChannelConfig = Field(default_factory=lambda: ChannelConfig())
    router: RouterConfig = Field(default_factory=lambda: RouterConfig())
    observability: ObservabilityConfig = Field(default_factory=lambda: ObservabilityConfig())
    kubernetes: KubernetesConfig = Field(default_factory=lambda: KubernetesConfig())
    spans_machines: bool = Field(
        False, description="the model folders are on the pools' machines, perhaps not on this one"
    )

    @model_validator(mode="after")
    def _large_targets_only(self) -> Self:
        if self.speculator.nodes_per_replica > 1 or self.speculator.pipeline_parallel > 1:
            raise ValueError(
                "speculator: nodes_per_replica and pipeline_parallel must be 1: a speculator is small and reads every"
                " prompt whole, so one that is larger than a node would save nothing; choose a smaller model"
            )
        if self.target.engine == "vllm":
            try:
                check_stages(self.decode.method, self.target.pipeline_parallel)
            except SkimError as error:
                raise ValueError(str(error)) from None
        return self

    @model_validator(mode="after")
    def _lexical_pool(self) -> Self:
        if self.target.engine == "lexical" or (self.target.prefill and self.target.prefill.engine == "lexical"):
            raise ValueError("target.engine cannot be lexical: that engine selects and has no model")
        if self.speculator.engine == "lexical" and self.selection.selector != "lexical":
            raise ValueError("speculator.engine lexical has no model: set selection.selector to lexical")
        return self

    @property
    def pools(self) -> dict[str, PoolConfig]:
        """The pools by name: speculator, target, and prefill where the target is split."""
        prefill = {"prefill": self.target.prefill} if self.target.prefill else {}
        return {"speculator": self.speculator, "target": self.target, **prefill}

    def placed(self, *, on_gpus: bool) -> "DeploymentConfig":
        """The same deployment with `gpus_per_replica` filled in for all pools."""
        return self.with_pools({name: placed(pool, on_gpus=on_gpus) for name, pool in self.pools.items()})

    def with_pools(self, pools: Mapping[str, PoolConfig]) -> "DeploymentConfig":
        """The same deployment with other pools. pools: all of them, by the names of the property `pools`."""
        target = pools["target"].model_copy(update={"prefill": pools.get("prefill")})
        return self.model_copy(update={"speculator": pools["speculator"], "target": target})
