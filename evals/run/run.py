"""The measurement behind `skim eval`: make the samples, ask each with every selector and keep rate, and average."""

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

from benchmarks.report.machine import machine
from benchmarks.report.progress import Progress, silent
from benchmarks.report.statistics import wilson
from evals.questions.endpoint import QuestionEndpoint
from evals.questions.file import read_questions
from evals.questions.samples import draw
from evals.questions.ways import DEFAULT, NO_DOCUMENT, WAYS, QuestionEngines
from evals.run import turns
from evals.run.ask import Answer, Asker, Case, Engines, load_tokenizer, model_name
from evals.run.conversations import ask_conversations, given_answers, scored
from evals.run.endpoint import Endpoint
from evals.run.failure_pages import worse_answers, write_pages
from evals.run.journal import Journal
from evals.run.turns import About
from evals.selection.selectors import DENSE, SELECTORS, Selector
from evals.tasks.quiz import Style
from evals.tasks.registry import TASKS, Sample, describe, make_samples
from router.options.request import PrefillOptions
from skim_common.errors import SkimError

EXAMPLES = 2
"""Number of answers that the result quotes for each task and length."""


@dataclass(frozen=True)
class EvalSettings:
    """speculator, engine, target_options and speculator_options are not used with an endpoint.

    keep_rates: 1 is dense, which is always measured. samples: number per task and length. selectors: names of
    `known_selectors`; empty: all. concurrency: samples that run at the same time; each sample is a few dozen requests.
    turns: questions about each document, in one conversation; with more than one, the turns take the place of `tasks`
    (`evals.run.turns`). about: what those documents are. timed: number of samples whose cases are
    timed, one after the other; they are spread over the tasks and lengths. resume: the file of `evals.run.journal`.
    explain: the folder for `evals.run.failure_pages`. questions: a file of `evals.questions.file`, whose questions take
    the place of `tasks`; samples is then the number per set. The selectors are `evals.questions.ways` with questions,
    and where DEFAULT is one of them.
    """

    target: str
    speculator: str | None = None
    endpoint: str | None = None
    keep_rates: Sequence[float] = (0.05, 0.1, 0.2, 0.3, 0.5, 1.0)
    tasks: Sequence[str] = tuple(TASKS)
    lengths: Sequence[int] = (1024, 4096)
    samples: int = 50
    selectors: Sequence[str] = ()
    seed: int = 0
    style: Style = "instruct"
    look_ahead: int = 8
    max_tokens: int = 64
    engine: str = "vllm"
    concurrency: int = 4
    turns: int = 1
    about: About = "records"
    timed: int = 0
    resume: Path | None = None
    explain: Path | None = None
    questions: Path | None = None
    target_options: dict[str, Any] = field(default_factory=dict)
    speculator_options: dict[str, Any] = field(default_factory=dict)

    @property
    def by_ways(self) -> bool:
        """The default, and others with as many tokens as it keeps, are compared."""
        return self.questions is not None or DEFAULT in self.selectors

    @property
    def known_selectors(self) -> Mapping[str, Selector]:
        """The selectors that can be measured, by name."""
        if self.by_ways:
            return WAYS
        return SELECTORS if self.turns == 1 else turns.SELECTORS

    def in_results(self) -> dict[str, Any]:
        """The settings without names of folders and files."""
        hidden = {"target": model_name(self.target), "speculator": model_name(self.speculator)}
        found = asdict(self) | hidden | {"endpoint": self.endpoint is not None}
        of_tasks = ("tasks", "lengths", "style", "turns", "about") if self.questions is not None else ()
        unused = {"resume", "explain", "questions", *of_tasks}
        return {name: value for name, value in found.items() if name not in unused}


def run(settings: EvalSettings, progress: Progress = silent) -> dict[str, Any]:
    """Measure. `cells`: the mean score of each task, length, selector and keep rate, with its 95 % interval. `samples`:
    the scores of each sample. `timings`: those of the timed samples.

    The result also has the descriptions of `tasks` and `selectors`, some answers (`examples`), the machine, the
    versions and the settings. Raises SkimError.
    """
    settings = replace(settings, selectors=tuple(settings.selectors or settings.known_selectors))
    _check(settings)
    if settings.turns > 1:
        settings = replace(settings, tasks=tuple(map(turns.task_name, range(1, settings.turns + 1))))
    conversations = _conversations(settings)
    journal = _journal(settings)
    began = machine()
    progress("starting the engines" if settings.endpoint is None else "asking the endpoint", 0)
    selectors, cases = asyncio.run(_ask_all(settings, conversations, journal, progress))
    samples = list(chain(*conversations))
    given = given_answers(samples, journal, cases)
    found = {
        "machine": began,
        "settings": settings.in_results(),
        "selectors": {name: settings.known_selectors[name].what for name in selectors},
        "samples": [scored(sample, answers) for sample, answers in zip(samples, given, strict=True)],
    }
    if settings.questions is not None:
        return found
    describe_task = describe if settings.turns == 1 else turns.describe_turn
    return found | {
        "tasks": {task: describe_task(task) for task in settings.tasks},
        "cells": _cells(samples, given),
        "timings": [asdict(timing) for sample in samples for timing in journal.timings(sample)],
        "examples": _examples(samples, given),
    }


def _check(settings: EvalSettings) -> None:
    if (settings.endpoint is None) == (settings.speculator is None):
        raise SkimError("give the pair by --target and --speculator, or --endpoint and --target (for its tokenizer)")
    if settings.endpoint is not None and settings.turns > 1:
        raise SkimError("turns are measured with engines in this process: give --speculator, not --endpoint")
    if settings.by_ways and (settings.turns > 1 or settings.timed):
        raise SkimError(
            f"questions of a file have no turns and are not timed, nor is {DEFAULT!r}: omit --turns and --timed"
        )
    if settings.questions is None and settings.by_ways and NO_DOCUMENT in settings.selectors:
        raise SkimError(f"{NO_DOCUMENT!r} is for questions of a file: give --questions, or omit this selector")
    if settings.timed and (settings.endpoint is not None or settings.turns > 1):
        raise SkimError("--timed needs engines in this process, and the tasks: omit --endpoint and --turns")
    if settings.explain and (settings.endpoint is not None or settings.turns > 1):
        raise SkimError("--explain needs engines in this process, and the tasks: omit --endpoint and --turns")
    wrong = [rate for rate in settings.keep_rates if not 0 < rate <= 1]
    if wrong:
        raise SkimError(f"keep rates must be in (0, 1], not {wrong[0]:g}")
    unknown = [name for name in settings.selectors if name not in settings.known_selectors]
    if unknown:
        raise SkimError(f"unknown selector {unknown[0]!r}: choose from {', '.join(settings.known_selectors)}")


def _conversations(settings: EvalSettings) -> list[list[Sample]]:
    """The samples, those of one conversation together.

    They are made before an engine starts, so that a wrong task or length is reported at once.
    """
    tokenizer = load_tokenizer(settings.target)

    def tokens(text: str) -> int:
        return len(tokenizer(text, add_special_tokens=False).input_ids)

    if settings.questions is not None:
        return [[one] for one in draw(read_questions(settings.questions), settings.samples, settings.seed, tokens)]
    how: dict[str, Any] = {"seed": settings.seed, "style": settings.style, "tokens": tokens}
    if settings.turns > 1:
        how["about"] = settings.about
        return list(turns.make_conversations(settings.turns, settings.lengths, settings.samples, **how))
    return [[sample] for sample in make_samples(settings.tasks, settings.lengths, settings.samples, **how)]


def _journal(settings: EvalSettings) -> Journal:
    found = settings.in_results()
    of_all = ("target", "engine", "endpoint", "target_options", "max_tokens", "style")
    of_selection = ("speculator", "speculator_options", "look_ahead", "turns")
    target, selection = ({name: found.get(name) for name in names} for names in (of_all, of_selection))
    return Journal(settings.resume, target, selection | {"defaults": PrefillOptions().model_dump()})


def _asker(settings: EvalSettings) -> Asker:
    shared: dict[str, Any] = {
        "keep_rates": settings.keep_rates,
        "look_ahead": settings.look_ahead,
        "max_tokens": settings.max_tokens,
    }
    chosen: dict[str, Any] = {"selectors": settings.selectors}
    if settings.endpoint is not None and settings.by_ways:
        return QuestionEndpoint(settings.endpoint, tokenizer=load_tokenizer(settings.target), **chosen, **shared)
    if settings.endpoint is not None:
        return Endpoint(settings.endpoint, **chosen, **shared)
    assert settings.speculator is not None
    shared |= {
        "engine": settings.engine,
        "target_options": settings.target_options,
        "speculator_options": settings.speculator_options,
    }
    if settings.turns > 1:
        return turns.TurnEngines(settings.target, settings.speculator, **chosen, **shared)
    engines = QuestionEngines if settings.by_ways else Engines
    return engines(settings.target, settings.speculator, **chosen, **shared)


async def _ask_all(
    settings: EvalSettings, conversations: list[list[Sample]], journal: Journal, progress: Progress
) -> tuple[tuple[str, ...], list[Case]]:
    """Ask what the journal does not know yet; the first error ends the run. Returns the selectors and the cases."""
    asker = _asker(settings)
    try:
        await ask_conversations(asker, conversations, journal, progress, settings.concurrency)
        if isinstance(asker, Engines):
            samples = list(chain(*conversations))
            await _time(asker, settings.timed, samples, journal, progress)
            if settings.explain is not None:
                found = list(worse_answers(samples, given_answers(samples, journal, asker.cases), asker.explained))
                await write_pages(asker, settings.target, found, settings.explain, progress)
        return asker.selectors, asker.cases
    finally:
        await asker.close()


async def _time(asker: Engines, count: int, samples: list[Sample], journal: Journal, progress: Progress) -> None:
    """Time `count` samples, spread over all of them: the clock of the results is a line through their times."""
    for at in sorted({place * len(samples) // count for place in range(count)}):
        sample = samples[at]
        names = {timing.selector for timing in journal.timings(sample)}
        if not {DENSE, *asker.selectors} <= names:
            progress(f"timing {sample.task}, {sample.length} tokens", 1)
            journal.add_timings(sample, await asker.time(sample))


def _cells(samples: list[Sample], answers: list[dict[Case, Answer]]) -> list[dict[str, Any]]:
    scores: dict[tuple[str, int, str, float], list[tuple[float, float]]] = defaultdict(list)
    for sample, by_case in zip(samples, answers, strict=True):
        for (name, rate), answer in by_case.items():
            scores[sample.task, sample.length, name, rate].append((sample.quiz.score(answer.text), answer.kept))
    cells = []
    for (task, length, name, rate), found in scores.items():
        n = len(found)
        score, kept = (sum(values) / n for values in zip(*found, strict=True))
        low, high = wilson(score, n)
        where = {"task": task, "length": length, "selector": name, "keep_rate": rate}
        cells.append({**where, "n": n, "score": score, "low": low, "high": high, "kept": kept})
    return cells


def _examples(samples: list[Sample], answers: list[dict[Case, Answer]]) -> list[dict[str, Any]]:
    """The first questions of each task at each length, with the target's answer to the dense prompt."""
    quoted: dict[tuple[str, int], int] = defaultdict(int)
    examples = []
    for sample, by_case in zip(samples, answers, strict=True):
        quoted[sample.task, sample.length] += 1
        if quoted[sample.task, sample.length] <= EXAMPLES:
            examples.append(
                {
                    "task": sample.task,
                    "length": sample.length,
                    "question": sample.quiz.question,
                    "expected": sample.quiz.expected,
                    "dense": by_case[DENSE, 1.0].text,
                }
            )
    return examples
