"""Messages as bytes: b"SKIM", version, message type, then the message in msgpack.

An actor answers with a message or with an error. `decode` returns a message and raises an error. Bytes that are not a
message of this version always raise WireError.
"""

import struct
from typing import Any, TypeVar, get_args

import msgspec
import numpy as np
from pydantic import ValidationError

from kv_transfer.drafts import DraftReply, DraftRequest
from kv_transfer.messages import GenerateOutput, GenerateRequest, KeptPrompt, Selection, SelectRequest, SessionHandle
from kv_transfer.options import DecodeOptions, SelectionOptions
from kv_transfer.wire.arrays import decode_array, encode_array
from kv_transfer.wire.draft_columns import ReplyColumns, RequestColumns
from skim_common.errors import MessageSizeError, SkimError, WireError, WireVersionError, error_of_kind
from skim_common.models.info import ModelInfo
from skim_common.validation import sentence

VERSION = 9
MAX_MESSAGE_BYTES = 32 * 2**20

_HEADER = struct.Struct("<4sBB")
_MAGIC = b"SKIM"


class ErrorMessage(msgspec.Struct):
    """A SkimError as a message. The receiver finds the error class by `kind`."""

    kind: str
    message: str


# A number is never reused for another message; 11 to 13 were some.
_NUMBERS: dict[type, int] = {
    ErrorMessage: 0,
    SelectRequest: 1,
    Selection: 2,
    GenerateRequest: 3,
    GenerateOutput: 4,
    ModelInfo: 5,
    KeptPrompt: 6,
    SessionHandle: 7,
    SelectionOptions: 8,
    DraftRequest: 9,
    DraftReply: 10,
}
_TYPES = {number: cls for cls, number in _NUMBERS.items()}

# These messages travel as columns: `of` makes the columns from a message, `message` makes the message from them.
_COLUMNS: dict[type, Any] = {DraftRequest: RequestColumns, DraftReply: ReplyColumns}

Message = TypeVar("Message")


def encode(message: Any) -> bytes:
    """Encode a message of `messages.py` or `drafts.py`.

    Raises WireError if it cannot be encoded, and MessageSizeError if it is too large.
    """
    number = _NUMBERS.get(type(message))
    if number is None:
        raise WireError(f"a {type(message).__name__} is not a message")
    try:
        columns = _COLUMNS.get(type(message))
        body = _ENCODER.encode(columns.of(message) if columns else message)
    except (AttributeError, TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as e:
        raise WireError(f"this {type(message).__name__} cannot be sent: {e}") from None
    if _HEADER.size + len(body) > MAX_MESSAGE_BYTES:
        raise MessageSizeError(
            f"a {type(message).__name__} of {len(body)} bytes is over the limit of {MAX_MESSAGE_BYTES}"
        )
    return _HEADER.pack(_MAGIC, VERSION, number) + body


def encode_error(error: SkimError) -> bytes:
    """Encode an error. `decode` raises it again, with the same kind and text."""
    return encode(ErrorMessage(error.kind, str(error)))


def decode(data: bytes, cls: type[Message]) -> Message:
    """Decode `data` into a message of type `cls`.

    If `data` holds an error, raises that SkimError. Raises WireError if `data` is anything else.
    """
    number = _read_header(data)
    found = _TYPES.get(number)
    if found not in (cls, ErrorMessage):
        name = found.__name__ if found else f"a message of unknown type {number}"
        raise WireError(f"{cls.__name__} was expected, {name} came")
    try:
        message = _DECODERS[number].decode(memoryview(data)[_HEADER.size :])
        if found in _COLUMNS:
            message = message.message()
    except (msgspec.MsgspecError, WireError, RecursionError, ValueError, TypeError) as e:
        raise WireError(f"these bytes are no {cls.__name__}: {e}") from None
    if isinstance(message, ErrorMessage):
        raise error_of_kind(message.kind, message.message)
    return message  # type: ignore[no-any-return]


def _read_header(data: bytes) -> int:
    """The message type's number."""
    if len(data) > MAX_MESSAGE_BYTES:
        raise WireError(f"a message of {len(data)} bytes is over the limit of {MAX_MESSAGE_BYTES}")
    if len(data) < _HEADER.size:
        raise WireError(f"a message is cut short: {len(data)} bytes")
    magic, version, number = _HEADER.unpack_from(data)
    if magic != _MAGIC:
        raise WireError("these bytes are not a message of Skim")
    if version != VERSION:
        told = f"a message has version {version}, this side reads version {VERSION}; run one release of Skim"
        raise WireVersionError(told)
    return int(number)


def _encode_hook(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return encode_array(value)
    if isinstance(value, SelectionOptions | DecodeOptions):
        return value.model_dump(exclude_defaults=True)
    raise TypeError(f"a {type(value).__name__} has no form on the wire")


def _decode_hook(wanted: type, value: Any) -> Any:
    if wanted in (SelectionOptions, DecodeOptions):
        try:
            return wanted.model_validate(value)
        except ValidationError as e:
            raise ValueError(sentence(e)) from None
    element = _element_of(wanted)
    if getattr(value, "dtype", None) == element:
        return value
    raise ValueError(f"an array of {element.__name__} was expected, {type(value).__name__} came")


def _element_of(array: Any) -> type:
    """The element type of an array's annotation, such as np.int32.

    From numpy 2.5 on, msgspec resolves `NDArray[np.int32]` to a generic type that is not equal to it.
    """
    _, dtype = get_args(array)
    [element] = get_args(dtype)
    return element  # type: ignore[no-any-return]


_ENCODER = msgspec.msgpack.Encoder(enc_hook=_encode_hook)
_DECODERS: dict[int, msgspec.msgpack.Decoder[Any]] = {
    number: msgspec.msgpack.Decoder(_COLUMNS.get(cls, cls), dec_hook=_decode_hook, ext_hook=decode_array)
    for number, cls in _TYPES.items()
}
