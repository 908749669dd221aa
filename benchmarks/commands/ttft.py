"""`skim bench ttft`."""

from typing import Annotated

import typer

from benchmarks.commands.show import JsonFile, PlotFile, measure
from kv_transfer.errors import SkimError


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

    settings = benchmark.TtftSettings(
        lengths=tuple(map(int, _numbers(lengths, "--lengths", 64))),
        keep_rates=tuple(_numbers(keep_rates, "--keep-rates", 0.001, 1.0)),
        short_lengths=tuple(map(int, _numbers(short_lengths, "--short-lengths", 64))),
        rounds=rounds,
        seed=seed,
    )
    measure(benchmark, lambda tell: benchmark.run(settings, tell), json_file, plot_file)


def _numbers(text: str, option: str, lowest: float, highest: float = 200_000) -> list[float]:
    """The different numbers of a comma-separated list, in ascending order. Raises SkimError."""
    try:
        numbers = sorted({float(word) for word in text.split(",")})
    except ValueError:
        raise SkimError(f"{option} takes numbers with commas between them, not {text!r}") from None
    if not lowest <= numbers[0] or not numbers[-1] <= highest:
        raise SkimError(f"{option} takes numbers from {lowest:g} to {highest:g}, not {text!r}")
    return numbers
