"""The measurement behind `skim bench questions`: how much of the evidence that people marked a selection keeps.

It needs the speculator alone. Each prompt is scored once by each way, and selected at each keep rate as in serving.
"""

import asyncio
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.report import plots
from benchmarks.report.machine import machine
from benchmarks.report.progress import Progress, silent
from evals.questions.file import Question, read_questions
from evals.results.bootstrap import of_mean
from evals.run.ask import load_tokenizer, model_name
from evals.run.speculator_alone import measured
from evals.selection.chunk_recall import WAYS, importance_of, kept_share
from kv_transfer.options import SelectionOptions
from router.options.request import PrefillOptions
from router.prompt.protected_spans import char_ranges, tokens_touched_by_each
from skim.prompts import render
from skim_common.errors import SkimError
from speculator_service.engine import SpeculatorEngine


@dataclass(frozen=True)
class QuestionsSettings:
    """questions: a file of `evals.questions.file`. ways: as in EvidenceSettings. prompts: of each set, drawn by `seed`.

    most_gold: questions with a larger share of gold in the text are left out. journal: as in EvidenceSettings.
    """

    speculator: str
    questions: Path
    ways: tuple[str, ...] = ("heads, windows", "lexical")
    keep_rates: tuple[float, ...] = (0.1, 0.2)
    prompts: int = 50
    most_gold: float = 1.0
    seed: int = 0
    engine: str = "vllm"
    options: Mapping[str, Any] = field(default_factory=dict)
    journal: Path | None = None


Kept = dict[str, list[float]]
"""By way: for each keep rate, the share of the gold tokens that is kept."""


def run(settings: QuestionsSettings, progress: Progress = silent) -> dict[str, Any]:
    """Measure. `rows`: for each set, way and keep rate, the gold kept. Raises SkimError as `read_questions`, and for an
    unknown way."""
    if unknown := [way for way in settings.ways if way not in WAYS]:
        raise SkimError(f"unknown way of scoring {unknown[0]!r}: choose from {', '.join(WAYS)}")
    chosen, began = _drawn(settings), machine()
    kept = asyncio.run(_measure(settings, load_tokenizer(settings.speculator), chosen, progress))
    shown = {name: value for name, value in vars(settings).items() if name not in ("journal", "options", "questions")}
    return {
        "machine": began,
        "settings": shown | {"speculator": model_name(settings.speculator), "options": dict(settings.options)},
        "rows": _rows(settings, chosen, kept),
    }


def _drawn(settings: QuestionsSettings) -> list[Question]:
    by_set: dict[str, list[Question]] = {}
    for one in read_questions(settings.questions):
        share = sum(end - start for start, end in one.gold) / max(1, len(one.document))
        if 0 < share <= settings.most_gold:
            by_set.setdefault(one.set, []).append(one)
    if not by_set:
        raise SkimError(f"{settings.questions} has no question with gold ranges")
    for same in by_set.values():
        random.Random(settings.seed).shuffle(same)
    return [one for same in by_set.values() for one in same[: settings.prompts]]


async def _measure(
    settings: QuestionsSettings, tokenizer: Any, questions: Sequence[Question], progress: Progress
) -> dict[int, Kept]:
    """By the question's number, what was kept of its gold."""
    ways = {way: SelectionOptions(**WAYS[way]) for way in settings.ways}

    async def kept(engine: SpeculatorEngine, question: Question) -> Kept:
        return await gold_kept(engine, tokenizer, question, ways, settings.keep_rates)

    head = {"ways": list(ways), "keep_rates": settings.keep_rates, "file": settings.questions.name}
    items = {one.number: one for one in questions}
    return await measured(settings, "skim bench questions", head, items, kept, progress)


async def gold_kept(
    engine: SpeculatorEngine,
    tokenizer: Any,
    question: Question,
    ways: Mapping[str, SelectionOptions],
    keep_rates: Sequence[float],
) -> Kept:
    """The share of the gold tokens that each way keeps at each rate."""
    prompt = render(question.messages, tokenizer)
    if prompt.text is None or prompt.offsets is None:
        raise SkimError("gold is found by the offsets of a rendered chat; this tokenizer has none")
    at, layout = prompt.text.find(question.document.strip()), prompt.layout(PrefillOptions())
    at -= len(question.document) - len(question.document.lstrip())
    places = [(at + start, at + end) for start, end in question.gold]
    gold = [*filter(None, tokens_touched_by_each(sorted(places), char_ranges(prompt.offsets)))]
    kept: Kept = {}
    for way, options in ways.items():
        importance = await importance_of(engine, f"questions-{question.number}-{way}", prompt, layout, options)
        asked = (options.model_copy(update={"keep_rate": rate}) for rate in keep_rates)
        kept[way] = [kept_share(layout, gold, importance, one) for one in asked]
    return kept


def _rows(settings: QuestionsSettings, questions: Sequence[Question], kept: Mapping[int, Kept]) -> list[dict[str, Any]]:
    rows = []
    for name in dict.fromkeys(one.set for one in questions):
        of_set = [kept[one.number] for one in questions if one.set == name]
        for way in settings.ways:
            for place, rate in enumerate(settings.keep_rates):
                shares = np.array([one[way][place] for one in of_set])
                mean, low, high = of_mean(shares.tolist())
                row = {"set": name, "way": way, "keep_rate": rate, "of": len(shares), "gold": mean}
                rows.append(row | {"low": low, "high": high, "all": float((shares >= 0.999).mean())})
    return rows


def describe(result: dict[str, Any]) -> str:
    """The conditions."""
    settings = result["settings"]
    return (
        f"Speculator `{settings['speculator']}`. Shown is the share of the tokens of marked evidence that is kept, the"
        " mean over the questions with its 95 % interval, and the share of the questions of which all of it is kept."
    )


def table(result: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """A row for each set and way, a column for each keep rate."""
    rates = result["settings"]["keep_rates"]
    rows: dict[tuple[str, str, int], list[str]] = {}
    for row in result["rows"]:
        cell = f"{row['gold']:.2f} ({row['low']:.2f} to {row['high']:.2f}), all {row['all']:.2f}"
        rows.setdefault((row["set"], row["way"], row["of"]), []).append(cell)
    return ["set", "way", "questions", *(f"keep {rate:g}" for rate in rates)], [
        [name, way, str(of), *cells] for (name, way, of), cells in rows.items()
    ]


def plot(result: dict[str, Any], path: Path) -> None:
    """The gold kept over the keep rate, a panel per set and a line per way."""
    names = list(dict.fromkeys(row["set"] for row in result["rows"]))
    with plots.figure(path, result, panels=len(names)) as axes:
        for axis, name in zip(axes, names, strict=True):
            for way in result["settings"]["ways"]:
                rows = [row for row in result["rows"] if (row["set"], row["way"]) == (name, way)]
                axis.plot([row["keep_rate"] for row in rows], [row["gold"] for row in rows], marker="o", label=way)
            axis.set(title=name, xlabel="keep rate", ylabel="gold kept", ylim=(0, 1.02))
        axes[0].legend()
