"""`skim bench replay`."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

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
from skim_common.errors import SkimError
from skim_common.models.source import located


def replay(
    trace: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Trace in Mooncake's format. The default is the bundled cut of one."),
    ] = None,
    engine: Annotated[
        Literal["vllm", "mock"],
        typer.Option(help="vllm: real engines. mock: a simulation at the costs of a large pair."),
    ] = "vllm",
    target: TargetOrRandom = None,
    speculator: SpeculatorOrRandom = None,
    target_layers: Annotated[int, typer.Option(min=1, help="Number of layers of the default target.")] = 6,
    profile: Annotated[str, typer.Option(metavar="PAIR", help="Costs of mock engines: 70b+8b or 70b+1b.")] = "70b+8b",
    requests: Annotated[int, typer.Option(min=1, help="Number of requests of the trace, in whole conversations.")] = 48,
    copies: Annotated[int, typer.Option(min=1, help="Replay as many copies of them at once, which share nothing.")] = 1,
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
    rounds: Annotated[int, typer.Option(min=1, help="Number of replays of each system, with real engines.")] = 2,
    replicas: Annotated[
        int, typer.Option(min=1, help="Replicas of each pool, and stock servers, with mock engines.")
    ] = 1,
    dtype: Dtype = "float32",
    seed: Annotated[int, typer.Option(help="Seed of the choice of conversations.")] = 0,
    json_file: JsonFile = None,
    plot_file: PlotFile = None,
) -> None:
    """Time to first token under a trace of real traffic: Skim and a stock vLLM server in the same KV memory."""
    from benchmarks.harness.models import TARGET, bench_pair
    from benchmarks.replay import replay as benchmark
    from benchmarks.replay.cost_profiles import PROFILES
    from benchmarks.replay.trace import CONVERSATION

    both_or_neither(target, speculator)
    if replicas > 1 and engine != "mock":
        raise SkimError("--replicas: only the simulation has several replicas; add --engine mock")
    if profile not in PROFILES:
        raise SkimError(f"--profile: {profile!r} is not a profile; choose from {', '.join(PROFILES)}")
    pair = bench_pair(replace(TARGET, layers=target_layers)) if target is None and engine == "vllm" else None
    models = (pair.target, pair.speculator) if pair else (target, speculator)
    names = [located(str(model), Path.cwd()) if model and engine == "vllm" else "" for model in models]
    settings = benchmark.ReplaySettings(
        trace=str(trace or CONVERSATION),
        engine=engine,
        target=names[0],
        speculator=names[1],
        profile=profile,
        requests=requests,
        copies=copies,
        longest=longest,
        block_tokens=block_tokens,
        seconds=seconds,
        keep_rate=keep_rate,
        score_queries=score_queries,
        answer_tokens=answer_tokens,
        kv_tokens=kv_tokens,
        rounds=rounds,
        replicas=replicas,
        dtype=dtype,
        seed=seed,
        shapes=f" (random weights, {pair.target_shape} and {pair.speculator_shape})" if pair else "",
    )
    measure(benchmark, lambda report: benchmark.run(settings, report), json_file, plot_file)


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
    from benchmarks.replay import overload as benchmark

    settings = benchmark.OverloadSettings(
        prompt_tokens=prompt_tokens,
        answer_tokens=answer_tokens,
        keep_rate=keep_rate,
        deadline_s=deadline_s,
        seconds=seconds,
        replicas=replicas,
        seed=seed,
    )
    measure(benchmark, lambda report: benchmark.run(settings, report), json_file, plot_file)
