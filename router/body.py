"""What the router itself reads of a request's JSON body, and the values that it refuses before vLLM's app sees them.

vLLM's app parses the body too. So the router parses it only if the bytes contain something that concerns the router.
"""

import json
import math
from typing import Any

from router.options import InvalidOptionError, clipped
from target_service.limits import reserved_names

# A body without these needs no second JSON parse. Escapes (\\u) and UTF-16 or UTF-32 (NUL bytes) can hide the names.
_TELLTALES = (
    b"speculative_",
    b"kv_transfer_params",
    b"vllm_xargs",
    b"structured_outputs",
    b"echo",
    b"use_beam_search",
    b"\\u",
    b"\0",
)

# Signs of a number that may not fit 64 bits, in a body that `_may_hold_wide_numbers` has made simple.
_ZERO_DIGITS = bytes.maketrans(b"123456789E", b"000000000e")
_WIDE_NUMBERS = (b"0" * 19, b"0e000", b"NaN", b"Infinity", b"\0")

_LOWEST, _HIGHEST = -(2**63), 2**64 - 1
_MOST_DIGITS = 20


def read_fields(body: bytes) -> dict[str, Any]:
    """The body's JSON object if it may hold a field of Skim or a wide number, else {}.

    Raises InvalidOptionError for a field that no client may send, and for a value that vLLM or the messages between
    the pools cannot hold. The app refuses a malformed body, for which this is {}.
    """
    has_wide = _may_hold_wide_numbers(body)
    if not (has_wide or any(telltale in body for telltale in _TELLTALES)):
        return {}
    try:
        fields = json.loads(body, parse_int=_read_int if has_wide else None)
    except (ValueError, RecursionError):
        return {}
    if has_wide:
        _refuse_wide_numbers(fields)
    if not isinstance(fields, dict):
        return {}
    _refuse_reserved(fields)
    if not isinstance(fields.get("structured_outputs"), dict | None):
        raise InvalidOptionError("structured_outputs must be an object", "structured_outputs")
    return fields


def _may_hold_wide_numbers(body: bytes) -> bool:
    """Every digit becomes 0, E becomes e, and + is dropped, so that few searches find all long numbers."""
    simple = body.translate(_ZERO_DIGITS, b"+")
    return any(sign in simple for sign in _WIDE_NUMBERS)


def _read_int(digits: str) -> int | float:
    """A JSON integer. inf if it has too many digits for 64 bits: Python itself refuses integers of 4300 digits."""
    return int(digits) if len(digits) <= _MOST_DIGITS else math.inf


def _refuse_wide_numbers(body: Any) -> None:
    """Refuse integers over 64 bits and floats that are not finite, at every depth. msgpack and JSON lack them."""
    pending = [("", body)]
    while pending:
        path, value = pending.pop()
        if isinstance(value, dict):
            pending += [(f"{path}.{name}", item) for name, item in value.items()]
        elif isinstance(value, list):
            pending += [(f"{path}.{index}", item) for index, item in enumerate(value)]
        elif (isinstance(value, int) and not _LOWEST <= value <= _HIGHEST) or (
            isinstance(value, float) and not math.isfinite(value)
        ):
            name = clipped(path[1:])
            raise InvalidOptionError(f"{name} must be a finite number of at most 64 bits", name)


def _refuse_reserved(fields: dict[str, Any]) -> None:
    """Refuse fields with which a client could change the prompt or the positions that the target uses."""
    if fields.get("kv_transfer_params") is not None:
        raise InvalidOptionError("kv_transfer_params is reserved for the server; leave it out", "kv_transfer_params")
    xargs = fields.get("vllm_xargs")
    reserved = reserved_names(xargs) if isinstance(xargs, dict) else []
    if reserved:
        name = reserved[0]
        raise InvalidOptionError(f"vllm_xargs.{name} is reserved for the server; leave it out", f"vllm_xargs.{name}")
