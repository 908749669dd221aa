"""Tells an engine that hangs from one that is busy: only the first one leaves a call unanswered.

A stopped process (SIGSTOP), a kernel that does not end, or a collective operation whose partner is away: the engine's
processes live, so nothing else sees it. A busy engine answers between two of its steps.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

SHARE = 10
"""A call is sent when the last answer is limit_s / SHARE old, and a pause between two looks counts as no more."""


class Heartbeat:
    """Asks an engine for a sign of life, with one call at a time.

    ask: returns once the engine has answered. An error is an answer: the engine's own health says what it means.
    limit_s: an engine without an answer for so long hangs. clock: seconds.

    Only the time that this process has seen counts. If it was itself stopped, an answer may wait to be read.
    """

    def __init__(
        self,
        ask: Callable[[], Coroutine[Any, Any, None]],
        limit_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ask, self._limit_s, self._clock = ask, limit_s, clock
        self._silent_s, self._looked_at = 0.0, clock()
        self._call: asyncio.Task[None] | None = None

    def hangs(self) -> bool:
        """Whether the engine hangs. Never waits. Ask several times in each limit_s / SHARE."""
        now = self._clock()
        self._silent_s += min(now - self._looked_at, self._limit_s / SHARE)
        self._looked_at = now
        if self._call is not None and self._call.done():
            if not self._call.cancelled():
                self._call.exception()  # asyncio logs errors that nobody has read
            self._call, self._silent_s = None, 0.0
        if self._call is None and self._silent_s >= self._limit_s / SHARE:
            self._call = asyncio.create_task(self._ask())
        return self._silent_s >= self._limit_s

    def stop(self) -> None:
        """Wait no longer for an answer."""
        if self._call is not None:
            self._call.cancel()
