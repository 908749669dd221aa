"""Kinds of prompts: how wrong the forecasts of each were, and when the mode that is not chosen is tried. Pure.

A forecast follows from sizes and speeds. What it leaves out is alike for prompts of one kind, so their real times
correct the next forecast. A mode that is never run is never corrected. So the forecast of the other mode could be wrong
for ever; therefore it is tried now and then.
"""

import math
import statistics
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from cachetools import LRUCache

from router.decision.choice import MODES, Decision, Estimate, Mode

Kind = tuple[str | int, ...]
"""How the prompt is read, if at all, whether an adapter answers, its length as a power of four, and which halves of it
are known and protected: few, so that each has been seen soon."""

TRIAL = 32
"""If both forecasts are equal, one of so many prompts of a kind tries the other mode; if that one's is n times as long,
one of n times as many. So trials add less than 1/32 (3 %) to the times of a kind, however wrong or right it is."""
KINDS = 1024
"""So many kinds are remembered."""
LATEST = 4
"""Times of each kind and mode that count."""
RIGHT = math.log(1.25)
"""A smaller error is noise, and is not corrected."""
MOST = 4.0
"""The largest correction by one time, and the inverse of the smallest."""


@dataclass(slots=True)
class _Seen:
    """waited: by mode, milliseconds of prompts that ran in the other one since. errors: by mode, the logarithms of the
    latest real times divided by their forecasts."""

    waited: dict[Mode, float] = field(default_factory=lambda: dict.fromkeys(MODES, 0.0))
    errors: dict[Mode, deque[float]] = field(default_factory=lambda: {mode: deque(maxlen=LATEST) for mode in MODES})


class Kinds:
    """What one router has seen of each kind."""

    def __init__(self) -> None:
        self._seen: LRUCache[Kind, _Seen] = LRUCache(KINDS)

    def corrections(self, kind: Kind) -> Mapping[Mode, float]:
        """By what the forecast of each mode is multiplied: the median of its latest errors, unless that is noise."""
        seen = self._seen.get(kind)
        return {mode: _factor(seen.errors[mode]) if seen else 1.0 for mode in MODES}

    def measured(self, kind: Kind, mode: Mode, forecast_ms: float | None, ms: float) -> None:
        """A prompt ran. forecast_ms: of its computing, without a correction, by what its own times have taught; None:
        not known. ms: what it took."""
        seen = self._seen.setdefault(kind, _Seen())
        other: Mode = "dense" if mode == "speculative" else "speculative"
        seen.waited[mode] = 0.0
        seen.waited[other] += ms
        if forecast_ms:
            error = math.log(max(ms, 1e-3) / forecast_ms)
            seen.errors[mode].append(min(math.log(MOST), max(-math.log(MOST), error)))

    def tried(self, kind: Kind, decision: Decision, estimate: Estimate, before: Mode | None) -> Decision:
        """The decision, or that for the other mode (`probe`) if it is time for it.

        A conversation that began speculative does not try dense: all of its next turns would be another kind. before:
        as in `choice.sooner`.
        """
        other: Mode = "dense" if decision.speculative else "speculative"
        seen = self._seen.get(kind)
        if seen is None or decision.reason == "probe" or (other == "dense" and before == "speculative"):
            return decision
        costs = estimate.of(other) + (estimate.later if other == "speculative" else max(0.0, estimate.burden))
        if seen.waited[other] < TRIAL * costs:
            return decision
        seen.waited[other] = 0.0  # of the prompts that arrive together, one tries it
        return Decision(other == "speculative", "probe")


def _factor(errors: deque[float]) -> float:
    middle = statistics.median(errors) if errors else 0.0
    return math.exp(middle) if abs(middle) > RIGHT else 1.0
