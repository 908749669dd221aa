"""Work that outlives the request that starts it, so that no client waits for it."""

import asyncio
from collections.abc import Coroutine
from contextvars import Context
from typing import Any


class BackgroundTasks:
    """The tasks that are not done yet."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._running)

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run `work` in a context of its own.

        Serve cancels calls that belong to a cancelled or finished request, and finds them by context.
        """
        task = asyncio.create_task(work, context=Context())
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    def cancel(self) -> None:
        """Cancel all of them."""
        for task in self._running:
            task.cancel()
