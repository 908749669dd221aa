"""`skim bench overhead`."""

from pathlib import Path
from typing import Annotated

import typer

from benchmarks.commands.show import JsonFile, PlotFile, measure


def overhead(
    target: Annotated[Path, typer.Option(metavar="DIR", help="Model folder.")] = Path("demo_models/target"),
    speculator: Annotated[Path, typer.Option(metavar="DIR", help="Model folder.")] = Path("demo_models/speculator"),
    prompt_tokens: Annotated[int, typer.Option(min=1200, help="Length of the prompts.")] = 2048,
    answer_tokens: Annotated[int, typer.Option(min=2, help="Tokens per answer.")] = 16,
    keep_rate: Annotated[float, typer.Option(help="Share of the prompt to keep.")] = 0.2,
    requests: Annotated[int, typer.Option(min=2, help="Requests per row and way, at least two waves.")] = 24,
    seed: Annotated[int, typer.Option(help="The first document's seed.")] = 0,
    ray_llm: Annotated[bool, typer.Option(help="With ray.serve.llm as a second baseline.")] = True,
    json_file: JsonFile = None,
    plot_file: PlotFile = None,
) -> None:
    """What the router, Ray and the wire add to one request, against calling the engines in-process."""
    from benchmarks import overhead as benchmark

    settings = benchmark.OverheadSettings(
        target=str(target.absolute()),
        speculator=str(speculator.absolute()),
        prompt_tokens=prompt_tokens,
        answer_tokens=answer_tokens,
        keep_rate=keep_rate,
        requests=requests,
        seed=seed,
        ray_llm=ray_llm,
    )
    measure(benchmark, lambda tell: benchmark.run(settings, tell), json_file, plot_file)
