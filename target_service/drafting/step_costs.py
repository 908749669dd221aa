"""The measured costs of decode steps, of drafts and of exchanges with the drafters, in seconds."""

from dataclasses import dataclass, field

WEIGHT = 0.1
"""The weight of a new value. The first values weigh more, so that their mean is reached at once."""


@dataclass(slots=True)
class Line:
    """base + slope * x, fitted to noisy values one at a time (normalised least mean squares). Both are >= 0.

    A value at x = 0 changes the base only. So the slope is not forgotten while x stays 0. at_zero, elsewhere: number of
    values at x = 0 and at x > 0.
    """

    base: float = 0.0
    slope: float = 0.0
    at_zero: int = 0
    elsewhere: int = 0

    def at(self, x: float) -> float:
        return self.base + self.slope * x

    def observe(self, x: float, value: float) -> None:
        """Record a value >= 0 measured at x >= 0."""
        first = not self.at_zero + self.elsewhere
        if x:
            self.elsewhere += 1
        else:
            self.at_zero += 1
        if first:
            # One value does not determine a line. Half of the value is attributed to each part.
            self.base, self.slope = (value / 2, value / 2 / x) if x else (value, 0.0)
            return
        weight = max(WEIGHT, 1 / (1 + (self.elsewhere if x else self.at_zero)))
        share = weight * (value - self.at(x)) / (1 + x * x)
        self.base, self.slope = max(self.base + share, 0.0), max(self.slope + share * x, 0.0)


@dataclass(slots=True)
class StepCosts:
    """step: seconds of a decode step, by the mean number of drafts per request of the batch; without the exchange.

    exchange: seconds that a step waits for drafts, by the largest draft count in it.
    """

    step: Line = field(default_factory=Line)
    exchange: Line = field(default_factory=Line)

    @property
    def measured(self) -> bool:
        return self.step.at_zero > 0 and self.exchange.elsewhere > 0

    def observe_step(self, drafts: int, rows: int, seconds: float) -> None:
        """Record a step. One that was interrupted by other work on the machine counts at most as twice the usual."""
        x = drafts / rows
        usual = self.step.at(x)
        self.step.observe(x, min(seconds, 2 * usual) if usual else seconds)

    def seconds(self, drafts: int, rows: int, largest: int) -> float:
        """A step with `drafts` drafts for a batch of `rows` requests, at least a microsecond. largest: the largest
        count of one request.
        """
        return max(self.step.at(drafts / rows) + (self.exchange.at(largest) if largest else 0.0), 1e-6)

    def in_plain_steps(self) -> dict[str, float]:
        """cost_per_exchange: an exchange without drafts. cost_per_draft: one more draft for each request. 0 before
        both were measured.
        """
        plain = max(self.step.base, 1e-6) if self.measured else float("inf")
        return {
            "cost_per_exchange": self.exchange.base / plain,
            "cost_per_draft": (self.exchange.slope + self.step.slope) / plain,
        }
