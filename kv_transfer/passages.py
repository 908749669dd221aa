"""Passages: units that read on from one to the next. What answers a question is seldom one sentence alone.

Router and speculator spread what they find at one unit over the units around it. Pure.
"""

import numpy as np
import numpy.typing as npt

REACH = 60.0
"""Tokens. What is found at a unit counts 1/e as much so far away. Chosen on people's questions about meetings and
papers."""

FAR = 1e-6
"""A share that is too small to count."""

Values = npt.NDArray[np.float64]


def spread(values: Values, lengths: npt.NDArray[np.integer], gaps: npt.NDArray[np.integer]) -> Values:
    """For each unit, the sum of the values of all units, times exp(-distance / REACH): as `values`.

    values: [U] or [U, T]. lengths: tokens of each unit [U]. gaps: as in TextLayout [U]. The distance of two units is
    that of their middles in tokens, and the gaps between them.
    """
    apart = (lengths[1:] + lengths[:-1]) / 2 + gaps[1:]
    nearness = np.exp(-apart / REACH)
    before = _with_those_before(values, np.r_[0.0, nearness])
    after = _with_those_before(values[::-1], np.r_[0.0, nearness[::-1]])[::-1]
    return before + after - values


def _with_those_before(values: Values, nearness: Values) -> Values:
    """Each value plus the ones before it, times the product of `nearness` [U] between: a scan in log2(U) steps."""
    found, shares, step = values.astype(np.float64), nearness.copy(), 1
    while step < shares.size and shares.max() > FAR:
        of_before = shares[step:] if found.ndim == 1 else shares[step:, None]
        found[step:] += of_before * found[:-step].copy()
        shares[step:] *= shares[:-step].copy()
        shares[:step] = 0
        step *= 2
    return found
