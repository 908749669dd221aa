"""Scores from an engine's paged keys: with the Triton kernels on CUDA, with torch elsewhere or if the kernels fail.

If the kernels are not installed, do not compile or do not launch, torch takes over for good, with one warning. Torch
also scores a request whose caches or pooling the kernels do not support (`triton_kernels.supports`), or whose pooling
they are not compiled for. Both give the same results up to float32 rounding.
"""

import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import torch

from speculator_service.scoring.importance import Aggregate, AttentionFormula, Keys, layer_scores

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


class Kernels(NamedTuple):
    """The functions `supports`, `fill_table` and `step_counts` of `triton_kernels`."""

    supports: Callable[[Sequence[torch.Tensor], int], bool]
    fill_table: Callable[..., None]
    step_counts: Callable[[int], list[int]]


def kernels_for(device: torch.device) -> Kernels | None:
    """The Triton kernels; None if the device is not CUDA or Triton is missing."""
    if device.type != "cuda":
        return None
    try:
        from speculator_service.scoring.triton_kernels import fill_table, step_counts, supports
    except ImportError as error:
        _warn(error)
        return None
    return Kernels(supports, fill_table, step_counts)


class PagedScoring:
    """Fills aggregates with scores. Each worker has one; it remembers whether the kernels work.

    pool_kernel: the only one that the kernels are used for. Another one would compile them inside an engine step, which
    takes seconds, and no drafts would be made meanwhile.
    """

    def __init__(self, kernels: Kernels | None, pool_kernel: int) -> None:
        self.kernels = kernels
        self._pool_kernel = pool_kernel

    def fill(
        self,
        aggregate: Aggregate,
        queries: torch.Tensor,
        keys: Sequence[PagedKeys],
        formulas: Sequence[AttentionFormula],
        pool_kernel: int,
        visible: torch.Tensor | None = None,
    ) -> None:
        """Add all layers to `aggregate`. queries: [L, S, H, D]. keys, formulas: one per layer.

        visible: as in `importance.layer_scores`.
        """
        if self._fill_by_kernels(aggregate, queries, keys, formulas, pool_kernel, visible):
            return
        for of_layer, layer, (scale, soft_cap, sinks) in zip(queries, keys, formulas, strict=True):
            aggregate.add(
                layer_scores(of_layer, layer, scale, pool_kernel, soft_cap=soft_cap, sinks=sinks, visible=visible)
            )

    def _fill_by_kernels(
        self,
        aggregate: Aggregate,
        queries: torch.Tensor,
        keys: Sequence[PagedKeys],
        formulas: Sequence[AttentionFormula],
        pool_kernel: int,
        visible: torch.Tensor | None,
    ) -> bool:
        pages = [page for layer in keys if (page := layer.pages) is not None]
        caches = [page.cache for page in pages]
        with_sinks = [formula.sinks for formula in formulas if formula.sinks is not None]
        if self.kernels is None or pool_kernel != self._pool_kernel or len(pages) < len(keys):
            return False
        if 0 < len(with_sinks) < len(formulas) or len({formula[:2] for formula in formulas}) > 1:
            return False
        if caches[0].dtype != queries.dtype or not self.kernels.supports(caches, pool_kernel):
            return False
        try:
            self.kernels.fill_table(
                aggregate.table,
                queries,
                caches,
                pages[0].blocks.int(),
                formulas[0].scale,
                pool_kernel,
                soft_cap=formulas[0].soft_cap,
                sinks=torch.stack(with_sinks) if with_sinks else None,
                visible=visible,
            )
        except Exception as error:  # Triton's compiler and driver raise many kinds; a worker must not raise
            self.kernels = None
            _warn(error)
            aggregate.table.zero_()
            return False
        aggregate.complete()
        return True


def _warn(error: Exception) -> None:
    reason = (str(error).strip() or type(error).__name__).splitlines()[0]
    _log.warning("Prompts are scored by torch, slower than by the Triton kernels, which do not run here: %s", reason)
