"""The overlap of two answers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evals.calibration import agreement as measured


def agreement(answer, other):
    return measured.agreement(np.array(answer, np.int32), np.array(other, np.int32))


ANSWERS = st.lists(st.integers(0, 5), max_size=12)


@pytest.mark.parametrize(
    ("answer", "other", "overlap"),
    [
        ([1, 2, 3], [1, 2, 3], 1.0),
        ([], [], 1.0),
        ([1], [], 0.0),
        ([1, 2], [3, 4], 0.0),
        ([1, 2, 3, 4], [1, 2, 5, 6], 0.5),
        # A token counts as often as both answers have it.
        ([7, 7, 7, 7], [7], 0.4),
    ],
)
def test_shared_tokens_over_all_tokens(answer, other, overlap):
    assert agreement(answer, other) == pytest.approx(overlap)


@given(ANSWERS, ANSWERS)
def test_it_is_a_symmetric_share(answer, other):
    assert 0 <= agreement(answer, other) <= 1
    assert agreement(answer, other) == agreement(other, answer)
    assert (agreement(answer, other) == 1) == (sorted(answer) == sorted(other))
