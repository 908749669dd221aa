"""Models by name: huggingface_hub's real client against a hub on this machine."""

import filecmp
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from huggingface_hub import constants

from skim_common.errors import ModelError
from skim_common.models import source as model_source
from skim_common.models.info import check_pair, inspect_model
from skim_common.models.source import is_hub_name, local_folder, located, pinned, public_name
from tests.reference.hub_server import TOKEN
from tests.unit.conftest import reach

MODELS = Path(__file__).parents[4] / "demo_models"
SMALL = {"chat_template.jinja", "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"}
WEIGHTS = "model.safetensors"


def refusal(model: str, *, weights: bool = True) -> str:
    with pytest.raises(ModelError) as error:
        local_folder(model, weights=weights)
    message = str(error.value)
    assert message.startswith(f"model {model}: ")
    assert "\n" not in message
    return message


def names(folder: str) -> set[str]:
    return {path.name for path in Path(folder).iterdir()}


def test_what_is_a_name_and_what_is_a_folder(tmp_path):
    (tmp_path / "owner" / "here").mkdir(parents=True)
    assert is_hub_name("owner/name", tmp_path)
    assert is_hub_name("owner/Name-1.5_b@refs/pr/1", tmp_path)
    for folder in ("owner/here", "name", "./owner/name", "../owner/name", "~/name", "/owner/name", "a/b/c", "a b/c"):
        assert not is_hub_name(folder, tmp_path), folder
    assert located("owner/name@v1", tmp_path) == "owner/name@v1"
    assert located("owner/here", tmp_path) == str(tmp_path / "owner" / "here")
    assert located("name", tmp_path) == str(tmp_path / "name")
    assert public_name("owner/name@v1") == "owner/name"
    assert public_name("/models/name") == "name"


def test_a_folder_is_returned_as_it_is(hub, tmp_path):
    (tmp_path / "demo" / "target").mkdir(parents=True)
    for folder in (str(MODELS / "target"), "demo/target", "no-such-folder"):
        assert local_folder(folder, weights=True) == folder
        assert pinned(folder) == folder
    assert hub.downloads == []


def test_from_an_empty_cache_small_files_first(hub):
    small = local_folder("demo/target", weights=False)
    assert names(small) == SMALL
    check_pair(inspect_model("demo/speculator", engine="mock"), inspect_model("demo/target", engine="mock"))
    assert WEIGHTS not in {file for _, file, _ in hub.downloads}

    whole = local_folder("demo/target", weights=True)
    assert whole == small
    assert names(whole) == SMALL | {WEIGHTS}
    assert filecmp.cmpfiles(whole, MODELS / "target", sorted(names(whole)), shallow=False)[1:] == ([], [])
    assert len(hub.downloads) == len(set(hub.downloads))

    before = len(hub.downloads)
    assert local_folder("demo/target@main", weights=True) == whole
    assert len(hub.downloads) == before


def test_a_pinned_name_needs_no_network(hub, monkeypatch):
    name = pinned("demo/target")
    assert name == f"demo/target@{hub.commit('demo/target')}"
    assert pinned(name) == name
    folder = local_folder(name, weights=True)
    reach(monkeypatch, "http://127.0.0.1:9")
    assert local_folder(name, weights=True) == folder


def test_offline(hub, monkeypatch):
    small = local_folder("demo/target", weights=False)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert local_folder("demo/target", weights=False) == small
    assert "some of its files are not in the cache" in refusal("demo/target")
    assert "HF_HUB_OFFLINE" in refusal("demo/speculator", weights=False)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    whole = local_folder("demo/target", weights=True)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert local_folder("demo/target", weights=True) == whole


def test_without_network(hub, monkeypatch):
    reach(monkeypatch, "http://127.0.0.1:9")
    assert "the hub cannot be reached" in refusal("demo/target")


def test_a_repository_or_a_revision_that_is_not_there(hub, monkeypatch):
    assert "no folder of this name, and the hub shows no repository demo/nothing" in refusal("demo/nothing")
    assert "no revision v7" in refusal("demo/target@v7")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert "the hub shows no repository demo/nothing" in refusal("demo/nothing")
    assert "no name of a repository" in refusal("demo/no--thing")


def test_tokens(hub, monkeypatch):
    hub.gated.add("demo/target")
    assert "is gated" in refusal("demo/target", weights=False)
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    assert "the hub refuses the token" in refusal("demo/target", weights=False)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert names(local_folder("demo/target", weights=True)) == SMALL | {WEIGHTS}


def test_an_interrupted_download_goes_on(hub):
    """Within one call the client asks for the rest of the file, by its range."""
    hub.broken[WEIGHTS] = 0
    folder = local_folder("demo/target", weights=True)
    assert filecmp.cmp(Path(folder) / WEIGHTS, MODELS / "target" / WEIGHTS, shallow=False)
    whole_chunks = (MODELS / "target" / WEIGHTS).stat().st_size // 2 // 2**20
    assert [first for _, file, first in hub.downloads if file == WEIGHTS] == [0, whole_chunks * 2**20]


def test_a_download_that_failed_is_run_again(hub):
    """The next call downloads only what is not complete."""
    hub.broken[WEIGHTS] = 1
    message = refusal("demo/target")
    assert "the download stopped" in message
    assert "run the same command again" in message
    del hub.broken[WEIGHTS]
    before = len(hub.downloads)
    folder = local_folder("demo/target", weights=True)
    assert names(folder) == SMALL | {WEIGHTS}
    assert WEIGHTS in {file for _, file, _ in hub.downloads[before:]}
    assert len(hub.downloads) - before == 1 + len(SMALL - {file for _, file, _ in hub.downloads[:before]})


def test_weights_in_safetensors_only_unless_asked(hub, tmp_path, monkeypatch):
    folder = tmp_path / "pickled"
    shutil.copytree(MODELS / "target", folder, ignore=shutil.ignore_patterns("*.safetensors"))
    (folder / "pytorch_model.bin").write_bytes(b"weights")
    (folder / "code.py").write_text("")
    (folder / "original").mkdir()
    (folder / "original" / "params.json").write_text("{}")
    hub.repositories["demo/pickled"] = folder
    monkeypatch.delenv(model_source.PYTORCH_WEIGHTS, raising=False)
    assert f"no weights in safetensors; set {model_source.PYTORCH_WEIGHTS}=1" in refusal("demo/pickled")
    monkeypatch.setenv(model_source.PYTORCH_WEIGHTS, "1")
    assert names(local_folder("demo/pickled", weights=True)) == SMALL | {"pytorch_model.bin"}
    (folder / "pytorch_model.bin").unlink()
    hub.repositories["demo/empty"] = folder
    assert "no weights, neither" in refusal("demo/empty")


def test_two_processes_at_once_download_once(hub, tmp_path):
    """The client reads its variables from the environment, and its file locks keep the processes apart."""
    code = "from skim_common.models.source import local_folder; print(local_folder('demo/target', weights=True))"
    variables = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "0"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            env={**os.environ, **variables, "PYTHONPATH": str(MODELS.parent)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    folders = {process.communicate()[0].strip() for process in processes}
    assert [process.returncode for process in processes] == [0, 0]
    [folder] = folders
    assert folder.startswith(str(tmp_path / "home"))
    assert names(folder) == SMALL | {WEIGHTS}
    assert sorted(hub.downloads) == sorted(("demo/target", file, 0) for file in SMALL | {WEIGHTS})
