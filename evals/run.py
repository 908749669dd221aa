"""The measurement behind `skim eval`: make the samples, ask each with every selector and keep rate, and average."""

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from benchmarks.intervals import wilson
from benchmarks.machine import machine
from benchmarks.progress import Progress, silent
from evals import turns
from evals.ask import Answer, Asker, Case, Endpoint, Engines, load_tokenizer, model_name
from evals.prompts import DENSE, SELECTORS
from evals.quiz import Style
from evals.tasks import TASKS, Sample, describe, make_samples
from evals.turns import About
from kv_transfer.errors import SkimError

EXAMPLES = 2
"""Number of answers that the result quotes for each task and length."""


@dataclass(frozen=True)
class EvalSettings:
    """speculator, engine, target_options and speculator_options are not used with an endpoint.

    keep_rates: 1 is dense, which is always measured. samples: number per task and length. concurrency: samples that run
    at the same time; each sample is a few dozen requests. turns: questions about each document, in one conversation;
    with more than one, the turns take the place of `tasks` (`evals.turns`). about: what those documents are.
    """

    target: str
    speculator: str | None = None
    endpoint: str | None = None
    keep_rates: Sequence[float] = (0.05, 0.1, 0.2, 0.3, 0.5, 1.0)
    tasks: Sequence[str] = tuple(TASKS)
    lengths: Sequence[int] = (1024, 4096)
    samples: int = 50
    seed: int = 0
    style: Style = "instruct"
    look_ahead: int = 8
    max_tokens: int = 64
    engine: str = "vllm"
    concurrency: int = 4
    turns: int = 1
    about: About = "records"
    target_options: dict[str, Any] = field(default_factory=dict)
    speculator_options: dict[str, Any] = field(default_factory=dict)


def run(settings: EvalSettings, progress: Progress = silent) -> dict[str, Any]:
    """Measure. `cells`: the mean score of each task, length, selector and keep rate, with its 95 % interval.

    The result also has the descriptions of `tasks` and `selectors`, some answers (`examples`), the machine, the
    versions and the settings. Raises SkimError.
    """
    _check(settings)
    if settings.turns > 1:
        settings = replace(settings, tasks=tuple(map(turns.task_name, range(1, settings.turns + 1))))
    conversations = _conversations(settings)
    began = machine()
    progress("starting the engines" if settings.endpoint is None else "asking the endpoint", 0)
    selectors, answers = asyncio.run(_ask_all(settings, conversations, progress))
    samples, given = list(chain(*conversations)), list(chain(*answers))
    hidden = {"target": model_name(settings.target), "speculator": model_name(settings.speculator)}
    several = settings.turns > 1
    describe_task, described = (turns.describe_turn, turns.SELECTORS) if several else (describe, SELECTORS)
    return {
        "machine": began,
        "settings": vars(settings) | hidden | {"endpoint": settings.endpoint is not None},
        "tasks": {task: describe_task(task) for task in settings.tasks},
        "selectors": {name: described[name] for name in selectors},
        "cells": _cells(samples, given),
        "examples": _examples(samples, given),
    }


def _check(settings: EvalSettings) -> None:
    if (settings.endpoint is None) == (settings.speculator is None):
        raise SkimError("give the pair by --target and --speculator, or --endpoint and --target (for its tokenizer)")
    if settings.endpoint is not None and settings.turns > 1:
        raise SkimError("turns are measured with engines in this process: give --speculator, not --endpoint")
    wrong = [rate for rate in settings.keep_rates if not 0 < rate <= 1]
    if wrong:
        raise SkimError(f"keep rates must be in (0, 1], not {wrong[0]:g}")


def _conversations(settings: EvalSettings) -> list[list[Sample]]:
    """The samples, those of one conversation together.

    They are made before an engine starts, so that a wrong task or length is reported at once.
    """
    tokenizer = load_tokenizer(settings.target)

    def tokens(text: str) -> int:
        return len(tokenizer(text, add_special_tokens=False).input_ids)

    how: dict[str, Any] = {"seed": settings.seed, "style": settings.style, "tokens": tokens}
    if settings.turns > 1:
        how["about"] = settings.about
        return list(turns.make_conversations(settings.turns, settings.lengths, settings.samples, **how))
    return [[sample] for sample in make_samples(settings.tasks, settings.lengths, settings.samples, **how)]


def _asker(settings: EvalSettings) -> Asker:
    shared: dict[str, Any] = {
        "keep_rates": settings.keep_rates,
        "look_ahead": settings.look_ahead,
        "max_tokens": settings.max_tokens,
    }
    if settings.endpoint is not None:
        return Endpoint(settings.endpoint, **shared)
    assert settings.speculator is not None
    engines = turns.TurnEngines if settings.turns > 1 else Engines
    return engines(
        settings.target,
        settings.speculator,
        engine=settings.engine,
        target_options=settings.target_options,
        speculator_options=settings.speculator_options,
        **shared,
    )


async def _ask_all(
    settings: EvalSettings, conversations: list[list[Sample]], progress: Progress
) -> tuple[tuple[str, ...], list[list[dict[Case, Answer]]]]:
    """The measured selectors, and the answers to each sample. The first error ends the run."""
    asker = _asker(settings)
    slots, done = asyncio.Semaphore(settings.concurrency), 0

    async def ask(conversation: list[Sample]) -> list[dict[Case, Answer]]:
        nonlocal done
        async with slots:
            answers = [await asker.ask(sample) for sample in conversation]
        done += 1
        last = conversation[-1]
        progress(f"{last.task}, {last.length} tokens", done / len(conversations))
        return answers

    try:
        return asker.selectors, await asyncio.gather(*map(ask, conversations))
    finally:
        await asker.close()


def _cells(samples: list[Sample], answers: list[dict[Case, Answer]]) -> list[dict[str, Any]]:
    scores: dict[tuple[str, int, str, float], list[tuple[float, float]]] = defaultdict(list)
    for sample, by_case in zip(samples, answers, strict=True):
        for (name, rate), answer in by_case.items():
            scored = (sample.quiz.score(answer.text), answer.kept)
            scores[sample.task, sample.length, name, rate].append(scored)
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
