"""Options that are comma-separated lists. Not here: typer's own multiple options, which repeat the option's name."""

from collections.abc import Callable
from typing import TypeVar

from skim_common.errors import SkimError

Value = TypeVar("Value", int, float, str)


def values(text: str, kind: Callable[[str], Value], option: str) -> tuple[Value, ...]:
    """The different values in `0.1,0.2`, in their order; empty words are left out. Raises SkimError."""
    try:
        return tuple(dict.fromkeys(kind(word.strip()) for word in text.split(",") if word.strip()))
    except ValueError:
        raise SkimError(f"{option} takes numbers with commas between them, not {text!r}") from None


def numbers(text: str, option: str, lowest: float, highest: float) -> list[float]:
    """The different numbers in `text`, ascending, at least one. Raises SkimError, also for those out of range."""
    found = sorted(values(text, float, option))
    if not found or not lowest <= found[0] or not found[-1] <= highest:
        raise SkimError(f"{option} takes numbers from {lowest:g} to {highest:g}, not {text!r}")
    return found


def lengths(text: str) -> tuple[int, ...]:
    """The prompt lengths in `2048` or `2048,8192`: different numbers, each at least 256. Raises SkimError."""
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() and int(word) >= 256 for word in words) or len(set(words)) < len(words):
        raise SkimError(f"--prompt-tokens: {text} must be different whole numbers of at least 256, such as 2048,8192")
    return tuple(map(int, words))
