"""`skim bench batch`."""

from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

from benchmarks.commands.lists import values
from benchmarks.commands.pair_options import AnswerTokens, Dtype, KeepRate, Speculator, Target
from benchmarks.commands.show import JsonFile, PlotFile, measure
from cluster.json_file import write_json
from kv_transfer.errors import SkimError
from kv_transfer.model_source import located


def batch(
    target: Target = Path("demo_models/target"),
    speculator: Speculator = Path("demo_models/speculator"),
    documents: Annotated[int, typer.Option(min=1, help="Number of documents.")] = 8,
    questions: Annotated[int, typer.Option(min=1, help="Number of rows about each document.")] = 6,
    document_tokens: Annotated[
        int, typer.Option(min=1200, help="Length of a prompt, in tokens of the demo pair.")
    ] = 2048,
    answer_tokens: AnswerTokens = 16,
    rounds: Annotated[int, typer.Option(min=1, help="Number of runs of each mode.")] = 2,
    keep_rate: KeepRate = 0.2,
    held: Annotated[int, typer.Option(min=2, help="Number of documents that fit into each KV cache.")] = 10,
    concurrency: Annotated[int, typer.Option(min=1, help="Requests that Skim's job sends at a time.")] = 32,
    modes: Annotated[
        str | None,
        typer.Option(metavar="MODE[,MODE...]", help="Measure only these modes; run-batch is always measured."),
    ] = None,
    style: Annotated[
        Literal["plain", "instruct"],
        typer.Option(help="plain: the form of the demo pair. instruct: with an introduction, for other models."),
    ] = "plain",
    dtype: Dtype = "float32",
    seed: Annotated[int, typer.Option(help="Seed of the documents and of the order of the rows.")] = 0,
    json_file: JsonFile = None,
    plot_file: PlotFile = None,
) -> None:
    """Rows per second of a batch: Skim's batch job and `vllm run-batch` on the same file.

    The JSON file is written after each round, so a run that is cut off loses only its last one.
    """
    from benchmarks import batch as benchmark

    chosen = tuple(benchmark.MODES) if modes is None else values(modes, str, "--modes")
    if wrong := [mode for mode in chosen if mode not in benchmark.MODES]:
        raise SkimError(f"--modes: {wrong[0]!r} is not a mode; choose from {', '.join(benchmark.MODES)}")
    settings = benchmark.BatchSettings(
        target=located(str(target), Path.cwd()),
        speculator=located(str(speculator), Path.cwd()),
        documents=documents,
        questions=questions,
        document_tokens=document_tokens,
        answer_tokens=answer_tokens,
        rounds=rounds,
        keep_rate=keep_rate,
        held=held,
        concurrency=concurrency,
        modes=chosen,
        style=style,
        dtype=dtype,
        seed=seed,
    )
    keep = partial(write_json, json_file) if json_file is not None else lambda result: None
    measure(benchmark, lambda tell: benchmark.run(settings, tell, keep), json_file, plot_file)
