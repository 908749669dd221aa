"""The settings of a deployment: its pools, its endpoint, the draft channel, logs and traces; and which of them
have no effect beside others.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, Field, model_validator

from cluster.config import vllm_options
from cluster.config.kubernetes import KubernetesConfig, Url
from cluster.config.pools import PoolConfig, TargetConfig
from kv_transfer.options import DecodeOptions
from router.options.request import PolicyOptions
from router.options.settings import File, RouterConfig

WITH_STAGES = ("none", "eagle", "mtp")
"""Decode methods of vLLM 0.29's V2 model runner, which supports pipeline stages. In its V1 runner the earlier stages
stop at their first step: GPUModelRunner._build_attention_metadata reads `drafter`, which only the last stage has."""


def _before_the_path(endpoint: str) -> str:
    if endpoint.rstrip("/").endswith("/v1/traces"):
        raise ValueError("must end before /v1/traces, which is added to it")
    return endpoint


class TracesConfig(BaseModel, extra="forbid", frozen=True):
    """Spans of each request, sent by OTLP over HTTP (OpenTelemetry)."""

    endpoint: Annotated[Url, AfterValidator(_before_the_path)] = Field(
        description="collector, such as http://collector:4318; spans are sent to its path /v1/traces"
    )
    sample_ratio: float = Field(1.0, ge=0, le=1, description="share to trace of the requests that carry no trace")
    service_name: str = Field("skim", min_length=1, description="prefix of the services: skim-router, skim-target, ...")


class ObservabilityConfig(BaseModel, extra="forbid", frozen=True):
    """Logs and traces. Metrics are always exported (Prometheus, on every Ray node)."""

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["text", "json"] = Field("text", description="json: one object per line")
    traces: TracesConfig | None = Field(None, description="null: no traces")


class ChannelConfig(BaseModel, extra="forbid", frozen=True):
    """The draft channel between target workers and speculators (gRPC). Without token and TLS it trusts the network."""

    port: int = Field(0, ge=0, le=65535, description="port of a speculator replica; 0: any free port")
    deadline_ms: float = Field(250.0, gt=0, le=10_000, description="longest wait of a step for its drafts")
    token: str | None = Field(None, min_length=16, description="shared secret that every target worker must send")
    tls_cert: File | None = Field(None, description="server certificate, a PEM file on the pools' machines")
    tls_key: File | None = Field(None, description="private key of the certificate, a PEM file")
    tls_ca: File | None = Field(None, description="certificate authority that clients trust, a PEM file")

    @model_validator(mode="after")
    def _tls_is_whole(self) -> Self:
        given = [name for name in ("tls_cert", "tls_key", "tls_ca") if getattr(self, name)]
        if given and len(given) < 3:
            raise ValueError("tls_cert, tls_key and tls_ca must be set together")
        return self


class DeploymentConfig(BaseModel, extra="forbid", frozen=True):
    """All settings of `skim serve`."""

    served_model_name: str = Field(
        "", description="model name that clients send; empty: the name of the target's folder, or its hub name"
    )
    model_aliases: tuple[str, ...] = Field((), description="further names of the model that clients may send")
    speculator: PoolConfig
    target: TargetConfig
    selection: PolicyOptions = Field(default_factory=lambda: PolicyOptions())
    decode: DecodeOptions = Field(default_factory=lambda: DecodeOptions())
    channel: ChannelConfig = Field(default_factory=lambda: ChannelConfig())
    router: RouterConfig = Field(default_factory=lambda: RouterConfig())
    observability: ObservabilityConfig = Field(default_factory=lambda: ObservabilityConfig())
    kubernetes: KubernetesConfig = Field(default_factory=lambda: KubernetesConfig())
    spans_machines: bool = Field(False, description="the model folders are on the pools' machines, perhaps not here")

    @model_validator(mode="before")
    @classmethod
    def _front_of_the_speculator(cls, settings: Any) -> Any:
        """Without a target, the HTTP front has the speculator's model."""
        router, speculator = (settings.get(name) for name in ("router", "speculator"))
        if isinstance(router, dict) and router.get("select_only") is True and isinstance(speculator, dict):
            target = settings.get("target") or {}
            if isinstance(target, dict) and "model" in speculator:
                return {**settings, "target": {"model": speculator["model"], **target}}
        return settings

    @model_validator(mode="after")
    def _no_target(self) -> Self:
        front = {"model": self.speculator.model, "engine_options": self.front_options}
        if self.router.select_only and self.target != TargetConfig.model_validate(front):
            raise ValueError(
                "target: no target runs with router.select_only: leave this section out, or keep of it the"
                " engine_options that the HTTP front reads; the speculator's flags are --speculator.FLAG"
            )
        if self.router.select_only and self.kubernetes.batch:
            raise ValueError(
                "kubernetes.batch: no target runs with router.select_only, so no row is answered: leave it out"
            )
        return self

    @model_validator(mode="after")
    def _large_targets_only(self) -> Self:
        if self.speculator.nodes_per_replica > 1 or self.speculator.pipeline_parallel > 1:
            raise ValueError(
                "speculator: nodes_per_replica and pipeline_parallel must be 1: a speculator is small and reads every"
                " prompt whole, so one that is larger than a node would save nothing; choose a smaller model"
            )
        stages, method = self.target.pipeline_parallel, self.decode.method
        if self.target.engine == "vllm" and stages > 1 and method not in WITH_STAGES:
            raise ValueError(
                f"decode.method {method} does not work with pipeline_parallel {stages}: with pipeline stages vLLM"
                f" drafts only by {' or '.join(WITH_STAGES[1:])}; set decode.method to none, or tensor_parallel to all"
                " ranks"
            )
        return self

    @model_validator(mode="after")
    def _every_setting_has_an_effect(self) -> Self:
        for condition, settings in WITHOUT_EFFECT.items():
            for setting in settings.split() if _holds(self, condition) else ():
                section, _, name = setting.rpartition(".")
                default = type(_value(self, section)).model_fields[name].default
                if _value(self, setting) not in (default, "off"):
                    raise ValueError(f"{setting} has no effect with {condition}: leave one of them out")
        return self

    @property
    def pools(self) -> dict[str, PoolConfig]:
        """The pools by name: speculator, target unless it selects only, and prefill where the target is split."""
        if self.router.select_only:
            return {"speculator": self.speculator}
        prefill = {"prefill": self.target.prefill} if self.target.prefill else {}
        return {"speculator": self.speculator, "target": self.target, **prefill}

    @property
    def front_options(self) -> dict[str, Any]:
        """The target's `engine_options` that the HTTP front reads."""
        return vllm_options.for_front(self.target.engine_options)

    def placed(self, *, on_gpus: bool) -> "DeploymentConfig":
        """The same deployment with `gpus_per_replica` filled in for all pools."""
        return self.with_pools({name: pool.placed(on_gpus=on_gpus) for name, pool in self.pools.items()})

    def with_pools(self, pools: Mapping[str, PoolConfig]) -> "DeploymentConfig":
        """The same deployment with other pools. pools: all of them, by the names of the property `pools`."""
        front = self.target.model_copy(update={"model": pools["speculator"].model})
        target = pools.get("target", front).model_copy(update={"prefill": pools.get("prefill")})
        return self.model_copy(update={"speculator": pools["speculator"], "target": target})


_CATCH_UP = "router.audit_share router.catch_up"
_DRAFTS = "decode.max_draft_tokens decode.adaptive decode.draft_context"
_WINDOWS = "selection.read_again selection.window_tokens"
_DECODED_SCORES = "selection.layers selection.aggregation selection.look_ahead"
WITHOUT_EFFECT = {
    "router.catch_up: off": "router.audit_share",
    "router.affinity: false": _CATCH_UP,
    "router.speculative_prefill: false": _CATCH_UP,
    "router.speculative_prefill: always": "router.audit_share",
    "target.engine_options.enable_prefix_caching: false": _CATCH_UP,
    "router.select_only: true": f"router.admission_timeout_s {_CATCH_UP} router.guard router.keep_alive_s"
    f" router.migration router.speculative_prefill decode.method {_DRAFTS} channel.port channel.deadline_ms",
    "decode.method: none": _DRAFTS,
    "decode.method other than remote": "decode.draft_context channel.port channel.deadline_ms",
    "selection.read: windows": "decode.draft_context",
    "selection.read: whole": _WINDOWS,
    "selection.scoring: heads": _DECODED_SCORES,
    "selection.scoring: attention": _WINDOWS,
    "selection.selector: lexical": f"selection.scoring selection.read {_WINDOWS} {_DECODED_SCORES}"
    " decode.draft_context",
}
"""By what another setting says, the settings that have no effect beside it, and are refused unless they are off."""


def _holds(config: DeploymentConfig, condition: str) -> bool:
    """condition: `setting: value`, or `setting other than value`."""
    is_other = " other than " in condition
    setting, _, value = condition.partition(" other than " if is_other else ": ")
    return (str(_value(config, setting)).lower() == value) != is_other


def _value(config: DeploymentConfig, setting: str) -> Any:
    value: Any = config
    for name in setting.split("."):
        value = value.get(name) if isinstance(value, dict) else getattr(value, name)
    return value
