"""How much each unit says of the question's words, alone and with the passage around it."""

import numpy as np
import pytest

from router.prompt.text import lexical
from router.prompt.text.codes import codes_of
from router.prompt.text.lexical import APART, BLANK_LINE, OTHER, gaps_of, word_scores, words_of


def scored(units, *questions, **given):
    return found_in(units, *questions, **given)[0]


def placed(units, *questions, **given):
    return found_in(units, *questions, **given)[1]


def found_in(units, *questions, gaps=APART, droppable=None):
    text = "".join(units)
    starts = np.cumsum([0, *map(len, units)])[:-1]
    places, whole = [], text
    for question in questions:
        places.append((len(whole) + 1, len(whole) + 1 + len(question)))
        whole += "\n" + question
    begins = np.append(starts, len(text))  # the questions are the last unit
    may_drop = np.append(np.ones(len(units), bool) if droppable is None else droppable, False)
    between = np.append(np.full(len(units), gaps), APART)
    codes = codes_of(whole)
    scores, share = word_scores(
        words_of(codes), codes, begins, np.full(begins.size, 10), between.astype(np.int32), may_drop, places
    )
    return scores[:-1], share


UNITS = ["The committee argued about fees. ", "It met on Monday. ", "Nobody spoke of birds. ", "A dog slept. "] * 3


def test_words_are_compared_by_their_beginnings_and_without_case():
    own = scored(UNITS, "What was the ARGUMENT of the committees?")
    assert np.flatnonzero(own).tolist() == [0, 4, 8]


def test_stop_words_ask_for_nothing_unless_there_are_no_others():
    assert not scored(["About the man. ", "It is so. "], "about the zebra").any()
    assert scored(["About the man. ", "Dogs. "], "about the")[0] > 0


def test_the_passage_around_a_unit_counts():
    own, near = (scored(UNITS[:4], "Who argued?", gaps=gaps) for gaps in (APART, 0))
    assert own[1] == own[3] == 0
    assert near[0] > near[1] > near[2] > near[3] > 0


def test_the_best_of_several_questions_counts():
    alone = [scored(UNITS, asked) for asked in ("Who argued?", "Which birds?")]
    assert np.array_equal(scored(UNITS, "Who argued?", "Which birds?") > 0, np.maximum(*alone) > 0)


def test_a_long_question_hides_no_short_one():
    """Of its many terms, no unit has more than a few."""
    rules = "Write each fact on a line of its own, with birds first, and say who slept, who met and who spoke."
    own = scored([*UNITS[:4], "Birds spoke on a line. "], "Who argued?", rules)
    assert np.argmax(own) == 0


def test_of_too_many_terms_the_rarest_count_as_one_question(monkeypatch):
    units = ["Birds and fees. ", "Fees and dogs. ", "Fees met. ", "Birds sang. "]
    one = scored(units, "birds dogs sang")
    monkeypatch.setattr(lexical, "MOST_TERMS", 3)
    found = scored(units, "birds fees", "dogs sang")
    assert np.array_equal(found > 0, one > 0)
    assert np.allclose(found * 4**0.5, one * 3**0.5)


@pytest.mark.parametrize(
    ("text", "question"), [("指南针的重量是五克。", "指南针重多少\uff1f"), ("나침반의 무게", "나침반은?")]
)
def test_scripts_without_spaces_are_compared_by_pairs(text, question):
    own = scored([text, "水壶在桌子上。" if "针" in text else "주전자 하나"], question)
    assert own[0] > own[1]


def test_what_may_not_be_dropped_has_no_score():
    assert scored(UNITS[:4], "Who argued?", droppable=[False, True, True, True])[0] == 0


def test_a_question_is_placed_by_the_rare_terms_of_one_passage():
    assert placed(UNITS, "What did the committee argue about fees?") == pytest.approx(1)
    assert placed(UNITS, "Which giraffe ran?") == placed(UNITS) == 0
    apart, near = (placed(UNITS[:4], "Does a dog argue?", gaps=gaps) for gaps in (APART, 0))
    assert apart == pytest.approx(0.5)
    assert 0.5 < near < 1
    # What the text lacks is rarer than all that it has.
    assert placed(UNITS[:4], "Did a giraffe argue?") < 0.5


def test_of_several_questions_the_one_counts_that_words_say_most_of():
    rules = "Write a list without headings, in lower case, and sign it. Dogs are fine."
    alone = placed(UNITS, "The committee argued.")
    assert placed(UNITS, "The committee argued.", rules) == placed(UNITS, rules, "The committee argued.") == alone
    assert placed(UNITS, rules) < 0.3 < alone


def gaps_in(units, indents=None, droppable=None):
    starts, codes = np.cumsum([0, *map(len, units)])[:-1], codes_of("".join(units))
    indented = np.array(indents or [0] * len(units), np.int32)
    may_drop = np.ones(len(units), bool) if droppable is None else droppable
    return gaps_of(words_of(codes), codes, starts, indented, may_drop)


def test_gaps_are_at_blank_lines_and_where_no_prose_is():
    units = [
        "A first sentence of prose. ",
        "A second one.\n",
        "A line.\n\n",
        "A paragraph of its own.\n",
        "x=1;y=2;[3]\n",
        "q",
    ]
    droppable = np.array([True] * 5 + [False])
    assert gaps_in(units, droppable=droppable).tolist() == [APART, 0, 0, BLANK_LINE, OTHER, APART]
    assert gaps_in(units, [0, 2, 0, 0, 0, 0], droppable)[1:3].tolist() == [OTHER, OTHER]
    # Mostly indented: code.
    assert set(gaps_in(units, [0, 2, 2, 0, 0, 0], droppable).tolist()) == {APART}


def test_nothing_is_spread_in_a_text_that_does_not_read_on():
    rng = np.random.default_rng(0)
    words = [f"{'abcdefghijklmnopqrst'[i]}{'aeiou'[j]}word" for i in range(20) for j in range(5)]
    shuffled = [" ".join(rng.choice(words, 5)) + ". " for _ in range(200)]
    assert gaps_in(shuffled)[1] == APART
    # The same sentences, each after one with the same words.
    ordered = [sentence for sentence in shuffled[:100] for _ in range(2)]
    assert gaps_in(ordered)[1] == 0
    lines = [sentence.strip() + "\n" for sentence in shuffled]
    assert gaps_in(lines)[1] == APART
