"""The scheduler classes of the target's engine core: vLLM's own, with block hashes that include positions.

They also limit the drafts of each request to the number that it asked for, with every drafting method.
"""

from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from target_service.drafting.settings import max_drafts
from vllm_hooks.block_hash import PositionHashing


class TargetScheduler(PositionHashing, Scheduler):
    """vLLM's scheduler with these two changes."""

    def update_draft_token_ids(self, draft_token_ids: Any) -> None:
        super().update_draft_token_ids(draft_token_ids)
        _limit_drafts(self.requests, draft_token_ids.req_ids)


class AsyncTargetScheduler(PositionHashing, AsyncScheduler):
    """The same for async scheduling, which is a separate class in vLLM."""

    def _update_after_schedule(self, scheduler_output: Any) -> None:
        super()._update_after_schedule(scheduler_output)
        _limit_drafts(self.requests, scheduler_output.num_scheduled_tokens)


def _limit_drafts(requests: Any, ids: Any) -> None:
    """Remove drafts (or their placeholders) beyond the request's limit. The limit is a count, so results stay exact."""
    for id in ids:
        request = requests.get(id)
        if request is None or not request.spec_token_ids or request.sampling_params is None:
            continue
        most = max_drafts(request.sampling_params.extra_args)
        if most is not None and len(request.spec_token_ids) > most:
            request.spec_token_ids = request.spec_token_ids[:most]
