"""The scheduler classes of the target's engine core: vLLM's own, with block hashes that include positions.

They also continue answers that another replica began, limit the drafts of each request to the number that it asked for,
with every drafting method, and give a seeded request without drafts the same steps in any batch.
"""

from collections.abc import Mapping
from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from target_service.drafting.session import DraftSettings
from target_service.vllm_backend.continued_answers import ContinuedAnswers
from target_service.vllm_backend.speculation.remote_drafts import REPORT, DraftReport
from vllm_hooks.block_hash import PositionHashing


class TargetScheduler(ContinuedAnswers, PositionHashing, Scheduler):
    """vLLM's scheduler with these changes."""

    def update_draft_token_ids(self, draft_token_ids: Any) -> None:
        super().update_draft_token_ids(draft_token_ids)
        _limit_drafts(self.requests, draft_token_ids.req_ids)

    def _update_after_schedule(self, scheduler_output: Any) -> None:
        _drop_padding(self.requests, scheduler_output)
        super()._update_after_schedule(scheduler_output)


class AsyncTargetScheduler(ContinuedAnswers, PositionHashing, AsyncScheduler):
    """The same for async scheduling. With remote drafts, each request gets the places that its last DraftReport
    wanted."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        speculation = self.vllm_config.speculative_config
        remote = speculation is not None and speculation.method == "custom_class"
        self._wanted: dict[str, int] | None = {} if remote else None

    def _update_after_schedule(self, scheduler_output: Any) -> None:
        super()._update_after_schedule(scheduler_output)
        _limit_drafts(self.requests, scheduler_output.num_scheduled_tokens, self._wanted)

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        report: DraftReport | None = getattr(model_runner_output, REPORT, None)
        if report is not None:
            self._wanted = {
                id: places for id, places in ((self._wanted or {}) | report.wanted).items() if id in self.requests
            }
            reserved = scheduler_output.scheduled_spec_decode_tokens
            # So that vLLM's statistics do not count the places without a draft.
            empty = {id: len(reserved[id]) - drafts for id, drafts in report.verified.items() if id in reserved}
            refused = scheduler_output.num_invalid_spec_tokens or {}
            scheduler_output.num_invalid_spec_tokens = {
                id: count for id, places in empty.items() if (count := max(places, refused.get(id, 0)))
            }
        return super().update_from_output(scheduler_output, model_runner_output)


def _drop_padding(requests: Any, scheduled: Any) -> None:
    """Take away the padding of seeded requests that want no drafts. vLLM pads a request that joins a decode step with
    drafts that are rejected, and the V1 runner would use other random numbers for its first token then."""
    drafts = scheduled.scheduled_spec_decode_tokens
    for id in list(drafts):
        sampling = requests[id].sampling_params
        settings = DraftSettings.read(sampling)
        if settings is not None and sampling.seed is not None and settings.max_drafts == 0:
            padding = len(drafts.pop(id))
            scheduled.num_scheduled_tokens[id] -= padding
            scheduled.total_num_scheduled_tokens -= padding


def _limit_drafts(requests: Any, ids: Any, wanted: Mapping[str, int] | None = None) -> None:
    """Remove drafts (or their placeholders) beyond the request's limit. The limit is a count, so results stay exact.

    wanted: with remote drafts, the places that requests asked for; a request without a drafter gets none.
    """
    for id in ids:
        request = requests.get(id)
        if request is None or not request.spec_token_ids:
            continue
        settings = DraftSettings.read(request.sampling_params)
        most = settings.max_drafts if settings else None
        if wanted is not None:
            most = wanted.get(id, most) if settings and settings.may_draft else 0
        request.spec_token_ids = request.spec_token_ids[:most]
