"""How an answer is scored: functions of the quiz and the answer, from 0 to 1."""

import re
from difflib import SequenceMatcher
from typing import Protocol

SMALLEST = 0.6
"""Two unrelated English sentences share up to half of their characters in order, so less than this is no quotation."""


class Scheme(Protocol):
    """What a metric needs of a quiz: the texts that an answer must state, and those that it must not state."""

    @property
    def expected(self) -> tuple[str, ...]: ...
    @property
    def excluded(self) -> tuple[str, ...]: ...


def stated(quiz: Scheme, answer: str) -> float:
    """The share of `expected` that `answer` states as whole words; 0 if it states any of `excluded`.

    This is RULER's string_match_all with whole words and with `excluded`; otherwise an answer with all candidates would
    be right.
    """
    # 4,821 counts as 4821. A list such as 4821,3920 stays two numbers.
    text = re.sub(r"(?<=\d),(?=\d{3}\b)", "", answer)
    if any(_states(text, wrong) for wrong in quiz.excluded):
        return 0.0
    return sum(_states(text, right) for right in quiz.expected) / len(quiz.expected)


def _states(text: str, word: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text, re.IGNORECASE) is not None


def string_match_all(quiz: Scheme, answer: str) -> float:
    """RULER's recall: the share of `expected` that occurs in the answer, in any case."""
    return sum(right.lower() in answer.lower() for right in quiz.expected) / len(quiz.expected)


def only_label(quiz: Scheme, answer: str) -> float:
    """BABILong's match: the first sentence of the answer names the expected label and no other.

    excluded: the other labels of the task, without those of the question.
    """
    return stated(quiz, answer.split(".")[0])


def quoted(quiz: Scheme, answer: str) -> float:
    """The overlap of the only expected text with the answer."""
    return overlap(quiz.expected[0], answer)


def after_prefix(quiz: Scheme, answer: str) -> float:
    """MRCR's match: 0 if the answer does not begin with the first expected text; else difflib's ratio of the second one
    and the rest of the answer.
    """
    prefix, passage = quiz.expected
    answer = answer.strip()
    if not answer.startswith(prefix):
        return 0.0
    return SequenceMatcher(None, passage, answer.removeprefix(prefix).strip(), autojunk=False).ratio()


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
