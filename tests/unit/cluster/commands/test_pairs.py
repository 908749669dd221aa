"""`skim pairs`: candidates from folders and from the hub's cache, and verdicts."""

import json
import shutil

import pytest
from huggingface_hub import constants

from skim_common.models.source import local_folder
from tests.reference.models import build_model
from tests.unit.conftest import MODELS, reach


@pytest.fixture
def asked(skim, tmp_path):
    """`asked(target, ...)`: the result by the name of the speculator, and what was printed."""

    def run(*words):
        ran = skim("pairs", *words, "--json", tmp_path / "pairs.json")
        assert (ran.code, ran.err) == (0, "")
        result = json.loads((tmp_path / "pairs.json").read_text())
        return {one["name"]: one for one in result["speculators"]}, ran.out

    return run


@pytest.fixture
def zoo(hub, tmp_path):
    """A folder with models for the demo target: smaller, windowed, of a short context, and as large as the target."""
    folder = tmp_path / "zoo"
    shutil.copytree(MODELS / "speculator", folder / "small")
    config = (folder / "small" / "config.json").read_text()
    for name, old, new in (
        ("windowed", '"use_cache"', '"sliding_window": 64, "use_cache"'),
        ("short", '"max_position_embeddings": 32768', '"max_position_embeddings": 4096'),
    ):
        assert old in config
        shutil.copytree(folder / "small", folder / name)
        (folder / name / "config.json").write_text(config.replace(old, new))
    shutil.copytree(MODELS / "target", folder / "twin")
    build_model(folder / "foreign", "llama", layers=1)
    tokenizer = json.loads((folder / "foreign" / "tokenizer.json").read_text())
    tokenizer["added_tokens"].append({**tokenizer["added_tokens"][0], "id": 1000, "content": "<|more|>"})
    (folder / "foreign" / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "no-model").mkdir()
    return folder


def test_each_candidate_gets_a_verdict(asked, zoo):
    found, out = asked(MODELS / "target", "--among", zoo, "--among", MODELS / "target")
    names = {name: str(zoo / name) for name in ("small", "windowed", "short", "twin", "foreign")}
    assert found.keys() == set(names.values())  # neither the target itself nor the folder without a model
    verdicts = {name: found[path]["verdict"] for name, path in names.items()}
    fit = dict.fromkeys(("small", "short", "foreign"), "fits")
    assert verdicts == fit | {"twin": "no gain", "windowed": "refused"}
    assert [one["verdict"] for one in found.values()] == ["fits", "fits", "fits", "no gain", "refused"]
    assert "sliding-window attention" in found[names["windowed"]]["reason"]
    tokenizers = {name: found[path]["tokenizer"] for name, path in names.items()}
    same = dict.fromkeys(("small", "short", "twin"), "same")
    assert tokenizers == same | {"foreign": "another", "windowed": None}
    # Those with the target's tokenizer come first, although this one is cheaper.
    assert list(found)[2] == names["foreign"]
    assert found[names["foreign"]]["cost"] < found[names["small"]]["cost"]
    assert "it reads 4096 tokens, the target 32768" in found[names["short"]]["reason"]
    assert found[names["small"]]["reason"] == ""
    assert found[names["twin"]]["cost"] == 1
    for word in ("fits", "no gain", "refused", "sliding-window attention", "it reads 4096 tokens"):
        assert word in out


def test_the_keep_rate_decides_what_is_a_gain(asked, zoo):
    small, target = str(zoo / "small"), MODELS / "target"
    [(_, low), (_, high)] = [
        next(iter(asked(target, "--among", small, "--keep-rate", rate)[0].items())) for rate in (0.1, 0.95)
    ]
    assert (low["verdict"], high["verdict"]) == ("fits", "no gain")
    for tokens in ("8192", "32768", "131072"):
        assert low["first"][tokens]["windows"] < low["first"][tokens]["whole"] < 1
        assert high["first"][tokens]["whole"] > low["first"][tokens]["whole"]


def test_models_of_the_cache_are_candidates_without_a_download(asked, hub, monkeypatch):
    local_folder("demo/speculator", weights=False)
    local_folder("demo/target", weights=False)
    before = len(hub.downloads)
    reach(monkeypatch, "http://127.0.0.1:9")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    found, _ = asked("demo/target")
    assert {name: one["verdict"] for name, one in found.items()} == {"demo/speculator": "fits"}
    assert "model.safetensors" not in {file for _, file, _ in hub.downloads}
    assert len(hub.downloads) == before


def test_a_revision_that_is_not_main_is_named(asked, hub):
    commit = hub.commit("demo/speculator")
    local_folder(f"demo/speculator@{commit}", weights=False)
    found, _ = asked(MODELS / "target")
    assert list(found) == [f"demo/speculator@{commit}"]


def test_reasons_name_models_as_the_user_does(asked, hub, zoo):
    hub.repositories["demo/windowed"] = zoo / "windowed"
    local_folder("demo/windowed", weights=False)
    found, out = asked("demo/target")
    assert found["demo/windowed"]["reason"].startswith("model demo/windowed is not supported yet as a speculator")
    assert "snapshots" not in out


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        (("no-such-folder",), "no-such-folder does not exist"),
        ((MODELS / "target",), "there is no other model on this machine"),
        ((MODELS / "target", "--among", "empty"), "--among empty: there is no config.json"),
    ],
)
def test_mistakes(skim, hub, words, wrong):
    ran = skim("pairs", *words)
    assert ran.code == 2
    assert wrong in ran.error
