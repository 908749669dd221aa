"""`skim bench scale`."""

from pathlib import Path
from typing import Annotated

import typer

from benchmarks.commands.show import JsonFile, PlotFile, measure
from kv_transfer.errors import SkimError


def scale(
    target: Annotated[Path, typer.Option(metavar="DIR", help="Its tokenizer is used.")] = Path("demo_models/target"),
    speculator: Annotated[Path, typer.Option(metavar="DIR", help="Likewise.")] = Path("demo_models/speculator"),
    policy: Annotated[str, typer.Option(metavar="work|requests", help="What the pools are sized by.")] = "work",
    rate: Annotated[float, typer.Option(min=0.1, help="Requests per second during the step.")] = 2.0,
    step: Annotated[float, typer.Option(min=10, help="How long the step lasts, in seconds.")] = 75.0,
    speculator_seconds: Annotated[float, typer.Option(min=0.01, help="What a request takes there.")] = 2.0,
    target_seconds: Annotated[float, typer.Option(min=0.01, help="What a request takes there.")] = 1.0,
    drain: Annotated[float, typer.Option(min=0.1, help="Seconds of work per replica, the objective.")] = 3.0,
    seed: Annotated[int, typer.Option(help="Of prompts and arrivals.")] = 0,
    json_file: JsonFile = None,
    plot_file: PlotFile = None,
) -> None:
    """Replicas, waiting requests and time to first token under a step of the load; engines without a model."""
    from benchmarks import scale as benchmark

    if policy not in ("work", "requests"):
        raise SkimError(f"--policy: {policy!r} is not a policy; there are work, requests")
    settings = benchmark.ScaleSettings(
        target=str(target.absolute()),
        speculator=str(speculator.absolute()),
        policy=policy,
        rate=rate,
        step_s=step,
        speculator_s=speculator_seconds,
        target_s=target_seconds,
        drain_s=drain,
        seed=seed,
    )
    measure(benchmark, lambda tell: benchmark.run(settings, tell), json_file, plot_file)
