"""Selects the prompt tokens to keep, by their importance (Speculative Prefill, arXiv 2502.02789, 3.3).

A pure function from importance to positions. It is lossy by design; everything after it is exact for the kept tokens.
"""

import math
from collections.abc import Sequence
from fractions import Fraction

import torch

from kv_transfer.layout import NO_LAYOUT, TextLayout
from kv_transfer.options import AUTO, SelectionOptions
from skim_common.errors import SkimError
from speculator_service.scoring.units import Units, text_ranks, with_labels

Region = tuple[int, int, float]
"""A half-open token range, and how much of it to keep."""


def select(
    importance: torch.Tensor, options: SelectionOptions, layout: TextLayout = NO_LAYOUT
) -> tuple[torch.Tensor, float]:
    """Positions to keep (int64 [K], increasing, on CPU), and their share of the total importance (coverage).

    importance: float [M], M >= 1, finite and not negative. If all values are 0, all tokens count as equal.
    layout: of the prompt. `options.granularity` text chooses from its units; without them it chooses chunks. The
    borders of regions with a rate of their own divide units.

    Of each region by its rate, and of all other units by `options`, those of the highest mean are chosen; ties go
    to the earlier one. Of units of text, how many are chosen follows the means, and which ones
    `units.text_ranks`. Of chunks and tokens, a rate is a share of their number (rounded up). Of units of text, it
    is a share of their tokens that may be dropped (rounded up): units are taken until they have as many; the last
    one is taken whole. The labels that name a chosen unit count with it and come with it (`units.with_labels`), also
    out of a region with another rate.
    Kept are the chosen units, the protected spans, and the last `options.protect_last` tokens. Protected spans and last
    tokens are added to the chosen units; they do not reduce their number.
    Raises SkimError for importance that is not finite or is negative.
    """
    mass = _mass(importance)
    by_text, regions = options.granularity == "text" and layout.units.size > 0, layout.regions
    protected = torch.from_numpy(layout.fixed(mass.numel(), options.protect_last))

    cuts = torch.from_numpy(Units.of(mass.numel(), options, layout).starts)
    starts, region_of = _unit_starts(mass.numel(), cuts, regions)
    lengths = starts.diff(append=torch.tensor([mass.numel()]))
    unit_of = torch.arange(starts.numel()).repeat_interleave(lengths)

    def sums(values: torch.Tensor) -> torch.Tensor:
        return torch.zeros(starts.numel(), dtype=torch.float64).index_add_(0, unit_of, values)

    may_drop = sums((~protected).double())
    droppable_mass = sums(mass.masked_fill(protected, 0))
    if by_text:
        weights, means = may_drop, droppable_mass / may_drop.clamp(min=1)
    else:
        weights, means = torch.ones_like(may_drop), sums(mass) / lengths
    ranks = means
    # A region may divide a unit.
    unit = torch.searchsorted(torch.from_numpy(layout.units).long(), starts, right=True) - 1
    if by_text and layout.indents.size:
        of_text = unit.numpy(), layout.indents, layout.links
        ranks = torch.from_numpy(text_ranks(means.numpy(), *of_text, (starts + lengths).numpy(), (weights > 0).numpy()))
    labelled = by_text and layout.headings.size > 0
    if labelled:
        ranks = torch.from_numpy(with_labels(ranks.numpy(), unit.numpy(), layout.headings, (weights > 0).numpy()))
    rates = [*(rate for *_, rate in regions), options.fixed_rate or 0.0]
    chosen = _choose_by_rates(ranks, weights, region_of, rates)
    rest = (region_of == len(regions)).nonzero().squeeze(1)
    if options.keep_rate == AUTO or (by_text and options.fixed_rate is None):
        rest = rest[may_drop[rest] > 0]
        values, order = (means, ranks) if by_text else (droppable_mass, droppable_mass)
        chosen[rest] = _choose_covering(droppable_mass[rest], values[rest], order[rest], weights[rest], options)
    elif options.fixed_rate is None and rest.numel():
        chosen[rest] = _choose_fewest(sums(mass)[rest], options.coverage or 1.0)
    if labelled:
        taken = torch.zeros(layout.units.size, dtype=torch.bool)
        taken[unit[chosen | (weights == 0)]] = True
        chosen |= torch.from_numpy(layout.labels_of(taken.numpy()))[unit]
    kept = protected | chosen[unit_of]
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


def _ceil_share(share: float, count: int) -> int:
    """`share` of `count`, rounded up in decimal, as the user wrote it: in binary, 0.07 * 100 rounds up to 8."""
    return math.ceil(Fraction(str(share)) * count)


def _unit_starts(tokens: int, cuts: torch.Tensor, regions: Sequence[Region]) -> tuple[torch.Tensor, torch.Tensor]:
    """Where units begin (int64 [U]): at `cuts` [C], and at the borders of regions.

    Also the region of each unit, int64 [U]; the number of regions for a unit of none.
    """
    if not regions:
        return cuts, torch.zeros_like(cuts)
    first, end = torch.tensor([region[:2] for region in regions]).T.contiguous()
    starts = torch.cat([cuts, first, end[end < tokens]]).unique()  # sorted
    region = torch.searchsorted(end, starts, right=True)  # the first region that ends after the unit's start
    outside = starts < torch.cat([first, torch.tensor([tokens])])[region]
    return starts, region.masked_fill(outside, len(regions))


def _choose_by_rates(
    means: torch.Tensor, weights: torch.Tensor, regions: torch.Tensor, rates: Sequence[float]
) -> torch.Tensor:
    """The units of the highest mean in each region, bool [U], until they have its rate of the region's weight.

    means, weights: float64 [U]. regions: int64 [U], the region of each unit. A unit of weight 0 is not chosen.
    """
    totals = torch.bincount(regions, weights, minlength=len(rates))
    budgets = torch.tensor([_ceil_share(rate, int(total)) for rate, total in zip(rates, totals, strict=True)])
    order = means.sort(descending=True, stable=True).indices
    order = order[regions[order].sort(stable=True).indices]  # by region, within a region by mean
    in_region = regions[order]
    before = weights[order].cumsum(0) - weights[order] - (totals.cumsum(0) - totals)[in_region]
    chosen = torch.zeros(order.numel(), dtype=torch.bool)
    chosen[order[(before < budgets[in_region]) & (weights[order] > 0)]] = True
    return chosen


def _choose_covering(
    sums: torch.Tensor, values: torch.Tensor, ranks: torch.Tensor, weights: torch.Tensor, options: SelectionOptions
) -> torch.Tensor:
    """The first units in the order of `ranks` that weigh as much as the first in the order of `values` that have the
    wanted share of the importance, bool [U]. Ties go to the earlier; the last one counts whole.

    sums, weights: float64 [U], the importance of what may be dropped of each unit, and what it weighs. With
    `keep_rate: auto`, they weigh at least `min_keep` and at most `max_keep` of all, rounded up. So a flat importance,
    where no unit is better than another, keeps more than a peaked one.
    """
    chosen = torch.zeros(sums.numel(), dtype=torch.bool)
    if not sums.numel():
        return chosen
    order = values.sort(descending=True, stable=True).indices
    reached = sums[order].cumsum(0)
    count = int(torch.searchsorted(reached, (options.wanted_coverage or 1.0) * reached[-1])) + 1
    if options.keep_rate == AUTO:
        before = weights[order].cumsum(0) - weights[order]
        total = int(weights.sum())
        least, most = (
            int((before < _ceil_share(share, total)).sum()) for share in (options.min_keep, options.largest_share)
        )
        count = min(max(count, least), most)
    wanted = weights[order[:count]].sum()
    order = ranks.sort(descending=True, stable=True).indices
    chosen[order[weights[order].cumsum(0) - weights[order] < wanted]] = True
    return chosen


def _choose_fewest(sums: torch.Tensor, share: float) -> torch.Tensor:
    """The fewest units with this share of the importance, bool [U]. sums: their importance. Ties go to the earlier."""
    # float64 sums of equal float32 scores are exact, so chunks with equal scores tie even if their lengths differ.
    order = sums.sort(descending=True, stable=True).indices
    reached = sums[order].cumsum(0)
    chosen = torch.zeros(sums.numel(), dtype=torch.bool)
    chosen[order[: int(torch.searchsorted(reached, share * reached[-1])) + 1]] = True
    return chosen
