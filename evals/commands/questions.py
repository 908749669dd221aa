"""`skim bench questions`."""

import os
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.commands.lists import numbers
from benchmarks.commands.output import JsonFile, PlotFile, measure
from benchmarks.commands.pair_options import Journal, Speculator, SpeculatorOptions
from skim_common.models.source import located


def questions(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="JSONL of questions with marked evidence, or a folder with one.")
    ],
    speculator: Speculator = Path("demo_models/speculator"),
    ways: Annotated[
        str,
        typer.Option(
            metavar="WAY[;WAY...]",
            help="Ways of scoring, with semicolons between them. Those of words alone need no model but its tokenizer.",
        ),
    ] = "plain BM25;plain BM25, neighbours;lexical;read by auto;heads, windows",
    keep_rates: Annotated[str, typer.Option(metavar="R[,R...]", help="Shares of the prompt to keep.")] = "0.1,0.2",
    prompts: Annotated[int, typer.Option(min=1, help="Most questions of each set.")] = 50,
    most_gold: Annotated[float, typer.Option(min=0.01, max=1, help="Leave out more evidence in a text.")] = 0.1,
    speculator_options: SpeculatorOptions = "{}",
    journal: Journal = None,
    json_file: JsonFile = None,
    plot_file: PlotFile = None,
) -> None:
    """How much of the evidence that people marked in your texts a selection keeps, with the speculator alone."""
    from cluster.commands.flags import read_options
    from evals.questions import kept as benchmark

    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    settings = benchmark.QuestionsSettings(
        speculator=located(str(speculator), Path.cwd()),
        questions=file,
        ways=tuple(way.strip() for way in ways.split(";")),
        keep_rates=tuple(numbers(keep_rates, "--keep-rates", 0.001, 1)),
        prompts=prompts,
        most_gold=most_gold,
        options=read_options(speculator_options, "--speculator-options"),
        journal=journal,
    )
    measure(benchmark, lambda report: benchmark.run(settings, report), json_file, plot_file)
