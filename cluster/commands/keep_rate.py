"""The command-line option --keep-rate: a share, or `auto`."""

from typing import Annotated

import typer

KeepRate = Annotated[
    str | None,
    typer.Option(
        metavar="RATE|auto", help="Share of the prompt to keep, in (0, 1]. Default: that of the file, else auto."
    ),
]


def keep_rate_value(given: str | None) -> float | str | None:
    """The value of the option `keep_rate`, which checks it; None if it is not given."""
    try:
        return None if given is None else float(given)
    except ValueError:
        return given
