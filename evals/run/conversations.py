"""Asks the samples of a run, conversation by conversation, and scores the answers."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.report.progress import Progress
from evals.questions.samples import QuestionSample
from evals.run.ask import Answer, Asker, Case
from evals.run.journal import Journal
from evals.selection.selectors import DENSE
from evals.tasks.registry import Sample


async def ask_conversations(
    asker: Asker, conversations: Sequence[Sequence[Sample]], journal: Journal, progress: Progress, at_once: int = 1
) -> None:
    """Ask what the journal does not know yet; the first error ends the run. at_once: conversations that run at the same
    time.
    """
    slots, done = asyncio.Semaphore(at_once), 0

    async def ask(conversation: Sequence[Sample]) -> None:
        nonlocal done
        async with slots:
            await _ask(asker, conversation, journal)
        done += 1
        last = conversation[-1]
        progress(f"{last.task}, {last.length} tokens", done / len(conversations))

    await asyncio.gather(*map(ask, conversations))


async def _ask(asker: Asker, conversation: Sequence[Sample], journal: Journal) -> None:
    """One conversation, from its first turn on if any of its answers is missing."""
    if all(set(asker.cases) <= journal.answers(sample).keys() for sample in conversation):
        return
    for sample in conversation:
        journal.add(sample, await asker.ask(sample, journal.answers(sample).keys()))


def given_answers(samples: Sequence[Sample], journal: Journal, cases: Sequence[Case]) -> list[dict[Case, Answer]]:
    """The answers to the cases of each sample. The journal may hold further cases of earlier runs."""
    return [{case: journal.answers(sample)[case] for case in cases} for sample in samples]


def scored(sample: Sample, answers: Mapping[Case, Answer]) -> dict[str, Any]:
    """The scores of a sample: [selector, keep rate, score, tokens read] for each case, and its dense answer."""
    scores = [[*case, round(sample.quiz.score(answer.text), 4), answer.read] for case, answer in answers.items()]
    dense = answers[DENSE, 1.0]
    where = {"task": sample.task, "family": sample.family, "length": sample.length, "seed": sample.seed}
    # An answer may quote the user's text, so results do not hold it.
    more = {"document": sample.document} if isinstance(sample, QuestionSample) else {"dense": dense.text}
    return {**where, "prompt": dense.prompt, **more, "scores": scores}
