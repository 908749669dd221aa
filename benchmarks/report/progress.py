"""How a running measurement reports its progress."""

from collections.abc import Callable

Progress = Callable[[str, float], None]
"""Called with the name of the step that begins and the finished share of the whole run, from 0 to 1."""


def silent(_what: str, _done: float) -> None:
    """A Progress that reports nothing."""
