"""Checks that the installed vLLM has the functions that the hooks wrap, override or patch."""

import importlib
import inspect
from collections.abc import Iterable

import vllm

from skim_common.errors import SkimError

MADE_FOR = "0.29.0"

Symbol = tuple[str, str, str]
"""Module, dotted name in it, and the names of its first parameters, separated by spaces."""


def check_symbols(symbols: Iterable[Symbol]) -> None:
    """Raise SkimError naming the first symbol that is missing or has other parameters."""
    for module, name, parameters in symbols:
        try:
            found = importlib.import_module(module)
            for part in name.split("."):
                found = getattr(found, part)
            names = list(inspect.signature(found).parameters)  # type: ignore[arg-type]
        except (ImportError, AttributeError) as e:
            raise _mismatch(module, name, str(e)) from e
        expected = parameters.split()
        if names[: len(expected)] != expected:
            raise _mismatch(module, name, f"its parameters are ({', '.join(names)})")


def _mismatch(module: str, name: str, reason: str) -> SkimError:
    return SkimError(
        f"Skim's hooks were made for vLLM {MADE_FOR} and do not fit {module}.{name} of vLLM {vllm.__version__}"
        f" ({reason}); install vLLM {MADE_FOR}"
    )
