"""`skim bench scale`."""

from pathlib import Path
from typing import Annotated

import typer

from benchmarks.commands.output import JsonFile, PlotFile, measure
from skim_common.errors import SkimError
from skim_common.models.source import located


def scale(
    target: Annotated[
        Path,
        typer.Option(metavar="MODEL", help="Target: a folder, or owner/name@revision. Its weights are not loaded."),
    ] = Path("demo_models/target"),
    speculator: Annotated[
        Path,
        typer.Option(metavar="MODEL", help="Speculator: a folder, or owner/name@revision. Its weights are not loaded."),
    ] = Path("demo_models/speculator"),
    routers: Annotated[int, typer.Option(min=1, help="Number of router replicas.")] = 1,
    speculators: Annotated[int, typer.Option(min=1, help="Largest number of speculator replicas.")] = 4,
    targets: Annotated[int, typer.Option(min=1, help="Largest number of target replicas.")] = 3,
    fixed: Annotated[bool, typer.Option("--fixed", help="Both pools always have their largest number.")] = False,
    policy: Annotated[str, typer.Option(metavar="work|requests", help="Autoscaling policy of both pools.")] = "work",
    rate: Annotated[float, typer.Option(min=0.1, help="Requests per second during the step.")] = 2.0,
    step: Annotated[float, typer.Option(min=10, help="Length of the step in seconds.")] = 75.0,
    speculator_seconds: Annotated[
        float, typer.Option(min=0.01, help="Seconds that each request takes on a speculator.")
    ] = 2.0,
    target_seconds: Annotated[float, typer.Option(min=0.01, help="Seconds that each request takes on a target.")] = 1.0,
    drain: Annotated[
        float, typer.Option(min=0.1, help="Seconds of work per replica that autoscaling aims at (drain_s).")
    ] = 3.0,
    documents: Annotated[
        int, typer.Option(min=0, help="Requests ask about so many shared documents; 0: every prompt is another one.")
    ] = 0,
    affinity: Annotated[bool, typer.Option(help="Prompts with the same prefix prefer the same replicas.")] = True,
    seed: Annotated[int, typer.Option(help="Seed of the prompts and the arrival times.")] = 0,
    json_file: JsonFile = None,
    plot_file: PlotFile = None,
) -> None:
    """Autoscaling under a step of the load, with engines that run no model."""
    from benchmarks.scaling import scale as benchmark

    if policy not in ("work", "requests"):
        raise SkimError(f"--policy: {policy!r} is not a policy; choose from work, requests")
    settings = benchmark.ScaleSettings(
        target=located(str(target), Path.cwd()),
        speculator=located(str(speculator), Path.cwd()),
        policy=policy,
        rate=rate,
        step_s=step,
        speculator_s=speculator_seconds,
        target_s=target_seconds,
        drain_s=drain,
        seed=seed,
        documents=documents,
        affinity=affinity,
        routers=routers,
        speculators=speculators,
        targets=targets,
        fixed=fixed,
    )
    measure(benchmark, lambda report: benchmark.run(settings, report), json_file, plot_file)
