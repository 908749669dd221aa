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
from benchmarks.gpu.proof.checks import Checks, Settings
from speculator_service.scoring.head_masses import head_masses
from speculator_service.scoring.importance import Aggregate, AttentionFormula, layer_scores

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


@dataclass(frozen=True)
class Problem:
    """Tensors of a case on a device. memory: the engine's cache [L, B, G, N, 2 D], keys first."""

    case: Case
    queries: torch.Tensor
    memory: torch.Tensor
    blocks: torch.Tensor
    sinks: torch.Tensor | None
    visible: torch.Tensor | None

    @classmethod
    def make(cls, case: Case, device: str) -> "Problem":
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
        return cls(case, queries.to(device, case.dtype), memory, blocks, sinks, seen)

    @property
    def caches(self) -> list[torch.Tensor]:
        return [layer[..., : self.case.size] for layer in self.memory]

    def keys(self, layer: int) -> torch.Tensor:
        """The prompt's keys of one layer, [G, M, D]."""
        gathered = self.caches[layer][self.blocks.long()].transpose(0, 1).flatten(1, 2)
        return gathered[:, : self.case.prompt]

    def formula(self, layer: int) -> AttentionFormula:
        sinks = None if self.sinks is None else self.sinks[layer]
        return AttentionFormula(self.case.size**-0.5, self.case.soft_cap, sinks)

    def difference(self, *, swapped: bool = False) -> float:
        """Largest relative difference of the kernels' table to torch's. swapped: give the kernels wrong blocks."""
        from speculator_service.scoring.triton_kernels import fill_table

        case = self.case
        made = [
            Aggregate("max", num_layers=case.layers, steps=case.steps, prompt=case.prompt, device=self.queries.device)
            for _ in range(2)
        ]
        for layer, queries in enumerate(self.queries):
            scale, cap, sinks = self.formula(layer)
            keys = self.keys(layer)
            made[0].add(layer_scores(queries, keys, scale, case.pool, soft_cap=cap, sinks=sinks, visible=self.visible))
        blocks = self.blocks.flip(0) if swapped else self.blocks
        fill_table(
            made[1].table, self.queries, self.caches, blocks, case.size**-0.5, case.pool,
            soft_cap=case.soft_cap, sinks=self.sinks, visible=self.visible,
        )  # fmt: skip
        return _largest(made[0].table, made[1].table)

    def heads_difference(self) -> float:
        """As `difference`, of the mass of all heads of the first layer, with random weights for their queries."""
        from speculator_service.scoring.triton_masses import weighted_masses

        case, device = self.case, self.queries.device
        weights = torch.rand(case.kv_heads, case.steps, case.group, generator=torch.Generator().manual_seed(1)).to(
            device
        )
        scale, cap, sinks = self.formula(0)
        expected = torch.zeros(case.prompt, device=device)
        for head in range(case.kv_heads * case.group):
            own = AttentionFormula(scale, cap, None if sinks is None else sinks[head : head + 1])
            kv_head, place = divmod(head, case.group)
            rows = weights[kv_head, :, place]
            of_head = self.queries[0][:, head : head + 1]
            expected += head_masses(of_head, self.keys(0), [kv_head], own, rows, self.visible)[0]
        by_kv_head = self.queries[0].view(case.steps, case.kv_heads, case.group, case.size).transpose(0, 1)
        views = [self.caches[0][:, head : head + 1] for head in range(case.kv_heads)]
        found = weighted_masses(
            by_kv_head.contiguous(), views, self.blocks, case.prompt, scale, weights,
            soft_cap=cap, sinks=None if sinks is None else sinks.view(case.kv_heads, case.group), visible=self.visible,
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
        problem = Problem.make(case, settings.device)
        for name, compare in ((str(case), problem.difference), (f"heads: {case}", problem.heads_difference)):
            with checks.part(name):
                found = compare()
                ratios.append((found / case.tolerance, name))
                if not found <= case.tolerance:  # also for NaN
                    says = f"largest relative difference to torch, at most {case.tolerance:g}"
                    checks.judge(name, False, found, says)
    right = sum(ratio <= 1 for ratio, _ in ratios)
    checks.judge("cases", right == 2 * len(wanted), right, f"of {2 * len(wanted)} cases agree with torch")
    worst, where = max(ratios)
    checks.measured("difference", worst, f"of what is allowed is the largest difference, at {where}")
    control = Problem.make(wanted[0], settings.device).difference(swapped=True)
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
