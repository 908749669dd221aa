"""Conversations about a long document: every turn asks for the value of one of its records.

The documents are those of the demo pair (`demo_models/documents.py`), which answers such questions over many
turns. In the style instruct, the first turn also has an introduction and every question the form of its answer, for any
instruct model.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from demo_models.documents import make_document, states

Style = Literal["plain", "instruct"]

INTRODUCTION = "The notes below hold some facts among other sentences. Read them, then answer the questions.\n\n"
HINT = " Answer with the number only."


@dataclass(frozen=True, slots=True)
class Question:
    """text: what the user writes. expected: the value that the answer must state."""

    text: str
    expected: str

    def is_right(self, answer: str) -> bool:
        """Whether `answer` is the expected value and nothing else."""
        return states(answer, self.expected)


@dataclass(frozen=True, slots=True)
class Conversation:
    """A document and one question for each turn, about different records."""

    document: str
    questions: tuple[Question, ...]

    def messages(self, turn: int, answers: Sequence[str]) -> list[Mapping[str, str]]:
        """The messages that the client sends in `turn` (from 0 on). answers: those of the turns before it."""
        messages: list[Mapping[str, str]] = []
        for question, answer in zip(self.questions[:turn], answers, strict=True):
            messages += [{"role": "user", "content": question.text}, {"role": "assistant", "content": answer}]
        messages.append({"role": "user", "content": self.questions[turn].text})
        return [{"role": "user", "content": f"{self.document}\n{messages[0]['content']}"}, *messages[1:]]


def conversation(tokens: int, turns: int, seed: int, style: Style = "plain") -> Conversation:
    """A conversation whose first prompt has about `tokens` tokens of the demo tokenizer. It follows from the seed.

    Raises ValueError if the document has fewer records than `turns`.
    """
    made = make_document(tokens, seed)
    asked = random.Random(seed).sample(made.records, turns)
    hint = HINT if style == "instruct" else ""
    questions = tuple(Question(record.question() + hint, record.value) for record in asked)
    introduction = INTRODUCTION if style == "instruct" else ""
    return Conversation(introduction + made.document, questions)
