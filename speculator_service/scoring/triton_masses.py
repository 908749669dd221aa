"""The scoring of `head_masses` as two Triton kernels for CUDA, over the profile's heads and the engine's cache.

The first kernel is that of `triton_kernels`. The second one computes the weights again, tile by tile, and sums them
over the weighted queries of one KV head. Tested and run as `triton_kernels`.
"""

# ruff: noqa: N803  (Triton's convention: compile-time constants in capitals)

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

from speculator_service.scoring.triton_kernels import (
    OF_THE_PROMPT,
    TILING,
    Tiling,
    padded_rows,
    softmax_sums,
    tile_keys,
    tile_logits,
    without_padding,
)


def weighted_masses(
    queries: torch.Tensor,
    caches: Sequence[torch.Tensor],
    blocks: torch.Tensor,
    prompt: int,
    scale: float,
    weights: torch.Tensor,
    tiling: Tiling = TILING,
    *,
    soft_cap: float = 0.0,
    sinks: torch.Tensor | None = None,
    visible: torch.Tensor | None = None,
) -> torch.Tensor:
    """float32 [M], M = prompt: the attention of P KV heads, summed over their weighted queries.

    queries: [P, S, n, D], of the n query heads of each KV head. caches: P views [B, 1, N, D] of one KV head each.
    weights: float32 [P, S, n]; 0 for a query head that only fills the tensor. sinks: [P, n]. The rest is as in
    `triton_kernels.softmax_sums`. A query that contains a NaN gives NaN everywhere.
    """
    count, steps, heads, _ = queries.shape
    # A constant number of rows: the kernels are compiled once, whatever the profile and the question.
    at_once = max(1, tiling.rows // triton.next_power_of_2(heads))
    rows, counts = padded_rows(queries, 1, at_once)
    launch, sums = softmax_sums(
        rows, counts, steps, heads, caches, blocks, prompt, scale, tiling,
        soft_cap=soft_cap, sinks=None if sinks is None else sinks[:, None], visible=visible,
    )  # fmt: skip
    step_blocks, _, wide = counts
    of_rows = weights.new_zeros((count, step_blocks * at_once, wide))
    of_rows[:, :steps, :heads] = weights
    masses = weights.new_empty((count, prompt))
    grid = (triton.cdiv(prompt, tiling.tile), count)
    sums = without_padding(sums, steps, heads)
    _weighted_sums[grid](
        *launch.reads, sums, of_rows, masses, *launch.factors, step_blocks, *launch.sizes, **launch.shape
    )
    return masses.sum(0)


@triton.jit(do_not_specialize=(*OF_THE_PROMPT, "step_blocks"))
def _weighted_sums(
    rows, seen, cache, offsets, blocks, sums, weights, masses, scale2, cap2, step_blocks,
    prompt, kv_heads, block_tokens, size, stride_block, stride_head, stride_token,
    ROWS: tl.constexpr, TILE: tl.constexpr, DIM: tl.constexpr, CAPPED: tl.constexpr,
):  # fmt: skip
    """The weighted sum over all queries of one KV head, for one tile of the prompt."""
    tile, pair = tl.program_id(0), tl.program_id(1)
    positions = tile * TILE + tl.arange(0, TILE)
    inside = positions < prompt
    offset = tl.multiple_of(tl.load(offsets + pair), 16)
    keys = tile_keys(
        cache, offset, blocks, positions, inside, 0, block_tokens, size, stride_block, stride_head, stride_token, DIM
    )
    total = tl.zeros([TILE], tl.float32)
    for step_block in range(step_blocks):
        places = step_block * ROWS + tl.arange(0, ROWS)
        lines = pair * step_blocks * ROWS + places
        query = tl.load(rows + lines[:, None] * DIM + tl.arange(0, DIM)[None, :])
        scores = tile_logits(query, keys, scale2, cap2, CAPPED)
        scores -= tl.load(sums + lines)[:, None] * 1.4426950408889634
        visible = inside[None, :] & (positions[None, :] < tl.load(seen + places)[:, None])
        attention = tl.where(visible, tl.exp2(scores), 0.0)
        total += tl.sum(attention * tl.load(weights + lines)[:, None], 0)
    tl.store(masses + pair.to(tl.int64) * prompt + positions, total, mask=inside)
