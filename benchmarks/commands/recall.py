"""`skim bench recall`."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from benchmarks.commands.lists import values
from benchmarks.commands.pair_options import Engine, Speculator, SpeculatorOptions, Target, TargetOptions
from benchmarks.commands.show import JsonFile, PlotFile, measure
from kv_transfer.model_source import located


def recall(
    target: Target = Path("demo_models/target"),
    speculator: Speculator = Path("demo_models/speculator"),
    tasks: Annotated[
        str, typer.Option(metavar="TASK[,TASK...]", help="record, two_hop, summarise_then_quote.")
    ] = "record",
    keep_rate: Annotated[float, typer.Option(min=0.01, max=1, help="Share of the prompt to keep.")] = 0.03,
    prompt_tokens: Annotated[int, typer.Option(min=600, help="Prompt length in tokens.")] = 1500,
    samples: Annotated[int, typer.Option(min=1, help="Number of prompts per task.")] = 48,
    seed: Annotated[int, typer.Option(help="Seed of the prompts.")] = 0,
    max_tokens: Annotated[int, typer.Option(min=8, help="Largest number of tokens per answer.")] = 112,
    trigger: Annotated[
        Literal["rejection", "interval"], typer.Option(help="When the prompt is scored again.")
    ] = "rejection",
    engine: Engine = "vllm",
    concurrency: Annotated[int, typer.Option(min=1, help="Number of prompts that run at the same time.")] = 4,
    target_options: TargetOptions = "{}",
    speculator_options: SpeculatorOptions = "{}",
    json_file: JsonFile = None,
    plot_file: PlotFile = None,
) -> None:
    """Recall in mid-answer: are dropped chunks found and used when they are added while the target answers?"""
    from cluster.commands.tools import read_options
    from evals.mid_answer import measure as benchmark
    from evals.mid_answer import results

    settings = benchmark.RecallSettings(
        target=located(str(target), Path.cwd()),
        speculator=located(str(speculator), Path.cwd()),
        tasks=values(tasks, str, "--tasks"),
        keep_rate=keep_rate,
        prompt_tokens=prompt_tokens,
        samples=samples,
        seed=seed,
        max_tokens=max_tokens,
        trigger=trigger,
        engine=engine,
        concurrency=concurrency,
        target_options=read_options(target_options, "--target-options"),
        speculator_options=read_options(speculator_options, "--speculator-options"),
    )
    measure(results, lambda tell: benchmark.run(settings, tell), json_file, plot_file)
