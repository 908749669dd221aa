"""Options of the engines that the steps start, and what such an engine really runs."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil

from benchmarks.gpu.steps.checks import Checks, Settings

STEP_TOKENS = 256
"""Tokens of an engine step, so that prompts are read in chunks."""


def engine_options(settings: Settings, *, dtype: str = "bfloat16", **options: Any) -> dict[str, Any]:
    """vLLM's options for a small engine. On CUDA vLLM chooses runner, scheduling and CUDA graphs as in serving.

    The number of KV blocks is set, because the blocks of a whole GPU would take long to make. The size of the KV cache
    is set, because vLLM otherwise measures the GPU's free memory and fails if another step's engine changes it.
    """
    by_device: dict[str, dict[str, Any]] = {
        "cpu": {"enforce_eager": True, "block_size": 32, "num_gpu_blocks_override": 2048},
        "cuda": {"gpu_memory_utilization": 0.05, "kv_cache_memory_bytes": 2**31, "num_gpu_blocks_override": 8192},
    }
    common = {"dtype": dtype, "max_num_batched_tokens": STEP_TOKENS, "max_num_seqs": 64, "seed": 0}
    return {**common, **by_device[settings.device], **options}


async def call(engine: Any, function: Any, *arguments: Any) -> Any:
    """The result of `function(worker, *arguments)` in the engine's only worker."""
    [result] = await engine._engine.collective_rpc(function, args=arguments)
    return result


def running(worker: Any) -> dict[str, Any]:
    """For `call`: the model runner, the attention backend with its version, and the modes that vLLM chose."""
    from vllm.model_executor.layers.attention import Attention

    config = worker.vllm_config
    layers = [v for v in config.compilation_config.static_forward_context.values() if isinstance(v, Attention)]
    mode = config.compilation_config.cudagraph_mode
    return {
        "runner": type(worker.model_runner).__module__,
        "backend": sorted({layer.attn_backend.get_name() for layer in layers}),
        "flash_attention": getattr(layers[0].impl, "vllm_flash_attn_version", None),
        "graphs": mode.name if mode is not None else "NONE",
        "asynchronous": bool(config.scheduler_config.async_scheduling),
    }


def count_graphs(worker: Any) -> None:
    """For `call`: from now on, count the engine's steps by the CUDA graph that the V2 runner chooses for them."""
    manager = worker.model_runner.cudagraph_manager
    dispatch, counts = manager.dispatch, Counter[str]()

    def counting(*arguments: Any, **named: Any) -> Any:
        chosen = dispatch(*arguments, **named)
        counts[chosen.cg_mode.name] += 1
        return chosen

    manager.dispatch, worker.graph_counts = counting, counts


def graphs(worker: Any) -> dict[str, int]:
    """For `call`: the steps that `count_graphs` counted, by FULL, PIECEWISE and NONE."""
    return dict(worker.graph_counts)


async def full_graphs_ran(engine: Any, settings: Settings, checks: Checks, name: str) -> None:
    """Report whether FULL CUDA graphs were among the steps since `count_graphs`."""
    if settings.device == "cpu":
        checks.skip(f"{name}: full graphs", "there are no CUDA graphs on CPU")
        return
    found = await call(engine, graphs)
    says = "steps ran as a FULL CUDA graph; all: " + ", ".join(f"{mode} {count}" for mode, count in found.items())
    checks.judge(f"{name}: full graphs", found.get("FULL", 0) > 0, found.get("FULL", 0), says)


async def tell_what_runs(
    engine: Any, settings: Settings, checks: Checks, name: str, *, runner: str | None, backend: str | None
) -> None:
    """Report what `engine` runs. runner, backend: what must run on CUDA, None if any may.

    runner: the end of the module's name. On Hopper, the backend FLASH_ATTN must be version 3.
    """
    found = await call(engine, running)
    says = ", ".join(f"{key} {value}" for key, value in found.items())
    if settings.device == "cpu":
        checks.skip(f"{name}: engine", f"on CPU neither runner nor backend is a GPU's ({says})")
        return
    right = runner is None or found["runner"].endswith(runner)
    right &= backend is None or found["backend"] == [backend]
    if backend == "FLASH_ATTN":
        import torch

        right &= torch.cuda.get_device_capability()[0] != 9 or found["flash_attention"] == 3
    checks.judge(f"{name}: engine", right, int(right), says)


@contextmanager
def stopped(engine: Any) -> Iterator[Any]:
    """`engine`, stopped when the context ends. Waits for its processes, because vLLM refuses to start an engine while
    another one frees memory of the GPU.
    """
    try:
        yield engine
    finally:
        engine.close()
        running = [process for process in psutil.Process().children(recursive=True) if _holds_memory(process)]
        psutil.wait_procs(running, timeout=30)


def _holds_memory(process: psutil.Process) -> bool:
    """Not if it has ended, or is Python's own helper for shared memory, which lives as long as this process."""
    try:
        return "resource_tracker" not in " ".join(process.cmdline())
    except psutil.Error:
        return False
