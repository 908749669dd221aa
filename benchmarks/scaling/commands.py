"""`skim bench scale`."""

from dataclasses import dataclass
from typing import Annotated

import typer

from benchmarks.commands.output import Files, measure
from benchmarks.commands.pair_options import DemoPair
from cluster.commands.flags import grouped


@dataclass(frozen=True)
class ScaleOptions:
    """A group of options (`cluster.commands.flags`)."""

    routers: Annotated[int, typer.Option(min=1, help="Number of router replicas.")] = 1
    speculators: Annotated[int, typer.Option(min=1, help="Largest number of speculator replicas.")] = 4
    targets: Annotated[int, typer.Option(min=1, help="Largest number of target replicas.")] = 3
    fixed: Annotated[bool, typer.Option("--fixed", help="Both pools always have their largest number.")] = False
    rate: Annotated[float, typer.Option(min=0.1, help="Requests per second during the step.")] = 2.0
    step_s: Annotated[float, typer.Option("--step", min=10, help="Length of the step in seconds.")] = 75.0
    speculator_s: Annotated[
        float, typer.Option("--speculator-seconds", min=0.01, help="Seconds that each request takes on a speculator.")
    ] = 2.0
    target_s: Annotated[
        float, typer.Option("--target-seconds", min=0.01, help="Seconds that each request takes on a target.")
    ] = 1.0
    documents: Annotated[
        int, typer.Option(min=0, help="Requests ask about so many shared documents; 0: every prompt is another one.")
    ] = 0
    affinity: Annotated[bool, typer.Option(help="Prompts with the same prefix prefer the same replicas.")] = True
    seed: Annotated[int, typer.Option(help="Seed of the prompts and the arrival times.")] = 0


@grouped
def scale(pair: DemoPair, options: ScaleOptions, files: Files) -> None:
    """Autoscaling under a step of the load, with engines that run no model."""
    from benchmarks.scaling import scale as benchmark

    settings = benchmark.ScaleSettings(**pair.names, **vars(options))
    measure(benchmark, lambda report: benchmark.run(settings, report), files.json_file, files.plot_file)
