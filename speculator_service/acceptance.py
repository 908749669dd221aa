"""Which answers rejected more drafts than usual: a sign that the target misses a part of the prompt.

The drafter has read the whole prompt, and the target what was kept of it. A target that disagrees with its drafter
clearly more often than this pair usually does may lack what the drafter sees. With `keep_rate: auto`, the next turn of
that conversation then keeps more.
"""

from cachetools import FIFOCache

ENOUGH_DRAFTS = 32
"""An answer with fewer drafts says nothing."""
ENOUGH_ANSWERS = 8
"""So many answers are needed to know what is usual."""
LOW = 0.7
"""An acceptance rate below this share of the mean is low."""
DECAY = 0.97
"""Weight of an answer after the next one: about the latest 33 count."""
STEP = 0.1
"""Added to the coverage for each answer in a row of turns whose acceptance was low."""
MOST = 0.3
"""The largest sum of these steps in a conversation."""
MAX_ANSWERS = 4096
"""Answers of low acceptance that are remembered until their next turn; the oldest are forgotten first."""


class Acceptances:
    """The acceptance rates of one replica's answers. All thresholds are starting values, and were not measured."""

    def __init__(self) -> None:
        self._sum = self._weight = 0.0
        self._answers = 0
        self._low: FIFOCache[str, None] = FIFOCache(MAX_ANSWERS)

    def ended(self, session: str, drafts: int, accepted: int) -> None:
        """An answer is complete: `accepted` of its `drafts` were accepted."""
        if drafts < ENOUGH_DRAFTS:
            return
        rate = accepted / drafts
        if self._answers >= ENOUGH_ANSWERS and rate < LOW * self._sum / self._weight:
            self._low[session] = None
        self._answers += 1
        self._sum = DECAY * self._sum + rate
        self._weight = DECAY * self._weight + 1

    def was_low(self, session: str) -> bool:
        """Whether the answer of this session was accepted less than usual."""
        return session in self._low

    def raised(self, session: str, before: float) -> float:
        """What the turn after this session's answer adds to its coverage. before: what that session's turn added."""
        return min(MOST, before + STEP) if self.was_low(session) else before
