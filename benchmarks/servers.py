"""The two systems that are compared, with equal options: a stock vLLM server and a Skim deployment.

Both run the same vLLM with the same engine options on all cores; within a request the engines take turns. By default
vLLM reserves one core of each engine for its scheduler (`vllm.utils.ompmultiprocessing`). On two cores that is half the
machine, so both systems are told to use all cores. Skim's engines keep the memory that they free, and the stock server
is told to do the same.

Two effects would make a server look slower than it is alone:

- A prefix cache hands out the least recently used blocks, so every prompt is written to untouched memory until the
  whole cache was used once. Therefore caches are small (`kv_tokens`), and every benchmark fills them first.
- On CPU, the engine of a stock server and its worker are two processes that poll for each other for one second after
  each message (`SpinCondition` in vllm.distributed.device_communicators.shm_broadcast). Therefore every benchmark waits
  `SETTLE_S` before it uses another system.
"""

import os
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from benchmarks.dense_server import dense_server
from cluster.config.schema import DeploymentConfig
from cluster.serve.preflight import free_port
from kv_transfer.environment import CORES, KEPT_HEAP

MODEL = "bench"
"""Model name in requests to both systems."""

SETTLE_S = 1.2
"""Seconds to wait after a request to a stock server, before another system is measured."""

TELL_CACHED = {"enable_prompt_tokens_details": True}
"""Option of vLLM's HTTP app: usage tells the prompt tokens that came from the prefix cache."""

# Tokens per block: the defaults of vLLM on CPU and of Skim's speculator.
BLOCK_SIZES = {"target": 128, "speculator": 32}


def engine_options(
    max_model_len: int,
    kv_tokens: int | None = None,
    *,
    block_size: int = BLOCK_SIZES["target"],
    dtype: str = "float32",
) -> dict[str, Any]:
    """vLLM's engine options, the same for all systems.

    kv_tokens: tokens that the KV cache holds; None lets it use all its memory.
    """
    options = {"max_model_len": max_model_len, "dtype": dtype, "enforce_eager": True}
    options["max_num_batched_tokens"] = 2048
    if kv_tokens is None:
        return options
    # One block is never used (vllm.v1.core.block_pool.BlockPool.null_block).
    return {**options, "block_size": block_size, "num_gpu_blocks_override": -(-kv_tokens // block_size) + 1}


def engine_environment(kv_cache_gib: int = 1) -> dict[str, str]:
    """Environment variables of the engines on CPU, the same for all systems."""
    return {CORES: ",".join(map(str, sorted(os.sched_getaffinity(0)))), "VLLM_CPU_KVCACHE_SPACE": str(kv_cache_gib)}


def stock_environment() -> dict[str, str]:
    """Environment variables of a stock vLLM: without plug-ins, so that nothing of Skim is loaded."""
    return {**engine_environment(), **KEPT_HEAP, "VLLM_PLUGINS": ""}


def stock_server(
    model: Path, max_model_len: int, kv_tokens: int, *, dtype: str = "float32"
) -> AbstractContextManager[str]:
    """A stock vLLM OpenAI server; gives its base URL. Raises SkimError if it does not start."""
    options = {**engine_options(max_model_len, kv_tokens, dtype=dtype), **TELL_CACHED}
    options["disable_uvicorn_access_log"] = True
    return dense_server(model, MODEL, options, stock_environment())


def skim_config(
    target: Path,
    speculator: Path,
    max_model_len: int,
    kv_tokens: int,
    *,
    speculator_kv_tokens: int | None = None,
    dtype: str = "float32",
    **decode: Any,
) -> DeploymentConfig:
    """The deployment of both models; all other fields have the defaults of `skim serve`.

    kv_tokens: tokens that each pool's KV cache holds. speculator_kv_tokens: if the speculator's holds another number.
    decode: fields of the section `decode`.
    """
    pool = {"env": engine_environment(), "cpus_per_replica": 0.5}
    of_target = engine_options(max_model_len, kv_tokens, dtype=dtype)
    of_speculator = engine_options(
        max_model_len, speculator_kv_tokens or kv_tokens, block_size=BLOCK_SIZES["speculator"], dtype=dtype
    )
    return DeploymentConfig.model_validate(
        {
            "served_model_name": MODEL,
            "target": {"model": str(target), "engine_options": of_target, **pool},
            "speculator": {"model": str(speculator), "engine_options": of_speculator, **pool},
            # vLLM's benchmark client, which the runs share, takes no comments between events.
            "router": {"port": free_port(), "cpus": 0.5, "vllm_args": TELL_CACHED, "keep_alive_s": 0},
            "decode": decode,
        }
    )
