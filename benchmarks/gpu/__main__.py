"""`python -m benchmarks.gpu session|ttft|decode|scoring|proof`: measure on a GPU, and write JSON files and plots."""

import asyncio
import json
import os
import shlex
import sys
from collections.abc import Coroutine
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.commands.lists import values
from benchmarks.gpu import decode as decoding
from benchmarks.gpu import scoring as scores
from benchmarks.gpu import ttft as first_token
from benchmarks.gpu.engines import device_named, running_pair
from benchmarks.gpu.presets import preset
from benchmarks.gpu.proof.plan import ORACLES, STEPS
from benchmarks.gpu.session.plan import STEPS as SESSION
from benchmarks.gpu.session.summary import hand_out, summary
from benchmarks.gpu.steps.checks import Settings
from benchmarks.gpu.steps.runner import Runner
from benchmarks.gpu.steps.step import ROOT
from benchmarks.report.machine import machine
from skim_common.errors import SkimError

app = typer.Typer(
    help="Measure models of real sizes with random weights on one GPU.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
console = Console(highlight=False)

PresetName = Annotated[str, typer.Option("--preset", metavar="8b|32b|toy", help="Sizes of both models.")]
Device = Annotated[
    str, typer.Option(metavar="auto|cuda|cpu", help="auto is cuda. cpu is for tests with the preset toy.")
]
Lengths = Annotated[
    str, typer.Option(metavar="N[,N...]", help="Prompt lengths in tokens. The default is those of the preset.")
]
Rounds = Annotated[int, typer.Option(min=1, help="Number of measured rounds.")]
Eager = Annotated[
    bool, typer.Option(help="Run vLLM without torch.compile and CUDA graphs. It starts faster and runs slower.")
]
JsonFile = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the result to this JSON file.")]
PlotFile = Annotated[
    Path | None, typer.Option("--plot", metavar="FILE.png", help="Draw the result into this PNG file.")
]


@app.command()
def ttft(
    preset_name: PresetName = "8b",
    device: Device = "auto",
    lengths: Lengths = "",
    keep_rates: Annotated[
        str,
        typer.Option(metavar="RATE[,RATE...]", help="Shares to keep. default: what the default keeps of that length."),
    ] = "0.1,0.2",
    reads: Annotated[
        str,
        typer.Option(
            metavar="READ[,READ...]",
            help="How the speculator reads: whole, or windows:TOKENS.",
        ),
    ] = "whole,windows:4096",
    rounds: Rounds = 3,
    eager: Eager = False,
    json_file: JsonFile = None,
    plot_file: PlotFile = None,
) -> None:
    """Time to first token: dense, Skim, and the lower limit of Skim's method (both forwards alone)."""
    chosen, device = preset(preset_name), device_named(device)
    settings = first_token.GpuTtftSettings(
        preset_name,
        device,
        values(lengths, int, "--lengths") or chosen.lengths,
        tuple(_keep_rate(rate) for rate in values(keep_rates, str, "--keep-rates")),
        rounds=rounds,
        reads=values(reads, str, "--reads"),
    )
    for read in settings.reads:
        first_token.window_of(read)

    async def measure() -> None:
        async with running_pair(chosen, device, max(settings.lengths), console.print, eager=eager) as pair:
            _finish(first_token, await first_token.run(pair, settings, _progress), json_file, plot_file)

    _run(measure())


@app.command()
def decode(
    preset_name: PresetName = "8b",
    device: Device = "auto",
    lengths: Lengths = "",
    keep_rate: Annotated[float, typer.Option(help="Share of the prompt that the speculator keeps.")] = 0.2,
    drafts: Annotated[int, typer.Option(min=1, max=16, help="Number of drafts per verification (K).")] = 4,
    acceptances: Annotated[
        str, typer.Option(metavar="RATE[,RATE...]", help="Acceptance rates that are forced, from 0 to 1.")
    ] = "0,0.6,0.8,1",
    answer_tokens: Annotated[int, typer.Option(min=8, max=256, help="Number of tokens per answer.")] = 128,
    rounds: Rounds = 3,
    eager: Eager = False,
    json_file: JsonFile = None,
    plot_file: PlotFile = None,
) -> None:
    """Decoding speed: without drafts, and with drafts that are accepted at forced rates."""
    chosen, device = preset(preset_name), device_named(device)
    settings = decoding.GpuDecodeSettings(
        preset_name,
        device,
        values(lengths, int, "--lengths") or chosen.lengths,
        keep_rate,
        drafts,
        values(acceptances, float, "--acceptances"),
        answer_tokens,
        rounds,
    )
    longest = max(settings.lengths)

    async def measure() -> None:
        # Whole chunks and the protected end can add up to 256 tokens to the keep rate.
        kept = min(longest, int(longest * keep_rate) + 256)
        pairs = running_pair(chosen, device, longest, console.print, kept=kept, drafts=drafts, eager=eager)
        async with pairs as pair:
            _finish(decoding, await decoding.run(pair, settings, _progress), json_file, plot_file)

    _run(measure())


@app.command()
def scoring(
    preset_name: PresetName = "8b",
    device: Device = "auto",
    lengths: Annotated[
        str,
        typer.Option(metavar="N[,N...]", help="Prompt lengths in tokens. The default is 1024, 4096 and the preset's."),
    ] = "",
    look_ahead: Annotated[int, typer.Option(min=0, max=64, help="Number of look-ahead tokens.")] = 8,
    rounds: Rounds = 5,
    tilings: Annotated[
        str,
        typer.Option(metavar="TILExROWSxWARPS[,...]", help="Additional tilings of the Triton kernels to measure."),
    ] = "",
    json_file: JsonFile = None,
    plot_file: PlotFile = None,
) -> None:
    """Time and memory of scoring one prompt, compared with one read of its keys."""
    chosen = preset(preset_name)
    settings = scores.GpuScoringSettings(
        device_named(device),
        chosen.speculator,
        values(lengths, int, "--lengths") or tuple(sorted({1024, 4096, *chosen.lengths})),
        look_ahead,
        rounds=rounds,
        tilings=values(tilings, str, "--tilings"),
    )
    _finish(scores, scores.run(settings, _progress), json_file, plot_file)


@app.command()
def proof(
    device: Device = "auto",
    toy: Annotated[bool, typer.Option(help="Small sizes, for a test with --device cpu.")] = False,
    only: Annotated[
        str, typer.Option(metavar="STEP[,STEP...]", help="Run these steps. The default is all; --list names them.")
    ] = "",
    again: Annotated[bool, typer.Option(help="Also run steps that already have a result.")] = False,
    minutes: Annotated[float, typer.Option(help="Minutes for all steps of this run together.")] = 9,
    jobs: Annotated[
        int,
        typer.Option(min=1, help="Steps that run at once, except those that measure times; each needs about 4 cores."),
    ] = 1,
    json_file: Annotated[
        Path, typer.Option("--json", metavar="FILE", help="The result. A file of an earlier run is continued.")
    ] = Path("gpu-proof.json"),
    list_steps: Annotated[bool, typer.Option("--list", help="Only list the steps.")] = False,
) -> None:
    """Show step by step that Skim is right on this GPU. The exit code is 1 if a step failed or has no result."""
    if list_steps:
        for step in STEPS:
            console.print(f"{step.name:<24} {step.shows}")
        return
    device, chosen = device_named(device), values(only, str, "--only")
    if device == "cpu" and not toy:
        raise SkimError("the proof at real sizes needs a GPU: add --toy to try it on CPU")
    if not all((ROOT / oracle).exists() for oracle in ORACLES):
        raise SkimError("the proof compares engines with tests/reference: run it in a checkout of the repository")
    if unknown := set(chosen) - {step.name for step in STEPS}:
        raise SkimError(f"there is no step {min(unknown)!r}: --list names them")
    made = Runner(STEPS, Settings(device, toy), json_file, machine(), minutes, partial(print, flush=True), jobs)
    if not made.run(chosen, again=again):
        raise typer.Exit(1)


@app.command()
def session(
    device: Device = "auto",
    toy: Annotated[bool, typer.Option(help="Small sizes, for a test with --device cpu.")] = False,
    minutes: Annotated[float, typer.Option(help="Minutes for all steps of this run together.")] = 14,
    only: Annotated[str, typer.Option(metavar="STEP[,STEP...]", help="Run these steps. The default is all.")] = "",
    again: Annotated[bool, typer.Option(help="Also run steps that already have a result.")] = False,
    folder: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Results and logs. A session that is there is continued.")
    ] = Path("build/gpu-session"),
    models: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Has qwen-coder-1.5b and qwen-coder-0.5b, for real answers.")
    ] = None,
    questions: Annotated[Path | None, typer.Option(metavar="FILE", help="Natural questions for skim eval.")] = None,
) -> None:
    """Measure what counts on a GPU, the most valuable first. The exit code is 1 if a step failed or has no result."""
    device, chosen = device_named(device), values(only, str, "--only")
    if device == "cpu" and not toy:
        raise SkimError("the session at real sizes needs a GPU: add --toy to try it on CPU")
    if unknown := set(chosen) - {step.name for step in SESSION}:
        raise SkimError(f"there is no step {min(unknown)!r}: choose from {', '.join(step.name for step in SESSION)}")
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "session.json"
    settings = Settings(device, toy, *(str(path or "") for path in (folder, models, questions)))
    made = Runner(SESSION, settings, file, machine(), minutes, partial(print, flush=True))
    made.ended = lambda: hand_out(folder, made.journal())
    done = made.run(chosen, again=again)
    made.ended()
    console.print(summary(made.journal()), markup=False, soft_wrap=True)
    if not done:
        raise typer.Exit(1)


def _keep_rate(text: str) -> float | str:
    return text if text == first_token.DEFAULT else values(text, float, "--keep-rates")[0]


def _progress(what: str, done: float) -> None:
    console.print(f"{100 * done:3.0f} % {what}")


def _run(measure: Coroutine[Any, Any, None]) -> None:
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    asyncio.run(measure)


def _finish(module: Any, result: dict[str, Any], json_file: Path | None, plot_file: Path | None) -> None:
    """Show and write a result. The engines still run: on a machine that is lent, the seconds of their end count."""
    result["command"] = shlex.join(["python", "-m", "benchmarks.gpu", *sys.argv[1:]])
    columns, rows = module.table(result)
    shown = Table(*columns, header_style="bold")
    for row in rows:
        shown.add_row(*row)
    console.print(shown)
    if json_file is not None:
        json_file.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    if plot_file is not None:
        module.plot(result, plot_file)


def main() -> None:
    try:
        app()
    except SkimError as error:
        Console(stderr=True, highlight=False).print(f"Error: {error}", markup=False, soft_wrap=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
