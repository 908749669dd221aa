"""A compact encoding of kept positions: a bitmap or spans, whichever is shorter, or segments for any other order.

Layout, little-endian: one byte for the form (0 bitmap, 1 spans, 2 segments), uint32 context length M, then the body.
Bitmap: ceil(M / 8) bytes; position p is bit p % 8 of byte p // 8; unused bits are zero.
Spans: int32 pairs (gap, run): the number of dropped positions since the last run, and the number of kept positions that
follow. Only the first gap may be 0. A whole prompt is one span. A context of 128k positions takes at most 16 KiB.
Segments: int32 pairs (start, length) in the order of the prompt, for positions that do not ascend. They are disjoint.
"""

import struct
from typing import Any

import numpy as np
import numpy.typing as npt

from kv_transfer.arrays import Int32Array, is_ascending, segments_of
from skim_common.errors import WireError

MAX_CONTEXT_LENGTH = 2**24

_HEADER = struct.Struct("<BI")
_BITMAP, _SPANS, _SEGMENTS = 0, 1, 2


def encode_positions(positions: Int32Array, context_length: int) -> bytes:
    """Encode `positions`: int32 [K], distinct, in [0, context_length), in any order.

    Raises WireError for any other array, or if context_length exceeds MAX_CONTEXT_LENGTH.
    """
    _check_context_length(context_length)
    if positions.ndim != 1 or not positions.size or positions.min() < 0 or positions.max() >= context_length:
        raise WireError(f"kept positions must be one or more numbers in [0, {context_length})")
    segments = segments_of(positions)
    starts, ends = segments[:, 0], segments[:, 1]
    if not is_ascending(positions):
        _check_disjoint(segments)
        return _HEADER.pack(_SEGMENTS, context_length) + _pairs(starts, ends - starts)
    if 8 * len(segments) < _bitmap_bytes(context_length):
        gaps = starts - np.concatenate(([0], ends[:-1]))
        return _HEADER.pack(_SPANS, context_length) + _pairs(gaps, ends - starts)
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
    if form == _SEGMENTS:
        return _decode_segments(body, context_length), context_length
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
    gaps, runs = _read_pairs(body)
    ends = np.cumsum(gaps + runs)
    # Gaps and runs are positive, so the ends increase, and the last end limits the memory allocated below.
    if gaps[0] < 0 or (gaps[1:] < 1).any() or (runs < 1).any() or ends[-1] > context_length:
        raise WireError(f"spans overlap, are empty, or end past their context of {context_length} tokens")
    return _expanded(ends - runs, runs)


def _decode_segments(body: bytes, context_length: int) -> Int32Array:
    starts, runs = _read_pairs(body)
    # Disjoint segments inside the context are together at most as long as it: this limits the memory allocated below.
    if starts.min() < 0 or runs.min() < 1 or (starts + runs).max() > context_length:
        raise WireError(f"segments are empty, or lie outside their context of {context_length} tokens")
    _check_disjoint(np.stack([starts, starts + runs], 1))
    return _expanded(starts, runs)


def _check_disjoint(segments: npt.NDArray[Any]) -> None:
    """Raise WireError if two of the spans [S, 2] share a position."""
    ordered = segments[np.argsort(segments[:, 0])]
    if (ordered[1:, 0] < ordered[:-1, 1]).any():
        raise WireError("kept positions must be distinct")


def _expanded(starts: npt.NDArray[np.int64], runs: npt.NDArray[np.int64]) -> Int32Array:
    """The positions of runs that begin at `starts` [S] and are `runs` [S] long, in their order."""
    kept_before = np.cumsum(runs) - runs
    positions: Int32Array = (np.arange(runs.sum()) + np.repeat(starts - kept_before, runs)).astype(np.int32)
    return positions


def _pairs(first: npt.NDArray[Any], second: npt.NDArray[Any]) -> bytes:
    return np.stack((first, second), axis=1).astype("<i4").tobytes()


def _read_pairs(body: bytes) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The columns of a body of int32 pairs, as int64 so that sums cannot overflow."""
    if not body or len(body) % 8:
        raise WireError(f"{len(body)} bytes are not one or more whole pairs")
    pairs = np.frombuffer(body, "<i4").reshape(-1, 2).astype(np.int64)
    return pairs[:, 0], pairs[:, 1]


def _bitmap_bytes(context_length: int) -> int:
    return (context_length + 7) // 8


def _check_context_length(context_length: int) -> None:
    if not 1 <= context_length <= MAX_CONTEXT_LENGTH:
        raise WireError(f"context length {context_length} is outside [1, {MAX_CONTEXT_LENGTH}]")
