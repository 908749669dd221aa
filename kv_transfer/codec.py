"""Messages as bytes: b"SKIM", version, message type, then the message in msgpack.

An actor answers with a message or with an error, which `decode` raises. Bytes that are not a message of this version
always raise WireError. Arrays are extension values, whose code gives the element type.
"""

import struct
from typing import Any, TypeVar, get_args

import msgspec
import numpy as np
from pydantic import ValidationError

from kv_transfer.arrays import Float32Array, Int32Array
from kv_transfer.drafts import DraftReply, DraftRequest
from kv_transfer.messages import GenerateOutput, GenerateRequest, KeptPrompt, Selection, SelectRequest, SessionHandle
from kv_transfer.options import DecodeOptions, SelectionOptions
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

# Kinds of arrays: int32 [N], int32 [N, 2] and float32 [N], in the byte order of all machines that vLLM runs on.
_IDS, _PAIRS, _SCORES = 1, 2, 4
_KINDS = {(np.dtype(np.int32), 1): _IDS, (np.dtype(np.int32), 2): _PAIRS, (np.dtype(np.float32), 1): _SCORES}

Message = TypeVar("Message")


def encode(message: Any) -> bytes:
    """The message as bytes. Raises WireError if it has no form on the wire, and MessageSizeError if it is too large."""
    number = _NUMBERS.get(type(message))
    if number is None:
        raise WireError(f"a {type(message).__name__} is not a message")
    try:
        body = _ENCODER.encode(message)
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as e:
        raise WireError(f"this {type(message).__name__} cannot be sent: {e}") from None
    if _HEADER.size + len(body) > MAX_MESSAGE_BYTES:
        raise MessageSizeError(
            f"a {type(message).__name__} of {len(body)} bytes is over the limit of {MAX_MESSAGE_BYTES}"
        )
    return _HEADER.pack(_MAGIC, VERSION, number) + body


def encode_error(error: SkimError) -> bytes:
    """The error as bytes. `decode` raises it again, with the same kind and text."""
    return encode(ErrorMessage(error.kind, str(error)))


def decode(data: bytes, cls: type[Message]) -> Message:
    """The message of type `cls`. Raises the SkimError that came in its place, and WireError for any other bytes."""
    number = _read_header(data)
    sent = _TYPES.get(number)
    if sent not in (cls, ErrorMessage):
        name = sent.__name__ if sent else f"a message of unknown type {number}"
        raise WireError(f"{cls.__name__} was expected, {name} came")
    try:
        message = _DECODERS[number].decode(memoryview(data)[_HEADER.size :])
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
        raise WireVersionError(
            f"a message has version {version}, this side reads version {VERSION}; run one release of Skim"
        )
    return int(number)


def _encode_hook(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        kind = _KINDS.get((value.dtype, value.ndim))
        if kind is None or (kind == _PAIRS and value.shape[1] != 2):
            raise TypeError(f"an array of {value.dtype} {list(value.shape)} has no form on the wire")
        return msgspec.msgpack.Ext(kind, value.tobytes())
    if isinstance(value, SelectionOptions | DecodeOptions):
        return value.model_dump(exclude_defaults=True)
    raise TypeError(f"a {type(value).__name__} has no form on the wire")


def _decode_hook(wanted: type, value: Any) -> Any:
    if wanted in (SelectionOptions, DecodeOptions):
        try:
            return wanted.model_validate(value)
        except ValidationError as e:
            raise ValueError(sentence(e)) from None
    # From numpy 2.5 on, msgspec resolves `NDArray[np.int32]` to a generic type that is not equal to it.
    [element] = get_args(get_args(wanted)[1])
    if getattr(value, "dtype", None) == element:
        return value
    raise ValueError(f"an array of {element.__name__} was expected, {type(value).__name__} came")


def _flat_array(kind: int, data: memoryview) -> Int32Array | Float32Array:
    """An array [N] that owns its memory, for messages of many small arrays: their receivers check the numbers."""
    if kind not in (_IDS, _SCORES) or len(data) % 4:
        raise WireError(f"{len(data)} bytes are not an array of kind {kind}")
    return np.frombuffer(data, np.float32).copy() if kind == _SCORES else np.frombuffer(data, np.int32).copy()


def _checked_array(kind: int, data: memoryview) -> Int32Array | Float32Array:
    """An array that owns its memory. Raises WireError also for a negative id, a NaN and an infinity."""
    array = _flat_array(_IDS if kind == _PAIRS else kind, data)
    if kind == _SCORES and not np.isfinite(array).all():
        raise WireError("an array of scores holds a number that is not finite")
    if kind != _SCORES and array.size and array.min() < 0:
        raise WireError("an array of token ids or positions holds a negative number")
    return array if kind != _PAIRS else array.reshape(-1, 2)


_DRAFTS = DraftRequest, DraftReply
_ENCODER = msgspec.msgpack.Encoder(enc_hook=_encode_hook)
_DECODERS: dict[int, msgspec.msgpack.Decoder[Any]] = {
    number: msgspec.msgpack.Decoder(
        cls, dec_hook=_decode_hook, ext_hook=_flat_array if cls in _DRAFTS else _checked_array
    )
    for number, cls in _TYPES.items()
}
