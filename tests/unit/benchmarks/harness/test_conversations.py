"""Conversations: questions about different records of one document, and the history that a client sends."""

import pytest

from benchmarks.harness.conversations import HINT, INTRODUCTION, conversation
from benchmarks.harness.models import TOKENIZER
from skim_common.models.info import load_tokenizer


def test_every_question_has_its_record_in_the_document():
    chat = conversation(2048, 8, seed=3)
    assert len({question.text for question in chat.questions}) == 8
    for question in chat.questions:
        what = question.text.removeprefix("Question: What is the ").removesuffix("?")
        assert f"The {what} is {question.expected}." in chat.document
        assert question.is_right(f" {question.expected}.")
        assert not question.is_right(f"{question.expected} or another")


def test_each_turn_sends_the_history_with_the_answers():
    chat = conversation(1024, 3, seed=0)
    first, later = chat.messages(0, []), chat.messages(2, ["one", "two"])
    assert first == later[:1]
    assert first[0]["content"] == f"{chat.document}\n{chat.questions[0].text}"
    assert [m["content"] for m in later[1:]] == ["one", chat.questions[1].text, "two", chat.questions[2].text]
    assert [m["role"] for m in later] == ["user", "assistant", "user", "assistant", "user"]
    with pytest.raises(ValueError, match="zip"):
        chat.messages(2, ["one"])


@pytest.mark.parametrize("tokens", [1024, 8192])
def test_the_first_prompt_is_as_long_as_asked(tokens):
    chat = conversation(tokens, 2, seed=5)
    tokenizer = load_tokenizer(str(TOKENIZER))
    prompt = tokenizer.apply_chat_template(chat.messages(0, []), add_generation_prompt=True, return_dict=False)
    assert tokens - 32 <= len(prompt) <= tokens


def test_the_style_for_other_models_says_what_to_do():
    chat = conversation(1024, 2, seed=5, style="instruct")
    assert chat.document.startswith(INTRODUCTION)
    assert all(question.text.endswith(HINT) for question in chat.questions)
