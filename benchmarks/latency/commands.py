"""`skim bench ttft`, `turns`, `overhead` and `forecast`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from benchmarks.commands.lists import numbers, values
from benchmarks.commands.output import Files, JsonFile, PlotFile, measure
from benchmarks.commands.pair_options import (
    AnswerTokens,
    Dtype,
    PairOrRandom,
    Speculator,
    Target,
)
from cluster.commands.flags import grouped, keep_rate_value
from skim_common.errors import SkimError
from skim_common.models.source import located

SHORTEST, LONGEST = 100, 200_000


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
    from benchmarks.latency import ttft as benchmark
    from benchmarks.latency import ttft_results

    settings = benchmark.TtftSettings(
        lengths=tuple(map(int, numbers(lengths, "--lengths", SHORTEST, LONGEST))),
        keep_rates=tuple(numbers(keep_rates, "--keep-rates", 0.001, 1.0)),
        short_lengths=tuple(map(int, numbers(short_lengths, "--short-lengths", SHORTEST, LONGEST))),
        rounds=rounds,
        seed=seed,
    )
    measure(ttft_results, lambda report: benchmark.run(settings, report), json_file, plot_file)


@dataclass(frozen=True)
class TurnsOptions:
    """A group of options (`cluster.commands.flags`)."""

    document_tokens: Annotated[
        int, typer.Option(min=1200, help="Length of the first prompt, in tokens of the demo pair.")
    ] = 8192
    turns: Annotated[int, typer.Option("--turns", min=1, max=20, help="Number of turns of a conversation.")] = 8
    rounds: Annotated[int, typer.Option(min=1, help="Number of conversations, after one warm-up.")] = 3
    keep_rate: Annotated[
        str, typer.Option(metavar="RATE|auto", help="Share of the prompt that the speculator keeps.")
    ] = "0.1"
    answer_tokens: AnswerTokens = 8
    modes: Annotated[
        str | None, typer.Option(metavar="MODE[,MODE...]", help="Measure only these modes; dense is always measured.")
    ] = None
    style: Annotated[
        Literal["plain", "instruct"],
        typer.Option(help="plain: the form of the demo pair. instruct: with an introduction, for other models."),
    ] = "plain"
    apart: Annotated[
        bool, typer.Option(help="Keep one system at a time in memory, for models that do not fit beside each other.")
    ] = False
    dtype: Dtype = "float32"
    seed: Annotated[int, typer.Option(help="Seed of the documents and questions.")] = 0


@grouped
def turns(pair: PairOrRandom, options: TurnsOptions, files: Files) -> None:
    """Time to first token of every turn of a conversation: Skim and a stock vLLM server with its prefix cache."""
    from benchmarks.latency import turns as benchmark
    from router.options.request import PREFILL, PrefillOptions

    chosen = tuple(benchmark.MODES) if options.modes is None else values(options.modes, str, "--modes")
    if wrong := [mode for mode in chosen if mode not in benchmark.MODES]:
        raise SkimError(f"--modes: {wrong[0]!r} is not a mode; choose from {', '.join(benchmark.MODES)}")
    rate = PREFILL.resolve(PrefillOptions(), None, {"keep_rate": keep_rate_value(options.keep_rate)}).keep_rate
    own = {**vars(options), "keep_rate": rate, "modes": chosen, "scripted": pair.target is None}
    settings = benchmark.TurnsSettings(**pair.names(), **own)
    measure(benchmark, lambda report: benchmark.run(settings, report), files.json_file, files.plot_file)


def overhead(
    target: Target = Path("demo_models/target"),
    speculator: Speculator = Path("demo_models/speculator"),
    prompt_tokens: Annotated[int, typer.Option(min=1200, help="Prompt length in tokens.")] = 2048,
    answer_tokens: Annotated[int, typer.Option(min=2, help="Number of tokens per answer.")] = 16,
    keep_rate: Annotated[float, typer.Option(help="Share of the prompt that the speculator keeps.")] = 0.2,
    requests: Annotated[
        int, typer.Option(min=2, help="Number of requests per table row, at least four times those that run together.")
    ] = 24,
    seed: Annotated[int, typer.Option(help="Seed of the first document.")] = 0,
    ray_llm: Annotated[bool, typer.Option(help="Also measure ray.serve.llm on dense prompts.")] = True,
    json_file: JsonFile = None,
    plot_file: PlotFile = None,
) -> None:
    """Latency that the router, Ray and the network add, compared with calling the engines in one process."""
    from benchmarks.latency import overhead as benchmark
    from benchmarks.latency import overhead_results

    settings = benchmark.OverheadSettings(
        target=located(str(target), Path.cwd()),
        speculator=located(str(speculator), Path.cwd()),
        prompt_tokens=prompt_tokens,
        answer_tokens=answer_tokens,
        keep_rate=keep_rate,
        requests=requests,
        seed=seed,
        ray_llm=ray_llm,
    )
    measure(overhead_results, lambda report: benchmark.run(settings, report), json_file, plot_file)


def forecast(
    target: Target = Path("demo_models/target"),
    speculator: Speculator = Path("demo_models/speculator"),
    read: Annotated[
        str, typer.Option(metavar="WAY[,WAY...]", help="How the speculator reads: windows, whole.")
    ] = "windows,whole",
    shapes: Annotated[
        str | None, typer.Option(metavar="SHAPE[,SHAPE...]", help="Measure only these shapes of prompts.")
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Number of prompts per shape and way of reading.")] = 4,
    dtype: Dtype = "float32",
    resume: Annotated[
        Path | None, typer.Option(metavar="FILE.jsonl", help="Keep each prompt's times here, and go on from them.")
    ] = None,
    json_file: JsonFile = None,
    plot_file: PlotFile = None,
) -> None:
    """The router's forecast of the first token, and its choice of the mode, over prompts of many shapes."""
    from benchmarks.latency import forecast as benchmark

    chosen = {
        option: tuple(known) if given is None else values(given, str, option)
        for option, given, known in (
            ("--shapes", shapes, benchmark.SHAPES),
            ("--read", read, ("windows", "whole")),
        )
    }
    for option, known in (("--shapes", benchmark.SHAPES), ("--read", ("windows", "whole"))):
        if wrong := [value for value in chosen[option] if value not in known]:
            raise SkimError(f"{option}: {wrong[0]!r} is not known; choose from {', '.join(known)}")
    settings = benchmark.ForecastSettings(
        target=located(str(target), Path.cwd()),
        speculator=located(str(speculator), Path.cwd()),
        read=chosen["--read"],
        shapes=chosen["--shapes"],
        rounds=rounds,
        dtype=dtype,
        resume=resume,
    )
    measure(benchmark, lambda report: benchmark.run(settings, report), json_file, plot_file)
