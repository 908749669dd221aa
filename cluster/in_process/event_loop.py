"""An event loop in a thread of its own: plain calls then work everywhere, also where another loop runs (notebooks)."""

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

from skim_common.errors import SkimError

Result = TypeVar("Result")

CLOSED = "this pair is closed: open another one"
FORKED = (
    "this pair was opened before this process was forked, and works only in the process that opened it: open another "
    "pair here, or start this process by another method (multiprocessing: spawn)"
)
LAST_LIMIT_S = 60.0
"""How long a thread that was dropped may take to end."""


class EventLoopThread:
    """Runs coroutines for callers in other threads, several at a time. A process forked from this one has no such
    thread: there, all calls raise SkimError."""

    def __init__(self, name: str) -> None:
        self._ready, self.stopped, self._process = threading.Event(), False, os.getpid()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name=name, daemon=True)
        self._thread.start()
        self._ready.wait()

    async def _serve(self) -> None:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        self._ready.set()
        await self._end.wait()

    def run(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        """The coroutine's result; its exceptions are raised here. An interrupted wait cancels the coroutine.

        Raises SkimError after `stop`, and in a forked process.
        """
        if self.stopped or self._process != os.getpid():
            coroutine.close()
            raise SkimError(CLOSED if self.stopped else FORKED)
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

    def drop(self, last: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        """Run `last` and end, without an error: for a user of the thread that is collected or whose process ends.

        It waits for the end, unless the collector works in this thread itself.
        """
        if self.stopped or self._process != os.getpid():
            return
        done: Future[Any] = asyncio.run_coroutine_threadsafe(last(), self._loop)
        done.add_done_callback(lambda _: self.stop())
        if threading.current_thread() is not self._thread:
            with suppress(Exception):
                done.result(LAST_LIMIT_S)
            self._thread.join(LAST_LIMIT_S)
