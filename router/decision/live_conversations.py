"""The conversations that came back to one router lately, and the room that they need in the target's cache. Pure."""

from collections.abc import Callable, Sequence

from cachetools import TTLCache

from router.decision.cache_ledger import BLOCK_TOKENS

IDLE_S = 600.0
"""A conversation counts for so long after its latest turn. Of the turns in public traces of agents, 4.5 % come later
than five minutes."""
MOST = 4096
"""Conversations that are remembered."""


class LiveConversations:
    """A conversation is known by the first whole block behind what many of them share, such as the system prompt.

    clock: seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._found: TTLCache[bytes, tuple[int, bool]] = TTLCache(MOST, IDLE_S, clock)

    def note(self, hashes: Sequence[bytes], opening: int, tokens: int) -> None:
        """A prompt has its answer. hashes: of its blocks. opening: tokens that conversations may share. tokens: of what
        the target needs of it."""
        if (key := _key(hashes, opening)) is not None:
            self._found[key] = tokens, key in self._found

    def others(self, hashes: Sequence[bytes], opening: int) -> int:
        """The tokens of all others that have had more than one turn. Arguments as in `note`."""
        own = _key(hashes, opening)
        return sum(tokens for key, (tokens, came_back) in self._found.items() if came_back and key != own)


def _key(hashes: Sequence[bytes], opening: int) -> bytes | None:
    first = -(-opening // BLOCK_TOKENS)
    return hashes[first] if first < len(hashes) else None
