"""Bootstrap intervals of mean scores and of paired differences (Efron, 1979; percentile intervals)."""

from collections.abc import Mapping, Sequence

import numpy as np

ROUNDS = 4000
SEED = 0
Interval = tuple[float, float, float]
"""Mean, and the lower and upper end of the 95 % interval."""


def of_mean(values: Sequence[float]) -> Interval:
    """The mean of values, or of paired differences, resampled by sample."""
    return of_families({"": values})


def of_families(values: Mapping[str, Sequence[float]]) -> Interval:
    """The mean of the families' means. Samples are drawn anew within each family, so each family counts once."""
    rng = np.random.default_rng(SEED)
    drawn, means = np.zeros(ROUNDS), []
    for found in values.values():
        array = np.asarray(found, float)
        means.append(array.mean())
        drawn += array[rng.integers(0, array.size, (ROUNDS, array.size))].mean(1)
    low, high = np.quantile(drawn / len(values), (0.025, 0.975))
    return float(np.mean(means)), float(low), float(high)


def of_clusters(values: Mapping[str, Sequence[Sequence[float]]]) -> Interval:
    """As `of_families`, but clusters of samples are drawn anew: samples of one cluster are not independent."""
    rng = np.random.default_rng(SEED)
    drawn, means = np.zeros(ROUNDS), []
    for clusters in values.values():
        sums, sizes = (np.array([of(one) for one in clusters], float) for of in (sum, len))
        means.append(sums.sum() / sizes.sum())
        picked = rng.integers(0, sums.size, (ROUNDS, sums.size))
        drawn += sums[picked].sum(1) / sizes[picked].sum(1)
    low, high = np.quantile(drawn / len(values), (0.025, 0.975))
    return float(np.mean(means)), float(low), float(high)
