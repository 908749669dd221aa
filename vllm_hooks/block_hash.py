"""Prefix-cache keys that include positions: KV computed at other positions is never shared.

vLLM hashes the token ids of a block, the hash of the block before it, and extra keys. We append the block's offsets to
the extra keys; blocks without offsets keep their plain key, so a lead-in that was kept whole is shared with everybody.
"""

from typing import Any

from kv_transfer.position_map import position_map
from vllm_hooks.symbols import vllm_symbol

PARAMETERS = ["request", "start_token_idx", "end_token_idx", "start_mm_idx"]


def check() -> None:
    """Raise SkimError unless this vLLM has the function that `hash_positions` replaces."""
    for module in ("vllm.v1.core.kv_cache_utils", "vllm.v1.core.block_pool"):
        vllm_symbol(module, "generate_block_hash_extra_keys", PARAMETERS)


def hash_positions() -> None:
    """Replace `generate_block_hash_extra_keys` in this process, an engine core that Skim started; idempotent."""
    check()
    from vllm.v1.core import block_pool, kv_cache_utils

    plain_keys = kv_cache_utils.generate_block_hash_extra_keys
    if getattr(plain_keys, "hashes_positions", False):
        return

    def extra_keys(
        request: Any, start_token_idx: int, end_token_idx: int, start_mm_idx: int
    ) -> tuple[tuple[Any, ...] | None, int]:
        keys, mm_idx = plain_keys(request, start_token_idx, end_token_idx, start_mm_idx)
        restored = position_map(request.sampling_params.extra_args) if request.sampling_params else None
        offsets = restored.block_key(start_token_idx, end_token_idx) if restored else None
        return (keys, mm_idx) if offsets is None else ((*(keys or ()), offsets), mm_idx)

    extra_keys.hashes_positions = True  # type: ignore[attr-defined]
    kv_cache_utils.generate_block_hash_extra_keys = extra_keys
    block_pool.generate_block_hash_extra_keys = extra_keys
