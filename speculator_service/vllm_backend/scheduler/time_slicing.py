"""Time slicing: while there are both drafts and prompts, each gets half of the engine's time (and see `prompt_limit`).

vLLM fills each step with the running prompts. So a draft would wait until they are computed, or each of its steps would
take as long as a chunk of a prompt. A target waits for a few hundred milliseconds at most.
"""

import time
from collections.abc import Callable
from typing import Any

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request

from speculator_service.vllm_backend.scheduler.prompt_limit import PromptLimit

DRAFT_ARG = "skim_draft"
"""Key in `SamplingParams.extra_args` of a drafting round: (id, size) of its gang, see `gang`."""


class TimeSlices:
    """After a step with prompts, drafts get time for themselves."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        """clock: seconds."""
        self._clock = clock
        self._began = clock()
        self._left = 0.0
        self._alone, self._read = False, False

    def begin(self, *, drafts: bool, prompts: bool) -> bool:
        """Call it when a step begins. Returns whether this step runs drafts without prompts."""
        now = self._clock()
        took, self._began = now - self._began, now
        self._left = self._left - took if self._alone else took * self._read
        self._alone = prompts and drafts and self._left > 0
        self._read = prompts and not self._alone
        return self._alone

    def give_up(self) -> None:
        """The drafts could not use their time."""
        self._left = 0.0


class TimeSlicingScheduler(Scheduler):
    """A scheduler in which drafts alternate with running and waiting prompts."""

    running: list[Request]
    max_num_scheduled_tokens: int

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.time_slices = TimeSlices()
        self.prompt_limit = PromptLimit()

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
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
        self.waiting.remove_requests(waiting)
        # Delayed requests still count as running.
        self.max_num_running_reqs -= len(reading)
        try:
            output = super().schedule(*args, **kwargs)
        finally:
            self.max_num_running_reqs += len(reading)
            self.running = reading + self.running
            for request in waiting:
                self.waiting.add_request(request)
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


def draft_argument(request: Request) -> tuple[int, int] | None:
    """The request's DRAFT_ARG; None for a prompt."""
    params = request.sampling_params
    return (params.extra_args or {}).get(DRAFT_ARG) if params else None
