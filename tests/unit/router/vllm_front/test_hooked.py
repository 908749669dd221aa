"""A vLLM that lacks what the router's app stands on is refused in one sentence; each control takes one symbol away."""

import functools
import importlib

import pytest

from router.vllm_front.app import HOOKS, build_openai_app
from skim_common import symbols
from skim_common.errors import SkimError


@pytest.mark.parametrize("symbol", symbols.symbols_of(HOOKS), ids=lambda one: one[1])
async def test_a_renamed_symbol_is_named_when_the_app_is_built(monkeypatch, symbol):
    module, name, _ = symbol
    *path, last = name.split(".")
    owner = functools.reduce(getattr, path, importlib.import_module(module))
    for holder in owner.__mro__ if path else [owner]:
        if last in vars(holder):
            monkeypatch.delattr(holder, last)
    names = symbols._names
    monkeypatch.setattr(symbols, "_names", lambda owner, attribute: attribute != last and names(owner, attribute))
    with pytest.raises(SkimError, match=rf"^Skim's hooks were made for vLLM .* do not fit {module}\.{name} of vLLM"):
        await build_openai_app(None, None, None)
