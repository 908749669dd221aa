"""The committed results of `skim models check` cover vLLM's registry, and none is wrong."""

import json
from pathlib import Path
from typing import Any

import pytest

import evals.architectures
from evals.architectures.registry import MODEL_TYPES, named
from skim_common.errors import SkimError

FILE = Path(evals.architectures.__file__).parent / "results.json"


@pytest.fixture(scope="module")
def committed() -> dict[str, Any]:
    return json.loads(FILE.read_text())["architectures"]


def test_every_text_generation_architecture_has_a_result(committed: dict[str, Any]) -> None:
    assert sorted(committed) == sorted(recipe.architecture for recipe in named([]))
    assert len(committed) >= 123


def test_no_architecture_answers_wrong(committed: dict[str, Any]) -> None:
    roles = [found[role] for found in committed.values() for role in ("target", "speculator")]
    assert {role["verdict"] for role in roles} == {"yes", "no", "does not build here"}
    assert all(role["why"] for role in roles if role["verdict"] != "yes")
    assert (
        sum(found["target"]["verdict"] == found["speculator"]["verdict"] == "yes" for found in committed.values()) > 50
    )


def test_names_that_are_given_are_those_of_the_registry() -> None:
    assert {recipe.architecture for recipe in named([])} > MODEL_TYPES.keys()
    assert [recipe.model_type for recipe in named(["Gemma3ForCausalLM", "PhiMoEForCausalLM"])] == [
        "gemma3_text",
        "phimoe",
    ]
    with pytest.raises(SkimError, match="no text-generation architecture Gemma9 in vLLM's registry"):
        named(["Gemma9"])
