"""Prompts in one process are those that serving makes of the same messages."""

import re
from copy import copy

import numpy as np
import pytest

from demo_models.documents import make_document
from evals.selection.prompts import decision_of
from router.options.request import PrefillOptions
from router.prompt.rendered import RenderedPrompt
from skim.prompts import render
from skim_common.errors import InvalidRequestError
from skim_common.models.info import load_tokenizer
from tests.unit.conftest import MODELS


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer(str(MODELS / "target"))


@pytest.fixture(scope="module")
def document():
    return make_document(1500, seed=1)


DEFAULTS = PrefillOptions()


def layout_of(prompt, tokenizer, options=DEFAULTS):
    return render(prompt, tokenizer, options).layout(options)


def protected(layout):
    return {i for start, end in layout.protected.tolist() for i in range(start, end)}


def test_messages_are_rendered_by_the_chat_template(tokenizer):
    document = make_document(1500, seed=1)
    prompt = render(document.messages, tokenizer)
    ids = tokenizer.apply_chat_template(document.messages, add_generation_prompt=True, return_dict=False)
    assert prompt.token_ids.tolist() == list(ids)
    assert prompt.token_ids.dtype == np.int32
    layout = prompt.layout(DEFAULTS)
    kept = tokenizer.decode(prompt.token_ids[sorted(protected(layout))])
    assert document.question in kept
    assert document.record_sentence not in kept
    assert document.question in tokenizer.decode(prompt.token_ids[slice(*layout.questions[-1])])


def test_of_text_and_token_ids_the_first_token_is_protected(tokenizer):
    text = "The price of the golden kettle is 4821."
    from_text = render(text, tokenizer)
    from_ids = render(from_text.token_ids.tolist(), tokenizer)
    assert from_text.token_ids.tolist() == from_ids.token_ids.tolist() == tokenizer(text).input_ids
    for one in (from_text, from_ids):
        assert protected(one.layout(DEFAULTS)) == {0}
        assert len(one.layout(DEFAULTS).questions) == 0


def test_texts_have_units_and_token_ids_have_none(tokenizer, document):
    text = "".join(f"The price of the golden kettle is {number}.\n" for number in range(4821, 4831))
    plain = layout_of(text, tokenizer)
    places = tokenizer(text, return_offsets_mapping=True).offset_mapping
    begins = {places[unit][0] for unit in plain.units.tolist()}
    last = places[-48][0]  # the last 32 tokens are always kept, and a short rest of a line joins its neighbour
    assert {found.start() for found in re.finditer("The", text[:last])} <= begins
    assert layout_of(tokenizer(text).input_ids, tokenizer).units.size == 0
    prompt = render(document.messages, tokenizer)
    chat, more = (prompt.layout(PrefillOptions(protected_spans=spans)) for spans in ([], [[301, 303]]))
    assert set(chat.protected.ravel().tolist()) - {prompt.size} <= set(chat.units.tolist())
    assert {301, 303} <= set(more.units.tolist())
    assert [one.indents.size - one.units.size for one in (plain, chat, more)] == [0, 0, 0]


def test_lines_with_one_identifier_are_linked(tokenizer):
    lines = [
        "The customer Omar has the id C4821 and lives in a town.",
        "A plain line without any name in it at all here.",
    ]
    text = "\n".join([*lines, "The order of C4821 was sent off in the early morning.", *(4 * [lines[1]])])
    layout = layout_of(text, tokenizer)
    places = tokenizer(text, return_offsets_mapping=True).offset_mapping
    linked = [text[places[start][0] :].split()[1] for start in layout.units[layout.links].ravel().tolist()]
    assert linked == ["Omar", "order"]  # the first token is protected


def test_a_rendered_prompt_stays_as_it_is(tokenizer):
    prompt = RenderedPrompt(np.arange(5, 25, dtype=np.int32))
    assert render(prompt, tokenizer) is prompt
    assert protected(prompt.layout(PrefillOptions(protected_spans=[[3, 5]]))) == {0, 3, 4}


def test_a_content_part_with_its_own_keep(tokenizer, document):
    parts = [{"type": "text", "text": document.document}, {"type": "text", "text": "Which price?"}]
    kept, plain, always = (
        render([{"role": "user", "content": [{**parts[0], "keep": keep}, parts[1]]}], _joining(tokenizer))
        for keep in (0.5, "auto", "always")
    )
    assert kept.token_ids.tolist() == plain.token_ids.tolist()
    assert plain.layout(DEFAULTS).rates.size == 0
    assert kept.layout(DEFAULTS).rates.tolist() == [0.5]
    [[start, end]] = kept.layout(DEFAULTS).rate_spans
    assert tokenizer.decode(kept.token_ids[start:end]).strip() in document.document
    assert end - start > 900
    assert decision_of(always, PrefillOptions(min_prompt_tokens=1)).reason == "all-protected"


def _joining(tokenizer):
    """The tokenizer with a template that takes parts."""
    other = copy(tokenizer)
    other.chat_template = (
        "{% for m in messages %}<|{{ m.role }}|>\n{% if m.content is string %}{{ m.content }}{% else %}"
        "{% for part in m.content %}{{ part.text }}\n{% endfor %}{% endif %}<|end|>\n{% endfor %}"
    )
    return other


def test_a_tokenizer_without_a_chat_template(tokenizer, monkeypatch):
    monkeypatch.setattr(tokenizer, "chat_template", None)
    with pytest.raises(InvalidRequestError, match="no chat template"):
        render([{"role": "user", "content": "Hello."}], tokenizer)


def test_messages_that_the_template_refuses(tokenizer, monkeypatch):
    monkeypatch.setattr(tokenizer, "chat_template", "{{ raise_exception('roles must alternate') }}")
    with pytest.raises(InvalidRequestError, match="cannot render these messages: roles must alternate"):
        render([{"role": "user", "content": "Hello."}], tokenizer)


def test_a_template_that_refuses_a_lone_user_message(tokenizer, document, monkeypatch):
    """There is no frame for windows, so the prompt is read whole. Control: the model's own template."""
    chat = [{"role": "system", "content": "Be brief."}, *document.messages]
    assert render(chat, tokenizer).chat.frame is not None
    wants_system = "{% if messages[0].role != 'system' %}{{ raise_exception('no') }}{% endif %}"
    monkeypatch.setattr(tokenizer, "chat_template", wants_system + tokenizer.chat_template)
    prompt = render(chat, tokenizer)
    assert (prompt.chat.frame, len(prompt.layout(DEFAULTS).questions)) == (None, 1)


def test_spans_that_overlap_count_once():
    prompt, spans = RenderedPrompt(np.arange(10, dtype=np.int32)), [[0, 8], [5, 10]]
    all_of_it, less = (PrefillOptions(min_prompt_tokens=1, protected_spans=some) for some in (spans, spans[:1]))
    assert decision_of(prompt, all_of_it).reason == "all-protected"
    assert decision_of(prompt, less).reason == "requested"
