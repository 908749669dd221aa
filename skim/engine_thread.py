"""The event loop of a pair's engines, in a thread of its own: plain calls then work everywhere, also in notebooks."""

import os
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Any, TypeVar

import anyio
from anyio.from_thread import BlockingPortal

from skim.engines import PairEngines
from skim_common.errors import SkimError

Result = TypeVar("Result")

END_LIMIT_S = 60.0
"""How long the end of running calls and of both engines may take."""
CLOSED = "this pair is closed: open another one"
FORKED = (
    "this pair was opened before this process was forked, and works only in the process that opened it: open another "
    "pair here, or start this process by another method (multiprocessing: spawn)"
)


class EngineThread:
    """Runs functions beside the engines, several at a time. A process forked from this one has no such thread."""

    def __init__(self, **settings: Any) -> None:
        """settings: of `PairEngines`. Raises as it does."""
        self._process, self._open = os.getpid(), True
        started: Future[tuple[BlockingPortal, PairEngines]] = Future()
        self._thread = threading.Thread(
            target=anyio.run, args=(_serve, started, settings), name="skim-pair", daemon=True
        )
        self._thread.start()
        try:
            self._portal, self.engines = started.result()
        except BaseException:
            started.cancel()
            raise

    def call(self, function: Callable[..., Awaitable[Result]], *given: Any) -> Result:
        """The function's result. An interrupted wait cancels it. Raises SkimError after the end, and in a fork."""
        if self._process != os.getpid() or not self._open:
            raise SkimError(CLOSED if self._process == os.getpid() else FORKED)
        future = self._portal.start_task_soon(function, *given)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        """Stop the engines and the thread; idempotent. Raises SkimError in a fork."""
        if self._process != os.getpid():
            raise SkimError(FORKED)
        self.end()

    def end(self) -> None:
        """As `close`, for the collector and the end of a process: a fork leaves the engines to their own process."""
        if self._process != os.getpid() or not self._open:
            return
        if threading.current_thread() is self._thread:  # the collector works in it; it cannot wait for itself
            threading.Thread(target=self.end).start()
            return
        self._open = False
        self._portal.call(self._portal.stop)
        self._thread.join(END_LIMIT_S)


async def _serve(started: Future[tuple[BlockingPortal, PairEngines]], settings: dict[str, Any]) -> None:
    """Start the engines, and run their event loop until the portal is stopped."""
    try:
        engines = PairEngines(**settings)
        try:
            await engines.ensure_heads()
            async with BlockingPortal() as portal:
                if started.set_running_or_notify_cancel():
                    started.set_result((portal, engines))
                    await portal.sleep_until_stopped()
        finally:
            await engines.close()
    except BaseException as error:
        if started.done():
            raise
        started.set_exception(error)
