"""A question about a document: how the messages are made, and how an answer is scored.

A task (`evals.tasks.registry`) gives the sentences that a document must hold, the question, and the text around them.
By default this is generated filler. Its words are those of the demo documents (`demo_models.documents`), so the bundled
pair can answer some of the tasks; all tasks suit any instruct model. Everything follows from a seed.
"""

import random
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from demo_models.documents import filler_sentence
from evals.tasks.metrics import Scheme, stated

Style = Literal["instruct", "plain"]
Count = Callable[[str], int]
Message = dict[str, Any]
"""A chat message as in OpenAI's API."""

CONTEXT = "{context}"
"""The place of the document in a template."""

INTRODUCTION = "The notes below hold some facts among other sentences. Read them, then answer the question at the end."


@dataclass(frozen=True, slots=True)
class Frame:
    """What stands around the needles of a quiz.

    introduction: the first line of the user's message, for the style instruct. filler: the other parts of the document,
    used in this order; None generates sentences. joint: stands between two parts.
    calls: the messages between the question and the document, which is then the result of a tool. earlier: questions
    and answers of earlier turns, whose first turn holds the document.
    template: the whole message of a published benchmark, with CONTEXT in the document's place; both styles are then the
    same. sized: makes the document from a number, with which its length grows, in place of needles and filler.
    dialogue: each part is a request and, from the next line on, the answer to it; they are the turns before the
    question. system: the system prompt. limit: most tokens of the answer.
    """

    introduction: str = INTRODUCTION
    filler: tuple[str, ...] | None = None
    joint: str = " "
    calls: tuple[Message, ...] = ()
    earlier: tuple[tuple[str, str], ...] = ()
    template: str = ""
    sized: Callable[[int], str] | None = field(default=None, compare=False)
    dialogue: bool = False
    system: str = ""
    limit: int | None = None


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
    prompt that the answer follows from, wherever they occur (`evals.selection.evidence`). metric: scores an answer
    (`evals.tasks.metrics`).
    """

    needles: list[str]
    question: str
    hint: str
    expected: tuple[str, ...]
    excluded: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()
    frame: Frame = field(default_factory=Frame)
    metric: Callable[[Scheme, str], float] = stated

    def score(self, answer: str) -> float:
        """From 0 to 1, by the metric."""
        return self.metric(self, answer)


def ask(quiz: Quiz, style: Style) -> str:
    """The question as the last line of a message, or as a message of its own."""
    return _line(quiz.question, quiz, style)


def _line(question: str, quiz: Quiz, style: Style) -> str:
    return f"Question: {question} {quiz.hint}" if style == "instruct" else f"Question: {question}"


def compose(quiz: Quiz, tokens: int, style: Style, count: Count, rng: random.Random) -> str:
    """The message with the document: the needles among filler and, in a user's message, a question on the last line.

    tokens: smallest length of this message and of those before it, measured by `count`; it is exceeded by at most one
    part of the filler. style: plain has only document and question, as the demo pair expects them; instruct also has an
    introduction and the form of the answer.
    Raises ValueError if the needles alone are longer, and if the filler is too short.
    """
    frame = quiz.frame
    tokens -= sum(count(message["content"]) for message in frame.calls)
    tokens -= count(frame.system) if frame.system else 0
    if frame.sized is not None:
        document = _sized(frame.sized, tokens, lambda document: count(_around(quiz, document, style)))
        return _around(quiz, document, style)

    def message(parts: list[str]) -> str:
        return _around(quiz, frame.joint.join(parts), style)

    length = count(message(quiz.needles))
    _check(length, tokens)
    parts, filler = _filler(frame, rng), []
    while length < tokens:
        filler.append(next(parts))
        length += count(f"{frame.joint}{filler[-1]}")
    # Tokens can merge at the borders of parts, so the sum can be too high.
    while count(message([*filler, *quiz.needles])) < tokens:
        filler.append(next(parts))
    return message(mixed(quiz.needles, filler, rng))


def _around(quiz: Quiz, document: str, style: Style) -> str:
    """The message that holds the document."""
    frame = quiz.frame
    if frame.dialogue:
        return document
    if frame.template:
        return frame.template.replace(CONTEXT, document)
    first = [frame.introduction] if style == "instruct" and not frame.calls else []
    question = [] if frame.calls else [_line(frame.earlier[0][0], quiz, style) if frame.earlier else ask(quiz, style)]
    return "\n".join([*first, document, *question])


def _sized(make: Callable[[int], str], tokens: int, length: Callable[[str], int]) -> str:
    """The smallest document that `make` gives whose message has at least `tokens` tokens."""
    least = most = 10
    _check(length(make(least)), tokens)
    while length(make(most)) < tokens:
        most += 1 + most // 4
    return make(bisect_left(range(most), tokens, lo=least, key=lambda size: length(make(size))))


def _check(length: int, tokens: int) -> None:
    if length > tokens:
        raise ValueError(f"what is asked takes {length} tokens, more than {tokens}: ask for longer prompts")


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
    if frame.dialogue:
        turns = [part.split("\n", 1) for part in document.split(frame.joint)]
        spoken = [text for turn in turns for text in turn] + [quiz.question]
        return [{"role": ("user", "assistant")[at % 2], "content": text} for at, text in enumerate(spoken)]
    messages = [{"role": "system", "content": frame.system}] if frame.system else []
    messages.append({"role": "user", "content": document})
    following = [_line(question, quiz, style) for question, _ in frame.earlier[1:]]
    for (_, answer), next_question in zip(frame.earlier, [*following, ask(quiz, style)], strict=bool(frame.earlier)):
        messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": next_question}]
    return messages


def mixed(needles: list[str], filler: list[str], rng: random.Random) -> list[str]:
    """All parts, with the needles in their order at random places."""
    places = set(rng.sample(range(len(needles) + len(filler)), len(needles)))
    each = {True: iter(needles), False: iter(filler)}
    return [next(each[i in places]) for i in range(len(needles) + len(filler))]
