"""The attention mass that single heads put on each prompt token, summed over weighted queries. Tensors on any device.

The other scoring (`importance`) takes maxima over all heads and pools along the prompt. Here nothing is pooled and
nothing is rescaled: where a head finds nothing, its mass stays on the first token.
"""

from collections.abc import Sequence

import torch

from speculator_service.scoring.importance import (
    BLOCK_ELEMENTS,
    AttentionFormula,
    Keys,
    attention_weights,
    hidden_keys,
)


def head_masses(
    queries: torch.Tensor,
    keys: torch.Tensor | Keys,
    kv_heads: Sequence[int],
    formula: AttentionFormula,
    row_weights: torch.Tensor,
    visible: torch.Tensor | None = None,
) -> torch.Tensor:
    """float32 [n, M]: for each of n heads of one layer, sum over the queries s of row_weights[s] * attention[s, head].

    queries: [S, n, D] and keys: [G, M, D], as in `importance.layer_scores`. kv_heads: the KV head of each head; only
    the keys of these are read. formula: its sinks are those of these heads, [n]. row_weights: float32 [S].
    visible: integer [S], each query's number of keys, at least 1; None: all M.
    Memory: about three times max(BLOCK_ELEMENTS, S * M) floats, for any n.
    """
    steps, count, _ = queries.shape
    prompt = keys.shape[1]
    at_once = max(1, BLOCK_ELEMENTS // (steps * prompt))
    hidden = None if visible is None else hidden_keys(visible, prompt)
    scaled = queries.float().transpose(0, 1) * formula.scale
    masses = scaled.new_empty((count, prompt))
    for kv_head in sorted(set(kv_heads)):
        sharing = [place for place, own in enumerate(kv_heads) if own == kv_head]
        for first in range(0, len(sharing), at_once):
            places = sharing[first : first + at_once]
            sinks = None if formula.sinks is None else formula.sinks[places]
            weights = attention_weights(
                scaled[places], keys, kv_head, soft_cap=formula.soft_cap, sinks=sinks, hidden=hidden
            )
            masses[places] = torch.matmul(row_weights.to(weights.device), weights)
    return masses
