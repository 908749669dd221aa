"""When a replica that Serve stops must hand its answers over.

Serve waits for the requests of a stopping replica for `graceful_shutdown_timeout_s`, then it kills it, and tells the
replica's own class nothing before. So this reads Serve's state of it (ray.serve._private.replica.Replica).
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any, TypeVar

from ray._private.worker import global_worker

from skim_common.errors import HandoverError

SPARE_S = 5.0
"""So long before the kill, answers are handed over: Serve needs up to 2 s to see that the replica is idle."""

POLL_S = 0.25
Item = TypeVar("Item")


class Draining:
    """The end of a replica. replica: Serve's object of it; None outside Serve. clock: seconds."""

    def __init__(self, replica: Any = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._replica, self._clock = replica, clock
        self._began: float | None = None
        self._waits: set[asyncio.Timeout] = set()
        self._watch: asyncio.Task[None] | None = None

    @property
    def deadline_passed(self) -> bool:
        """Whether answers that still run must go on elsewhere. Ask often: the time begins when a stop is first seen."""
        if self._replica is None or not self._replica._shutting_down:
            return False
        if self._began is None:
            self._began = self._clock()
        allowed = self._replica._deployment_config.graceful_shutdown_timeout_s
        return self._clock() - self._began >= allowed - min(SPARE_S, allowed / 2)

    async def each(self, stream: AsyncGenerator[Item, None]) -> AsyncGenerator[Item, None]:
        """The items of `stream`, which is closed in any case. Raises HandoverError when `deadline_passed` becomes true
        while it waits for one, such as the first token of a long prompt.
        """
        async with aclosing(stream):
            while True:
                wait = asyncio.timeout(None)  # without a timer, which would cost as much as the way of a token
                try:
                    async with wait:
                        self._waits.add(wait)
                        if self._watch is None:
                            self._watch = asyncio.create_task(self._end_waits())
                        item = await anext(stream)
                except StopAsyncIteration:
                    return
                except TimeoutError:
                    if not wait.expired():
                        raise
                    raise handover() from None
                finally:
                    self._waits.discard(wait)
                yield item

    async def _end_waits(self) -> None:
        """Runs while there may be waits: a token is seldom further away than a poll."""
        while self._waits:
            await asyncio.sleep(POLL_S)
            while self._waits and self.deadline_passed:
                self._waits.pop().reschedule(0)
        self._watch = None


def handover() -> HandoverError:
    return HandoverError("this replica stops; another one continues the answer")


def own_replica() -> Any:
    """Serve's object of the replica that runs in this process; None if there is none."""
    actors = (getattr(actor, "_replica_impl", None) for actor in global_worker.actors.values())
    return next((replica for replica in actors if replica is not None), None)
