"""The demo's documents: deterministic, of the requested length, with one right answer."""

from pathlib import Path

import pytest
from transformers import AutoTokenizer

from demo_models.documents import make_document

DEMO_MODELS = Path(__file__).parents[3] / "demo_models"


@pytest.fixture(scope="module", params=["target", "speculator"])
def tokenizer(request):
    return AutoTokenizer.from_pretrained(DEMO_MODELS / request.param)


@pytest.mark.parametrize("tokens", [100, 500, 4000, 30000])
def test_prompt_length_is_the_tokenizers_and_near_the_wish(tokenizer, tokens):
    made = make_document(tokens, seed=tokens)
    ids = tokenizer.apply_chat_template(made.messages, add_generation_prompt=True, return_dict=True)["input_ids"]
    assert len(ids) == made.prompt_tokens
    assert tokens - 20 <= made.prompt_tokens <= tokens


def test_same_seed_same_document():
    assert make_document(1000, seed=3) == make_document(1000, seed=3)
    assert make_document(1000, seed=3) != make_document(1000, seed=4)


@pytest.mark.parametrize("seed", range(20))
def test_one_sentence_answers_the_question(seed):
    made = make_document(2000, seed=seed)
    key = made.question.removeprefix("Question: What is the ").removesuffix("?")
    assert made.document.count(f"The {key} is ") == 1
    assert made.record_sentence == f"The {key} is {made.expected}."
    place = made.document.index(made.record_sentence) / len(made.document)
    assert 0.1 < place < 0.9


def test_only_the_whole_value_is_right():
    made = make_document(500)
    assert made.is_right(f" {made.expected}.")
    assert made.is_right(made.expected)
    assert not made.is_right(made.expected[:2])
    assert not made.is_right(f"{made.expected}1")


def test_too_short_a_document_is_refused():
    with pytest.raises(ValueError, match="at least 100 tokens"):
        make_document(99)
