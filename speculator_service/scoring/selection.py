"""Selects the prompt tokens to keep, by their importance (Speculative Prefill, arXiv 2502.02789, 3.3).

A pure function from importance to positions. It is lossy by design; everything after it is exact for the kept tokens.
"""

import math
from collections.abc import Iterable
from fractions import Fraction

import torch
from torch.nn.functional import pad

from kv_transfer.errors import SkimError
from kv_transfer.options import SelectionOptions


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
    kept = _choose_chunks(mass, size, options).repeat_interleave(size)[: mass.numel()]
    for start, end in protected_spans:
        kept[start:end] = True
    kept[-options.protect_last :] = True
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
    rank = sums / lengths if options.coverage is None else sums
    order = rank.sort(descending=True, stable=True).indices
    if options.coverage is None:
        # In decimal, as the user wrote the rate: in binary, 0.07 * 100 is 7.000000000000001, which rounds up to 8.
        count = math.ceil(Fraction(str(options.keep_rate)) * chunks)
    else:
        reached = sums[order].cumsum(0)
        count = int(torch.searchsorted(reached, options.coverage * reached[-1])) + 1
    chosen = torch.zeros(chunks, dtype=torch.bool)
    chosen[order[:count]] = True
    return chosen
