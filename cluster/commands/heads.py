"""`skim heads`."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cluster.commands.selection_flags import quick_start, read_options
from skim_common.errors import SkimError
from skim_common.models.fingerprint import model_fingerprint
from skim_common.models.info import inspect_model
from skim_common.models.source import located

if TYPE_CHECKING:
    from speculator_service.scoring.heads import HeadProfile


def heads(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Speculator: a folder, or owner/name@revision.")],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE.json",
            help="Write the profile here. Default: where speculators look for it.",
        ),
    ] = None,
    speculator_options: Annotated[
        str, typer.Option(metavar="JSON", help='Options of its engine, such as {"dtype": "float32"}.')
    ] = "{}",
) -> None:
    """Find the retrieval heads of a speculator, by which it reads prompts in windows.

    A speculator that starts finds them by itself. This command is for a file that other machines get.
    """
    from rich.console import Console
    from rich.progress import Progress

    from speculator_service.scoring.heads import save, saved_file

    console, options = Console(highlight=False), read_options(speculator_options, "--speculator-options")
    if output is None:
        saved_file("")  # a user without a home is told before the work
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task("starting the speculator", total=None)
        profile = run(
            located(str(model), Path.cwd()),
            options,
            lambda done, of: bar.update(task, completed=done, total=of, description="reading prompts"),
        )
    file = output or saved_file(profile.fingerprint)
    save(profile, file)
    found = ", ".join(f"({head.layer}, {head.head}) {head.weight:g}" for head in profile.heads)
    console.print(f"Heads of {profile.model} (layer, head) with their weights: {found}", markup=False)
    console.print(f"Wrote {file}", markup=False, soft_wrap=True)


def run(model: str, options: dict[str, Any], progress: Callable[[int, int], None]) -> "HeadProfile":
    """The profile of a model, by vLLM's engine with these options. Raises SkimError, also if no heads are good enough.

    progress: as in `find_heads`.
    """
    from speculator_service.factory import create_engine
    from speculator_service.start.find_heads import find_heads

    model_fingerprint(inspect_model(model, engine="vllm"))
    engine = create_engine("vllm", model, options={**quick_start("vllm"), **options})
    try:
        profile = asyncio.run(find_heads(engine, model, progress))  # type: ignore[arg-type]  # vLLM's engine
    finally:
        engine.close()
    if profile is None:
        raise SkimError(f"no heads of {model} find what a question asks for, so it has no head profile")
    return profile
