"""How many drafts each request of a batch gets, so that the batch decodes the most tokens per second.

All requests of the batch wait for the exchange with the drafters and for a longer verification. For each largest count
K from 0 to the maximum, a request gets a draft, up to K, if its expected tokens are worth more than its share of the
verification. The smallest K with the most tokens per second is used. Some steps use another K, to measure again
(probes).
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Float64Array = npt.NDArray[np.float64]
Int64Array = npt.NDArray[np.int64]

FIRST_RATE = 0.7
"""The assumed acceptance at every position, until drafts were verified."""

PRIOR_DRAFTS = 16.0
"""The rates of all requests count as so many drafts of a request, FIRST_RATE as a fourth of it."""

DECAY = 0.97
"""What a request's earlier drafts keep when a draft is verified: about the last 33 count. The drafts of all requests
keep DECAY ** (1 / 4), so that chance does not stop drafts that pay."""

WEIGHT = 0.1
"""Of a new time. The first ones weigh more, so that their mean is reached at once."""

PROBE_SHARE = 0.005
"""The share of the decoding time that probes may lose, by estimates before and measurements after them."""

REST = 8
"""Steps without drafts, after drafts did not pay, until the counts are chosen again. A choice takes time, too."""


class PositionAcceptance:
    """For each position, the share of the drafts that were accepted when all drafts before them were accepted.

    prior: of a request, the rates of all requests of the worker, whose prior is FIRST_RATE. Later changes of it count.
    """

    def __init__(self, most: int, prior: "PositionAcceptance | None" = None) -> None:
        self._prior = prior
        self._decay = DECAY if prior else DECAY**0.25
        self._tried, self._accepted = np.zeros(most), np.zeros(most)

    @property
    def rates(self) -> Float64Array:
        """float64 [most], in [0, 1]."""
        prior, weight = (self._prior.rates, PRIOR_DRAFTS) if self._prior else (FIRST_RATE, PRIOR_DRAFTS / 4)
        return np.asarray((self._accepted + weight * prior) / (self._tried + weight), np.float64)

    @property
    def expected(self) -> Float64Array:
        """float64 [most]: the probability that a draft and all before it are accepted (arXiv 2211.17192, 3.1)."""
        return np.cumprod(self.rates, dtype=np.float64)

    def observe(self, drafts: int, accepted: int) -> None:
        """Record a verification of `drafts` > 0 drafts. Drafts after the first rejected one do not count."""
        tried = min(accepted + 1, drafts)
        self._tried[:tried] = self._decay * self._tried[:tried] + 1
        self._accepted[:tried] *= self._decay
        self._accepted[:accepted] += 1


@dataclass(slots=True)
class Line:
    """Seconds, base + slope * x, both >= 0, fitted to noisy values one at a time (normalised least mean squares).

    A value at x = 0 changes the base only. at_zero, elsewhere: number of values at x = 0 and at x > 0.
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
        self.at_zero, self.elsewhere = self.at_zero + (not x), self.elsewhere + bool(x)
        if first:
            # One value does not determine a line. Half of the value is attributed to each part.
            self.base, self.slope = (value / 2, value / 2 / x) if x else (value, 0.0)
            return
        weight = max(WEIGHT, 1 / (1 + (self.elsewhere if x else self.at_zero)))
        share = weight * (value - self.at(x)) / (1 + x * x)
        self.base, self.slope = max(self.base + share, 0.0), max(self.slope + share * x, 0.0)


class DraftCounts:
    """The choice of the draft counts, at most `most`, in each step of a worker.

    step: seconds of a decode step, by the mean number of drafts per request of the batch; without the exchange.
    exchange: seconds that a step waits for drafts, by the largest draft count in it.
    """

    def __init__(self, most: int) -> None:
        self.step, self.exchange = Line(), Line()
        self._most = most
        self._connected = False
        self._rest = 0  # steps
        self._allowance = 0.0  # seconds that the next probe may lose
        self._planned_wait: float | None = None  # of the exchange of a probe
        self._last_probe = most

    def rest(self) -> bool:
        """Whether the next step has no drafts, because drafts did not pay a few steps ago. Call it once per step."""
        self._rest = max(self._rest - 1, 0)
        return self._rest > 0

    def choose(self, expected: Float64Array, limits: Int64Array, rows: int) -> Int64Array:
        """The draft count of each request for the next step, int64 [requests]. expected: [requests, most]. limits:
        [requests]. rows: requests in the batch, with those that get no drafts.
        """
        self._planned_wait = None
        allowed: Int64Array = np.minimum(limits, self._most)
        if not (self.step.at_zero and self.exchange.elsewhere):
            # A step without drafts is the first to be measured, then an exchange.
            return allowed * int(self.step.at_zero > 0)
        worth = np.minimum(allowed, (expected * self.step.base > self.step.slope).sum(axis=1))
        plans: list[Int64Array] = [np.minimum(worth, k) for k in range(self._most + 1)]
        speeds = [self._tokens(plan, expected, rows) / self._seconds(plan, rows) for plan in plans]
        best = int(np.argmax(speeds))
        # No drafts or the most drafts, in turns, but not the count that is used anyway.
        probe = {0: self._most, self._most: 0}.get(best, 0 if self._last_probe else self._most)
        plan = np.minimum(allowed, probe)
        lost = self._seconds(plan, rows) - self._tokens(plan, expected, rows) / speeds[best]
        if lost > self._allowance:
            self._rest = 0 if best else REST
            return plans[best]
        self._allowance, self._last_probe = 0.0, probe
        self._planned_wait = self.exchange.at(probe) if probe else None
        return plan

    def _tokens(self, plan: Int64Array, expected: Float64Array, rows: int) -> float:
        """Expected tokens of a step: one for each request of the batch, and the accepted drafts."""
        return rows + float(expected[np.arange(self._most) < plan[:, None]].sum())

    def _seconds(self, plan: Int64Array, rows: int) -> float:
        largest = int(plan.max(initial=0))
        return max(self.step.at(int(plan.sum()) / rows) + (self.exchange.at(largest) if largest else 0.0), 1e-6)

    def exchanged(self, largest: int, seconds: float, *, drafted: bool) -> None:
        """An exchange took `seconds`. largest: the largest count that was asked for, > 0. drafted: drafts came."""
        # The first exchange also connects. One that failed at once does not show what drafts cost.
        if self._connected if drafted else seconds > self.exchange.at(largest):
            self.exchange.observe(largest, seconds)
        self._connected |= drafted
        if self._planned_wait is not None:
            self._allowance -= max(seconds - self._planned_wait, 0.0)

    def stepped(self, drafts: int, rows: int, seconds: float) -> None:
        """A decode step of `rows` requests with `drafts` drafts took `seconds`, without its exchange. One that other
        work on the machine has interrupted counts at most as twice the usual."""
        usual = self.step.at(drafts / rows)
        self.step.observe(drafts / rows, min(seconds, 2 * usual) if usual else seconds)
        self._allowance += PROBE_SHARE * seconds

    def costs(self) -> dict[str, float]:
        """In plain steps; 0 before both lines were measured: an exchange without drafts, and one more draft for each
        request."""
        plain = max(self.step.base, 1e-6) if self.step.at_zero and self.exchange.elsewhere else float("inf")
        return {
            "cost_per_exchange": self.exchange.base / plain,
            "cost_per_draft": (self.exchange.slope + self.step.slope) / plain,
        }
