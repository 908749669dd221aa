"""A compact encoding of kept positions: a bitmap or spans, whichever is shorter.

Layout, little-endian: one byte for the form (0 bitmap, 1 spans), uint32 context length M, then the body.
Bitmap: ceil(M / 8) bytes; position p is bit p % 8 of byte p // 8; unused bits are zero.
Spans: int32 pairs (gap, run): the number of dropped positions since the last run, and the number of kept positions that
follow. Only the first gap may be 0. A whole prompt is one span. A context of 128k positions takes at most 16 KiB.
"""

import struct

import numpy as np

from kv_transfer.errors import WireError
from kv_transfer.messages import Int32Array

MAX_CONTEXT_LENGTH = 2**24

_HEADER = struct.Struct("<BI")
_BITMAP, _SPANS = 0, 1


def encode_positions(positions: Int32Array, context_length: int) -> bytes:
    """Encode `positions`: int32 [K], strictly increasing in [0, context_length).

    Raises WireError for any other array, or if context_length exceeds MAX_CONTEXT_LENGTH.
    """
    _check_context_length(context_length)
    if positions.ndim != 1 or not positions.size or positions[0] < 0 or positions[-1] >= context_length:
        raise WireError(f"kept positions must be one or more numbers in [0, {context_length})")
    steps = np.diff(positions)
    if (steps <= 0).any():
        raise WireError("kept positions must rise strictly")
    breaks = np.flatnonzero(steps > 1)
    if 8 * (breaks.size + 1) < _bitmap_bytes(context_length):
        starts = positions[np.concatenate(([0], breaks + 1))]
        ends = positions[np.concatenate((breaks, [-1]))] + 1
        gaps = starts - np.concatenate(([0], ends[:-1]))
        body = np.stack((gaps, ends - starts), axis=1).astype("<i4").tobytes()
        return _HEADER.pack(_SPANS, context_length) + body
    kept = np.zeros(context_length, bool)
    kept[positions] = True
    return _HEADER.pack(_BITMAP, context_length) + np.packbits(kept, bitorder="little").tobytes()


def decode_positions(data: bytes) -> tuple[Int32Array, int]:
    """Decode the positions, int32 [K], and the context length.

    Raises WireError if `data` was not made by `encode_positions`. All sizes are checked before memory is allocated.
    """
    if len(data) < _HEADER.size:
        raise WireError(f"kept positions are cut short: {len(data)} bytes")
    form, context_length = _HEADER.unpack_from(data)
    _check_context_length(context_length)
    body = data[_HEADER.size :]
    if form == _BITMAP:
        return _decode_bitmap(body, context_length), context_length
    if form == _SPANS:
        return _decode_spans(body, context_length), context_length
    raise WireError(f"kept positions have an unknown form {form}")


def _decode_bitmap(body: bytes, context_length: int) -> Int32Array:
    if len(body) != _bitmap_bytes(context_length):
        raise WireError(f"a bitmap of {len(body)} bytes does not fit a context of {context_length} tokens")
    bits = np.unpackbits(np.frombuffer(body, np.uint8), bitorder="little")
    positions = np.flatnonzero(bits)
    if not positions.size or positions[-1] >= context_length:
        raise WireError(f"a bitmap keeps no position, or one past its context of {context_length} tokens")
    return positions.astype(np.int32)


def _decode_spans(body: bytes, context_length: int) -> Int32Array:
    if not body or len(body) % 8:
        raise WireError(f"spans of {len(body)} bytes are not whole pairs")
    pairs = np.frombuffer(body, "<i4").reshape(-1, 2).astype(np.int64)
    gaps, runs = pairs[:, 0], pairs[:, 1]
    ends = np.cumsum(gaps + runs)
    # Gaps and runs are positive, so the ends increase, and the last end limits the memory allocated below.
    if gaps[0] < 0 or (gaps[1:] < 1).any() or (runs < 1).any() or ends[-1] > context_length:
        raise WireError(f"spans overlap, are empty, or end past their context of {context_length} tokens")
    kept_before = np.cumsum(runs) - runs
    positions: Int32Array = (np.arange(runs.sum()) + np.repeat(ends - runs - kept_before, runs)).astype(np.int32)
    return positions


def _bitmap_bytes(context_length: int) -> int:
    return (context_length + 7) // 8


def _check_context_length(context_length: int) -> None:
    if not 1 <= context_length <= MAX_CONTEXT_LENGTH:
        raise WireError(f"context length {context_length} is outside [1, {MAX_CONTEXT_LENGTH}]")
