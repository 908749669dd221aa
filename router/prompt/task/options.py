"""The options of a question of choice: lines that begin with A, B, C and so on."""

import re2

from router.prompt.task.words import has_mark

_OPTION = re2.compile(r"(?m)^[ \t]*[(\[]?([A-Ja-j])[.):\]][ \t]+\S[^\n]*\n?")
LEAST = 2
"""So few options are no choice yet."""


def options_of(text: str, start: int = 0, end: int | None = None) -> list[tuple[int, int]]:
    """The character ranges of the lines with options, in order; none if the letters do not follow each other from A."""
    found: list[tuple[int, int]] = []
    for match in _OPTION.finditer(text[start:end]):
        if ord(match[1].lower()) - ord("a") == len(found):
            found.append((start + match.start(), start + match.end()))
    return found if len(found) >= LEAST else []


def without_options(text: str) -> str:
    """The text without the lines of its options: what they say is no task. A text that asks nothing else keeps them:
    "Do this:", with a list of tasks."""
    parts, place = [], 0
    for start, end in options_of(text):
        parts.append(text[place:start])
        place = end
    rest = "".join([*parts, text[place:]])
    return rest if has_mark(rest, 0, len(rest)) else text
