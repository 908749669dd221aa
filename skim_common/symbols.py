"""Checks that an installed library has the symbols that Skim wraps, overrides, patches or reads."""

import importlib
import inspect
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from skim_common.errors import SkimError

Symbol = tuple[str, str, str]
"""Module, dotted name in it, and the names of its first parameters, separated by spaces.

No parameters: only that it is there. An attribute counts as there if a method of its class, or of a base, names it.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hook:
    """A place where Skim changes a library, or uses what is not public in it: a row of docs/hooks.md.

    `evals.report.hooks` reads the texts from the source, so they are literals. how: the library, and what is changed.
    until: when the hook is no longer needed. where: its files, if not only the one that declares it. symbols: what it
    needs; v1, v2: further ones, with that model runner of vLLM alone.
    """

    what: str
    how: str
    until: str
    where: tuple[str, ...] = ()
    symbols: tuple[Symbol, ...] = ()
    v1: tuple[Symbol, ...] = ()
    v2: tuple[Symbol, ...] = ()


def symbols_of(hooks: Iterable[Hook], v2: bool | None = None) -> tuple[Symbol, ...]:
    """All that the hooks need. v2: with this model runner of vLLM, or without; None: with both."""
    of_runners = {None: ("v1", "v2"), False: ("v1",), True: ("v2",)}[v2]
    return tuple(symbol for hook in hooks for part in ("symbols", *of_runners) for symbol in getattr(hook, part))


@dataclass(frozen=True, slots=True)
class Library:
    """A library with hooks of ours. module: its root, which has `__version__`. made_for: the version they fit."""

    name: str
    module: str
    made_for: str

    def check(self, symbols: Iterable[Symbol]) -> None:
        """Raise SkimError naming the first symbol that is missing or has other parameters."""
        for module, name, parameters in symbols:
            try:
                found = _find(importlib.import_module(module), name)
                expected = parameters.split()
                names = list(inspect.signature(found).parameters) if expected else []
            except (ImportError, AttributeError, TypeError, ValueError) as e:
                raise self._mismatch(module, name, str(e)) from e
            if names[: len(expected)] != expected:
                raise self._mismatch(module, name, f"its parameters are ({', '.join(names)})")

    def _mismatch(self, module: str, name: str, reason: str) -> SkimError:
        installed = importlib.import_module(self.module).__version__
        return SkimError(
            f"Skim's hooks were made for {self.name} {self.made_for} and do not fit {module}.{name} of {self.name}"
            f" {installed} ({reason}); install {self.name} {self.made_for}"
        )


VLLM = Library("vLLM", "vllm", "0.29.0")
RAY = Library("Ray", "ray", "2.60.0")


def _find(owner: Any, name: str) -> Any:
    """The symbol; None for an attribute that only objects of a class have. Raises AttributeError."""
    *path, last = name.split(".")
    for part in path:
        owner = getattr(owner, part)
    if isinstance(owner, type) and not hasattr(owner, last) and _names(owner, last):
        return None
    return getattr(owner, last)


def _names(owner: type, attribute: str) -> bool:
    """Whether a method of the class or of a base names the attribute."""
    methods = (method for base in owner.__mro__ for method in vars(base).values() if inspect.isfunction(method))
    return any(attribute in method.__code__.co_names for method in methods)
