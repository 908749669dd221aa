"""What this router's prompts show about later turns: how many follow a prompt, and what each costs in both modes. Pure.

A prompt that runs speculative is a bet on its later turns too: each of them reads the new question on both pools and
late units on the target, while a dense conversation reads only the new tokens. A client can tell their number
(`router.options.headers`). Until a later turn was seen, it counts as SHORT_TEXT new tokens and LATE_TOKENS late ones.
"""

from collections.abc import Callable

from kv_transfer.options import LATE_TOKENS, SHORT_TEXT
from router.decision.cost_model import SPECULATOR_SHARE
from router.decision.pool_time import PoolTime
from skim_common.models.costs import Read

DECAY = 0.97
"""Weight of a prompt after the next one: about the latest 33 count."""
MOST = 4.0
"""The expected number of later turns is at most this, because the first token of a prompt is certain."""


class LaterTurns:
    """Running means over the prompts of one router. A prompt is a later turn if at least half of it is known."""

    def __init__(self) -> None:
        self._prompts = self._later = self._new = 0.0
        self._extended = self._late = 0.0

    def began(self, tokens: int, known: int) -> None:
        """A prompt of `tokens` tokens ran; the caches knew `known` of them, in whichever form. Both without the tokens
        that stand before all turns, such as a system prompt, which prompts of many conversations share."""
        self._prompts = DECAY * self._prompts + 1
        is_later = 0 < tokens <= 2 * known
        self._later = DECAY * self._later + is_later
        self._new = DECAY * self._new + is_later * (tokens - known)

    def extended(self, late: float) -> None:
        """The target computed `late` tokens of a later turn's kept prompt besides those that are kept of the new
        ones."""
        self._extended = DECAY * self._extended + 1
        self._late = DECAY * self._late + late

    @property
    def expected(self) -> float:
        """The number of later turns that a prompt has on average, at most MOST."""
        firsts = self._prompts - self._later
        return min(MOST, self._later / firsts) if firsts > 0 else (MOST if self._later else 0.0)

    @property
    def late(self) -> float:
        """The tokens that the target reads of a later turn besides those that are kept of the new ones."""
        return max(0.0, self._late / self._extended) if self._extended else LATE_TOKENS

    def kept(self, new: int, share: float) -> float:
        """The tokens that the target reads of a later turn with `new` new tokens, of which `share` are kept."""
        return (new if new <= SHORT_TEXT else share * new) + self.late

    @property
    def _new_tokens(self) -> int:
        """The new tokens of an average later turn."""
        return max(1, round(self._new / self._later)) if self._later else SHORT_TEXT

    def extra_tokens(self, share: float, told: int) -> float:
        """How many more tokens `told` later turns of a prompt read if it runs speculative, in tokens of the target."""
        new = self._new_tokens
        return told * max(0.0, SPECULATOR_SHARE * new + self.kept(new, share) - new)

    def extra_ms(
        self,
        speculator: Callable[[int], float | None],
        target: PoolTime,
        size: int,
        kept: int,
        share: float,
        told: int | None = None,
    ) -> float:
        """How much longer all later turns of a prompt are expected to take if it runs speculative, at least 0.

        speculator: the milliseconds of its read of so many new tokens behind the prompt; None if it is not known. size:
        tokens of the prompt, of which a selection keeps `kept`; the pools have them cached then. share: of new tokens
        that are kept. told: the number of later turns, if the client has told
        it; otherwise `expected`.
        """
        new = self._new_tokens
        read, extended, dense = (
            speculator(new),
            target.estimate(Read(max(1, round(self.kept(new, share))), kept)),
            target.estimate(Read(new, size)),
        )
        if read is None or extended is None or dense is None:
            return 0.0
        return (self.expected if told is None else told) * max(0.0, read + extended - dense)
