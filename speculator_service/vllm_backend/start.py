"""Start vLLM's AsyncLLM as a speculator engine: its options, its environment, and its failures in a person's words."""

import secrets
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from pydantic import ValidationError
from vllm.config import VllmConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.platforms import current_platform
from vllm.utils.ompmultiprocessing import OMPProcessManager
from vllm.utils.torch_utils import is_quantized_kv_cache
from vllm.v1.engine.async_llm import AsyncLLM

from kv_transfer.errors import ModelError, SkimError
from speculator_service.vllm_backend.sessions import MAX_TOP
from vllm_hooks.start_up import cpu_processes, first_exception, start_up_environment

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
OWN_OPTIONS = ("model", "tokenizer", "tensor_parallel_size", "worker_cls", "scheduler_cls", *OWN_SETTINGS)


def start_engine(model: str, max_model_len: int, tensor_parallel: int, options: Mapping[str, Any]) -> AsyncLLM:
    """A running engine for the model in folder `model`, with our worker and scheduler.

    options: fields of vLLM's AsyncEngineArgs. Prefix caching and chunked prefill are on unless they say otherwise.
    Raises ModelError for what a speculator cannot do yet, SkimError for an option or a machine that vLLM refuses.
    """
    known = {field.name for field in fields(AsyncEngineArgs)} - set(OWN_OPTIONS)
    if unknown := sorted(options.keys() - known):
        raise SkimError(
            f"unknown speculator engine option {unknown[0]!r}: see vLLM's engine arguments for those there are"
        )
    with start_up_environment(tensor_parallel if current_platform.is_cpu() else 0) as notes:
        try:
            config = _engine_config(model, max_model_len, tensor_parallel, options)
            _refuse_unsupported(model, config)
            with cpu_processes(config, OMPProcessManager):
                return AsyncLLM.from_vllm_config(config, disable_log_stats=True)
        except SkimError:
            raise
        except Exception as error:  # vLLM raises ValueError, RuntimeError, OSError, pydantic's and CUDA's own
            raise _in_a_sentence(model, error, first_exception(notes)) from error


def _engine_config(model: str, max_model_len: int, tensor_parallel: int, options: Mapping[str, Any]) -> VllmConfig:
    settings = {
        "enable_prefix_caching": True,
        "enable_chunked_prefill": True,
        "use_tqdm_on_load": False,
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
    return AsyncEngineArgs(
        **settings,
        **OWN_SETTINGS,
        model=model,
        max_model_len=max_model_len,
        tensor_parallel_size=tensor_parallel,
        worker_cls=WORKER,
        scheduler_cls=SCHEDULER,
    ).create_engine_config()


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


def _in_a_sentence(model: str, error: Exception, noted: tuple[str, str] | None) -> SkimError:
    """The error for a person. noted: type and message of what went wrong in vLLM's own processes."""
    if isinstance(error, ValidationError):
        message = "; ".join(f"{'.'.join(map(str, e['loc']))} {e['msg']}".strip() for e in error.errors())
    else:
        kind, message = noted or (type(error).__name__, str(error))
        if kind == ModelError.__name__:
            return ModelError(message)
        message = message or kind
    text = " ".join(message.split())
    return SkimError(f"speculator {model} did not start: {text if len(text) <= 400 else text[:397] + '...'}")
