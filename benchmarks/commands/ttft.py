"""`skim bench ttft`."""

from typing import Annotated

import typer

from benchmarks.commands.lists import numbers
from benchmarks.commands.show import JsonFile, PlotFile, measure

LONGEST = 200_000


def ttft(
    lengths: Annotated[
        str, typer.Option(metavar="N[,N...]", help="Prompt lengths in tokens, measured at every keep rate.")
    ] = "1024,2048,4096,8192",
    keep_rates: Annotated[
        str, typer.Option(metavar="RATE[,RATE...]", help="Shares of the prompt that the speculator keeps.")
    ] = "0.1,0.2,0.3,0.5,1.0",
    short_lengths: Annotated[
        str, typer.Option(metavar="N[,N...]", help="Prompt lengths in tokens, measured with Skim's default options.")
    ] = "256,512,896",
    rounds: Annotated[int, typer.Option(min=1, help="Number of measured rounds, after one warm-up round.")] = 3,
    seed: Annotated[int, typer.Option(help="Seed of the weights and the prompts.")] = 0,
    json_file: JsonFile = None,
    plot_file: PlotFile = None,
) -> None:
    """Time to first token over HTTP: a stock vLLM server, Skim, and the lower limit of Skim's method."""
    from benchmarks import ttft as benchmark
    from benchmarks import ttft_results

    settings = benchmark.TtftSettings(
        lengths=tuple(map(int, numbers(lengths, "--lengths", 64, LONGEST))),
        keep_rates=tuple(numbers(keep_rates, "--keep-rates", 0.001, 1.0)),
        short_lengths=tuple(map(int, numbers(short_lengths, "--short-lengths", 64, LONGEST))),
        rounds=rounds,
        seed=seed,
    )
    measure(ttft_results, lambda tell: benchmark.run(settings, tell), json_file, plot_file)
