"""`python -m evals.report` makes docs/results.md and its plots from benchmarks/results/*.json.

Each section has a module with `describe(result)`, `table(result)` and `plot(result, path)`. `skim bench` prints the
same table in the terminal. Each JSON file also holds the command that produced it (`command`).
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.report.machine import in_words
from evals.report.summary import summary

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "results.md"
PLOTS = "plots"
"""Folder of the plots, beside the page."""


@dataclass(frozen=True)
class Section:
    """The result files `KEY.json` and `KEY-*.json` under one title. module: dotted name, imported when needed."""

    key: str
    title: str
    module: str


SUBJECTS = {
    "Latency": (
        Section("ttft", "Time to first token", "benchmarks.latency.ttft_results"),
        Section("turns", "Turns of a conversation", "benchmarks.latency.turns_results"),
        Section("overhead", "Latency added by the router, Ray and the network", "benchmarks.latency.overhead_results"),
        Section("forecast", "The forecast of the first token, and the choice", "benchmarks.latency.forecast_results"),
        Section("explain", "The cost of the explain view", "benchmarks.latency.explain"),
    ),
    "Load": (
        Section("goodput", "Goodput: requests per second that meet a time to first token", "benchmarks.load.goodput"),
        Section("batch", "A batch of requests, compared with vllm run-batch", "benchmarks.load.batch"),
        Section("refusals", "Overload over HTTP: served and refused", "benchmarks.load.refusals"),
        Section("hostile", "Time to first token beside hostile clients", "benchmarks.load.hostile"),
        Section("interference", "Streams while cold prompts are read", "benchmarks.load.interference"),
        Section("cpu", "CPU time of a request", "benchmarks.load.cpu"),
    ),
    "Traces and simulations": (
        Section("replay", "Replay of a trace", "benchmarks.replay.results"),
        Section(
            "overload", "Overload in virtual time: goodput with admission and without", "benchmarks.replay.overload"
        ),
    ),
    "Inside the engines": (
        Section("decode", "Decoding: plain, remote drafts, vLLM's draft_model", "benchmarks.engines.decode"),
        Section("acceptance", "Acceptance of drafts by prompt length", "benchmarks.engines.acceptance"),
        Section("scoring", "Scoring", "benchmarks.engines.scoring"),
        Section("channel", "The draft channel", "benchmarks.engines.channel"),
    ),
    "Scaling": (Section("scale", "Autoscaling under a step of the load", "benchmarks.scaling.scale"),),
    "Faults": (
        Section("soak", "A long run while parts die", "benchmarks.report.soak"),
        Section(
            "engine-soak",
            "Real engines while the draft channel is cut, or the KV cache full",
            "benchmarks.report.engine_soak",
        ),
    ),
    "Answer quality": (
        Section("eval", "Answer quality by keep rate", "evals.results.keep_rates"),
        Section("families", "Answer quality on real text, over time to first token", "evals.results.families"),
        Section("lengths", "Answer quality on real text, by prompt length", "evals.results.lengths"),
        Section("evidence", "Evidence kept by a selection", "evals.run.evidence_kept"),
        Section("calibrate", "Calibration of a pair", "evals.calibration.measure"),
    ),
    "On a GPU": (
        Section("gpu-ttft", "On a GPU: time to first token", "benchmarks.gpu.ttft"),
        Section("gpu-decode", "On a GPU: decoding", "benchmarks.gpu.decode"),
        Section("gpu-scoring", "On a GPU: scoring", "benchmarks.gpu.scoring"),
    ),
}
"""In the order of the page."""
SECTIONS = tuple(section for sections in SUBJECTS.values() for section in sections)


def report(results: Path = RESULTS) -> str:
    """The text of docs/results.md. Raises FileNotFoundError if a file of the summary is missing."""
    return f"{summary(results)}\n{details(results)}"


def details(results: Path = RESULTS) -> str:
    """All results in `results`, by subject."""
    parts = []
    for subject, sections in SUBJECTS.items():
        shown = [(section, files) for section in sections if (files := _files(section, results))]
        if shown:
            parts += [f"## {subject}\n", *_tasks([file for _, files in shown for file in files])]
        for section, files in shown:
            parts += [f"### {section.title}\n", *(_block(section, file) for file in files)]
    return "\n".join(parts)


def _tasks(files: Sequence[Path]) -> list[str]:
    """What the tasks of these results are, each once. Results without tasks give nothing."""
    tasks: dict[str, str] = {}
    for file in files:
        for task, what in json.loads(file.read_text(encoding="utf-8")).get("tasks", {}).items():
            tasks.setdefault(task, what)
    return ["### Tasks\n", *(f"- `{task}`: {what}" for task, what in tasks.items()), ""] if tasks else []


def draw(folder: Path, results: Path = RESULTS) -> None:
    """Draw the plot of each result into `folder`, which is created if needed."""
    folder.mkdir(parents=True, exist_ok=True)
    for section, file in figures(results):
        import_module(section.module).plot(json.loads(file.read_text(encoding="utf-8")), folder / f"{file.stem}.png")


def figures(results: Path = RESULTS) -> Iterator[tuple[Section, Path]]:
    """Each result file with its section, in the order of the page."""
    return ((section, file) for section in SECTIONS for file in _files(section, results))


def _files(section: Section, results: Path) -> list[Path]:
    named = [*results.glob(f"{section.key}.json"), *results.glob(f"{section.key}-*.json")]
    return sorted(named, key=lambda file: file.stem)


def _block(section: Section, file: Path) -> str:
    """One result: its description, its table, its plot and its command."""
    result, module = json.loads(file.read_text(encoding="utf-8")), import_module(section.module)
    columns, rows = module.table(result)
    lines = [module.describe(result), "", _row(columns), _row(["---"] * len(columns)), *map(_row, rows), ""]
    lines += [f"![{section.title}]({PLOTS}/{file.stem}.png)", ""]
    lines += [f"`{result['command']}`; {in_words(result['machine'])}.", ""]
    return "\n".join(lines)


def _row(cells: Sequence[Any]) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"


if __name__ == "__main__":
    draw(PAGE.parent / PLOTS)
    PAGE.write_text(report(), encoding="utf-8")
