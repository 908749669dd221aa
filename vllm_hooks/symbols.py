"""Looks up the vLLM functions that our hooks replace, and says so plainly when another vLLM has other ones."""

import importlib
import inspect
from collections.abc import Sequence
from typing import Any

import vllm

from kv_transfer.errors import SkimError

MADE_FOR = "0.29.0"


def vllm_symbol(module: str, name: str, parameters: Sequence[str]) -> Any:
    """The function `name` (dotted for a method) of `module`, if its parameters begin with `parameters`.

    Raises SkimError naming the vLLM that the hooks were made for.
    """
    try:
        symbol: Any = importlib.import_module(module)
        for part in name.split("."):
            symbol = getattr(symbol, part)
        found = list(inspect.signature(symbol).parameters)
    except (ImportError, AttributeError) as e:
        raise _mismatch(module, name, str(e)) from e
    if found[: len(parameters)] != list(parameters):
        raise _mismatch(module, name, f"its parameters are ({', '.join(found)})")
    return symbol


def _mismatch(module: str, name: str, reason: str) -> SkimError:
    return SkimError(
        f"Skim's target hooks were made for vLLM {MADE_FOR} and do not fit {module}.{name} of vLLM {vllm.__version__}"
        f" ({reason}); install vLLM {MADE_FOR}"
    )
