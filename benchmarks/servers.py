"""What the two systems that are compared have in common: a stock vLLM server and Skim's own deployment, on equal terms.

Both run the same vLLM with the same engine options on the same cores, and all cores go to whoever has work: the
engines take turns within a request. By itself vLLM keeps one core free of each engine's threads (for its scheduler, in
`vllm.utils.ompmultiprocessing`), which on two cores is half the machine; so both systems are told to use all of them.
"""

import os
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from benchmarks.dense_server import dense_server
from benchmarks.models import Pair
from cluster.config import DeploymentConfig
from cluster.preflight import free_port
from kv_transfer.engine_start import CORES

MODEL = "bench"
"""The model's name in requests to either system."""


def engine_options(max_model_len: int) -> dict[str, Any]:
    """vLLM's options for the engines of all systems."""
    return {"max_model_len": max_model_len, "dtype": "float32", "enforce_eager": True, "max_num_batched_tokens": 2048}


def engine_environment(kv_cache_gib: int = 1) -> dict[str, str]:
    """What the engines of all systems find in their environment on CPU."""
    return {CORES: ",".join(map(str, sorted(os.sched_getaffinity(0)))), "VLLM_CPU_KVCACHE_SPACE": str(kv_cache_gib)}


def stock_server(model: Path, max_model_len: int) -> AbstractContextManager[str]:
    """A stock vLLM OpenAI server; gives its base URL. Raises SkimError if it does not start."""
    # Without plug-ins: stock means stock.
    return dense_server(model, MODEL, engine_options(max_model_len), {**engine_environment(), "VLLM_PLUGINS": ""})


def skim_config(pair: Pair, max_model_len: int) -> DeploymentConfig:
    """The deployment of the pair, all else as `skim serve` has it by default."""
    pool = {"engine_options": engine_options(max_model_len), "env": engine_environment(), "cpus_per_replica": 0.5}
    return DeploymentConfig.model_validate(
        {
            "served_model_name": MODEL,
            "target": {"model": str(pair.target), **pool},
            "speculator": {"model": str(pair.speculator), **pool},
            "router": {"port": free_port(), "cpus": 0.5},
        }
    )
