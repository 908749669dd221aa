"""`skim bench channel`."""

from typing import Annotated

import typer

from benchmarks.commands.show import JsonFile, PlotFile, measure


def channel(
    rounds: Annotated[int, typer.Option(min=10, help="Exchanges per case.")] = 1000,
    json_file: JsonFile = None,
    plot_file: PlotFile = None,
) -> None:
    """What one exchange of drafts costs on loopback, beside an empty gRPC call and bare TCP."""
    from benchmarks import channel as benchmark

    measure(benchmark, lambda tell: benchmark.run(rounds=rounds, progress=tell), json_file, plot_file)
