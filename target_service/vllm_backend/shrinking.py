"""Shrinks a prompt in place: some of its whole blocks are left out, and the KV of the others stays as it was computed.

A block's KV has absolute positions, and a request may have any blocks. So what is left of a prompt needs no second
read: once the prompt is read, each block that is left gets an additional key in the prefix cache, the one that it has
in the later prompt. vLLM removes all keys of a block when it evicts the block
(`BlockPool.cached_block_hashes_by_block`). The prompt itself stays cached too. From the first dropped block on, the
later prompt's tag is in its keys: a plain read of the same tokens never finds KV that was computed with the dropped
blocks in view. Blocks that were evicted are read again, under the same keys, without the dropped blocks in view.
"""

from copy import copy
from typing import Any

import numpy as np
from vllm.config import VllmConfig
from vllm.v1.core.kv_cache_utils import make_block_hash_with_group_id
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.core.single_type_kv_cache_manager import FullAttentionManager
from vllm.v1.request import Request

from kv_transfer.messages import KeptPrompt, Shrink
from kv_transfer.position_map import position_args
from kv_transfer.spans import mask_of
from skim_common.symbols import Hook
from vllm_hooks.partial_blocks import why_not_alone

SHRINK = "skim_shrink"
"""Key in `SamplingParams.extra_args`; its value is `shrink_args(...)`."""

_SCHEDULER = "vllm.v1.core.sched.scheduler"
_POOL = "vllm.v1.core.block_pool"
HOOK = Hook(
    what="prompts that shrink in place",
    how=(
        "vLLM: a mixin of both schedulers gives the blocks of a finished read the keys of the shrunk prompt, beside"
        " their own"
    ),
    until="vLLM can leave blocks out of a cached prompt",
    symbols=(
        (_SCHEDULER, "Scheduler._update_request_with_output", "self request new_token_ids is_stale"),
        ("vllm.v1.core.kv_cache_manager", "KVCacheManager.get_blocks", "self request_id"),
        (_POOL, "BlockPool._insert_block_hash", "self block_hash_with_group_id block num_tokens"),
        (_POOL, "BlockPool._remove_cached_block_hashes", "self block"),
        (_POOL, "BlockPool.cached_block_hashes_by_block", ""),
        ("vllm.v1.request", "Request._block_hasher", ""),
    ),
)


def shrinks_by(config: VllmConfig) -> int:
    """The tokens of a block of a running engine that can shrink prompts in place; 0 for one that cannot."""
    windows = config.model_config.get_sliding_window() is not None
    possible = config.cache_config.enable_prefix_caching and not windows and why_not_alone(config) is None
    return int(config.cache_config.block_size) if possible else 0


def shrink_args(prompt: KeptPrompt, shrink: Shrink) -> dict[str, Any]:
    """What the scheduler needs of it. Raises WireError."""
    return {"dropped": shrink.dropped.tolist(), "extra_args": position_args(shrink.of(prompt))}


class ShrinkInPlace(Scheduler):
    """Scheduler mixin: a prompt with SHRINK shrinks when its request ends, and while that has its blocks."""

    def _update_request_with_output(
        self, request: Request, new_token_ids: list[int], is_stale: bool = False
    ) -> tuple[list[int], bool]:
        new_token_ids, stopped = super()._update_request_with_output(request, new_token_ids, is_stale)
        asked = request.sampling_params and (request.sampling_params.extra_args or {}).get(SHRINK)
        if asked and stopped and not is_stale:
            self._shrink(request, **asked)
        return new_token_ids, stopped

    def _shrink(self, request: Request, dropped: list[list[int]], extra_args: dict[str, Any]) -> None:
        manager = self.kv_cache_manager
        if [type(one) for one in manager.coordinator.single_type_managers] != [FullAttentionManager]:
            return
        prompt = np.array(request.prompt_token_ids)
        kept = ~mask_of(dropped, prompt.size)
        sampling = copy(request.sampling_params)
        assert sampling is not None
        sampling.extra_args = extra_args
        # vLLM's own request computes the keys that the later prompt will have.
        shrunk = Request(
            request.request_id,
            prompt[kept].tolist(),
            sampling,
            None,
            lora_request=request.lora_request,
            cache_salt=request.cache_salt,
            block_hasher=request._block_hasher,
        )
        blocks = manager.get_blocks(request.request_id).blocks[0]
        left = [blocks[start // self.block_size] for start in range(0, prompt.size, self.block_size) if kept[start]]
        for key, block in zip(shrunk.block_hashes, left, strict=False):
            if block.block_hash is None:
                return
            manager.block_pool._insert_block_hash(make_block_hash_with_group_id(key, 0), block, num_tokens=None)
