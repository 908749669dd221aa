"""`skim bench cpu`."""

from pathlib import Path
from typing import Annotated

import typer

from benchmarks.commands.lists import values
from benchmarks.commands.pair_options import Speculator, Target
from benchmarks.commands.show import JsonFile, PlotFile, measure
from kv_transfer.errors import SkimError
from kv_transfer.model_source import located


def cpu(
    target: Target = Path("demo_models/target"),
    speculator: Speculator = Path("demo_models/speculator"),
    prompt_tokens: Annotated[int, typer.Option(min=1200, help="Length of the first prompt in tokens.")] = 2048,
    answer_tokens: Annotated[int, typer.Option(min=2, help="Number of tokens per answer.")] = 16,
    keep_rate: Annotated[float, typer.Option(help="Share of the prompt that the speculator keeps.")] = 0.2,
    requests: Annotated[int, typer.Option(min=2, help="Number of requests per table row.")] = 256,
    turns: Annotated[int, typer.Option(min=1, help="Requests of one conversation, each continuing the last.")] = 1,
    at_once: Annotated[str, typer.Option(help="Numbers of requests that run at the same time.")] = "1,32",
    routers: Annotated[str, typer.Option(help="Numbers of router replicas.")] = "1,2",
    seed: Annotated[int, typer.Option(help="Seed of the first document.")] = 0,
    json_file: JsonFile = None,
    plot_file: PlotFile = None,
) -> None:
    """CPU time of a chat request by process, with engines that run no model."""
    from benchmarks import cpu as benchmark

    settings = benchmark.CpuSettings(
        target=located(str(target), Path.cwd()),
        speculator=located(str(speculator), Path.cwd()),
        prompt_tokens=prompt_tokens,
        answer_tokens=answer_tokens,
        keep_rate=keep_rate,
        requests=requests,
        turns=turns,
        at_once=_positive(at_once, "--at-once"),
        routers=_positive(routers, "--routers"),
        seed=seed,
    )
    measure(benchmark, lambda tell: benchmark.run(settings, tell), json_file, plot_file)


def _positive(text: str, option: str) -> tuple[int, ...]:
    found = values(text, int, option)
    if not found or min(found) < 1:
        raise SkimError(f"{option} takes whole numbers of at least 1, such as 1,32, not {text!r}")
    return found
