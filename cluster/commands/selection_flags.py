"""The options of commands that select by a speculator in this process."""

import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cluster.commands.keep_rate import KeepRate, keep_rate_value
from skim_common.errors import SkimError

if TYPE_CHECKING:
    from router.options.request import PrefillOptions


@dataclass(frozen=True)
class SelectionFlags:
    """A group of options (`cluster.commands.grouped`)."""

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
