"""How much each unit says of the question's words, alone and with the passage around it."""

import numpy as np
import pytest

from router.prompt.lexical import APART, BLANK_LINE, OTHER, gaps_of, word_scores
from router.prompt.units import codes_of


def scored(units, *questions, gaps=None, droppable=None):
    text = "".join(units)
    starts = np.cumsum([0, *map(len, units)])[:-1]
    places, whole = [], text
    for question in questions:
        places.append((len(whole) + 1, len(whole) + 1 + len(question)))
        whole += "\n" + question
    begins = np.append(starts, len(text))  # the questions are the last unit
    may_drop = np.append(np.ones(len(units), bool) if droppable is None else droppable, False)
    between = np.zeros(begins.size, np.int32) if gaps is None else np.append(gaps, APART)
    found = word_scores(codes_of(whole), begins, np.full(begins.size, 10), between.astype(np.int32), may_drop, places)
    return found.own[:-1], found.near[:-1]


UNITS = ["The committee argued about fees. ", "It met on Monday. ", "Nobody spoke of birds. ", "A dog slept. "] * 3


def test_words_are_compared_by_their_beginnings_and_without_case():
    own, _ = scored(UNITS, "What was the ARGUMENT of the committees?")
    assert np.flatnonzero(own).tolist() == [0, 4, 8]


def test_stop_words_ask_for_nothing_unless_there_are_no_others():
    assert not scored(["About the man. ", "It is so. "], "about the zebra")[0].any()
    assert scored(["About the man. ", "Dogs. "], "about the")[0][0] > 0


def test_the_passage_around_a_unit_counts():
    own, near = scored(UNITS[:4], "Who argued?")
    assert own[1] == own[3] == 0
    assert near[0] > near[1] > near[2] > near[3] > 0
    apart = np.array([0, APART, 0, 0])
    assert scored(UNITS[:4], "Who argued?", gaps=apart)[1][1:].tolist() == [0, 0, 0]


def test_the_best_of_several_questions_counts():
    alone = [scored(UNITS, asked)[0] for asked in ("Who argued?", "Which birds?")]
    assert np.array_equal(scored(UNITS, "Who argued?", "Which birds?")[0] > 0, np.maximum(*alone) > 0)


@pytest.mark.parametrize(
    ("text", "question"), [("指南针的重量是五克。", "指南针重多少\uff1f"), ("나침반의 무게", "나침반은?")]
)
def test_scripts_without_spaces_are_compared_by_pairs(text, question):
    own, _ = scored([text, "水壶在桌子上。" if "针" in text else "주전자 하나"], question)
    assert own[0] > own[1]


def test_what_may_not_be_dropped_has_no_score():
    own, near = scored(UNITS[:4], "Who argued?", droppable=[False, True, True, True])
    assert own[0] == near[0] == 0


def test_gaps_are_at_blank_lines_and_where_no_prose_is():
    units = [
        "A first sentence of prose. ",
        "A second one.\n",
        "A line.\n\n",
        "A paragraph of its own.\n",
        "x=1;y=2;[3]\n",
        "q",
    ]
    starts = np.cumsum([0, *map(len, units)])[:-1]
    droppable = np.array([True] * 5 + [False])
    gaps = gaps_of(codes_of("".join(units)), starts, np.zeros(6, np.int32), droppable)
    assert gaps.tolist() == [0, 0, 0, BLANK_LINE, OTHER, APART]
    indented = gaps_of(codes_of("".join(units)), starts, np.array([0, 2, 0, 0, 0, 0], np.int32), droppable)
    assert indented[1:3].tolist() == [OTHER, OTHER]
