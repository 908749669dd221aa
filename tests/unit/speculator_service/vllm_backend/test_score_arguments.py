"""Which head profile a speculator has, and what its worker is told."""

import shutil

import pytest

from kv_transfer.options import SelectionOptions
from skim_common.errors import ModelError, SkimError
from skim_common.models.fingerprint import model_fingerprint
from skim_common.models.info import inspect_model
from speculator_service.scoring.heads import Head, HeadProfile, save, saved_file
from speculator_service.vllm_backend.score_arguments import ScoreArguments, profile_of
from tests.unit.conftest import MODELS

HEADS = SelectionOptions(scoring="heads", look_ahead=8)


def profile(fingerprint="", **changes):
    fields = {"question": 1.0, "last": 1.0, "heads": (Head(layer=1, head=0, weight=2.0),), **changes}
    return HeadProfile(model="some", fingerprint=fingerprint, **fields)


@pytest.fixture
def model(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return inspect_model(str(MODELS / "speculator"), engine="vllm")


def test_a_model_has_the_profile_of_its_file_or_none(model, tmp_path):
    file = tmp_path / "profile.json"
    assert profile_of(model, None) is None
    right = profile(model_fingerprint(model))
    save(right, file)
    assert profile_of(model, str(file)) == right
    save(profile(right.fingerprint, heads=(Head(layer=99, head=0),)), file)
    with pytest.raises(SkimError, match="names layer 99, head 0"):
        profile_of(model, str(file))
    save(profile("0" * 64), file)
    with pytest.raises(SkimError, match="not of this speculator"):
        profile_of(model, str(file))


def test_a_saved_profile_is_found_unless_a_file_is_named_and_must_fit(model, tmp_path):
    file, saved = tmp_path / "profile.json", profile(model_fingerprint(model))
    save(saved, saved_file(saved.fingerprint))
    assert profile_of(model, None) == saved
    named = profile(saved.fingerprint, question=0.5)
    save(named, file)
    assert profile_of(model, str(file)) == named
    save(profile(saved.fingerprint, heads=(Head(layer=99, head=0),)), saved_file(saved.fingerprint))
    with pytest.raises(SkimError, match="names layer 99, head 0"):
        profile_of(model, None)


def test_a_model_without_a_fingerprint_has_no_profile(tmp_path):
    shutil.copytree(MODELS / "speculator", tmp_path / "model", ignore=shutil.ignore_patterns("*.safetensors"))
    model = inspect_model(str(tmp_path / "model"), engine="vllm")
    assert profile_of(model, None) is None
    with pytest.raises(ModelError, match="has no fingerprint"):
        profile_of(model, str(tmp_path / "profile.json"))


def test_the_worker_is_told_heads_or_layers():
    arguments = ScoreArguments("m", profile())
    by_heads = arguments.of(HEADS, 100, [(40, 50)])
    assert by_heads == {
        "heads": [(1, 0, 2.0)],
        "question": 1.0,
        "last": 1.0,
        "apart": False,
        "look_ahead": 0,
        "rows": [(40, 50)],
        "steps": 1,
    }
    by_attention = arguments.of(SelectionOptions(look_ahead=3), 100, [(40, 50)])
    assert by_attention == {
        "layers": "last_half",
        "aggregation": "max",
        "look_ahead": 3,
        "rows": [],
        "steps": 4,
    }
    assert ScoreArguments("m", profile(question=0.0)).of(HEADS, 100, [(40, 50)])["rows"] == []


def test_without_a_profile_attention_takes_the_place_of_heads():
    arguments = ScoreArguments("m", None)
    assert arguments.possible(HEADS) == HEADS.model_copy(update={"scoring": "attention"})
    assert arguments.possible(HEADS).tokens_ahead == 8
    assert ScoreArguments("m", profile()).possible(HEADS) == HEADS
