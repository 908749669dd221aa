"""`skim bench replay`."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.commands.output import JsonFile, PlotFile, measure
from benchmarks.commands.pair_options import (
    Dtype,
    KeepRate,
    ScoreQueries,
    SpeculatorOrRandom,
    TargetOrRandom,
    both_or_neither,
)
from skim_common.models.source import located


def replay(
    trace: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Trace in Mooncake's format. The default is the bundled cut of one."),
    ] = None,
    target: TargetOrRandom = None,
    speculator: SpeculatorOrRandom = None,
    target_layers: Annotated[int, typer.Option(min=1, help="Number of layers of the default target.")] = 6,
    requests: Annotated[int, typer.Option(min=1, help="Number of requests of the trace, in whole conversations.")] = 48,
    longest: Annotated[int, typer.Option(min=256, help="Conversations with longer prompts are left out.")] = 8192,
    block_tokens: Annotated[
        int, typer.Option(min=1, max=512, help="Tokens for each block of 512 tokens of the trace.")
    ] = 128,
    seconds: Annotated[float, typer.Option(min=1, help="Time until the last request arrives.")] = 80.0,
    keep_rate: KeepRate = 0.2,
    score_queries: ScoreQueries = "look_ahead",
    answer_tokens: Annotated[int, typer.Option(min=1, help="Largest number of tokens per answer.")] = 8,
    kv_tokens: Annotated[
        int | None, typer.Option(min=512, help="Tokens that the KV cache of the stock server holds.")
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Number of replays of each system.")] = 2,
    dtype: Dtype = "float32",
    seed: Annotated[int, typer.Option(help="Seed of the choice of conversations.")] = 0,
    json_file: JsonFile = None,
    plot_file: PlotFile = None,
) -> None:
    """Time to first token under a trace of real traffic: Skim and a stock vLLM server in the same KV memory."""
    from benchmarks.harness.models import TARGET, bench_pair
    from benchmarks.replay import replay as benchmark
    from benchmarks.replay.trace import CONVERSATION

    both_or_neither(target, speculator)
    pair = bench_pair(replace(TARGET, layers=target_layers)) if target is None else None
    models = (pair.target, pair.speculator) if pair else (target, speculator)
    names = [located(str(model), Path.cwd()) for model in models]
    settings = benchmark.ReplaySettings(
        trace=str(trace or CONVERSATION),
        target=names[0],
        speculator=names[1],
        requests=requests,
        longest=longest,
        block_tokens=block_tokens,
        seconds=seconds,
        keep_rate=keep_rate,
        score_queries=score_queries,
        answer_tokens=answer_tokens,
        kv_tokens=kv_tokens,
        rounds=rounds,
        dtype=dtype,
        seed=seed,
        shapes=f" (random weights, {pair.target_shape} and {pair.speculator_shape})" if pair else "",
    )
    measure(benchmark, lambda report: benchmark.run(settings, report), json_file, plot_file)
