"""`skim bench ttft`."""

from typing import Annotated

import typer

from benchmarks.commands.show import JsonFile, PlotFile, measure
from kv_transfer.errors import SkimError


def ttft(
    lengths: Annotated[str, typer.Option(help="Prompt lengths, for example 1024,16384.")] = "1024,2048,4096,8192",
    keep_rates: Annotated[str, typer.Option(help="Shares of the prompt to keep.")] = "0.1,0.2,0.3,0.5,1.0",
    short_lengths: Annotated[str, typer.Option(help="Prompt lengths asked with default settings.")] = "256,512,896",
    rounds: Annotated[int, typer.Option(min=1, help="Rounds that count.")] = 3,
    seed: Annotated[int, typer.Option(help="Of the weights and of the prompts.")] = 0,
    json_file: JsonFile = None,
    plot_file: PlotFile = None,
) -> None:
    """Time to first token over HTTP: a stock vLLM server, Skim, and the two forwards that Skim cannot do without."""
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
    """The numbers of a comma-separated list, ascending, none twice."""
    try:
        numbers = sorted({float(word) for word in text.split(",")})
    except ValueError:
        raise SkimError(f"{option} takes numbers with commas between them, not {text!r}") from None
    if not lowest <= numbers[0] or not numbers[-1] <= highest:
        raise SkimError(f"{option} takes numbers from {lowest:g} to {highest:g}, not {text!r}")
    return numbers
