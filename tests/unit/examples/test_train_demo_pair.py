"""The scripts that make the demo pair: correct answers in the data, no held-out words, a working start."""

import random
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

SCRIPTS = Path(__file__).parents[3] / "examples" / "train_demo_pair"


@pytest.fixture(scope="module", autouse=True)
def scripts_on_path():
    sys.path.insert(0, str(SCRIPTS))
    yield
    sys.path.remove(str(SCRIPTS))


@pytest.fixture(scope="module")
def prompts(scripts_on_path):
    from data import Recipe, make_prompt

    rng = random.Random(0)
    recipe = Recipe(questions=6, words="pool", duplicates=0.4, gap_probability=1.0, longest=4096)
    return [make_prompt(768, recipe, rng) for _ in range(20)]


def test_answers_are_what_the_records_say(prompts):
    from tokenizer import encode

    for prompt in prompts:
        for asked in prompt.asked:
            assert prompt.ids[slice(*asked.answer)] == encode(f" {asked.record.value}.")
            assert prompt.ids[slice(*asked.span)] == encode(f" {asked.record.sentence()}")


def test_first_and_last_name_the_right_one_of_two_records(prompts):
    from tokenizer import encode

    ordered = 0
    for prompt in prompts:
        for asked in prompt.asked:
            key = encode(f" {asked.record.sentence()}")[:-3]
            places = [i for i in range(prompt.context) if prompt.ids[i : i + len(key)] == key]
            wanted = {"": [asked.span[0]], "first": [min(places)], "last": [max(places)]}[asked.order]
            assert wanted == [asked.span[0]]
            assert (len(places) == 2) == bool(asked.order)
            ordered += bool(asked.order)
    assert ordered > 10


def test_positions_rise_and_stay_within_the_limit(prompts):
    assert any(prompt.positions[-1] > len(prompt.ids) for prompt in prompts)
    for prompt in prompts:
        assert (prompt.positions[1:] > prompt.positions[:-1]).all()
        assert prompt.positions[-1] < 4096


def test_training_never_uses_held_out_words_in_records():
    from data import HELD_OUT_OPENINGS, NEW_ADJECTIVES, NEW_NOUNS, make_prompt
    from train import Stage

    from demo_models import documents as demo

    rng = random.Random(1)
    held_out = {*demo.HELD_OUT_ADJECTIVES, *demo.HELD_OUT_NOUNS, *NEW_ADJECTIVES, *NEW_NOUNS}
    for recipe in Stage(2048, 1, 1, 16).recipes():
        for _ in range(5):
            prompt = make_prompt(2048, replace(recipe, density=0.8), rng)
            for asked in prompt.asked:
                assert not {asked.record.adjective, asked.record.noun} & held_out
                assert not any(opening in asked.question for opening in HELD_OUT_OPENINGS)


def test_the_fast_encoding_is_the_exported_tokenizers(prompts):
    from tokenizer import hf_tokenizer

    tokenizer = hf_tokenizer()
    for prompt in prompts:
        assert tokenizer.encode(tokenizer.decode(prompt.ids), add_special_tokens=False) == prompt.ids


def test_the_structured_start_finds_values_without_training(prompts):
    from model import SHAPES, Llama
    from prior import lay_in

    torch.manual_seed(0)
    model = Llama(SHAPES["target"])
    guesses = right = fresh_right = 0
    for laid_in in (False, True):
        if laid_in:
            lay_in(model, seed=0)
        for prompt in prompts[:3]:
            ids, positions = torch.tensor([prompt.ids]), torch.from_numpy(prompt.positions)[None]
            with torch.no_grad():
                choices = model.logits(model(ids, positions))[0].argmax(-1).tolist()
            for asked in prompt.asked:
                found = choices[asked.answer[0] - 1] == prompt.ids[asked.answer[0]]
                guesses, right, fresh_right = (
                    guesses + laid_in,
                    right + (laid_in and found),
                    fresh_right + (not laid_in and found),
                )
    assert fresh_right <= 1
    assert right > 0.7 * guesses


def test_chunks_with_important_tokens_are_kept_with_head_and_tail():
    from selection import chunk_order, keep_chunks

    importance = torch.zeros(320)
    importance[100] = 1.0
    order = chunk_order(importance)
    assert order[0] == 3
    assert keep_chunks(order, 320, 0.1) == [0, 1, *range(96, 128), *range(288, 320)]
