"""Selects the prompt tokens to keep, by their importance (Speculative Prefill, arXiv 2502.02789, 3.3).

A pure function from importance to positions. It is lossy by design; everything after it is exact for the kept tokens.
"""

import math
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from kv_transfer.layout import NO_LAYOUT, TextLayout
from kv_transfer.options import AUTO, SelectionOptions
from skim_common.errors import SkimError
from speculator_service.selection.units import Float64Array, Int64Array, Units


def select(
    importance: npt.ArrayLike, options: SelectionOptions, layout: TextLayout = NO_LAYOUT
) -> tuple[Int64Array, float]:
    """Positions to keep (int64 [K], increasing), and their share of the total importance (coverage).

    importance: float [M]. If all values are 0, all tokens count as equal. Raises SkimError for one that is not finite
    or is negative.

    Of each region by its rate, and of all other units by `options`, those of the highest mean are chosen; ties go
    to the earlier one. Of units of text, how many are chosen follows the means, and which ones `Units.ranks`. Of chunks
    and tokens, a rate is a share of their number; of units of text, of their tokens that may be dropped (both rounded
    up; the last unit is taken whole). The borders of regions divide units. The labels that name a chosen unit come with
    it. Protected spans and the last `options.protect_last` tokens are kept in addition.
    """
    mass, regions = _checked(importance), layout.regions
    units = Units.of(mass.size, options, layout, regions)
    fixed = layout.fixed(mass.size, options.protect_last)
    droppable, droppable_mass = units.sums(~fixed), units.sums(np.where(fixed, 0, mass))
    if units.are_text:
        weights, means = droppable, droppable_mass / np.maximum(droppable, 1)
    else:
        weights, means = np.ones(droppable.size), units.sums(mass) / units.lengths
    ranks = units.ranks(means, weights > 0)
    rates = [*(rate for *_, rate in regions), options.fixed_rate or 0.0]
    chosen = _within_rates(ranks, weights, units.region, rates)
    if options.fixed_rate is None:
        rest = units.region == len(regions)
        if units.are_text or options.keep_rate == AUTO:
            rest, sums = rest & (droppable > 0), droppable_mass
        else:
            sums = units.sums(mass)
        values, order = (means, ranks) if units.are_text else (sums, sums)
        chosen[rest] = _covering(sums[rest], values[rest], order[rest], weights[rest], options)
    kept = fixed | units.each_token(chosen | units.labels_of(chosen | (weights == 0)))
    return np.flatnonzero(kept), float(mass[kept].sum() / mass.sum())


def coverage(importance: npt.ArrayLike, positions: npt.NDArray[np.integer]) -> float:
    """The share of the total importance [M] that distinct `positions` have. Raises as `select`."""
    mass = _checked(importance)
    return float(mass[positions].sum() / mass.sum())


def _checked(importance: npt.ArrayLike) -> Float64Array:
    """The importance as float64; ones if all of it is 0. Raises SkimError for values that are no scores."""
    mass = np.asarray(importance, np.float64)
    wrong = int((~(np.isfinite(mass) & (mass >= 0))).sum())
    if wrong:
        raise SkimError(
            f"{wrong} of {mass.size} token scores are not finite numbers from 0 up; "
            "the speculator's attention overflowed: run it in a wider dtype"
        )
    return mass if mass.any() else np.ones_like(mass)


def _ceil_share(share: float, count: int) -> int:
    """`share` of `count`, rounded up in decimal, as the user wrote it: in binary, 0.07 * 100 rounds up to 8."""
    return math.ceil(Fraction(str(share)) * count)


def _within_rates(
    ranks: Float64Array, weights: Float64Array, regions: Int64Array, rates: list[float]
) -> npt.NDArray[np.bool_]:
    """The first units of each region in the order of `ranks`, bool [U], until they have its rate of its weight.

    regions: int64 [U], the region of each unit. A unit of weight 0 is not chosen. Ties go to the earlier.
    """
    totals = np.bincount(regions, weights, minlength=len(rates))
    budgets = np.array([_ceil_share(rate, int(total)) for rate, total in zip(rates, totals, strict=True)])
    order = np.lexsort((-ranks, regions))  # by region, within a region by rank
    of_region, weight = regions[order], weights[order]
    before = np.cumsum(weight) - weight - (np.cumsum(totals) - totals)[of_region]
    chosen = np.zeros(order.size, bool)
    chosen[order[(before < budgets[of_region]) & (weight > 0)]] = True
    return chosen


def _covering(
    sums: Float64Array, values: Float64Array, ranks: Float64Array, weights: Float64Array, options: SelectionOptions
) -> npt.NDArray[np.bool_]:
    """The first units in the order of `ranks` that weigh as much as the first in the order of `values` that have the
    wanted share of the importance, bool [U]. Ties go to the earlier; the last one counts whole.

    sums, weights: float64 [U], the importance of each unit, and what it weighs. With `keep_rate: auto`, the units weigh
    at least `min_keep` and at most `max_keep` of all, rounded up.
    """
    chosen = np.zeros(sums.size, bool)
    if not sums.size:
        return chosen
    order = np.argsort(-values, kind="stable")
    # Sums of equal float32 scores in float64 are exact, so chunks with equal scores tie even if their lengths differ.
    reached = np.cumsum(sums[order])
    count = int(np.searchsorted(reached, (options.wanted_coverage or 1.0) * reached[-1])) + 1
    if options.keep_rate == AUTO:
        before = np.cumsum(weights[order]) - weights[order]
        total = int(weights.sum())
        least, most = (
            int((before < _ceil_share(share, total)).sum()) for share in (options.min_keep, options.largest_share)
        )
        count = min(max(count, least), most)
    wanted = weights[order[:count]].sum()
    order = np.argsort(-ranks, kind="stable")
    chosen[order[np.cumsum(weights[order]) - weights[order] < wanted]] = True
    return chosen
