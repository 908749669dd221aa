"""A measured value with its range over the rounds."""

import statistics
from collections.abc import Iterable, Mapping

_Z = 1.96


def wilson(share: float, n: int) -> tuple[float, float]:
    """The 95 % score interval of a share of n (Wilson, JASA 22, 1927).

    For mean scores between 0 and 1 it is wider than needed, because no values in [0, 1] vary more than 0 and 1.
    """
    middle = (share + _Z**2 / (2 * n)) / (1 + _Z**2 / n)
    half = _Z / (1 + _Z**2 / n) * (share * (1 - share) / n + _Z**2 / (4 * n * n)) ** 0.5
    return max(0.0, middle - half), min(1.0, middle + half)


def spread(values: Iterable[float]) -> dict[str, float]:
    """The `median`, `lowest` and `highest` of the values."""
    found = list(values)
    return {"median": statistics.median(found), "lowest": min(found), "highest": max(found)}


def in_words(value: Mapping[str, float]) -> str:
    """A spread of ratios: `1.25 (1.20 to 1.31)`."""
    return f"{value['median']:.2f} ({value['lowest']:.2f} to {value['highest']:.2f})"
