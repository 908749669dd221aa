"""The prompt of the start probes."""

import numpy as np
import pytest
from transformers import AutoTokenizer

from speculator_service.start.probe import FACTS, FILLER_LINES, needle_prompts
from tests.unit.conftest import MODELS


@pytest.fixture(scope="module")
def decode():
    return AutoTokenizer.from_pretrained(MODELS / "target").decode


def test_each_prompt_asks_for_one_fact(decode):
    prompts = needle_prompts(str(MODELS / "target"))
    assert len(prompts) == len(FACTS)
    for prompt, (where, word) in zip(prompts, FACTS, strict=True):
        lines = [decode(part) for part in np.split(prompt.token_ids, prompt.starts[1:])]
        assert len(lines) == FILLER_LINES + len(FACTS) + 1
        assert decode(prompt.token_ids[slice(*prompt.needle)]).strip() == f"The secret word of the {where} is {word}."
        assert decode(prompt.token_ids[slice(*prompt.question)]).strip() == f"The secret word of the {where} is"
        assert sum(word in line for line in lines) == 1
        assert prompt.question[1] == prompt.token_ids.size


def test_the_prompts_share_their_document():
    first, *others = needle_prompts(str(MODELS / "target"))
    for other in others:
        assert other.token_ids[: other.question[0]].tolist() == first.token_ids[: first.question[0]].tolist()
