"""`skim bench scoring`."""

from typing import Annotated

import typer

from benchmarks.commands.show import JsonFile, PlotFile, measure


def scoring(
    repeats: Annotated[int, typer.Option(min=1, help="Number of times that each prompt length is scored alone.")] = 9,
    rounds: Annotated[int, typer.Option(min=1, help="Number of measured rounds of whole prompts.")] = 3,
    seed: Annotated[int, typer.Option(help="Seed of the weights and the prompts.")] = 0,
    json_file: JsonFile = None,
    plot_file: PlotFile = None,
) -> None:
    """Time and memory of scoring, compared with one read of the keys and with the speculator's prefill."""
    from benchmarks import scoring as benchmark

    settings = benchmark.ScoringSettings(repeats=repeats, rounds=rounds, seed=seed)
    measure(benchmark, lambda tell: benchmark.run(settings, tell), json_file, plot_file)
