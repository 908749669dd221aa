"""How long work waits in a pool, by what this router has sent there and by how fast earlier work drained.

Work is milliseconds of computing (`router.decision.pool_time.PoolTime`). A request that found `ahead` of this router's
work in the pool waited `ms`: such pairs give the drain rate, the wait for each millisecond of work ahead. So nothing
need be known of replicas, batches and other routers: with c replicas that compute one prompt at a time and r routers
with equal loads, it becomes r / c. What exceeds 1 is made by others, who may be gone a moment later: it is forgotten
with `FORGET_S`, as are earlier pairs.

A drain rate that lets in a request only if the pool is empty would never be measured again, because only a request that
finds work ahead measures it. So after `PROBE_S` without a pair, one more request is let in.
"""

import math
from collections.abc import Callable, Hashable

from router.decision.decaying_mean import DecayingMean

ANSWER_DECAY = 0.95
"""Weight of an answer after the next one: about the latest twenty count."""


class AnswerTime:
    """Running means: the time of a token, and the tokens of an answer."""

    def __init__(self) -> None:
        self._token_ms, self._tokens = DecayingMean(ANSWER_DECAY), DecayingMean(ANSWER_DECAY)

    def learn(self, tokens: int, ms: float) -> None:
        """A complete answer: `tokens` tokens after the first one took `ms` milliseconds."""
        self._token_ms.add(ms, tokens)
        self._tokens.add(tokens)

    def estimate(self, most_tokens: int) -> float:
        """Milliseconds of an answer that may have `most_tokens` tokens; 0 before the first answer."""
        return self._token_ms.value * min(float(most_tokens), self._tokens.value)


DECAY = 0.9
"""Weight of a pair after the next one, if that comes soon: about the latest ten count."""
FORGET_S = 10.0
"""A wait that the own work does not explain (other routers, long answers, a busy machine) says little after this time,
and neither do pairs before a pair that comes so late."""
MOST_DRAIN_RATE = 10.0
"""A wait of more than so many times the own work ahead has another cause: an engine that stopped or started again, not
the drain rate. It would foretell such a wait for every later request behind as much work, and refuse them all.
"""
ENOUGH = 3
"""Pairs before the drain rate counts. Until then no wait is expected."""
PROBE_S = 5.0
"""After so long without a pair, a request is expected to wait for nothing of the single one that the pool has."""


class PoolLoad:
    """One router's work in one pool. clock: seconds.

    headroom: so many requests the pool may have from this router, however long they wait there. An autoscaled pool
    needs it: the autoscaler counts what is in the pool, not what waits in a router.
    """

    def __init__(self, clock: Callable[[], float], headroom: float = 0.0) -> None:
        self._clock, self.headroom = clock, headroom
        self._requests: dict[Hashable, float] = {}
        self._aside: dict[Hashable, float] = {}
        self.ahead_ms = 0.0
        self._products = self._squares = 0.0
        self._pairs, self._paired_at = 0, -math.inf
        self._others_ms, self._others_at = 0.0, -math.inf

    @property
    def requests(self) -> int:
        return len(self._requests)

    def enter(self, ticket: Hashable, work_ms: float, *, aside: bool = False) -> None:
        """The pool gets a request. aside: work that is none: nobody waits for its end, but requests wait behind it."""
        (self._aside if aside else self._requests)[ticket] = work_ms
        self.ahead_ms += work_ms

    def leave(self, ticket: Hashable) -> None:
        """A request's first output came, or it ended without one; nothing if the pool does not have it."""
        self.ahead_ms -= self._requests.pop(ticket, 0.0) + self._aside.pop(ticket, 0.0)
        if not (self._requests or self._aside):
            self.ahead_ms = 0.0  # no rounding is left

    @property
    def has_headroom(self) -> bool:
        """Whether the pool has less than its headroom."""
        return len(self._requests) < self.headroom

    def learn(self, ahead_ms: float, waited_ms: float) -> None:
        """A request found `ahead_ms` of work in the pool and waited `waited_ms` before its own work began."""
        now = self._clock()
        if ahead_ms > 0:
            decay = min(DECAY, math.exp((self._paired_at - now) / FORGET_S))
            before, squares = self._drain_rate(now), decay * self._squares
            self._pairs, self._paired_at = self._pairs + 1, now
            self._products = squares * before + ahead_ms * min(waited_ms, MOST_DRAIN_RATE * ahead_ms)
            self._squares = squares + ahead_ms * ahead_ms
        self._others_ms = max(0.0, waited_ms - self._drain_rate(now) * ahead_ms)
        self._others_at = now

    def wait_ms(self, ahead_ms: float) -> float:
        """The expected wait of a request that finds `ahead_ms` of this router's work before it."""
        if self._pairs < ENOUGH:
            return 0.0
        now = self._clock()
        others = self._others_ms * math.exp((self._others_at - now) / FORGET_S)
        probes = self.requests == 1 and now - self._paired_at >= PROBE_S
        return others if probes else self._drain_rate(now) * ahead_ms + others

    def _drain_rate(self, now: float) -> float:
        """The slope of the line through the origin with the least squared error; what exceeds 1 fades from the latest
        pair on.
        """
        slope = self._products / self._squares if self._squares else 0.0
        return min(slope, 1.0) + max(0.0, slope - 1.0) * math.exp((self._paired_at - now) / FORGET_S)
