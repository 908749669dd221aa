"""The measurement behind `skim bench questions`: how much of the evidence that people marked a selection keeps.

It needs the speculator alone, and ways of words not even that. Each prompt is scored once by each way, and selected at
each keep rate as in serving. Blind gold is evidence in units that share no word with the question: what a model that
reads can find and words cannot.
"""

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.report import plots
from benchmarks.report.machine import machine
from benchmarks.report.progress import Progress, silent
from evals.questions.file import Question, read_questions
from evals.questions.plain_words import blind_units, bm25, stem_counts, with_neighbours
from evals.results.bootstrap import of_mean
from evals.run.ask import load_tokenizer, model_name
from evals.run.speculator_alone import measured
from evals.selection.chunk_recall import LEXICAL, READ, WAYS, importance_of, kept_tokens
from kv_transfer.arrays import mask_of
from kv_transfer.options import SelectionOptions
from router.decision.choice import PLACED
from router.options.request import PrefillOptions
from router.prompt.protected_spans import char_ranges, tokens_touched_by_each
from skim.prompts import render
from skim_common.errors import SkimError
from speculator_service.engine import SpeculatorEngine

PLAIN, NEIGHBOURS = "plain BM25", "plain BM25, neighbours"
OF_WORDS = (PLAIN, NEIGHBOURS, LEXICAL, READ)
"""Ways that need no model: single units, single units with half of the two beside each, and what the product does. READ
says whether `selector: auto` has the prompt read."""
HEADS, MEAN = "heads, windows", "mean of the sets"
JUDGED = 0.1
"""The keep rate of `gain_over_words`."""


@dataclass(frozen=True)
class QuestionsSettings:
    """questions: a file of `evals.questions.file`, or its folder. ways: as in EvidenceSettings, PLAIN or NEIGHBOURS.
    prompts: of each set, drawn by `seed`.

    most_gold: questions with a larger share of gold in the text are left out. journal: as in EvidenceSettings.
    """

    speculator: str
    questions: Path
    ways: tuple[str, ...] = (*OF_WORDS, HEADS)
    keep_rates: tuple[float, ...] = (0.1, 0.2)
    prompts: int = 50
    most_gold: float = 0.1
    seed: int = 0
    engine: str = "vllm"
    options: Mapping[str, Any] = field(default_factory=dict)
    journal: Path | None = None


Kept = dict[str, list[list[float]]]
"""By way: the share of the gold tokens that is kept at each keep rate, and that of the blind ones, without any []."""


def run(settings: QuestionsSettings, progress: Progress = silent) -> dict[str, Any]:
    """Measure. `rows`: for each set, way and keep rate, the gold kept. Raises SkimError as `read_questions`, and for an
    unknown way."""
    if unknown := [way for way in settings.ways if way not in (*OF_WORDS, *WAYS)]:
        raise SkimError(f"unknown way of scoring {unknown[0]!r}: choose from {', '.join((*OF_WORDS, *WAYS))}")
    if {*settings.ways} <= {*OF_WORDS}:
        settings = replace(settings, engine="mock")
    chosen, began = drawn(settings), machine()
    kept = asyncio.run(_measure(settings, load_tokenizer(settings.speculator), chosen, progress))
    shown = {name: value for name, value in vars(settings).items() if name not in ("journal", "options", "questions")}
    return {
        "machine": began,
        "settings": shown | {"speculator": model_name(settings.speculator), "options": dict(settings.options)},
        "rows": _rows(settings, chosen, kept),
    }


def drawn(settings: QuestionsSettings) -> list[Question]:
    """The questions with gold, of each set at most `prompts`. Raises SkimError as `read_questions`, and for none."""
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

    async def kept(engine: SpeculatorEngine, question: Question) -> Kept:
        return await gold_kept(engine, tokenizer, question, settings.ways, settings.keep_rates)

    head = {"ways": settings.ways, "keep_rates": settings.keep_rates, "file": settings.questions.name}
    items = {one.number: one for one in questions}
    return await measured(settings, "skim bench questions", head, items, kept, progress)


async def gold_kept(
    engine: SpeculatorEngine, tokenizer: Any, question: Question, ways: Sequence[str], keep_rates: Sequence[float]
) -> Kept:
    """The share of the gold tokens that each way keeps at each rate; empty for a prompt without a task, which runs
    dense."""
    prompt = render(question.messages, tokenizer)
    if prompt.text is None or prompt.offsets is None:
        raise SkimError("gold is found by the offsets of a rendered chat; this tokenizer has none")
    at, layout = prompt.text.find(question.document.strip()), prompt.layout(PrefillOptions())
    at -= len(question.document) - len(question.document.lstrip())
    if not len(layout.questions):
        return {}
    ranges = char_ranges(prompt.offsets)
    places = sorted((at + start, at + end) for start, end in question.gold)
    gold = mask_of([*filter(None, tokens_touched_by_each(places, ranges))], prompt.size)
    lengths = np.diff(layout.units, append=prompt.size)
    begins = np.maximum.accumulate([start for start, _ in ranges])[layout.units]
    counts, sizes = stem_counts(prompt.text, begins.tolist(), question.question)
    of_gold = 2 * np.add.reduceat(gold.astype(int), layout.units) >= lengths
    blind = gold & np.repeat(of_gold & blind_units(counts), lengths)
    plain = bm25(counts, sizes)
    of_units = {PLAIN: plain, NEIGHBOURS: with_neighbours(plain)}
    kept: Kept = {}
    for way in ways:
        if way == READ:
            kept[way] = [[float(layout.placed < PLACED)] * len(keep_rates), []]
            continue
        options = SelectionOptions(**WAYS[LEXICAL if way in of_units else way])
        if way in of_units:
            importance = np.repeat(of_units[way], lengths).astype(np.float32)
        else:
            importance = await importance_of(engine, f"questions-{question.number}-{way}", prompt, layout, options)
        asked = [options.model_copy(update={"keep_rate": rate}) for rate in keep_rates]
        chosen = [kept_tokens(layout, importance, one) for one in asked]
        kept[way] = [[float(one[part].mean()) for one in chosen] if part.any() else [] for part in (gold, blind)]
    return kept


async def gain_over_words(
    engine: SpeculatorEngine, tokenizer: Any, questions: Sequence[Question], progress: Callable[[int, int], None]
) -> float:
    """The gold that heads and words keep at JUDGED, less that of words alone: the mean of the sets.

    progress: called with the questions read so far, and all.
    """
    gains: dict[str, list[float]] = {}
    for number, question in enumerate(questions):
        progress(number, len(questions))
        kept = await gold_kept(engine, tokenizer, question, (HEADS, LEXICAL), (JUDGED,))
        if kept:
            gains.setdefault(question.set, []).append(kept[HEADS][0][0] - kept[LEXICAL][0][0])
    return float(np.mean([np.mean(of_set) for of_set in gains.values()]))


def _rows(settings: QuestionsSettings, questions: Sequence[Question], kept: Mapping[int, Kept]) -> list[dict[str, Any]]:
    """Of each set, then the means of the sets."""
    rows: list[dict[str, Any]] = []
    names = list(dict.fromkeys(one.set for one in questions if kept[one.number]))
    for name in names:
        of_set = [kept[one.number] for one in questions if one.set == name and kept[one.number]]
        for way in settings.ways:
            for place, rate in enumerate(settings.keep_rates):
                gold, blind = ([one[way][part][place] for one in of_set if one[way][part]] for part in (0, 1))
                mean, low, high = of_mean(gold)
                row = {"set": name, "way": way, "keep_rate": rate, "of": len(gold), "gold": mean}
                row |= {"low": low, "high": high, "all": float((np.array(gold) >= 0.999).mean())}
                rows.append(row | {"blind": float(np.mean(blind)) if blind else None, "blind_of": len(blind)})
    for way in settings.ways if len(names) > 1 else ():
        for rate in settings.keep_rates:
            same = [row for row in rows if (row["way"], row["keep_rate"]) == (way, rate)]
            row = {"set": MEAN, "way": way, "keep_rate": rate}
            row |= {name: sum(one[name] for one in same) for name in ("of", "blind_of")}
            rows.append(row | {name: _mean_of(same, name) for name in ("gold", "all", "blind")})
    return rows


def _mean_of(rows: Sequence[Mapping[str, Any]], name: str) -> float | None:
    values = [row[name] for row in rows if row[name] is not None]
    return float(np.mean(values)) if values else None


def describe(result: dict[str, Any]) -> str:
    """The conditions."""
    settings = result["settings"]
    return (
        f"Speculator `{settings['speculator']}`. Shown is the share of the tokens of marked evidence that is kept, the"
        " mean over the questions with its 95 % interval; the share of the questions of which all of it is kept; and"
        " of the evidence in units that share no word with the question (*blind*) the share that is kept. *read by"
        " auto* is the share of the questions that words do not place, so that `selector: auto` has the prompt read."
    )


def table(result: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """A row for each set and way, a column for each keep rate, and the blind gold at each."""
    rates = result["settings"]["keep_rates"]
    cells: dict[tuple[str, str, int], tuple[list[str], list[str]]] = {}
    for row in result["rows"]:
        interval = f" ({row['low']:.2f} to {row['high']:.2f})" if "low" in row else ""
        gold, blind = cells.setdefault((row["set"], row["way"], row["of"]), ([], []))
        whole = "" if row["way"] == READ else f"{interval}, all {row['all']:.2f}"
        gold.append(f"{row['gold']:.2f}{whole}")
        blind.append("-" if row.get("blind") is None else f"{row['blind']:.2f} of {row['blind_of']}")
    header = ["set", "way", "questions", *(f"{what} {rate:g}" for what in ("keep", "blind") for rate in rates)]
    return header, [[name, way, str(of), *gold, *blind] for (name, way, of), (gold, blind) in cells.items()]


def plot(result: dict[str, Any], path: Path) -> None:
    """The gold kept over the keep rate, a panel per set and a line per way."""
    names = list(dict.fromkeys(row["set"] for row in result["rows"] if row["set"] != MEAN))
    with plots.figure(path, result, panels=len(names)) as axes:
        for axis, name in zip(axes, names, strict=True):
            for way in [way for way in result["settings"]["ways"] if way != READ]:
                rows = [row for row in result["rows"] if (row["set"], row["way"]) == (name, way)]
                axis.plot([row["keep_rate"] for row in rows], [row["gold"] for row in rows], marker="o", label=way)
            axis.set(title=name, xlabel="keep rate", ylabel="gold kept", ylim=(0, 1.02))
        axes[0].legend()
