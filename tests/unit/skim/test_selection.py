"""Selections from files: what is read, and the sentence about what is wrong."""

import json

import pytest

from skim.pair import Pair
from skim.selection import PairSelection
from skim_common.errors import SkimError
from tests.unit.conftest import MODELS

GOOD = {"token_ids": [10, 11], "kept_positions": [0, 5], "context_length": 9}


@pytest.fixture(scope="module")
def pair():
    with Pair(target=MODELS / "target", engine="mock") as pair:
        yield pair


def answer(pair, folder, content):
    """The answer to the selection with this content of its file."""
    file = folder / "selection.json"
    file.write_text(content)
    return pair.generate(PairSelection.load(file), max_tokens=32)


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ({"token_ids": None}, ["is not a selection"]),
        ({"kept_positions": [5, 5]}, ["is not a selection", "distinct and inside [0, 9)"]),
        ({"kept_positions": [0, 9]}, ["is not a selection", "distinct and inside [0, 9)"]),
        ({"kept_positions": [0]}, ["is not a selection", "one position per token"]),
        ({"token_ids": [], "kept_positions": []}, ["is not a selection", "at least one token"]),
        ({"token_ids": [10, 2**40]}, ["is not a selection"]),
        ({"context_length": "many"}, ["is not a selection"]),
        ({"token_ids": [10, 99999]}, ["Token id 99999"]),
        ({"context_length": 10**6}, ["max_position_embeddings"]),
    ],
)
def test_a_wrong_selection_is_one_sentence(pair, tmp_path, change, parts):
    with pytest.raises(SkimError) as raised:
        answer(pair, tmp_path, json.dumps({**GOOD, **change}))
    assert all(part in str(raised.value) for part in parts)


@pytest.mark.parametrize("name", GOOD)
def test_a_missing_field_is_named(pair, tmp_path, name):
    with pytest.raises(SkimError, match=f"has no field '{name}'"):
        answer(pair, tmp_path, json.dumps({key: value for key, value in GOOD.items() if key != name}))


@pytest.mark.parametrize("content", ["[]", "3", "null", '"text"'])
def test_a_selection_that_is_no_object(pair, tmp_path, content):
    with pytest.raises(SkimError, match="is not a selection"):
        answer(pair, tmp_path, content)


def test_the_least_of_a_selection_is_enough(pair, tmp_path):
    assert answer(pair, tmp_path, json.dumps(GOOD)).completions[0].token_ids.size


def test_the_target_takes_options(tmp_path):
    content = json.dumps({**GOOD, "context_length": 90})
    short, long = (
        Pair(target=MODELS / "target", engine="mock", target_options={"max_model_len": most}) for most in (10, 50)
    )
    with short, pytest.raises(SkimError, match="the target's max_model_len is 10"):
        answer(short, tmp_path, content)
    with long:
        answer(long, tmp_path, content)
