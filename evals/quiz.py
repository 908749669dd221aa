"""A question about a generated document: how the document is made, and how an answer is scored.

A task (`evals.tasks`) gives the sentences that a document must hold and the question. They are mixed with filler
sentences until the prompt is long enough. The words are those of the demo documents (`cluster.commands.demo_document`),
so the bundled pair can answer some of the tasks; all tasks suit any instruct model. Everything follows from a seed.
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
    """A question with its answer.

    needles: sentences that the document must hold, in this order. hint: the form of the answer, for the style instruct.
    expected: words that the answer must state. excluded: words that it must not state. evidence: the texts of the
    prompt that the answer follows from, wherever they occur (`evals.evidence`).
    """

    needles: list[str]
    question: str
    hint: str
    expected: tuple[str, ...]
    excluded: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()

    def score(self, answer: str) -> float:
        """The share of `expected` that `answer` states as whole words; 0 if it states any of `excluded`.

        This is RULER's string_match_all with `excluded` added; otherwise an answer with all candidates would be right.
        """
        # 4,821 counts as 4821. A list such as 4821,3920 stays two numbers.
        text = re.sub(r"(?<=\d),(?=\d{3}\b)", "", answer)
        if any(_states(text, wrong) for wrong in self.excluded):
            return 0.0
        return sum(_states(text, right) for right in self.expected) / len(self.expected)


def _states(text: str, word: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text, re.IGNORECASE) is not None


def ask(quiz: Quiz, style: Style) -> str:
    """The question as the last line of a message, or as a later message of its own."""
    return f"Question: {quiz.question} {quiz.hint}" if style == "instruct" else f"Question: {quiz.question}"


def compose(quiz: Quiz, tokens: int, style: Style, count: Count, rng: random.Random) -> str:
    """The user's message: the needles among filler sentences, and the question on the last line.

    tokens: smallest length of the message, measured by `count`; it is exceeded by at most one sentence. style: plain
    has only document and question, as the demo pair expects them; instruct also has an introduction and the form of
    the answer. Raises ValueError if the needles alone are longer.
    """
    first, question = [INTRODUCTION] if style == "instruct" else [], ask(quiz, style)

    def message(sentences: list[str]) -> str:
        return "\n".join([*first, " ".join(sentences), question])

    length = count(message(quiz.needles))
    if length > tokens:
        raise ValueError(f"what is asked takes {length} tokens, more than {tokens}: ask for longer prompts")
    filler: list[str] = []
    while length < tokens:
        filler.append(filler_sentence(rng))
        length += count(f" {filler[-1]}")
    # Tokens can merge at the borders of sentences, so the sum can be too high.
    while count(message([*filler, *quiz.needles])) < tokens:
        filler.append(filler_sentence(rng))
    return message(_mixed(quiz.needles, filler, rng))


def _mixed(needles: list[str], filler: list[str], rng: random.Random) -> list[str]:
    """All sentences, with the needles in their order at random places."""
    places = set(rng.sample(range(len(needles) + len(filler)), len(needles)))
    each = {True: iter(needles), False: iter(filler)}
    return [next(each[i in places]) for i in range(len(needles) + len(filler))]
