"""`skim eval`."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from benchmarks.commands.show import JsonFile, PlotFile, measure
from kv_transfer.errors import SkimError

Value = TypeVar("Value", int, float, str)


def evaluate(
    target: Annotated[Path, typer.Option(metavar="DIR", help="Model folder; with --endpoint, its tokenizer.")],
    speculator: Annotated[Path | None, typer.Option(metavar="DIR", help="Model folder.")] = None,
    endpoint: Annotated[
        str | None, typer.Option(metavar="URL", help="Ask this Skim endpoint, not two engines of this process.")
    ] = None,
    keep_rates: Annotated[
        str, typer.Option(help="Shares of the prompt to keep; 1 is dense.")
    ] = "0.05,0.1,0.2,0.3,0.5,1",
    tasks: Annotated[str | None, typer.Option(help="Names of tasks; all by default.")] = None,
    lengths: Annotated[str, typer.Option(help="Lengths of the prompts in tokens.")] = "1024,4096",
    samples: Annotated[int, typer.Option(min=1, help="Prompts per task and length.")] = 50,
    seed: Annotated[int, typer.Option(help="Another seed, other prompts.")] = 0,
    style: Annotated[
        str, typer.Option(help="instruct, or plain: without instructions, for the demo pair.")
    ] = "instruct",
    look_ahead: Annotated[int, typer.Option(min=1, max=64, help="Tokens decoded ahead whose queries score.")] = 8,
    max_tokens: Annotated[int, typer.Option(min=1, help="Longest answer.")] = 64,
    engine: Annotated[str, typer.Option(help="vllm, transformers or mock.")] = "vllm",
    concurrency: Annotated[int, typer.Option(min=1, help="Prompts at a time.")] = 4,
    target_options: Annotated[str, typer.Option(metavar="JSON", help="Options of the target engine.")] = "{}",
    speculator_options: Annotated[str, typer.Option(metavar="JSON", help="Options of the speculator engine.")] = "{}",
    json_file: JsonFile = None,
    plot_file: PlotFile = None,
) -> None:
    """Quality against keep rate on generated long-context tasks, beside random chunks, windows and broken positions."""
    from evals import results, run
    from evals.tasks import TASKS

    if style not in ("instruct", "plain"):
        raise SkimError(f"--style is instruct or plain, not {style}")
    settings = run.EvalSettings(
        target=str(target),
        speculator=None if speculator is None else str(speculator),
        endpoint=endpoint,
        keep_rates=_list(keep_rates, float, "--keep-rates"),
        tasks=tuple(TASKS) if tasks is None else _list(tasks, str, "--tasks"),
        lengths=_list(lengths, int, "--lengths"),
        samples=samples,
        seed=seed,
        style=style,  # type: ignore[arg-type]
        look_ahead=look_ahead,
        max_tokens=max_tokens,
        engine=engine,
        concurrency=concurrency,
        target_options=_options(target_options, "--target-options"),
        speculator_options=_options(speculator_options, "--speculator-options"),
    )
    measure(results, lambda tell: run.run(settings, tell), json_file, plot_file)


def _list(text: str, kind: Callable[[str], Value], name: str) -> tuple[Value, ...]:
    """`0.1,0.2` as numbers, each once. Raises SkimError."""
    try:
        return tuple(dict.fromkeys(kind(part.strip()) for part in text.split(",") if part.strip()))
    except ValueError:
        raise SkimError(f"{name} takes numbers with commas between them, not {text!r}") from None


def _options(text: str, name: str) -> dict[str, Any]:
    try:
        options = json.loads(text)
    except ValueError:
        options = None
    if not isinstance(options, dict):
        raise SkimError(f'{name} takes a JSON object, for example \'{{"dtype": "float32"}}\', not {text!r}')
    return options
