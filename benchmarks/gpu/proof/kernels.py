"""The scoring kernels against torch, over shapes, types, prompts and strides; then at real sizes. Needs no vLLM.

Left out: float32 with a head size of 256. It needs 257 KiB of shared memory, and an H100 has 227; a worker scores such
a model with torch. On CPU the kernels run in Triton's interpreter, which cannot multiply bfloat16.
"""

import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from benchmarks.gpu import scoring as timed
from benchmarks.gpu.proof.checks import Checks, Settings

TOLERANCE = 1e-5
SMALLEST = 1e-3
"""Scores under this are compared by their absolute difference."""


@dataclass(frozen=True)
class Case:
    """size: D. group: query heads per KV head. tokens_first: the strides of NHD, otherwise those of HND."""

    size: int
    group: int
    dtype: torch.dtype
    prompt: int
    pool: int
    tokens_first: bool
    steps: int = 9
    layers: int = 2
    kv_heads: int = 2

    def __str__(self) -> str:
        order = "NHD" if self.tokens_first else "HND"
        dtype = str(self.dtype).removeprefix("torch.")
        return f"D {self.size}, group {self.group}, {dtype}, {self.prompt} tokens, pool {self.pool}, {order}"


def cases(toy: bool) -> Iterator[Case]:
    """All head sizes with all types, all groups, and all prompts with all pools and both strides."""
    sizes, groups, prompts, pools = [64, 80, 96, 128, 256], [1, 4, 5, 8], [1, 17, 4095, 50000], [1, 13, 63]
    dtypes = [torch.bfloat16, torch.float16, torch.float32]
    if toy:
        sizes, groups, prompts, pools, dtypes = [64, 80], [4, 5], [1, 17, 150], [1, 13], dtypes[1:]
    prompt = prompts[-2]
    for index, (size, dtype) in enumerate(itertools.product(sizes, dtypes)):
        if (size, dtype) != (256, torch.float32):
            yield Case(size, 4, dtype, prompt, 13, tokens_first=index % 2 == 0)
    for index, group in enumerate(groups):
        yield Case(sizes[-1] if toy else 128, group, dtypes[0], prompt, 13, tokens_first=index % 2 == 0)
    for index, (length, pool) in enumerate(itertools.product(prompts, pools)):
        yield Case(64, 4, dtypes[0], length, pool, tokens_first=index % 2 == 0)
        if not toy:
            yield Case(64, 4, dtypes[0], length, pool, tokens_first=index % 2 == 1)


def difference(case: Case, device: str, *, swapped: bool = False) -> float:
    """Largest relative difference between the kernels' table and torch's. swapped: give the kernels wrong blocks."""
    from speculator_service.scoring.triton_kernels import TILING

    generator = torch.Generator().manual_seed(case.prompt)
    queries = 2 * torch.randn(case.layers, case.steps, case.group * case.kv_heads, case.size, generator=generator)
    needed = -(-case.prompt // timed.BLOCK)
    shape = (case.layers, needed + 3, case.kv_heads, timed.BLOCK, 2 * case.size)
    memory = torch.randn(shape, generator=generator).to(device, case.dtype)
    if case.tokens_first:
        memory = memory.transpose(2, 3).contiguous().transpose(2, 3)
    blocks = torch.randperm(needed + 3, generator=generator)[:needed].int().to(device)
    problem = timed.Problem(queries.to(device, case.dtype), memory, blocks, case.prompt, case.pool)
    expected = problem.reference()
    found = replace(problem, blocks=blocks.flip(0) if swapped else blocks).fused(TILING)
    return float(((expected - found).abs() / expected.clamp(min=SMALLEST)).max())


def kernels(settings: Settings, checks: Checks) -> None:
    """Each case against torch, and the control: wrong blocks give other scores."""
    if settings.device == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"  # before the first import of Triton
        checks.skip("bfloat16", "Triton's interpreter cannot multiply bfloat16")
    wanted = list(cases(settings.toy))
    worst, where, broken = 0.0, "", 0
    for case in wanted:
        with checks.part(str(case)):
            found = difference(case, settings.device)
            if not found <= TOLERANCE:  # also for NaN
                broken += 1
                checks.judge(str(case), False, found, f"largest relative difference to torch, at most {TOLERANCE:g}")
            if found >= worst:
                worst, where = found, str(case)
    checks.judge("cases", not broken, len(wanted) - broken, f"of {len(wanted)} cases agree with torch")
    checks.judge("difference", worst <= TOLERANCE, worst, f"largest relative difference, at {where}")
    control = difference(wanted[-1], settings.device, swapped=True)
    checks.judge("control: wrong blocks", control > 0.1, control, "difference with the blocks in wrong order, over 0.1")


def scoring(settings: Settings, checks: Checks) -> None:
    """`benchmarks.gpu scoring` at the sizes of the speculator of preset 8b."""
    model, lengths = ("toy-small", (256,)) if settings.toy else ("llama-1b", (1024, 16384, 131072))
    tilings = () if settings.device == "cpu" else ("64x64x4", "64x64x8", "128x64x8")
    result = timed.run(timed.GpuScoringSettings(settings.device, model, lengths, rounds=3, tilings=tilings))
    for row in result["rows"]:
        name = f"{row['kernel']}, {row['prompt_tokens']}"
        share = f"{row['share_of_copy']:.2f} of the copy bandwidth"
        checks.judge(name, row["difference"] <= TOLERANCE, row["ms"], f"ms, {share}, like torch's scores")
    if settings.device == "cpu":
        checks.skip("triton", "the kernels are timed on CUDA only")
