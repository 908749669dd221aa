"""The device, and a started pair of engines on it."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from benchmarks.gpu.presets import Preset
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


@asynccontextmanager
async def running_pair(
    preset: Preset,
    device: str,
    longest: int,
    print_line: Callable[[str], None],
    *,
    kept: int | None = None,
    drafts: int = 0,
    eager: bool = False,
) -> AsyncIterator[VllmPair]:
    """A started pair for prompts of up to `longest` tokens. It is stopped when the context ends.

    kept: prompt tokens that the target must hold; None for all. drafts: K, if decoding is measured. Raises SkimError if
    the memory is too small, or an engine does not start.
    """
    sizes = (kept or longest) + SLACK, longest + SLACK
    plan = _plan(Plan(preset, device, *sizes, drafts, stock=bool(drafts), eager=eager))
    with TemporaryDirectory(prefix="skim-gpu-") as folder:
        pair = await VllmPair.start(plan, Path(folder), print_line)
        try:
            yield pair
        finally:
            await pair.stop()


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
