"""Spans are the runs of a mask, and each lies inside the prompt."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv_transfer.arrays import check_spans, segments_of, spans_of
from skim_common.errors import InvalidRequestError


def test_no_tokens_no_spans():
    assert spans_of(np.zeros(0, bool)).tolist() == []


@given(st.lists(st.booleans()))
def test_spans_are_the_runs_of_a_mask(mask):
    spans = spans_of(np.array(mask, bool))
    assert spans.dtype == np.int32
    assert spans.shape == (len(spans), 2)
    rebuilt = np.zeros(len(mask), bool)
    for start, end in spans.tolist():
        assert 0 <= start < end <= len(mask)
        assert not rebuilt[max(0, start - 1) : end].any()
        rebuilt[start:end] = True
    assert rebuilt.tolist() == mask


@given(st.lists(st.integers(0, 40), min_size=1, unique=True))
def test_segments_are_the_runs_in_their_order(positions):
    segments = segments_of(np.array(positions, np.int32))
    assert [p for start, end in segments.tolist() for p in range(start, end)] == positions
    assert (segments[1:, 0] != segments[:-1, 1]).all()


def test_spans_inside_the_prompt_are_accepted():
    check_spans([], 1)
    check_spans([(0, 1), [2, 9], (0, 9)], 9)


@pytest.mark.parametrize("span", [(2, 10), (-1, 2), (2, 1), (3, 3), (9, 10)])
def test_spans_outside_the_prompt_are_refused(span):
    with pytest.raises(
        InvalidRequestError, match=rf"\[{span[0]}, {span[1]}\] is no range inside the prompt's 9 tokens"
    ):
        check_spans([(0, 9), span], 9)
