"""A question about a document: how the messages are made, and how an answer is scored.

A task (`evals.tasks.registry`) gives the sentences that a document must hold, the question, and the text around them.
By default this is generated filler. Its words are those of the demo documents (`demo_models.documents`), so the bundled
pair can answer some of the tasks; all tasks suit any instruct model. Everything follows from a seed.
"""

import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import Any, Literal, Protocol

from demo_models.documents import filler_sentence

SMALLEST = 0.6
"""Two unrelated English sentences share up to half of their characters in order, so less than this is no quotation."""


def overlap(passage: str, answer: str) -> float:
    """The similarity of two texts, from SMALLEST to 1, or 0 if it is less.

    It is difflib's ratio: twice the number of characters in matching blocks, divided by the characters of both texts.
    White space counts as one space, and quotation marks around the answer do not count. An answer that repeats much
    more than the passage is therefore no quotation.
    """
    wanted, given = _plain(passage), _plain(answer)
    # autojunk ignores frequent characters of long texts.
    ratio = SequenceMatcher(None, wanted, given, autojunk=False).ratio()
    return ratio if ratio >= SMALLEST else 0.0


def _plain(text: str) -> str:
    return " ".join(text.split()).strip("\"'`*>“” ")


Style = Literal["instruct", "plain"]
Count = Callable[[str], int]
Message = dict[str, Any]
"""A chat message as in OpenAI's API."""

INTRODUCTION = "The notes below hold some facts among other sentences. Read them, then answer the question at the end."


@dataclass(frozen=True, slots=True)
class Frame:
    """What stands around the needles of a quiz.

    introduction: the first line of the user's message, for the style instruct. filler: the other parts of the document,
    used in this order; None generates sentences. joint: stands between two parts.
    calls: the messages between the question and the document, which is then the result of a tool. earlier: questions
    and answers of earlier turns, whose first turn holds the document.
    """

    introduction: str = INTRODUCTION
    filler: tuple[str, ...] | None = None
    joint: str = " "
    calls: tuple[Message, ...] = ()
    earlier: tuple[tuple[str, str], ...] = ()


class Scored(Protocol):
    """What a measurement needs of a question. expected, evidence: as in `Quiz`."""

    @property
    def question(self) -> str: ...
    @property
    def expected(self) -> tuple[str, ...]: ...
    @property
    def evidence(self) -> tuple[str, ...]: ...
    def score(self, answer: str) -> float:
        """From 0 to 1."""
        ...


@dataclass(frozen=True, slots=True)
class Quiz:
    """A question with its answer.

    needles: parts that the document must hold, in this order. hint: the form of the answer, for the style instruct.
    expected: words that the answer must state. excluded: words that it must not state. evidence: the texts of the
    prompt that the answer follows from, wherever they occur (`evals.selection.evidence`). quoted: the answer must
    repeat the only text in `expected`.
    """

    needles: list[str]
    question: str
    hint: str
    expected: tuple[str, ...]
    excluded: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()
    frame: Frame = field(default_factory=Frame)
    quoted: bool = False

    def score(self, answer: str) -> float:
        """The share of `expected` that `answer` states as whole words; 0 if it states any of `excluded`.

        This is RULER's string_match_all with `excluded` added; otherwise an answer with all candidates would be right.
        For a quoted text, the overlap of its characters with the answer's (`evals.tasks.quiz`).
        """
        if self.quoted:
            return overlap(self.expected[0], answer)
        # 4,821 counts as 4821. A list such as 4821,3920 stays two numbers.
        text = re.sub(r"(?<=\d),(?=\d{3}\b)", "", answer)
        if any(_states(text, wrong) for wrong in self.excluded):
            return 0.0
        return sum(_states(text, right) for right in self.expected) / len(self.expected)


def _states(text: str, word: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text, re.IGNORECASE) is not None


def ask(quiz: Quiz, style: Style) -> str:
    """The question as the last line of a message, or as a message of its own."""
    return _line(quiz.question, quiz, style)


def _line(question: str, quiz: Quiz, style: Style) -> str:
    return f"Question: {question} {quiz.hint}" if style == "instruct" else f"Question: {question}"


def compose(quiz: Quiz, tokens: int, style: Style, count: Count, rng: random.Random) -> str:
    """The message with the document: the needles among filler and, in a user's message, a question on the last line.

    tokens: smallest length of this message and the tool calls before it, measured by `count`; it is exceeded by at most
    one part of the filler. style: plain has only document and question, as the demo pair expects them; instruct also
    has an introduction and the form of the answer.
    Raises ValueError if the needles alone are longer, and if the filler is too short.
    """
    frame = quiz.frame
    first = [frame.introduction] if style == "instruct" and not frame.calls else []
    question = [] if frame.calls else [_line(frame.earlier[0][0], quiz, style) if frame.earlier else ask(quiz, style)]
    tokens -= sum(count(message["content"]) for message in frame.calls)

    def message(parts: list[str]) -> str:
        return "\n".join([*first, frame.joint.join(parts), *question])

    length = count(message(quiz.needles))
    if length > tokens:
        raise ValueError(f"what is asked takes {length} tokens, more than {tokens}: ask for longer prompts")
    parts, filler = _filler(frame, rng), []
    while length < tokens:
        filler.append(next(parts))
        length += count(f"{frame.joint}{filler[-1]}")
    # Tokens can merge at the borders of parts, so the sum can be too high.
    while count(message([*filler, *quiz.needles])) < tokens:
        filler.append(next(parts))
    return message(_mixed(quiz.needles, filler, rng))


def _filler(frame: Frame, rng: random.Random) -> Iterator[str]:
    """The filler's parts. Raises ValueError after the last one."""
    if frame.filler is None:
        while True:
            yield filler_sentence(rng)
    yield from frame.filler
    raise ValueError("there is not enough text: ask for shorter prompts")


def converse(quiz: Quiz, document: str, style: Style) -> list[Message]:
    """All messages of the prompt. document: the message that `compose` made."""
    frame = quiz.frame
    if frame.calls:
        return [{"role": "user", "content": ask(quiz, style)}, *frame.calls, {"role": "tool", "content": document}]
    messages = [{"role": "user", "content": document}]
    following = [_line(question, quiz, style) for question, _ in frame.earlier[1:]]
    for (_, answer), next_question in zip(frame.earlier, [*following, ask(quiz, style)], strict=bool(frame.earlier)):
        messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": next_question}]
    return messages


def _mixed(needles: list[str], filler: list[str], rng: random.Random) -> list[str]:
    """All parts, with the needles in their order at random places."""
    places = set(rng.sample(range(len(needles) + len(filler)), len(needles)))
    each = {True: iter(needles), False: iter(filler)}
    return [next(each[i in places]) for i in range(len(needles) + len(filler))]
