"""How templates read a content that is a list of parts, in comparison with vLLM's own rule."""

from copy import copy
from functools import partial

import pytest
from vllm.renderers.hf import _detect_content_format

from router.options.request import PrefillOptions
from skim.prompts import for_template, reads_parts, render
from skim_common.errors import InvalidRequestError
from skim_common.models.info import load_tokenizer
from tests.unit.conftest import MODELS

TEMPLATES = {path.stem: path.read_text() for path in (MODELS.parent / "tests/unit/router/templates").glob("*.jinja")}
LISTS = "{% for part in message.content %}{{ part.text }}{% endfor %}"
EITHER = "{% if message.content is string %}{{ message.content }}{% else %}" + LISTS + "{% endif %}"
TEMPLATES |= {
    name: "{% for message in messages %}<|{{ message.role }}|>" + content + "{% endfor %}"
    for name, content in {
        "lists": LISTS,
        "either": EITHER,
        "json": "{{ message.content | tojson }}",
        "joined": "{{ '<' + message.content + '>' }}",
        "trimmed": "{{ message.content | trim }}",
    }.items()
}


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer(str(MODELS / "target"))


def with_template(tokenizer, template):
    changed = copy(tokenizer)
    changed.chat_template = template
    return changed


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_template_decides_as_for_vllm(tokenizer, name):
    rendered = partial(with_template(tokenizer, TEMPLATES[name]).apply_chat_template, tokenize=False)
    expected = _detect_content_format(TEMPLATES[name], default="string") == "openai"
    assert reads_parts(rendered) is expected
    assert expected is (name in ("lists", "either", "gemma", "llama3"))


@pytest.mark.parametrize(("name", "joint"), [("lists", ""), ("either", ""), ("trimmed", "\n"), ("chatml", "\n")])
def test_parts_are_read_as_the_template_reads_them(tokenizer, name, joint):
    content = [{"type": "text", "text": "One line. "}, {"type": "text", "text": "Another line."}]
    prompt = render([{"role": "user", "content": content}], with_template(tokenizer, TEMPLATES[name]))
    assert f"One line. {joint}Another line." in prompt.text
    assert "text'" not in prompt.text


def test_a_text_is_a_list_for_a_template_that_reads_lists_alone(tokenizer):
    prompt = render([{"role": "user", "content": "A text."}], with_template(tokenizer, TEMPLATES["lists"]))
    assert prompt.text == "<|user|>A text."


def test_the_result_of_a_tool_is_a_text():
    messages = [{"role": role, "content": [{"type": "text", "text": "a"}, "b"]} for role in ("tool", "user")]
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert for_template(messages, parts=True) == [
        {"role": "tool", "content": "a\nb"},
        {"role": "user", "content": parts},
    ]


def test_a_part_may_have_its_own_keep(tokenizer):
    lines = "".join(f"The price of kettle {number} is {number * 37}.\n" for number in range(40))
    content = [
        {"type": "text", "text": lines, "keep": 0.25},
        {"type": "text", "text": lines},
        {"type": "text", "text": "What is the price?"},
    ]
    prompt = render([{"role": "user", "content": content}], tokenizer, PrefillOptions(keep_rate=0.5))
    layout = prompt.layout(PrefillOptions())
    [(start, end)] = layout.rate_spans.tolist()
    assert layout.rates.tolist() == [0.25]
    assert tokenizer.decode(prompt.token_ids[start:end]).strip() == lines.strip().removeprefix("The ")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (5, r"messages\.0\.content must be a text or a list of parts, not int"),
        ({"type": "text", "text": "a"}, r"messages\.0\.content must be a text or a list of parts, not dict"),
        ([{"type": "image_url", "image_url": {"url": "a"}}], r"messages\.0\.content\.0 is no text"),
        ([{"type": "text", "text": "a"}, 5], r"messages\.0\.content\.1 is no text"),
        ([{"type": ["text"], "text": "a"}], r"messages\.0\.content\.0 is no text"),
        ([None], r"messages\.0\.content\.0 is no text"),
    ],
)
def test_what_is_no_text_is_refused(tokenizer, content, message):
    with pytest.raises(InvalidRequestError, match=f"^{message}"):
        render([{"role": "user", "content": content}], tokenizer)
