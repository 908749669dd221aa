"""Which prompt tokens to keep, from how much each matters (Speculative Prefill, arXiv 2502.02789, 3.3).

Pure: one importance vector in, positions out. Lossy by design; everything else in Skim is exact about what is kept.
"""

import math
from collections.abc import Iterable
from fractions import Fraction

import torch
from torch.nn.functional import pad

from kv_transfer.errors import SkimError
from kv_transfer.messages import SelectionOptions


def select(
    importance: torch.Tensor, options: SelectionOptions, protected_spans: Iterable[tuple[int, int]] = ()
) -> tuple[torch.Tensor, float]:
    """Positions to keep (int64 [K], ascending, on CPU) and the share of the importance mass that they carry.

    importance: float [M], M >= 1, finite and not negative. All zeros say nothing, so they count as all equal.
    protected_spans: half-open (start, end) ranges inside the prompt, kept whatever their score.
    The kept set is the chunks chosen by `options`, the protected spans and the last `options.protect_last` tokens:
    the last two come on top, they do not use up the keep rate.
    Raises SkimError for importance that is not finite or is negative.
    """
    mass = importance.detach().to("cpu", torch.float64)
    wrong = int((~(torch.isfinite(mass) & (mass >= 0))).sum())
    if wrong:
        raise SkimError(
            f"{wrong} of {mass.numel()} token scores are not finite numbers from 0 up; "
            "the speculator's attention overflowed: run it in a wider dtype"
        )
    if not mass.any():
        mass = torch.ones_like(mass)
    size = options.chunk_size if options.granularity == "chunk" else 1
    kept = _choose_chunks(mass, size, options).repeat_interleave(size)[: mass.numel()]
    for start, end in protected_spans:
        kept[start:end] = True
    kept[-options.protect_last :] = True
    return kept.nonzero().squeeze(1), float(mass[kept].sum() / mass.sum())


def _choose_chunks(mass: torch.Tensor, size: int, options: SelectionOptions) -> torch.Tensor:
    """Which chunks of `size` tokens the options choose, bool [chunks]; the last chunk may be short.

    By keep rate: the ceil(keep_rate * chunks) chunks of the highest mean. By coverage: the fewest chunks whose mass
    reaches that share, so by the highest sum. Ties go to the earlier chunk.
    """
    sums = pad(mass, (0, -mass.numel() % size)).view(-1, size).sum(1)
    chunks = sums.numel()
    lengths = torch.full_like(sums, size)
    lengths[-1] = mass.numel() - (chunks - 1) * size
    # float64 sums of equal float32 scores are exact, so equal chunks stay equal whatever their length.
    rank = sums / lengths if options.coverage is None else sums
    order = rank.sort(descending=True, stable=True).indices
    if options.coverage is None:
        # In decimal, as the rate was written: in binary floats 0.07 of 100 chunks would be 7.000000000000001, hence 8.
        count = math.ceil(Fraction(str(options.keep_rate)) * chunks)
    else:
        reached = sums[order].cumsum(0)
        count = int(torch.searchsorted(reached, options.coverage * reached[-1])) + 1
    chosen = torch.zeros(chunks, dtype=torch.bool)
    chosen[order[:count]] = True
    return chosen
