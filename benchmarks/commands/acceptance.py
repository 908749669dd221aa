"""`skim bench acceptance`."""

import os
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.commands.lists import lengths
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
from benchmarks.commands.show import JsonFile, PlotFile, measure
from kv_transfer.model_source import located


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
    from benchmarks import acceptance as benchmark
    from benchmarks.decode_engines import DecodeSettings

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
    measure(benchmark, lambda tell: benchmark.run(settings, tell), json_file, plot_file)
