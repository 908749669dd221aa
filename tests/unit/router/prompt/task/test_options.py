"""Questions of choice: their options are part of the question, and are no tasks of their own."""

import pytest

from router.decision.guard import needs_whole_text
from router.prompt.task.words import without_options
from tests.unit.router.prompt.task.test_speech import speech_of

OPTIONS = ("To count all the sheep.", "To translate the letter into French.", "To summarise the book.", "Nothing.")
HINT = "Answer with the letter of the right option."
STORY = "\n\n".join(
    f'"Where is boat {number}?" asked the pilot. "Did you see it, captain? Shall we wait for the tide?"\n\n'
    "The captain said nothing and looked at the grey water for a long time, as he always did before a storm."
    for number in range(40)
)


def choice(form="{}. {}"):
    return "\n".join(form.format(letter, option) for letter, option in zip("ABCD", OPTIONS, strict=True))


@pytest.mark.parametrize("form", ["{}. {}", "{}) {}", "({}) {}", "[{}] {}", "  {}: {}"])
def test_lines_that_begin_with_letters_are_options(form):
    text = f"Why did he come?\n{choice(form)}\n{HINT}"
    assert without_options(text) == f"Why did he come?\n{HINT}"


@pytest.mark.parametrize("text", ["A. Smith came?", "Who?\na) only one", "no options"])
def test_one_such_line_is_none(text):
    assert without_options(text) == text


@pytest.mark.parametrize(
    "form",
    [
        "{question}\n{options}\n{hint}",
        "Question: {question}\n\n{options}\n\n{hint}",
        "{question}\n{options}\nAnswer:",
        "{question} {hint}\n{options}",
        "{question}\n{options}",
    ],
)
@pytest.mark.parametrize("question", ["Why did the pilot come to the island?", "According to the captain,"])
def test_question_and_options_are_speech_behind_a_dialogue(form, question):
    asked = form.format(question=question, options=choice(), hint=HINT)
    spoken, tasks = speech_of(f"{STORY}\n\n{asked}")
    assert question in spoken
    assert all(option in spoken for option in OPTIONS)
    assert len(spoken) < len(asked) + 500
    assert any(question in task for task in tasks)


def test_options_do_not_make_a_task_for_the_whole_text():
    """Control: the same words as a request do."""
    assert not needs_whole_text(f"Why did the pilot come to the island?\n{choice()}\n{HINT}")
    assert needs_whole_text(f"Why did the pilot come?\n{OPTIONS[1]}\n{OPTIONS[2]}")
    assert needs_whole_text(f"Translate the text into French.\n{choice()}")
    assert not needs_whole_text("My wishes:")
    assert needs_whole_text("My wishes:\na) Translate the text into French.\nb) Summarise it.")
