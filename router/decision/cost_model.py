"""How long a prompt would wait for its first token, dense or speculative, and which is sooner. Pure.

    dense       = queue(target) + time(target, M - cached)
    speculative = queue(speculator) + time(speculator, M - read) + queue(target) + time(target, kept - cached)

M is the prompt's length; `read`, `kept` and `cached` are tokens. The time of a pool for some computed tokens is a line
through its latest measurements: a fixed part and a part per token.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from router.decision.rules import Decision


@dataclass(frozen=True, slots=True)
class Work:
    """Milliseconds of computing until the first token, by pool; 0 where they are not known.

    selects: whether the prompt goes to the speculator first. most_tokens: of the answer.
    """

    speculator_ms: float = 0.0
    target_ms: float = 0.0
    selects: bool = False
    most_tokens: int = 0

    @property
    def total_ms(self) -> float:
        return self.speculator_ms + self.target_ms


Mode = Literal["dense", "speculative"]

DECAY = 0.85
"""Weight of a measurement after the next one: about the latest seven count."""
SURPRISE = 3.0
"""A measurement so many times longer than its estimate counts as this many times; one so much shorter replaces all."""
QUEUE_DECAY_S = 10.0
"""A measured wait in the queue says little after this time."""
MARGIN = 0.1
"""A prompt runs speculative, or changes the mode of its earlier turn, only for a gain of this share."""
ENOUGH = 3
"""Measurements before an estimate counts: the first requests of an engine can be slow."""
STALE_S = 300.0
"""A prompt with n times the dense estimate tries the speculator again if nothing was read there for n times this."""

SPECULATOR_SHARE = 0.25
"""The speculator's time per token as a share of the target's, until both are measured."""
UNMEASURED = Decision(True, "unmeasured")


class PoolTime:
    """Running estimates of one pool. clock: seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._weight = self._x = self._y = self._xx = self._xy = 0.0
        self._queue_ms = 0.0
        self._count = 0
        self.measured_at = -math.inf

    def measure(self, tokens: int, ms: float, queue_ms: float) -> None:
        """One request: `tokens` computed tokens took `ms` milliseconds after `queue_ms` in the pool's queue."""
        self._queue_ms, self.measured_at = queue_ms, self._clock()
        self._count += 1
        expected = self._line(tokens)
        if expected is not None and SURPRISE * ms < expected:
            self._weight = self._x = self._y = self._xx = self._xy = 0.0
        elif expected is not None:
            ms = min(ms, SURPRISE * expected)
        self._weight = DECAY * self._weight + 1
        self._x, self._y = DECAY * self._x + tokens, DECAY * self._y + ms
        self._xx, self._xy = DECAY * self._xx + tokens * tokens, DECAY * self._xy + tokens * ms

    def estimate(self, tokens: int) -> float | None:
        """Milliseconds for `tokens` computed tokens, without the queue; None before ENOUGH measurements."""
        return self._line(tokens) if self._count >= ENOUGH else None

    def _line(self, tokens: int) -> float | None:
        if not self._weight:
            return None
        x, y = self._x / self._weight, self._y / self._weight
        # Measurements of nearly one size do not show the fixed part: the line then goes through the origin.
        through_origin, doubt = y / max(x, 1.0), (0.1 * x) ** 2 + 1
        variance, covariance = self._xx / self._weight - x * x, self._xy / self._weight - x * y
        slope = (covariance + doubt * through_origin) / (variance + doubt)
        slope = min(max(slope, 0.0), through_origin)
        return y + slope * (tokens - x)

    @property
    def queue_ms(self) -> float:
        """The expected wait in the queue."""
        return self._queue_ms * math.exp(-(self._clock() - self.measured_at) / QUEUE_DECAY_S)


@dataclass(frozen=True, slots=True)
class Tokens:
    """What each pool would compute: the target of the whole prompt, the speculator, the target of the kept prompt.

    cold: what the target would compute of the whole prompt with an empty cache.
    """

    dense: int
    cold: int
    read: int
    kept: int


@dataclass(frozen=True, slots=True)
class Estimate:
    """Milliseconds until the first token. cold: dense with an empty cache. age_s: of the speculator's last measurement,
    seconds. later: how much longer the turns after this one are expected to take if this one runs speculative
    (`router.decision.later_turns`). queue: the wait for the target, which is a part of all three. burden: how much
    longer all others wait if this prompt runs dense and not speculative.
    """

    dense: float
    speculative: float
    cold: float
    age_s: float = 0.0
    later: float = 0.0
    queue: float = 0.0
    burden: float = 0.0

    def of(self, mode: str) -> float:
        return self.speculative if mode == "speculative" else self.dense


def estimate(tokens: Tokens, speculator: PoolTime, target: PoolTime, now: float, later: float = 0.0) -> Estimate | None:
    """None before both pools have been measured often enough. later: as in Estimate."""
    read, kept = speculator.estimate(tokens.read), target.estimate(tokens.kept)
    dense, cold = target.estimate(tokens.dense), target.estimate(tokens.cold)
    if read is None or kept is None or dense is None or cold is None:
        return None
    waits = target.queue_ms
    return Estimate(
        dense=waits + dense,
        speculative=speculator.queue_ms + read + waits + kept,
        cold=waits + cold,
        age_s=now - speculator.measured_at,
        later=later,
        queue=waits,
        # As many wait behind this prompt as before it: the queue, divided by the time that one of them takes.
        burden=(dense - kept - later) * waits / kept - speculator.queue_ms if kept else 0.0,
    )


def sooner(estimate: Estimate, before: Mode | None = None) -> Decision:
    """Whether the first token is sooner speculative, by MARGIN and by what later turns lose then; else dense, which
    reads the whole prompt.

    before: how the earlier turn of this prompt ran, if there was one. After a speculative turn, dense must be sooner by
    MARGIN. MARGIN is a share of what the prompt itself takes. If it were one of the wait too, a loaded target would get
    dense prompts, which load it more.
    Reasons: `cached` (dense, thanks to the target's cache), `sooner`, `later-turns` (dense, although this turn's first
    token is sooner speculative), `load` (speculative, although its first token is sooner dense: that would delay others
    more), `probe`.
    """

    def less(ms: float) -> float:
        return ms - MARGIN * (ms - estimate.queue)

    worth = less(estimate.cold)
    dense = estimate.dense if before == "speculative" else less(estimate.dense)
    alone = less(estimate.speculative) if before == "speculative" else estimate.speculative
    speculative = alone + estimate.later
    if speculative < dense:
        return Decision(True, "sooner")
    if speculative < dense + estimate.burden:
        return Decision(True, "load")
    if estimate.age_s * estimate.dense > STALE_S * speculative:
        return Decision(True, "probe")
    if alone < dense:
        return Decision(False, "later-turns")
    return Decision(False, "cached" if estimate.speculative < worth else "sooner")


def fewer(tokens: Tokens, extra: float) -> Decision:
    """As `sooner`, before both pools have been measured: speculative, unless dense reads no more tokens.

    Reasons: `unmeasured` (speculative), `cached` and `later-turns` as in `sooner`.
    extra: how many more tokens later turns read if this one runs speculative (`LaterTurns.extra_tokens`).
    """
    if tokens.dense <= tokens.kept:
        return Decision(False, "cached")
    if extra and tokens.dense <= SPECULATOR_SHARE * tokens.read + tokens.kept + extra:
        return Decision(False, "later-turns")
    return UNMEASURED
