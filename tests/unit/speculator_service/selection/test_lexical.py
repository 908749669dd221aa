"""The words of the units as scores of tokens, and their sum with the speculator's."""

from dataclasses import replace

import numpy as np
import pytest

from speculator_service.selection.passages import lexical_importance, with_lexical
from tests.unit.kv_transfer.layouts import layout_of


def test_each_token_has_the_score_of_its_unit():
    layout = replace(layout_of(units=[0, 2, 3]), words=np.array([1, 0, 2], np.float32))
    assert lexical_importance(layout, 6).tolist() == [1, 1, 0, 2, 2, 2]


def test_the_sum_has_both_scores_in_their_proportions():
    droppable = np.array([False, True, True, True, False])
    attention, words = np.array([9, 1, 1, 2, 5], np.float32), np.array([3, 0, 3, 0, 0], np.float32)
    found = with_lexical(attention, words, droppable)
    assert found.dtype == np.float32
    assert found.tolist() == pytest.approx([9 / 4 + 1, 1 / 4, 1 / 4 + 1, 2 / 4, 5 / 4])
    nothing = np.zeros(5, np.float32)
    assert with_lexical(attention, nothing, droppable).tolist() == pytest.approx((attention / 4).tolist())
    assert with_lexical(nothing, words, droppable).tolist() == pytest.approx((words / 3).tolist())
    assert np.isnan(with_lexical(np.full(5, np.nan, np.float32), words, droppable)).all()
