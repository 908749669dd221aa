"""`skim bench decode`."""

import os
from pathlib import Path
from typing import Annotated

import typer

from cluster.bench.show import JsonFile, PlotFile, measure


def decode(
    target: Annotated[Path, typer.Option(metavar="DIR", help="Model folder.")] = Path("demo_models/target"),
    speculator: Annotated[Path, typer.Option(metavar="DIR", help="Model folder.")] = Path("demo_models/speculator"),
    prompts: Annotated[int, typer.Option(min=1, help="Prompts per round and mode.")] = 16,
    batch: Annotated[int, typer.Option(min=1, help="Requests at a time.")] = 1,
    prompt_tokens: Annotated[int, typer.Option(min=256, help="Length of the prompts.")] = 2048,
    answer_tokens: Annotated[int, typer.Option(min=2, help="Tokens per answer.")] = 64,
    keep_rate: Annotated[float, typer.Option(help="Share of the prompt to keep.")] = 0.2,
    drafts: Annotated[int, typer.Option(min=1, max=16, help="Drafts per verification, K.")] = 4,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds that count.")] = 3,
    ignore_eos: Annotated[bool, typer.Option(help="Decode on past the end of the answer.")] = False,
    json_file: JsonFile = None,
    plot_file: PlotFile = None,
) -> None:
    """Tokens per second of decoding: plain, remote drafts, drafting ahead, and vLLM's draft_model."""
    from benchmarks import decode as benchmark

    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    settings = benchmark.Settings(
        target=str(target),
        speculator=str(speculator),
        prompts=prompts,
        batch=batch,
        prompt_tokens=prompt_tokens,
        answer_tokens=answer_tokens,
        keep_rate=keep_rate,
        drafts=drafts,
        rounds=rounds,
        ignore_eos=ignore_eos,
    )
    measure(benchmark, lambda tell: benchmark.run(settings, tell), json_file, plot_file)
