"""`skim bench refusals`."""

from pathlib import Path
from typing import Annotated

import typer

from benchmarks.commands.lists import values
from benchmarks.commands.pair_options import Speculator, Target
from benchmarks.commands.show import JsonFile, PlotFile, measure
from kv_transfer.errors import SkimError
from kv_transfer.model_source import located


def refusals(
    target: Target = Path("demo_models/target"),
    speculator: Speculator = Path("demo_models/speculator"),
    prefill_ms: Annotated[
        float, typer.Option(min=1, help="Time of a prompt in the target, which has one at a time.")
    ] = 100.0,
    max_wait_s: Annotated[float, typer.Option(min=0.1, help="The router's max_wait_s.")] = 2.0,
    loads: Annotated[str, typer.Option(help="Multiples of the sustainable rate.")] = "1,2,3",
    seconds: Annotated[float, typer.Option(min=1, help="Time of each load.")] = 30.0,
    seed: Annotated[int, typer.Option(help="Seed of the arrival times.")] = 0,
    json_file: JsonFile = None,
    plot_file: PlotFile = None,
) -> None:
    """Requests served and refused under too much load, over HTTP, with engines that run no model."""
    from benchmarks import refusals as benchmark

    multiples = values(loads, float, "--loads")
    if not multiples or min(multiples) <= 0:
        raise SkimError(f"--loads takes numbers over 0, such as 1,2,3, not {loads!r}")
    settings = benchmark.RefusalSettings(
        target=located(str(target), Path.cwd()),
        speculator=located(str(speculator), Path.cwd()),
        prefill_ms=prefill_ms,
        max_wait_s=max_wait_s,
        loads=multiples,
        seconds=seconds,
        seed=seed,
    )
    measure(benchmark, lambda tell: benchmark.run(settings, tell), json_file, plot_file)
