"""The measurement behind `skim bench forms`: whether task, rules and evidence are kept, wherever they stand.

Each document is asked about in each form of `evals.tasks.forms`, with the default way of reading. The control is the
same document with the question last. It needs the speculator alone.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.report import plots
from benchmarks.report.machine import machine
from benchmarks.report.progress import Progress, silent
from benchmarks.report.statistics import wilson
from evals.run.ask import load_tokenizer, model_name
from evals.run.speculator_alone import measured
from evals.selection.evidence import spans_of_texts
from evals.selection.prompts import template_messages
from evals.tasks.forms import FORMS, LANGUAGES, FormPrompt, form_prompts
from kv_transfer.arrays import mask_of
from kv_transfer.messages import SelectRequest
from kv_transfer.options import SelectionOptions
from router.options.request import PrefillOptions
from skim.prompts import render
from speculator_service.engine import SpeculatorEngine
from speculator_service.reading import Reading
from speculator_service.selection.select import select
from speculator_service.service import scores_of


@dataclass(frozen=True)
class FormsSettings:
    """sentences: of each document. prompts: in all, one form and language after another. journal: as in
    `EvidenceSettings`."""

    speculator: str
    keep_rate: float = 0.2
    sentences: int = 130
    prompts: int = 400
    seed: int = 0
    engine: str = "vllm"
    options: Mapping[str, Any] = field(default_factory=dict)
    journal: Path | None = None


Found = dict[str, bool | float]
"""task, rules, evidence, control: kept whole. speech: the share of the prompt that is always kept."""


def run(settings: FormsSettings, progress: Progress = silent) -> dict[str, Any]:
    """Measure. `rows`: for each form, of how many prompts each part was kept. Raises SkimError as `create_engine`."""
    tokenizer, began = load_tokenizer(settings.speculator), machine()
    prompts = list(islice(_prompts(settings), settings.prompts))
    found = asyncio.run(_measure(settings, tokenizer, prompts, progress))
    shown = {name: value for name, value in vars(settings).items() if name not in ("journal", "options")}
    return {
        "machine": began,
        "settings": shown | {"speculator": model_name(settings.speculator), "options": dict(settings.options)},
        "rows": [_row(form, [found[at] for at, one in enumerate(prompts) if one.form == form]) for form in FORMS],
        "missed": [
            {"form": one.form, "language": one.language, "kept": found[at]}
            for at, one in enumerate(prompts)
            if not (found[at]["task"] and found[at]["rules"] and found[at]["evidence"] >= found[at]["control"])
        ],
    }


def _prompts(settings: FormsSettings) -> Any:
    for number in range(-(-settings.prompts // (len(FORMS) * len(LANGUAGES)))):
        yield from form_prompts(settings.sentences, settings.seed + number)


async def _measure(
    settings: FormsSettings, tokenizer: Any, prompts: Sequence[FormPrompt], progress: Progress
) -> dict[int, Found]:
    """By the prompt's number, what was kept of it."""

    async def kept(engine: SpeculatorEngine, prompt: FormPrompt) -> Found:
        return await _kept(engine, tokenizer, prompt, settings.keep_rate, f"forms-{prompts.index(prompt)}")

    head = {name: getattr(settings, name) for name in ("keep_rate", "sentences", "seed")}
    return await measured(settings, "skim bench forms", head, dict(enumerate(prompts)), kept, progress)


async def _kept(engine: SpeculatorEngine, tokenizer: Any, prompt: FormPrompt, rate: float, name: str) -> Found:
    parts = {"task": [prompt.task], "rules": prompt.rules, "evidence": [prompt.evidence]}
    asked = await _whole(engine, tokenizer, prompt.messages, parts, rate, name)
    control = await _whole(engine, tokenizer, prompt.control, {"evidence": [prompt.evidence]}, rate, f"{name}-control")
    return asked | {"control": control["evidence"]}


async def _whole(
    engine: SpeculatorEngine, tokenizer: Any, messages: Any, parts: Mapping[str, Sequence[str]], rate: float, name: str
) -> Found:
    """For each part, whether all of its texts are kept whole, each in one place at least."""
    rendered = render(template_messages(list(messages)), tokenizer)
    layout = rendered.layout(PrefillOptions())
    request = SelectRequest(name, rendered.token_ids, SelectionOptions(keep_rate=rate), layout)
    reading = Reading.of(request, engine.info)
    importance = (await scores_of(engine, reading)).importance
    kept = np.zeros(rendered.size, bool)
    kept[select(importance, reading.request.options, layout)[0]] = True
    found: Found = {"speech": float(layout.fixed(rendered.size, 1).mean())}
    for part, texts in parts.items():
        places = [spans_of_texts(rendered, [text]) for text in texts]
        found[part] = all(any(_is_kept(kept, place) for place in spans) for spans in places)
    return found


def _is_kept(kept: np.ndarray, place: tuple[int, int]) -> bool:
    return bool(kept[mask_of([place], kept.size)].all())


def _row(form: str, found: Sequence[Found]) -> dict[str, Any]:
    kept = {part: sum(bool(one[part]) for one in found) for part in ("task", "rules", "evidence", "control")}
    return {"form": form, "of": len(found), **kept, "speech": sum(one["speech"] for one in found) / max(1, len(found))}


def describe(result: dict[str, Any]) -> str:
    """The conditions."""
    settings = result["settings"]
    return (
        f"Speculator `{settings['speculator']}`, {settings['prompts']} prompts of {len(result['rows'])} forms in"
        f" {len(LANGUAGES)} languages, documents of {settings['sentences']} sentences, keep rate"
        f" {settings['keep_rate']:g}. A part counts as kept if all of its text is. *control* is the evidence of the"
        " same document with the question last."
    )


def table(result: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """A row for each form, and one for all of them with 95 % intervals (Wilson)."""
    parts = ("task", "rules", "evidence", "control")
    rows = [[row["form"], *(f"{row[part]} of {row['of']}" for part in parts)] for row in result["rows"] if row["of"]]
    of = sum(row["of"] for row in result["rows"])
    cells = []
    for part in parts:
        share = sum(row[part] for row in result["rows"]) / of
        low, high = wilson(share, of)
        cells.append(f"{share:.3f} ({low:.2f} to {high:.2f})")
    return ["form", *parts], [*rows, ["all", *cells]]


def plot(result: dict[str, Any], path: Path) -> None:
    """The shares of all prompts of which each part was kept."""
    parts = ("task", "rules", "evidence", "control")
    of = sum(row["of"] for row in result["rows"])
    with plots.figure(path, result, panels=1) as (axis,):
        axis.bar(parts, [sum(row[part] for row in result["rows"]) / of for part in parts])
        axis.set(ylabel="prompts that keep all of it", ylim=(0, 1.02))
