"""`skim bench acceptance`."""

import os
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.commands.decode import Documents, Dtype
from benchmarks.commands.lists import lengths
from benchmarks.commands.show import JsonFile, PlotFile, measure
from kv_transfer.model_source import located


def acceptance(
    target: Annotated[Path, typer.Option(metavar="MODEL", help="Target: a folder, or owner/name[@revision].")] = Path(
        "demo_models/target"
    ),
    speculator: Annotated[
        Path, typer.Option(metavar="MODEL", help="Speculator: a folder, or owner/name[@revision].")
    ] = Path("demo_models/speculator"),
    prompts: Annotated[int, typer.Option(min=1, help="Number of prompts per length.")] = 16,
    prompt_tokens: Annotated[
        str, typer.Option(metavar="N[,N...]", help="Prompt lengths in tokens.")
    ] = "1024,2048,4096,8192",
    answer_tokens: Annotated[int, typer.Option(min=2, help="Largest number of tokens per answer.")] = 64,
    keep_rate: Annotated[float, typer.Option(help="Share of the prompt that the speculator keeps.")] = 0.2,
    drafts: Annotated[int, typer.Option(min=1, max=16, help="Number of drafts per verification (K).")] = 4,
    ignore_eos: Annotated[bool, typer.Option(help="Continue decoding after an end token.")] = False,
    dtype: Annotated[Dtype, typer.Option(help="Number format of all engines.")] = "float32",
    documents: Annotated[
        Documents, typer.Option(help="Prompts: questions of the demo pair, or Python code to explain, for real models.")
    ] = "demo",
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
