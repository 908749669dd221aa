"""What a mock engine models of a real one: a prefix cache with bounded capacity, and the time of the computed tokens.

Not modelled: a running request does not protect its blocks from eviction, and decoding does not slow down prefills.
"""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import numpy as np

from kv_transfer.arrays import Int32Array
from kv_transfer.prefix_hash import block_hashes


class MockPrefixCache:
    """Which token blocks an engine holds. Blocks are found by token ids, positions and salt; the least recently used
    block is evicted first, and of one prompt the last block first (vllm.v1.core.kv_cache_manager).
    """

    def __init__(self, capacity_tokens: int, block_size: int = 16) -> None:
        """capacity_tokens: 0 holds nothing. block_size: tokens per block; only full blocks are held."""
        self._size = block_size
        self._capacity = capacity_tokens // block_size
        self._held: OrderedDict[bytes, None] = OrderedDict()

    def __contains__(self, block: bytes) -> bool:
        return block in self._held

    def look_up(self, token_ids: Int32Array, positions: Int32Array, salt: str | None = None) -> int:
        """The number of leading tokens whose KV is held. As in vLLM, the last token is always computed."""
        found = self.match(self._hashes(token_ids[:-1], positions[:-1], salt))
        return self._size * found

    def store(self, token_ids: Int32Array, positions: Int32Array, salt: str | None = None) -> int:
        """Hold the KV of these tokens. Returns how many are held: those in full blocks."""
        hashes = self._hashes(token_ids, positions, salt)
        self.hold(hashes)
        return self._size * len(hashes)

    def match(self, hashes: Sequence[bytes]) -> int:
        """The number of leading blocks that are held. They become the most recently used."""
        found = next((index for index, name in enumerate(hashes) if name not in self._held), len(hashes))
        for name in reversed(hashes[:found]):
            self._held.move_to_end(name)
        return found

    def hold(self, hashes: Sequence[bytes]) -> None:
        """Hold these blocks of one prompt, and evict others if there are too many."""
        for name in reversed(hashes):
            self._held[name] = None
            self._held.move_to_end(name)
        while len(self._held) > self._capacity:
            self._held.popitem(last=False)

    def _hashes(self, token_ids: Int32Array, positions: Int32Array, salt: str | None) -> list[bytes]:
        if not self._capacity:
            return []
        return block_hashes(np.stack((token_ids, positions), axis=1).ravel(), 2 * self._size, salt)


@dataclass(slots=True)
class Prefill:
    """One prefill. cached_tokens: from the prefix cache. queue_ms: the wait for earlier prompts. ms: the prefill's time
    without that wait. created_tokens: computed, and then in the prefix cache.
    """

    cached_tokens: int
    queue_ms: float
    ms: float
    created_tokens: int = 0


class MockCompute:
    """The prefills of one mock engine.

    cached_tokens, computed_tokens: prompt tokens so far, found in the prefix cache and computed.
    """

    def __init__(
        self, fixed_ms: float, ms_per_token: float, cache_tokens: int, block_size: int, one_at_a_time: bool
    ) -> None:
        """A prefill takes fixed_ms + ms_per_token for each computed token. one_at_a_time: prefills wait for each other,
        as those that fill an engine's whole batch do.
        """
        self._fixed_ms, self._ms_per_token = fixed_ms, ms_per_token
        self.cache = MockPrefixCache(cache_tokens, block_size)
        self._turn = asyncio.Lock() if one_at_a_time else None
        self.cached_tokens = self.computed_tokens = 0

    async def prefill(
        self,
        token_ids: Int32Array,
        positions: Int32Array,
        salt: str | None,
        more_ms: float = 0.0,
        compute_from: int | None = None,
    ) -> Prefill:
        """Wait as long as this prefill takes; the cache then holds the prompt.

        more_ms: added to its time. compute_from: tokens from this index on are computed although they are cached.
        """
        clock = asyncio.get_running_loop().time
        arrived = clock()
        async with self._own_turn():
            queue_ms = 1e3 * (clock() - arrived) if self._turn else 0.0
            cached = self.cache.look_up(token_ids, positions, salt)
            cached = cached if compute_from is None else min(cached, compute_from)
            computed = int(token_ids.size) - cached
            ms = self._fixed_ms + self._ms_per_token * computed + more_ms
            await asyncio.sleep(ms / 1e3)
            stored = self.cache.store(token_ids, positions, salt)
        self.cached_tokens += cached
        self.computed_tokens += computed
        return Prefill(cached, queue_ms, ms, max(stored - cached, 0))

    @asynccontextmanager
    async def _own_turn(self) -> AsyncIterator[None]:
        if self._turn is None:
            yield
        else:
            async with self._turn:
                yield
