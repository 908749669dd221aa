"""Chooses the draft count K that gives the most tokens per second, from measured acceptance and measured costs.

With acceptance rate `a`, K drafts yield E = (1 - a^(K+1)) / (1 - a) tokens per verification (Fast Inference from
Transformers via Speculative Decoding, arXiv 2211.17192, section 3.1). A step with K drafts costs as much as 1 + K * c
plain steps.
"""

from dataclasses import dataclass, field

ACCEPTANCE_WEIGHT = 0.1
COST_WEIGHT = 0.1
FIRST_ACCEPTANCE = 0.7
FIRST_PROBE_AFTER, LAST_PROBE_AFTER = 8, 128


def expected_tokens(acceptance: float, drafts: int) -> float:
    """E: expected tokens per verification, from 1 (no drafts) to drafts + 1 (all accepted)."""
    return sum(acceptance**k for k in range(drafts + 1))


def best_draft_count(acceptance: float, cost: float, most: int) -> int:
    """The K in 0..most with the highest E / (1 + K * cost). Ties go to the smallest K; 0 if drafting does not pay.

    acceptance: rate in [0, 1]. cost: cost of one draft in plain steps, >= 0.
    """
    return max(range(most + 1), key=lambda k: (expected_tokens(acceptance, k) / (1 + k * cost), -k))


@dataclass(slots=True)
class AcceptanceAverage:
    """Exponential moving average of the acceptance: each accepted draft counts 1, the first rejected draft counts 0."""

    rate: float = FIRST_ACCEPTANCE

    def observe(self, drafts: int, accepted: int) -> None:
        """Record a verification of `drafts` > 0 drafts. Drafts after the first rejected one do not count."""
        for _ in range(accepted):
            self.rate += ACCEPTANCE_WEIGHT * (1 - self.rate)
        if accepted < drafts:
            self.rate -= ACCEPTANCE_WEIGHT * self.rate


@dataclass(slots=True)
class StepCosts:
    """The measured cost of drafts: a line `seconds = base + slope * tokens` through decode steps, plus drafting time.

    All values are moving averages. Steps with prefill are excluded, because their cost follows another line.
    """

    _tokens: float = 0.0
    _seconds: float = 0.0
    _tokens_squared: float = 0.0
    _product: float = 0.0
    _seconds_per_draft: float | None = None
    _steps: int = 0

    def observe_step(self, tokens: int, seconds: float) -> None:
        """Record one decode step of the target. tokens: total over all its requests."""
        self._steps += 1
        weight = max(COST_WEIGHT, 1 / self._steps)
        self._tokens += weight * (tokens - self._tokens)
        self._seconds += weight * (seconds - self._seconds)
        self._tokens_squared += weight * (tokens * tokens - self._tokens_squared)
        self._product += weight * (tokens * seconds - self._product)

    def observe_exchange(self, drafts: int, seconds: float) -> None:
        """Record one exchange with the drafters. drafts: the largest K among its rows, > 0."""
        each = seconds / drafts
        last = self._seconds_per_draft
        self._seconds_per_draft = each if last is None else last + COST_WEIGHT * (each - last)

    @property
    def slope(self) -> float:
        """Seconds per additional token of a step, >= 0; 0 while all steps have the same size."""
        variance = self._tokens_squared - self._tokens**2
        if variance < 1e-6 * max(self._tokens_squared, 1.0):
            return 0.0
        # Against noise: a token costs at most its share of a whole step.
        mean_per_token = self._seconds / max(self._tokens, 1.0)
        return min(max((self._product - self._tokens * self._seconds) / variance, 0.0), mean_per_token)

    def per_draft(self, rows: int) -> float:
        """c: the cost of one more draft for each of `rows` requests, in plain steps of this batch; 0 until measured."""
        if not self._steps or self._seconds_per_draft is None:
            return 0.0
        slope = self.slope
        plain = max(self._seconds + slope * (rows - self._tokens), 1e-6)
        return (self._seconds_per_draft + slope * rows) / plain


@dataclass(slots=True)
class DraftCount:
    """The draft count of one request in each step. If drafting does not pay, it probes with one draft at intervals.

    most: the highest K. adaptive: False means K is always `most`. acceptance: the initial average.
    """

    most: int
    adaptive: bool = True
    acceptance: AcceptanceAverage = field(default_factory=AcceptanceAverage)
    _idle: int = 0
    _probe_after: int = FIRST_PROBE_AFTER

    def observe(self, drafts: int, accepted: int) -> None:
        self.acceptance.observe(drafts, accepted)

    def next(self, cost: float) -> int:
        """K for the next step. cost: cost of one draft in plain steps."""
        if not self.adaptive:
            return self.most
        best = best_draft_count(self.acceptance.rate, cost, self.most)
        if best:
            self._idle, self._probe_after = 0, FIRST_PROBE_AFTER
            return best
        self._idle += 1
        if self._idle < self._probe_after:
            return 0
        self._idle, self._probe_after = 0, min(2 * self._probe_after, LAST_PROBE_AFTER)
        return min(1, self.most)
