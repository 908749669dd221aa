"""The deadline of a request. Each hop gets the time that is left (`timeout_ms`) and ends its part when that is over.

Only durations travel, as gRPC does it: the clocks of two machines may differ.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Self, TypeVar

from skim_common.errors import DeadlineError

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Deadline:
    """at: seconds of the running event loop's clock; None: never."""

    at: float | None = None

    @classmethod
    def after(cls, timeout_ms: float | None, since: float | None = None) -> Self:
        """The deadline so many milliseconds after `since`, in seconds of the event loop's clock, or after now."""
        since = asyncio.get_running_loop().time() if since is None else since
        return cls(None if timeout_ms is None else since + timeout_ms / 1e3)

    @property
    def left_ms(self) -> float | None:
        """Milliseconds until the deadline, at least 0; None: no limit."""
        return None if self.at is None else max(0.0, 1e3 * (self.at - asyncio.get_running_loop().time()))

    def check(self) -> None:
        """Raise DeadlineError if the deadline is over."""
        if self.left_ms == 0:
            raise _error()

    @asynccontextmanager
    async def limit(self) -> AsyncIterator[None]:
        """Cancel what runs in this context when the deadline is over, and raise DeadlineError."""
        timer = asyncio.timeout_at(self.at)
        try:
            async with timer:
                yield
        except TimeoutError:
            if not timer.expired():
                raise
            raise _error() from None

    async def next(self, stream: AsyncIterator[Item]) -> Item | None:
        """The next item of `stream`, or None at its end. Raises DeadlineError if it does not come before the deadline.
        A consumer's task is never cancelled."""
        if self.at is None:  # a timer for each token costs as much as the rest of its way
            return await anext(stream, None)
        async with self.limit():
            return await anext(stream, None)


NO_DEADLINE = Deadline()


def _error() -> DeadlineError:
    return DeadlineError("the deadline of this request is over; give it more time, or send it when the load is lower")
