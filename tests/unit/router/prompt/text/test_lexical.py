"""How much each unit says of the question's words, alone and with the passage around it."""

import numpy as np
import pytest

from kv_transfer.passages import REACH, reach_of
from router.prompt.text import lexical
from router.prompt.text.codes import codes_of
from router.prompt.text.lexical import word_scores
from router.prompt.text.passages import APART, BLANK_LINE, LEAST_REACH, OTHER, PASSAGE_SHARE, TextPassages
from router.prompt.text.words import TermIndex, TextWords


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
    words = TextWords.of(codes)
    lengths, reach = np.full(begins.size, 10), np.full(begins.size, REACH)
    scores, share = word_scores(
        TermIndex(words, begins, may_drop),
        TextPassages(lengths, between.astype(np.int32), reach),
        [words.asked(codes, *place) for place in places],
    )
    return scores[:-1], share


TRACE = 1e-5
UNITS = ["The committee argued about fees. ", "It met on Monday. ", "Nobody spoke of birds. ", "A dog slept. "] * 3


def test_words_are_compared_by_their_beginnings_and_without_case():
    own = scored(UNITS, "What was the ARGUMENT of the committees?")
    assert np.flatnonzero(own > TRACE).tolist() == [0, 4, 8]


def test_stop_words_ask_for_nothing_unless_there_are_no_others():
    assert not scored(["About the man. ", "It is so. "], "about the zebra").any()
    assert scored(["About the man. ", "Dogs. "], "about the")[0] > 0


def test_the_passage_around_a_unit_counts():
    own, near = (scored(UNITS[:4], "Who argued?", gaps=gaps) for gaps in (APART, 0))
    assert (own[1:] < TRACE * own[0]).all()
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


def passages_in(units, indents=None, droppable=None):
    starts, codes = np.cumsum([0, *map(len, units)])[:-1], codes_of("".join(units))
    indented = np.array(indents or [0] * len(units), np.int32)
    may_drop = np.ones(len(units), bool) if droppable is None else droppable
    index = TermIndex(TextWords.of(codes), starts, may_drop)
    breaks = np.array([0, *(unit.count("\n") for unit in units[:-1])])
    return TextPassages.of(index, codes, starts, np.full(len(units), 10), breaks, indented)


def gaps_in(*given):
    return passages_in(*given).gaps


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
    assert gaps_in(units, None, droppable).tolist() == [APART, 0, 0, BLANK_LINE, OTHER, APART]
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


WORDS = [f"{'abcdefghijklmnopqrst'[i]}{'aeiou'[j]}word" for i in range(20) for j in range(5)]


def paragraphs_of(words_of_each):
    """20 paragraphs of 6 sentences, parted by blank lines; each of words of its own, or all of the same."""
    rng = np.random.default_rng(0)
    sentences = []
    for number in range(20):
        own = WORDS[5 * number : 5 * number + 5] if words_of_each else WORDS
        ends = [". "] * 5 + [".\n\n"]
        sentences += [" ".join(rng.choice(own, 4)) + end for end in ends]
    return sentences


def test_in_a_collection_a_unit_reaches_over_part_of_its_passage():
    lengths = 10 * 120
    reach = passages_in(paragraphs_of(True)).reach
    assert set(reach.tolist()) == {max(LEAST_REACH, PASSAGE_SHARE * 60)}
    # Control: the blank lines of a text that reads on, or does nowhere.
    assert set(passages_in(paragraphs_of(False)).reach.tolist()) == {reach_of(lengths)}
    whole = [sentence.replace("\n\n", " ") for sentence in paragraphs_of(True)]
    assert set(passages_in(whole).reach.tolist()) == {reach_of(lengths)}


TOWNS = ["Ada Byron was born in Kestrel Bay in 1815. ", "She loved long walks along the old river. "]
HILLS = [f"Some other person lived on a hill with number {number} for a while. " for number in range(40)]
MAYORS = ["The mayor of Kestrel Bay is Otto Lind. ", "The mayor of Port Amber is Ines Vale. "]
BIRTHPLACE = "Who governs the birthplace of Ada Byron?"


def test_names_of_the_best_units_search_again():
    """Only the first sentence shares a name with the question; it names the town whose mayor is asked for."""
    found = scored([*TOWNS, *HILLS, *MAYORS], BIRTHPLACE, gaps=50 * BLANK_LINE)
    assert np.argsort(-found)[:2].tolist() == [0, len(found) - 2]
    code = scored([*TOWNS, *HILLS, *MAYORS], BIRTHPLACE, gaps=APART)
    assert code[-2] < TRACE * code[0]


def test_names_of_the_question_and_other_words_lead_nowhere(monkeypatch):
    units = [*TOWNS, *HILLS, *MAYORS]
    named = BIRTHPLACE + " Was she born in Kestrel Bay in 1815?"
    lower = [text.replace("Kestrel Bay", "kestrel bay") for text in units]
    twice = scored(units, named, gaps=BLANK_LINE), scored(lower, BIRTHPLACE, gaps=BLANK_LINE)
    monkeypatch.setattr(lexical, "SECOND_HOP", 0)
    assert np.array_equal(twice, [scored(units, named, gaps=BLANK_LINE), scored(lower, BIRTHPLACE, gaps=BLANK_LINE)])


def test_names_in_many_units_lead_nowhere():
    units = ["Ada saw Rome. "] + ["Bo saw Rome. "] * 9 + ["A dog slept. "] * 10
    assert (scored(units, "Whom did Ada greet?", gaps=BLANK_LINE * 100)[1:] < TRACE).all()


def test_units_without_a_shared_word_are_ordered_around_the_hits():
    found = scored(["A dog slept. "] * 6 + ["Birds sang. "] + ["A dog slept. "] * 3, "Which birds?")
    assert np.argsort(-found, kind="stable").tolist() == [6, 5, 7, 4, 8, 3, 9, 2, 1, 0]
    assert found[found < found.max()].max() < TRACE * found.max()
    assert not scored(["A dog slept. "] * 6, "Which birds?").any()
