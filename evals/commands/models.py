"""`skim models check`."""

import os
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Which architectures serve in both roles.", no_args_is_help=True)


@app.callback()
def models() -> None: ...


@app.command()
def check(
    architectures: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="ARCHITECTURE", help="Names of vLLM's registry, such as Qwen3ForCausalLM. Default: all."
        ),
    ] = None,
    json_file: Annotated[
        Path | None,
        typer.Option(
            "--json",
            metavar="FILE",
            help="Write each result here. Without names, architectures that have one are left out.",
        ),
    ] = None,
) -> None:
    """Run a tiny random model of each architecture as target and as speculator, and compare it with transformers.

    A model takes 10 to 30 seconds on CPU. The exit code is 1 if one answers wrong.
    """
    from evals.architectures.sweep import ENVIRONMENT

    os.environ.update(ENVIRONMENT)
    from rich.console import Console

    from evals.architectures.found import Results
    from evals.architectures.registry import named
    from evals.architectures.sweep import sweep

    console, results = Console(highlight=False), Results(json_file)
    chosen = named(architectures or [])
    if not architectures:
        chosen = [recipe for recipe in chosen if recipe.architecture not in results.found]
    wrong = False
    for found in sweep(chosen):
        results.add(found)
        for name, role in (("target", found.target), ("speculator", found.speculator)):
            said = f"{found.architecture} as {name}: {role.verdict}{role.why and f' ({role.why})'}"
            console.print(said, markup=False, soft_wrap=True)
            wrong |= role.verdict == "wrong"
    raise typer.Exit(int(wrong))


@app.command()
def table(
    file: Annotated[Path, typer.Argument(metavar="FILE.json", help="What `skim models check --json` wrote.")],
) -> None:
    """Print the results as the table of docs/models.md."""
    from cluster.json_file import read_json
    from evals.architectures.table import markdown

    print(markdown(read_json(file)))
