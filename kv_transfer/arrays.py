"""Numpy arrays as msgpack extension values; the extension code gives the dtype and the number of dimensions.

Token ids are int32 and importance is float32, both little-endian. A strictly increasing int32 array, such as kept
positions, travels as a bitmap or as spans if that is shorter.
"""

from typing import Any

import msgspec
import numpy as np

from kv_transfer.errors import WireError
from kv_transfer.messages import Float32Array, Int32Array
from kv_transfer.positions import MAX_CONTEXT_LENGTH, decode_positions, encode_positions

_INT32, _INT32_PAIRS, _POSITIONS, _FLOAT32 = 1, 2, 3, 4

ELEMENT_TYPES: dict[Any, type] = {Int32Array: np.int32, Float32Array: np.float32}


def encode_array(array: np.ndarray[Any, Any]) -> msgspec.msgpack.Ext:
    """Encode an int32 [N], int32 [P, 2] or float32 [N] array. Raises WireError for any other array."""
    if array.dtype == np.float32 and array.ndim == 1:
        return msgspec.msgpack.Ext(_FLOAT32, array.astype("<f4").tobytes())
    if array.dtype == np.int32 and array.ndim == 1:
        if array.size > 1 and _is_increasing(array):  # a single decoded token is an array of one: nothing to pack
            packed = encode_positions(array, int(array[-1]) + 1)
            if len(packed) < array.nbytes:
                return msgspec.msgpack.Ext(_POSITIONS, packed)
        return msgspec.msgpack.Ext(_INT32, array.astype("<i4").tobytes())
    if array.dtype == np.int32 and array.ndim == 2 and array.shape[1] == 2:
        return msgspec.msgpack.Ext(_INT32_PAIRS, array.astype("<i4").tobytes())
    raise WireError(f"an array of {array.dtype} {list(array.shape)} has no form on the wire")


def decode_array(code: int, data: memoryview) -> Int32Array | Float32Array:
    """Decode an extension value into an array that owns its memory.

    Raises WireError for an unknown code, a size that is not a multiple of the element size, a negative id, a NaN or an
    infinity.
    """
    if code == _POSITIONS:
        return decode_positions(bytes(data))[0]
    if code == _FLOAT32:
        values = _elements(data, "<f4", 4).astype(np.float32)
        if not np.isfinite(values).all():
            raise WireError("an array of scores holds a number that is not finite")
        return values
    if code in (_INT32, _INT32_PAIRS):
        ids = _elements(data, "<i4", 4 if code == _INT32 else 8).astype(np.int32)
        if ids.size and ids.min() < 0:
            raise WireError("an array of token ids or positions holds a negative number")
        return ids if code == _INT32 else ids.reshape(-1, 2)
    raise WireError(f"an unknown kind of array ({code})")


def _is_increasing(array: Int32Array) -> bool:
    return bool(array[0] >= 0 and array[-1] < MAX_CONTEXT_LENGTH and (np.diff(array) > 0).all())


def _elements(data: memoryview, dtype: str, size: int) -> np.ndarray[Any, Any]:
    if len(data) % size:
        raise WireError(f"an array of {len(data)} bytes is no whole number of elements")
    return np.frombuffer(data, dtype)
