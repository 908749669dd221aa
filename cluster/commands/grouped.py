"""Options that a command takes as one object."""

import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from functools import wraps
from typing import Any, get_type_hints


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """The command for Typer. In the place of each parameter that is a dataclass it has the dataclass' fields."""
    groups: dict[str, Any] = {}
    options: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command, eval_str=True).parameters.items():
        if is_dataclass(parameter.annotation):
            groups[name] = parameter.annotation
            options += _options(parameter.annotation)
        else:
            options.append(parameter)

    @wraps(command)
    def run(**given: Any) -> None:
        own = {name: group(**{f.name: given.pop(f.name) for f in fields(group)}) for name, group in groups.items()}
        command(**given, **own)

    run.__signature__ = inspect.Signature([option.replace(kind=option.KEYWORD_ONLY) for option in options])  # type: ignore[attr-defined]
    run.__annotations__ = {option.name: option.annotation for option in options}
    return run


def _options(group: Any) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if field.default is MISSING else field.default,
            annotation=hints[field.name],
        )
        for field in fields(group)
    ]
