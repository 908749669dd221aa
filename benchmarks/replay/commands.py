"""`skim bench replay`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.commands.output import Files, measure
from benchmarks.commands.pair_options import (
    Dtype,
    KeepRate,
    PairOrRandom,
)
from cluster.commands.flags import grouped


@dataclass(frozen=True)
class ReplayOptions:
    """A group of options (`cluster.commands.flags`)."""

    trace: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Trace in Mooncake's format. The default is the bundled cut of one."),
    ] = None
    target_layers: Annotated[int, typer.Option(min=1, help="Number of layers of the default target.")] = 6
    requests: Annotated[int, typer.Option(min=1, help="Number of requests of the trace, in whole conversations.")] = 48
    longest: Annotated[int, typer.Option(min=256, help="Conversations with longer prompts are left out.")] = 8192
    block_tokens: Annotated[
        int, typer.Option(min=1, max=512, help="Tokens for each block of 512 tokens of the trace.")
    ] = 128
    seconds: Annotated[float, typer.Option(min=1, help="Time until the last request arrives.")] = 80.0
    keep_rate: KeepRate = 0.2
    answer_tokens: Annotated[int, typer.Option(min=1, help="Largest number of tokens per answer.")] = 8
    kv_tokens: Annotated[
        int | None, typer.Option(min=512, help="Tokens that the KV cache of the stock server holds.")
    ] = None
    rounds: Annotated[int, typer.Option(min=1, help="Number of replays of each system.")] = 2
    dtype: Dtype = "float32"
    seed: Annotated[int, typer.Option(help="Seed of the choice of conversations.")] = 0


@grouped
def replay(pair: PairOrRandom, options: ReplayOptions, files: Files) -> None:
    """Time to first token under a trace of real traffic: Skim and a stock vLLM server in the same KV memory."""
    from benchmarks.replay import replay as benchmark
    from benchmarks.replay.trace import CONVERSATION

    own = {**vars(options), "trace": str(options.trace or CONVERSATION)}
    settings = benchmark.ReplaySettings(**pair.names(own.pop("target_layers")), **own)
    measure(benchmark, lambda report: benchmark.run(settings, report), files.json_file, files.plot_file)
