"""Start vLLM's AsyncLLM as a speculator engine: its options, its environment, and its failures in a person's words."""

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pydantic import ValidationError
from vllm.config import VllmConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.platforms import current_platform
from vllm.utils.torch_utils import is_quantized_kv_cache
from vllm.v1.engine.async_llm import AsyncLLM

from kv_transfer.errors import ModelError, SkimError
from speculator_service.vllm_plugin import START_UP_FILE, first_exception

SCHEDULERS = "speculator_service.vllm_scheduler."


def start_engine(model: str, max_model_len: int, tensor_parallel: int, options: Mapping[str, Any]) -> AsyncLLM:
    """A running engine with our worker and scheduler.

    options: vLLM engine options (`AsyncEngineArgs`) that override the defaults here.
    Raises ModelError for what a speculator cannot do yet, SkimError for an option or machine that vLLM refuses.
    """
    on_cpu = current_platform.is_cpu()
    # vLLM schedules ahead on GPUs only, and each way of scheduling has its class.
    ahead = not on_cpu and options.get("async_scheduling") is not False
    ours = {
        "model": model,
        "tensor_parallel_size": tensor_parallel,
        "max_model_len": max_model_len,
        "worker_cls": "speculator_service.vllm_worker.SpeculatorWorker",
        "scheduler_cls": SCHEDULERS + ("AsyncSpeculatorScheduler" if ahead else "SpeculatorScheduler"),
        "async_scheduling": ahead,
        "skip_tokenizer_init": True,
    }
    if taken := sorted(set(options) & (set(ours) - {"async_scheduling", "max_model_len"})):
        raise SkimError(f"speculator engine option {taken[0]} is set by Skim itself; leave it out")
    defaults = {
        "enable_prefix_caching": True,
        "enable_chunked_prefill": True,
        "disable_log_stats": True,
        **({"block_size": 32} if on_cpu else {}),
    }
    settings = {**defaults, **options, **ours}
    if not on_cpu:
        # Queries are captured in Python, which a replayed graph of the whole model would not run.
        settings["compilation_config"] = {**(options.get("compilation_config") or {}), "cudagraph_mode": "PIECEWISE"}
    with _start_up_environment(on_cpu, tensor_parallel) as notes:
        try:
            config = AsyncEngineArgs(**settings).create_engine_config()
            _refuse_unsupported(model, config)
            return AsyncLLM.from_vllm_config(config, disable_log_stats=settings["disable_log_stats"])
        except SkimError:
            raise
        except Exception as error:  # vLLM raises TypeError, ValueError, RuntimeError, OSError, CUDA errors
            raise _in_a_sentence(model, error, first_exception(notes)) from error


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
        "multi-head latent attention (MLA)": config.model_config.use_mla,
    }.items():
        if unsupported:
            raise ModelError(f"speculator {model} cannot run with {asked} yet; leave it out (tensor parallel works)")


@contextmanager
def _start_up_environment(on_cpu: bool, tensor_parallel: int) -> Iterator[str]:
    """The environment that vLLM's processes start with, put back afterwards; yields the file they note errors in."""
    with tempfile.NamedTemporaryFile(prefix="skim-speculator-", suffix=".jsonl") as notes:
        added = {START_UP_FILE: notes.name}
        if on_cpu and tensor_parallel > 1 and "VLLM_CPU_OMP_THREADS_BIND" not in os.environ:
            # By default vLLM gives each rank a NUMA node of its own and refuses machines that have too few.
            added["VLLM_CPU_OMP_THREADS_BIND"] = _core_shares(tensor_parallel)
        os.environ.update(added)
        try:
            yield notes.name
        finally:
            for name in added:
                os.environ.pop(name, None)


def _core_shares(ranks: int) -> str:
    """This process's cores in `ranks` equal shares, in the syntax of VLLM_CPU_OMP_THREADS_BIND: `0,1|2,3`."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < ranks:
        raise SkimError(f"tensor parallel {ranks} on CPU needs {ranks} cores, this machine gives {len(cores)}")
    share = len(cores) // ranks
    return "|".join(",".join(map(str, cores[rank * share : (rank + 1) * share])) for rank in range(ranks))


def _in_a_sentence(model: str, error: Exception, noted: tuple[str, str] | None) -> SkimError:
    """The error for a person. noted: type and message of what went wrong in vLLM's own processes."""
    if isinstance(error, ValidationError):
        message = "; ".join(f"{'.'.join(map(str, e['loc']))} {e['msg']}".strip() for e in error.errors())
    else:
        kind, message = noted or (type(error).__name__, str(error))
        if kind == ModelError.__name__:
            return ModelError(message)
        if not message:
            message = kind
    text = " ".join(message.split())
    return SkimError(f"speculator {model} did not start: {text if len(text) <= 400 else text[:397] + '...'}")
