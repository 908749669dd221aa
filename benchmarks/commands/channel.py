"""`skim bench channel`."""

from typing import Annotated

import typer

from benchmarks.commands.show import JsonFile, PlotFile, measure


def channel(
    rounds: Annotated[int, typer.Option(min=10, help="Number of exchanges in each case.")] = 1000,
    json_file: JsonFile = None,
    plot_file: PlotFile = None,
) -> None:
    """Latency of one exchange of drafts on loopback, compared with an empty gRPC call and with bare TCP."""
    from benchmarks import channel as benchmark

    measure(benchmark, lambda tell: benchmark.run(rounds=rounds, progress=tell), json_file, plot_file)
