"""Reads a request's body within limits of size and time, before anything is parsed."""

import asyncio
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.types import Receive

from router.body_budget import BodyBudget, Reading, given_up
from router.refusals import RefusedError

MAX_HEADER_BYTES = 32 * 2**10


@dataclass(frozen=True)
class BodyLimits:
    """max_bytes: of a body. timeout_s: from the end of the headers to the end of the body. memory_bytes: of the bodies
    that a router reads at the same time, as in BodyBudget.
    """

    max_bytes: int = 16 * 2**20
    timeout_s: float = 60.0
    memory_bytes: int = 256 * 2**20


def check_headers(headers: Headers) -> None:
    """Raise RefusedError if the headers are larger than any client's (431)."""
    if sum(len(name) + len(value) for name, value in headers.raw) > MAX_HEADER_BYTES:
        raise RefusedError(
            431,
            "RequestTooLargeError",
            f"the headers have more than {MAX_HEADER_BYTES} bytes; send the rest in the body",
        )


async def read_body(headers: Headers, receive: Receive, limits: BodyLimits, budget: BodyBudget) -> bytes:
    """The whole body, or its beginning if the client is gone. budget: of all requests of this router.

    Raises RefusedError: 413, 408, 400 for a wrong length, 503 if the body was given up for faster ones.
    """
    declared = headers.get("content-length", "0")
    if not (declared.isascii() and declared.isdigit()):
        raise RefusedError(400, "BadRequestError", "the header content-length must be a number of bytes")
    if len(digits := declared.lstrip("0")) > 18 or int(digits or "0") > limits.max_bytes:
        raise _too_large(limits)
    reading: Reading | None = None
    try:
        async with asyncio.timeout(limits.timeout_s) as timeout:
            with budget.reading(timeout) as reading:
                return await _read(receive, limits, budget, reading)
    except TimeoutError:
        if reading is not None and reading.given_up:
            raise given_up() from None
        text = f"the body did not arrive within {limits.timeout_s:g} s; send it faster, or shorten it"
        raise RefusedError(408, "RequestTimeoutError", text) from None


async def _read(receive: Receive, limits: BodyLimits, budget: BodyBudget, reading: Reading) -> bytes:
    body = bytearray()  # a list of chunks of one byte would take 40 times their memory
    while True:
        message = await receive()
        chunk = message.get("body", b"")
        if len(body) + len(chunk) > limits.max_bytes:
            raise _too_large(limits)
        budget.add(reading, len(chunk))
        body += chunk
        if not message.get("more_body"):  # also the message that the client is gone
            return bytes(body)


def _too_large(limits: BodyLimits) -> RefusedError:
    return RefusedError(
        413, "RequestTooLargeError", f"the body has more than {limits.max_bytes} bytes, this server's limit; shorten it"
    )
