"""Numpy arrays as msgpack extension values; the extension code gives the dtype and the number of dimensions.

Token ids are int32 and importance is float32, both little-endian. An int32 array of distinct numbers, such as kept
positions, travels as a bitmap, spans or segments (`kv_transfer.wire.positions`) if that is shorter.
"""

from typing import Any

import msgspec
import numpy as np

from kv_transfer.arrays import Float32Array, Int32Array, is_ascending
from kv_transfer.wire.positions import MAX_CONTEXT_LENGTH, decode_positions, encode_positions
from skim_common.errors import WireError

_INT32, _INT32_PAIRS, _POSITIONS, _FLOAT32 = 1, 2, 3, 4


def encode_array(array: np.ndarray[Any, Any]) -> msgspec.msgpack.Ext:
    """Encode an int32 [N], int32 [P, 2] or float32 [N] array. Raises WireError for any other array."""
    if array.dtype == np.float32 and array.ndim == 1:
        return msgspec.msgpack.Ext(_FLOAT32, array.astype("<f4").tobytes())
    if array.dtype == np.int32 and array.ndim == 1:
        packed = _packed(array)
        if packed is not None and len(packed) < array.nbytes:
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


def _packed(array: Int32Array) -> bytes | None:
    """The numbers as positions; None if they cannot be positions, or if this is surely not shorter."""
    if array.size < 2:  # a single decoded token is an array of one: nothing to pack
        return None
    if not is_ascending(array):
        runs = 1 + np.count_nonzero(array[1:] != array[:-1] + 1)
        if 8 * runs >= array.nbytes:
            return None
    last = int(array.max())
    if array.min() < 0 or last >= MAX_CONTEXT_LENGTH:
        return None
    try:
        return encode_positions(array, last + 1)
    except WireError:  # a number occurs twice
        return None


def _elements(data: memoryview, dtype: str, size: int) -> np.ndarray[Any, Any]:
    if len(data) % size:
        raise WireError(f"an array of {len(data)} bytes is no whole number of elements")
    return np.frombuffer(data, dtype)
