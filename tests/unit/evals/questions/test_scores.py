"""Scores of answers to questions of people. Each has answers that must not count."""

import pytest

from evals.questions.scores import chosen_letter, contains, exact, f1, lettered

OPTIONS = {"A": "A leaking roof", "B": "the old heating", "C": "Both", "D": "Neither of these"}


@pytest.mark.parametrize(
    ("answer", "letter"),
    [
        ("B", "B"),
        (" (B)", "B"),
        ("(b)", "B"),
        ("**B**", "B"),
        ("B. Because the chair said so. A roof is no cause.", "B"),
        ("A", "A"),
        ("The answer is B.", "B"),
        ("The correct answer is: (C) Both", "C"),
        ("The answer is B because the heating is old", "B"),
        ("Option D", "D"),
        ("The old heating.", "B"),
        ("It was a leaking roof, said the chair.", "A"),
        ("I think B, said in line 3", "B"),
        ("A guest said that B is right", "B"),
    ],
)
def test_the_letter_of_an_answer(answer, letter):
    assert chosen_letter(answer, OPTIONS) == letter


@pytest.mark.parametrize(
    "answer",
    ["", "A long time", "The answer is A long time", "B and C", "E", "B's hall", "the roof", "the hall is cold"],
)
def test_an_answer_without_one_letter_chooses_nothing(answer):
    assert chosen_letter(answer, OPTIONS) is None


@pytest.mark.parametrize(
    ("choices", "options"),
    [
        (["yes", " no "], {"A": "yes", "B": "no"}),
        (["A. yes", "B) no"], {"A": "yes", "B": "no"}),
        (["(A) yes", "B: no"], {"A": "yes", "B": "no"}),
        (["A roof", "Be quick"], {"A": "A roof", "B": "Be quick"}),
        (["A. yes", "no"], None),
        (["A. yes", "C. no"], None),
        (["A. yes B. no"], None),
        (["more"] * 27, None),
    ],
)
def test_options_have_letters_in_order(choices, options):
    assert lettered(choices) == options


def test_words_are_compared_as_in_squad():
    assert f1("The chair, and the clerk!", "a chair and a clerk") == 1
    assert f1("the chair", "the clerk") == 0
    assert f1("chair of the hall", "chair") == pytest.approx(0.5)
    assert f1("chair chair", "chair") == pytest.approx(2 / 3), "a repeated word counts once"
    assert (f1("", "the"), f1("", "chair")) == (1, 0)
    assert (exact("The hall.", "hall"), exact("hall roof", "hall")) == (1, 0)
    assert (contains("in the old hall", "old hall"), contains("in the older hall", "old hall")) == (1, 0)
