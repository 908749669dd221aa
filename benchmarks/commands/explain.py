"""`skim bench explain`."""

import os
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.commands.lists import lengths
from benchmarks.commands.pair_options import Engine, KeepRate, Speculator, Target
from benchmarks.commands.show import JsonFile, PlotFile, measure
from kv_transfer.model_source import located


def explain(
    target: Target = Path("demo_models/target"),
    speculator: Speculator = Path("demo_models/speculator"),
    engine: Engine = "vllm",
    prompt_tokens: Annotated[str, typer.Option(metavar="N[,N...]", help="Prompt lengths in tokens.")] = "4096,16384",
    rounds: Annotated[int, typer.Option(min=1, help="Number of prompts per length.")] = 5,
    keep_rate: KeepRate = 0.2,
    json_file: JsonFile = None,
    plot_file: PlotFile = None,
) -> None:
    """What the explain view adds to the time to first token."""
    from benchmarks import explain as benchmark

    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
    settings = benchmark.ExplainSettings(
        target=located(str(target), Path.cwd()),
        speculator=located(str(speculator), Path.cwd()),
        engine=engine,
        prompt_tokens=lengths(prompt_tokens),
        rounds=rounds,
        keep_rate=keep_rate,
    )
    measure(benchmark, lambda tell: benchmark.run(settings, tell), json_file, plot_file)
