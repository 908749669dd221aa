"""The `skim bench` commands: run a measurement of `benchmarks/`, show it as a table, write it as JSON."""

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from cluster.tools import write_json

app = typer.Typer(help="Measure on this machine; ratios from interleaved runs.", no_args_is_help=True)
console = Console(highlight=False)

JsonFile = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the result as JSON.")]


@app.command()
def channel(
    rounds: Annotated[int, typer.Option(min=10, help="Exchanges per case.")] = 1000, json_file: JsonFile = None
) -> None:
    """What one exchange of drafts costs on loopback, beside an empty gRPC call and bare TCP."""
    from benchmarks.channel import run

    result = run(rounds=rounds)
    table = Table("batch", "q pairs", "median ms", "p90 ms", "x empty gRPC", "x bare TCP", header_style="bold")
    for row in result["rows"]:
        cells = (row["median_ms"], row["p90_ms"], row["ratio_to_unary"], row["ratio_to_tcp"])
        table.add_row(str(row["batch"]), str(row["q_top"]), *(f"{cell:.2f}" for cell in cells))
    _finish(table, result, json_file)


@app.command()
def decode(
    target: Annotated[Path, typer.Option(metavar="DIR", help="Model folder.")] = Path("demo_models/target"),
    speculator: Annotated[Path, typer.Option(metavar="DIR", help="Model folder.")] = Path("demo_models/speculator"),
    prompts: Annotated[int, typer.Option(min=1, help="Prompts per round and mode.")] = 16,
    batch: Annotated[int, typer.Option(min=1, help="Requests at a time.")] = 1,
    prompt_tokens: Annotated[int, typer.Option(min=256, help="Length of the prompts.")] = 2048,
    answer_tokens: Annotated[int, typer.Option(min=2, help="Tokens per answer.")] = 64,
    keep_rate: Annotated[float, typer.Option(help="Share of the prompt to keep.")] = 0.2,
    drafts: Annotated[int, typer.Option(min=1, max=16, help="Drafts per verification, K.")] = 4,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds that count.")] = 3,
    ignore_eos: Annotated[bool, typer.Option(help="Decode on past the end of the answer.")] = False,
    json_file: JsonFile = None,
) -> None:
    """Tokens per second of decoding: plain, remote drafts, drafting ahead, and vLLM's draft_model."""
    from benchmarks.decode import Settings, run

    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    settings = Settings(
        target=str(target),
        speculator=str(speculator),
        prompts=prompts,
        batch=batch,
        prompt_tokens=prompt_tokens,
        answer_tokens=answer_tokens,
        keep_rate=keep_rate,
        drafts=drafts,
        rounds=rounds,
        ignore_eos=ignore_eos,
    )
    with console.status("starting") as status:
        result = run(settings, lambda line: status.update(line))
    table = Table(
        "mode", "tokens/s", "x plain", "(range)", "tokens/verify", "accepted by position", header_style="bold"
    )
    for name, mode in result["modes"].items():
        ratio = mode["ratio_to_plain"]
        table.add_row(
            name,
            f"{mode['tokens_per_second']:.1f}",
            f"{ratio['median']:.2f}",
            f"{ratio['lowest']:.2f}-{ratio['highest']:.2f}",
            f"{mode['tokens_per_verify']:.2f}",
            " ".join(f"{rate:.2f}" for rate in mode["acceptance_per_position"]),
        )
    _finish(table, result, json_file)


def _finish(table: Table, result: dict[str, Any], json_file: Path | None) -> None:
    console.print(table)
    result["command"] = " ".join(["skim", *sys.argv[1:]])
    if json_file is not None:
        write_json(json_file, result)
        console.print(f"Wrote {json_file}", markup=False, soft_wrap=True)
