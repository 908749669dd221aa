"""The scoring kernels against torch, over shapes, types, prompts and strides; then at real sizes. Needs no vLLM.

Left out: what `triton_kernels.supports` refuses. On CPU the kernels run in Triton's interpreter, which cannot multiply
bfloat16.
"""

import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from benchmarks.gpu import scoring as timed
from benchmarks.gpu.steps.checks import Checks, Settings
from speculator_service.scoring.importance import AttentionFormula
from speculator_service.scoring.paged import head_masses

TOLERANCE = 1e-5
WIDE = 1e-4
"""In bfloat16, from a head size of 128: the tensor cores add up more products in another order."""
SMALLEST = 1e-3
"""Scores under this are compared by their absolute difference."""


@dataclass(frozen=True)
class Case:
    """size: D. group: query heads per KV head. tokens_first: the strides of NHD, otherwise those of HND. block: tokens.

    question: the rows of a question, each of which sees the prompt up to itself. formula: soft cap and sinks.
    """

    size: int
    group: int
    dtype: torch.dtype
    prompt: int
    pool: int
    tokens_first: bool
    block: int = 16
    question: bool = False
    soft_cap: float = 0.0
    sinks: bool = False
    steps: int = 9
    layers: int = 2
    kv_heads: int = 2

    def __str__(self) -> str:
        order = "NHD" if self.tokens_first else "HND"
        dtype = str(self.dtype).removeprefix("torch.")
        more = [f"blocks of {self.block}"] if self.block != 16 else []
        more += ["question"] if self.question else []
        more += [f"soft cap {self.soft_cap:g}"] if self.soft_cap else []
        more += ["sinks"] if self.sinks else []
        shape = f"D {self.size}, group {self.group}, {dtype}, {self.prompt} tokens, pool {self.pool}, {order}"
        return ", ".join([shape, *more])

    @property
    def tolerance(self) -> float:
        return WIDE if self.dtype != torch.float32 and self.size >= 128 else TOLERANCE


FORMULAS: tuple[dict[str, Any], ...] = (
    {"question": True, "steps": 41},
    {"soft_cap": 30.0},
    {"sinks": True},
    {"question": True, "sinks": True, "block": 64},
    {"block": 128, "tokens_first": True},
)


def cases(toy: bool) -> Iterator[Case]:
    """All head sizes with all types, all groups, all prompts with all pools, and all formulas with both strides."""
    sizes, groups, prompts, pools = [64, 80, 96, 128, 256], [1, 4, 5, 8], [1, 17, 4095, 50000], [1, 13, 63]
    dtypes = [torch.bfloat16, torch.float16, torch.float32]
    if toy:
        sizes, groups, prompts, pools, dtypes = [64, 80], [4, 5], [1, 17, 150], [1, 13], dtypes[1:]
    prompt = prompts[-2]
    for index, (size, dtype) in enumerate(itertools.product(sizes, dtypes)):
        if size <= 64 or dtype != torch.float32:
            yield Case(size, 4, dtype, prompt, 13, tokens_first=index % 2 == 0)
    for index, group in enumerate(groups):
        yield Case(sizes[-1] if toy else 128, group, dtypes[0], prompt, 13, tokens_first=index % 2 == 0)
    for index, (length, pool) in enumerate(itertools.product(prompts, pools)):
        yield Case(64, 4, dtypes[0], length, pool, tokens_first=index % 2 == 0)
    for index, size in enumerate(sizes[:1] if toy else [64, 128]):
        of_size = Case(size, 4, dtypes[0], prompts[-1], 13, tokens_first=index % 2 == 0)
        yield from (replace(of_size, **change) for change in FORMULAS)


def problem_of(case: Case, device: str) -> timed.Problem:
    """Random tensors of a case."""
    generator = torch.Generator().manual_seed(case.prompt)
    heads, needed = case.group * case.kv_heads, -(-case.prompt // case.block)
    queries = 2 * torch.randn(case.layers, case.steps, heads, case.size, generator=generator)
    shape = (case.layers, needed + 3, case.kv_heads, case.block, 2 * case.size)
    memory = torch.randn(shape, generator=generator).to(device, case.dtype)
    if case.tokens_first:
        memory = memory.transpose(2, 3).contiguous().transpose(2, 3)
    blocks = torch.randperm(needed + 3, generator=generator)[:needed].int().to(device)
    sinks = 2 + 2 * torch.randn(case.layers, heads, generator=generator).to(device) if case.sinks else None
    first = max(1, case.prompt - case.steps + 1)
    seen = torch.arange(first, first + case.steps).clamp(max=case.prompt).to(device) if case.question else None
    return timed.Problem(
        queries.to(device, case.dtype), memory, blocks, case.prompt, case.pool, case.soft_cap, sinks, seen
    )


def difference(problem: timed.Problem, *, swapped: bool = False) -> float:
    """Largest relative difference of the kernels' table to torch's. swapped: give the kernels wrong blocks."""
    from speculator_service.scoring.triton_kernels import TILING

    read = replace(problem, blocks=problem.blocks.flip(0)) if swapped else problem
    return _largest(problem.reference(), read.fused(TILING))


def heads_difference(problem: timed.Problem) -> float:
    """As `difference`, of the mass of all heads of the first layer, with random weights for their queries."""
    from speculator_service.scoring.triton_masses import weighted_masses

    queries, cache, keys = problem.queries[0], problem.caches[0], problem.keys(0)
    (steps, heads, size), kv_heads = queries.shape, keys.shape[0]
    group, (scale, soft_cap, sinks) = heads // kv_heads, problem.formula(0)
    weights = torch.rand(kv_heads, steps, group, generator=torch.Generator().manual_seed(1)).to(queries.device)
    expected = torch.zeros(problem.prompt, device=queries.device)
    for head in range(heads):
        own = AttentionFormula(scale, soft_cap, None if sinks is None else sinks[head : head + 1])
        kv_head, place = divmod(head, group)
        rows = weights[kv_head, :, place]
        expected += head_masses(queries[:, head : head + 1], keys, [kv_head], own, rows, problem.visible)[0]
    found = weighted_masses(
        queries.view(steps, kv_heads, group, size).transpose(0, 1).contiguous(),
        [cache[:, head : head + 1] for head in range(kv_heads)],
        problem.blocks, problem.prompt, scale, weights,
        soft_cap=soft_cap, sinks=None if sinks is None else sinks.view(kv_heads, group), visible=problem.visible,
    )  # fmt: skip
    return _largest(expected, found)


def _largest(expected: torch.Tensor, found: torch.Tensor) -> float:
    return float(((expected - found).abs() / expected.clamp(min=SMALLEST)).max())


def kernels(settings: Settings, checks: Checks) -> None:
    """Each case against torch, and the control: wrong blocks give other scores."""
    if settings.device == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"  # before the first import of Triton
        checks.skip("bfloat16", "Triton's interpreter cannot multiply bfloat16")
    wanted = list(cases(settings.toy))
    ratios: list[tuple[float, str]] = []
    for case in wanted:
        problem = problem_of(case, settings.device)
        for name, compare in ((str(case), difference), (f"heads: {case}", heads_difference)):
            with checks.part(name):
                found = compare(problem)
                ratios.append((found / case.tolerance, name))
                if not found <= case.tolerance:  # also for NaN
                    says = f"largest relative difference to torch, at most {case.tolerance:g}"
                    checks.judge(name, False, found, says)
    right = sum(ratio <= 1 for ratio, _ in ratios)
    checks.judge("cases", right == 2 * len(wanted), right, f"of {2 * len(wanted)} cases agree with torch")
    worst, where = max(ratios)
    checks.measured("difference", worst, f"of what is allowed is the largest difference, at {where}")
    control = difference(problem_of(wanted[0], settings.device), swapped=True)
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
