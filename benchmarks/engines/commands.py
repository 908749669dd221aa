"""`skim bench decode`."""

import os
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.commands.lists import lengths, values
from benchmarks.commands.output import JsonFile, PlotFile, measure
from benchmarks.commands.pair_options import (
    AnswerTokens,
    Documents,
    Drafts,
    Dtype,
    IgnoreEos,
    KeepRate,
    Speculator,
    Target,
)
from kv_transfer.options import MAX_LOOK_AHEAD
from skim_common.errors import SkimError
from skim_common.models.source import located


def decode(
    target: Target = Path("demo_models/target"),
    speculator: Speculator = Path("demo_models/speculator"),
    prompts: Annotated[int, typer.Option(min=1, help="Number of prompts per round and mode.")] = 16,
    batch: Annotated[int, typer.Option(min=1, help="Number of requests that run at the same time.")] = 1,
    prompt_tokens: Annotated[str, typer.Option(metavar="N[,N...]", help="Prompt lengths in tokens.")] = "2048",
    answer_tokens: AnswerTokens = 64,
    keep_rate: KeepRate = 0.2,
    look_ahead: Annotated[
        int,
        typer.Option(
            min=0,
            max=MAX_LOOK_AHEAD,
            help="Number of drafts that come with the selection. With 0, every draft needs a drafting round.",
        ),
    ] = 8,
    drafts: Drafts = 4,
    rounds: Annotated[int, typer.Option(min=1, help="Number of measured rounds, after one warm-up round.")] = 3,
    ignore_eos: IgnoreEos = False,
    target_layers: Annotated[
        int | None,
        typer.Option(help="Pad the target to this number of layers. Its answers stay the same, its steps cost more."),
    ] = None,
    modes: Annotated[
        str | None, typer.Option(metavar="MODE[,MODE...]", help="Measure only these modes; plain is always measured.")
    ] = None,
    dtype: Dtype = "float32",
    documents: Documents = "demo",
    json_file: JsonFile = None,
    plot_file: PlotFile = None,
) -> None:
    """Decoding speed: without drafts, with drafts from the speculator, and with vLLM's draft_model."""
    from benchmarks.engines import decode as benchmark
    from benchmarks.engines.decode_engines import MODES, DecodeSettings

    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
    settings = DecodeSettings(
        target=located(str(target), Path.cwd()),
        speculator=located(str(speculator), Path.cwd()),
        prompts=prompts,
        batch=batch,
        prompt_tokens=lengths(prompt_tokens),
        answer_tokens=answer_tokens,
        keep_rate=keep_rate,
        look_ahead=look_ahead,
        drafts=drafts,
        rounds=rounds,
        ignore_eos=ignore_eos,
        target_layers=target_layers,
        modes=MODES if modes is None else tuple(dict.fromkeys(("plain", *_chosen(modes, MODES)))),
        dtype=dtype,
        documents=documents,
    )
    measure(benchmark, lambda report: benchmark.run(settings, report), json_file, plot_file)


def _chosen(text: str, known: tuple[str, ...]) -> tuple[str, ...]:
    words = values(text, str, "--modes")
    wrong = next((word for word in words if word not in known), None if words else text)
    if wrong is not None:
        raise SkimError(f"--modes: {wrong!r} is not a mode; choose from {', '.join(known)}")
    return words


def acceptance(
    target: Target = Path("demo_models/target"),
    speculator: Speculator = Path("demo_models/speculator"),
    prompts: Annotated[int, typer.Option(min=1, help="Number of prompts per length.")] = 16,
    prompt_tokens: Annotated[
        str, typer.Option(metavar="N[,N...]", help="Prompt lengths in tokens.")
    ] = "1024,2048,4096,8192",
    answer_tokens: AnswerTokens = 64,
    keep_rate: KeepRate = 0.2,
    drafts: Drafts = 4,
    ignore_eos: IgnoreEos = False,
    dtype: Dtype = "float32",
    documents: Documents = "demo",
    json_file: JsonFile = None,
    plot_file: PlotFile = None,
) -> None:
    """Acceptance of drafts by prompt length: a drafter over the whole prompt, over the kept prompt, and vLLM's."""
    from benchmarks.engines import acceptance as benchmark
    from benchmarks.engines.decode_engines import DecodeSettings

    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
    settings = DecodeSettings(
        target=located(str(target), Path.cwd()),
        speculator=located(str(speculator), Path.cwd()),
        prompts=prompts,
        prompt_tokens=lengths(prompt_tokens),
        answer_tokens=answer_tokens,
        keep_rate=keep_rate,
        drafts=drafts,
        ignore_eos=ignore_eos,
        dtype=dtype,
        documents=documents,
    )
    measure(benchmark, lambda report: benchmark.run(settings, report), json_file, plot_file)
