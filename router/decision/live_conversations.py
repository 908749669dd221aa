"""The conversations that came back to one router lately, and the room that they need in the target's cache. Pure."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from router.decision.cache_ledger import BLOCK_TOKENS

IDLE_S = 600.0
"""A conversation counts for so long after its latest turn. Of the turns in public traces of agents, 4.5 % come later
than five minutes."""
MOST = 4096
"""Conversations that are remembered."""


@dataclass(slots=True)
class _Conversation:
    tokens: int
    at: float
    came_back: bool = False


class LiveConversations:
    """A conversation is known by the first whole block behind what many of them share, such as the system prompt."""

    def __init__(self) -> None:
        self._found: OrderedDict[bytes, _Conversation] = OrderedDict()

    def note(self, hashes: Sequence[bytes], opening: int, tokens: int, now: float) -> None:
        """A prompt of `tokens` tokens came. hashes: of its blocks. opening: tokens that conversations may share. now:
        seconds."""
        if (key := _key(hashes, opening)) is None:
            return
        came_back = key in self._found
        self._found[key] = _Conversation(tokens, now, came_back)
        self._found.move_to_end(key)
        while len(self._found) > MOST or next(iter(self._found.values())).at < now - IDLE_S:
            self._found.popitem(last=False)

    def others(self, hashes: Sequence[bytes], opening: int, now: float) -> int:
        """The tokens of all others that have had more than one turn. Arguments as in `note`."""
        own = _key(hashes, opening)
        return sum(
            one.tokens for key, one in self._found.items() if key != own and one.came_back and one.at >= now - IDLE_S
        )


def _key(hashes: Sequence[bytes], opening: int) -> bytes | None:
    first = -(-opening // BLOCK_TOKENS)
    return hashes[first] if first < len(hashes) else None
