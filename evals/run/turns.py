"""Answer quality over the turns of a conversation: each turn extends what was kept for the last one, or selects anew.

All questions are about one document, which stands in the first turn: records among filler sentences, or functions of
Python's standard library. The history holds the right answers, so that every selector answers the same prompts.
"""

import asyncio
import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from evals.run.ask import Answer, Case, InProcess, cases_of
from evals.selection.prompts import render
from evals.selection.selectors import DENSE, GUARDED, SPECULATOR, Reading, Selector, keep_guarded
from evals.tasks.code import default_value, raised_error, returned_value
from evals.tasks.quiz import Count, Quiz, Style, ask, compose
from evals.tasks.registry import Sample
from evals.tasks.retrieval import ONE_NUMBER, WORDING, with_distractors
from kv_transfer.messages import KeptPrompt, Selection
from router.prompt.rendered import RenderedPrompt
from skim_common.errors import SkimError

About = Literal["records", "code"]
CODE_TASKS = (default_value, raised_error, returned_value)
TRIES = 100
"""Questions that are drawn for a conversation about code, at most."""

EXTENDED, NO_LATE = "extended", "no late chunks"


async def _without_late(reading: Reading) -> KeptPrompt:
    return without_late_chunks(await reading.selected(reading.selection_options(reuse="on")))


SELECTORS: Mapping[str, Selector] = {
    GUARDED: Selector(
        "the default: each turn extends what was kept for the turn before it, as much as `keep_rate: auto` and the"
        " guard say",
        lambda reading: keep_guarded(reading, reuse="on"),
        rated=False,
    ),
    EXTENDED: Selector(
        "each turn extends what was kept for the turn before it, at the keep rate",
        lambda reading: reading.select(reuse="on"),
    ),
    SPECULATOR: Selector("each turn is selected anew (`reuse: off`)", lambda reading: reading.select()),
    NO_LATE: Selector("as *extended*, but without the late chunks", _without_late),
}
"""What each selector keeps, by name."""


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
    """Selectors of a conversation, from engines in this process."""

    def __init__(self, target: str, speculator: str, *, selectors: Sequence[str], **settings: Any) -> None:
        """As `InProcess`. selectors: names in SELECTORS."""
        self.selectors = tuple(selectors)
        super().__init__(target, speculator, **settings)

    @property
    def cases(self) -> list[Case]:
        """All cases of a turn."""
        return cases_of(self.selectors, self._rates, SELECTORS)

    async def ask(self, sample: Sample, known: Collection[Case] = ()) -> dict[Case, Answer]:
        """Ask one turn; those before it must have been asked. Raises SkimError for a prompt that cannot be served.

        known: not used, because the records of a turn follow from all its cases.
        """
        prompt = render(sample, self._tokenizer, self._options)
        asked: dict[Case, KeptPrompt] = {}
        for case in self.cases:
            asked[case] = await self._kept(sample, prompt, case)
        texts = await asyncio.gather(*(self._answer(kept) for kept in asked.values()))
        return {case: Answer.of(text, kept) for (case, kept), text in zip(asked.items(), texts, strict=True)}

    async def _kept(self, sample: Sample, prompt: RenderedPrompt, case: Case) -> KeptPrompt:
        name, rate = case
        if name == DENSE:
            return KeptPrompt.dense(prompt.token_ids)
        rated = self._options.model_copy(update={"keep_rate": rate} if rate else {})
        # The salt separates the records of selectors and keep rates.
        salt = f"{sample.seed} {rate} {name}"
        return await SELECTORS[name].keep(Reading(sample, prompt, prompt.layout(rated), rated, self._pair, salt=salt))


def without_late_chunks(selection: Selection) -> KeptPrompt:
    """The kept prompt without the tokens that this turn added from the text before it."""
    kept, stays = selection.kept, ~selection.late
    return replace(kept, token_ids=kept.token_ids[stays], positions=kept.positions[stays])
