"""The table of docs/hooks.md, and which of the names in it the installed vLLM and Ray have."""

import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "hooks.md"


class Symbol(NamedTuple):
    """module:name, and the names of its first parameters; none: only that it is there."""

    module: str
    name: str
    parameters: tuple[str, ...] = ()


class Row(NamedTuple):
    files: tuple[str, ...]
    symbols: tuple[Symbol, ...]
    why: str


def rows(text: str | None = None) -> list[Row]:
    """text: of the page, if not of docs/hooks.md."""
    lines = re.findall(r"^\| (`.+) \|$", PAGE.read_text(encoding="utf-8") if text is None else text, re.MULTILINE)
    return [
        Row(tuple(re.findall(r"`([^`]+)`", files)), tuple(map(_symbol, re.findall(r"`([^`]+)`", symbols))), why)
        for files, symbols, why in (re.split(r" *\| ", line, maxsplit=2) for line in lines)
    ]


def _symbol(text: str) -> Symbol:
    path, _, parameters = text.removesuffix(")").partition("(")
    module, _, name = path.partition(":")
    return Symbol(module, name, tuple(parameters.split(", ")) if parameters else ())


def mismatch(symbol: Symbol) -> str | None:
    """Why the installed library does not have it, in one sentence; None if it has."""
    module, name, expected = symbol
    try:
        value = _find(importlib.import_module(module), name)
        names = tuple(inspect.signature(value).parameters) if expected else ()
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        return f"{module}:{name}: {error}"
    if names[: len(expected)] != expected:
        return f"{module}:{name}: its parameters are ({', '.join(names)}), not ({', '.join(expected)}, ...)"
    return None


def _find(owner: Any, name: str) -> Any:
    """The symbol; None for an attribute that only objects of a class have. Raises AttributeError."""
    *path, last = name.split(".")
    for part in path:
        owner = getattr(owner, part)
    if isinstance(owner, type) and not hasattr(owner, last) and last in _names_in_methods(owner):
        return None
    return getattr(owner, last)


def _names_in_methods(owner: type) -> Iterator[str]:
    """All attributes that a method of the class or of a base names."""
    for base in owner.__mro__:
        for method in vars(base).values():
            if inspect.isfunction(method):
                yield from method.__code__.co_names
