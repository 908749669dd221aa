"""Spreads what is found at a unit over the units around it: what answers a question is seldom one sentence."""

import numpy as np
import numpy.typing as npt

REACH, LONGEST_REACH = 60.0, 250.0
"""Tokens. What is found at a unit counts 1/e as much so far away, in short and in long texts."""
REACH_SHARE = 0.02
"""The reach as a share of the text, between these bounds: the evidence of longer texts is longer."""

FAR = 1e-6
"""A share that is too small to count."""

Values = npt.NDArray[np.float64]


def spread(
    values: Values,
    lengths: npt.NDArray[np.integer],
    gaps: npt.NDArray[np.integer],
    reach: Values | None = None,
) -> Values:
    """For each unit, the sum of the values of all units, times exp(-distance / reach): as `values`.

    values: [U] or [U, T]. lengths: tokens of each unit [U]. gaps: as in TextLayout [U]. The distance of two units is
    that of their middles in tokens, and the gaps between them. reach: of each unit [U], in tokens; between two units
    the shorter one counts. None: it follows from the tokens of all units (`reach_of`).
    """
    apart = (lengths[1:] + lengths[:-1]) / 2 + gaps[1:]
    reaches = reach_of(int(lengths.sum())) if reach is None else np.minimum(reach[1:], reach[:-1])
    nearness = np.exp(-apart / reaches)
    before = _with_those_before(values, np.r_[0.0, nearness])
    after = _with_those_before(values[::-1], np.r_[0.0, nearness[::-1]])[::-1]
    return before + after - values


def reach_of(tokens: int) -> float:
    """Tokens after which what is found counts 1/e as much, in a text of so many tokens."""
    return min(LONGEST_REACH, max(REACH, REACH_SHARE * tokens))


def _with_those_before(values: Values, nearness: Values) -> Values:
    """Each value plus the ones before it, times the product of `nearness` [U] between: a scan in log2(U) steps."""
    sums, shares, step = values.astype(np.float64), nearness.copy(), 1
    while step < shares.size and shares.max() > FAR:
        factors = shares[step:] if sums.ndim == 1 else shares[step:, None]
        sums[step:] += factors * sums[:-step].copy()
        shares[step:] *= shares[:-step].copy()
        shares[:step] = 0
        step *= 2
    return sums
