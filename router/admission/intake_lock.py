"""Requests that come together are read, tokenized and decided one after the other.

One event loop serves them all. If it did a little of each in turn, all of their first tokens would come at the end. So
a request is taken in only when the one before it has gone to a pool, and what has begun goes on meanwhile.
"""

import asyncio
from collections.abc import Callable

LONGEST_S = 0.05
"""The next request is taken in after this time in any case, such as when one fetches an image."""


class IntakeLock:
    """The intake of one event loop, in the order of the requests. waiting: requests that are not taken in yet."""

    def __init__(self, longest_s: float = LONGEST_S) -> None:
        self._lock, self._longest_s = asyncio.Lock(), longest_s
        self.waiting = 0

    async def enter(self) -> Callable[[], None]:
        """Wait until this request is taken in. The returned function lets the next one in; only its first call counts.

        A request that is cancelled while it waits has not entered.
        """
        self.waiting += 1
        try:
            await self._lock.acquire()
        finally:
            self.waiting -= 1
        inside = True

        def leave() -> None:
            nonlocal inside
            if inside:
                inside = False
                alarm.cancel()
                self._lock.release()

        alarm = asyncio.get_running_loop().call_later(self._longest_s, leave)
        return leave
