"""The sum of heads and words over passages."""

from dataclasses import replace

import numpy as np
import pytest

from kv_transfer.passages import REACH
from speculator_service.selection.passages import Masses, passage_importance, z_scores
from tests.unit.kv_transfer.layouts import layout_of

UNITS, SIZE = 40, 10


def layout(words=None, gaps=None):
    zeros = np.zeros(UNITS, np.float32)
    made = layout_of(units=range(0, UNITS * SIZE, SIZE), gaps=[0] * UNITS if gaps is None else gaps)
    return replace(made, words=zeros if words is None else np.array(words, np.float32))


def masses(**at):
    found = np.full(UNITS * SIZE, 1e-4, np.float32)
    for unit, mass in at.items():
        first = int(unit[1:]) * SIZE
        found[first : first + SIZE] = mass
    return found


ALL = np.ones(UNITS * SIZE, bool)


def by_unit(importance):
    return importance.reshape(UNITS, SIZE)[:, 0]


def test_all_tokens_of_a_unit_have_one_importance():
    found = passage_importance(Masses(masses(u7=0.01), ALL), layout())
    assert found.dtype == np.float32
    assert (found.reshape(UNITS, SIZE) == by_unit(found)[:, None]).all()
    assert found.max() == 1.0


def test_a_neighbour_counts_more_than_a_far_unit():
    found = by_unit(passage_importance(Masses(masses(u7=0.01), ALL), layout()))
    assert found[7] > found[8] > found[9] > found[30]
    # Control: with a gap around the unit, its neighbour is like all others.
    apart = [0] * UNITS
    apart[7] = apart[8] = int(100 * REACH)
    alone = by_unit(passage_importance(Masses(masses(u7=0.01), ALL), layout(gaps=apart)))
    assert alone[8] == min(alone)


def test_words_count_as_much_as_heads():
    words = np.zeros(UNITS)
    words[20] = 5
    for given in (words, 0 * words):
        found = by_unit(passage_importance(Masses(masses(u7=0.01), ALL), layout(words=given)))
        high = set(np.flatnonzero(found > 2 * np.median(found)).tolist())
        assert 7 in high
        assert (20 in high) == given.any()


def test_what_may_not_be_dropped_has_no_importance_and_scores_without_a_signal_are_equal():
    some = ALL.copy()
    some[:25] = False
    found = passage_importance(Masses(masses(u0=0.5, u7=0.01), some), layout())
    assert not found[:25].any()
    assert found[25:].all()
    assert len(set(passage_importance(Masses(masses(), ALL), layout()).tolist())) == 1


def test_z_scores_are_those_of_some_units():
    values, among = np.array([1.0, 3.0, 100.0]), np.array([True, True, False])
    assert z_scores(values, among).tolist() == [-1.0, 1.0, 0.0]
    assert z_scores(values, np.zeros(3, bool)).tolist() == [0, 0, 0]


def test_a_second_read_ranks_what_it_read_anew_and_leaves_the_rest():
    read = np.zeros(ALL.size, bool)
    read[2 * SIZE : 8 * SIZE] = True
    first, again = Masses(masses(u3=0.02, u7=0.01), ALL), Masses(masses(u3=0.001, u7=0.02), read)
    once, twice = (passage_importance(first, layout(gaps=[1000] * UNITS), more) for more in (None, again))
    assert by_unit(once).argmax() == 3
    assert by_unit(twice).argmax() == 7
    ratio = by_unit(twice)[~by_unit(read)] / by_unit(once)[~by_unit(read)]
    assert ratio == pytest.approx(ratio[0])  # the largest is 1, so all have another scale


def test_what_the_first_read_is_surest_of_loses_nothing_by_the_second(monkeypatch):
    read = np.zeros(ALL.size, bool)
    read[: 20 * SIZE] = True
    distracted = {f"u{unit}": 0.02 for unit in range(10, 20)}
    first, again = Masses(masses(u3=0.5), ALL), Masses(masses(u3=0.0001, **distracted), read)

    def best():
        return by_unit(passage_importance(first, layout(gaps=[1000] * UNITS), again)).argmax()

    assert best() == 3
    monkeypatch.setattr("speculator_service.selection.passages.SURE_SHARE", 0.0)
    assert best() != 3
