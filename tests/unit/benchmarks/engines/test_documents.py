"""The prompts of the decoding benchmarks: their length and their seed."""

import pytest

from benchmarks.engines.documents import MODULES, QUESTION, messages
from benchmarks.harness.models import TOKENIZER
from skim_common.models.info import load_tokenizer


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer(str(TOKENIZER))


@pytest.mark.parametrize("kind", ["demo", "code"])
@pytest.mark.parametrize("tokens", [256, 2048])
def test_prompts_have_the_length_that_was_asked_for(kind, tokens, tokenizer):
    for seed in range(5):
        chat = messages(kind, tokens, seed, tokenizer)
        size = len(tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False))
        assert tokens - 32 <= size <= tokens


def test_a_seed_gives_one_prompt(tokenizer):
    chats = [messages("code", 512, seed, tokenizer)[0]["content"] for seed in (1, 1, 2)]
    assert chats[0] == chats[1] != chats[2]
    assert chats[0].endswith(QUESTION)


@pytest.mark.nightly
def test_every_module_has_a_source(tokenizer):
    assert len({messages("code", 256, seed, tokenizer)[0]["content"] for seed in range(200)}) > len(MODULES)
