"""`KeptPrompt.in_reading_order`: late units take the positions of what follows them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv_transfer.messages import KeptPrompt

FAR = 2**30


def prompt(positions, length):
    positions = np.array(positions, np.int32)
    return KeptPrompt(positions + 100, positions, length)


def order(positions, length, limit=FAR):
    read = prompt(positions, length).in_reading_order(limit)
    assert read.token_ids.tolist() == [position + 100 for position in positions]
    return read.positions.tolist(), read.context_length


def test_a_late_unit_is_a_quotation_before_what_follows_it():
    assert order([0, 1, 8, 9, 4, 5, 10, 11], 12) == ([0, 1, 8, 9, 10, 11, 12, 13], 14)


def test_late_units_of_several_turns_add_up():
    turns = [0, 1, 8, 9, 4, 5, 10, 11, 3, 14, 15]
    assert order(turns, 16) == ([0, 1, 8, 9, 10, 11, 12, 13, 16, 17, 18], 19)


def test_a_gap_before_the_question_stays():
    assert order([0, 1, 8, 4, 20, 21], 22) == ([0, 1, 8, 20, 21, 22], 23)


@pytest.mark.parametrize(
    ("positions", "length", "limit"),
    [([0, 1, 8, 9], 10, FAR), ([0, 1, 8, 4, 9], 10, 10), ([0, 9, 4], 10, FAR)],
)
def test_a_prompt_in_order_or_without_room_stays(positions, length, limit):
    """The third ends with a late unit, which nothing follows."""
    assert order(positions, length, limit) == (positions, length)


@given(st.permutations(range(12)), st.integers(1, 12), st.integers(0, 40))
def test_positions_ascend_and_a_prefix_keeps_them(positions, size, more):
    """The next turn finds what the target has read, with the answer, at the same positions."""
    first = [*positions[:size], 12]
    length = 13 + more
    begun, end = order(first, length)
    assert begun == sorted(set(begun))
    late = sum(position < max(first[:at]) for at, position in enumerate(first) if at)
    assert end == length + late
    answer = [length, length + 1]
    continued, _ = order([*first, *answer, *(p for p in range(12) if p not in first), length + 5], length + 6)
    assert continued[: len(first)] == begun
    assert continued[len(first) :][:2] == [end, end + 1], "where the target has decoded them"
