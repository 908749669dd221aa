"""`skim heads`."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from cluster.commands.flags import quick_start, read_options
from cluster.commands.output import console, print_line
from skim_common.errors import SkimError
from skim_common.models.info import inspect_model
from skim_common.models.source import located
from speculator_service.model import model_fingerprint


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
    from rich.progress import Progress

    from speculator_service.engine import create_engine
    from speculator_service.scoring.heads import save, saved_file
    from speculator_service.start.find_heads import find_heads

    options = quick_start("vllm") | read_options(speculator_options, "--speculator-options")
    if output is None:
        saved_file("")  # a user without a home is told before the work
    place = located(str(model), Path.cwd())
    model_fingerprint(inspect_model(place, engine="vllm"))
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task("starting the speculator", total=None)

        def show(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total, description="reading prompts")

        engine = create_engine("vllm", place, options=options)
        try:
            profile = asyncio.run(find_heads(engine, place, show))  # type: ignore[arg-type]  # vLLM's engine
        finally:
            engine.close()
    if profile is None:
        raise SkimError(f"no heads of {model} find what a question asks for, so it has no head profile")
    file = output or saved_file(profile.fingerprint)
    save(profile, file)
    weights = ", ".join(f"({head.layer}, {head.head}) {head.weight:g}" for head in profile.heads)
    print_line(f"Heads of {profile.model} (layer, head) with their weights: {weights}")
    print_line(f"Wrote {file}")
