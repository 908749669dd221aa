"""Prefix-cache keys that include positions, so that KV computed at other positions is never shared.

vLLM hashes the token ids of a block, the hash of the previous block, and extra keys. The block's position offsets are
appended to the extra keys. A block whose offsets are all zero keeps its plain key. So a kept prompt and a plain prompt
share the blocks before the first dropped token.
"""

from typing import Any

from kv_transfer.position_map import position_map


class PositionHashing:
    """Scheduler mixin that adds positions to the block hashes of its engine core.

    vLLM creates the scheduler before it computes the first block hash.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        hash_positions()
        super().__init__(*args, **kwargs)


def hash_positions() -> None:
    """Replace vLLM's `generate_block_hash_extra_keys` in this process. A second call changes nothing."""
    from vllm.v1.core import block_pool, kv_cache_utils

    plain_keys = kv_cache_utils.generate_block_hash_extra_keys
    if getattr(plain_keys, "hashes_positions", False):
        return

    def extra_keys(
        request: Any, start_token_idx: int, end_token_idx: int, start_mm_idx: int
    ) -> tuple[tuple[Any, ...] | None, int]:
        keys, mm_idx = plain_keys(request, start_token_idx, end_token_idx, start_mm_idx)
        sampling = request.sampling_params
        restored = position_map(sampling.extra_args) if sampling else None
        offsets = restored.block_key(start_token_idx, end_token_idx) if restored else None
        return (keys, mm_idx) if offsets is None else ((*(keys or ()), offsets), mm_idx)

    extra_keys.hashes_positions = True  # type: ignore[attr-defined]
    kv_cache_utils.generate_block_hash_extra_keys = extra_keys
    block_pool.generate_block_hash_extra_keys = extra_keys
