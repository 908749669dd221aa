"""Reads a request's body, within limits of size, time and memory, and what the router itself needs of its JSON.

The bodies that a router reads at the same time have a bounded size; beyond it, the one with the fewest bytes per second
is given up: a slow client loses its own place. Only bytes that have arrived count, because a few clients that declare
much and send nothing would keep all others out.
"""

import asyncio
import json
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
from starlette.datastructures import Headers
from starlette.types import Receive

from kv_transfer.limits import reserved_names
from router.dispatch.apart import apart
from router.options.errors import InvalidOptionError, RefusedError
from router.options.headers import whole_number
from router.options.nesting import MAX_DEPTH, too_deep
from router.options.request import clipped
from router.prompt.markers import KeepFields, extract_keep_fields

MAX_HEADER_BYTES = 32 * 2**10
TIMEOUT_S = 60.0
"""A request whose body takes longer to arrive gets a 408."""
MAX_MEMORY_BYTES = 256 * 2**20
"""Of the bodies over `FREE_BYTES` that a router is reading; above it the slowest gets a 503."""

FREE_BYTES = 64 * 2**10
"""A smaller body does not count and is never given up: uvicorn holds as much of a connection (its HIGH_WATER_LIMIT)."""

RETRY_S = 5

# What vLLM's schema of /v1/messages lacks, and without which an answer would be another one.
_OF_ANTHROPIC = ("mcp_servers", "container", "compaction", "thread", "output_format")
_RESERVED = ("kv_transfer_params", "ec_transfer_params")
# Of /v1/responses. vLLM refuses null there too, but in a stream only after the response has begun.
_NEVER_NULL = ("background", "truncation")
_WITHOUT_EFFECT = ("return_token_offsets", "return_assistant_tokens_mask", "routed_experts_prompt_start")

_LOWEST, _HIGHEST = -(2**63), 2**64 - 1
_MAX_DIGITS = 20
_ZERO_DIGITS = bytes.maketrans(b"123456789", b"000000000")


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
    """The whole body, or its beginning if the client is gone. max_bytes: of this body. budget: of all requests.

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


class BodyFields(NamedTuple):
    """fields: of the JSON object; empty without one. body: as vLLM's app is to read it."""

    fields: dict[str, Any]
    keep_fields: KeepFields | None
    body: bytes


async def read_fields(body: bytes, path: str) -> BodyFields:
    """As `parse_body`. A long body is parsed in a thread, unless it takes no longer than a search of its bytes."""
    is_flat = body.count(b"[") + body.count(b"{") <= MAX_DEPTH
    if is_flat and b'"keep"' not in body and not _may_hold_wide_integers(body):
        with suppress(ValueError):
            return _checked(msgspec.json.decode(body), body, path)
    return await apart(len(body), parse_body, body, path)


def parse_body(body: bytes, path: str) -> BodyFields:
    """The fields of a body that is sent to `path`. The app refuses a malformed one. Raises InvalidOptionError for a
    body that is too deep, a field that no client may send, and a value that vLLM or the pools' messages cannot hold."""
    if too_deep(body):
        message = f"the body has more than {MAX_DEPTH} levels of lists and objects; flatten it"
        raise InvalidOptionError(message, "the body")
    return _checked(_parsed(body), body, path)


def _may_hold_wide_integers(body: bytes) -> bool:
    """msgspec refuses all other values that cannot be sent."""
    return b"0" * (_MAX_DIGITS - 1) in body.translate(_ZERO_DIGITS)


def _parsed(body: bytes) -> Any:
    """The JSON value; None if it is malformed. Raises InvalidOptionError for one that cannot be sent."""
    if not _may_hold_wide_integers(body):
        with suppress(ValueError):  # of what json.loads reads as well, such as a byte order mark
            return msgspec.json.decode(body)
    try:
        # Python itself refuses integers of 4300 digits.
        value = json.loads(body, parse_int=lambda digits: int(digits) if len(digits) <= _MAX_DIGITS else math.inf)
    except ValueError:
        return None
    if (fault := _unsendable(value)) is not None:
        message, names = fault
        name = clipped(".".join(reversed(names)))
        raise InvalidOptionError(f"{name} {message}", name)
    return value


def _unsendable(value: Any) -> tuple[str, list[str]] | None:
    """What is wrong with a value that cannot be sent, at any depth, and the names of its place, the innermost first."""
    if isinstance(value, dict | list):
        for name, item in value.items() if isinstance(value, dict) else enumerate(value):
            if (fault := _unsendable(item) or (_unsendable(name) if isinstance(name, str) else None)) is not None:
                fault[1].append(str(name))
                return fault
    elif isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            return "has a lone surrogate, which is no text", []
    elif isinstance(value, int | float) and not (math.isfinite(value) and _LOWEST <= value <= _HIGHEST):
        bounds = f"greater_than_equal {_LOWEST} and less_than_equal {_HIGHEST}"  # pydantic's words, as in vLLM
        return f"must be a finite number of at most 64 bits, {bounds}", []
    return None


def _checked(fields: Any, body: bytes, path: str) -> BodyFields:
    """Raises InvalidOptionError for a field that acts nowhere, or on the server's own behalf only."""
    if not isinstance(fields, dict):
        return BodyFields({}, None, body)
    # With these a client could change the prompt or the positions that the target uses.
    reserved = [name for name in _RESERVED if fields.get(name) is not None]
    if isinstance(xargs := fields.get("vllm_xargs"), dict):
        reserved += [f"vllm_xargs.{name}" for name in reserved_names(xargs)]
    if reserved:
        raise InvalidOptionError(f"{reserved[0]} is reserved for the server; leave it out", reserved[0])
    of_anthropic = path.endswith(("/messages", "/messages/count_tokens"))
    for name in () if path.endswith("/render") else _WITHOUT_EFFECT + (_OF_ANTHROPIC if of_anthropic else ()):
        if fields.get(name):
            raise InvalidOptionError(f"{name} has no effect on this endpoint; leave it out", name)
    for name in _NEVER_NULL if path.endswith("/responses") else ():
        if name in fields and fields[name] is None:
            raise InvalidOptionError(f"{name} must not be null; leave it out", name)
    if not isinstance(fields.get("structured_outputs"), dict | None):
        raise InvalidOptionError("structured_outputs must be an object", "structured_outputs")
    # The names in a `logit_bias` are token ids. vLLM reads them with `int`, and refuses what is no integer.
    for name in bias if isinstance(bias := fields.get("logit_bias"), dict) else ():
        with suppress(ValueError):
            if not _LOWEST <= int(name) <= _HIGHEST:
                field = f"logit_bias.{clipped(name)}"
                raise InvalidOptionError(f"{field} is not a token id", field)
    keep_fields = extract_keep_fields(fields, path)
    if keep_fields is not None:
        body = json.dumps(fields, ensure_ascii=False).encode()
    return BodyFields(fields, keep_fields, body)
