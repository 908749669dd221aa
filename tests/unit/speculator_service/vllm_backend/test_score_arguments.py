"""Which head profile an engine has: the named one, or the one that is known on this machine."""

import pytest

from skim_common.errors import SkimError
from skim_common.models.fingerprint import model_fingerprint
from skim_common.models.info import inspect_model
from speculator_service.scoring.heads import Head, HeadProfile, save, saved_file
from speculator_service.vllm_backend.score_arguments import profile_of
from tests.unit.conftest import MODELS


@pytest.fixture
def model(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return inspect_model(str(MODELS / "speculator"), engine="vllm")


def profile(model, head):
    fingerprint = model_fingerprint(model)
    return HeadProfile(model="m", fingerprint=fingerprint, question=1.0, last=1.0, heads=(Head(layer=0, head=head),))


def test_a_saved_profile_is_found_and_a_named_one_goes_before_it(model, tmp_path):
    assert profile_of(model, None) is None
    saved, named = profile(model, 0), profile(model, 1)
    save(saved, saved_file(saved.fingerprint))
    save(named, tmp_path / "named.json")
    assert profile_of(model, None) == saved
    assert profile_of(model, str(tmp_path / "named.json")) == named


def test_a_saved_profile_that_does_not_fit_is_refused(model):
    wrong = profile(model, 99)
    save(wrong, saved_file(wrong.fingerprint))
    with pytest.raises(SkimError, match="names layer 0, head 99"):
        profile_of(model, None)
