"""Partial blocks: the prefix cache also supplies the last block of a finished request, although it is not full.

vLLM's prefix cache holds whole blocks only. So each drafting round would compute up to one block of tokens again. vLLM
can start a request inside a block of another request, by copying the block (made for Mamba;
`SingleTypeKVCacheManager.add_local_computed_blocks`, `SchedulerOutput.kv_cache_block_copies`). This scheduler remembers
the partial block of a finished request and offers it to a request that continues the same tokens at the same positions.
The block gets a hash of its own. So vLLM keeps and evicts it like any cached block, and removes the hash on reuse.

On a GPU this is off by default: the copy takes two kernels per layer (est. 0.3 to 0.6 ms per round), and a step that
computes up to one block of tokens again takes as long as a step of one token. PARTIAL_BLOCKS switches it on.
"""

from typing import Any, NamedTuple

from vllm.config import VllmConfig
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_manager import KVCacheBlocks
from vllm.v1.core.kv_cache_utils import (
    BlockHash,
    BlockHashWithGroupId,
    KVCacheBlock,
    make_block_hash_with_group_id,
)
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request

from vllm_hooks.block_hash import position_offsets

PARTIAL_BLOCKS = "skim_partial_blocks"
"""Key in the engine option `additional_config`: true or false. The default is true on CPU."""

MAX_PER_PREFIX = 4
"""Partial blocks that are remembered after the same whole blocks. Branches leave many; the latest are kept."""


Slot = tuple[int, int]
"""Token id and position offset. Two slots have the same KV only if both are equal."""


class PartialBlock(NamedTuple):
    """A block whose first slots hold `slots`, as long as it has the hash `hash`."""

    block: KVCacheBlock
    hash: BlockHashWithGroupId
    slots: tuple[Slot, ...]

    @property
    def is_there(self) -> bool:
        return self.block.block_hash == self.hash


def remembers_partial_blocks(config: VllmConfig) -> bool:
    """Whether an engine with this configuration uses partial blocks."""
    chosen = (config.additional_config or {}).get(PARTIAL_BLOCKS)
    return config.device_config.device_type == "cpu" if chosen is None else bool(chosen)


class PartialBlockScheduler(Scheduler):
    """Remembers the partial blocks of finished requests, for models with one group of full attention."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._remembers = remembers_partial_blocks(self.vllm_config)
        self._partial_blocks: dict[bytes, list[PartialBlock]] = {}  # the key is the prefix before the block

    def _update_request_with_output(
        self, request: Request, new_token_ids: list[int], is_stale: bool = False
    ) -> tuple[list[int], bool]:
        new_token_ids, stopped = super()._update_request_with_output(request, new_token_ids, is_stale)
        if stopped and self._remembers and self.kv_cache_manager.enable_caching:
            self._remember(request)
        return new_token_ids, stopped

    def _get_local_prefix_cache_hit(self, request: Request) -> tuple[KVCacheBlocks, int, int, bool]:
        blocks, count, boundary, diverged = super()._get_local_prefix_cache_hit(request)
        if self.kv_cache_manager.prefix_cache_lookup_enabled(request) and self._has_room(request):
            # The last token is always computed, for its logits.
            wanted = _slots(request, count, min(count + self.block_size, request.num_tokens - 1))
            partial_blocks = self._there(self._before(request, count // self.block_size))
            found = ((_common(block.slots, wanted), block) for block in partial_blocks)
            common, partial = max(found, key=lambda c: c[0], default=(0, None))
            if partial and common:
                return KVCacheBlocks(([*blocks.blocks[0], partial.block],)), count + common, boundary, diverged
        return blocks, count, boundary, diverged

    def _has_room(self, request: Request) -> bool:
        """Whether a copy fits beside the original. A request that fills the cache would wait for that place forever."""
        manager = self.kv_cache_manager
        needed = -(-request.num_tokens // self.block_size) + 1 + manager.watermark_blocks
        return bool(manager.block_pool.get_num_free_blocks() > needed)

    def _remember(self, request: Request) -> None:
        computed = min(request.num_computed_tokens, request.num_tokens)
        full = computed // self.block_size
        slots = _slots(request, full * self.block_size, computed)
        if not slots:
            return
        block = self.kv_cache_manager.get_blocks(request.request_id).blocks[0][full]
        before = self._before(request, full)
        partial_blocks = self._there(before)
        if block.block_hash is not None or any(partial.slots == slots for partial in partial_blocks):
            return
        hash = make_block_hash_with_group_id(BlockHash(sha256(("partial", before, slots, block.block_id))), 0)
        self.kv_cache_manager.block_pool._insert_block_hash(hash, block, num_tokens=computed)
        for old in partial_blocks[: -MAX_PER_PREFIX + 1]:
            self._forget(old)
        self._partial_blocks.pop(before, None)
        self._partial_blocks[before] = [*partial_blocks[-MAX_PER_PREFIX + 1 :], PartialBlock(block, hash, slots)]
        if len(self._partial_blocks) > self.kv_cache_manager.block_pool.num_gpu_blocks:
            del self._partial_blocks[next(iter(self._partial_blocks))]

    def _forget(self, partial: PartialBlock) -> None:
        """Remove the hash of a partial block that is no longer offered, and reuse its block first."""
        pool = self.kv_cache_manager.block_pool
        pool._remove_cached_block_hashes(partial.block)
        if not partial.block.ref_cnt:
            pool.free_block_queue.remove(partial.block)
            pool.free_block_queue.prepend_n([partial.block])

    def _there(self, before: bytes) -> list[PartialBlock]:
        return [partial for partial in self._partial_blocks.get(before, ()) if partial.is_there]

    def _before(self, request: Request, full: int) -> bytes:
        """The key of the whole blocks before a partial block: their hash, or the salt if there are none."""
        return bytes(request.block_hashes[full - 1]) if full else (request.cache_salt or "").encode()


def _slots(request: Request, start: int, end: int) -> tuple[Slot, ...]:
    """The contents of the slots [start, end). The hash before a partial block does not include their positions."""
    return tuple(zip(request.all_token_ids[start:end], position_offsets(request, start, end), strict=True))


def _common(a: tuple[Slot, ...], b: tuple[Slot, ...]) -> int:
    """Length of the longest common prefix."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
