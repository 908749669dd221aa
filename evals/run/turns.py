"""Answer quality over the turns of a conversation: each turn extends what was kept for the last one, or selects anew.

All questions are about one document, which stands in the first turn: records among filler sentences, or functions of
Python's standard library. The history holds the right answers, so that every selector answers the same prompts.
"""

import asyncio
import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal

from cluster.in_process.prompts import RenderedPrompt
from evals.run.ask import Answer, Case, InProcess
from evals.selection.prompts import render
from evals.selection.selectors import DENSE, SPECULATOR
from evals.tasks.code import default_value, raised_error, returned_value
from evals.tasks.quiz import Count, Quiz, Style, ask, compose
from evals.tasks.registry import Sample
from evals.tasks.retrieval import ONE_NUMBER, WORDING, with_distractors
from kv_transfer.messages import KeptPrompt, Selection
from skim_common.errors import SkimError

About = Literal["records", "code"]
CODE_TASKS = (default_value, raised_error, returned_value)
TRIES = 100
"""Questions that are drawn for a conversation about code, at most."""

EXTENDED, NO_LATE = "extended", "no late chunks"
BY_QUESTION, BY_LAST = "extended by question", "extended by question, last 4"

VARIANTS: Mapping[str, Mapping[str, str]] = {
    BY_QUESTION: {"score_queries": "question"},
    BY_LAST: {"score_queries": "question", "layers": "last4"},
}
"""Selectors that extend with other options than serving's defaults."""

SELECTORS = {
    EXTENDED: "each turn extends what was kept for the turn before it, as in serving",
    SPECULATOR: "each turn is selected anew (`reuse: off`)",
    NO_LATE: "as *extended*, but without the late chunks",
    BY_QUESTION: "as *extended*, but scored by the queries of the question's tokens, without look-ahead",
    BY_LAST: "as *extended by question*, but by the speculator's last four layers only",
}
"""What each selector keeps, by name; shown on the results page."""


def task_name(turn: int) -> str:
    """The task of a turn, counted from 1."""
    return f"turn {turn}"


def describe_turn(task: str) -> str:
    """The task of a turn and its metric."""
    return f"A fact of the document, asked for in {task}. Metric: the answer states the value."


def make_conversations(
    turns: int,
    lengths: Sequence[int],
    count: int,
    *,
    about: About = "records",
    seed: int,
    style: Style,
    tokens: Count,
) -> Iterator[list[Sample]]:
    """`count` conversations of `turns` samples for each length of the first turn; other arguments as in `make_samples`.

    Raises SkimError for a length that is too short for the questions.
    """
    make = {"records": _about_records, "code": _about_code}[about]
    for length in lengths:
        for index in range(count):
            name = f"{seed} turns {length} {index}"
            try:
                text, quizzes = make(turns, length, style, tokens, random.Random(name))
            except ValueError as error:
                raise SkimError(f"{turns} turns at length {length}: {error}") from None
            history: list[dict[str, str]] = []
            samples = []
            for turn, quiz in enumerate(quizzes, 1):
                message = text if turn == 1 else ask(quiz, style)
                samples.append(Sample(task_name(turn), length, quiz, message, name, tuple(history)))
                answer = {"role": "assistant", "content": f"{quiz.expected[0]}."}
                history += [{"role": "user", "content": message}, answer]
            yield samples


def _about_records(turns: int, length: int, style: Style, tokens: Count, rng: random.Random) -> tuple[str, list[Quiz]]:
    """The first message, and the question of each turn about one of many records."""
    found = with_distractors(turns, length, rng)
    quizzes = [
        Quiz([], r.question(wording=WORDING), ONE_NUMBER, (r.value,), evidence=(r.sentence(),))
        for r in rng.sample(found, turns)
    ]
    whole = replace(quizzes[0], needles=[r.sentence() for r in found])
    return compose(whole, length, style, tokens, rng), quizzes


def _about_code(turns: int, length: int, style: Style, tokens: Count, rng: random.Random) -> tuple[str, list[Quiz]]:
    """The first message, and the question of each turn about another function of a document of functions.

    What is asked takes at most half of the document. Raises ValueError if TRIES questions are too long for this.
    """
    found: dict[str, Quiz] = {}
    needles: list[str] = []
    for _ in range(TRIES):
        quiz = rng.choice(CODE_TASKS)(length, rng)
        more = list(dict.fromkeys([*needles, *quiz.needles]))
        if quiz.evidence[0] not in found and tokens("\n\n".join(more)) <= length / 2:
            found[quiz.evidence[0]], needles = quiz, more
        if len(found) == turns:
            break
    else:
        raise ValueError("what is asked takes more than half of the document: ask for longer prompts")
    quizzes = list(found.values())
    frame = quizzes[0].frame
    others = tuple(part for part in frame.filler or () if part not in needles)
    whole = replace(quizzes[0], needles=needles, frame=replace(frame, filler=others))
    return compose(whole, length, style, tokens, rng), quizzes


class TurnEngines(InProcess):
    """Every selector of a conversation, from engines in this process."""

    selectors = tuple(SELECTORS)

    @property
    def cases(self) -> list[Case]:
        """All cases of a turn."""
        return [(DENSE, 1.0), *((name, rate) for rate in self._rates for name in self.selectors)]

    async def ask(self, sample: Sample, known: Collection[Case] = ()) -> dict[Case, Answer]:
        """Ask one turn; those before it must have been asked. Raises SkimError for a prompt that cannot be served.

        known: not used, because the records of a turn follow from all its cases.
        """
        prompt = render(sample, self._tokenizer, self._options)
        asked: dict[Case, KeptPrompt] = {(DENSE, 1.0): KeptPrompt.dense(prompt.token_ids)}
        for rate in self._rates:
            asked |= {(name, rate): kept for name, kept in (await self._select(sample, prompt, rate)).items()}
        texts = await asyncio.gather(*(self._answer(kept) for kept in asked.values()))
        return {case: Answer.of(text, kept) for (case, kept), text in zip(asked.items(), texts, strict=True)}

    async def _select(self, sample: Sample, prompt: RenderedPrompt, rate: float) -> Mapping[str, KeptPrompt]:
        options = self._options.selection.model_copy(update={"keep_rate": rate})
        # The salts separate the records of keep rates and variants.
        salt = f"{sample.seed} {rate}"
        extended = await self._pair.select(prompt, options, cache_salt=salt)
        fresh = await self._pair.select(prompt, options.model_copy(update={"reuse": "off"}))
        found = {EXTENDED: extended.kept, SPECULATOR: fresh.kept, NO_LATE: without_late_chunks(extended)}
        for name, changes in VARIANTS.items():
            varied = await self._pair.select(prompt, options.model_copy(update=changes), cache_salt=f"{salt} {name}")
            found[name] = varied.kept
        return found


def without_late_chunks(selection: Selection) -> KeptPrompt:
    """The kept prompt without the tokens that this turn added from the text before it."""
    kept, stays = selection.kept, ~selection.late
    return replace(kept, token_ids=kept.token_ids[stays], positions=kept.positions[stays])
