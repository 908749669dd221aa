import numpy as np
import pytest

from kv_transfer.wire.arrays import decode_array, encode_array
from skim_common.errors import WireError

INT32, INT32_PAIRS, POSITIONS, FLOAT32 = 1, 2, 3, 4


@pytest.mark.parametrize(
    ("array", "code", "size"),
    [
        (np.array([], np.int32), INT32, 0),
        (np.array([7], np.int32), INT32, 4),
        (np.array([9, 8, 7], np.int32), INT32, 12),
        (np.arange(1000, dtype=np.int32), POSITIONS, 13),
        (np.r_[500:1000, 0:300].astype(np.int32), POSITIONS, 21),
        (np.r_[5:9, 0:4, 5:9].astype(np.int32), INT32, 48),
        (np.r_[5:9, -4:0].astype(np.int32), INT32, 32),
        (np.r_[2**24 : 2**24 + 9, 0:4].astype(np.int32), INT32, 52),
        (np.array([1, 2**31 - 1], np.int32), INT32, 8),
        (np.array([[0, 4], [6, 9]], np.int32), INT32_PAIRS, 16),
        (np.empty((0, 2), np.int32), INT32_PAIRS, 0),
        (np.array([0.5, 0.25], np.float32), FLOAT32, 8),
        (np.arange(6, dtype=np.int32)[::-2], INT32, 12),
    ],
)
def test_forms(array, code, size):
    value = encode_array(array)
    assert (value.code, len(value.data)) == (code, size)
    if (array < 0).any():
        return
    back = decode_array(value.code, memoryview(value.data))
    assert back.dtype == array.dtype
    assert np.array_equal(back, array)


def test_bytes_are_little_endian():
    assert encode_array(np.array([258], np.int32)).data == b"\x02\x01\x00\x00"
    assert encode_array(np.array([1], np.float32)).data == b"\x00\x00\x80\x3f"


@pytest.mark.parametrize(
    "array", [np.zeros(3), np.zeros(3, np.int64), np.zeros((2, 3), np.int32), np.zeros((2, 2), np.float32)]
)
def test_other_arrays_have_no_form(array):
    with pytest.raises(WireError, match="no form on the wire"):
        encode_array(array)


@pytest.mark.parametrize(
    ("code", "data"),
    [
        (0, b""),
        (5, b""),
        (INT32, b"\0\0\0"),
        (INT32_PAIRS, bytes(4)),
        (FLOAT32, bytes(5)),
        (INT32, b"\xff\xff\xff\xff"),
    ],
)
def test_bytes_that_are_no_array(code, data):
    with pytest.raises(WireError):
        decode_array(code, memoryview(data))
