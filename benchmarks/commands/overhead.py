"""`skim bench overhead`."""

from pathlib import Path
from typing import Annotated

import typer

from benchmarks.commands.pair_options import Speculator, Target
from benchmarks.commands.show import JsonFile, PlotFile, measure
from kv_transfer.model_source import located


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
    from benchmarks import overhead as benchmark
    from benchmarks import overhead_results

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
    measure(overhead_results, lambda tell: benchmark.run(settings, tell), json_file, plot_file)
