import itertools
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv_transfer.wire.positions import MAX_CONTEXT_LENGTH, decode_positions, encode_positions
from skim_common.errors import WireError

BITMAP, SPANS, SEGMENTS = 0, 1, 2


def packed(form: int, context_length: int, body: bytes) -> bytes:
    return struct.pack("<BI", form, context_length) + body


def spans(*pairs: tuple[int, int]) -> bytes:
    return np.array(pairs, "<i4").tobytes()


@given(st.sets(st.integers(0, 999), min_size=1), st.integers(0, 50))
def test_any_set_comes_back(kept, beyond):
    positions = np.array(sorted(kept), np.int32)
    context_length = int(positions[-1]) + 1 + beyond
    data = encode_positions(positions, context_length)
    back, back_length = decode_positions(data)
    assert back.dtype == np.int32
    assert back.tolist() == positions.tolist()
    assert back_length == context_length


@given(st.lists(st.integers(0, 999), min_size=1, unique=True), st.integers(0, 50))
def test_any_order_comes_back(kept, beyond):
    positions = np.array(kept, np.int32)
    context_length = max(kept) + 1 + beyond
    back, back_length = decode_positions(encode_positions(positions, context_length))
    assert back.dtype == np.int32
    assert back.tolist() == kept
    assert back_length == context_length


@given(st.sets(st.integers(0, 60), min_size=2), st.randoms())
def test_segments_take_eight_bytes_each(cuts, random):
    """A prompt cut at random places, with its segments in random order."""
    parts = [list(range(start, end)) for start, end in itertools.pairwise(sorted(cuts))]
    random.shuffle(parts)
    positions = np.array(list(itertools.chain(*parts)), np.int32)
    steps = np.diff(positions)
    runs = 1 + int((steps != 1).sum())
    data = encode_positions(positions, 61)
    assert len(data) == 5 + (8 * runs if (steps < 0).any() else min(8, 8 * runs))
    assert decode_positions(data)[0].tolist() == positions.tolist()


@given(st.sets(st.integers(0, 999), min_size=1))
def test_the_shorter_form_is_chosen(kept):
    positions = np.array(sorted(kept), np.int32)
    runs = 1 + int((np.diff(positions) > 1).sum())
    assert len(encode_positions(positions, 1000)) == 5 + min(125, 8 * runs)


def test_worked_example():
    positions = np.array([0, 1, 3, 6, 7], np.int32)
    assert encode_positions(positions, 10) == packed(BITMAP, 10, bytes([0b11001011, 0]))
    assert encode_positions(positions, 4000) == packed(SPANS, 4000, spans((0, 2), (1, 1), (2, 2)))


def test_worked_example_of_segments():
    """A record, the earlier answer, a late chunk, then the new question."""
    positions = np.r_[0:40, 64:96, 200:230, 96:128, 230:240].astype(np.int32)
    body = spans((0, 40), (64, 32), (200, 30), (96, 32), (230, 10))
    assert encode_positions(positions, 240) == packed(SEGMENTS, 240, body)


def test_a_reversed_prompt_is_not_a_whole_prompt():
    data = encode_positions(np.array([3, 2, 1, 0], np.int32), 4)
    assert data == packed(SEGMENTS, 4, spans((3, 1), (2, 1), (1, 1), (0, 1)))


def test_a_whole_prompt_of_128k_is_one_span():
    positions = np.arange(131072, dtype=np.int32)
    data = encode_positions(positions, 131072)
    assert len(data) == 13
    assert np.array_equal(decode_positions(data)[0], positions)


def test_scattered_positions_of_128k_are_a_bitmap():
    positions = np.flatnonzero(np.random.default_rng(0).random(131072) < 0.2).astype(np.int32)
    data = encode_positions(positions, 131072)
    assert len(data) == 5 + 16384
    assert np.array_equal(decode_positions(data)[0], positions)


def test_the_longest_context():
    positions = np.array([0, MAX_CONTEXT_LENGTH - 1], np.int32)
    assert decode_positions(encode_positions(positions, MAX_CONTEXT_LENGTH))[0].tolist() == positions.tolist()


@pytest.mark.parametrize(
    ("positions", "context_length"),
    [
        ([], 10),
        ([[0, 1]], 10),
        ([-1, 2], 10),
        ([0, 10], 10),
        ([3, 3], 10),
        ([4, 3, 4], 10),
        ([4, 5, 6, 0, 1, 5], 10),
        ([0, 1, 2, 1, 2], 10),
        ([4, 10, 3], 10),
        ([4, -1, 3], 10),
        ([0], 0),
        ([0], MAX_CONTEXT_LENGTH + 1),
    ],
)
def test_encode_refuses(positions, context_length):
    with pytest.raises(WireError):
        encode_positions(np.array(positions, np.int32), context_length)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00\x0a\x00",
        packed(3, 10, spans((0, 2))),
        packed(BITMAP, 0, b""),
        packed(BITMAP, MAX_CONTEXT_LENGTH + 1, b"\x01"),
        packed(BITMAP, 2**32 - 1, b"\x01"),
        packed(BITMAP, 10, b"\x01"),
        packed(BITMAP, 10, b"\x01\x00\x00"),
        packed(BITMAP, 10, b"\x00\x00"),
        packed(BITMAP, 10, b"\x01\x04"),
        packed(SPANS, 10, b""),
        packed(SPANS, 10, spans((0, 2))[:-1]),
        packed(SPANS, 10, spans((-1, 2))),
        packed(SPANS, 10, spans((0, 0))),
        packed(SPANS, 10, spans((0, -5), (6, 1))),
        packed(SPANS, 10, spans((0, 2), (0, 2))),
        packed(SPANS, 10, spans((0, 2), (-2, 2))),
        packed(SPANS, 10, spans((0, 11))),
        packed(SPANS, 10, spans((2**31 - 1, 2**31 - 1))),
        packed(SPANS, 2, spans(*[(1, 2**31 - 1)] * 2)),
        packed(SPANS, 10, spans(*[(1, 1)] * 11)),
        packed(SEGMENTS, 10, b""),
        packed(SEGMENTS, 10, b"\x01\x00"),
        packed(SEGMENTS, 10, spans((4, 2), (0, 2))[:-1]),
        packed(SEGMENTS, 10, spans((4, 2), (-1, 2))),
        packed(SEGMENTS, 10, spans((4, 2), (0, 0))),
        packed(SEGMENTS, 10, spans((4, 2), (8, 3))),
        packed(SEGMENTS, 10, spans((4, 2), (5, 1))),
        packed(SEGMENTS, 10, spans((4, 2), (0, 10))),
        packed(SEGMENTS, 10, spans((2**31 - 1, 2**31 - 1), (0, 1))),
        packed(SEGMENTS, 10, spans(*[(0, 10)] * 1000)),
        packed(SEGMENTS, MAX_CONTEXT_LENGTH + 1, spans((4, 2), (0, 2))),
    ],
)
def test_decode_refuses(data):
    with pytest.raises(WireError):
        decode_positions(data)


small_pairs = st.lists(st.tuples(st.integers(-2, 40), st.integers(-1, 40)), max_size=8).map(lambda p: spans(*p))


@given(st.integers(0, 3), st.integers(0, 300), st.binary(max_size=64) | small_pairs)
def test_hostile_bytes_give_valid_positions_or_a_wire_error(form, context_length, body):
    try:
        positions, length = decode_positions(packed(form, context_length, body))
    except WireError:
        return
    assert positions.size
    assert positions.min() >= 0
    assert positions.max() < length == context_length
    assert len(set(positions.tolist())) == positions.size
    assert form == SEGMENTS or (np.diff(positions) > 0).all()
