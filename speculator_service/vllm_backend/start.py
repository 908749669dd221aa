"""Starts vLLM's AsyncLLM as a speculator engine: its options, and the options that it refuses."""

import logging
import secrets
from collections.abc import Mapping
from typing import Any

import vllm.envs as envs
from vllm.config import CompilationConfig, VllmConfig
from vllm.config.compilation import CUDAGraphMode
from vllm.platforms import current_platform
from vllm.v1.engine.async_llm import AsyncLLM

from skim_common.errors import ModelError
from skim_common.models.info import longrope_original, text_config
from speculator_service.engine import MAX_TOP
from speculator_service.model import window_of_all_layers
from speculator_service.vllm_backend.keys import PLAIN_CACHES, STORED_FP8
from vllm_hooks.engine import check_options, engine_config, start

WORKER = "speculator_service.vllm_backend.worker.SpeculatorWorker"
SCHEDULER = "speculator_service.vllm_backend.scheduler.SpeculatorScheduler"
OWN_SETTINGS = {
    "skip_tokenizer_init": True,
    # The logprobs of a draft are those of the distribution that it was sampled from.
    "logprobs_mode": "processed_logprobs",
    "max_logprobs": MAX_TOP,
    # Multi-step scheduling leaves little to gain.
    "async_scheduling": False,
}
CHOSEN_SETTINGS = ("disable_sliding_window", "disable_hybrid_kv_cache_manager")
"""Options that depend on the model, so that users cannot set them."""

_log = logging.getLogger(__name__)

FULL_GRAPH_PASSES = ("fuse_attn_quant", "enable_sp", "fuse_gemm_comms")
"""Passes of vLLM's PassConfig that change the CUDA graph mode to FULL."""


def start_engine(model: str, max_model_len: int, tensor_parallel: int, options: Mapping[str, Any]) -> AsyncLLM:
    """A running engine for the model in folder `model`. options: fields of vLLM's AsyncEngineArgs.

    Raises ModelError for options and models that a speculator does not support, SkimError for what vLLM refuses.
    """
    check_options("speculator", options, (*OWN_SETTINGS, *CHOSEN_SETTINGS))
    config = _engine_config(model, max_model_len, tensor_parallel, options)
    if config.model_config.is_hybrid and not options.get("enable_prefix_caching", True):
        _log.warning("speculator %s does not draft: without a prefix cache, each round would read the prompt", model)
    elif config.model_config.is_hybrid:
        # vLLM caches the states of linear attention and state spaces at the ends of blocks, which hold hundreds of
        # tokens, and at the last multiple of `prefix_match_unit` tokens of a prompt. The sizes of blocks are multiples.
        unit = 32 if current_platform.is_cpu() else 16
        config = _engine_config(model, max_model_len, tensor_parallel, {"prefix_match_unit": unit, **options})
    # Windowed layers then keep the KV of the whole prompt, in one group with the others. Drafting sessions
    # and multi-step scheduling need this. vLLM cannot unite state-space layers with others.
    config.scheduler_config.disable_hybrid_kv_cache_manager = not config.model_config.is_hybrid
    _refuse_unsupported(model, config)
    _refuse_full_graphs(model, config.compilation_config, v2=config.use_v2_model_runner)
    return start(config, f"speculator {model} did not start", disable_log_stats=True)


def engine_length(model: str, max_model_len: int, max_position: int) -> int:
    """vLLM's max_model_len for a speculator with this limit: one more, for the query of the last look-ahead token.

    It stays at the end of the model's positions, and at that of longrope's short factors, which vLLM chooses by it.
    """
    last = max_position
    original = longrope_original(text_config(model))
    if original is not None and max_model_len <= original:
        last = original
    return min(max_model_len + 1, last)


def _engine_config(model: str, max_model_len: int, tensor_parallel: int, options: Mapping[str, Any]) -> VllmConfig:
    settings = {"enable_prefix_caching": True, "enable_chunked_prefill": True, **options}
    window = window_of_all_layers(text_config(model))
    if window is not None:
        # Within its window, a model whose layers all have one is a model with full attention.
        settings["disable_sliding_window"], max_model_len = True, min(max_model_len, window)
    # With vLLM's default seed, the target would draw the same random numbers as its drafter.
    settings.setdefault("seed", secrets.randbits(31))
    if current_platform.is_cpu():
        # vLLM's CPU attention needs multiples of 32. Small blocks let the prefix cache supply more of a prompt.
        settings.setdefault("block_size", 32)
    else:
        # Queries are captured in Python, and the replay of a FULL graph runs no Python. See `query_capture`.
        graphs = {"cudagraph_mode": "FULL_AND_PIECEWISE", **(options.get("compilation_config") or {})}
        settings["compilation_config"] = graphs
    config = engine_config(
        f"speculator {model} did not start",
        **settings,
        **OWN_SETTINGS,
        model=model,
        max_model_len=max_model_len,
        tensor_parallel_size=tensor_parallel,
        worker_cls=WORKER,
        scheduler_cls=SCHEDULER,
    )
    compilation = config.compilation_config
    if not config.use_v2_model_runner and compilation.cudagraph_mode == CUDAGraphMode.FULL_AND_PIECEWISE:
        compilation.cudagraph_mode = CUDAGraphMode.PIECEWISE
    return config


def _refuse_unsupported(model: str, config: VllmConfig) -> None:
    """Refuse options that scoring does not support. The worker refuses layers that it does not support."""
    parallel = config.parallel_config
    prefill = parallel.prefill_context_parallel_size
    cache = config.cache_config.cache_dtype
    for asked, unsupported in {
        f"pipeline parallel {parallel.pipeline_parallel_size}": parallel.pipeline_parallel_size > 1,
        f"data parallel {parallel.data_parallel_size}": parallel.data_parallel_size > 1,
        f"context parallel {parallel.decode_context_parallel_size}": parallel.decode_context_parallel_size > 1,
        f"prefill context parallel {prefill}": prefill > 1,
        f"a KV cache of type {cache}": cache not in (*PLAIN_CACHES, *STORED_FP8),
        "speculative decoding": config.speculative_config is not None,
    }.items():
        if unsupported:
            raise ModelError(f"speculator {model} cannot run with {asked} yet; leave it out (tensor parallel works)")


def _refuse_full_graphs(model: str, compilation: CompilationConfig, *, v2: bool) -> None:
    """Refuse FULL CUDA graphs of prompts: their replay runs no Python, so no query would be captured. On the V2 runner,
    `query_capture.piecewise_while` keeps steps that capture off the FULL graphs of decode steps. A user may choose the
    mode, and some of vLLM's compilation passes change it (CompilationConfig.set_splitting_ops_for_v1).
    """
    if envs.VLLM_USE_BREAKABLE_CUDAGRAPH:
        raise ModelError(f"speculator {model} cannot run with VLLM_USE_BREAKABLE_CUDAGRAPH=1; set it to 0")
    mode = compilation.cudagraph_mode
    if mode is None or not (mode.mixed_mode() == CUDAGraphMode.FULL if v2 else mode.has_full_cudagraphs()):
        return
    passes = [name for name in FULL_GRAPH_PASSES if getattr(compilation.pass_config, name)]
    cause = ", ".join(f"compilation_config.pass_config.{name}" for name in passes) or "another engine option"
    needed = "FULL_AND_PIECEWISE" if v2 else "PIECEWISE"
    raise ModelError(
        f"speculator {model} needs the CUDA graph mode {needed}, but {cause} changed it to {mode.name}; leave it out"
    )
