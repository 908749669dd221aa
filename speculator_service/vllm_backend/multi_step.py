"""Multi-step scheduling: after its prompt, a request decodes several tokens in one engine step.

An engine step costs many times the forward of a small model. So the scheduler allocates the slots of the tokens that a
request still has to decode and notes them on the `SchedulerOutput` (`MULTI_STEP`). The worker runs the ordinary step,
then synthetic steps with one token for each of those requests, and returns all tokens together, as vLLM's own
speculative decoding does.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from vllm.v1.core.sched.output import CachedRequestData, SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import LogprobsLists, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

MAX_STEPS = 16
"""Maximum number of synthetic steps after an ordinary step. A new request waits for at most this many."""

MULTI_STEP = "skim_multi_step"
"""Attribute of `SchedulerOutput`: dict request id -> FurtherSteps."""


class FurtherSteps(NamedTuple):
    """The synthetic steps of one request after an ordinary step. computed: tokens with KV after that. outputs: output
    tokens before it. more: number of synthetic steps. blocks: KV block ids by group that were added for them.
    """

    computed: int
    outputs: int
    more: int
    blocks: tuple[list[int], ...] | None


class MultiStepScheduler(Scheduler):
    """Adds synthetic steps for each request whose prompt is computed, within its length and the free KV blocks."""

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        output = super().schedule(*args, **kwargs)
        going = {id: g for id in output.num_scheduled_tokens if (g := self._further_steps(self.requests[id]))}
        setattr(output, MULTI_STEP, going)
        return output

    def _further_steps(self, request: Request) -> FurtherSteps | None:
        left = min(request.max_tokens - request.num_output_tokens, self.max_model_len - request.num_tokens)
        more = min(left - 1, MAX_STEPS)
        if request.is_prefill_chunk or more <= 0 or self._ends_in_a_cached_state(request):
            return None
        blocks = self.kv_cache_manager.allocate_slots(request, more)
        if blocks is None:  # vLLM then schedules one token per step, and may preempt the request
            return None
        going = FurtherSteps(request.num_computed_tokens, request.num_output_tokens, more, blocks.get_block_ids(True))
        request.num_computed_tokens += more
        return going

    def _ends_in_a_cached_state(self, request: Request) -> bool:
        """Whether vLLM caches the state of linear attention or a state space after this step, inside a block. It copies
        it aside before its own next step, and a synthetic step would overwrite it before."""
        unit = self.hash_block_size
        at_the_end = request.num_computed_tokens == request.num_prompt_tokens // unit * unit
        return self.need_mamba_block_aligned_split and at_the_end

    def _update_request_with_output(
        self, request: Request, new_token_ids: list[int], is_stale: bool = False
    ) -> tuple[list[int], bool]:
        """Cache the full blocks now. vLLM would do it in the next step of the request, and there may be none."""
        running = request.status == RequestStatus.RUNNING
        new_token_ids, stopped = super()._update_request_with_output(request, new_token_ids, is_stale)
        if running and len(new_token_ids) > 1:
            self.kv_cache_manager.cache_blocks(request, min(request.num_computed_tokens, request.num_tokens))
        return new_token_ids, stopped


def following_steps(output: SchedulerOutput) -> Iterator[SchedulerOutput]:
    """The synthetic steps after `output`, each with one token for every request that has steps left."""
    going: dict[str, FurtherSteps] = getattr(output, MULTI_STEP, {})
    for step in range(max((g.more for g in going.values()), default=0)):
        there = {id: g for id, g in going.items() if step < g.more}
        yield replace(
            SchedulerOutput.make_empty(),
            scheduled_cached_reqs=CachedRequestData(
                req_ids=list(there),
                resumed_req_ids=set(),
                new_token_ids=[],
                all_token_ids={},
                new_block_ids=[None if step else g.blocks for g in there.values()],
                num_computed_tokens=[g.computed + step for g in there.values()],
                num_output_tokens=[g.outputs + step + 1 for g in there.values()],
            ),
            num_scheduled_tokens=dict.fromkeys(there, 1),
            total_num_scheduled_tokens=len(there),
            num_common_prefix_blocks=[0] * len(output.num_common_prefix_blocks),
        )


def merge(outputs: list[ModelRunnerOutput]) -> ModelRunnerOutput:
    """One output for an ordinary step and its synthetic steps. Requests have the order of the first output."""
    first, *others = outputs
    if not others:
        return first
    rows = [[(o, o.req_id_to_index[id]) for o in outputs if id in o.req_id_to_index] for id in first.req_ids]
    tokens = [[token for output, row in places for token in output.sampled_token_ids[row]] for places in rows]
    return replace(first, sampled_token_ids=tokens, logprobs=_merge_logprobs(rows))


def _merge_logprobs(rows: list[list[tuple[ModelRunnerOutput, int]]]) -> LogprobsLists | None:
    """The logprobs of all steps, request by request. Steps differ in width, so rows are padded to the widest."""
    sampled = [[(output.logprobs, row) for output, row in places if output.sampled_token_ids[row]] for places in rows]
    width = max((lists.logprobs.shape[1] for places in sampled for lists, _ in places if lists), default=0)
    if not width:
        return None
    starts = np.cumsum([0, *map(len, sampled)])
    ids = np.zeros((starts[-1], width), np.int32)
    logprobs = np.full((starts[-1], width), -np.inf, np.float32)
    ranks = np.zeros(starts[-1], np.int32)
    for i, (lists, row) in enumerate(place for places in sampled for place in places):
        if lists:
            own = lists.slice_request(row, 1)
            columns = own.logprobs.shape[1]
            ids[i, :columns], logprobs[i, :columns] = own.logprob_token_ids, own.logprobs
            ranks[i] = own.sampled_token_ranks[0]
    return LogprobsLists(ids, logprobs, ranks, starts.tolist())
