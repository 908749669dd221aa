"""A prompt's text by token: nothing is lost, and each token has its own part."""

import numpy as np
import pytest

from cluster.explain.page import PromptText, read_token_text
from router.prompt.contents import ChatContents, Content
from router.prompt.rendered import MessageSpan, RenderedPrompt
from skim.prompts import render
from skim_common.models.info import load_tokenizer
from tests.unit.router.conftest import MODELS

MODEL = str(MODELS / "target")
CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "A long document.\nWhy?"},
    {"role": "assistant", "content": "Because."},
    {"role": "user", "content": "Why?"},
    {"role": "user", "content": "Why?"},
]


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer(MODEL)


@pytest.fixture(scope="module")
def tokens():
    return read_token_text(MODEL)


@pytest.mark.parametrize(
    "text", ["Plain text.\nTwo lines.", "Grüße, 世界 👩‍🚀", "\u202egnirts\u202c \x00\x07", " a  b"]
)
def test_the_text_of_the_tokens_is_the_prompt(tokenizer, tokens, text):
    ids = np.asarray(tokenizer(text, add_special_tokens=False).input_ids, np.int32)
    prompt = PromptText.of(RenderedPrompt(ids), tokens)
    assert prompt.text == text
    assert prompt.cuts.shape == (ids.size + 1,)
    parts = [prompt.text[a:b] for a, b in zip(prompt.cuts, prompt.cuts[1:], strict=False)]
    assert "".join(parts) == text
    assert not prompt.messages


def test_a_torn_character_and_an_unknown_id_are_replacement_characters(tokenizer, tokens):
    ids = tokenizer("世", add_special_tokens=False).input_ids
    assert len(ids) > 1
    assert set(PromptText.of(RenderedPrompt(np.asarray(ids[:1], np.int32)), tokens).text) == {"\ufffd"}
    assert PromptText.of(RenderedPrompt(np.asarray([10**6], np.int32)), tokens).text == "\ufffd"


def test_the_messages_of_a_chat(tokenizer, tokens):
    rendered = render(CHAT, tokenizer)
    prompt = PromptText.of(rendered, tokens)
    assert [message.role for message in prompt.messages] == ["user", "assistant", "user", "user"]
    for message, words in zip(prompt.messages, ("document", "Because", "Why?", "Why?"), strict=True):
        assert words in prompt.text[prompt.cuts[message.start] : prompt.cuts[message.end]]
    assert all(a.end <= b.start for a, b in zip(prompt.messages, prompt.messages[1:], strict=False))
    asked = prompt.messages[0]
    shown = prompt.text[prompt.cuts[asked.start] : prompt.cuts[asked.end]]
    assert "A long document." in shown
    assert "Why?" in shown
    # Each of two equal messages has its own place.
    assert prompt.messages[2].end <= prompt.messages[3].start


def test_a_message_without_a_place_has_no_mark():
    letters = [(i, i + 1) for i in range(40)]
    contents = [Content(0, "user", "a", lost=True), Content(1, "assistant", "b", spans=((3, 4), (20, 25)))]
    chat = ChatContents(["user", "assistant"], contents)
    ids = np.arange(40, dtype=np.int32)
    assert RenderedPrompt(ids, None, letters, chat).message_spans() == [MessageSpan("assistant", 20, 25)]
    unplaced = (letters, None), (None, chat), (letters, ChatContents(["user"], None))
    assert all(RenderedPrompt(ids, None, *one).message_spans() == [] for one in unplaced)
