"""The settings of one pool: its model and engine, the size of a replica, and the number of replicas."""

import re  # noqa: TID251  a deployment file
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, Field, ValidationInfo, field_validator, model_validator

from cluster.config import vllm_options
from cluster.config.kubernetes import Label, LabelValue
from cluster.config.vllm_options import with_located_paths
from kv_transfer.options import YAML_SWITCH
from router.options.settings import Resources
from skim_common.environment import unless_set
from skim_common.models.source import located

KV_CACHE_SPACE = "VLLM_CPU_KVCACHE_SPACE"
CPU_KV_CACHE_GIB = "4"
NODE_VARIABLES = ("VLLM_HOST_IP", "CUDA_VISIBLE_DEVICES")
"""Environment variables that cannot be the same on several nodes of a replica."""
ENGINES = ("vllm", "mock")
"""Engines that read a model's config and tokenizer, but no weights."""


Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Seconds = Amount


def _located(model: str, info: ValidationInfo) -> str:
    return located(model, (info.context or {}).get("folder", Path()))


def kv_cache_gib(environment: Mapping[str, str]) -> int:
    """GiB of the KV cache of an engine on CPU. Raises ValueError for what vLLM cannot read."""
    if not (size := environment[KV_CACHE_SPACE]).isdecimal():
        raise ValueError(f"{KV_CACHE_SPACE} must be a whole number of GiB, not {size}")
    return int(size)


class AutoscalingConfig(BaseModel, extra="forbid", frozen=True):
    """How the number of replicas follows the load. Options of Ray Serve have the names that Serve gives them."""

    min_replicas: int = Field(1, ge=0, description="0: an idle pool stops; the next request waits for its start")
    max_replicas: int = Field(1, ge=1)
    target_ongoing_requests: Positive = Field(8.0, description="running and queued requests wanted per replica")
    upscale_delay_s: Seconds = Field(30.0, description="how long the load must stay high before the pool grows")
    downscale_delay_s: Seconds = Field(600.0, description="how long the load must stay low before the pool shrinks")
    downscale_to_zero_delay_s: Seconds | None = Field(None, description="for the last replica; null: downscale_delay_s")
    upscaling_factor: Positive = Field(1.0, description="gain of one step up")
    downscaling_factor: Positive = Field(1.0, description="gain of one step down")
    look_back_period_s: Positive = Field(30.0, description="time over which the load is averaged")
    metrics_interval_s: Positive = Field(10.0, description="between two reports of a replica; less than the look-back")

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.max_replicas < self.min_replicas:
            raise ValueError("max_replicas must be at least min_replicas")
        if self.min_replicas and self.downscale_to_zero_delay_s is not None:
            raise ValueError("downscale_to_zero_delay_s has no effect with min_replicas above 0: leave one of them out")
        return self


class PoolConfig(BaseModel, extra="forbid", frozen=True, coerce_numbers_to_str=True):
    """One pool: replicas of one model on one engine. A replica is one Ray actor and its engine's processes."""

    model: Annotated[str, Field(min_length=1), AfterValidator(_located)] = Field(
        description="folder, or hub name (owner/name@revision); a relative path starts at the config file's folder"
    )
    engine: str = Field("vllm", description="vllm; mock: no weights; or a class of your own, as package.module:Class")
    replicas: int = Field(1, ge=1, description="with autoscaling: at the start, and after a change of autoscaling")
    autoscaling: AutoscalingConfig | None = Field(None, description="null: the number of replicas is fixed")
    tensor_parallel: int = Field(1, ge=1, description="ranks that share each layer")
    pipeline_parallel: int = Field(1, ge=1, description="stages that share the layers, each of tensor_parallel ranks")
    nodes_per_replica: int = Field(
        1, ge=1, description="nodes that share the ranks of a replica evenly; above 1 for a target larger than a node"
    )
    cpus_per_replica: Amount = Field(1.0, description="CPU cores that Ray reserves")
    gpus_per_replica: Amount | None = Field(
        None,
        description="GPUs of a replica; null: one for each rank if the Ray cluster has any, else none; "
        "a fraction shares a GPU and needs engine_options.gpu_memory_utilization",
    )
    accelerator_type: str | None = Field(
        None, min_length=1, description="Ray's name of the GPU type that a replica needs, such as H100 or L4; null: any"
    )
    resources: Resources = Field({}, description="custom Ray resources of a replica, besides the one of its pool")
    node_labels: dict[Label, Annotated[LabelValue, Field(min_length=1)]] = Field(
        {}, description="Ray node labels that a replica's node must have"
    )
    max_ongoing_requests: int = Field(64, ge=1, description="requests that one replica runs at a time")
    drain_timeout_s: Seconds = Field(60.0, description="how long a stopping replica may take to finish its requests")
    start_timeout_s: Positive = Field(1800.0, description="a start that takes longer is ended, and another one begins")
    hung_after_s: Positive = Field(
        300.0,
        description="a replica whose engine gives no sign of life for so long ends, and another one starts; "
        "longer than the engine's longest step",
    )
    start_probe: Annotated[Literal["dense", "refuse", "off"], YAML_SWITCH] = Field(
        "dense",
        description="a replica that starts reads a short prompt with facts; if it fails: dense (all prompts run dense) "
        "or refuse (it does not start); off: for models that no prompt can ask, such as random weights",
    )
    engine_options: dict[str, Any] = Field(
        {}, description="options of `vllm serve`; the target's are for engine and HTTP front (docs/options.md)"
    )
    env: dict[str, str] = Field({}, description="environment variables of the replicas")

    @model_validator(mode="before")
    @classmethod
    def _start_with_the_minimum(cls, settings: Any) -> Any:
        """A pool with autoscaling and without `replicas` starts with `min_replicas`, but at least with one."""
        scaling = settings.get("autoscaling") if isinstance(settings, dict) else None
        least = scaling.get("min_replicas") if isinstance(scaling, dict) else None
        return {"replicas": max(1, least), **settings} if isinstance(least, int) else settings

    @field_validator("engine", mode="before")
    @classmethod
    def _known_engine(cls, engine: Any) -> Any:
        if isinstance(engine, str) and engine not in ENGINES and not re.fullmatch(r"[\w.]+:\w+", engine):
            raise ValueError(f"must be {', '.join(ENGINES)} or a class as package.module:Class, not {engine!r}")
        return engine

    @field_validator("engine_options")
    @classmethod
    def _named_and_located(cls, options: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        """vLLM's own config files write dashes. A relative path starts at the config file's folder."""
        named = {name.replace("-", "_"): value for name, value in options.items()}
        return with_located_paths(named, (info.context or {}).get("folder", Path()))

    @field_validator("env")
    @classmethod
    def _whole_gibs(cls, env: dict[str, str]) -> dict[str, str]:
        if KV_CACHE_SPACE in env:
            kv_cache_gib(env)
        return env

    @model_validator(mode="after")
    def _settings_that_go_together(self) -> Self:
        vllm_options.check_engine_options(self.engine_options, has_front=isinstance(self, TargetConfig))
        ranks, nodes, scaling = self.ranks, self.nodes_per_replica, self.autoscaling
        if ranks > 1 and 0 < (self.gpus_per_replica or 0) < ranks:
            raise ValueError(
                "gpus_per_replica must be at least tensor_parallel times pipeline_parallel: each rank needs its own GPU"
            )
        if ranks % nodes:
            raise ValueError(
                f"nodes_per_replica {nodes} must divide the {ranks} ranks of a replica"
                " (tensor_parallel times pipeline_parallel): every node holds the same number of ranks"
            )
        if nodes > 1 and self.gpus_per_replica not in (None, 0, ranks):
            raise ValueError(
                f"gpus_per_replica must be {ranks} or left out with nodes_per_replica {nodes}: each rank takes one GPU"
            )
        if nodes > 1 and (variables := [name for name in NODE_VARIABLES if name in self.env]):
            raise ValueError(
                f"env sets {variables[0]}, which differs between the nodes of a replica: leave it out, or set it in the"
                " environment in which Ray starts on each node"
            )
        if not isinstance(self, PrefillConfig):  # the target's engine_options are filled in first
            self.check_memory_share()
        if scaling and not scaling.min_replicas <= self.replicas <= scaling.max_replicas:
            raise ValueError("replicas must be between autoscaling.min_replicas and autoscaling.max_replicas")
        return self

    def check_memory_share(self) -> None:
        """vLLM takes 0.92 of a GPU's memory by default, so a second engine on the GPU would not start."""
        share = self.gpus_per_replica
        if self.engine == "vllm" and share and share < 1 and "gpu_memory_utilization" not in self.engine_options:
            raise ValueError(
                f"gpus_per_replica {share:g} shares a GPU: set engine_options.gpu_memory_utilization to the share of"
                f" its memory that this replica may take, such as {0.9 * share:.2f}"
            )

    @property
    def ranks(self) -> int:
        """Of one replica."""
        return self.tensor_parallel * self.pipeline_parallel

    @property
    def most_replicas(self) -> int:
        return self.autoscaling.max_replicas if self.autoscaling else self.replicas

    def placed(self, *, on_gpus: bool) -> Self:
        """The pool with `gpus_per_replica` filled in: its own value, else one GPU per rank if `on_gpus`."""
        if self.gpus_per_replica is not None:
            return self
        gpus = self.ranks if on_gpus and self.engine != "mock" else 0
        return self.model_copy(update={"gpus_per_replica": float(gpus)})

    @property
    def options_of_engine(self) -> dict[str, Any]:
        """The `engine_options` that the engine itself reads."""
        return self.engine_options

    @property
    def environment(self) -> dict[str, str]:
        """`env`; on CPU with a limit of the KV cache, because vLLM alone would take nearly all memory."""
        limit = unless_set({KV_CACHE_SPACE: CPU_KV_CACHE_GIB})
        return self.env if self.gpus_per_replica else {**limit, **self.env}


class PrefillConfig(PoolConfig):
    """The pool that prefills for a split target. A setting that is left out is the target's, except for its size."""

    model: Annotated[str, AfterValidator(_located)] = Field("", description="the target's")


class TargetConfig(PoolConfig):
    """The target pool, and whether a second pool prefills for it."""

    topology: Literal["unified", "split"] = Field(
        "unified",
        description="unified: one pool prefills and decodes; split: the pool `prefill` prefills and sends KV blocks",
    )
    prefill: PrefillConfig | None = Field(None, description="the pool that prefills for a split target")

    @property
    def options_of_engine(self) -> dict[str, Any]:
        """Without those that the HTTP front alone reads."""
        return vllm_options.for_engine(self.engine_options, self.engine)

    @model_validator(mode="after")
    def _prefill_is_like_the_target(self) -> Self:
        if self.topology == "unified":
            if self.prefill:
                raise ValueError("prefill is a pool of a split target: set topology to split, or remove prefill")
            return self
        prefill = self.prefill or PrefillConfig()
        if any(pool.nodes_per_replica > 1 or pool.pipeline_parallel > 1 for pool in (self, prefill)):
            raise ValueError(
                "a split target cannot have nodes_per_replica or pipeline_parallel above 1: KV blocks between such"
                " replicas were not tried; set topology to unified"
            )
        inherited = PoolConfig.model_fields.keys() - {"replicas", "autoscaling"} - prefill.model_fields_set
        update = {name: getattr(self, name) for name in inherited}
        if "engine_options" in update:
            update["engine_options"] = self.options_of_engine
        elif adapters := self.options_of_engine.get("lora_modules"):
            update["engine_options"] = {**prefill.engine_options, "lora_modules": adapters}
        prefill = prefill.model_copy(update=update)
        prefill.check_memory_share()
        return self.model_copy(update={"prefill": prefill})
