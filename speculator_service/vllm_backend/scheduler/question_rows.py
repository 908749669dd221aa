"""Question rows: a prompt that is scored by its question's tokens computes these, also if they are in the prefix cache.

The queries of cached tokens are gone, because a KV cache keeps keys and values only. So a prefix-cache hit ends before
the first of the tokens whose queries are needed. Depends on `Scheduler._get_local_prefix_cache_hit`
(`vllm.v1.core.sched.scheduler`).
"""

from vllm.v1.core.kv_cache_manager import KVCacheBlocks
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request

from speculator_service.scoring.queries import SCORE_ARG


class QuestionRowScheduler(Scheduler):
    """Caps the prefix-cache hit of a scored request before its question."""

    def _get_local_prefix_cache_hit(self, request: Request) -> tuple[KVCacheBlocks, int, int, bool]:
        blocks, count, boundary, diverged = super()._get_local_prefix_cache_hit(request)
        first = _first_row(request)
        if first is None or count <= first:
            return blocks, count, boundary, diverged
        if self.has_mamba_layers:
            # A hit ends where a state was cached.
            found, count, _ = self.kv_cache_manager.coordinator.find_longest_cache_hit(request.block_hashes, first)
            return self.kv_cache_manager.create_kv_cache_blocks(found), count, boundary, diverged
        whole = first // self.block_size
        cached = KVCacheBlocks(tuple(group[:whole] for group in blocks.blocks))
        return cached, whole * self.block_size, boundary, diverged


def _first_row(request: Request) -> int | None:
    """The position of the first question row; None if the request needs none."""
    params = request.sampling_params
    scored = (params.extra_args or {}).get(SCORE_ARG) if params else None
    return min((first for first, _ in scored["questions"]), default=None) if scored else None
