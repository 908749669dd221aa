"""Starts vLLM's AsyncLLM as a target engine. Refuses models whose positions cannot be restored.

vLLM 0.29 supports remote drafts (custom_class) on its V1 runner only, without async scheduling. `remote_speculator`
adds the V2 class. With RemoteDraftsConfig vLLM chooses the runner by its other rules.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

from pydantic import ValidationError
from vllm.config import ModelConfig, VllmConfig
from vllm.platforms import current_platform
from vllm.utils.import_utils import resolve_obj_by_qualname
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.executor.abstract import Executor
from vllm.v1.metrics.loggers import StatLoggerBase

from kv_transfer.options import DecodeOptions
from skim_common.errors import ModelError, SkimError
from skim_common.models.info import longrope_original
from skim_common.models.source import local_folder
from skim_common.validation import sentence
from target_service.vllm_backend.speculation.proposer import PROPOSER
from target_service.vllm_backend.speculation.remote_drafts import CHANNEL
from vllm_hooks.engine import check_options, engine_config, start

WITH_A_MODEL = ("draft_model", "medusa", "eagle", "eagle3", "dflash", "dspark")


def checked_decode(fields: Mapping[str, Any] | None) -> DecodeOptions:
    """The `decode` argument of a target, checked. Raises SkimError that names the wrong field."""
    try:
        return DecodeOptions.model_validate(dict(fields)) if fields is not None else DecodeOptions(method="none")
    except ValidationError as e:
        raise SkimError(f"decode option {sentence(e)}") from None


def speculation_options(
    decode: DecodeOptions, draft_model: str | None, draft_channel: Mapping[str, Any] | None, options: Mapping[str, Any]
) -> dict[str, Any]:
    """The engine options that make vLLM speculate with `decode.method`; {} for method none.

    options: the engine's other options, of which `speculative_config` is merged into the result. Raises SkimError for a
    draft model that is missing or cannot be had.
    """
    if decode.method == "none":
        return {}
    config: dict[str, Any] = {"method": decode.method, "num_speculative_tokens": decode.max_draft_tokens}
    added = {}
    if decode.method == "remote":
        config |= {"method": "custom_class", "model": PROPOSER}
        added["additional_config"] = {**(options.get("additional_config") or {}), CHANNEL: dict(draft_channel or {})}
    elif decode.method in WITH_A_MODEL:
        if not draft_model:
            raise SkimError(
                f"decode method {decode.method} needs draft_model, the folder or hub name of the drafting weights"
            )
        config["model"] = local_folder(draft_model, weights=True)
    return {**added, "speculative_config": {**config, **(options.get("speculative_config") or {})}}


class RemoteDraftsConfig(VllmConfig):
    """vLLM's configuration of a target with remote drafts. vLLM's processes run `__post_init__` again."""

    def __post_init__(self) -> None:
        # vLLM refuses async scheduling with custom_class, so it is decided here.
        asked = self.scheduler_config.async_scheduling
        self.scheduler_config.async_scheduling = False
        super().__post_init__()
        if asked is None:
            asked = self.device_config.device_type != "cpu" and Executor.get_class(self).supports_async_scheduling()
        if asked and self.use_v2_model_runner:
            self.scheduler_config.async_scheduling = True
            self.model_config.disable_cascade_attn = True

    def _get_v2_model_runner_unsupported_features(self) -> list[str]:
        unsupported = super()._get_v2_model_runner_unsupported_features()
        # The first pipeline stage embeds the drafts, but only the last stage has a speculator. `start` refuses this.
        if self.parallel_config.pipeline_parallel_size > 1:
            return unsupported
        return [feature for feature in unsupported if feature != "speculative method 'custom_class'"]


@contextmanager
def remote_drafts_config() -> Iterator[None]:
    """In this context, vLLM's AsyncEngineArgs create a RemoteDraftsConfig."""
    from vllm.engine import arg_utils

    stock = arg_utils.VllmConfig
    arg_utils.VllmConfig = RemoteDraftsConfig
    try:
        yield
    finally:
        arg_utils.VllmConfig = stock


NEEDS_A_GPU = ("ngram_gpu", "dspark")
"""Decode methods of vLLM that pin memory for a GPU, or that only its V2 model runner has."""

_log = logging.getLogger(__name__)

StatLogger = Callable[[VllmConfig, int], StatLoggerBase]


def start_engine(
    model: str,
    tensor_parallel: int,
    options: Mapping[str, Any],
    *,
    worker_cls: str,
    scheduler_cls: str,
    async_scheduler_cls: str,
    approximate_positions: bool = False,
    stat_loggers: Sequence[StatLogger] = (),
) -> AsyncLLM:
    """An engine for the model in folder `model`. options: fields of AsyncEngineArgs. Classes are dotted names.

    approximate_positions, stat_loggers: as of `VllmTarget`; factories in place of names.
    Raises ModelError for a model whose positions cannot be restored, SkimError for every other failure.
    """
    check_options("target", options)
    refusal = f"the target engine cannot run {model} with these options"
    ours = {"model": model, "tensor_parallel_size": tensor_parallel, "worker_cls": worker_cls}
    if current_platform.is_cpu():
        # With vLLM's 128, a later turn would read up to 127 tokens again. Its CPU attention needs multiples of 32.
        ours["block_size"] = 32
    method = (options.get("speculative_config") or {}).get("method")
    if method in NEEDS_A_GPU and current_platform.is_cpu():
        raise SkimError(f"{refusal}: decode method {method} needs a GPU, and there is none; choose another method")
    with remote_drafts_config() if method == "custom_class" else nullcontext():
        config = engine_config(refusal, **{**ours, **options})
    stages = config.parallel_config.pipeline_parallel_size
    speculates = config.speculative_config and config.speculative_config.method
    if speculates and not config.use_v2_model_runner and stages > 1:
        raise SkimError(
            f"{refusal}: with pipeline_parallel {stages} vLLM drafts only in its V2 model runner, which does not run"
            f" {speculates} here; set decode.method to none"
        )
    if speculates and config.model_config.is_hybrid and current_platform.is_cpu():
        # vLLM's kernels on CPU know no states before a rejected draft, so all later tokens would be wrong.
        raise SkimError(
            f"{refusal}: decode method {speculates} needs a GPU for a model with linear attention or a state space, and"
            " there is none; set decode.method to none"
        )
    _check_model(model, config.model_config)
    _check_compact_layers(model, config.model_config, approximate_positions)
    scheduler = config.scheduler_config
    scheduler.scheduler_cls = async_scheduler_cls if scheduler.async_scheduling else scheduler_cls
    return start(config, f"the target engine did not start with {model}", stat_loggers=list(stat_loggers))


def find_stat_logger(name: str) -> StatLogger:
    """The class of this dotted name, such as vllm.v1.metrics.ray_wrappers.RayPrometheusStatLogger. Raises SkimError."""
    try:
        found = resolve_obj_by_qualname(name)
    except (ImportError, AttributeError, ValueError):
        found = None
    if not (isinstance(found, type) and issubclass(found, StatLoggerBase)):
        raise SkimError(f"the target engine's option stat_loggers names {name!r}, which is no StatLoggerBase of vLLM's")
    return found


def _check_model(model: str, config: ModelConfig) -> None:
    """Refuse models for which restored positions would be wrong without an error."""
    reasons = {
        "several positions per token (XD-RoPE)": config.uses_xdrope_dim > 0,
        "position biases made from cache slots (ALiBi)": config.uses_alibi,
        "an encoder": config.is_encoder_decoder,
    }
    for reason, found in reasons.items():
        if found:
            raise ModelError(f"model {model} is not supported as a target: it has {reason}")
    original = longrope_original(config.hf_text_config)
    if original is not None and config.max_model_len <= original:
        raise ModelError(
            f"model {model} chooses its longrope factors by max_model_len, and {config.max_model_len} would choose the"
            f" short ones even for long contexts; set max_model_len above {original}"
        )


def _check_compact_layers(model: str, config: ModelConfig, approximate_positions: bool) -> None:
    """Refuse layers that do not see the original positions of a kept prompt, unless the user accepts them."""
    if config.is_hybrid or config.is_attention_free:
        layers = f"{model} has linear-attention or state-space layers, which read the kept tokens as one compact text"
        if not approximate_positions:
            raise ModelError(
                f"model {layers} without original positions; set target.engine_options.approximate_positions to true to"
                " accept this, and measure the quality with skim eval"
            )
        _log.warning("target %s, without original positions", layers)
    if config.get_sliding_window() is not None:
        _log.warning(
            "target %s has sliding-window layers: a window counts kept tokens, so it reaches further back than in the"
            " whole prompt",
            model,
        )
