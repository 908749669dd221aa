"""The time to the first token of a case, from cases that were measured alone and with cold caches.

Quality is measured with many requests in one batch, so it cannot be timed. Some samples are timed apart. Lines through
their times give the time of every sample: the selection's over the prompt's length, by selector, and the prefill's over
the tokens that the target reads.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from evals.run.ask import Timing


@dataclass(frozen=True)
class Line:
    """seconds = base + slope * tokens, at least the smallest measured time. error: median relative deviation."""

    base: float
    slope: float
    least: float
    error: float

    @classmethod
    def through(cls, tokens: Sequence[float], seconds: Sequence[float]) -> "Line":
        """Least squares; the mean if all `tokens` are about equal."""
        x, y = np.asarray(tokens, float), np.asarray(seconds, float)
        slope, base = np.polyfit(x, y, 1) if np.ptp(x) > 0.1 * x.mean() else (0.0, y.mean())
        error = float(np.median(np.abs(base + slope * x - y) / np.maximum(y, 1e-9)))
        return cls(float(base), float(slope), float(y.min()), error)

    def at(self, tokens: float) -> float:
        """Seconds for so many tokens."""
        return max(self.least, self.base + self.slope * tokens)


UNKNOWN = Line(math.nan, math.nan, math.nan, math.nan)


class Clock:
    """Times of all cases. prefill: over tokens read. select: over tokens of the prompt, by selector.

    Without timings, all times are not a number.
    """

    def __init__(self, timings: Iterable[Timing]) -> None:
        found = list(timings)
        self.prefill, self.select = UNKNOWN, defaultdict[str, Line](lambda: UNKNOWN)
        if not found:
            return
        by_selector: dict[str, list[Timing]] = defaultdict(list)
        for timing in found:
            by_selector[timing.selector].append(timing)
        self.prefill = Line.through([t.read for t in found], [t.prefill_s for t in found])
        self.select.default_factory = None  # a selector that was not timed is a mistake
        self.select |= {
            name: Line.through([t.prompt for t in timed], [t.select_s for t in timed])
            for name, timed in by_selector.items()
        }

    def first_token(self, selector: str, prompt: int, read: int) -> float:
        """Seconds to the first token of a prompt of `prompt` tokens, of which the target reads `read`."""
        return self.select[selector].at(prompt) + self.prefill.at(read)
