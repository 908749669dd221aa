"""One question about a generated document: how it is put together, and when an answer counts as right.

A task (`evals.tasks`) says which sentences a document must hold and what is asked; here they are mixed into filler
until the prompt is long enough. The sentences and words are those of the demo documents
(`cluster.commands.demo_document`), so that the bundled pair can answer some of the tasks; any instruct model can be
asked all of them. Everything follows from a seed.
"""

import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from cluster.commands.demo_document import filler_sentence

Style = Literal["instruct", "plain"]
Count = Callable[[str], int]

INTRODUCTION = "The notes below hold some facts among other sentences. Read them, then answer the question at the end."


@dataclass(frozen=True, slots=True)
class Quiz:
    """What a task asks.

    needles: sentences that the document holds, in this order. hint: the form of the answer, for the instruct style.
    expected: what the answer must state. excluded: what it must not state.
    """

    needles: list[str]
    question: str
    hint: str
    expected: tuple[str, ...]
    excluded: tuple[str, ...] = ()

    def score(self, answer: str) -> float:
        """The share of `expected` that `answer` states, as whole words; 0 if it states anything of `excluded`.

        RULER's string_match_all, but for `excluded`: without it, reading out all candidates would be right.
        """
        # 4,821 is 4821; a list like 4821,3920 stays two numbers.
        text = re.sub(r"(?<=\d),(?=\d{3}\b)", "", answer)
        if any(_states(text, wrong) for wrong in self.excluded):
            return 0.0
        return sum(_states(text, right) for right in self.expected) / len(self.expected)


def _states(text: str, word: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text, re.IGNORECASE) is not None


def compose(quiz: Quiz, tokens: int, style: Style, count: Count, rng: random.Random) -> str:
    """The user's message: needles in filler, and the question on its last line.

    tokens: the least that `count` shall say of the message; it says at most a sentence more. plain: document and
    question alone, as the demo pair reads them; instruct: an introduction and the form of the answer too.
    Raises ValueError if the needles alone are longer.
    """
    first, question = [], f"Question: {quiz.question}"
    if style == "instruct":
        first, question = [INTRODUCTION], f"{question} {quiz.hint}"

    def message(sentences: list[str]) -> str:
        return "\n".join([*first, " ".join(sentences), question])

    length = count(message(quiz.needles))
    if length > tokens:
        raise ValueError(f"what is asked takes {length} tokens, more than {tokens}: ask for longer prompts")
    filler: list[str] = []
    while length < tokens:
        filler.append(filler_sentence(rng))
        length += count(f" {filler[-1]}")
    # Tokens may merge over the seams of sentences.
    while count(message([*filler, *quiz.needles])) < tokens:
        filler.append(filler_sentence(rng))
    return message(_mixed(quiz.needles, filler, rng))


def _mixed(needles: list[str], filler: list[str], rng: random.Random) -> list[str]:
    """All sentences; the needles in their order, at random places."""
    places = set(rng.sample(range(len(needles) + len(filler)), len(needles)))
    each = {True: iter(needles), False: iter(filler)}
    return [next(each[i in places]) for i in range(len(needles) + len(filler))]
