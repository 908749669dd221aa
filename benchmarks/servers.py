"""What the two systems that are compared have in common: a stock vLLM server and Skim's own deployment, on equal terms.

Both run the same vLLM with the same engine options on the same cores, and all cores go to whoever has work: the
engines take turns within a request. By itself vLLM keeps one core free of each engine's threads (for its scheduler, in
`vllm.utils.ompmultiprocessing`), which on two cores is half the machine; so both systems are told to use all of them.
Skim has its engines keep the memory that they free; a stock server is told to do the same.

Two things would make a server look slower than it is alone. A prefix cache hands out the least recently used blocks, so
that every prompt is written to memory that was never touched until the whole cache was used once: caches are small
(`kv_tokens`), and whoever measures fills them first. And on CPU a stock server's engine and its worker, processes of
their own, poll for each other for a second after each message (`SpinCondition` in
vllm.distributed.device_communicators.shm_broadcast): whoever is asked next waits `SETTLE_S`.
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
"""The model's name in requests to either system."""

SETTLE_S = 1.2
"""How long a stock server is left alone before another one is measured."""

# The defaults of vLLM on CPU and of Skim's speculator.
BLOCK_SIZES = {"target": 128, "speculator": 32}


def engine_options(
    max_model_len: int, kv_tokens: int | None = None, *, block_size: int = BLOCK_SIZES["target"]
) -> dict[str, Any]:
    """vLLM's options for the engines of all systems. kv_tokens: that a KV cache holds; None for all its memory."""
    options = {"max_model_len": max_model_len, "dtype": "float32", "enforce_eager": True}
    options["max_num_batched_tokens"] = 2048
    if kv_tokens is None:
        return options
    # One block is never used (vllm.v1.core.block_pool.BlockPool.null_block).
    return {**options, "block_size": block_size, "num_gpu_blocks_override": -(-kv_tokens // block_size) + 1}


def engine_environment(kv_cache_gib: int = 1) -> dict[str, str]:
    """What the engines of all systems find in their environment on CPU."""
    return {CORES: ",".join(map(str, sorted(os.sched_getaffinity(0)))), "VLLM_CPU_KVCACHE_SPACE": str(kv_cache_gib)}


def stock_server(model: Path, max_model_len: int, kv_tokens: int) -> AbstractContextManager[str]:
    """A stock vLLM OpenAI server; gives its base URL. Raises SkimError if it does not start."""
    options = {**engine_options(max_model_len, kv_tokens), "disable_uvicorn_access_log": True}
    # Without plug-ins: stock means stock.
    return dense_server(model, MODEL, options, {**engine_environment(), **KEPT_HEAP, "VLLM_PLUGINS": ""})


def skim_config(target: Path, speculator: Path, max_model_len: int, kv_tokens: int, **decode: Any) -> DeploymentConfig:
    """The deployment of both models, all else as `skim serve` has it by default. decode: fields of that section."""
    pool = {"env": engine_environment(), "cpus_per_replica": 0.5}
    of_speculator = engine_options(max_model_len, kv_tokens, block_size=BLOCK_SIZES["speculator"])
    return DeploymentConfig.model_validate(
        {
            "served_model_name": MODEL,
            "target": {"model": str(target), "engine_options": engine_options(max_model_len, kv_tokens), **pool},
            "speculator": {"model": str(speculator), "engine_options": of_speculator, **pool},
            "router": {"port": free_port(), "cpus": 0.5},
            "decode": decode,
        }
    )
