"""`skim bench decode`."""

import os
from dataclasses import dataclass
from typing import Annotated

import typer

from benchmarks.commands.lists import lengths, values
from benchmarks.commands.output import Files, measure
from benchmarks.commands.pair_options import (
    AnswerTokens,
    DemoPair,
    Documents,
    Drafts,
    Dtype,
    IgnoreEos,
    KeepRate,
)
from cluster.commands.flags import grouped
from kv_transfer.options import MAX_LOOK_AHEAD
from skim_common.errors import SkimError


@dataclass(frozen=True)
class DecodeOptions:
    """A group of options (`cluster.commands.flags`)."""

    prompts: Annotated[int, typer.Option(min=1, help="Number of prompts per round and mode.")] = 16
    batch: Annotated[int, typer.Option(min=1, help="Number of requests that run at the same time.")] = 1
    prompt_tokens: Annotated[str, typer.Option(metavar="N[,N...]", help="Prompt lengths in tokens.")] = "2048"
    answer_tokens: AnswerTokens = 64
    keep_rate: KeepRate = 0.2
    look_ahead: Annotated[
        int,
        typer.Option(
            min=0,
            max=MAX_LOOK_AHEAD,
            help="Number of drafts that come with the selection. With 0, every draft needs a drafting round.",
        ),
    ] = 8
    drafts: Drafts = 4
    rounds: Annotated[int, typer.Option(min=1, help="Number of measured rounds, after one warm-up round.")] = 3
    ignore_eos: IgnoreEos = False
    modes: Annotated[
        str | None, typer.Option(metavar="MODE[,MODE...]", help="Measure only these modes; plain is always measured.")
    ] = None
    dtype: Dtype = "float32"
    documents: Documents = "demo"


@grouped
def decode(pair: DemoPair, options: DecodeOptions, files: Files) -> None:
    """Decoding speed: without drafts, with drafts from the speculator, and with vLLM's draft_model."""
    from benchmarks.engines import decode as benchmark
    from benchmarks.engines.decode_engines import MODES, DecodeSettings

    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
    chosen = MODES if options.modes is None else tuple(dict.fromkeys(("plain", *_chosen(options.modes, MODES))))
    own = {**vars(options), "prompt_tokens": lengths(options.prompt_tokens), "modes": chosen}
    settings = DecodeSettings(**pair.names, **own)
    measure(benchmark, lambda report: benchmark.run(settings, report), files.json_file, files.plot_file)


def _chosen(text: str, known: tuple[str, ...]) -> tuple[str, ...]:
    words = values(text, str, "--modes")
    wrong = next((word for word in words if word not in known), None if words else text)
    if wrong is not None:
        raise SkimError(f"--modes: {wrong!r} is not a mode; choose from {', '.join(known)}")
    return words
