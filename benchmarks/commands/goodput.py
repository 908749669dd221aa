"""`skim bench goodput`."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.commands.pair_options import KeepRate, SpeculatorOrRandom, TargetOrRandom, both_or_neither
from benchmarks.commands.show import JsonFile, PlotFile, measure
from kv_transfer.model_source import located


def goodput(
    target: TargetOrRandom = None,
    speculator: SpeculatorOrRandom = None,
    target_layers: Annotated[int, typer.Option(min=1, help="Number of layers of the default target.")] = 6,
    prompt_tokens: Annotated[int, typer.Option(min=1200, help="Prompt length in tokens.")] = 4096,
    answer_tokens: Annotated[int, typer.Option(min=1, help="Number of tokens per answer.")] = 4,
    keep_rate: KeepRate = 0.1,
    requests: Annotated[int, typer.Option(min=10, help="Smallest number of requests per request rate.")] = 24,
    points: Annotated[int, typer.Option(min=1, help="Number of request rates to try per server.")] = 3,
    objective: Annotated[
        float,
        typer.Option(help="Limit for the time to first token, as a multiple of that of an idle dense server."),
    ] = 2.0,
    minutes: Annotated[
        float, typer.Option(help="Time limit: a request rate is not tried if it would end after this.")
    ] = 7.0,
    seed: Annotated[int, typer.Option(help="Seed of the prompts and the arrival times.")] = 0,
    json_file: JsonFile = None,
    plot_file: PlotFile = None,
) -> None:
    """Requests per second within a limit for the time to first token: Skim and a stock vLLM server."""
    from benchmarks import goodput as benchmark
    from benchmarks.models import TARGET, bench_pair

    both_or_neither(target, speculator)
    pair = bench_pair(replace(TARGET, layers=target_layers)) if target is None else None
    settings = benchmark.GoodputSettings(
        target=str(pair.target) if pair else located(str(target), Path.cwd()),
        speculator=str(pair.speculator) if pair else located(str(speculator), Path.cwd()),
        prompt_tokens=prompt_tokens,
        answer_tokens=answer_tokens,
        keep_rate=keep_rate,
        requests=requests,
        points=points,
        objective=objective,
        minutes=minutes,
        seed=seed,
        shapes=f" (random weights, {pair.target_shape} and {pair.speculator_shape})" if pair else "",
    )
    measure(benchmark, lambda tell: benchmark.run(settings, tell), json_file, plot_file)
