"""How a running measurement tells where it is."""

from collections.abc import Callable

Progress = Callable[[str, float], None]
"""Called with what begins now and the share of the whole run that is done, from 0 to 1."""


def silent(_what: str, _done: float) -> None:
    """For runs that nobody watches."""
