"""The search for a server's saturation rate, the largest one at which it still meets its objective. No server here."""

from collections.abc import Sequence
from dataclasses import dataclass

SHARE = 0.9
"""Share of the requests that must meet the objective."""

STEP = 1.6
"""Factor between rates until one rate holds and a larger one does not."""


@dataclass(frozen=True, slots=True)
class Point:
    """One rate that was tried. rate: requests per second. share: part of them within the objective, 0 to 1."""

    rate: float
    share: float

    @property
    def holds(self) -> bool:
        return self.share >= SHARE


def saturation_rate(points: Sequence[Point]) -> float | None:
    """The largest tried rate that holds; None if none does."""
    return max((point.rate for point in points if point.holds), default=None)


def breaks_at(points: Sequence[Point]) -> float | None:
    """The smallest tried rate above the saturation rate; it does not hold. None if no larger rate was tried."""
    edge = saturation_rate(points) or 0.0
    return min((point.rate for point in points if point.rate > edge), default=None)


def next_rate(points: Sequence[Point], first: float) -> float:
    """The rate to try next: first `first`, then up or down by STEP until that rate lies between two.

    From then on it is the geometric mean of those two, because rates are compared by their ratios.
    """
    if not points:
        return first
    low, high = saturation_rate(points), breaks_at(points)
    if low is None:
        return min(point.rate for point in points) / STEP
    if high is None:
        return low * STEP
    return (low * high) ** 0.5
