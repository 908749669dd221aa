"""`skim bench turns`."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from benchmarks.commands.lists import values
from benchmarks.commands.pair_options import (
    AnswerTokens,
    Dtype,
    KeepRate,
    ScoreQueries,
    SpeculatorOrRandom,
    TargetOrRandom,
    both_or_neither,
)
from benchmarks.commands.show import JsonFile, PlotFile, measure
from kv_transfer.errors import SkimError
from kv_transfer.model_source import located


def turns(
    target: TargetOrRandom = None,
    speculator: SpeculatorOrRandom = None,
    document_tokens: Annotated[
        int, typer.Option(min=1200, help="Length of the first prompt, in tokens of the demo pair.")
    ] = 8192,
    conversation_turns: Annotated[
        int, typer.Option("--turns", min=1, max=20, help="Number of turns of a conversation.")
    ] = 8,
    rounds: Annotated[int, typer.Option(min=1, help="Number of conversations, after one warm-up.")] = 3,
    keep_rate: KeepRate = 0.1,
    score_queries: ScoreQueries = "look_ahead",
    answer_tokens: AnswerTokens = 8,
    modes: Annotated[
        str | None, typer.Option(metavar="MODE[,MODE...]", help="Measure only these modes; dense is always measured.")
    ] = None,
    style: Annotated[
        Literal["plain", "instruct"],
        typer.Option(help="plain: the form of the demo pair. instruct: with an introduction, for other models."),
    ] = "plain",
    apart: Annotated[
        bool, typer.Option(help="Keep one system at a time in memory, for models that do not fit beside each other.")
    ] = False,
    dtype: Dtype = "float32",
    seed: Annotated[int, typer.Option(help="Seed of the documents and questions.")] = 0,
    json_file: JsonFile = None,
    plot_file: PlotFile = None,
) -> None:
    """Time to first token of every turn of a conversation: Skim and a stock vLLM server with its prefix cache."""
    from benchmarks import turns as benchmark
    from benchmarks.models import bench_pair

    both_or_neither(target, speculator)
    pair = bench_pair() if target is None else None
    chosen = tuple(benchmark.MODES) if modes is None else values(modes, str, "--modes")
    if wrong := [mode for mode in chosen if mode not in benchmark.MODES]:
        raise SkimError(f"--modes: {wrong[0]!r} is not a mode; choose from {', '.join(benchmark.MODES)}")
    settings = benchmark.TurnsSettings(
        target=str(pair.target) if pair else located(str(target), Path.cwd()),
        speculator=str(pair.speculator) if pair else located(str(speculator), Path.cwd()),
        document_tokens=document_tokens,
        turns=conversation_turns,
        rounds=rounds,
        keep_rate=keep_rate,
        score_queries=score_queries,
        answer_tokens=answer_tokens,
        modes=chosen,
        style=style,
        scripted=pair is not None,
        apart=apart,
        dtype=dtype,
        seed=seed,
        shapes=f" (random weights, {pair.target_shape} and {pair.speculator_shape})" if pair else "",
    )
    measure(benchmark, lambda tell: benchmark.run(settings, tell), json_file, plot_file)
