"""Prompts from questions of people: their form, which questions can be asked, and in what order."""

from collections import Counter
from dataclasses import replace

import pytest

from evals.questions.file import Question
from evals.questions.samples import answerable, draw
from skim_common.errors import SkimError

ASKED = Question(1, "notes", "The roof leaks.", "What leaks?", ((4, 8),), ("B",), ("the door", "the roof"), "choice")


def test_the_form_of_a_prompt():
    [choice], [words] = (draw([one], 1, 0, len) for one in (ASKED, replace(ASKED, score="f1", choices=())))
    assert choice.messages == [
        {
            "role": "user",
            "content": "The roof leaks.\n\nQuestion: What leaks? Answer with the letter of the right option.\n"
            "A. the door\nB. the roof",
        }
    ]
    assert words.text == "The roof leaks.\n\nQuestion: What leaks? Answer in a few words."
    assert choice.alone == choice.text.removeprefix("The roof leaks.\n\n")
    assert (choice.quiz.evidence, choice.max_tokens, words.max_tokens) == (("roof",), 16, 48)


@pytest.mark.parametrize(
    "change",
    [
        {"answers": ()},
        {"answers": ("C",)},
        {"choices": ("A. door", "roof")},
        {"choices": ("door",)},
        {"score": "evidence"},
    ],
)
def test_a_question_whose_answer_cannot_be_scored_is_left_out(change):
    assert answerable(ASKED) is not None
    assert answerable(replace(ASKED, **change)) is None
    with pytest.raises(SkimError, match="no question of the file has an answer to score"):
        draw([replace(ASKED, **change)], 9, 0, len)


def test_the_best_of_several_answers_counts():
    asked = answerable(replace(ASKED, score="f1", answers=("a wet roof", "rain"), choices=()))
    assert asked.score("the roof") == pytest.approx(2 / 3)
    assert asked.score("rain") == 1


def test_sets_take_turns_by_document_and_a_larger_count_keeps_the_order():
    questions = [
        replace(ASKED, number=number, set=name, document=f"{name} {document}")
        for number, (name, document) in enumerate((name, at // 3) for name in ("notes", "talks") for at in range(30))
    ]
    drawn = draw(questions, 9, 5, len)
    assert Counter(sample.task for sample in drawn) == {"notes": 9, "talks": 9}
    assert [sample.task for sample in drawn] == ["notes"] * 3 + (["talks"] * 3 + ["notes"] * 3) * 2 + ["talks"] * 3
    documents = [sample.document for sample in drawn]
    assert all(len({*documents[at : at + 3]}) == 1 for at in range(0, 18, 3)), "a document is read once"
    assert draw(questions, 12, 5, len)[:18] == drawn
    assert draw(questions, 9, 6, len) != drawn
    assert Counter(sample.task for sample in draw(questions, 4, 5, len)) == {"notes": 4, "talks": 4}
