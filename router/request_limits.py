"""Reads a request's body within limits of size and time, before anything is parsed."""

import asyncio
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.types import Receive

from router.refusals import RefusedError

MAX_HEADER_BYTES = 32 * 2**10


@dataclass(frozen=True)
class BodyLimits:
    """max_bytes: of a body. timeout_s: from the end of the headers to the end of the body."""

    max_bytes: int = 16 * 2**20
    timeout_s: float = 60.0


def check_headers(headers: Headers) -> None:
    """Raise RefusedError if the headers are larger than any client's (431)."""
    if sum(len(name) + len(value) for name, value in headers.raw) > MAX_HEADER_BYTES:
        raise RefusedError(
            431,
            "RequestTooLargeError",
            f"the headers have more than {MAX_HEADER_BYTES} bytes; send the rest in the body",
        )


async def read_body(headers: Headers, receive: Receive, limits: BodyLimits) -> bytes:
    """The whole body, or its beginning if the client is gone. Raises RefusedError: 413, 408, 400 for a wrong length."""
    declared = headers.get("content-length", "0")
    if not (declared.isascii() and declared.isdigit()):
        raise RefusedError(400, "BadRequestError", "the header content-length must be a number of bytes")
    if len(digits := declared.lstrip("0")) > 18 or int(digits or "0") > limits.max_bytes:
        raise _too_large(limits)
    chunks: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(limits.timeout_s):
            while True:
                message = await receive()
                chunk = message.get("body", b"")
                size += len(chunk)
                if size > limits.max_bytes:
                    raise _too_large(limits)
                chunks.append(chunk)
                if not message.get("more_body"):  # also the message that the client is gone
                    return b"".join(chunks)
    except TimeoutError:
        text = f"the body did not arrive within {limits.timeout_s:g} s; send it faster, or shorten it"
        raise RefusedError(408, "RequestTimeoutError", text) from None


def _too_large(limits: BodyLimits) -> RefusedError:
    return RefusedError(
        413, "RequestTooLargeError", f"the body has more than {limits.max_bytes} bytes, this server's limit; shorten it"
    )
