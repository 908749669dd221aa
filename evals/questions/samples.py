"""Prompts from questions of people, in one form for all: document and question in one user message.

DOCUMENT

Question: QUESTION HINT
A. OPTION                           of a question with choices, a line for each
"""

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass

from evals.questions.file import Question
from evals.questions.scores import OF_TEXTS, chosen_letter, lettered
from evals.tasks.quiz import Count
from evals.tasks.registry import Sample
from skim_common.errors import SkimError

CHOICE_HINT = "Answer with the letter of the right option."
TEXT_HINT = "Answer in a few words."
CHOICE_TOKENS, TEXT_TOKENS = 16, 48
"""Most tokens of an answer."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A question as it is asked, and how its answers are scored: the part of a `Quiz` that measurements use.

    options: of a question with choices, by letter.
    """

    question: str
    expected: tuple[str, ...]
    evidence: tuple[str, ...]
    options: dict[str, str]
    kind: str

    def score(self, answer: str) -> float:
        """The answer's score by the question's own measure (`evals.questions.scores`)."""
        if self.kind == "choice":
            return float(chosen_letter(answer, self.options) in self.expected)
        return max(OF_TEXTS[self.kind](answer, right) for right in self.expected)

    def text(self) -> str:
        """What follows the document."""
        listed = [f"{letter}. {option}" for letter, option in self.options.items()]
        return "\n".join([f"Question: {self.question} {CHOICE_HINT if self.options else TEXT_HINT}", *listed])


@dataclass(frozen=True, slots=True)
class QuestionSample(Sample):
    """alone: the message without the document. document: a digest of it."""

    alone: str = ""
    document: str = ""


def answerable(question: Question) -> Asked | None:
    """The question as it is asked; None if its answer cannot be scored.

    These are the ones whose evidence alone is scored, those without an answer, and those with choices whose letters are
    not clear (`lettered`) or are not the answer's.
    """
    evidence = tuple(filter(None, (question.document[start:end].strip() for start, end in question.gold)))
    options = (lettered(question.choices) or {}) if question.score == "choice" else {}
    if question.score == "evidence" or not question.answers:
        return None
    if question.score == "choice" and not options.keys() >= {*question.answers}:
        return None
    return Asked(question.question, question.answers, evidence, options, question.score)


def draw(questions: Sequence[Question], most: int, seed: int, count: Count) -> list[QuestionSample]:
    """At most `most` questions of each set, all of a document one after the other, so that it is read once.

    The documents of a set are in random order, and the set with the fewest questions so far is next. So the first part
    of a run is a fair sample too. Raises SkimError if no question can be asked.
    """
    by_set: dict[str, dict[str, list[QuestionSample]]] = {}
    for question in questions:
        asked = answerable(question)
        if asked is not None:
            sample = _sample(question, asked, count)
            by_set.setdefault(question.set, {}).setdefault(sample.document, []).append(sample)
    if not by_set:
        raise SkimError(
            "no question of the file has an answer to score: give answers, and choices with or without letters"
        )
    waiting: dict[str, list[list[QuestionSample]]] = {}
    for name, documents in by_set.items():
        waiting[name] = list(documents.values())
        random.Random(seed).shuffle(waiting[name])
    drawn: dict[str, list[QuestionSample]] = {name: [] for name in waiting}
    order: list[QuestionSample] = []
    while open_sets := [name for name in waiting if waiting[name] and len(drawn[name]) < most]:
        name = min(open_sets, key=lambda one: len(drawn[one]))
        taken = waiting[name].pop(0)[: most - len(drawn[name])]
        drawn[name] += taken
        order += taken
    return order


def _sample(question: Question, asked: Asked, count: Count) -> QuestionSample:
    alone = asked.text()
    text = f"{question.document}\n\n{alone}"
    return QuestionSample(
        question.set,
        count(text),
        asked,
        text,
        f"question {question.number}",
        max_tokens=CHOICE_TOKENS if asked.options else TEXT_TOKENS,
        alone=alone,
        document=hashlib.sha256(question.document.encode()).hexdigest()[:12],
    )
