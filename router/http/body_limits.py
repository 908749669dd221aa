"""Reads a request's body within limits of size, time and memory, before anything is parsed.

The bodies that a router reads at the same time have a bounded size; beyond it, the slowest one is given up. Reserved
lengths would let a few clients that declare much and send nothing keep all others out. So only bytes that have arrived
count, and the body with the fewest bytes per second goes first: a slow client loses its own place, and nobody waits for
one.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.types import Receive

from router.options.errors import RefusedError
from router.options.headers import whole_number

MAX_HEADER_BYTES = 32 * 2**10
TIMEOUT_S = 60.0
"""A request whose body takes longer to arrive gets a 408."""
MAX_MEMORY_BYTES = 256 * 2**20
"""Of the bodies over `FREE_BYTES` that a router is reading; above it the slowest gets a 503."""

FREE_BYTES = 64 * 2**10
"""A smaller body does not count and is never given up: uvicorn holds as much of a connection (its HIGH_WATER_LIMIT)."""

RETRY_S = 5


@dataclass(eq=False)
class _Reading:
    """One body while it is read. size: bytes that have arrived."""

    timeout: asyncio.Timeout
    began: float
    size: int = 0
    given_up: bool = False

    @property
    def counts(self) -> bool:
        return self.size > FREE_BYTES and not self.given_up


class BodyBudget:
    """One body alone may be larger than the budget. clock: seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._readings: dict[_Reading, None] = {}  # in the order of their beginning

    @property
    def held_bytes(self) -> int:
        """The bytes that count now."""
        return sum(reading.size for reading in self._readings if reading.counts)

    @contextmanager
    def reading(self, timeout: asyncio.Timeout) -> Iterator[_Reading]:
        """A body that is read while the context lasts. timeout: of the wait for it, which ends if it is given up."""
        reading = _Reading(timeout, self._clock())
        self._readings[reading] = None
        try:
            yield reading
        finally:
            del self._readings[reading]

    def grown(self, reading: _Reading, size: int) -> None:
        """Count `size` bytes of it by now. Raises TimeoutError if it is itself given up."""
        reading.size = size
        while reading.counts and self.held_bytes > MAX_MEMORY_BYTES:
            counted, now = [one for one in self._readings if one.counts], self._clock()
            if len(counted) == 1:
                return
            slowest = min(counted, key=lambda one: one.size / max(now - one.began, 1e-3))
            slowest.given_up = True
            if not slowest.timeout.expired():  # one that has expired cannot be changed, and wakes its task anyhow
                slowest.timeout.reschedule(0.0)
        if reading.given_up:
            raise TimeoutError


def check_headers(headers: Headers) -> None:
    """Raise RefusedError if the headers are larger than any client's (431)."""
    if sum(len(name) + len(value) for name, value in headers.raw) > MAX_HEADER_BYTES:
        text = f"the headers have more than {MAX_HEADER_BYTES} bytes; send the rest in the body"
        raise RefusedError(431, "RequestTooLargeError", text)


async def read_body(headers: Headers, receive: Receive, max_bytes: int, budget: BodyBudget) -> bytes:
    """The whole body, or its beginning if the client is gone. max_bytes: of this body. budget: of all requests of this
    router.

    Raises RefusedError: 413, 408, 400 for a wrong length, 503 if the body was given up for faster ones.
    """
    declared = whole_number(headers.get("content-length", "0"))
    if declared is None:
        raise RefusedError(400, "BadRequestError", "the header content-length must be a number of bytes")
    too_large = f"the body has more than {max_bytes} bytes, this server's limit; shorten it"
    if declared > max_bytes:
        raise RefusedError(413, "RequestTooLargeError", too_large)
    reading: _Reading | None = None
    body = bytearray()  # a list of chunks of one byte would take 40 times their memory
    try:
        async with asyncio.timeout(TIMEOUT_S) as timeout:
            with budget.reading(timeout) as reading:
                more = True
                while more:
                    message = await receive()
                    body += message.get("body", b"")
                    if len(body) > max_bytes:
                        raise RefusedError(413, "RequestTooLargeError", too_large)
                    budget.grown(reading, len(body))
                    more = message.get("more_body", False)  # False also if the client is gone
                return bytes(body)
    except TimeoutError:
        if reading is not None and reading.given_up:
            text = "the server reads too many large bodies, and this one arrives more slowly than others"
            raise RefusedError(503, "ServiceUnavailableError", f"{text}; try again later", RETRY_S) from None
        text = f"the body did not arrive within {TIMEOUT_S:g} s; send it faster, or shorten it"
        raise RefusedError(408, "RequestTimeoutError", text) from None
