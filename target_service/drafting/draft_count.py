"""Chooses how many drafts each request of a batch gets, so that the batch decodes the most tokens per second.

A request gains tokens by the acceptance of its drafts. The whole batch pays: all of its requests wait for the exchange
with the drafters, and for a longer verification. So the counts of a step are chosen together:

1. For each largest count K from 0 to the maximum: a request gets a draft, up to K, if the draft's expected tokens are
   worth more than its share of the verification. This gives the tokens and the seconds of such a step.
2. The K with the most tokens per second is used. K = 0 means no drafts; it is used if several are equal.
3. Some steps use another K, to measure costs and acceptance again (probes). The time that they lose is estimated before
   and measured afterwards. By these estimates, probes lose at most PROBE_SHARE of the decoding time.

All costs and rates are measured in the running system (`step_costs`, `acceptance`).
"""

import numpy as np
import numpy.typing as npt

from target_service.drafting.acceptance import Float64Array
from target_service.drafting.step_costs import StepCosts

PROBE_SHARE = 0.005
"""The share of the decoding time that probes may lose."""

REST = 8
"""Steps without drafts, after drafts did not pay, until the counts are chosen again. A choice takes time, too."""

Int64Array = npt.NDArray[np.int64]


class DraftCounts:
    """The choice of the draft counts in each step of a worker. most: the largest count."""

    def __init__(self, most: int) -> None:
        self.costs = StepCosts()
        self._most = most
        self._allowance = 0.0  # seconds that the next probe may lose
        self._planned_wait: float | None = None  # of the exchange of a probe
        self._last_probe = most
        self._connected = False
        self._rest = 0  # steps

    def rest(self) -> bool:
        """Whether the next step has no drafts, because drafts did not pay a few steps ago. Call it once per step."""
        self._rest = max(self._rest - 1, 0)
        return self._rest > 0

    def choose(self, expected: Float64Array, limits: Int64Array, rows: int) -> Int64Array:
        """The draft count of each request for the next step, int64 [requests].

        expected: [requests, most], `PositionAcceptance.expected`. limits: [requests], the largest allowed counts. rows:
        requests in the batch, with those that get no drafts.
        """
        self._planned_wait = None
        allowed: Int64Array = np.minimum(limits, self._most)
        if not self.costs.measured:
            # A step without drafts is the first to be measured, then an exchange.
            return allowed * int(self.costs.step.at_zero > 0)
        worth = (expected * self.costs.step.base > self.costs.step.slope).sum(axis=1)
        plans: list[Int64Array] = [np.minimum(np.minimum(allowed, worth), k) for k in range(self._most + 1)]
        rates = [self._tokens(plan, expected, rows) / self._seconds(plan, rows) for plan in plans]
        best = int(np.argmax(rates))
        probe = self._next_probe(best)
        plan = np.minimum(allowed, probe)
        lost = self._seconds(plan, rows) - self._tokens(plan, expected, rows) / rates[best]
        if lost > self._allowance:
            self._rest = 0 if best else REST
            return plans[best]
        self._allowance, self._last_probe = 0.0, probe
        self._planned_wait = self.costs.exchange.at(probe) if probe else None
        return plan

    def exchanged(self, largest: int, seconds: float, *, drafted: bool) -> None:
        """An exchange took `seconds`. largest: the largest count that was asked for, > 0. drafted: drafts came."""
        # The first exchange also connects. One that failed at once does not show what drafts cost.
        if self._connected if drafted else seconds > self.costs.exchange.at(largest):
            self.costs.exchange.observe(largest, seconds)
        self._connected |= drafted
        if self._planned_wait is not None:
            self._allowance -= max(seconds - self._planned_wait, 0.0)

    def stepped(self, drafts: int, rows: int, seconds: float) -> None:
        """A decode step of `rows` requests with `drafts` drafts took `seconds`, without its exchange."""
        self.costs.observe_step(drafts, rows, seconds)
        self._allowance += PROBE_SHARE * seconds

    def _next_probe(self, best: int) -> int:
        """No drafts or the most drafts, in turns, but not the count that is used anyway."""
        probe = 0 if self._last_probe else self._most
        return self._most - best if best in (0, self._most) else probe

    def _tokens(self, plan: Int64Array, expected: Float64Array, rows: int) -> float:
        """Expected tokens of a step: one for each request of the batch, and the accepted drafts."""
        used = np.arange(self._most) < plan[:, None]
        return rows + float(expected[used].sum())

    def _seconds(self, plan: Int64Array, rows: int) -> float:
        return self.costs.seconds(int(plan.sum()), rows, int(plan.max(initial=0)))
