"""`skim bench overload`."""

from typing import Annotated

import typer

from benchmarks.commands.pair_options import KeepRate
from benchmarks.commands.show import JsonFile, PlotFile, measure


def overload(
    prompt_tokens: Annotated[int, typer.Option(min=1200, help="Median prompt length in tokens.")] = 6000,
    answer_tokens: Annotated[int, typer.Option(min=1, help="Number of tokens per answer.")] = 32,
    keep_rate: KeepRate = 0.2,
    deadline_s: Annotated[float, typer.Option(min=0.1, help="Deadline of each request, in seconds.")] = 5.0,
    seconds: Annotated[float, typer.Option(min=1, help="Virtual time of each request rate.")] = 30.0,
    replicas: Annotated[int, typer.Option(min=1, help="Replicas of each pool.")] = 2,
    seed: Annotated[int, typer.Option(help="Seed of the prompts and the arrival times.")] = 0,
    json_file: JsonFile = None,
    plot_file: PlotFile = None,
) -> None:
    """Answers before their deadline under too much load, with admission and without it (mock engines, virtual time)."""
    from benchmarks import overload as benchmark

    settings = benchmark.OverloadSettings(
        prompt_tokens=prompt_tokens,
        answer_tokens=answer_tokens,
        keep_rate=keep_rate,
        deadline_s=deadline_s,
        seconds=seconds,
        replicas=replicas,
        seed=seed,
    )
    measure(benchmark, lambda tell: benchmark.run(settings, tell), json_file, plot_file)
