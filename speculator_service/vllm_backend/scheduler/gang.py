"""Gang scheduling: drafting rounds that are sent at the same time run in the same engine step.

They reach the engine one message after another. Without this, the first would start alone and decode all its tokens
(`multi_step`) before the others are scheduled, which doubles the forwards. So each round carries the size of its gang,
and the scheduler delays the early ones until the last has arrived.
"""

import asyncio
import itertools
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.request import Request

from speculator_service.vllm_backend.scheduler.time_slicing import TimeSlicingScheduler, draft_argument

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


class GangScheduler(TimeSlicingScheduler):
    """A scheduler that delays the rounds of a gang until all have arrived."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.clock: Callable[[], float] = time.perf_counter
        self._gangs: dict[int, _Arrived] = {}  # only incomplete gangs

    def add_request(self, request: Request) -> None:
        super().add_request(request)
        if gang := draft_argument(request):
            id, size = gang
            members = 1 + (self._gangs[id].members if id in self._gangs else 0)
            if members < size:
                self._gangs[id] = _Arrived(members, self.clock())
            else:
                self._gangs.pop(id, None)

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        late = self.clock() - GANG_WAIT_S
        self._gangs = {id: arrived for id, arrived in self._gangs.items() if arrived.latest > late}
        early = [r for r in self.waiting if (gang := draft_argument(r)) and gang[0] in self._gangs]
        if not early:
            return super().schedule(*args, **kwargs)
        self.waiting.remove_requests(early)
        try:
            return super().schedule(*args, **kwargs)
        finally:
            for request in early:
                self.waiting.add_request(request)
