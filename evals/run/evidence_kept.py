"""The measurement behind `skim bench evidence`: how often a selection keeps all of the evidence, without a target.

It needs the speculator alone, so hundreds of prompts take minutes. What a kept prompt is worth to a target is shown by
`skim eval`. Each prompt is scored once by each way, and selected at each keep rate as in serving
(`evals.selection.chunk_recall`).
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from benchmarks.report import plots
from benchmarks.report.machine import machine
from benchmarks.report.progress import Progress, silent
from benchmarks.report.statistics import wilson
from evals.run.ask import load_tokenizer, model_name
from evals.run.speculator_alone import measured
from evals.selection.chunk_recall import LEXICAL, READ, WAYS, chunk_recall
from evals.tasks.registry import Sample, family_of, make_samples
from evals.tasks.registry import describe as describe_task
from kv_transfer.options import SelectionOptions
from skim_common.errors import SkimError
from speculator_service.engine import SpeculatorEngine


@dataclass(frozen=True)
class EvidenceSettings:
    """tasks: names of `evals.tasks.registry`. ways: names of `evals.selection.chunk_recall.WAYS`. prompts: per task.

    journal: where each prompt's result is kept, so that a run that is cut off goes on; None keeps nothing.
    """

    speculator: str
    tasks: tuple[str, ...] = ("single_needle",)
    ways: tuple[str, ...] = ("look-ahead", "lexical")
    keep_rates: tuple[float, ...] = (0.05, 0.1, 0.2)
    prompt_tokens: int = 2048
    prompts: int = 200
    seed: int = 0
    engine: str = "vllm"
    options: Mapping[str, Any] = field(default_factory=dict)
    journal: Path | None = None


Kept = dict[str, list[bool]]
"""By way: for each keep rate, whether all of the evidence of one prompt was kept."""


def run(settings: EvidenceSettings, progress: Progress = silent) -> dict[str, Any]:
    """Measure. `rows`: for each task, way and keep rate, of how many prompts all evidence was kept.

    Raises SkimError for an unknown task or way, and for an engine that does not start.
    """
    if unknown := [way for way in settings.ways if way not in (*WAYS, READ)]:
        raise SkimError(f"unknown way of scoring {unknown[0]!r}: choose from {', '.join((*WAYS, READ))}")
    if {*settings.ways} <= {LEXICAL, READ}:
        settings = replace(settings, engine="mock")
    tokenizer = load_tokenizer(settings.speculator)
    samples = list(
        make_samples(
            settings.tasks,
            [settings.prompt_tokens],
            settings.prompts,
            seed=settings.seed,
            style="instruct",
            tokens=lambda text: len(tokenizer(text, add_special_tokens=False).input_ids),
        )
    )
    began = machine()
    kept = asyncio.run(_measure(settings, tokenizer, samples, progress))
    shown = {name: value for name, value in vars(settings).items() if name not in ("journal", "options")}
    return {
        "machine": began,
        "settings": shown | {"speculator": model_name(settings.speculator), "options": dict(settings.options)},
        "tasks": {task: describe_task(task) for task in settings.tasks},
        "rows": _rows(settings, samples, kept),
    }


async def _measure(
    settings: EvidenceSettings, tokenizer: Any, samples: Sequence[Sample], progress: Progress
) -> dict[str, Kept]:
    """By the sample's seed, what was kept of it."""
    ways = {way: SelectionOptions(**WAYS.get(way, {})) for way in settings.ways}

    async def kept(engine: SpeculatorEngine, sample: Sample) -> Kept:
        found = await chunk_recall(engine, tokenizer, [sample], ways, settings.keep_rates)
        return {way: [*map(all, by_task[sample.task].values())] for way, by_task in found.items()}

    head = {"ways": {way: WAYS.get(way) for way in settings.ways}, "keep_rates": settings.keep_rates}
    items = {sample.seed: sample for sample in samples}
    return await measured(settings, "skim bench evidence", head, items, kept, progress)


def _rows(settings: EvidenceSettings, samples: Sequence[Sample], kept: Mapping[str, Kept]) -> list[dict[str, Any]]:
    rows = []
    for task, same in groupby(samples, key=lambda sample: sample.task):
        of_task = [kept[sample.seed] for sample in same]
        for way in settings.ways:
            for place, rate in enumerate(settings.keep_rates):
                found = sum(one[way][place] for one in of_task)
                low, high = wilson(found / len(of_task), len(of_task))
                row = {"task": task, "way": way, "keep_rate": rate, "kept": found, "of": len(of_task)}
                rows.append(row | {"low": low, "high": high})
    return rows


def describe(result: dict[str, Any]) -> str:
    """The conditions."""
    settings = result["settings"]
    return (
        f"Speculator `{settings['speculator']}`, {settings['prompts']} prompts per task of"
        f" {settings['prompt_tokens']} tokens. Shown is the share of the prompts of which all evidence was kept, with"
        " its 95 % interval (Wilson). The protected tokens of serving are kept too; the keep rate is a share of the"
        " other tokens. Words are in the sum of all ways but *look-ahead, chunks*. *heads* are the retrieval heads,"
        " over the whole prompt or in windows, and *lexical* is words alone. *read by auto* is the share of the prompts"
        " whose question words do not place, so that `selector: auto` has them read."
    )


MANY = 5
"""From this number of tasks on, the table and the plot show the tasks of a family together."""


def _groups(tasks: Sequence[str]) -> dict[str, list[str]]:
    """The tasks that are shown together, by a name."""
    found: dict[str, list[str]] = {}
    for task in tasks:
        found.setdefault(family_of(task) if len(tasks) >= MANY else task, []).append(task)
    return found


def shown_rows(result: dict[str, Any], groups: Mapping[str, Sequence[str]]) -> list[dict[str, Any]]:
    """The rows of the result, those of a group's tasks together."""
    rows, settings = [], result["settings"]
    for name, tasks in groups.items():
        for way in settings["ways"]:
            for rate in settings["keep_rates"]:
                at = (way, rate)
                same = [r for r in result["rows"] if (r["way"], r["keep_rate"]) == at and r["task"] in tasks]
                kept, of = (sum(row[part] for row in same) for part in ("kept", "of"))
                low, high = wilson(kept / of, of)
                row = {"task": name, "way": way, "keep_rate": rate, "kept": kept, "of": of}
                rows.append(row | {"low": low, "high": high})
    return rows


def table(result: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """A row for each group of tasks and way, also for each published task alone; a column for each keep rate."""
    rates, tasks = result["settings"]["keep_rates"], list(result["tasks"])
    groups = _groups(tasks) | {task: [task] for task in tasks if "/" in task}
    rows = []
    for (task, way), found in groupby(shown_rows(result, groups), key=lambda row: (row["task"], row["way"])):
        cells = [f"{row['kept'] / row['of']:.3f} ({row['low']:.2f} to {row['high']:.2f})" for row in found]
        rows.append([task, way, *cells])
    return ["task", "way", *(f"keep {rate:g}" for rate in rates)], rows


def plot(result: dict[str, Any], path: Path) -> None:
    """The share of prompts over the keep rate, a panel per task and a line per way."""
    shown = shown_rows(result, _groups(list(result["tasks"])))
    tasks = list(dict.fromkeys(row["task"] for row in shown))
    with plots.figure(path, result, panels=len(tasks)) as axes:
        for axis, task in zip(axes, tasks, strict=True):
            for way in result["settings"]["ways"]:
                rows = [row for row in shown if (row["task"], row["way"]) == (task, way)]
                shares = [row["kept"] / row["of"] for row in rows]
                errors = [
                    [share - row["low"] for share, row in zip(shares, rows, strict=True)],
                    [row["high"] - share for share, row in zip(shares, rows, strict=True)],
                ]
                axis.errorbar([row["keep_rate"] for row in rows], shares, yerr=errors, capsize=3, label=way)
            axis.set(title=task, xlabel="keep rate", ylabel="prompts with all evidence kept", ylim=(0, 1.02))
        axes[0].legend()
