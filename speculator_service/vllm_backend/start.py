"""Starts vLLM's AsyncLLM as a speculator engine: its options, and what a speculator cannot run with."""

import secrets
from collections.abc import Mapping
from typing import Any

from vllm.config import VllmConfig
from vllm.platforms import current_platform
from vllm.utils.torch_utils import is_quantized_kv_cache
from vllm.v1.engine.async_llm import AsyncLLM

from kv_transfer.errors import ModelError
from speculator_service.vllm_backend.hooked_symbols import HOOKED, HOOKED_V2
from speculator_service.vllm_backend.sessions import MAX_TOP
from vllm_hooks.engine import check_options, engine_config, start

WORKER = "speculator_service.vllm_backend.worker.SpeculatorWorker"
SCHEDULER = "speculator_service.vllm_backend.scheduler.scheduler.SpeculatorScheduler"
# The probabilities that come back are those that a draft was sampled from.
OWN_SETTINGS = {
    "skip_tokenizer_init": True,
    "logprobs_mode": "processed_logprobs",
    "max_logprobs": MAX_TOP,
    # With several tokens a step (`multi_step`) there would be little to gain.
    "async_scheduling": False,
}


def start_engine(model: str, max_model_len: int, tensor_parallel: int, options: Mapping[str, Any]) -> AsyncLLM:
    """A running engine for the model in folder `model`, with our worker and scheduler.

    options: fields of vLLM's AsyncEngineArgs. Prefix caching and chunked prefill are on unless they say otherwise.
    Raises ModelError for what a speculator cannot do yet, SkimError for an option or a machine that vLLM refuses.
    """
    check_options("speculator", options, OWN_SETTINGS)
    config = _engine_config(model, max_model_len, tensor_parallel, options)
    _refuse_unsupported(model, config)
    hooked = HOOKED + HOOKED_V2 if config.use_v2_model_runner else HOOKED
    return start(config, _failure(model), hooked, disable_log_stats=True)


def _engine_config(model: str, max_model_len: int, tensor_parallel: int, options: Mapping[str, Any]) -> VllmConfig:
    settings = {
        "enable_prefix_caching": True,
        "enable_chunked_prefill": True,
        **options,
    }
    # vLLM's own default is one for all engines: a target's would then draw what its drafter drew.
    settings.setdefault("seed", secrets.randbits(31))
    if current_platform.is_cpu():
        # vLLM's CPU attention takes multiples of 32; small blocks let more of a prompt come from the prefix cache.
        settings.setdefault("block_size", 32)
    else:
        # Queries are captured in Python, which a replayed graph of the whole model would not run.
        settings["compilation_config"] = {**(options.get("compilation_config") or {}), "cudagraph_mode": "PIECEWISE"}
    return engine_config(
        _failure(model),
        **settings,
        **OWN_SETTINGS,
        model=model,
        max_model_len=max_model_len,
        tensor_parallel_size=tensor_parallel,
        worker_cls=WORKER,
        scheduler_cls=SCHEDULER,
    )


def _failure(model: str) -> str:
    return f"speculator {model} did not start"


def _refuse_unsupported(model: str, config: VllmConfig) -> None:
    """What the options ask for that scoring cannot do; what the layers cannot do is refused in the worker."""
    parallel = config.parallel_config
    cache = config.cache_config.cache_dtype
    for asked, unsupported in {
        f"pipeline parallel {parallel.pipeline_parallel_size}": parallel.pipeline_parallel_size > 1,
        f"data parallel {parallel.data_parallel_size}": parallel.data_parallel_size > 1,
        f"context parallel {parallel.decode_context_parallel_size}": parallel.decode_context_parallel_size > 1,
        f"a quantised KV cache ({cache})": is_quantized_kv_cache(cache),
        "speculative decoding": config.speculative_config is not None,
    }.items():
        if unsupported:
            raise ModelError(f"speculator {model} cannot run with {asked} yet; leave it out (tensor parallel works)")
