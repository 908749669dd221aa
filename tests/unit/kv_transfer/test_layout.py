"""What a layout says of a prompt, and which layouts no prompt has."""

import numpy as np
import pytest

from kv_transfer.layout import NO_LAYOUT, TextLayout
from kv_transfer.options import SelectionOptions
from tests.unit.kv_transfer.layouts import layout_of, pairs


def test_final_questions_stand_after_all_that_may_be_dropped():
    three = TextLayout(questions=pairs([(2, 4), (5, 6), (7, 9)]))
    ends = [0, 4, 5, 6, 9, 10]
    found = [three.final_questions(np.arange(10) < end) for end in ends]
    assert [len(questions) for questions in found] == [3, 3, 2, 2, 1, 0]
    assert found[2] == ((5, 6), (7, 9))
    assert NO_LAYOUT.final_questions(np.ones(10, bool)) == ()


def test_protected_and_last_tokens_are_always_kept():
    assert np.flatnonzero(layout_of([(0, 1), (3, 5)]).fixed(10, 2)).tolist() == [0, 3, 4, 8, 9]


def test_rates_are_the_decimals_that_were_written():
    assert layout_of(regions=[(2, 5, 0.1)]).regions == [(2, 5, 0.1)]


def test_units_are_those_of_the_text_or_chunks():
    layout = layout_of(units=[0, 5, 7])
    text, chunk = (layout.unit_starts(10, SelectionOptions(granularity=g, chunk_size=4)) for g in ("text", "chunk"))
    assert (text.tolist(), chunk.tolist()) == ([0, 5, 7], [0, 4, 8])
    assert NO_LAYOUT.unit_starts(10, SelectionOptions(chunk_size=4)).tolist() == [0, 4, 8]


@pytest.mark.parametrize("name", ["protected", "links", "questions"])
def test_wrong_shapes_are_no_layout(name):
    with pytest.raises(ValueError, match=rf"{name} must be pairs \[N, 2\], not \[3\]"):
        TextLayout(**{name: np.zeros(3, np.int32)})
