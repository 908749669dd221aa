"""Answers to questions of people from a running Skim endpoint."""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from evals.questions.samples import QuestionSample
from evals.questions.ways import BM25, DEFAULT, LEXICAL, NO_DOCUMENT, question_cases, rate_of
from evals.run.ask import Answer, Case
from evals.run.endpoint import Endpoint, Sent
from evals.selection.selectors import DENSE
from evals.tasks.registry import Sample
from router.options.request import PrefillOptions
from skim.prompts import render

SERVED = (DEFAULT, BM25, NO_DOCUMENT)
"""The ways that an endpoint can run."""

BY_TIME = ("sooner", "cached", "later-turns", "probe")
"""Reasons of a dense run that have nothing to do with what a selection keeps. Such a prompt is asked again."""

BY_RULE = ("short-prompt", "all-protected", "no-task", "unmapped-chat")
"""Reasons for which the default runs a prompt dense, besides the guard's."""


class QuestionEndpoint(Endpoint):
    """Dense, the default, BM25 and no document: other ways cannot be asked of an endpoint."""

    def __init__(self, url: str, *, tokenizer: Any, selectors: Collection[str], **settings: Any) -> None:
        """As `Endpoint`. tokenizer: the target's, to ask for as many tokens as the default keeps."""
        super().__init__(url, selectors=(), **settings)
        self._tokenizer = tokenizer
        self.selectors = tuple(name for name in selectors if name in SERVED)

    @property
    def cases(self) -> list[Case]:
        """All cases of a question."""
        return question_cases(self.selectors, self._rates)

    async def ask(self, sample: Sample, known: Collection[Case] = ()) -> dict[Case, Answer]:
        """One case after the other, dense first. Raises as `Endpoint.ask`."""
        answers: dict[Case, Answer] = {}
        for name, rate in self.cases:
            if (name, rate) not in known:
                answers[name, rate] = await self._answer_of(sample, name, rate, answers)
        return answers

    async def _answer_of(self, sample: Sample, name: str, rate: float, answers: dict[Case, Answer]) -> Answer:
        if name == DENSE:
            return await self._answer(sample, False, "dense")
        if name == NO_DOCUMENT:
            assert isinstance(sample, QuestionSample)
            sent = await self._send([{"role": "user", "content": sample.alone}], False, sample.max_tokens)
            return replace(sent.answer, prompt=max(sample.length, sent.answer.read))
        if (DEFAULT, rate) not in answers:
            answers[DEFAULT, rate] = await self._default(sample, rate)
        chosen = answers[DEFAULT, rate]
        return chosen if name == DEFAULT else await self._lexical(sample, chosen)

    async def _default(self, sample: Sample, rate: float) -> Answer:
        options: dict[str, Any] = {"enabled": "always", "keep_rate": rate} if rate else {"enabled": "auto"}
        sent = await self._send(sample.messages, {**options, "reuse": "off"}, sample.max_tokens)
        if sent.mode == "dense" and _word(sent) in BY_TIME:
            return await self._answer(sample, {"enabled": "always", "reuse": "off"}, "speculative")
        if sent.mode == "speculative" or (sent.mode and (_word(sent) in BY_RULE or _word(sent).startswith("guard-"))):
            return sent.answer
        raise self._wrong("speculative", sent)

    async def _lexical(self, sample: Sample, chosen: Answer) -> Answer:
        rate = rate_of(render(sample.messages, self._tokenizer), PrefillOptions(), chosen.read)
        if rate >= 1 or chosen.kept == 1:
            return chosen
        options = {"enabled": "always", "reuse": "off", "keep_rate": round(rate, 4), **LEXICAL}
        return await self._answer(sample, options, "speculative")


def _word(sent: Sent) -> str:
    return sent.reason.split(";")[0]
