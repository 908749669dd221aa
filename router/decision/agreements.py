"""How often the dense model would have given the same answer as a selection did, by kind of prompt. Pure.

The catch-up measures it (`router.dispatch.catch_up`). Where the answers of a kind differ too often, `auto` runs that
kind dense.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import partial

from skim_common.decaying_mean import DecayingMean

AGREES = 0.9
"""An answer agrees if the dense model would have chosen this share of its tokens: a starting value. Bfloat16 alone
changes a few tokens that have a close second."""
LIMIT = 0.8
"""The least share of the answers of a kind that must agree."""
ENOUGH = 8.0
"""Weight of a kind's answers before their share counts: that of the latest ten."""
DECAY = 0.95
"""Weight of an answer after the next one: about the latest twenty count."""
TRIAL = 16
"""Of a kind that runs dense, one prompt in so many is skimmed, so that its share is measured again."""


def shape_of(roles: Sequence[str] | None, *, has_tools: bool) -> str:
    """The kind of a prompt. roles: of a chat's messages; None for a raw prompt."""
    if has_tools:
        return "tools"
    return "text" if roles is None else "turns" if "assistant" in roles else "chat"


class Agreements:
    """What one router has measured."""

    def __init__(self) -> None:
        self._shares: defaultdict[str, DecayingMean] = defaultdict(partial(DecayingMean, DECAY))
        self._asked = Counter[str]()

    def measured(self, kind: str, agreement: float) -> bool:
        """An answer of this kind: `agreement` is the share of its tokens that dense would have chosen. Whether it
        agrees."""
        agrees = agreement >= AGREES
        self._shares[kind].add(agrees)
        return agrees

    def trusts(self, kind: str) -> bool:
        """Whether a prompt of this kind may be skimmed."""
        share = self._shares.get(kind)
        if share is None or share.weight < ENOUGH or share.value >= LIMIT:
            return True
        self._asked[kind] += 1
        return self._asked[kind] % TRIAL == 0
