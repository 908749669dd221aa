"""The file of a head profile: what is read, what is refused, and how its weights count."""

import json
import os
from pathlib import Path

import pytest
import torch

from skim_common.errors import SkimError
from speculator_service.scoring import heads
from speculator_service.scoring.heads import (
    Head,
    HeadProfile,
    head_weights,
    known,
    load,
    row_weights,
    save,
    saved_file,
)

FINGERPRINT = "f" * 64
PROFILE = HeadProfile(
    model="some-model",
    fingerprint=FINGERPRINT,
    question=0.25,
    last=0.75,
    heads=(Head(layer=3, head=1, weight=0.5), Head(layer=2, head=0, weight=0.125)),
    made={"seed": 1},
)


def written(tmp_path, **changes):
    """The path of a profile with other fields; None: left out."""
    fields = {name: value for name, value in {**PROFILE.model_dump(), **changes}.items() if value is not None}
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(fields))
    return path


def test_what_is_saved_is_loaded(tmp_path):
    save(PROFILE, tmp_path / "profile.json")
    assert load(tmp_path / "profile.json") == PROFILE


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"fingerprint": None}, "fingerprint: Field required"),
        ({"more": 1}, "more: Extra inputs"),
        ({"heads": []}, "heads: "),
        ({"heads": [{"layer": -1, "head": 0}]}, "heads.0.layer: "),
        ({"heads": [{"layer": 1, "head": 0, "weight": 0}]}, "heads.0.weight: "),
        ({"heads": [{"layer": 1, "head": 0}] * 2}, "a head is listed twice"),
        ({"question": 0, "last": 0}, "question or last must be above 0"),
        ({"question": "much"}, "question: "),
    ],
)
def test_a_wrong_file_is_one_sentence_that_names_it(tmp_path, changes, message):
    path = written(tmp_path, **changes)
    with pytest.raises(SkimError, match="is no head profile") as caught:
        load(path)
    assert str(path) in str(caught.value)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_cannot_be_read_or_written(tmp_path):
    with pytest.raises(SkimError, match=r"profile\.json cannot be read"):
        load(tmp_path / "profile.json")
    (tmp_path / "file").touch()
    with pytest.raises(SkimError, match="cannot write"):
        save(PROFILE, tmp_path / "file" / "profile.json")


def test_a_profile_fits_its_model_only():
    PROFILE.check(FINGERPRINT, layers=4, heads=2)
    with pytest.raises(SkimError, match="not of this speculator"):
        PROFILE.check("0" * 64, layers=4, heads=2)
    for layers, count in ((3, 2), (4, 1)):
        with pytest.raises(SkimError, match="names layer 3, head 1, but the model has"):
            PROFILE.check(FINGERPRINT, layers, count)


def test_the_packaged_profiles_are_valid_and_each_is_of_another_model(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = [load(file) for file in heads.PACKAGED.iterdir() if file.suffix == ".json"]
    assert {profile.model for profile in found} == {"Qwen2.5-Coder-0.5B-Instruct", "SmolLM2-135M-Instruct"}
    for profile in found:
        assert known(profile.fingerprint) == profile
        assert profile.made["by"]
    assert known(FINGERPRINT) is None


def test_a_saved_profile_is_found_by_its_model_and_goes_before_the_packaged_one(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert known(FINGERPRINT) is None
    save(PROFILE, saved_file(FINGERPRINT))
    assert known(FINGERPRINT) == PROFILE
    assert known("0" * 64) is None
    brought = next(load(file) for file in heads.PACKAGED.iterdir() if file.suffix == ".json")
    assert known(brought.fingerprint) == brought
    own = brought.model_copy(update={"question": 0.25, "last": 0.75})
    save(own, saved_file(own.fingerprint))
    assert known(own.fingerprint) == own


def without_home(monkeypatch):
    """A user id of a container that has no name there."""
    for name in ("XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)


def test_a_user_without_a_home_has_no_saved_profile(tmp_path, monkeypatch):
    without_home(monkeypatch)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RuntimeError, match="home"):
        Path.home()
    assert known(FINGERPRINT) is None
    brought = next(load(file) for file in heads.PACKAGED.iterdir() if file.suffix == ".json")
    assert known(brought.fingerprint) == brought
    with pytest.raises(SkimError, match="no home folder for the head profile: set XDG_CACHE_HOME or HOME"):
        saved_file(FINGERPRINT)
    assert list(tmp_path.iterdir()) == []


def test_a_home_that_may_not_be_entered_has_no_saved_profile(tmp_path, monkeypatch):
    """As root may enter every folder, `stat` is replaced."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    save(PROFILE, saved_file(FINGERPRINT))
    original = os.stat

    def stat(path, *args, **kwargs):
        if str(path).startswith(str(tmp_path)):
            raise PermissionError(13, "Permission denied", str(path))
        return original(path, *args, **kwargs)

    monkeypatch.setattr("os.stat", stat)
    with pytest.raises(PermissionError):
        saved_file(FINGERPRINT).exists()
    assert known(FINGERPRINT) is None


def test_a_profile_that_cannot_be_written_leaves_nothing(tmp_path, monkeypatch):
    def replace(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", replace)
    with pytest.raises(SkimError, match=r"cannot write .*: No space left on device"):
        save(PROFILE, tmp_path / "heads.json")
    assert list(tmp_path.iterdir()) == []


def test_rows_and_heads_count_by_their_shares():
    torch.testing.assert_close(row_weights(1.0, 3.0, rows=4), torch.tensor([0.0625] * 4 + [0.75]))
    torch.testing.assert_close(row_weights(0.0, 0.2, rows=2), torch.tensor([0.0, 0.0, 1.0]))
    torch.testing.assert_close(row_weights(5.0, 0.0, rows=0), torch.ones(1))
    torch.testing.assert_close(head_weights([2.0, 1.0, 1.0]), torch.tensor([0.5, 0.25, 0.25]))
