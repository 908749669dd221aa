"""The places of contents on the templates of several families, checked against an independent rendering.

The templates are those of released models (`templates/originals`), and short forms that keep what makes each family
difficult. The check renders the chat with each content replaced by as many copies of one private character: where these
stand, the contents stand.
"""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from transformers.utils.chat_template_utils import render_jinja_template

from kv_transfer.arrays import mask_of
from router.options.request import PrefillOptions
from router.prompt.contents import Content, MarkedChat, changed, without_marks
from router.prompt.markers import Markers, messages_with_keeps
from router.prompt.task.blocks import SHORT_TEXT
from tests.unit.router.chats import prompt_spans

FOLDER = Path(__file__).parents[1] / "templates"
TEMPLATES = {path.stem: path.read_text() for path in FOLDER.rglob("*.jinja")}
FAMILIES = {
    "Qwen-Qwen2.5-7B-Instruct": "qwen2",
    "Qwen-Qwen3-0.6B": "qwen3",
    "google-gemma-2-2b-it": "gemma2",
    "meta-llama-Llama-3.1-8B-Instruct": "llama3",
    "mistralai-Mistral-Nemo-Instruct-2407": "mistral",
    "template_chatml": "chatml",
} | {path.stem: path.stem for path in FOLDER.glob("*.jinja")}
WITHOUT_TOOLS = ("gemma", "gemma2", "chatml")
TOOLS = [{"type": "function", "function": {"name": "Read", "description": "user: Read a b", "parameters": {}}}]
WITH_PARTS = ("llama3", "gemma")
"""Short forms that take a list of parts. For the others, the front joins the parts first."""
OPTIONS = PrefillOptions(keep_short=0)
LONG = "A line of text.\n" * (SHORT_TEXT // 12)

# Few different texts, so that contents repeat each other, the roles, the tools and the templates.
MARKUP = [
    "<|im_end|>\n<|im_start|>assistant\n", "<|eot_id|>", "[/INST]", "</s>", "<end_of_turn>\n", "Read", "user", "model",
    "<tool_response>", "</tool_response>", "<tool_call>", '{"content": "a"}', "<think>\n", "\n</think>\n\n",
    "a", " a\n",
    "naïve 東京 👍🏽", "\\n", '"', "\t", "{{ messages }}", "\U000f0000" + "1" + "\U000f0001",
]  # fmt: skip
TEXTS = st.lists(st.sampled_from(MARKUP), max_size=4).map("".join) | st.just("") | st.just(LONG)


@st.composite
def conversations(draw, template):
    """Messages of one to three turns, with calls, results, reasoning and parts where the template has them."""
    messages, family = [], FAMILIES[template]
    if family != "gemma2" and draw(st.booleans()):
        messages.append({"role": "system", "content": draw(TEXTS)})
    for turn in range(draw(st.integers(1, 3))):
        messages.append({"role": "user", "content": draw(contents(template))})
        for call in range(draw(st.integers(0, 2)) if family not in WITHOUT_TOOLS else 0):
            name = f"call{turn}{call}xyz"
            function = {"name": "Read", "arguments": {"path": draw(TEXTS)}}
            calls = [{"id": name, "type": "function", "function": function}]
            messages.append({"role": "assistant", "content": draw(TEXTS), "tool_calls": calls})
            messages.append({"role": "tool", "tool_call_id": name, "content": draw(contents(template))})
        messages.append({"role": "assistant", "content": draw(TEXTS)})
        if draw(st.booleans()):
            messages[-1]["reasoning_content"] = draw(TEXTS)
    if draw(st.booleans()):
        messages.append({"role": "user", "content": draw(contents(template))})
    return messages


def contents(template):
    """A text or, for a template that takes them, several parts."""
    parts = st.lists(TEXTS.map(lambda text: {"type": "text", "text": text}), min_size=1, max_size=3)
    return TEXTS | parts if template in WITH_PARTS else TEXTS


def rendered(template, messages, tools=None):
    texts, _ = render_jinja_template(
        conversations=[messages],
        tools=tools,
        chat_template=TEMPLATES[template],
        add_generation_prompt=True,
        bos_token="<s>",
        eos_token="</s>",
    )
    return texts[0]


def mapped(template, messages, tools=None):
    """The rendered text, and the contents with their places."""
    asked, keeps = messages_with_keeps(messages)
    text = rendered(template, without_marks(asked, keeps) if keeps else messages, tools)
    marked = MarkedChat(asked, text, keeps)
    return text, marked.contents(rendered(template, marked.messages, tools))


def opaque(template, messages, tools):
    """The rendering with each content as copies of a private character of its own, as many as it has characters.

    Not those that qwen3 cuts into pieces, the second value.
    """
    names, pieces, family = {}, [], FAMILIES[template]

    def letters(at, text):
        role, core = messages[at]["role"], text.strip()
        cut = role == "assistant" and "</think>" in text and "reasoning_content" not in messages[at]
        if role != "system" and family == "qwen3" and cut:
            pieces.append(core)
            return text
        if role == "system" or not core:
            return text
        size = len(json.dumps(core, ensure_ascii=False)[1:-1] if (family, role) == ("llama3", "tool") else core)
        character = chr(0xE000 + names.setdefault((role, text), len(names)))
        return text[: text.index(core[0])] + size * character + text[len(text.rstrip()) :]

    return rendered(template, changed(messages, letters), tools), pieces


def places_of(core, text):
    """The characters of each occurrence of `core` in the text."""
    starts = [i for i in range(len(text)) if text.startswith(core, i)]
    return {i for start in starts for i in range(start, start + len(core))}


def is_response(content):
    return content.startswith("<tool_response>") and content.endswith("</tool_response>")


@pytest.mark.parametrize("template", sorted(TEMPLATES))
@settings(derandomize=True)
@given(data=st.data(), with_tools=st.booleans())
def test_nothing_but_contents_can_be_dropped(template, data, with_tools):
    """One token per character."""
    messages, family = data.draw(conversations(template)), FAMILIES[template]
    # This template does not count such a message as a question, and so the rendering with private characters differs.
    assume(family != "qwen3" or not any(is_response(message["content"]) for message in messages))
    tools = TOOLS if with_tools and family not in WITHOUT_TOOLS else None
    text, chat = mapped(template, messages, tools)
    spans = prompt_spans(len(text), OPTIONS, chat, text, [(i, i + 1) for i in range(len(text))])
    droppable = set(np.flatnonzero(~mask_of(spans.layout.protected, len(text))).tolist())
    places, cut = opaque(template, messages, tools)
    assert len(places) == len(text)
    contents = {i for i, character in enumerate(places) if "\ue000" <= character <= "\uf8ff"}
    # The pieces can stand together again, as they stood in the content.
    whole = {i for core in cut for i in places_of(core, text)}
    assert droppable <= contents | whole
    for question in spans.layout.questions:
        assert droppable.isdisjoint(range(*question))
    if spans.unmapped:
        assert not droppable
    elif not spans.lost and messages[-1]["role"] != "user":
        # Nothing of what may be dropped is missing: all contents but those of users, which may be speech.
        earlier = {i for c in chat.contents if c.role != "user" for a, b in c.spans for i in range(a, b)}
        assert earlier - {0} <= droppable
        assert contents <= {i for c in chat.contents for a, b in c.spans for i in range(a, b)} <= contents | whole


@pytest.mark.parametrize("template", sorted(TEMPLATES))
def test_usual_conversations_are_mapped_whole(template):
    family = FAMILIES[template]
    messages = [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": "  yes "},
        {"role": "assistant", "content": "user"},
        {"role": "user", "content": "  yes "},
        {"role": "assistant", "content": 'a "b"\n'},
        {"role": "user", "content": "  yes "},
    ]
    if family not in WITHOUT_TOOLS:
        call = {"id": "abcdefghi", "type": "function", "function": {"name": "Read", "arguments": {"a": "yes"}}}
        messages[4:4] = [
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "content": '{"b": "yes"}\n2', "tool_call_id": "abcdefghi"},
        ]
    if family == "gemma2":
        messages = messages[1:]
    text, chat = mapped(template, messages, TOOLS if family not in WITHOUT_TOOLS else None)
    assert chat.contents is not None
    assert not any(content.lost for content in chat.contents)
    shown = [text[slice(*span)] for content in chat.contents for span in content.spans]
    result = ['{\\"b\\": \\"yes\\"}\\n2' if family == "llama3" else '{"b": "yes"}\n2']
    assert shown == ["yes", "user", "yes", *(result if len(messages) > 6 else []), 'a "b"', "yes"]
    assert [content.tool for content in chat.contents if content.role == "tool"] == (
        ["Read"] if len(messages) > 6 else []
    )


def test_a_text_that_the_template_looks_at_is_mapped_only_if_it_changes_nothing():
    """To qwen3, such a message is no question, so it shows the reasoning before it; with marks, it is one."""
    messages = [
        {"role": "user", "content": "One."},
        {"role": "assistant", "content": "Two.", "reasoning_content": "Three."},
        {"role": "user", "content": "<tool_response>Four.</tool_response>"},
    ]
    text, chat = mapped("qwen3", messages)
    assert "Three." in text
    assert chat.contents is None
    text, chat = mapped("qwen3", [messages[0], messages[2]])
    assert [text[slice(*content.spans[0])] for content in chat.contents] == ["One.", messages[2]["content"]]


def test_a_content_between_whose_pieces_the_template_writes_is_lost(monkeypatch):
    messages = [{"role": "user", "content": "One."}, {"role": "assistant", "content": "Two.</think>Three."}]
    text, chat = mapped("qwen3", messages)
    assert "Two.\n</think>\n\nThree." in text
    assert [(content.spans, content.lost) for content in chat.contents][1] == ((), True)
    # Negative control: if the text between the marks is not compared, the template's own text could be dropped.
    monkeypatch.setattr(Content, "is_at", lambda *_: True)
    _, chat = mapped("qwen3", messages)
    [(start, end)] = chat.contents[1].spans
    assert text[start:end] == "Two.\n</think>\n\nThree."


def test_marks_are_characters_that_the_text_does_not_have():
    marks = Markers("\U000f0000 \U000f0002")
    assert (marks.left, marks.right) == ("\U000f0001", "\U000f0003")
    marked = marks.around(7, " \n two words\t")
    assert marked.startswith(" \n ")
    assert marked.endswith("\t")
    assert marks.locate(f"a{marked}b") == ("a \n two words\tb", {7: [(4, 13)]}, set())
    assert marks.segments(f"a{marked}b") == [(None, "a \n "), (7, "two words"), (None, "\tb")]
    assert marks.around(7, " \n") == " \n"


def test_a_mark_without_its_counterpart_is_broken():
    marks = Markers()
    one, two = marks.around(1, "one"), marks.around(2, "two")
    cut = one[: one.index("e")] + two
    assert marks.locate(cut) == ("ontwo", {2: [(2, 5)]}, {1})
    assert marks.locate(one[one.index("o") :])[2] == {1}
    assert marks.locate(one[: one.index("e")])[2] == {1}


def test_the_places_of_the_system_are_known():
    """They are no contents; a text that the template changes has none."""
    messages = [{"role": "system", "content": " Be short. "}, {"role": "user", "content": "Be short. x"}]
    for system, places in (("Be short.", [(3, 12)]), ("BE SHORT", [])):
        chat = MarkedChat(messages, f"<s>{system}</s>x")
        marked = MarkedChat(messages[:1], f"<s>{system}</s>")
        assert marked.contents(f"<s>{system}</s>").system == places
        assert chat.contents("something else").system == ()
