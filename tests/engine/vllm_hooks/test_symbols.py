"""A vLLM that lacks what the hooks stand on is refused in one sentence; no engine is started."""

import functools
import importlib

import pytest

from skim_common.errors import SkimError
from skim_common.symbols import VLLM, symbols_of


def test_another_vllm_is_named() -> None:
    with pytest.raises(SkimError, match=r"Skim's hooks were made for vLLM 0\.29\.0 .*no_such_name"):
        VLLM.check([("vllm.v1.core.kv_cache_utils", "no_such_name", "")])
    with pytest.raises(SkimError, match="its parameters are"):
        VLLM.check([("vllm.v1.core.kv_cache_utils", "generate_block_hash_extra_keys", "request other")])


def test_each_symbol_that_is_gone_or_different_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from speculator_service.vllm_backend import hooked_symbols as speculator
    from target_service.vllm_backend import continued_answers, logits_processors, start
    from target_service.vllm_backend.speculation import decode_graphs, draft_probs, remote_config
    from vllm_hooks.engine import SHARED

    target = (start, continued_answers, logits_processors, decode_graphs, draft_probs, remote_config)
    symbols = symbols_of((*SHARED, *speculator.HOOKS, *(module.HOOK for module in target)))
    VLLM.check(symbols)
    for symbol in symbols:
        module, name, _ = symbol
        *path, last = name.split(".")
        owner = functools.reduce(getattr, path, importlib.import_module(module))
        with monkeypatch.context() as patch:
            patch.setattr(owner, last, lambda other: None)
            with pytest.raises(SkimError, match=rf"{module}.{name} of vLLM .*its parameters are \(other\)"):
                VLLM.check([symbol])
        if last in vars(owner):
            with monkeypatch.context() as patch:
                patch.delattr(owner, last)
                if not hasattr(owner, last):  # else a base class has it too
                    with pytest.raises(
                        SkimError, match=rf"Skim's hooks .* do not fit {module}.{name} of vLLM"
                    ) as error:
                        VLLM.check([symbol])
                    assert "\n" not in str(error.value)
