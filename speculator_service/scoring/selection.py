"""Selects the prompt tokens to keep, by their importance (Speculative Prefill, arXiv 2502.02789, 3.3).

A pure function from importance to positions. It is lossy by design; everything after it is exact for the kept tokens.
"""

import math
from collections.abc import Iterable
from fractions import Fraction

import torch
from torch.nn.functional import pad

from kv_transfer.errors import SkimError
from kv_transfer.options import AUTO, SelectionOptions


def select(
    importance: torch.Tensor, options: SelectionOptions, protected_spans: Iterable[tuple[int, int]] = ()
) -> tuple[torch.Tensor, float]:
    """Positions to keep (int64 [K], increasing, on CPU), and their share of the total importance (coverage).

    importance: float [M], M >= 1, finite and not negative. If all values are 0, all tokens count as equal.
    protected_spans: half-open (start, end) ranges inside the prompt that are always kept.
    Kept are the chunks chosen by `options`, the protected spans, and the last `options.protect_last` tokens. Spans and
    last tokens are added to the chosen chunks; they do not reduce their number.
    Raises SkimError for importance that is not finite or is negative.
    """
    mass = _mass(importance)
    size = options.chunk_size if options.granularity == "chunk" else 1
    protected = torch.zeros(mass.numel(), dtype=torch.bool)
    for start, end in protected_spans:
        protected[start:end] = True
    protected[-options.protect_last :] = True
    if options.keep_rate == AUTO:
        chosen = _choose_covering(mass.masked_fill(protected, 0), ~protected, size, options)
    else:
        chosen = _choose_chunks(mass, size, options)
    kept = protected | chosen.repeat_interleave(size)[: mass.numel()]
    return kept.nonzero().squeeze(1), float(mass[kept].sum() / mass.sum())


def coverage(importance: torch.Tensor, positions: torch.Tensor) -> float:
    """The share of the total importance [M] that distinct `positions` have. Raises as `select`."""
    mass = _mass(importance)
    return float(mass[positions].sum() / mass.sum())


def _mass(importance: torch.Tensor) -> torch.Tensor:
    """The importance as float64 on CPU; ones if all of it is 0. Raises SkimError for values that are no scores."""
    mass = importance.detach().to("cpu", torch.float64)
    wrong = int((~(torch.isfinite(mass) & (mass >= 0))).sum())
    if wrong:
        raise SkimError(
            f"{wrong} of {mass.numel()} token scores are not finite numbers from 0 up; "
            "the speculator's attention overflowed: run it in a wider dtype"
        )
    return mass if mass.any() else torch.ones_like(mass)


def _ceil_share(share: float, chunks: int) -> int:
    """`share` of `chunks`, rounded up in decimal, as the user wrote it: in binary, 0.07 * 100 rounds up to 8."""
    return math.ceil(Fraction(str(share)) * chunks)


def _choose_covering(mass: torch.Tensor, free: torch.Tensor, size: int, options: SelectionOptions) -> torch.Tensor:
    """The chunks that `keep_rate: auto` keeps, bool [chunks]: the fewest that have the wanted share of the importance.

    mass: [M], 0 for protected tokens. free: bool [M], the tokens that may be dropped; a chunk without one is not
    counted. The count is at least ceil(min_keep * chunks) and at most ceil(max_keep * chunks). So a flat importance,
    where no chunk is better than another, keeps more than a peaked one. Ties go to the earlier chunk.
    """
    sums, droppable = (pad(part, (0, -part.numel() % size)).view(-1, size).sum(1) for part in (mass, free.double()))
    candidates = (droppable > 0).nonzero().squeeze(1)
    chosen = torch.zeros(sums.numel(), dtype=torch.bool)
    if not candidates.numel():
        return chosen
    order = candidates[sums[candidates].sort(descending=True, stable=True).indices]
    reached = sums[order].cumsum(0)
    needed = int(torch.searchsorted(reached, (options.wanted_coverage or 1.0) * reached[-1])) + 1
    least, most = (_ceil_share(share, order.numel()) for share in (options.min_keep, options.largest_share))
    chosen[order[: min(max(needed, least), most)]] = True
    return chosen


def _choose_chunks(mass: torch.Tensor, size: int, options: SelectionOptions) -> torch.Tensor:
    """The chunks of `size` tokens that the options choose, bool [chunks]; the last chunk may be shorter.

    By keep rate: the ceil(keep_rate * chunks) chunks with the highest mean. By coverage: the fewest chunks that reach
    this share, so those with the highest sums. Ties go to the earlier chunk.
    """
    sums = pad(mass, (0, -mass.numel() % size)).view(-1, size).sum(1)
    chunks = sums.numel()
    lengths = torch.full_like(sums, size)
    lengths[-1] = mass.numel() - (chunks - 1) * size
    # float64 sums of equal float32 scores are exact, so chunks with equal scores tie even if their lengths differ.
    rate = options.fixed_rate
    rank = sums if rate is None else sums / lengths
    order = rank.sort(descending=True, stable=True).indices
    if rate is not None:
        count = _ceil_share(rate, chunks)
    else:
        reached = sums[order].cumsum(0)
        count = int(torch.searchsorted(reached, (options.coverage or 1.0) * reached[-1])) + 1
    chosen = torch.zeros(chunks, dtype=torch.bool)
    chosen[order[:count]] = True
    return chosen
