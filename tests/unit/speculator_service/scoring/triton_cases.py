"""Prints, as JSON, the error of the Triton kernels against `importance.py` for each case; needs TRITON_INTERPRET=1."""

import json
import sys
from dataclasses import dataclass, replace

import torch
import triton.language as tl
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle, _convert_float

from speculator_service.scoring.importance import AttentionFormula, add_layer, layer_scores, score_table
from speculator_service.scoring.paged import HeadsOfLayer, Kernels, PagedScoring
from speculator_service.scoring.triton_kernels import Tiling, fill_table, step_counts, supports
from speculator_service.scoring.triton_masses import weighted_masses
from tests.unit.speculator_service.scoring.paged_keys import random_keys

KERNELS = Kernels(supports, fill_table, step_counts, weighted_masses)
SMALL = Tiling(tile=32, rows=16, spread=16)

_dot = InterpreterBuilder.create_dot


def _dot_of_bfloat16(builder, a, b, *args):
    """The interpreter stores bfloat16 as integers of its bits and would multiply these."""
    wide = [
        TensorHandle(_convert_float(x.data, tl.bfloat16, tl.float32, None).view("float32"), tl.float32)
        if x.dtype.scalar == tl.bfloat16
        else x
        for x in (a, b)
    ]
    return _dot(builder, *wide, *args)


InterpreterBuilder.create_dot = _dot_of_bfloat16


@dataclass(frozen=True)
class Case:
    layers: int = 2
    steps: int = 3
    heads: int = 4
    kv_heads: int = 2
    size: int = 16
    prompt: int = 100
    block: int = 16
    pool: int = 13
    aggregation: str = "max"
    dtype: str = "float32"
    tiling: Tiling = SMALL
    soft_cap: float = 0.0
    has_sinks: bool = False

    def sinks(self) -> torch.Tensor | None:
        """Random sinks [layers, heads], if there are any."""
        shape, generator = (self.layers, self.heads), torch.Generator().manual_seed(7)
        return 2 + 2 * torch.randn(shape, generator=generator) if self.has_sinks else None


CASES = {
    "odd length": Case(prompt=101),
    "whole tiles": Case(prompt=96, pool=1),
    "one token": Case(prompt=1),
    "no look-ahead": Case(steps=1, prompt=77),
    "more steps than rows": Case(steps=9, prompt=70),
    "MHA": Case(heads=3, kv_heads=3, size=24),
    "a group of seven": Case(heads=14, kv_heads=2),
    "MQA, widest pool": Case(heads=8, kv_heads=1, pool=15),
    "a row per layer": Case(layers=3, aggregation="head_max_layer_mean"),
    "one contiguous block": Case(block=100),
    "default tiling": Case(size=64, steps=9, heads=8, prompt=300, tiling=Tiling()),
    "float16": Case(dtype="float16"),
    "bfloat16": Case(dtype="bfloat16"),
    "soft cap": Case(soft_cap=2.0),
    "sinks": Case(heads=6, has_sinks=True, steps=9, prompt=70),
    "many steps, a row per layer": Case(steps=20, prompt=70, aggregation="head_max_layer_mean"),
    "soft cap, sinks, a row per layer": Case(soft_cap=1.0, has_sinks=True, aggregation="head_max_layer_mean"),
}


def tables(
    case: Case, *, swapped: bool = False, missing: bool = False, plain: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """The table of the reference and of the kernels.

    swapped: exchange two blocks. missing: step 1's query is NaN.
    plain: the kernels get neither soft cap nor sinks.
    """
    dtype, generator = getattr(torch, case.dtype), torch.Generator().manual_seed(case.prompt)
    queries = 2 * torch.randn(case.layers, case.steps, case.heads, case.size, generator=generator)
    queries = queries.to(dtype)
    if missing:
        queries[0, 1, 2] = torch.nan
    keys = random_keys(
        case.layers, prompt=case.prompt, kv_heads=case.kv_heads, block=case.block, size=case.size, dtype=dtype
    )
    caches, blocks = [layer.pages.cache for layer in keys], keys[0].blocks.int()
    scale, sinks = case.size**-0.5, case.sinks()
    expected, fused = (
        score_table(case.aggregation, layers=case.layers, steps=case.steps, prompt=case.prompt) for _ in range(2)
    )
    for layer, of_layer in enumerate(keys):
        own = {"soft_cap": case.soft_cap, "sinks": None if sinks is None else sinks[layer]}
        add_layer(expected, layer, layer_scores(queries[layer], of_layer.whole(), scale, case.pool, **own))
    if swapped:
        blocks[[0, 1]] = blocks[[1, 0]]
    assert supports(caches, case.pool, case.tiling)
    formula = {} if plain else {"soft_cap": case.soft_cap, "sinks": sinks}
    fill_table(fused, queries, caches, blocks, scale, case.pool, case.tiling, **formula)
    return expected, fused


def tables_of_a_worker(case: Case) -> tuple[torch.Tensor, torch.Tensor, bool]:
    """The tables of torch and of `PagedScoring` with the kernels, and whether it still uses the kernels."""
    keys = random_keys(case.layers, prompt=case.prompt, kv_heads=case.kv_heads, block=case.block, size=case.size)
    queries = 2 * torch.randn(
        case.layers, case.steps, case.heads, case.size, generator=torch.Generator().manual_seed(1)
    )
    scorings = [PagedScoring(kernels, case.pool) for kernels in (None, KERNELS)]
    found = []
    for scoring in scorings:
        table = score_table(case.aggregation, layers=case.layers, steps=case.steps, prompt=case.prompt)
        scoring.fill(table, queries, keys, [AttentionFormula(case.size**-0.5)] * case.layers)
        found.append(table)
    return found[0], found[1], scorings[1].kernels is not None


def tables_of_distant_heads() -> tuple[torch.Tensor, torch.Tensor]:
    """The tables of caches whose third head lies more than 2^31 elements after the first. Most memory stays unused."""
    case = replace(CASES["float16"], layers=1, heads=3, kv_heads=3, prompt=32)
    keys = random_keys(1, prompt=32, kv_heads=3, block=case.block, size=case.size, dtype=torch.float16)
    near, blocks = keys[0].pages.cache, keys[0].blocks.int()
    distance = 2**30 + 16
    strides = (near.stride(0), distance, case.size, 1)
    far = torch.empty(2 * distance + near.shape[0] * near.stride(0), dtype=torch.float16).as_strided(
        near.shape, strides
    )
    far.copy_(near)
    queries = torch.randn(1, case.steps, 3, case.size, generator=torch.Generator().manual_seed(1)).half()
    found = []
    for cache in (near, far):
        table = torch.zeros(1, case.steps, 32)
        fill_table(table, queries, [cache], blocks, case.size**-0.5, case.pool, case.tiling)
        found.append(table)
    return found[0], found[1]


@dataclass(frozen=True)
class MassCase:
    """kv_heads: those of the asked heads of each layer. rows: of a question in the middle of the prompt."""

    kv_heads: tuple[tuple[int, ...], ...] = ((0, 1, 1), (1,))
    rows: int = 5
    prompt: int = 300
    block: int = 16
    dtype: str = "float32"
    soft_cap: float = 0.0
    has_sinks: bool = False


MASS_CASES = {
    "heads of two layers": MassCase(),
    "the last token alone": MassCase(rows=0, prompt=77),
    "a long question": MassCase(rows=64, prompt=260),
    "many heads of one KV head": MassCase(kv_heads=((1,) * 7,), prompt=129),
    "one token": MassCase(rows=0, prompt=1),
    "one contiguous block": MassCase(block=300),
    "bfloat16": MassCase(dtype="bfloat16"),
    "soft cap": MassCase(soft_cap=2.0),
    "sinks": MassCase(has_sinks=True),
}


def masses(case: MassCase, *, missing: bool = False, blind: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """The weighted mass by torch and by the kernels. missing: as in `tables`. blind: the kernels do not know which
    keys a query sees."""
    dtype, generator, size = getattr(torch, case.dtype), torch.Generator().manual_seed(case.prompt), 16
    keys = random_keys(len(case.kv_heads), prompt=case.prompt, block=case.block, size=size, dtype=dtype)
    steps = case.rows + 1
    layers = []
    for layer, kv_heads in zip(keys, case.kv_heads, strict=True):
        queries = (2 * torch.randn(steps, len(kv_heads), size, generator=generator)).to(dtype)
        if missing:
            queries[0, 0] = torch.nan
        sinks = torch.randn(len(kv_heads), generator=generator) if case.has_sinks else None
        layers.append(HeadsOfLayer(queries, layer, kv_heads, AttentionFormula(size**-0.5, case.soft_cap, sinks)))
    weights = torch.rand(sum(map(len, case.kv_heads)), generator=generator)
    rows = torch.rand(steps, generator=generator)
    visible = torch.tensor([case.prompt // 2 - case.rows + row for row in range(case.rows)] + [case.prompt])
    scoring = PagedScoring(KERNELS)
    found = scoring.weighted_mass(layers, weights, rows, None if blind else visible)
    assert scoring.kernels is not None
    return PagedScoring(None).weighted_mass(layers, weights, rows, visible), found


def difference(expected: torch.Tensor, found: torch.Tensor) -> float:
    """Largest relative error; absolute for values under 1e-3."""
    return float(((expected - found).abs() / expected.clamp(min=1e-3)).max())


def main() -> None:
    told: dict = {"differences": {name: difference(*tables(case)) for name, case in CASES.items()}}
    told["swapped"] = difference(*tables(CASES["odd length"], swapped=True))
    narrow, wide = (tables(replace(CASES["odd length"], pool=pool)) for pool in (1, 13))
    told["pool left out"] = difference(wide[0], narrow[1])
    told["plain"] = [difference(*tables(CASES[name], plain=True)) for name in ("soft cap", "sinks")]
    expected, found = tables(CASES["odd length"], missing=True)
    told["missing"] = [t.isnan().all(-1).flatten().tolist() for t in (expected, found)]
    told["rest of missing"] = difference(expected[:, [0, 2]], found[:, [0, 2]])
    *of_worker, told["worker keeps them"] = tables_of_a_worker(CASES["a row per layer"])
    told["worker"] = difference(*of_worker)
    told["distant heads"] = difference(*tables_of_distant_heads())
    told["masses"] = {name: difference(*masses(case)) for name, case in MASS_CASES.items()}
    told["blind masses"] = difference(*masses(MASS_CASES["heads of two layers"], blind=True))
    told["missing mass"] = masses(MASS_CASES["heads of two layers"], missing=True)[1].isnan().any().item()
    json.dump(told, sys.stdout)


if __name__ == "__main__":
    main()
