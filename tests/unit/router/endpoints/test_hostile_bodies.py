"""The work for a body grows with its length and no faster. Calls are counted, not time."""

import json
import sys
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from router.http.body import parse_body
from router.options.request import PrefillOptions
from router.prompt.contents import MarkedChat
from router.prompt.control_tokens import ControlTokens
from router.prompt.markers import Markers, messages_with_keeps
from router.prompt.rendered import RenderedPrompt
from skim_common.errors import InvalidRequestError
from tests.unit.router.chats import prompt_spans
from tests.unit.router.prompt.test_control_tokens import END, byte_level
from tests.unit.router.prompt.test_control_tokens import render as render_chat

FEW, MANY = 200, 800
PRIVATE = "".join(map(chr, (*range(0xF0000, 0xFFFFE), *range(0x100000, 0x10FFFE))))


def operations(call: Callable[[], Any]) -> int:
    """How often functions are called and generators go on, in Python and in C."""
    count = 0

    def profile(frame, event, argument):
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(before)
    return count


def is_linear(work: Callable[[int], Callable[[], Any]]) -> bool:
    few, many = (operations(work(size)) for size in (FEW, MANY))
    return many < 1.5 * MANY / FEW * few


def render(messages):
    return "".join(f"<s>{'|'.join(part['text'] for part in message['content'])}" for message in messages)


def turn_of(texts):
    return [{"role": "user", "content": [{"type": "text", "text": text} for text in texts]}]


def offsets_of(text):
    return [(at, at + 4) for at in range(0, len(text), 4)]


TEXTS = {
    "equal parts": lambda size: turn_of(["x" * 40] * size),
    "different parts": lambda size: turn_of([f"{number:040}" for number in range(size)]),
    "messages": lambda size: [turn_of([f"{number:040}"])[0] for number in range(size)],
}


@pytest.mark.parametrize("kind", TEXTS)
def test_the_places_of_contents(kind):
    def work(size):
        messages = TEXTS[kind](size)
        chat = MarkedChat(messages, render(messages))
        again = render(chat.messages)
        return lambda: chat.contents(again)

    assert is_linear(work)


@pytest.mark.parametrize("kind", TEXTS)
def test_the_spans_of_a_chat(kind):
    def work(size):
        messages = TEXTS[kind](size)
        text = render(messages)
        marked = MarkedChat(messages, text)
        chat, offsets = marked.contents(render(marked.messages)), offsets_of(text)

        def spans():
            found = prompt_spans(len(offsets), PrefillOptions(keep_short=0), chat, text, offsets)
            assert found.protected_tokens < len(offsets)
            assert RenderedPrompt(np.zeros(len(offsets), np.int32), text, offsets, chat).message_spans()

        return spans

    assert is_linear(work)


def test_control_tokens_in_many_messages():
    tokenizer = byte_level()
    control = ControlTokens(tokenizer, "text")

    def work(size):
        messages = [{"role": "user", "content": f"a {END} {number:04}"} for number in range(size)]
        text = render_chat(messages)
        encoded, marked = tokenizer.encode(text), MarkedChat(messages, text)
        chat = marked.contents(render_chat(marked.messages))
        ids, offsets = encoded.ids, encoded.offsets
        return lambda: control.as_text(text, ids, offsets, chat)

    assert is_linear(work)


class Searched(str):
    """A text that counts how often it is searched."""

    searches = 0

    def __contains__(self, what):
        self.searches += 1
        return super().__contains__(what)


def test_a_text_with_most_private_characters_is_read_once():
    text = Searched(PRIVATE[:-2])
    marks = Markers(text, "a")
    assert (marks.left + marks.right, text.searches) == (PRIVATE[-2:], 0)


def test_a_text_with_all_private_characters_is_refused():
    with pytest.raises(InvalidRequestError, match="private use areas"):
        Markers(PRIVATE[:70_000], PRIVATE[60_000:])


@pytest.mark.asyncio(loop_scope="session")
async def test_a_chat_with_all_private_characters_is_refused(client, monkeypatch):
    monkeypatch.setattr("router.prompt.markers._AREAS", (range(0xF0000, 0xF0003),))
    body = {"model": "demo", "messages": [{"role": "user", "content": PRIVATE[:3]}], "max_tokens": 1}
    response = await client.post("/v1/chat/completions", json=body)
    assert (response.status_code, "private use areas" in response.text) == (400, True)


def test_a_long_name_is_not_copied_for_each_value_under_it():
    body = json.dumps({"number": float("inf"), "x" * 50_000: [0] * 2000}).encode()
    tracemalloc.start()
    try:
        with pytest.raises(InvalidRequestError, match=r"^number must be a finite"):
            parse_body(body, "/v1/chat/completions")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 10 * len(body) + 2_000_000


@pytest.mark.asyncio(loop_scope="session")
async def test_a_long_name_is_not_quoted_as_a_whole(client):
    """The endpoint answers at once: `test_hostile_texts` shows that it could take half a minute."""
    body = {"model": "/a" * 50_000, "messages": [{"role": "user", "content": "x"}]}
    response = await client.post("/v1/chat/completions", json=body)
    assert (response.status_code, len(response.text) < 1500) == (404, True)


@pytest.mark.asyncio(loop_scope="session")
async def test_what_recurses_too_far_in_vllm_is_a_400(client, monkeypatch):
    def fail(*args, **kwargs):
        raise RecursionError("maximum recursion depth exceeded")

    monkeypatch.setattr("vllm.entrypoints.openai.chat_completion.api_router.chat", fail)
    body = {"model": "demo", "messages": [{"role": "user", "content": "x"}]}
    response = await client.post("/v1/chat/completions", json=body)
    assert (response.status_code, "too many levels" in response.text) == (400, True)


def test_messages_that_contain_themselves_are_refused():
    message = {"role": "user"}
    message["content"] = [message]
    with pytest.raises(InvalidRequestError, match="messages has too many levels"):
        messages_with_keeps([message])
