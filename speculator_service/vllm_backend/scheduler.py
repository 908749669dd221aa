"""The speculator's scheduler: gangs of drafting rounds, turns of drafts and prompts, question rows, and scores.

Drafting rounds that are sent at the same time reach the engine one after another. The first would decode all its tokens
(`multi_step`) before the others are scheduled. So each round carries the size of its gang, and the scheduler delays the
early ones until the last has arrived.

A prefix cache keeps no queries: a hit of a prompt that is scored by its question's tokens ends before these.
"""

import asyncio
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from vllm.v1.core.kv_cache_manager import KVCacheBlocks
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.engine import EngineCoreOutputs
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request

from speculator_service.scoring.queries import SCORE_ARG
from speculator_service.vllm_backend.multi_step import MultiStepScheduler
from speculator_service.vllm_backend.turns import PromptLimit, TimeSlices
from vllm_hooks.block_hash import PositionHashing

SCORES = "skim_scores"

DRAFT_ARG = "skim_draft"
"""Key in `SamplingParams.extra_args` of a drafting round: (id, size) of its gang."""

GANG_WAIT_S = 0.02
"""Maximum wait after the last arrival. Missing rounds may have been cancelled before they reached the scheduler."""


class Gang:
    """Groups the rounds of one turn of the event loop. Call `join` once per round; its result goes with the request."""

    def __init__(self) -> None:
        self._ids = itertools.count()
        self._joined: list[int] = []

    async def join(self) -> tuple[int, int]:
        """(id, size) of the gang. The size is known at the end of this turn of the event loop."""
        if not self._joined:
            self._joined = [next(self._ids), 0]
        joined = self._joined
        joined[1] += 1
        await asyncio.sleep(0)
        if self._joined is joined:
            self._joined = []
        return joined[0], joined[1]


class _Arrived(NamedTuple):
    """Members that have arrived, and the time of the latest arrival in seconds."""

    members: int
    latest: float


class SpeculatorScheduler(PositionHashing, MultiStepScheduler):
    """Not async: with several tokens per step, scheduling ahead would gain little."""

    running: list[Request]
    max_num_scheduled_tokens: int

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.clock: Callable[[], float] = time.perf_counter
        self.time_slices, self.prompt_limit = TimeSlices(), PromptLimit()
        self._gangs: dict[int, _Arrived] = {}  # only incomplete gangs

    def add_request(self, request: Request) -> None:
        super().add_request(request)
        if gang := draft_argument(request):
            number, size = gang
            members = 1 + (self._gangs[number].members if number in self._gangs else 0)
            if members < size:
                self._gangs[number] = _Arrived(members, self.clock())
            else:
                self._gangs.pop(number, None)

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        late = self.clock() - GANG_WAIT_S
        self._gangs = {number: arrived for number, arrived in self._gangs.items() if arrived.latest > late}
        early = [r for r in self.waiting if (gang := draft_argument(r)) and gang[0] in self._gangs]
        with self._delayed(early):
            return self._schedule_a_turn(*args, **kwargs)

    def _schedule_a_turn(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        reading = [request for request in self.running if request.is_prefill_chunk]
        waiting = [request for request in self.waiting if not draft_argument(request)]
        drafts = len(waiting) < len(self.waiting) or any(
            draft_argument(request) and not request.is_prefill_chunk for request in self.running
        )
        prompts = bool(reading or waiting)
        self.prompt_limit.begin(drafts=drafts, prompts=prompts)
        if not self.time_slices.begin(drafts=drafts, prompts=prompts):
            return self._schedule_prompts(*args, **kwargs) if prompts else super().schedule(*args, **kwargs)
        self.running = [request for request in self.running if not request.is_prefill_chunk]
        # Delayed requests still count as running.
        self.max_num_running_reqs -= len(reading)
        try:
            with self._delayed(waiting):
                output = super().schedule(*args, **kwargs)
        finally:
            self.max_num_running_reqs += len(reading)
            self.running = reading + self.running
        if not output.total_num_scheduled_tokens:
            self.time_slices.give_up()
        return output

    def _schedule_prompts(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        """A step with prompts, not longer than drafts can wait."""
        most = self.max_num_scheduled_tokens
        self.max_num_scheduled_tokens = self.prompt_limit.tokens(most)
        try:
            output = super().schedule(*args, **kwargs)
        finally:
            self.max_num_scheduled_tokens = most
        self.prompt_limit.scheduled(output.total_num_scheduled_tokens)
        return output

    @contextmanager
    def _delayed(self, requests: Sequence[Request]) -> Iterator[None]:
        """These waiting requests are not scheduled meanwhile."""
        self.waiting.remove_requests(requests)
        try:
            yield
        finally:
            for request in requests:
                self.waiting.add_request(request)

    def _get_local_prefix_cache_hit(self, request: Request) -> tuple[KVCacheBlocks, int, int, bool]:
        blocks, count, boundary, diverged = super()._get_local_prefix_cache_hit(request)
        params = request.sampling_params
        scored = (params.extra_args or {}).get(SCORE_ARG) if params else None
        first = min((first for first, _ in scored["questions"]), default=None) if scored else None
        if first is None or count <= first:
            return blocks, count, boundary, diverged
        if self.has_mamba_layers:
            # A hit ends where a state was cached.
            found, count, _ = self.kv_cache_manager.coordinator.find_longest_cache_hit(request.block_hashes, first)
            return self.kv_cache_manager.create_kv_cache_blocks(found), count, boundary, diverged
        whole = first // self.block_size
        cached = KVCacheBlocks(tuple(group[:whole] for group in blocks.blocks))
        return cached, whole * self.block_size, boundary, diverged

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        if scores := getattr(model_runner_output, SCORES, None):
            for client in outputs.values():
                for output in client.outputs:
                    if output.request_id in scores:
                        output.kv_transfer_params = scores[output.request_id]
        return outputs


def draft_argument(request: Request) -> tuple[int, int] | None:
    """The request's DRAFT_ARG; None for a prompt."""
    params = request.sampling_params
    return (params.extra_args or {}).get(DRAFT_ARG) if params else None
