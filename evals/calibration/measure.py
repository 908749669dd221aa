"""The measurement behind `skim calibrate`: for one pair, how to score and how much to keep.

1. Chunk recall of several ways of scoring, on generated prompts whose evidence is known (`calibration_recall`).
2. With the best way, the answers at several coverages beside the dense answers, on the user's prompts or the generated
   ones (`calibration_curve`).

Each prompt's result is a line of the journal, so that a run that was cut off goes on.
"""

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness.json_lines import JsonLines
from benchmarks.report.machine import machine
from benchmarks.report.progress import Progress, silent
from evals.calibration.curve import COVERAGES, Observation, observe, wanted_coverage
from evals.calibration.prompts import TASKS, CalibrationPrompt, from_file, generated
from evals.calibration.recall import JUDGED, Recall, beside_lexical, best_way, recalls
from evals.run.ask import load_tokenizer, model_name
from evals.run.engines import start_pair
from evals.selection.chunk_recall import LEXICAL, WAYS, importance_of
from kv_transfer.arrays import Float32Array
from kv_transfer.options import AUTO, SelectionOptions
from router.options.request import PrefillOptions
from skim_common.errors import SkimError


@dataclass(frozen=True)
class CalibrationSettings:
    """selection: the deployment's, which the found values replace in part. prompts: a JSONL file; None: generated.

    agreement: the wanted mean agreement with the dense answers. count: generated prompts for each task, and prompts of
    the file times the number of tasks at most. journal: where results are kept; None: nowhere.
    """

    target: str
    speculator: str
    selection: SelectionOptions = field(default_factory=SelectionOptions)
    prompts: Path | None = None
    agreement: float = 0.95
    count: int = 4
    length: int = 2048
    seed: int = 0
    max_tokens: int = 48
    engine: str = "vllm"
    journal: Path | None = None
    target_options: Mapping[str, Any] = field(default_factory=dict)
    speculator_options: Mapping[str, Any] = field(default_factory=dict)

    def way(self, name: str) -> SelectionOptions:
        """The selection options with one way of scoring."""
        return SelectionOptions(**{**self.selection.model_dump(), **WAYS[name]})


def run(settings: CalibrationSettings, progress: Progress = silent) -> dict[str, Any]:
    """Measure. Raises SkimError.

    `recall`: mean recall by way and keep rate. `way`: the best one. `curve`: by coverage, the kept share and the
    agreement (means). `selection`: what is written to the config. `lexical`: one sentence about BM25.
    """
    if not 0 < settings.agreement <= 1:
        raise SkimError(f"the wanted agreement must be in (0, 1], not {settings.agreement:g}")
    tokenizer = load_tokenizer(settings.target)
    options = PrefillOptions(**settings.selection.model_dump(), min_prompt_tokens=1)
    known = list(generated(tokenizer, options, settings.length, settings.count, settings.seed))
    asked, skipped = known, {}
    if settings.prompts is not None:
        asked, left_out = from_file(settings.prompts, tokenizer, options, settings.count * len(TASKS))
        skipped = left_out.reasons
    began = machine()
    progress("starting the engines", 0)
    recall, way, observations = asyncio.run(_measure(settings, known, asked, progress))
    coverage = wanted_coverage(observations, settings.agreement)
    chosen = COVERAGES[-1] if coverage is None else coverage
    names = {"target": model_name(settings.target), "speculator": model_name(settings.speculator)}
    return {
        "machine": began,
        "settings": {
            **names,
            "agreement": settings.agreement,
            "count": settings.count,
            "length": settings.length,
            "seed": settings.seed,
            "max_tokens": settings.max_tokens,
            "engine": settings.engine,
            "own_prompts": settings.prompts is not None,
            "bounds": [settings.selection.min_keep, settings.selection.largest_share],
        },
        "prompts": len(observations),
        "skipped": skipped,
        "recall": {
            name: {rate: float(np.mean(values)) for rate, values in rates.items()} for name, rates in recall.items()
        },
        "way": way,
        "lexical": beside_lexical(recall, way),
        "curve": [
            {
                "coverage": share,
                "kept": float(np.mean([one.kept[place] for one in observations])),
                "agreement": float(np.mean([one.agreement[place] for one in observations])),
            }
            for place, share in enumerate(COVERAGES)
        ],
        "observations": [one.to_json() for one in observations],
        "reached": coverage is not None,
        "selection": {"keep_rate": AUTO, "coverage": chosen, **WAYS[way]},
    }


async def _measure(
    settings: CalibrationSettings,
    known: Sequence[CalibrationPrompt],
    asked: Sequence[CalibrationPrompt],
    progress: Progress,
) -> tuple[Recall, str, list[Observation]]:
    pair = start_pair(
        settings.target, settings.speculator, settings.engine, settings.target_options, settings.speculator_options
    )
    journal = CalibrationJournal(settings.journal, settings)
    steps, done = len(known) * len(WAYS) + 4 * len(asked), 0

    def went(what: str, weight: int) -> None:
        nonlocal done
        done += weight
        progress(what, done / steps)

    async def scored(prompt: CalibrationPrompt, options: SelectionOptions) -> Float32Array:
        return await importance_of(pair.speculator, pair.name("score"), prompt.prompt, prompt.layout, options)

    try:
        recall: Recall = {name: {} for name in WAYS}
        for prompt in known:
            for name in WAYS:
                options = settings.way(name)

                async def measured(
                    prompt: CalibrationPrompt = prompt, options: SelectionOptions = options
                ) -> dict[str, float]:
                    return recalls(prompt, await scored(prompt, options), options)

                for rate, value in (await journal.once(["recall", prompt.name, name], measured)).items():
                    recall[name].setdefault(rate, []).append(value)
                went(f"scoring: {name}", 1)
        way = best_way(recall, [name for name in WAYS if name != LEXICAL])
        options = settings.way(way)
        observations = []
        for prompt in asked:

            async def observed(prompt: CalibrationPrompt = prompt) -> dict[str, Any]:
                importance = await scored(prompt, options)
                return (await observe(pair, prompt, importance, options, settings.max_tokens)).to_json()

            found = await journal.once(["answers", _digest(prompt), way], observed)
            observations.append(Observation(found["name"], tuple(found["kept"]), tuple(found["agreement"])))
            went("answers", 4)
        return recall, way, observations
    finally:
        await pair.close()


class CalibrationJournal:
    """Results by key in a JSONL file; each is measured once."""

    def __init__(self, path: Path | None, settings: CalibrationSettings) -> None:
        """Read the file if it exists. Raises SkimError for a file of another calibration, or that is none."""
        head = {
            "calibration": [settings.target, settings.speculator, settings.length, settings.seed, settings.max_tokens],
            "selection": settings.selection.model_dump(),
        }
        self._known: dict[str, dict[str, Any]] = {}
        self._file = JsonLines(path, head, "skim calibrate", self._take)

    def _take(self, line: dict[str, Any]) -> None:
        self._known[json.dumps(line["key"])] = line["result"]

    async def once(self, key: Sequence[str], measure: Callable[[], Awaitable[dict[str, Any]]]) -> dict[str, Any]:
        """The result of `measure` for this key, from the file if it is known."""
        name = json.dumps(list(key))
        if name not in self._known:
            self._known[name] = await measure()
            self._file.append({"key": list(key), "result": self._known[name]})
        return self._known[name]


def _digest(prompt: CalibrationPrompt) -> str:
    return hashlib.sha256(prompt.prompt.token_ids.tobytes()).hexdigest()[:16]


def describe(result: dict[str, Any]) -> str:
    """The result in a few sentences."""
    settings, chosen = result["settings"], result["selection"]
    at = next(point for point in result["curve"] if point["coverage"] == chosen["coverage"])
    best = result["recall"][result["way"]][str(JUDGED)]
    words = [
        f"{settings['speculator']} reading for {settings['target']}, {result['prompts']} prompts.",
        f"Best way of scoring: {result['way']} (finds {100 * best:.0f} % of the evidence at keep rate {JUDGED:g}).",
        result["lexical"],
    ]
    agreed = f"mean agreement {at['agreement']:.2f}, {100 * at['kept']:.0f} % of the tokens kept"
    if result["reached"]:
        words.append(f"Coverage {chosen['coverage']:g} reaches the wanted agreement: {agreed}.")
    else:
        words.append(
            f"No coverage reaches the agreement {settings['agreement']:g} within the bounds"
            f" {settings['bounds'][0]:g} to {settings['bounds'][1]:g}; the largest, {chosen['coverage']:g}, has:"
            f" {agreed}. Raise max_keep, use a larger speculator, or run dense."
        )
    return "\n".join(words)


def table(result: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """The curve: a row for each coverage."""
    rows = [
        [f"{point['coverage']:g}", f"{100 * point['kept']:.0f} %", f"{point['agreement']:.3f}"]
        for point in result["curve"]
    ]
    return ["coverage", "kept", "agreement"], rows


def plot(result: dict[str, Any], path: Path) -> None:
    """Left: agreement by kept share, with the chosen coverage. Right: recall by keep rate of each way of scoring."""
    from benchmarks.report import plots

    with plots.figure(path, result, panels=2) as (curve, recall):
        points = result["curve"]
        curve.plot([p["kept"] for p in points], [p["agreement"] for p in points])
        for point in points:
            where = point["kept"], point["agreement"]
            curve.annotate(f"{point['coverage']:g}", where, xytext=(4, -14), textcoords="offset points")
        curve.axhline(result["settings"]["agreement"], linestyle="--", marker="", color="grey")
        curve.set(xlabel="kept share (labels: coverage)", ylabel="agreement with the dense answer", ylim=(0, 1.02))
        for number, (name, rates) in enumerate(result["recall"].items()):
            # There are more ways of scoring than colours.
            style = "-" if number < len(plots.COLOURS) else "--"
            recall.plot([float(rate) for rate in rates], list(rates.values()), label=name, linestyle=style)
        recall.set(xlabel="keep rate", ylabel="chunk recall", ylim=(0, 1.02))
        recall.legend(fontsize=9, handlelength=4, loc="upper left", bbox_to_anchor=(1, 1))
