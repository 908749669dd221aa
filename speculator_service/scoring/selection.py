"""Selects the prompt tokens to keep, by their importance (Speculative Prefill, arXiv 2502.02789, 3.3).

A pure function from importance to positions. It is lossy by design; everything after it is exact for the kept tokens.
"""

import math
from collections.abc import Iterable, Sequence
from fractions import Fraction

import torch

from kv_transfer.options import AUTO, SelectionOptions
from skim_common.errors import SkimError

Region = tuple[int, int, float]
"""A half-open token range, and the share of its chunks to keep."""


def select(
    importance: torch.Tensor,
    options: SelectionOptions,
    protected_spans: Iterable[tuple[int, int]] = (),
    regions: Sequence[Region] = (),
) -> tuple[torch.Tensor, float]:
    """Positions to keep (int64 [K], increasing, on CPU), and their share of the total importance (coverage).

    importance: float [M], M >= 1, finite and not negative. If all values are 0, all tokens count as equal.
    protected_spans: half-open (start, end) ranges inside the prompt that are always kept.
    regions: sorted and apart, inside the prompt. Their borders divide chunks. Of each region, the ceil(rate * chunks)
    chunks with the highest mean are kept. `options` choose among all other chunks.
    Kept are the chosen chunks, the protected spans, and the last `options.protect_last` tokens. Protected spans and
    last tokens are added to the chosen chunks; they do not reduce their number.
    Raises SkimError for importance that is not finite or is negative.
    """
    mass = _mass(importance)
    size = options.chunk_size if options.granularity == "chunk" else 1
    protected = torch.zeros(mass.numel(), dtype=torch.bool)
    for start, end in protected_spans:
        protected[start:end] = True
    protected[-options.protect_last :] = True

    starts, region_of = _chunk_starts(mass.numel(), size, regions)
    lengths = starts.diff(append=torch.tensor([mass.numel()]))
    chunk_of = torch.arange(starts.numel()).repeat_interleave(lengths)

    def sums(values: torch.Tensor) -> torch.Tensor:
        return torch.zeros(starts.numel(), dtype=torch.float64).index_add_(0, chunk_of, values)

    chosen = _choose_by_rates(sums(mass) / lengths, region_of, [rate for *_, rate in regions])
    rest = (region_of == len(regions)).nonzero().squeeze(1)
    if options.keep_rate == AUTO:
        droppable = rest[sums((~protected).double())[rest] > 0]
        chosen[droppable] = _choose_covering(sums(mass.masked_fill(protected, 0))[droppable], options)
    elif rest.numel():
        chosen[rest] = _choose_chunks(sums(mass)[rest], lengths[rest], options)
    kept = protected | chosen[chunk_of]
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


def _chunk_starts(tokens: int, size: int, regions: Sequence[Region]) -> tuple[torch.Tensor, torch.Tensor]:
    """Where chunks begin (int64 [chunks]): every `size` tokens, and at the borders of regions.

    Also the region of each chunk, int64 [chunks]; the number of regions for a chunk of none.
    """
    grid = torch.arange(0, tokens, size)
    if not regions:
        return grid, torch.zeros_like(grid)
    first, end = torch.tensor([region[:2] for region in regions]).T.contiguous()
    starts = torch.cat([grid, first, end[end < tokens]]).unique()  # sorted
    region = torch.searchsorted(end, starts, right=True)  # the first region that ends after the chunk's start
    outside = starts < torch.cat([first, torch.tensor([tokens])])[region]
    return starts, region.masked_fill(outside, len(regions))


def _choose_by_rates(means: torch.Tensor, regions: torch.Tensor, rates: Sequence[float]) -> torch.Tensor:
    """The chunks of the highest mean in each region, bool [chunks]; none of the chunks of no region.

    means: float64 [chunks]. regions: int64 [chunks], the region of each chunk. Ties go to the earlier chunk.
    """
    chunks = torch.bincount(regions, minlength=len(rates) + 1)
    counts = torch.tensor([_ceil_share(rate, int(n)) for rate, n in zip(rates, chunks, strict=False)] + [0])
    order = means.sort(descending=True, stable=True).indices
    order = order[regions[order].sort(stable=True).indices]  # by region, within a region by mean
    place = torch.arange(order.numel()) - (chunks.cumsum(0) - chunks)[regions[order]]
    chosen = torch.zeros(order.numel(), dtype=torch.bool)
    chosen[order[place < counts[regions[order]]]] = True
    return chosen


def _choose_covering(sums: torch.Tensor, options: SelectionOptions) -> torch.Tensor:
    """The chunks that `keep_rate: auto` keeps, bool [chunks]: the fewest that have the wanted share of the importance.

    sums: float64 [chunks], the importance of each chunk without its protected tokens. A chunk of protected tokens alone
    is not among them. The count is at least ceil(min_keep * chunks) and at most ceil(max_keep * chunks). So a flat
    importance, where no chunk is better than another, keeps more than a peaked one. Ties go to the earlier chunk.
    """
    chosen = torch.zeros(sums.numel(), dtype=torch.bool)
    if not sums.numel():
        return chosen
    order = sums.sort(descending=True, stable=True).indices
    reached = sums[order].cumsum(0)
    needed = int(torch.searchsorted(reached, (options.wanted_coverage or 1.0) * reached[-1])) + 1
    least, most = (_ceil_share(share, order.numel()) for share in (options.min_keep, options.largest_share))
    chosen[order[: min(max(needed, least), most)]] = True
    return chosen


def _choose_chunks(sums: torch.Tensor, lengths: torch.Tensor, options: SelectionOptions) -> torch.Tensor:
    """The chunks that the options choose, bool [chunks]. sums, lengths: their importance and their tokens.

    By keep rate: the ceil(keep_rate * chunks) chunks with the highest mean. By coverage: the fewest chunks that reach
    this share, so those with the highest sums. Ties go to the earlier chunk.
    """
    # float64 sums of equal float32 scores are exact, so chunks with equal scores tie even if their lengths differ.
    rate = options.fixed_rate
    rank = sums if rate is None else sums / lengths
    order = rank.sort(descending=True, stable=True).indices
    if rate is not None:
        count = _ceil_share(rate, sums.numel())
    else:
        reached = sums[order].cumsum(0)
        count = int(torch.searchsorted(reached, (options.coverage or 1.0) * reached[-1])) + 1
    chosen = torch.zeros(sums.numel(), dtype=torch.bool)
    chosen[order[:count]] = True
    return chosen
