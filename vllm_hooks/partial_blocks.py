"""Partial blocks: the prefix cache also supplies a part of a block that a finished request computed.

vLLM's prefix cache holds whole blocks only. So a request that continues another one would compute up to one block of
tokens again: the next drafting round of a session, the next turn of a conversation, or the same prompt once more (its
last token is always computed). vLLM can start a request inside a block of another request, by copying the block (made
for Mamba; `SingleTypeKVCacheManager.add_local_computed_blocks`, `SchedulerOutput.kv_cache_block_copies`). This
scheduler remembers the blocks of finished requests and offers the next one to a request with the same tokens at the
same positions. A block that is not full gets a hash of its own. So vLLM keeps and evicts it like any cached block, and
removes the hash on reuse.

Drafts: a block that a verification wrote may also hold the KV of rejected drafts. They lie behind the tokens that the
request still counts as computed (`Request.num_computed_tokens`), and only those are remembered.

On a GPU this is off by default: the copy takes two kernels per layer (est. 0.3 to 0.6 ms per request), and a step that
computes up to one block of tokens again takes as long as a step of one token. PARTIAL_BLOCKS switches it on.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
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
from vllm.v1.core.single_type_kv_cache_manager import FullAttentionManager
from vllm.v1.request import Request

from skim_common.errors import SkimError
from skim_common.prefixes import common_prefix
from skim_common.symbols import Hook
from vllm_hooks.block_hash import position_keys

PARTIAL_BLOCKS = "skim_partial_blocks"
"""Key in the engine option `additional_config`: true or false. The default is true on CPU, where they are possible."""

MAX_PER_PREFIX = 4
"""Blocks that are not full and are remembered after the same whole blocks. The latest are kept."""

_SCHEDULER = "vllm.v1.core.sched.scheduler"
_MANAGER = "vllm.v1.core.kv_cache_manager"
_POOL = "vllm.v1.core.block_pool"
HOOK = Hook(
    what="partial blocks",
    how="vLLM: the schedulers offer the blocks of finished requests to vLLM's copy-on-write of partial hits",
    until="vLLM's prefix cache finds the blocks of finished requests that are not full",
    symbols=(
        (_SCHEDULER, "Scheduler._update_request_with_output", "self request new_token_ids is_stale"),
        (_SCHEDULER, "Scheduler._get_local_prefix_cache_hit", "self request"),
        (_MANAGER, "KVCacheManager.cache_blocks", "self request num_computed_tokens"),
        (_MANAGER, "KVCacheManager.get_blocks", "self request_id"),
        (_MANAGER, "KVCacheManager.prefix_cache_lookup_enabled", "self request"),
        (_POOL, "BlockPool._insert_block_hash", "self block_hash_with_group_id block num_tokens"),
        (_POOL, "BlockPool._remove_cached_block_hashes", "self block"),
    ),
)

_WITHOUT_OWN_KV = ("custom_class", "ngram", "suffix")
"""Drafting methods whose drafters keep no KV beside the target's, so that a copied block lacks nothing."""

Slots = npt.NDArray[np.int64]
"""[n, 2]: token id and `position_keys` of each slot. Two slots have the same KV only if both are equal."""


class PartialBlock(NamedTuple):
    """A block whose first slots hold `slots`, as long as it has the very object `hash`.

    An equal hash may be a new one: vLLM gives a block its hash when it plans to compute it, and copies blocks before.
    """

    block: KVCacheBlock
    hash: BlockHashWithGroupId | None
    slots: Slots

    @property
    def is_there(self) -> bool:
        return self.hash is not None and self.block.block_hash is self.hash


def why_impossible(config: VllmConfig) -> str | None:
    """What in this configuration rules out partial blocks; None if they are possible.

    With async scheduling, the next step is planned before the scheduler knows which tokens of the present one are
    valid.
    """
    return why_not_alone(config) or ("async scheduling" if config.scheduler_config.async_scheduling else None)


def why_not_alone(config: VllmConfig) -> str | None:
    """What in this configuration also depends on a block's place, besides one group of full attention; None: nothing.

    A KV connector counts whole blocks. Drafters with KV of their own need the end of a prefix computed again. Other
    groups of blocks have other contents.
    """
    speculation, parallel, scheduler = config.speculative_config, config.parallel_config, config.scheduler_config
    model, separate = config.model_config, not scheduler.disable_hybrid_kv_cache_manager
    reasons = {
        "a KV connector": config.kv_transfer_config is not None,
        "context parallel": parallel.decode_context_parallel_size * parallel.prefill_context_parallel_size > 1,
        "layers of a state space": model.is_hybrid,
        "layers with windows": separate and model.get_sliding_window() is not None,
        f"decode method {speculation and speculation.method}": speculation is not None
        and speculation.method not in _WITHOUT_OWN_KV,
    }
    return next((reason for reason, found in reasons.items() if found), None)


def remembers_partial_blocks(config: VllmConfig) -> bool:
    """Whether an engine with this configuration uses partial blocks.

    Raises SkimError if a user asked for them and they are impossible.
    """
    chosen = (config.additional_config or {}).get(PARTIAL_BLOCKS)
    reason = why_impossible(config)
    if chosen and reason:
        raise SkimError(f"additional_config.{PARTIAL_BLOCKS} does not work with {reason}; set it to false")
    return not reason and (config.device_config.device_type == "cpu" if chosen is None else bool(chosen))


class PartialBlockScheduler(Scheduler):
    """Remembers the blocks of finished requests, for models with one group of full attention."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        managers = [type(manager) for manager in self.kv_cache_manager.coordinator.single_type_managers]
        self._remembers = (
            remembers_partial_blocks(self.vllm_config)
            and self.kv_cache_manager.enable_caching
            and managers == [FullAttentionManager]
        )
        # The last token is always computed, for its logits. With drafts, vLLM adds K drafts that do not exist to a new
        # request of one token.
        self._left = 2 if self.num_spec_tokens else 1
        # The key is the prefix before the block.
        self._partial_blocks: dict[bytes, list[PartialBlock]] = {}
        self._whole_blocks: dict[bytes, PartialBlock] = {}

    def _update_request_with_output(
        self, request: Request, new_token_ids: list[int], is_stale: bool = False
    ) -> tuple[list[int], bool]:
        new_token_ids, stopped = super()._update_request_with_output(request, new_token_ids, is_stale)
        if stopped and self._remembers and not is_stale:
            self._remember(request)
        return new_token_ids, stopped

    def _get_local_prefix_cache_hit(self, request: Request) -> tuple[KVCacheBlocks, int, int, bool]:
        blocks, count, boundary, diverged = super()._get_local_prefix_cache_hit(request)
        if self._remembers and self.kv_cache_manager.prefix_cache_lookup_enabled(request) and self._has_room(request):
            offered = self._offered(self._before(request, count))
            if offered:
                end = max(count, min(count + self.block_size, request.num_tokens - self._left))
                wanted = _slots(request, count, end)
                common, partial = max(((common_prefix(p.slots, wanted), p) for p in offered), key=lambda one: one[0])
                if common:
                    return KVCacheBlocks(([*blocks.blocks[0], partial.block],)), count + common, boundary, diverged
        return blocks, count, boundary, diverged

    def _has_room(self, request: Request) -> bool:
        """Whether a copy fits beside the original. A request that fills the cache would wait for that place forever."""
        manager = self.kv_cache_manager
        needed = -(-request.num_tokens // self.block_size) + 1 + manager.watermark_blocks
        return bool(manager.block_pool.get_num_free_blocks() > needed)

    def _remember(self, request: Request) -> None:
        computed = min(request.num_computed_tokens, request.num_tokens)
        # vLLM caches the blocks that a step filled in the request's next step. There is none.
        self.kv_cache_manager.cache_blocks(request, computed)
        blocks = self.kv_cache_manager.get_blocks(request.request_id).blocks[0]
        whole = computed // self.block_size * self.block_size
        self._remember_whole(request, blocks, whole)
        if whole < computed:
            self._remember_rest(request, blocks[whole // self.block_size], whole, computed)

    def _remember_whole(self, request: Request, blocks: Any, end: int) -> None:
        """Remember the whole blocks of the first `end` tokens, from the last one back to the first that is known."""
        for start in range(end - self.block_size, -1, -self.block_size):
            before, block = self._before(request, start), blocks[start // self.block_size]
            known = self._whole_blocks.pop(before, None)
            if known is not None and known.is_there and known.hash == block.block_hash:
                self._whole_blocks[before] = known
                return
            slots = _slots(request, start, start + self.block_size)
            self._whole_blocks[before] = PartialBlock(block, block.block_hash, slots)
            self._drop_oldest(self._whole_blocks)

    def _remember_rest(self, request: Request, block: KVCacheBlock, start: int, end: int) -> None:
        """Remember the block that holds the last tokens, from `start` to `end`, and is not full."""
        before, slots = self._before(request, start), _slots(request, start, end)
        there = [partial for partial in self._partial_blocks.get(before, ()) if partial.is_there]
        if block.block_hash is not None or any(np.array_equal(partial.slots, slots) for partial in there):
            return
        unique = BlockHash(sha256(("partial", before, slots.tobytes(), block.block_id)))
        hash = make_block_hash_with_group_id(unique, 0)
        self.kv_cache_manager.block_pool._insert_block_hash(hash, block, num_tokens=end)
        for old in there[: -MAX_PER_PREFIX + 1]:
            self._forget(old)
        self._partial_blocks.pop(before, None)
        self._partial_blocks[before] = [*there[-MAX_PER_PREFIX + 1 :], PartialBlock(block, hash, slots)]
        self._drop_oldest(self._partial_blocks)

    def _drop_oldest(self, remembered: dict[bytes, Any]) -> None:
        if len(remembered) > self.kv_cache_manager.block_pool.num_gpu_blocks:
            del remembered[next(iter(remembered))]

    def _forget(self, partial: PartialBlock) -> None:
        """Remove the hash of a partial block that is no longer offered, and reuse its block first."""
        pool = self.kv_cache_manager.block_pool
        pool._remove_cached_block_hashes(partial.block)
        if not partial.block.ref_cnt:
            pool.free_block_queue.remove(partial.block)
            pool.free_block_queue.prepend_n([partial.block])

    def _offered(self, before: bytes) -> list[PartialBlock]:
        whole = self._whole_blocks.get(before)
        known = [*self._partial_blocks.get(before, ()), *([whole] if whole else [])]
        return [partial for partial in known if partial.is_there]

    def _before(self, request: Request, start: int) -> bytes:
        """The key of the whole blocks before slot `start`: their hash, or salt and adapter if there are none."""
        if blocks := start // self.block_size:
            return bytes(request.block_hashes[blocks - 1])
        adapter = request.lora_request.lora_name if request.lora_request else ""
        return f"{request.cache_salt or ''}\0{adapter}".encode()


def _slots(request: Request, start: int, end: int) -> Slots:
    """The contents of the slots [start, end). The hash before a partial block does not include their positions."""
    ids = np.array(request.all_token_ids[start:end], np.int64)
    return np.stack([ids, position_keys(request, start, end)], 1)
