"""What a pool probably has cached of a prompt, learned from the answers that this router got from it.

A ledger holds the chained hashes of the blocks of prompts (`kv_transfer.prefix_hash`). Engines evict the blocks that
were used least recently. So a block is believed to be cached until a certain number of tokens has been written to the
pool since its last use: the horizon. The engines' own counts of cached tokens correct it.

What other routers sent is unknown here. A prefix that only they know counts as not cached.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

BLOCK_TOKENS = 128
"""Tokens of a block, here and in affinity keys: a prompt is hashed once for both."""


@dataclass(frozen=True, slots=True)
class Found:
    """The known beginning of a prompt.

    tokens: its length. kept: how many of these tokens were kept. age: tokens written to the pool since the last use.
    """

    tokens: int = 0
    kept: int = 0
    age: int = 0


@dataclass(slots=True)
class _Block:
    kept: int
    used_at: int


class CacheLedger:
    """The prefixes that a pool has in one form. max_blocks: the oldest blocks beyond this number are forgotten."""

    def __init__(self, max_blocks: int = 65536) -> None:
        self._max_blocks = max_blocks
        self._blocks: OrderedDict[bytes, _Block] = OrderedDict()
        self._written = 0
        self.horizon = max_blocks * BLOCK_TOKENS
        """Tokens that may be written to the pool before a block counts as evicted."""

    def __len__(self) -> int:
        return len(self._blocks)

    def wrote(self, tokens: int) -> None:
        """`tokens` tokens were computed by the pool and went into its cache, in any form."""
        self._written += tokens

    def add(self, hashes: Sequence[bytes], kept: Sequence[int]) -> None:
        """These blocks, the first ones of a prompt, are in use now. kept: for each, the kept tokens up to its end."""
        # The first block comes last: it is used whenever a later one is.
        for block, count in zip(reversed(hashes), reversed(kept), strict=True):
            self._blocks[block] = _Block(count, self._written)
            self._blocks.move_to_end(block)
        while len(self._blocks) > self._max_blocks:
            self._blocks.popitem(last=False)

    def find(self, hashes: Sequence[bytes]) -> Found:
        """The longest known beginning of the prompt with these block hashes, if it is probably still cached."""
        found = Found()
        for count, block in enumerate(hashes, 1):
            known = self._blocks.get(block)
            if known is None or (age := self._written - known.used_at) > self.horizon:
                break
            found = Found(count * BLOCK_TOKENS, known.kept, age)
        return found

    def correct(self, found: Found, expected: int, cached: int) -> None:
        """Learn the horizon: the pool was expected to have `expected` tokens of a prompt cached and had `cached`."""
        if expected < BLOCK_TOKENS:
            return
        if 2 * cached >= expected:
            self.horizon = max(self.horizon, 2 * found.age)
        elif found.age < self.horizon:
            # The geometric mean: a few misses are enough, and one miss on another replica is not too much.
            self.horizon = int((self.horizon * max(found.age, 1)) ** 0.5)
