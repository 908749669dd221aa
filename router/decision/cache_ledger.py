"""What a pool probably has cached of a prompt, learned from the answers that this router got from it.

A ledger holds the chained hashes of the blocks of prompts (`kv_transfer.prefix_hash`). Engines evict the blocks that
were used least recently. So a block counts as evicted once more tokens have been written to the pool since its last use
than its caches hold: the horizon. The engines' own counts of cached tokens correct it.

It approximates an LRU cache. All replicas of a pool count as one cache, to which each router writes its share. What is
cached and used again makes others older only if it was in the older half. What is being read now is not counted yet.
What other routers sent is unknown: a prefix that only they know counts as not cached.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kv_transfer.arrays import Int32Array
from skim_common.prefixes import common_prefix

BLOCK_TOKENS = 128
"""Tokens of a block, here and in affinity keys: a prompt is hashed once for both."""


@dataclass(frozen=True, slots=True)
class CachedPrefix:
    """The known beginning of a prompt.

    tokens: its length. kept: how many of these tokens the pool holds. age: tokens written to the pool since the last
    use.
    """

    tokens: int = 0
    kept: int = 0
    age: int = 0


@dataclass(slots=True)
class _Block:
    kept: int
    used_at: int
    rest: Int32Array | None = None  # what followed in the prompt that ended within the next block


class CacheLedger:
    """The prefixes that a pool has in one form. max_blocks: the oldest blocks beyond this number are forgotten."""

    def __init__(self, max_blocks: int = 65536) -> None:
        self._max_blocks = max_blocks
        self._blocks: OrderedDict[bytes, _Block] = OrderedDict()
        self._written, self._share = 0, 1.0
        self.capacity: float = max_blocks * BLOCK_TOKENS
        """Tokens of this router's share of the pool's prefix caches, as far as it is known."""

    def __len__(self) -> int:
        return len(self._blocks)

    @property
    def horizon(self) -> float:
        """Tokens that may be written to the pool before a block counts as evicted."""
        return self._share * self.capacity

    def wrote(self, tokens: int) -> None:
        """`tokens` tokens were computed by the pool and went into its cache, in any form."""
        self._written += tokens

    def add(self, ids: Int32Array, hashes: Sequence[bytes], kept: Sequence[int]) -> None:
        """A prompt is in use now. ids: int32 [M]. hashes: of its whole blocks. kept: the kept tokens up to the end of
        each."""
        sizes = zip(hashes, np.diff(kept, prepend=0).tolist(), strict=True)
        self._written += sum(size for block, size in sizes if self._is_old(self._blocks.get(block)))
        # The first block comes last: it is used whenever a later one is.
        for block, count in zip(reversed(hashes), reversed(kept), strict=True):
            self._blocks[block] = _Block(count, self._written)
            self._blocks.move_to_end(block)
        if hashes:
            self._blocks[hashes[-1]].rest = ids[len(hashes) * BLOCK_TOKENS :].copy()
        while len(self._blocks) > self._max_blocks:
            self._blocks.popitem(last=False)

    def forget(self, hashes: Sequence[bytes]) -> None:
        """The pool has lost these blocks."""
        for block in hashes:
            self._blocks.pop(block, None)

    def _is_old(self, block: _Block | None) -> bool:
        """Whether a block is in the older half of the cache."""
        return block is not None and 2 * (self._written - block.used_at) > self.horizon

    def find(self, ids: Int32Array, hashes: Sequence[bytes]) -> CachedPrefix:
        """The longest known beginning of a prompt that is probably still cached. ids, hashes: as in `add`."""
        found, rest = CachedPrefix(), None
        for count, block in enumerate(hashes, 1):
            known = self._blocks.get(block)
            # Engines evict the end of a prompt first.
            if known is None or (age := self._written - known.used_at) + known.kept > self.horizon:
                break
            found, rest = CachedPrefix(count * BLOCK_TOKENS, known.kept, age), known.rest
        more = 0 if rest is None else common_prefix(rest, ids[found.tokens :])
        return CachedPrefix(found.tokens + more, found.kept + more, found.age)

    def correct(self, found: CachedPrefix, cached: int) -> None:
        """Learn the horizon: the pool was expected to have the found tokens cached and had `cached`."""
        if found.kept < BLOCK_TOKENS:
            return
        needed = (found.age + found.kept) / self.capacity
        if 2 * cached >= found.kept:
            self._share = min(1.0, max(self._share, 2 * needed))
        elif needed < self._share:
            # The geometric mean: a few misses are enough, and one miss on another replica is not too much.
            self._share = (self._share * needed) ** 0.5


def ends_of(hashes: Sequence[bytes]) -> Sequence[int]:
    """The number of tokens up to the end of each block."""
    return range(BLOCK_TOKENS, BLOCK_TOKENS * (len(hashes) + 1), BLOCK_TOKENS)
