"""What a pool probably has cached of a prompt, learned from the answers that this router got from it.

A ledger holds the chained hashes of the blocks of prompts (`kv_transfer.prefix_hash`). All replicas of a pool count as
one LRU cache, to which each router writes its share: a block counts as evicted once more tokens have been written since
its last use than the caches hold (the horizon, which the engines' counts of cached tokens correct). What is cached and
used again makes others older only if it was in the older half. A prefix that only other routers sent counts as not
cached.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from kv_transfer.arrays import Int32Array, common_prefix
from kv_transfer.messages import KeptPrompt

BLOCK_TOKENS = 128
"""Tokens of a block, here and in affinity keys: a prompt is hashed once for both."""


@dataclass(frozen=True, slots=True)
class CachedPrefix:
    """The known beginning of a prompt."""

    tokens: int = 0
    kept: int = 0  # how many of these tokens the pool holds
    age: int = 0  # tokens written to the pool since the last use


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
        prefix, rest = CachedPrefix(), None
        for count, block in enumerate(hashes, 1):
            known = self._blocks.get(block)
            # Engines evict the end of a prompt first.
            if known is None or (age := self._written - known.used_at) + known.kept > self.horizon:
                break
            prefix, rest = CachedPrefix(count * BLOCK_TOKENS, known.kept, age), known.rest
        more = 0 if rest is None else common_prefix(rest, ids[prefix.tokens :])
        return CachedPrefix(prefix.tokens + more, prefix.kept + more, prefix.age)

    def correct(self, expected: CachedPrefix, cached: int) -> None:
        """Learn the horizon: the pool had `cached` tokens of a prefix that it was expected to hold."""
        if expected.kept < BLOCK_TOKENS:
            return
        needed = (expected.age + expected.kept) / self.capacity
        if 2 * cached >= expected.kept:
            self._share = min(1.0, max(self._share, 2 * needed))
        elif needed < self._share:
            # The geometric mean: a few misses are enough, and one miss on another replica is not too much.
            self._share = (self._share * needed) ** 0.5


class TargetCaches:
    """What the target pool has cached of this router's prompts, as they are (dense) and as they were kept."""

    def __init__(self) -> None:
        self.dense, self.kept = CacheLedger(), CacheLedger()
        self._reading = Counter[bytes]()

    def wrote(self, tokens: int) -> None:
        """As `CacheLedger.wrote`, of both forms: they share the caches."""
        for ledger in (self.dense, self.kept):
            ledger.wrote(tokens)

    def coming(self, hashes: Sequence[bytes]) -> int:
        """The tokens at the beginning of a prompt that the target reads now for others. hashes: of its blocks."""
        return next((i for i, block in enumerate(hashes) if block not in self._reading), len(hashes)) * BLOCK_TOKENS

    @contextmanager
    def reading(self, hashes: Sequence[bytes]) -> Iterator[None]:
        """While a dense prompt is with the target: those that come behind it find in the cache what it reads."""
        self._reading.update(hashes)
        try:
            yield
        finally:
            for block in hashes:
                self._reading[block] -= 1
                if not self._reading[block]:
                    del self._reading[block]

    def add(self, ids: Int32Array, hashes: Sequence[bytes], prompt: KeptPrompt, *, whole: bool) -> None:
        """The target has a prompt, or its answer too: ids [N]. hashes: of its blocks. prompt: as it was read. whole: as
        it is."""
        if whole:
            self.dense.add(ids, hashes, ends_of(hashes))
            return
        ends = np.array(ends_of(hashes), np.int64)
        in_prompt = np.searchsorted(np.sort(prompt.positions), np.minimum(ends, prompt.context_length))
        self.kept.add(ids, hashes, (in_prompt + np.maximum(0, ends - prompt.context_length)).tolist())
        # As far as nothing is dropped, it is the beginning of a dense prompt too.
        alike = common_prefix(prompt.positions, np.arange(prompt.positions.size, dtype=np.int32))
        blocks = hashes[: alike // BLOCK_TOKENS]
        self.dense.add(ids[:alike], blocks, ends_of(blocks))


def ends_of(hashes: Sequence[bytes]) -> Sequence[int]:
    """The number of tokens up to the end of each block."""
    return range(BLOCK_TOKENS, BLOCK_TOKENS * (len(hashes) + 1), BLOCK_TOKENS)
