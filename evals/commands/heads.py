"""`skim heads`."""

import os
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.commands.output import progress_bar
from benchmarks.commands.pair_options import SpeculatorOptions
from skim_common.models.source import located


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
    prompt_tokens: Annotated[int, typer.Option(min=512, help="Tokens of a generated prompt.")] = 1024,
    prompts: Annotated[int, typer.Option(min=2, help="Generated prompts for each of seven tasks.")] = 6,
    seed: Annotated[int, typer.Option(help="Seed of the prompts.")] = 0,
    speculator_options: SpeculatorOptions = "{}",
) -> None:
    """Find the retrieval heads of a speculator, by which it reads long prompts in windows.

    The speculators of this machine then use them, from their next start on.
    """
    from rich.console import Console

    from cluster.commands.tools import read_options
    from evals.heads import search
    from speculator_service.scoring.heads import save, saved_file

    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    console = Console(highlight=False)
    settings = search.SearchSettings(
        located(str(model), Path.cwd()),
        prompt_tokens,
        prompts,
        seed,
        read_options(speculator_options, "--speculator-options"),
    )
    with progress_bar(console) as report:
        profile = search.run(settings, report)
    file = output or saved_file(profile.fingerprint)
    save(profile, file)
    console.print(search.describe(profile), markup=False)
    console.print(f"Wrote {file}", markup=False, soft_wrap=True)
