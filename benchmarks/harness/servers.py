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
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx

from cluster.config.schema import DeploymentConfig
from demo_models.ports import free_port
from skim_common.environment import CORES, KEPT_HEAP
from skim_common.errors import SkimError
from skim_common.proxies import client_options

_START_LIMIT_S = 300


@contextmanager
def dense_server(model: Path, name: str, options: Mapping[str, Any], environment: Mapping[str, str]) -> Iterator[str]:
    """Run `python -m vllm.entrypoints.openai.api_server` inside the context; gives its base URL once it answers.

    options: those of `vllm serve`, named with underscores; the value true makes a flag. Raises SkimError if the server
    does not start.
    """
    port = free_port()
    words = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model), "--port", str(port)]
    words += ["--host", "127.0.0.1", "--served-model-name", name, *option_words(options)]
    with tempfile.TemporaryFile("w+", encoding="utf-8") as log:
        # In its own process group, so that the engine's processes can be ended with it.
        process = subprocess.Popen(
            words, stdout=log, stderr=log, env={**os.environ, **environment}, start_new_session=True
        )
        try:
            _await_health(process, f"http://127.0.0.1:{port}", log)
            yield f"http://127.0.0.1:{port}"
        finally:
            _stop(process)


def option_words(options: Mapping[str, Any]) -> list[str]:
    """The options of a command of vLLM, named with underscores; the value true makes a flag."""
    words = []
    for option, value in options.items():
        words += [f"--{option.replace('_', '-')}", *([] if value is True else [str(value)])]
    return words


def _await_health(process: subprocess.Popen[bytes], url: str, log: Any) -> None:
    deadline = time.monotonic() + _START_LIMIT_S
    while process.poll() is None and time.monotonic() < deadline:
        try:
            if httpx.get(f"{url}/health", timeout=5, **client_options(url)).status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.5)
    log.seek(0)
    lines = [line for line in log.read().splitlines() if line.strip()] or ["it printed nothing"]
    raise SkimError(f"the vLLM server to compare with did not start: {lines[-1].strip():.300}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(timeout=20)
    except subprocess.TimeoutExpired:
        pass
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


MODEL = "bench"
"""Model name in requests to both systems."""

SETTLE_S = 1.2
"""Seconds to wait after a request to a stock server, before another system is measured."""

TELL_CACHED = {"enable_prompt_tokens_details": True}
"""Option of vLLM's HTTP app: usage tells the prompt tokens that came from the prefix cache."""

STOCK_BLOCK, BLOCK = 128, 32
"""Tokens per block: the defaults of vLLM and of Skim on CPU."""


def engine_options(
    max_model_len: int,
    kv_tokens: int | None = None,
    *,
    block_size: int = STOCK_BLOCK,
    dtype: str = "float32",
    chunk_tokens: int = 2048,
) -> dict[str, Any]:
    """vLLM's engine options, the same for all systems.

    kv_tokens: tokens that the KV cache holds; None lets it use all its memory. chunk_tokens: of a chunked prefill.
    """
    options = {"max_model_len": max_model_len, "dtype": dtype, "enforce_eager": True}
    options["max_num_batched_tokens"] = chunk_tokens
    if kv_tokens is None:
        return options
    # One block is never used (vllm.v1.core.block_pool.BlockPool.null_block).
    return {**options, "block_size": block_size, "num_gpu_blocks_override": -(-kv_tokens // block_size) + 1}


def engine_environment(kv_cache_gib: int = 1, cores: Iterable[int] = ()) -> dict[str, str]:
    """Environment variables of the engines on CPU, the same for all systems. cores: none for all that there are."""
    own = ",".join(map(str, sorted(cores) or sorted(os.sched_getaffinity(0))))
    return {CORES: own, "VLLM_CPU_KVCACHE_SPACE": str(kv_cache_gib)}


def stock_environment(cores: Iterable[int] = ()) -> dict[str, str]:
    """Environment variables of a stock vLLM: without plug-ins, so that nothing of Skim is loaded."""
    return {**engine_environment(cores=cores), **KEPT_HEAP, "VLLM_PLUGINS": ""}


def stock_server(
    model: Path,
    max_model_len: int,
    kv_tokens: int,
    *,
    dtype: str = "float32",
    chunk_tokens: int = 2048,
    cores: Iterable[int] = (),
) -> AbstractContextManager[str]:
    """A stock vLLM OpenAI server; gives its base URL. chunk_tokens, cores: as in `engine_options` and
    `engine_environment`. Raises SkimError if it does not start.
    """
    options = {**engine_options(max_model_len, kv_tokens, dtype=dtype, chunk_tokens=chunk_tokens), **TELL_CACHED}
    options["disable_uvicorn_access_log"] = True
    return dense_server(model, MODEL, options, stock_environment(cores))


def skim_config(
    target: Path,
    speculator: Path,
    max_model_len: int,
    kv_tokens: int,
    *,
    speculator_kv_tokens: int | None = None,
    dtype: str = "float32",
    cores: Mapping[str, Iterable[int]] | None = None,
    head_profile: Path | None = None,
    **decode: Any,
) -> DeploymentConfig:
    """The deployment of both models. All other fields have the defaults of
    `skim serve`.

    kv_tokens: tokens that each pool's KV cache holds. speculator_kv_tokens: if the speculator's holds another number.
    cores: by pool, as in `engine_environment`. head_profile: the speculator's.
    decode: fields of the section `decode`.
    """
    pools = {
        pool: {
            "env": engine_environment(cores=(cores or {}).get(pool, ())),
            "cpus_per_replica": 0.5,
            "start_probe": "off",  # the weights may be random
        }
        for pool in ("target", "speculator")
    }
    of_target = engine_options(max_model_len, kv_tokens, block_size=BLOCK, dtype=dtype)
    of_speculator = engine_options(max_model_len, speculator_kv_tokens or kv_tokens, block_size=BLOCK, dtype=dtype)
    if head_profile:
        of_speculator["head_profile"] = str(head_profile)
    return DeploymentConfig.model_validate(
        {
            "served_model_name": MODEL,
            "target": {
                "model": str(target),
                "engine_options": {**of_target, **TELL_CACHED},
                **pools["target"],
            },
            "speculator": {"model": str(speculator), "engine_options": of_speculator, **pools["speculator"]},
            # vLLM's benchmark client, which the runs share, takes no comments between events.
            "router": {"port": free_port(), "cpus": 0.5, "keep_alive_s": 0},
            "decode": decode,
        }
    )
