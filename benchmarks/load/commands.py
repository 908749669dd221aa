"""`skim bench goodput`."""

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal

import typer

from benchmarks.commands.lists import values
from benchmarks.commands.output import Files, measure
from benchmarks.commands.pair_options import (
    AnswerTokens,
    DemoPair,
    Dtype,
    KeepRate,
    PairOrRandom,
)
from cluster.commands.flags import grouped
from cluster.json_file import write_json
from skim_common.errors import SkimError


@dataclass(frozen=True)
class GoodputOptions:
    """A group of options (`cluster.commands.flags`)."""

    target_layers: Annotated[int, typer.Option(min=1, help="Number of layers of the default target.")] = 6
    prompt_tokens: Annotated[int, typer.Option(min=1200, help="Prompt length in tokens.")] = 4096
    answer_tokens: Annotated[int, typer.Option(min=1, help="Number of tokens per answer.")] = 4
    keep_rate: KeepRate = 0.1
    requests: Annotated[int, typer.Option(min=10, help="Smallest number of requests per request rate.")] = 24
    points: Annotated[int, typer.Option(min=1, help="Number of request rates to try per server.")] = 3
    objective: Annotated[
        float,
        typer.Option(help="Limit for the time to first token, as a multiple of that of an idle dense server."),
    ] = 2.0
    minutes: Annotated[
        float, typer.Option(help="Time limit: a request rate is not tried if it would end after this.")
    ] = 7.0
    seed: Annotated[int, typer.Option(help="Seed of the prompts and the arrival times.")] = 0


@grouped
def goodput(pair: PairOrRandom, options: GoodputOptions, files: Files) -> None:
    """Requests per second within a limit for the time to first token: Skim and a stock vLLM server."""
    from benchmarks.load import goodput as benchmark

    own = dict(vars(options))
    settings = benchmark.GoodputSettings(**pair.names(own.pop("target_layers")), **own)
    measure(benchmark, lambda report: benchmark.run(settings, report), files.json_file, files.plot_file)


@dataclass(frozen=True)
class InterferenceOptions:
    """A group of options (`cluster.commands.flags`)."""

    streams: Annotated[int, typer.Option(min=1, help="Streams that decode.")] = 1
    prompts: Annotated[int, typer.Option(min=1, help="Cold prompts that arrive together.")] = 2
    prompt_tokens: Annotated[int, typer.Option(min=1200, help="Length of a cold prompt in tokens.")] = 8192
    keep_rate: KeepRate = 0.2
    before_s: Annotated[float, typer.Option(min=1, help="Seconds that are measured before the prompts.")] = 5.0
    chunks: Annotated[str, typer.Option(help="Chunk sizes of the stock vLLM servers, in tokens; empty: none.")] = (
        "512,2048,8192"
    )
    rounds: Annotated[int, typer.Option(min=1, help="Number of measured rounds, after one warm-up round.")] = 3
    target_cores: Annotated[str, typer.Option(help="Cores of Skim's target, such as 2,3. Default: all.")] = ""
    speculator_cores: Annotated[str, typer.Option(help="Cores of Skim's speculator. Default: all.")] = ""
    dtype: Dtype = "float32"
    seed: Annotated[int, typer.Option(help="Seed of the prompts.")] = 0


@grouped
def interference(pair: PairOrRandom, options: InterferenceOptions, files: Files) -> None:
    """Speed of running streams while others' long prompts are read: Skim and stock vLLM.

    A stock server has the cores of both of Skim's engines.
    """
    from benchmarks.load import interference as benchmark

    names = ("target_cores", "speculator_cores")
    cores = {name: values(getattr(options, name), int, f"--{name.replace('_', '-')}") for name in names}
    if bool(cores["target_cores"]) != bool(cores["speculator_cores"]):
        raise SkimError("give both --target-cores and --speculator-cores, or neither to let all engines use all cores")
    chunks = _positive(options.chunks, "--chunks") if options.chunks else ()
    own = {**vars(options), **cores, "chunks": chunks}
    settings = benchmark.InterferenceSettings(**pair.names(), **own)
    measure(benchmark, lambda report: benchmark.run(settings, report), files.json_file, files.plot_file)


def _positive(text: str, option: str) -> tuple[int, ...]:
    found = values(text, int, option)
    if not found or min(found) < 1:
        raise SkimError(f"{option} takes whole numbers of at least 1, such as 1,32, not {text!r}")
    return found


@dataclass(frozen=True)
class BatchOptions:
    """A group of options (`cluster.commands.flags`)."""

    documents: Annotated[int, typer.Option(min=1, help="Number of documents.")] = 8
    questions: Annotated[int, typer.Option(min=1, help="Number of rows about each document.")] = 6
    document_tokens: Annotated[int, typer.Option(min=1200, help="Length of a prompt, in tokens of the demo pair.")] = (
        2048
    )
    answer_tokens: AnswerTokens = 16
    rounds: Annotated[int, typer.Option(min=1, help="Number of runs of each mode.")] = 2
    keep_rate: KeepRate = 0.2
    held: Annotated[int, typer.Option(min=2, help="Number of documents that fit into each KV cache.")] = 10
    concurrency: Annotated[int, typer.Option(min=1, help="Requests that Skim's job sends at a time.")] = 32
    modes: Annotated[
        str | None,
        typer.Option(metavar="MODE[,MODE...]", help="Measure only these modes; run-batch is always measured."),
    ] = None
    style: Annotated[
        Literal["plain", "instruct"],
        typer.Option(help="plain: the form of the demo pair. instruct: with an introduction, for other models."),
    ] = "plain"
    dtype: Dtype = "float32"
    seed: Annotated[int, typer.Option(help="Seed of the documents and of the order of the rows.")] = 0


@grouped
def batch(pair: DemoPair, options: BatchOptions, files: Files) -> None:
    """Rows per second of a batch: Skim's batch job and `vllm run-batch` on the same file.

    The JSON file is written after each round, so a run that is cut off loses only its last one.
    """
    from benchmarks.load import batch as benchmark

    chosen = tuple(benchmark.MODES) if options.modes is None else values(options.modes, str, "--modes")
    if wrong := [mode for mode in chosen if mode not in benchmark.MODES]:
        raise SkimError(f"--modes: {wrong[0]!r} is not a mode; choose from {', '.join(benchmark.MODES)}")
    settings = benchmark.BatchSettings(**pair.names, **{**vars(options), "modes": chosen})
    keep = partial(write_json, files.json_file) if files.json_file is not None else lambda result: None
    measure(benchmark, lambda report: benchmark.run(settings, report, keep), files.json_file, files.plot_file)
