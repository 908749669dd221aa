"""Keep-alive of streams: something is sent before a proxy takes a silent connection for a dead one."""

import asyncio
from collections.abc import Awaitable, Callable


class KeepAlive:
    """Calls `speak` whenever nothing was sent for `interval_s` seconds, after the request is admitted.

    The time before the admission counts. admission: set while the request is admitted, as in `RequestContext`.
    """

    def __init__(self, interval_s: float, admission: asyncio.Event, speak: Callable[[], Awaitable[None]]) -> None:
        self._interval_s, self._admission, self._speak = interval_s, admission, speak
        self._loop = asyncio.get_running_loop()
        self._last = self._loop.time()
        self._task: asyncio.Task[None] | None = None

    def sent(self) -> None:
        """Note that something is sent now."""
        self._last = self._loop.time()

    def start(self) -> None:
        """Begin to call; without effect if `interval_s` is 0."""
        if self._interval_s > 0 and self._task is None:
            self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """End the calls. A call that failed, because the client is gone, is not raised here: other sends fail, too."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        while True:
            await self._admission.wait()
            left = self._last + self._interval_s - self._loop.time()
            if left > 0:
                await asyncio.sleep(left)
            else:
                await self._speak()
                self.sent()
