"""`skim bench hostile`."""

from pathlib import Path
from typing import Annotated

import typer

from benchmarks.commands.pair_options import Speculator, Target
from benchmarks.commands.show import JsonFile, PlotFile, measure
from kv_transfer.model_source import located


def hostile(
    target: Target = Path("demo_models/target"),
    speculator: Speculator = Path("demo_models/speculator"),
    clients: Annotated[int, typer.Option(min=1, help="Well-behaved clients.")] = 4,
    seconds: Annotated[float, typer.Option(min=0.5, help="Time without and with hostile clients, each.")] = 4.0,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds, in each of which every kind takes its turn.")] = 4,
    seed: Annotated[int, typer.Option(help="Seed of the first document.")] = 0,
    json_file: JsonFile = None,
    plot_file: PlotFile = None,
) -> None:
    """Time to first token while other clients harm the server, with engines that run no model."""
    from benchmarks import hostile as benchmark

    settings = benchmark.HostileSettings(
        target=located(str(target), Path.cwd()),
        speculator=located(str(speculator), Path.cwd()),
        clients=clients,
        seconds=seconds,
        rounds=rounds,
        seed=seed,
    )
    measure(benchmark, lambda tell: benchmark.run(settings, tell), json_file, plot_file)
