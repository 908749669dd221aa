"""The prompts by which retrieval heads are found."""

import shutil

import numpy as np
import pytest
from transformers import AutoTokenizer

from speculator_service.start.find_heads import KINDS, OF_EACH_KIND, head_prompts
from tests.unit.conftest import MODELS


@pytest.fixture(scope="module")
def decode():
    return AutoTokenizer.from_pretrained(MODELS / "speculator").decode


@pytest.fixture(scope="module")
def prompts():
    return head_prompts(str(MODELS / "speculator"))


def test_each_kind_asks_for_one_of_its_lines(prompts, decode):
    assert len(prompts) == OF_EACH_KIND * len(KINDS)
    texts = [
        (decode(prompt.token_ids[slice(*prompt.needle)]), decode(prompt.token_ids[slice(*prompt.question)]))
        for prompt in prompts
    ]
    for needle, question in texts[0::4]:
        named = {word.strip("?.") for word in question.split()} & {word.strip("?.") for word in needle.split()}
        assert any(word[0].isupper() for word in named)  # the person
    for needle, question in texts[1::4]:
        service, key = needle.partition(" = ")[0].split(".")
        assert question.strip() == f"What is the {key.replace('_', ' ')} of {service}?"
    for needle, question in texts[2::4]:
        plant, site, _ = (cell.strip() for cell in needle.strip().strip("|").split("|"))
        assert question.strip() == f"How many plants of {plant} grow at {site}?"
    for needle, question in texts[3::4]:
        name = needle.strip().removeprefix("def ").partition("(")[0]
        assert f" {name} " in question


def test_the_evidence_stands_once_at_different_places(prompts, decode):
    for prompt in prompts:
        lines = [decode(part).strip() for part in np.split(prompt.token_ids, prompt.starts[1:])]
        assert lines.count(decode(prompt.token_ids[slice(*prompt.needle)]).strip()) == 1
        assert prompt.needle[1] <= prompt.question[0]
    places = [prompt.needle[0] / prompt.token_ids.size for prompt in prompts]
    assert min(places) < 0.25
    assert max(places) > 0.75


def test_they_are_one_message_in_the_models_template(prompts, decode):
    text = decode(prompts[0].token_ids)
    begin, end = (
        AutoTokenizer.from_pretrained(MODELS / "speculator")
        .apply_chat_template([{"role": "user", "content": "MARK"}], add_generation_prompt=True, tokenize=False)
        .split("MARK")
    )
    assert text.startswith(begin)
    assert text.endswith(end)


def test_without_a_template_they_are_plain_text(tmp_path, prompts, decode):
    shutil.copytree(
        MODELS / "speculator", tmp_path / "plain", ignore=shutil.ignore_patterns("chat_template*", "*.safetensors")
    )
    (config := tmp_path / "plain" / "tokenizer_config.json").write_text(
        config.read_text().replace('"chat_template"', '"no_template"')
    )
    plain = head_prompts(str(tmp_path / "plain"))
    assert decode(plain[0].token_ids).startswith("Read these lines")
    first, same = plain[0], prompts[0]
    assert first.token_ids[slice(*first.needle)].tolist() == same.token_ids[slice(*same.needle)].tolist()
    assert first.question[1] == first.token_ids.size


def test_they_are_the_same_at_each_start(prompts):
    for one, other in zip(prompts, head_prompts(str(MODELS / "speculator")), strict=True):
        assert one.token_ids.tolist() == other.token_ids.tolist()
