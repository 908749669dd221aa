"""Bounds the memory of the bodies that a router reads at the same time: beyond it, the slowest body is given up.

Reserved lengths would let a few clients that declare much and send nothing keep all others out. So only bytes that have
arrived count, and the body with the fewest bytes per second goes first: a slow client loses its own place, and nobody
waits for one.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from router.refusals import RefusedError

FREE_BYTES = 64 * 2**10
"""A smaller body does not count and is never given up: uvicorn holds as much of a connection (its HIGH_WATER_LIMIT)."""

RETRY_S = 5


class Reading:
    """One body while it is read. size: bytes that have arrived."""

    def __init__(self, timeout: asyncio.Timeout, began: float) -> None:
        self.size, self.given_up = 0, False
        self._timeout, self._began = timeout, began

    @property
    def counts(self) -> bool:
        return self.size > FREE_BYTES and not self.given_up

    def bytes_per_second(self, now: float) -> float:
        return self.size / max(now - self._began, 1e-3)

    def give_up(self) -> None:
        """Wake the task that waits for more of this body, by its time-out."""
        self.given_up = True
        if not self._timeout.expired():  # else the task wakes anyhow, and a time-out that has expired cannot be changed
            self._timeout.reschedule(0.0)


class BodyBudget:
    """max_bytes: of all bodies over `FREE_BYTES` that are being read. One body alone may be larger. clock: seconds."""

    def __init__(self, max_bytes: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_bytes, self._clock = max_bytes, clock
        self._readings: dict[Reading, None] = {}  # in the order of their beginning

    @property
    def held_bytes(self) -> int:
        """The bytes that count now."""
        return sum(reading.size for reading in self._readings if reading.counts)

    @contextmanager
    def reading(self, timeout: asyncio.Timeout) -> Iterator[Reading]:
        """A body that is read while the context lasts. timeout: of the wait for it, which ends if it is given up."""
        reading = Reading(timeout, self._clock())
        self._readings[reading] = None
        try:
            yield reading
        finally:
            del self._readings[reading]

    def add(self, reading: Reading, size: int) -> None:
        """Count `size` more bytes of it. Raises RefusedError (503) if it is itself given up."""
        reading.size += size
        while reading.counts and self.held_bytes > self._max_bytes:
            now = self._clock()
            counted = [one for one in self._readings if one.counts]
            if len(counted) == 1:
                return
            min(counted, key=lambda one: one.bytes_per_second(now)).give_up()
        if reading.given_up:
            raise given_up()


def given_up() -> RefusedError:
    """What the client of a body gets that was given up."""
    text = "the server reads too many large bodies, and this one arrives more slowly than others; try again later"
    return RefusedError(503, "ServiceUnavailableError", text, RETRY_S)
