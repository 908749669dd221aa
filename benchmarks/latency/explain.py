"""What the explain view adds to the time to first token: unit scores, their bytes on the wire, and the log's entry.

The time to first token is that of both engines in this process, without router, Ray and network, so the shares are
upper bounds. Each round measures both parts for one new prompt.
"""

import asyncio
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness.in_process import ChatPrompt, InProcess, unseen_prompts
from benchmarks.report import plots
from benchmarks.report.machine import machine
from benchmarks.report.progress import Progress, silent
from benchmarks.report.statistics import spread
from cluster.in_process.async_pair import AsyncPair, EngineSettings
from kv_transfer.layout import TextLayout
from kv_transfer.messages import Selection
from kv_transfer.options import SelectionOptions
from kv_transfer.wire.codec import decode, encode
from router.explain.explained import Explained
from router.explain.selection_log import Entry, SelectionLog
from skim_common.models.source import public_name
from speculator_service.scoring.units import unit_means

REPEATS = 20
"""Number of times that each part is measured per round; its median counts."""


@dataclass(frozen=True)
class ExplainSettings:
    """target, speculator: folders or hub names. engine: of both. prompt_tokens: lengths. rounds: prompts per length."""

    target: str
    speculator: str
    engine: str = "vllm"
    prompt_tokens: tuple[int, ...] = (4096, 16384)
    rounds: int = 5
    keep_rate: float = 0.2


def run(settings: ExplainSettings, progress: Progress = silent) -> dict[str, Any]:
    """Measure. `rows`: per prompt length, spreads over the rounds, see `_row`. Raises SkimError."""
    began = machine()
    rows = asyncio.run(_run(settings, progress))
    names = {"target": public_name(settings.target), "speculator": public_name(settings.speculator)}
    return {"machine": began, "settings": vars(settings) | names, "rows": rows}


async def _run(settings: ExplainSettings, progress: Progress) -> list[dict[str, Any]]:
    models = (settings.speculator, settings.target)
    options = {"max_model_len": max(settings.prompt_tokens) + 1024} if settings.engine == "vllm" else {}
    speculator, target = (EngineSettings(model, settings.engine, options) for model in models)
    pair = AsyncPair(speculator=speculator, target=target)
    rounds: dict[int, list[dict[str, float]]] = {length: [] for length in settings.prompt_tokens}
    try:
        prompts = {length: unseen_prompts(settings.target, length, seed=1000) for length in rounds}
        for length in rounds:
            await _round(pair, next(prompts[length]), settings.keep_rate)  # warm-up
        for number in range(settings.rounds):
            for length, found in rounds.items():
                progress(f"prompts of {length} tokens", number / settings.rounds)
                found.append(await _round(pair, next(prompts[length]), settings.keep_rate))
    finally:
        await pair.close()
    return [_row(length, found) for length, found in rounds.items()]


async def _round(pair: AsyncPair, prompt: ChatPrompt, keep_rate: float) -> dict[str, float]:
    """One prompt: `ttft_ms`, and what `added` gives for its selection."""
    timed = await InProcess(pair, keep_rate, answer_tokens=1).speculative(prompt, stream=True)
    options = SelectionOptions(keep_rate=keep_rate)
    # The same prompt again: the prefix cache has it.
    selection = await pair.select(prompt.request(pair.name("select"), options, return_importance=True))
    return {"ttft_ms": timed.first_ms, **added(selection, options, prompt.layout)}


def added(selection: Selection, options: SelectionOptions, layout: TextLayout) -> dict[str, float]:
    """Milliseconds of each part, in CPU time, for a selection with importance; `bytes` that cross the wire in addition.

    reading_ms: the JSON values of the explain view. They are made when they are asked for, not before the first token.
    """
    importance = selection.importance
    assert importance is not None
    bare = replace(selection, importance=None, unit_scores=None)
    told = replace(bare, unit_scores=selection.unit_scores)
    explained, log = Explained(told, options, layout, dict(told.timings)), SelectionLog()
    starts = layout.unit_starts(importance.size, options)
    with_scores, without = (_median_ms(partial(_cross, sent)) for sent in (told, bare))
    parts = {
        "scores_ms": _median_ms(lambda: unit_means(importance, starts).astype(np.float32)),
        "wire_ms": max(0.0, with_scores - without),
        "log_ms": _median_ms(lambda: log.add("r", Entry(explained.selection.kept.context_length, explained))),
    }
    more = {"bytes": len(encode(told)) - len(encode(bare)), "reading_ms": _median_ms(explained.as_json)}
    return {**parts, "added_ms": sum(parts.values()), **more}


def _cross(selection: Selection) -> Selection:
    return decode(encode(selection), Selection)


def _median_ms(call: Callable[[], object]) -> float:
    times = []
    for _ in range(REPEATS):
        began = time.thread_time()
        call()
        times.append(1e3 * (time.thread_time() - began))
    return statistics.median(times)


def _row(length: int, rounds: list[dict[str, float]]) -> dict[str, Any]:
    """The spread of each measured value, and `share`, the added time as a share of the time to first token."""
    shares = spread(found["added_ms"] / found["ttft_ms"] for found in rounds)
    measured = {name: spread(found[name] for found in rounds) for name in rounds[0]}
    return {"prompt_tokens": length, **measured, "share": shares}


def describe(result: dict[str, Any]) -> str:
    """The conditions of the measurement, in sentences."""
    settings = result["settings"]
    return (
        f"Target `{settings['target']}`, speculator `{settings['speculator']}`, {settings['engine']} engines in one"
        f" process, {settings['rounds']} prompts per length, keep rate {settings['keep_rate']}. *Added*: the mean"
        " scores of the units, their bytes on the wire and the entry in the router's log, in CPU time. *Share*: of the"
        " time to first token, without router, Ray and network. *Reading*: the JSON of the explain view, which is made"
        " when it is asked for. Medians; in brackets the range over the prompts."
    )


def table(result: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Columns and rows, one row per prompt length."""
    columns = ["prompt", "added bytes", "added ms", "first token ms", "share", "reading ms"]
    return columns, [
        [
            f"{row['prompt_tokens']:,}",
            f"{row['bytes']['median']:,.0f}",
            f"{row['added_ms']['median']:.3f}",
            f"{row['ttft_ms']['median']:.0f}",
            f"{row['share']['median']:.2%} ({row['share']['lowest']:.2%} to {row['share']['highest']:.2%})",
            f"{row['reading_ms']['median']:.1f}",
        ]
        for row in result["rows"]
    ]


def plot(result: dict[str, Any], path: Path) -> None:
    """The parts of the added time by prompt length."""
    rows = result["rows"]
    lengths = [row["prompt_tokens"] for row in rows]
    with plots.figure(path, result, height=3.2) as [axes]:
        for name, label in (("scores_ms", "unit scores"), ("wire_ms", "wire"), ("log_ms", "log")):
            axes.plot(lengths, [row[name]["median"] for row in rows], marker="o", label=label)
        plots.prompt_axis(axes, lengths)
        axes.set(ylabel="added ms", ylim=(0, None))
        axes.legend()
