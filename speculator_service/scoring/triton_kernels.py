"""The scoring of `importance.py` as two Triton kernels for CUDA, over all layers at once and over the engine's cache.

The attention weights stay on the chip: the first kernel computes the softmax denominator of each query row, the second
one the weights again, tile by tile, pools them and takes the maximum over heads and layers. The keys are read twice.

Rows: the queries of a KV head are ordered as steps x heads of its group, so one tile of keys serves them all. Pooling
is a matrix product with a band of ones on the tensor cores. The weights are split into two float16 parts, with an error
of at most 2^-22 of the weight or 1e-12. Softmax, sums and maxima are float32.

Tested on CPU in Triton's interpreter, and by `benchmarks.gpu proof` on an H200.
"""

# ruff: noqa: N803  (Triton's convention: compile-time constants in capitals)

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
import triton.language as tl

_ALIGNED = 16
_LN2 = math.log(2.0)
# Not specialised: otherwise Triton compiles again if one of these is 1 or a multiple of 16.
OF_THE_PROMPT = ("prompt", "steps", "span", "spans", "layer_heads")


class Tiling(NamedTuple):
    """How the work is divided. tile: keys per program. rows: query rows per program, at least 16. spread: programs that
    share the prompt in the first kernel, several per multiprocessor. warps: per program."""

    tile: int = 128
    rows: int = 64
    spread: int = 2048
    warps: int = 4

    @property
    def largest_pool(self) -> int:
        """The largest pool_kernel. With a larger one a tile has too few outputs, and the torch reference is used."""
        return self.tile // 2


TILING = Tiling()
LARGEST_KEY = 256
LARGEST_FLOAT32_KEY = 64
"""Larger keys in float32 spill the first kernel's registers, and those of 256 elements do not fit on the chip."""


def supports(caches: Sequence[torch.Tensor], pool_kernel: int, tiling: Tiling = TILING) -> bool:
    """Whether `fill_table` supports these caches (equal layout, packed along D, aligned) and this pool_kernel. Tiles of
    larger keys (MLA's latent vectors have 576 elements) do not fit on the chip."""
    first = caches[0]
    alike = all(c.shape == first.shape and c.stride() == first.stride() and c.dtype == first.dtype for c in caches)
    aligned = all((c.data_ptr() - first.data_ptr()) % (_ALIGNED * c.element_size()) == 0 for c in caches)
    floats = first.dtype in (torch.bfloat16, torch.float16, torch.float32)
    largest = LARGEST_FLOAT32_KEY if first.dtype == torch.float32 else LARGEST_KEY
    small = first.shape[-1] <= largest and pool_kernel <= tiling.largest_pool
    return alike and aligned and floats and first.stride(-1) == 1 and small


def fill_table(
    table: torch.Tensor,
    queries: torch.Tensor,
    caches: Sequence[torch.Tensor],
    blocks: torch.Tensor,
    scale: float,
    pool_kernel: int,
    tiling: Tiling = TILING,
    *,
    soft_cap: float = 0.0,
    sinks: torch.Tensor | None = None,
) -> None:
    """Fill `table` with the result of `layer_scores` and `add_layer` (in `importance.py`) for all layers.

    table: float32 [R, S, M], R = 1 for the maximum over layers, R = L for a row per layer. queries: [L, S, H, D], after
    rotary embedding. caches: L tensors [B, G, N, D], each layer's keys in blocks of N tokens, with any strides but
    packed along D. blocks: int32 [ceil(M / N)], the prompt's blocks in order. scale, soft_cap, sinks ([L, H]): as in
    `importance.AttentionFormula`. pool_kernel: odd, at most `tiling.largest_pool`. All on one device.
    A step whose query contains a NaN gets NaN everywhere.
    """
    layers, steps, heads, _ = queries.shape
    prompt, kv_heads = table.shape[2], caches[0].shape[1]
    at_once = _steps_at_once(steps, triton.next_power_of_2(heads // kv_heads), tiling.rows)
    rows, counts = padded_rows(queries, kv_heads, at_once)
    launch, sums = softmax_sums(
        rows, counts, steps, heads // kv_heads, caches, blocks, prompt, scale, tiling,
        soft_cap=soft_cap, sinks=None if sinks is None else sinks.view(layers, kv_heads, -1),
    )  # fmt: skip
    nans = (sums[:, :, :steps, : heads // kv_heads] * 0).sum((0, 1, 3))  # NaN for steps that contain a NaN, else 0
    outputs = tiling.tile - pool_kernel + 1
    grid = (triton.cdiv(prompt, outputs), len(table), counts[0])
    _pooled_maxima[grid](
        *launch.reads, without_padding(sums, steps, heads // kv_heads), table, *launch.factors, steps,
        layers // len(table) * kv_heads, *launch.sizes, POOL=pool_kernel, STEPS=at_once, **launch.shape,
    )  # fmt: skip
    table += nans[:, None]


class Launch(NamedTuple):
    """Arguments of all kernels. reads: rows, seen, cache, offsets, blocks. factors: scale2, cap2. sizes: of the prompt
    and the cache. shape: compile-time constants."""

    reads: tuple[torch.Tensor, ...]
    factors: tuple[float, float]
    sizes: tuple[int, ...]
    shape: dict[str, int | bool]


def softmax_sums(
    rows: torch.Tensor,
    counts: tuple[int, int, int],
    steps: int,
    group: int,
    caches: Sequence[torch.Tensor],
    blocks: torch.Tensor,
    prompt: int,
    scale: float,
    tiling: Tiling,
    *,
    soft_cap: float = 0.0,
    sinks: torch.Tensor | None = None,
    visible: torch.Tensor | None = None,
) -> tuple[Launch, torch.Tensor]:
    """The first kernel: log of each query's softmax denominator, float32 [L, G, rows, heads], both padded.

    rows, counts: of `padded_rows`. steps, group: without padding. sinks: [L, G, group]. visible: integer [S], the
    number of keys that each query sees, at least 1; None: all M. The rest is as in `fill_table`.
    """
    layers, device = len(caches), rows.device
    _, kv_heads, block_tokens, size = caches[0].shape
    step_blocks, at_once, wide = counts
    seen = torch.full((step_blocks * at_once, wide), prompt, dtype=torch.int32, device=device)
    if visible is not None:
        seen[:steps] = visible[:, None].int()
    offsets = [(c.data_ptr() - caches[0].data_ptr()) // c.element_size() for c in caches]
    stride_block, stride_head, stride_token, _ = caches[0].stride()
    host = torch.tensor(offsets, dtype=torch.int64, pin_memory=rows.is_cuda)
    sizes = (prompt, kv_heads, block_tokens, size, stride_block, stride_head, stride_token)
    shape = {"ROWS": at_once * wide, "TILE": tiling.tile, "DIM": rows.shape[-1], "num_warps": tiling.warps}
    shape["CAPPED"] = bool(soft_cap)
    reads = (rows, seen, caches[0], host.to(device, non_blocking=True), blocks)
    launch = Launch(reads, (scale / _LN2, soft_cap / _LN2), sizes, shape)

    tiles = triton.cdiv(prompt, tiling.tile)
    spans = max(1, min(tiles, tiling.spread // (layers * kv_heads * step_blocks)))
    span = triton.cdiv(tiles, spans) * tiling.tile
    spans = triton.cdiv(prompt, span)
    partial = torch.empty((*rows.shape[:3], spans), dtype=torch.float32, device=device)
    _row_sums[(layers * kv_heads, spans, step_blocks)](*reads, partial, *launch.factors, span, spans, *sizes, **shape)
    sums = partial.logsumexp(-1).view(layers, kv_heads, -1, wide)
    if sinks is not None:
        of_heads = sums[..., :group]
        of_heads.copy_(torch.logaddexp(of_heads, sinks.float()[:, :, None]))
    return launch, sums


def without_padding(sums: torch.Tensor, steps: int, group: int) -> torch.Tensor:
    """`sums` of `softmax_sums`, changed in place so that padding rows have the weight 0."""
    sums[:, :, steps:] = torch.inf
    sums[..., group:] = torch.inf
    return sums


def padded_rows(queries: torch.Tensor, kv_heads: int, at_once: int) -> tuple[torch.Tensor, tuple[int, int, int]]:
    """Queries as [L, G, step blocks * steps * heads, D], zero-padded to powers of two; (step blocks, steps, heads).
    at_once: steps of a block, a power of two."""
    layers, steps, heads, size = queries.shape
    group = heads // kv_heads
    wide = triton.next_power_of_2(group)
    count = triton.cdiv(steps, at_once)
    dim = max(16, triton.next_power_of_2(size))
    rows = queries.new_zeros((layers, kv_heads, count * at_once, wide, dim))
    rows[:, :, :steps, :group, :size] = queries.view(layers, steps, kv_heads, group, size).transpose(1, 2)
    return rows.flatten(2, 3), (count, at_once, wide)


def _steps_at_once(steps: int, wide: int, max_rows: int) -> int:
    return max(1, min(max_rows // wide, triton.next_power_of_2(steps)), 16 // wide)


def step_counts(group: int, tiling: Tiling = TILING) -> list[int]:
    """Numbers of steps that together need every variant of the kernels, which are compiled for each number of steps
    that they compute at once. group: query heads per KV head."""
    wide = triton.next_power_of_2(group)
    powers = [2**exponent for exponent in range(tiling.rows.bit_length())]
    by_variant = {_steps_at_once(steps, wide, tiling.rows): steps for steps in reversed(powers)}
    return sorted(by_variant.values())


@triton.jit
def tile_keys(
    cache, offset, blocks, positions, inside, head, block_tokens, size, stride_block, stride_head, stride_token,
    DIM: tl.constexpr,
):  # fmt: skip
    """Keys [tile, DIM] at `positions` of the sequence; 0 where `inside` is false and beyond the head size."""
    block = tl.load(blocks + positions // block_tokens, mask=inside, other=0).to(tl.int64)
    # int64, because with one storage per layer and head the heads may lie more than 2^31 elements apart.
    start = offset + tl.full([], head, tl.int64) * stride_head
    at = start + block * stride_block + (positions % block_tokens) * stride_token
    dims = tl.arange(0, DIM)
    return tl.load(cache + at[:, None] + dims[None, :], mask=inside[:, None] & (dims < size)[None, :], other=0.0)


@triton.jit
def tile_logits(query, keys, scale2, cap2, CAPPED: tl.constexpr):
    """The attention logits [rows, tile] of queries and keys, for exp2: times 1 / ln 2."""
    logits = tl.dot(query, tl.trans(keys), input_precision="ieee") * scale2
    if CAPPED:
        # tanh(x) = 1 - 2 / (exp(2x) + 1), with the factor 2 / ln 2 of exp2
        logits = cap2 * (1.0 - 2.0 / (tl.exp2(logits / cap2 * 2.8853900817779268) + 1.0))
    return logits


@triton.jit(do_not_specialize=OF_THE_PROMPT)
def _row_sums(
    rows, seen, cache, offsets, blocks, partial, scale2, cap2, span, spans,
    prompt, kv_heads, block_tokens, size, stride_block, stride_head, stride_token,
    ROWS: tl.constexpr, TILE: tl.constexpr, DIM: tl.constexpr, CAPPED: tl.constexpr,
):  # fmt: skip
    """log(sum(exp(q·k * scale))) of each row over one span of the prompt, written to partial [L, G, rows, spans]. A row
    takes its first `seen` keys only; -inf in a span without one of them."""
    layer_head, part = tl.program_id(0), tl.program_id(1)
    lines = (layer_head * tl.num_programs(2) + tl.program_id(2)) * ROWS + tl.arange(0, ROWS)
    sees = tl.load(seen + tl.program_id(2) * ROWS + tl.arange(0, ROWS))
    query = tl.load(rows + lines[:, None] * DIM + tl.arange(0, DIM)[None, :])
    offset = tl.multiple_of(tl.load(offsets + layer_head // kv_heads), 16)
    top = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    for first in range(part * span, tl.minimum(prompt, (part + 1) * span), TILE):
        positions = first + tl.arange(0, TILE)
        inside = positions < prompt
        keys = tile_keys(
            cache, offset, blocks, positions, inside, layer_head % kv_heads, block_tokens, size,
            stride_block, stride_head, stride_token, DIM,
        )  # fmt: skip
        scores = tile_logits(query, keys, scale2, cap2, CAPPED)
        scores = tl.where(positions[None, :] < sees[:, None], scores, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, 1))
        finite = tl.where(higher == float("-inf"), 0.0, higher)  # -inf - -inf would be NaN
        total = total * tl.exp2(top - finite) + tl.sum(tl.exp2(scores - finite[:, None]), 1)
        top = higher
    tl.store(partial + lines * spans + part, (top + tl.log2(total)) * 0.6931471805599453)


@triton.jit(do_not_specialize=OF_THE_PROMPT)
def _pooled_maxima(
    rows, seen, cache, offsets, blocks, sums, table, scale2, cap2, steps, layer_heads,
    prompt, kv_heads, block_tokens, size, stride_block, stride_head, stride_token,
    POOL: tl.constexpr, STEPS: tl.constexpr,
    ROWS: tl.constexpr, TILE: tl.constexpr, DIM: tl.constexpr, CAPPED: tl.constexpr,
):  # fmt: skip
    """Maximum of the pooled weights over `layer_heads` layers x KV heads, for one tile and one table row."""
    outputs: tl.constexpr = TILE - POOL + 1
    tile, out, step_block = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    lanes = tl.arange(0, TILE)
    sees = tl.load(seen + step_block * ROWS + tl.arange(0, ROWS))
    positions = tile * outputs - POOL // 2 + lanes
    inside = (positions >= 0) & (positions < prompt)
    # Output c is the sum of the weights of lanes c to c + POOL - 1.
    band = ((lanes[:, None] >= lanes[None, :]) & (lanes[:, None] < lanes[None, :] + POOL)).to(tl.float16)
    best = tl.zeros([ROWS, TILE], tl.float32)
    for layer_head in range(out * layer_heads, (out + 1) * layer_heads):
        lines = (layer_head * tl.num_programs(2) + step_block) * ROWS + tl.arange(0, ROWS)
        query = tl.load(rows + lines[:, None] * DIM + tl.arange(0, DIM)[None, :])
        offset = tl.multiple_of(tl.load(offsets + layer_head // kv_heads), 16)
        keys = tile_keys(
            cache, offset, blocks, positions, inside, layer_head % kv_heads, block_tokens, size,
            stride_block, stride_head, stride_token, DIM,
        )  # fmt: skip
        scores = tile_logits(query, keys, scale2, cap2, CAPPED)
        scores -= tl.load(sums + lines)[:, None] * 1.4426950408889634
        visible = inside[None, :] & (positions[None, :] < sees[:, None])
        weights = tl.where(visible, tl.exp2(scores), 0.0)
        if POOL > 1:
            # Scaled up, so that weights down to 2^-29 keep float16's full precision.
            weights *= 32768.0
            high = weights.to(tl.float16)
            low = (weights - high.to(tl.float32)).to(tl.float16)
            weights = tl.dot(low, band, tl.dot(high, band)) * (1.0 / (32768.0 * POOL))
        best = tl.maximum(best, weights)
    scores = tl.max(tl.reshape(best, [STEPS, ROWS // STEPS, TILE]), 1)
    step = step_block * STEPS + tl.arange(0, STEPS)
    places = tile * outputs + lanes
    at = table + (out * steps + step).to(tl.int64)[:, None] * prompt + places[None, :]
    tl.store(at, scores, mask=(step < steps)[:, None] & ((lanes < outputs) & (places < prompt))[None, :])
