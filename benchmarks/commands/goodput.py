"""`skim bench goodput`."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.commands.show import JsonFile, PlotFile, measure
from kv_transfer.errors import SkimError


def goodput(
    target: Annotated[Path | None, typer.Option(metavar="DIR", help="Model folder; default: the bench pair.")] = None,
    speculator: Annotated[Path | None, typer.Option(metavar="DIR", help="Model folder.")] = None,
    target_layers: Annotated[int, typer.Option(min=1, help="Depth of the bench pair's target.")] = 6,
    prompt_tokens: Annotated[int, typer.Option(min=1200, help="Length of the prompts.")] = 4096,
    answer_tokens: Annotated[int, typer.Option(min=1, help="Tokens per answer.")] = 4,
    keep_rate: Annotated[float, typer.Option(help="Share of the prompt to keep.")] = 0.1,
    requests: Annotated[int, typer.Option(min=10, help="Requests per point, at least.")] = 24,
    points: Annotated[int, typer.Option(min=1, help="Rates tried per server.")] = 3,
    objective: Annotated[float, typer.Option(help="Time to first token, x an idle dense server's.")] = 2.0,
    minutes: Annotated[float, typer.Option(help="No point begins that would end later.")] = 7.0,
    seed: Annotated[int, typer.Option(help="Of prompts and arrivals.")] = 0,
    json_file: JsonFile = None,
    plot_file: PlotFile = None,
) -> None:
    """Requests per second that meet a time to first token, Poisson arrivals, beside a stock vLLM server."""
    from benchmarks import goodput as benchmark
    from benchmarks.models import TARGET, bench_pair

    if (target is None) != (speculator is None):
        raise SkimError("give both --target and --speculator, or neither for the bench pair")
    pair = bench_pair(replace(TARGET, layers=target_layers)) if target is None else None
    settings = benchmark.GoodputSettings(
        target=str(pair.target if pair else target),
        speculator=str(pair.speculator if pair else speculator),
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
