"""How often the dense model would have given the same answer as a selection did, by client and shape of prompt. Pure.

The catch-up measures it (`router.dispatch.catch_up`). Where the answers of a kind differ too often, `auto` runs that
kind dense. A client with options of its own teaches nothing: its answers do not tell what `auto` does by itself. Nor
does a client teach for others.
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
    """The shape of a prompt. roles: of a chat's messages; None for a raw prompt."""
    if has_tools:
        return "tools"
    return "text" if roles is None else "turns" if "assistant" in roles else "chat"


Kind = tuple[str, str]
"""The name of an API key, empty without keys, and the shape of a prompt."""


class Agreements:
    """What one router has measured."""

    def __init__(self) -> None:
        self._shares: defaultdict[Kind, DecayingMean] = defaultdict(partial(DecayingMean, DECAY))
        self._asked = Counter[Kind]()

    def measured(self, kind: Kind, *, agrees: bool) -> None:
        """Count an answer of this kind."""
        self._shares[kind].add(agrees)

    def trusts(self, kind: Kind) -> bool:
        """Whether a prompt of this kind may be skimmed."""
        share = self._shares.get(kind)
        if share is None or share.weight < ENOUGH or share.value >= LIMIT:
            return True
        self._asked[kind] += 1
        return self._asked[kind] % TRIAL == 0
