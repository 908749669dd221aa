"""Which prompts the speculator need not read, because it has scored their text for the same questions. Pure.

As `speculator_service.known_scores`, from what this router has sent.
"""

from collections.abc import Sequence

from cachetools import LRUCache

from kv_transfer.options import UNSCORED
from router.decision.kept_sizes import KeptSizes

MOST = 4096
"""Prompts that are remembered; the least recently used one is forgotten first."""


class ScoredTexts:
    """The prompts whose selections read windows, by the hash of their last whole block."""

    def __init__(self) -> None:
        self._scored: LRUCache[bytes, tuple[tuple[bytes, ...], int]] = LRUCache(MOST)

    def add(self, hashes: Sequence[bytes], asked: tuple[bytes, ...], scored: int) -> None:
        """The first `scored` tokens of a prompt have scores. hashes: of its blocks. asked: `TextLayout.asked`."""
        if hashes:
            self._scored[hashes[-1]] = asked, scored

    def find(self, hashes: Sequence[bytes], asked: tuple[bytes, ...], sizes: KeptSizes) -> int:
        """How many tokens at the beginning of a prompt have scores, if it is not read; otherwise 0."""
        found = next((self._scored[block] for block in reversed(hashes) if block in self._scored), None)
        if found is None or found[0] != asked or (sizes.fixed[found[1] :] < 1).sum() > UNSCORED:
            return 0
        return found[1]
