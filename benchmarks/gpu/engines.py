"""The choice of the engine for a pair: vLLM if it runs on the device, otherwise torch. The reason is printed."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from benchmarks.gpu.memory import device_memory, need, shares
from benchmarks.gpu.pair import MeasuredPair
from benchmarks.gpu.presets import Preset, configs
from benchmarks.gpu.torch_pair import TorchPair
from benchmarks.gpu.vllm_pair import Plan, VllmPair
from skim_common.errors import SkimError

SLACK = 512
"""Tokens that an engine holds in addition to the prompt: the look-ahead and the answer."""


def device_named(name: str) -> str:
    """cuda or cpu. auto means cuda, because these sizes are too large for a CPU.

    Raises SkimError for another name, and if there is no GPU.
    """
    if name not in ("auto", "cuda", "cpu"):
        raise SkimError(f"there is no device {name!r}: choose cuda or cpu")
    if name == "cpu":
        return name
    if not torch.cuda.is_available():
        raise SkimError("torch sees no CUDA device here: run this on a GPU, or try it with --device cpu --preset toy")
    return "cuda"


def why_not_vllm(device: str) -> str | None:
    """The reason why vLLM cannot run on this device, or None if it can. Imports vLLM."""
    try:
        from vllm.platforms import current_platform
        from vllm.v1.engine.async_llm import AsyncLLM  # noqa: F401
    except Exception as error:  # a missing library or symbol can raise anything
        return f"vLLM cannot be imported ({type(error).__name__}: {' '.join(str(error).split())[:160]})"
    fits = current_platform.is_cuda() if device == "cuda" else current_platform.is_cpu()
    return None if fits else f"this vLLM is built for {current_platform.device_type or 'no device'}, not for {device}"


@asynccontextmanager
async def running_pair(
    engine: str,
    preset: Preset,
    device: str,
    longest: int,
    print_line: Callable[[str], None],
    *,
    kept: int | None = None,
    drafts: int = 0,
    eager: bool = False,
) -> AsyncIterator[MeasuredPair]:
    """A started pair for prompts of up to `longest` tokens. It is stopped when the context ends.

    engine: vllm, torch or auto. kept: prompt tokens that the target must hold; None for all. drafts: K, if decoding is
    measured. print_line: called with the engine that was chosen. Raises SkimError if the memory is too small, or if the
    wanted engine does not run.
    """
    if engine not in ("auto", "vllm", "torch"):
        raise SkimError(f"there is no engine {engine!r}: choose auto, vllm or torch")
    sizes = (kept or longest) + SLACK, longest + SLACK
    reason = why_not_vllm(device) if engine != "torch" else "asked for"
    if reason and engine == "vllm":
        raise SkimError(f"engine vllm does not run here: {reason}")
    if reason is None:
        plan = _plan(Plan(preset, device, *sizes, drafts, stock=bool(drafts), eager=eager))
        with TemporaryDirectory(prefix="skim-gpu-") as folder:
            try:
                pair = await VllmPair.start(plan, Path(folder), print_line)
            except SkimError as error:
                if engine == "vllm":
                    raise
                reason = str(error)
            else:
                print_line("engine vllm")
                try:
                    yield pair
                finally:
                    await pair.stop()
                return
    print_line(f"engine torch: {reason}")
    torch_pair = _torch(preset, device, sizes)
    try:
        yield torch_pair
    finally:
        torch_pair.close()


def _plan(wanted: Plan) -> Plan:
    """`wanted`, without its additional target if the memory is too small for it. Raises SkimError if the rest does not
    fit either.
    """
    try:
        wanted.shares()
    except SkimError:
        if not wanted.stock:
            raise
        return _plan(replace(wanted, stock=False))
    return wanted


def _torch(preset: Preset, device: str, sizes: tuple[int, int]) -> TorchPair:
    target, speculator = configs(preset)
    # On CPU the models are small, and so are the activations of a step.
    room = {} if device == "cuda" else {"working_gib": 0.5}
    needs = [need("the speculator", speculator, sizes[1], **room), need("the target", target, sizes[0], **room)]
    shares(needs, *device_memory(device))
    return TorchPair(preset, device, *sizes)
