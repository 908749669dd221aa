"""`skim bench forms`."""

import os
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.commands.output import JsonFile, PlotFile, measure
from benchmarks.commands.pair_options import Journal, Speculator, SpeculatorOptions
from skim_common.models.source import located


def forms(
    speculator: Speculator = Path("demo_models/speculator"),
    keep_rate: Annotated[float, typer.Option(min=0.001, max=1, help="Share of the prompt to keep.")] = 0.2,
    sentences: Annotated[int, typer.Option(min=20, help="Sentences of each document.")] = 130,
    prompts: Annotated[int, typer.Option(min=1, help="Number of prompts, of all forms and languages.")] = 400,
    seed: Annotated[int, typer.Option(help="Seed of the prompts.")] = 0,
    engine: Annotated[str, typer.Option(metavar="vllm|mock", help="Engine of the speculator.")] = "vllm",
    speculator_options: SpeculatorOptions = "{}",
    journal: Journal = None,
    json_file: JsonFile = None,
    plot_file: PlotFile = None,
) -> None:
    """Whether task, rules and evidence are kept in the forms that clients give their prompts."""
    from cluster.commands.flags import read_options
    from evals.run import forms_kept as benchmark

    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    settings = benchmark.FormsSettings(
        speculator=located(str(speculator), Path.cwd()),
        keep_rate=keep_rate,
        sentences=sentences,
        prompts=prompts,
        seed=seed,
        engine=engine,
        options=read_options(speculator_options, "--speculator-options"),
        journal=journal,
    )
    measure(benchmark, lambda report: benchmark.run(settings, report), json_file, plot_file)
