"""Which head profile a speculator has."""

import shutil

import pytest

from skim_common.errors import ModelError, SkimError
from skim_common.models.info import inspect_model
from speculator_service.model import model_fingerprint
from speculator_service.scoring.heads import Head, HeadProfile, profile_of, save, saved_file
from tests.unit.conftest import MODELS


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
