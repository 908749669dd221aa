"""What the router itself reads of a request's JSON body, and the values that it refuses before vLLM's app sees them.

vLLM's app parses the body too. So the router skips all but its own fields, unless a value may be one to refuse.
"""

import json
import math
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple, TypedDict

import msgspec

from kv_transfer.limits import reserved_names
from router.options.context_management import FIELD
from router.options.errors import InvalidOptionError
from router.options.request import DECODE, PREFILL, clipped
from router.prompt.keep_fields import KeepFields, extract_keep_fields
from skim_common.nesting import MAX_DEPTH, too_deep

# What vLLM's schema of /v1/messages lacks, and without which an answer would be another one.
_OF_ANTHROPIC = ("mcp_servers", "container", "compaction", "thread", "output_format")
# Signs of a number that may not fit 64 bits, in a body that `_may_hold_wide_numbers` has made simple.
_ZERO_DIGITS = bytes.maketrans(b"123456789E", b"000000000e")
_WIDE_NUMBERS = (b"0" * 19, b"0e000", b"NaN", b"Infinity", b"\0")

_RESERVED = ("kv_transfer_params", "ec_transfer_params")
# Of /v1/responses. vLLM refuses null there too, but in a stream only after the response has begun.
_NEVER_NULL = ("background", "truncation")
_WITHOUT_EFFECT = ("return_token_offsets", "return_assistant_tokens_mask", "routed_experts_prompt_start")

_LOWEST, _HIGHEST = -(2**63), 2**64 - 1
_MOST_DIGITS = 20

_READ = (*_RESERVED, *_NEVER_NULL, *_WITHOUT_EFFECT, *_OF_ANTHROPIC, PREFILL.name, DECODE.name, FIELD)
_READ_TOO = ("vllm_xargs", "structured_outputs", "logit_bias", "echo", "use_beam_search", "tools", "nvext")
_DECODER = msgspec.json.Decoder(TypedDict("_Fields", dict.fromkeys(_READ + _READ_TOO, Any), total=False))  # type: ignore[operator]
"""Skips all other fields."""
_MAY_HOLD_KEEP = (b'"keep"', b"\\u006", b"\\u007")
"""Signs of a `keep` at some depth, and of escapes that can hide one."""


class BodyFields(NamedTuple):
    """fields: those that the router reads, and perhaps others. body: as vLLM's app is to read it."""

    fields: dict[str, Any]
    keep_fields: KeepFields | None
    body: bytes


def is_skimmed(body: bytes) -> bool:
    """Whether `parse_body` takes as little time as to search the bytes."""
    return not _needs_all(body) and body.count(b"[") + body.count(b"{") <= MAX_DEPTH


def parse_body(body: bytes, path: str) -> BodyFields:
    """A body that is sent to `path`. Raises as `check_depth`, `read_fields` and `extract_keep_fields`."""
    check_depth(body)
    fields = read_fields(body, path)
    keep_fields = extract_keep_fields(fields, path)
    if keep_fields is not None:
        body = json.dumps(fields, ensure_ascii=False).encode()
    return BodyFields(fields, keep_fields, body)


def check_depth(body: bytes) -> None:
    """Raise InvalidOptionError for a body that what reads it could not follow, here or in vLLM and pydantic."""
    if (field := too_deep(body)) is not None:
        name = clipped(field) or "the body"
        raise InvalidOptionError(f"{name} has more than {MAX_DEPTH} levels of lists and objects; flatten it", name)


def read_fields(body: bytes, path: str) -> dict[str, Any]:
    """The fields of the body's JSON object, sent to `path`: those of Skim, or all if there may be one to refuse.

    Raises InvalidOptionError for a field that no client may send, and for a value that vLLM or the messages between
    the pools cannot hold. The app refuses a malformed body, for which this is {}.
    """
    needs_all = _needs_all(body)
    try:
        fields = _parsed(body, needs_all=needs_all)
    except (ValueError, RecursionError):
        return {}
    if isinstance(fields, dict):
        _refuse_reserved(fields)
        if not path.endswith("/render"):
            of_anthropic = path.endswith(("/messages", "/messages/count_tokens"))
            _refuse_ignored(fields, _WITHOUT_EFFECT + (_OF_ANTHROPIC if of_anthropic else ()))
        if path.endswith("/responses"):
            _refuse_nulls(fields)
    if needs_all:
        _refuse_unsendable(fields)
    if not isinstance(fields, dict):
        return {}
    if not isinstance(fields.get("structured_outputs"), dict | None):
        raise InvalidOptionError("structured_outputs must be an object", "structured_outputs")
    _refuse_wide_token_ids(fields.get("logit_bias"))
    return fields


def _needs_all(body: bytes) -> bool:
    holds_keep = any(sign in body for sign in _MAY_HOLD_KEEP)
    return holds_keep or _may_hold_wide_numbers(body) or _may_hold_surrogates(body)


def _parsed(body: bytes, *, needs_all: bool) -> Any:
    """Raises ValueError and RecursionError."""
    if not needs_all:
        with suppress(msgspec.DecodeError):  # of what json.loads reads as well, such as a byte order mark
            return _DECODER.decode(body)
    return json.loads(body, parse_int=_read_int)


def hinted_priority(fields: Mapping[str, Any]) -> int:
    """The priority in Dynamo's `nvext.agent_hints`, in which higher numbers are served first, as vLLM counts it.

    Raises InvalidOptionError for a hint that has no effect here.
    """
    if (given := fields.get("nvext")) is None:
        return 0
    hints = given.get("agent_hints", {}) if isinstance(given, dict) else None
    if not isinstance(hints, dict):
        raise InvalidOptionError("nvext must be an object, and agent_hints in it another one", "nvext")
    ignored = [f"nvext.{name}" for name in given if name != "agent_hints"]
    ignored += [f"nvext.agent_hints.{name}" for name in hints if name != "priority"]
    if ignored:
        name = clipped(ignored[0])
        raise InvalidOptionError(f"{name} has no effect on this server; leave it out", name)
    priority = hints.get("priority", 0)
    if type(priority) is not int:
        name = "nvext.agent_hints.priority"
        raise InvalidOptionError(f"{name} must be an integer", name)
    return -priority


def _may_hold_wide_numbers(body: bytes) -> bool:
    """Every digit becomes 0, E becomes e, and + is dropped, so that few searches find all long numbers."""
    simple = body.translate(_ZERO_DIGITS, b"+")
    return any(sign in simple for sign in _WIDE_NUMBERS)


def _may_hold_surrogates(body: bytes) -> bool:
    """Half of a UTF-16 pair is no text. JSON can hold one as an escape, and json.loads also takes one as bytes."""
    if b"\\ud" in body or b"\\uD" in body:
        return True
    try:
        body.decode()
    except UnicodeDecodeError:
        return True
    return b"\0" in body


def _read_int(digits: str) -> int | float:
    """A JSON integer. inf if it has too many digits for 64 bits: Python itself refuses integers of 4300 digits."""
    return int(digits) if len(digits) <= _MOST_DIGITS else math.inf


def _refuse_unsendable(body: Any) -> None:
    """Refuse integers over 64 bits, floats that are not finite, and lone surrogates, at every depth.

    msgpack, JSON or UTF-8 lack them.
    """
    pending: list[tuple[_Path | None, Any]] = [(None, body)]
    while pending:
        path, value = pending.pop()
        if any(isinstance(part, str) and not _is_text(part) for part in (path.name if path else "", value)):
            name = _shown_path(path)
            raise InvalidOptionError(f"{name} has a lone surrogate, which is no text", name)
        if isinstance(value, dict):
            pending += [(_Path(path, name), item) for name, item in value.items()]
        elif isinstance(value, list):
            pending += [(_Path(path, index), item) for index, item in enumerate(value)]
        elif (isinstance(value, int) and not _LOWEST <= value <= _HIGHEST) or (
            isinstance(value, float) and not math.isfinite(value)
        ):
            name = _shown_path(path)
            bounds = f"greater_than_equal {_LOWEST} and less_than_equal {_HIGHEST}"  # pydantic's words, as in vLLM
            raise InvalidOptionError(f"{name} must be a finite number of at most 64 bits, {bounds}", name)


class _Path(NamedTuple):
    """The place of a value: its name or index in what is at `outer`. Its text is made only if it is shown: names may be
    long, and values many."""

    outer: "_Path | None"
    name: str | int


def _shown_path(path: _Path | None) -> str:
    names: list[str] = []
    while path is not None:
        names.append(str(path.name))
        path = path.outer
    return clipped(".".join(reversed(names)))


def _refuse_wide_token_ids(logit_bias: Any) -> None:
    """The names in a `logit_bias` are token ids. vLLM reads them with `int`, and refuses what is no integer."""
    for name in logit_bias if isinstance(logit_bias, dict) else ():
        try:
            token_id = int(name)
        except ValueError:
            continue
        if not _LOWEST <= token_id <= _HIGHEST:
            field = f"logit_bias.{clipped(name)}"
            raise InvalidOptionError(f"{field} is not a token id", field)


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _refuse_reserved(fields: dict[str, Any]) -> None:
    """Refuse fields with which a client could change the prompt or the positions that the target uses."""
    for name in _RESERVED:
        if fields.get(name) is not None:
            raise InvalidOptionError(f"{name} is reserved for the server; leave it out", name)
    xargs = fields.get("vllm_xargs")
    reserved = reserved_names(xargs) if isinstance(xargs, dict) else []
    if reserved:
        name = reserved[0]
        raise InvalidOptionError(f"vllm_xargs.{name} is reserved for the server; leave it out", f"vllm_xargs.{name}")


def _refuse_nulls(fields: dict[str, Any]) -> None:
    for name in _NEVER_NULL:
        if name in fields and fields[name] is None:
            raise InvalidOptionError(f"{name} must not be null; leave it out", name)


def _refuse_ignored(fields: dict[str, Any], names: tuple[str, ...]) -> None:
    """Refuse fields that vLLM accepts and ignores here: they act on its /render endpoints, or nowhere."""
    for name in names:
        if fields.get(name):
            raise InvalidOptionError(f"{name} has no effect on this endpoint; leave it out", name)
