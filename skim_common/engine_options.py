"""Options that a user gives an engine by name, checked before it starts."""

import inspect
from collections.abc import Iterable

from skim_common.errors import SkimError


def check_option_names(engine: type, options: Iterable[str], name: str) -> None:
    """Raise SkimError for an option that is no keyword argument of the class `engine`. name: for the message."""
    parameters = inspect.signature(engine).parameters.values()
    known = [parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]
    if unknown := sorted(set(options) - set(known)):
        raise SkimError(f"unknown {name} engine option {unknown[0]!r}: the options are {', '.join(known)}")
