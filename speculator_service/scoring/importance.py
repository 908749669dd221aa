"""The importance of each prompt token, from the speculator's attention (Speculative Prefill, arXiv 2502.02789, 3.2).

    table = score_table(options.aggregation, layers=len(scored), steps=S, prompt=M)
    for number, layer in enumerate(scored):                   # scored_layers(L, options.layers)
        add_layer(table, number, layer_scores(queries[layer], keys[layer], scale, POOL_KERNEL))
    # under tensor parallelism: all_reduce(table, op=MAX)
    importance = total(table, valid) / valid.sum()            # valid_steps(look_ahead_tokens, eos_token_ids)

The importance of prompt token j is the mean over the valid steps s of max over (layer, head) of pool(w[s, layer, head])
at j (of the mean over layers with `head_max_layer_mean`). w is the softmax of step s over the M prompt keys.

Shapes: S steps (1 + look-ahead tokens), H query heads, G key-value heads, D head size, M prompt tokens, L layers.
Tensors may be on any device.
"""

from collections.abc import Collection, Iterator
from typing import Literal, NamedTuple, Protocol

import torch
from torch.nn.functional import pad

BLOCK_ELEMENTS = 2**24
"""Limit for the attention weights in memory, in elements. Query heads are scored in groups within it, at least one."""
TILE_ELEMENTS = 2**18
"""Number of weights that are pooled at once, in elements: the temporary tensors then fit into a core's cache."""


class Keys(Protocol):
    """One layer's keys in an engine's cache."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """(G, M, D)."""

    def pieces(self, kv_head: int) -> Iterator[torch.Tensor]:
        """The keys of one head as tensors [m, D], in the order of the prompt."""


class AttentionFormula(NamedTuple):
    """How a layer makes attention weights: the softmax of q·k * scale; with a soft cap, of soft_cap * tanh(logits /
    soft_cap) (Gemma 2); with sinks [H], each head's denominator has the additional term exp(sinks[head]) (gpt-oss).
    """

    scale: float
    soft_cap: float = 0.0
    sinks: torch.Tensor | None = None


POOL_KERNEL = 13
"""Width of the average pooling of scores along the prompt, as in the paper."""


def scored_layers(num_layers: int, layers: Literal["all", "last_half", "last4", "last1"]) -> range:
    """Indices among the layers that attend to the whole prompt. last_half: of an odd number, one more than half. The
    earlier layers attend to similar tokens rather than to an answer. At most four layers are all taken."""
    last = {"all": num_layers, "last_half": max(4, (num_layers + 1) // 2), "last4": 4, "last1": 1}[layers]
    return range(max(0, num_layers - last), num_layers)


def layer_scores(
    queries: torch.Tensor,
    keys: torch.Tensor | Keys,
    scale: float,
    pool_kernel: int,
    *,
    soft_cap: float = 0.0,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """One layer's scores [S, M], float32: the maximum over its heads of the pooled attention to the prompt.

    queries: [S, H, D] and keys: [G, M, D], after rotary embedding, of any float type and strides. Query head h uses KV
    head h // (H / G). scale, soft_cap, sinks: see `AttentionFormula`. The softmax runs in float32 over the M prompt
    positions (and the sink) only, although later steps also attend to decoded tokens. pool_kernel: odd width of the
    average along the prompt, outside of which all is zero. Raises ValueError if the shapes do not fit.
    """
    steps, heads, size = queries.shape
    kv_heads, prompt, key_size = keys.shape
    if heads % kv_heads or key_size != size:
        raise ValueError(f"queries {tuple(queries.shape)} do not fit keys {tuple(keys.shape)}")
    if pool_kernel % 2 == 0:
        raise ValueError(f"pool_kernel must be odd, not {pool_kernel}")
    group = heads // kv_heads
    at_once = max(1, BLOCK_ELEMENTS // (steps * prompt))
    best = queries.new_zeros((steps, prompt), dtype=torch.float32)
    for kv_head in range(kv_heads):
        group_queries = queries[:, kv_head * group : (kv_head + 1) * group].float().transpose(0, 1) * scale
        for first in range(0, group, at_once):
            some_queries, head = group_queries[first : first + at_once], kv_head * group + first
            weights = attention_weights(
                some_queries,
                keys,
                kv_head,
                soft_cap=soft_cap,
                sinks=None if sinks is None else sinks[head : head + len(some_queries)],
            )
            _maximum_with_pooled(best, weights, pool_kernel)
    return best.div_(pool_kernel)  # divide once, at the end: the largest sum is the largest average


def attention_weights(
    queries: torch.Tensor,
    keys: torch.Tensor | Keys,
    kv_head: int,
    *,
    soft_cap: float = 0.0,
    sinks: torch.Tensor | None = None,
    hidden: torch.Tensor | None = None,
) -> torch.Tensor:
    """The weights [heads, S, M], float32, of query heads that share one KV head. queries: float32 [heads, S, D], times
    the layer's scale. sinks: [heads]. hidden: see `hidden_keys`.
    """
    pieces = iter([keys[kv_head]]) if isinstance(keys, torch.Tensor) else keys.pieces(kv_head)
    prompt = keys.shape[1]
    logits = _products(queries, pieces, prompt)
    if soft_cap:
        logits.div_(soft_cap).tanh_().mul_(soft_cap)
    if hidden is not None:
        logits[..., prompt - hidden.shape[1] :].masked_fill_(hidden, -torch.inf)
    return _softmax(logits, sinks)


def _products(queries: torch.Tensor, pieces: Iterator[torch.Tensor], prompt: int) -> torch.Tensor:
    """q·k [heads, S, M] of queries [heads, S, D] and the keys of one head."""
    rows = queries.flatten(0, 1)  # one product per piece reads the keys once, not once per head
    products = rows.new_empty((len(rows), prompt))
    begin = 0
    for piece in pieces:
        torch.mm(rows, piece.float().T, out=products[:, begin : begin + len(piece)])
        begin += len(piece)
    return products.view(*queries.shape[:2], prompt)


def hidden_keys(visible: torch.Tensor, prompt: int) -> torch.Tensor:
    """Which of the last keys a step does not see, bool [S, E]. All steps see the M - E keys before them."""
    first = int(visible.min())
    return torch.arange(first, prompt, device=visible.device) >= visible[:, None]


def _softmax(logits: torch.Tensor, sinks: torch.Tensor | None) -> torch.Tensor:
    """The weights [heads, S, M] of logits [heads, S, M]. sinks: [heads], one more logit in each head's denominator."""
    if sinks is None:
        return torch.softmax(logits, dim=-1)
    total = torch.logaddexp(logits.logsumexp(-1, keepdim=True), sinks.float()[:, None, None])
    return logits.sub_(total).exp_()


def _maximum_with_pooled(best: torch.Tensor, weights: torch.Tensor, kernel: int) -> None:
    """In place: best [S, M] = max(best, each head's sums over `kernel` neighbours in weights [heads, S, M])."""
    heads, steps, prompt = weights.shape
    width = max(kernel, TILE_ELEMENTS // (heads * steps))
    around = kernel // 2
    for begin in range(0, prompt, width):
        end = min(begin + width, prompt)
        left, right = max(0, begin - around), min(prompt, end + around)
        tile = weights[..., left:right]
        if right - left < end - begin + 2 * around:
            tile = pad(tile, (left - begin + around, end + around - right))
        torch.maximum(best[:, begin:end], _window_sums(tile, kernel).amax(0), out=best[:, begin:end])


def _window_sums(padded: torch.Tensor, kernel: int) -> torch.Tensor:
    """Sums over `kernel` neighbours along the last axis, which becomes kernel - 1 shorter.

    Not by avg_pool1d, which took three quarters of the scoring time: sums over 1, 2, 4, ... neighbours are combined by
    the binary digits of `kernel`, in about 2 log2(kernel) passes.
    """
    length = padded.shape[-1] - kernel + 1
    total, doubled, width, offset = padded[..., :length], padded, 1, 1  # the lowest digit of an odd kernel is 1
    while 2 * width <= kernel:
        doubled = doubled[..., :-width] + doubled[..., width:]
        width *= 2
        if kernel & width:
            total = total + doubled[..., offset : offset + length]
            offset += width
    return total


def score_table(
    aggregation: Literal["max", "head_max_layer_mean"],
    *,
    layers: int,
    steps: int,
    prompt: int,
    device: torch.device | str = "cpu",
) -> torch.Tensor:
    """The scores of no layer, float32 [R, S, M]: a running maximum (R = 1) or a row per layer (R = L).

    With those of all layers, an all_reduce(MAX) completes the maximum over the heads of all ranks.
    """
    # Attention weights are not negative, so 0 does not change a maximum.
    return torch.zeros((1 if aggregation == "max" else layers, steps, prompt), dtype=torch.float32, device=device)


def add_layer(table: torch.Tensor, layer: int, scores: torch.Tensor) -> None:
    """Add the scores [S, M] of a layer, counted from 0 among those that are scored, to a `score_table`."""
    row = table[min(layer, len(table) - 1)]
    torch.maximum(row, scores, out=row)


def total(table: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
    """float32 [M]: the sum over the steps where `valid` (bool [S]) is true, of the mean over the rows of the table."""
    per_step = table[0] if len(table) == 1 else table.mean(0)
    # The places are found where `valid` is. On a GPU, indexing by a mask waits for the device.
    return per_step[valid.nonzero().squeeze(1).to(per_step.device)].sum(0)


def valid_steps(look_ahead_tokens: torch.Tensor, eos_token_ids: Collection[int]) -> torch.Tensor:
    """Which steps count, bool [N + 1]: those before which no step decoded an EOS. look_ahead_tokens: [N]; step i
    decoded token i, which is the query of step i + 1."""
    eos = torch.tensor(sorted(eos_token_ids), dtype=look_ahead_tokens.dtype, device=look_ahead_tokens.device)
    ended = torch.isin(look_ahead_tokens, eos).cumsum(0) > 0
    return torch.cat([ended.new_ones(1), ~ended])
