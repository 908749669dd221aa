"""`skim bench evidence`."""

import os
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.commands.lists import numbers, values
from benchmarks.commands.output import JsonFile, PlotFile, measure
from benchmarks.commands.pair_options import Journal, Speculator, SpeculatorOptions
from skim_common.models.source import located


def evidence(
    speculator: Speculator = Path("demo_models/speculator"),
    tasks: Annotated[
        str, typer.Option(metavar="TASK[,TASK...]", help="Tasks or families of skim eval.")
    ] = "single_needle",
    ways: Annotated[
        str, typer.Option(metavar="WAY[;WAY...]", help="Ways of scoring, with semicolons between them.")
    ] = "look-ahead;question;lexical",
    keep_rates: Annotated[str, typer.Option(metavar="R[,R...]", help="Shares of the prompt to keep.")] = "0.05,0.1,0.2",
    prompt_tokens: Annotated[int, typer.Option(min=64, help="Prompt length in tokens.")] = 2048,
    prompts: Annotated[int, typer.Option(min=1, help="Number of prompts per task.")] = 200,
    seed: Annotated[int, typer.Option(help="Seed of the prompts.")] = 0,
    engine: Annotated[str, typer.Option(metavar="vllm|mock", help="Engine of the speculator.")] = "vllm",
    speculator_options: SpeculatorOptions = "{}",
    journal: Journal = None,
    json_file: JsonFile = None,
    plot_file: PlotFile = None,
) -> None:
    """How often a selection keeps all evidence of the answer, with the speculator alone."""
    from cluster.commands.flags import read_options
    from evals.run import evidence_kept as benchmark
    from evals.tasks.registry import expanded

    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    settings = benchmark.EvidenceSettings(
        speculator=located(str(speculator), Path.cwd()),
        tasks=expanded(values(tasks, str, "--tasks")),
        ways=tuple(way.strip() for way in ways.split(";")),
        keep_rates=tuple(numbers(keep_rates, "--keep-rates", 0.001, 1)),
        prompt_tokens=prompt_tokens,
        prompts=prompts,
        seed=seed,
        engine=engine,
        options=read_options(speculator_options, "--speculator-options"),
        journal=journal,
    )
    measure(benchmark, lambda report: benchmark.run(settings, report), json_file, plot_file)
