"""Scores from an engine's paged keys: with the Triton kernels on CUDA, with torch elsewhere or if the kernels fail.

If the kernels do not compile or do not launch, torch takes over for good, with one warning. Torch also scores what they
do not support (`triton_kernels.supports`). Both give the same results up to float32 rounding.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch.nn.utils.rnn import pad_sequence

from speculator_service.scoring.importance import (
    BLOCK_ELEMENTS,
    POOL_KERNEL,
    AttentionFormula,
    Keys,
    add_layer,
    attention_weights,
    hidden_keys,
    layer_scores,
)

_log = logging.getLogger(__name__)


class Pages(NamedTuple):
    """One layer's keys in the cache. cache: a view [B, G, N, D]. blocks: int64 [ceil(M / N)], the prompt's blocks."""

    cache: torch.Tensor
    blocks: torch.Tensor


class PagedKeys(Keys, Protocol):
    """One layer's keys: in pieces for torch, and in the cache for the kernels."""

    @property
    def pages(self) -> Pages | None:
        """None if the cache has no such view: CPU backends pack their blocks."""


class HeadsOfLayer(NamedTuple):
    """Some heads of one layer, and what they read; the fields are those of `head_masses`.

    queries: [S, n, D]. kv_heads: n. formula: with the sinks of these heads.
    """

    queries: torch.Tensor
    keys: PagedKeys
    kv_heads: Sequence[int]
    formula: AttentionFormula


class Kernels(NamedTuple):
    """Functions of `triton_kernels` and `triton_masses`."""

    supports: Callable[[Sequence[torch.Tensor], int], bool]
    fill_table: Callable[..., None]
    step_counts: Callable[[int], list[int]]
    weighted_masses: Callable[..., torch.Tensor]


def kernels_for(device: torch.device) -> Kernels | None:
    """The Triton kernels; None if the device is not CUDA or Triton is missing."""
    if device.type != "cuda":
        return None
    try:
        from speculator_service.scoring.triton_kernels import fill_table, step_counts, supports
        from speculator_service.scoring.triton_masses import weighted_masses
    except ImportError as error:
        _warn(error)
        return None
    return Kernels(supports, fill_table, step_counts, weighted_masses)


class PagedScoring:
    """Scores by attention and by heads. Each worker has one; it remembers whether the kernels work."""

    def __init__(self, kernels: Kernels | None, pool_kernel: int = POOL_KERNEL) -> None:
        self.kernels, self._pool_kernel = kernels, pool_kernel

    def fill(
        self,
        table: torch.Tensor,
        queries: torch.Tensor,
        keys: Sequence[PagedKeys],
        formulas: Sequence[AttentionFormula],
    ) -> None:
        """Add all layers to a `score_table`. queries: [L, S, H, D]. keys, formulas: one per layer."""
        pages: list[Any] = [layer.pages for layer in keys]
        sinks: list[Any] = [formula.sinks for formula in formulas]
        pool = self._pool_kernel
        if (kernels := self._supporting(pages, queries.dtype, formulas, pool)) is not None:
            try:
                kernels.fill_table(
                    table,
                    queries,
                    [page.cache for page in pages],
                    pages[0].blocks.int(),
                    formulas[0].scale,
                    pool,
                    soft_cap=formulas[0].soft_cap,
                    sinks=None if sinks[0] is None else torch.stack(sinks),
                )
                return
            except Exception as error:  # Triton's compiler and driver raise many kinds; a worker must not raise
                self.kernels = None
                _warn(error)
                table.zero_()
        for number, (layer, (scale, soft_cap, own_sinks)) in enumerate(zip(keys, formulas, strict=True)):
            scores = layer_scores(queries[number], layer, scale, pool, soft_cap=soft_cap, sinks=own_sinks)
            add_layer(table, number, scores)

    def masses(
        self, layers: Sequence[HeadsOfLayer], row_weights: torch.Tensor, visible: torch.Tensor | None = None
    ) -> torch.Tensor:
        """The attention mass of each head, float32 [heads of all layers, M] (`head_masses`), by torch."""
        return torch.cat([head_masses(*layer, row_weights, visible) for layer in layers])

    def weighted_mass(
        self,
        layers: Sequence[HeadsOfLayer],
        head_weights: torch.Tensor,
        row_weights: torch.Tensor,
        visible: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """The sum of `masses` with one weight per head, float32 [M]. head_weights: float32 [heads of all layers]."""
        parts = _by_kv_head(layers, head_weights)
        formulas = [part.formula for part in parts]
        pages: list[Any] = [part.pages for part in parts]
        sinks: list[Any] = [formula.sinks for formula in formulas]
        if (kernels := self._supporting(pages, parts[0].queries.dtype, formulas, 1)) is not None:
            try:
                return kernels.weighted_masses(
                    pad_sequence([part.queries.transpose(0, 1) for part in parts], batch_first=True).transpose(1, 2),
                    [page.cache for page in pages],
                    pages[0].blocks.int(),
                    layers[0].keys.shape[1],
                    formulas[0].scale,
                    row_weights[:, None] * pad_sequence([part.weights for part in parts], batch_first=True)[:, None],
                    soft_cap=formulas[0].soft_cap,
                    sinks=None if sinks[0] is None else pad_sequence(sinks, batch_first=True),
                    visible=visible,
                )
            except Exception as error:  # as in `fill`
                self.kernels = None
                _warn(error)
        return head_weights @ self.masses(layers, row_weights, visible)

    def _supporting(
        self, pages: Sequence[Any], dtype: torch.dtype, formulas: Sequence[AttentionFormula], pool: int
    ) -> Kernels | None:
        """The kernels, if they score these pages by one formula. dtype: of the queries."""
        if self.kernels is None or any(page is None for page in pages) or pages[0].cache.dtype != dtype:
            return None
        alike = len({(scale, cap, sinks is None) for scale, cap, sinks in formulas}) == 1
        return self.kernels if alike and self.kernels.supports([page.cache for page in pages], pool) else None


class _KvHeadPart(NamedTuple):
    """The heads of one KV head. queries: [S, n, D]. weights: [n]. pages: of this KV head alone, if there are any."""

    queries: torch.Tensor
    weights: torch.Tensor
    formula: AttentionFormula
    pages: Pages | None


def _by_kv_head(layers: Sequence[HeadsOfLayer], head_weights: torch.Tensor) -> list[_KvHeadPart]:
    """head_weights: of all heads of all layers."""
    parts = []
    for layer, weights in zip(layers, head_weights.split([len(layer.kv_heads) for layer in layers]), strict=True):
        pages, sinks = layer.keys.pages, layer.formula.sinks
        for kv_head in sorted(set(layer.kv_heads)):
            places = [place for place, own in enumerate(layer.kv_heads) if own == kv_head]
            formula = layer.formula._replace(sinks=None if sinks is None else sinks[places])
            of_head = pages and pages._replace(cache=pages.cache.narrow(1, kv_head, 1))
            parts.append(_KvHeadPart(layer.queries[:, places], weights[places], formula, of_head))
    return parts


def head_masses(
    queries: torch.Tensor,
    keys: torch.Tensor | Keys,
    kv_heads: Sequence[int],
    formula: AttentionFormula,
    row_weights: torch.Tensor,
    visible: torch.Tensor | None = None,
) -> torch.Tensor:
    """float32 [n, M]: for each of n heads of one layer, sum over the queries s of row_weights[s] * attention[s, head].

    Nothing is pooled or rescaled: where a head finds nothing, its mass stays on the first token.

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


def _warn(error: Exception) -> None:
    reason = (str(error).strip() or type(error).__name__).splitlines()[0]
    _log.warning("Prompts are scored by torch, slower than by the Triton kernels, which do not run here: %s", reason)
