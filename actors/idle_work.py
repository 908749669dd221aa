"""Work for a replica's idle time: dropped while requests run, and cancelled when one arrives."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from actors.start_up import EngineWatch
from actors.work_meter import WorkMeter

logger = logging.getLogger(__name__)


class IdleWork:
    """The idle work of one replica. requests: the meter of its requests."""

    def __init__(self, requests: WorkMeter, watch: EngineWatch) -> None:
        self._requests, self._watch = requests, watch
        self._running: set[asyncio.Task[bool]] = set()

    async def run(self, work: Coroutine[Any, Any, bool]) -> bool:
        """The result of `work`; False if it was dropped, cancelled by `stop` or failed."""
        if not self._requests.is_idle:
            work.close()
            return False
        task = asyncio.create_task(work)
        self._running.add(task)
        try:
            await asyncio.wait({task})
        finally:
            task.cancel()
            self._running.discard(task)
        if task.cancelled():
            return False
        if error := task.exception():
            logger.info("idle work failed: %s", error)
            await self._watch.check()
            return False
        return task.result()

    def stop(self) -> None:
        """A request has arrived: cancel what runs."""
        for task in self._running:
            task.cancel()
