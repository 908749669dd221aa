"""Prompts in one process are those that serving makes of the same messages."""

import numpy as np
import pytest

from cluster.commands.demo_document import make_document
from cluster.in_process.prompts import RenderedPrompt, load_tokenizer, no_spans, render
from kv_transfer.errors import InvalidRequestError
from router.options import PrefillOptions
from tests.unit.conftest import MODELS


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer(str(MODELS / "target"))


def protected(prompt):
    return {i for start, end in prompt.protected.tolist() for i in range(start, end)}


def test_messages_are_rendered_by_the_chat_template(tokenizer):
    document = make_document(1500, seed=1)
    prompt = render(document.messages, tokenizer)
    ids = tokenizer.apply_chat_template(document.messages, add_generation_prompt=True, return_dict=False)
    assert prompt.token_ids.tolist() == list(ids)
    assert prompt.token_ids.dtype == np.int32
    kept = tokenizer.decode(prompt.token_ids[sorted(protected(prompt))])
    assert document.question in kept
    assert document.record_sentence not in kept
    assert document.question in tokenizer.decode(prompt.token_ids[slice(*prompt.question)])


def test_of_text_and_token_ids_the_first_token_is_protected(tokenizer):
    text = "The price of the golden kettle is 4821."
    from_text = render(text, tokenizer)
    from_ids = render(from_text.token_ids.tolist(), tokenizer)
    assert from_text.token_ids.tolist() == from_ids.token_ids.tolist() == tokenizer(text).input_ids
    assert protected(from_text) == protected(from_ids) == {0}
    assert from_text.question is from_ids.question is None


def test_a_rendered_prompt_stays_as_it_is(tokenizer):
    prompt = RenderedPrompt(np.arange(5, 25, dtype=np.int32), no_spans())
    assert protected(render(prompt, tokenizer)) == set()
    assert {3, 4} <= protected(render(prompt, tokenizer, [[3, 5]]))
    assert render(RenderedPrompt(prompt.token_ids, no_spans(), (3, 5)), tokenizer, [[3, 5]]).question == (3, 5)


def test_a_tokenizer_without_a_chat_template(tokenizer, monkeypatch):
    monkeypatch.setattr(tokenizer, "chat_template", None)
    with pytest.raises(InvalidRequestError, match="no chat template"):
        render([{"role": "user", "content": "Hello."}], tokenizer)


def test_messages_that_the_template_refuses(tokenizer, monkeypatch):
    monkeypatch.setattr(tokenizer, "chat_template", "{{ raise_exception('roles must alternate') }}")
    with pytest.raises(InvalidRequestError, match="cannot render these messages: roles must alternate"):
        render([{"role": "user", "content": "Hello."}], tokenizer)


def test_spans_that_overlap_count_once():
    prompt = RenderedPrompt(np.arange(10, dtype=np.int32), np.array([[0, 8], [5, 10]], np.int32))
    options = PrefillOptions(min_prompt_tokens=1)
    assert prompt.decide(options).reason == "all-protected"
    assert RenderedPrompt(prompt.token_ids, prompt.protected[:1]).decide(options).reason == "requested"
    assert prompt.decide(options, prompt_logprobs=True).reason == "prompt-logprobs"
