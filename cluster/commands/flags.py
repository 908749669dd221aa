"""Options that several commands take: --keep-rate, options as JSON, and groups of options as one object."""

import inspect
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any

import typer

from skim_common.errors import SkimError

if TYPE_CHECKING:
    from router.options.request import PrefillOptions

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


def read_options(text: str, flag: str) -> dict[str, Any]:
    """The options in a flag's JSON object. Raises SkimError."""
    try:
        options = json.loads(text)
    except ValueError:
        options = None
    if not isinstance(options, dict):
        raise SkimError(f'{flag} takes a JSON object, for example \'{{"dtype": "float32"}}\', not {text!r}')
    return options


def quick_start(engine: str) -> dict[str, Any]:
    """Options for one request: a small KV cache and no compilation, so that the command starts soon."""
    if engine != "vllm":
        return {}
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    return {"enforce_eager": True}


@dataclass(frozen=True)
class SelectionFlags:
    """The options of commands that select by a speculator in this process: a group (`grouped`)."""

    keep_rate: KeepRate = None
    options: Annotated[
        str, typer.Option(metavar="JSON", help="Further options of speculative_prefill, such as '{\"coverage\": 0.9}'.")
    ] = "{}"
    engine: Annotated[str, typer.Option(metavar="vllm|mock", help="Engine of the speculator.")] = "vllm"
    speculator_options: Annotated[
        str, typer.Option(metavar="JSON", help='Options of the engine, such as \'{"dtype": "float32"}\'.')
    ] = "{}"

    @property
    def prefill(self) -> "PrefillOptions":
        """The options of the selection. Raises SkimError."""
        from router.options.request import PREFILL, PrefillOptions

        rate = {} if self.keep_rate is None else {"keep_rate": keep_rate_value(self.keep_rate)}
        return PREFILL.resolve(PrefillOptions(), None, rate | read_options(self.options, "--options"))

    @property
    def start_options(self) -> dict[str, Any]:
        """The options of the engine. Raises SkimError."""
        return quick_start(self.engine) | read_options(self.speculator_options, "--speculator-options")


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """The command for Typer. In the place of each parameter that is a dataclass it has the dataclass' fields."""
    groups: dict[str, Any] = {}
    options: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command, eval_str=True).parameters.items():
        if is_dataclass(group := parameter.annotation):
            groups[name] = group
            options += inspect.signature(groups[name], eval_str=True).parameters.values()
        else:
            options.append(parameter)

    @wraps(command)
    def run(**given: Any) -> None:
        objects = {name: group(**{f.name: given.pop(f.name) for f in fields(group)}) for name, group in groups.items()}
        command(**given, **objects)

    run.__signature__ = inspect.Signature([option.replace(kind=option.KEYWORD_ONLY) for option in options])  # type: ignore[attr-defined]
    run.__annotations__ = {option.name: option.annotation for option in options}
    return run
