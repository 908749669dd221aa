"""An event loop in a thread of its own: plain calls then work everywhere, also where another loop runs (notebooks)."""

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from skim_common.errors import SkimError

Result = TypeVar("Result")


class EventLoopThread:
    """Runs coroutines for callers in other threads, several at a time."""

    def __init__(self, name: str) -> None:
        self._ready, self.stopped = threading.Event(), False
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name=name, daemon=True)
        self._thread.start()
        self._ready.wait()

    async def _serve(self) -> None:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        self._ready.set()
        await self._end.wait()

    def run(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        """The coroutine's result; its exceptions are raised here. An interrupted wait cancels the coroutine.

        Raises SkimError after `stop`.
        """
        if self.stopped:
            coroutine.close()
            raise SkimError("this pair is closed: open another one")
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def stop(self) -> None:
        """End the loop, and the thread as soon as the loop is free; idempotent."""
        if not self.stopped:
            self.stopped = True
            self._loop.call_soon_threadsafe(self._end.set)
