"""The measurement behind `skim bench recall`: each prompt dense, with a fresh selection, and with recalls."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks.intervals import wilson
from benchmarks.machine import machine
from benchmarks.progress import Progress, silent
from cluster.in_process.async_pair import AsyncPair
from cluster.in_process.prompts import load_tokenizer, render
from evals.engines import start_pair
from evals.evidence import evidence_spans
from evals.mid_answer.recall import Attempt, Recaller, Trigger
from evals.mid_answer.tasks import TASKS, Sample, describe, make_sample
from kv_transfer.errors import SkimError
from kv_transfer.messages import KeptPrompt
from kv_transfer.model_source import public_name
from kv_transfer.options import SelectionOptions
from speculator_service.scoring.selection import select
from target_service.sampling import FINAL_ONLY

DENSE, FRESH, RECALLED, AS_MANY = "dense", "fresh", "recalled", "as many tokens"
WAYS = {
    DENSE: "the whole prompt",
    FRESH: "the speculator's selection",
    RECALLED: "this selection, with recalls",
    AS_MANY: "a selection before the answer, of as many tokens as the recalls end with",
}
RIGHT = 0.9
"""Score from which an answer is right."""


@dataclass(frozen=True)
class RecallSettings:
    """trigger: as `recall.Trigger`. options: how the prompt is scored, apart from the keep rate."""

    target: str
    speculator: str
    tasks: Sequence[str] = tuple(TASKS)
    keep_rate: float = 0.1
    prompt_tokens: int = 1200
    samples: int = 16
    seed: int = 0
    max_tokens: int = 112
    trigger: Trigger = "rejection"
    aggregation: str = "head_max_layer_mean"
    engine: str = "vllm"
    concurrency: int = 4
    target_options: dict[str, Any] = field(default_factory=dict)
    speculator_options: dict[str, Any] = field(default_factory=dict)


def run(settings: RecallSettings, progress: Progress = silent) -> dict[str, Any]:
    """Measure. `rows`: a task and a way each, see `_row`. `answers`: of each sample, for a look at single cases.

    Raises SkimError.
    """
    if unknown := [task for task in settings.tasks if task not in TASKS]:
        raise SkimError(f"unknown task {unknown[0]!r}: choose from {', '.join(TASKS)}")
    samples = _samples(settings)
    began = machine()
    progress("starting the engines", 0)
    answers = asyncio.run(_ask_all(settings, samples, progress))
    names = {"target": public_name(settings.target), "speculator": public_name(settings.speculator)}
    return {
        "machine": began,
        "settings": vars(settings) | names,
        "tasks": {task: describe(task) for task in settings.tasks},
        "rows": [_row(task, way, answers) for task in settings.tasks for way in WAYS],
        "answers": answers,
    }


def _samples(settings: RecallSettings) -> list[Sample]:
    """Made before an engine starts, so that a task that cannot be made is reported at once."""
    tokenizer = load_tokenizer(settings.target)

    def count(text: str) -> int:
        return len(tokenizer(text, add_special_tokens=False).input_ids)

    return [
        make_sample(task, settings.prompt_tokens, count, f"{settings.seed} {task} {index}")
        for task in settings.tasks
        for index in range(settings.samples)
    ]


async def _ask_all(settings: RecallSettings, samples: list[Sample], progress: Progress) -> list[dict[str, Any]]:
    pair = start_pair(
        settings.target, settings.speculator, settings.engine, settings.target_options, settings.speculator_options
    )
    slots, done = asyncio.Semaphore(settings.concurrency), 0

    async def ask(sample: Sample) -> dict[str, Any]:
        nonlocal done
        async with slots:
            answer = await _ask(pair, settings, sample)
        done += 1
        progress(sample.task, done / len(samples))
        return answer

    try:
        return await asyncio.gather(*map(ask, samples))
    finally:
        await pair.close()


async def _ask(pair: AsyncPair, settings: RecallSettings, sample: Sample) -> dict[str, Any]:
    """The answers to one sample, by way."""
    prompt = render([{"role": "user", "content": sample.text}], pair.tokenizer)
    size, options = int(prompt.token_ids.size), SelectionOptions(keep_rate=settings.keep_rate)
    session = pair.name("session")
    scores = await pair.speculator.score(
        session, prompt.token_ids, options, keep_session=True, question=prompt.question
    )

    def kept_at(rate: float) -> KeptPrompt:
        chosen, _ = select(scores.importance, options.model_copy(update={"keep_rate": rate}), prompt.protected.tolist())
        positions = chosen.numpy().astype(np.int32)
        return KeptPrompt(prompt.token_ids[positions], positions, size)

    recaller = Recaller(pair, options.model_copy(update={"aggregation": settings.aggregation}), settings.max_tokens)
    dense, fresh = KeptPrompt.dense(prompt.token_ids), kept_at(settings.keep_rate)
    recalled = await recaller.answer(prompt, fresh, session, settings.trigger)
    await pair.speculator.close_session(session)
    as_many = _of_size(kept_at, settings.keep_rate, int(recalled.kept.token_ids.size))
    plain = {DENSE: dense, FRESH: fresh, AS_MANY: as_many}
    texts = await asyncio.gather(*(_answer(pair, kept, settings.max_tokens) for kept in plain.values()))
    chunk = options.chunk_size
    evidence = [set(range(a // chunk, (b - 1) // chunk + 1)) for a, b in evidence_spans(prompt, sample.quiz)]
    given = {way: Attempt(text, plain[way]) for way, text in zip(plain, texts, strict=True)} | {RECALLED: recalled}
    return {
        "task": sample.task,
        "tokens": size,
        "expected": sample.quiz.expected,
        "ways": {way: _result(sample, given[way], evidence, chunk) for way in WAYS},
    }


def _of_size(kept_at: Callable[[float], KeptPrompt], rate: float, tokens: int) -> KeptPrompt:
    """The selection of the lowest keep rate from `rate` on, in steps of a hundredth, that has at least `tokens`."""
    rates = (step / 100 for step in range(round(100 * rate), 101))
    return next(kept for kept in map(kept_at, rates) if kept.token_ids.size >= tokens)


async def _answer(pair: AsyncPair, kept: KeptPrompt, max_tokens: int) -> str:
    sampling = {"temperature": 0.0, "max_tokens": max_tokens, "output_kind": FINAL_ONLY}
    outputs = [output async for output in pair.generate(kept, sampling)]
    return outputs[-1].completions[0].text


def _result(sample: Sample, attempt: Attempt, evidence: list[set[int]], size: int) -> dict[str, Any]:
    """evidence: the chunks of each text that the answer needs. In the result: the share of texts kept as a whole."""
    full = np.flatnonzero(np.bincount(attempt.kept.positions // size) == size)
    found = [chunks <= set(full.tolist()) for chunks in evidence]
    hits = [chunk in set.union(*evidence) for recall in attempt.recalls for chunk in recall.chunks]
    return {
        "text": attempt.text,
        "score": sample.score(attempt.text),
        "kept": int(attempt.kept.token_ids.size) / attempt.kept.context_length,
        "evidence": sum(found) / len(found),
        "recalls": len(attempt.recalls),
        "added": len(hits),
        "needed": sum(hits),
        "read": sum(recall.read for recall in attempt.recalls),
        "looks": attempt.looks,
        "scored": attempt.scored,
        "accepted": attempt.accepted,
        "drafted": attempt.drafted,
    }


def _row(task: str, way: str, answers: list[dict[str, Any]]) -> dict[str, Any]:
    """Means over the task's samples. right: share of right answers, with its 95 % interval. of_dense: the same share of
    the samples that are right dense. added, needed: added chunks, and those of them that hold evidence. repaired,
    harmed: samples that are right here alone, or by the fresh selection alone. needless: recalls in samples that the
    fresh selection answers rightly. read, scored: tokens that target and speculator computed for recalls. agreed: share
    of the drafter's tokens before the first different one of each block.
    """
    own = [answer["ways"] for answer in answers if answer["task"] == task]
    found = [ways[way] for ways in own]
    able = [ways[way] for ways in own if _right(ways[DENSE])]

    def share(of: list[dict[str, Any]]) -> float:
        return sum(map(_right, of)) / max(len(of), 1)

    low, high = wilson(share(found), len(found))
    changed = [(ways[FRESH], ways[way]) for ways in own]
    means = ("score", "kept", "evidence", "recalls", "added", "needed", "read", "looks", "scored")
    return {
        "task": task,
        "way": way,
        "n": len(found),
        "right": share(found),
        "low": low,
        "high": high,
        "dense_right": len(able),
        "of_dense": share(able),
        "repaired": sum(_right(after) and not _right(fresh) for fresh, after in changed),
        "harmed": sum(_right(fresh) and not _right(after) for fresh, after in changed),
        "needless": sum(after["recalls"] for fresh, after in changed if _right(fresh)),
        "agreed": sum(one["accepted"] for one in found) / max(sum(one["drafted"] for one in found), 1),
        **{name: sum(one[name] for one in found) / len(found) for name in means},
    }


def _right(result: dict[str, Any]) -> bool:
    return bool(result["score"] >= RIGHT)
