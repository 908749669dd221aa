"""Prose that is wrapped at a width, as in the text of a PDF: line breaks there may lie inside a sentence."""

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import re2

from router.prompt.text.codes import DIGIT, SPACE, WORD

SHORTEST, LONGEST = 40, 160
"""Characters of a full line of wrapped text."""
RAGGED = 0.12
"""A line is full if the next word would end after this share of the width before its end. Lines of a PDF are as wide in
points, not in characters."""
LEAST_BREAKS = 2
"""So many breaks in turn make a paragraph of wrapped text."""
LOWER = 0.3
"""At least this share of its lines begins with a small letter, of those that continue a sentence. German has few."""
ALIKE = 0.4
"""At most this share of its lines has the same first, second or last word, or begins with the name of a field. Lines of
a log and of a list are alike."""
INNER_MARKS = 1 / 3
"""At least so many commas and stops stand inside the lines, for each line. Lists of plain statements have none."""
NEAR = 4
"""Lines before and after a line, whose longest one shows the width."""
PROSE_LETTERS = 0.9
"""Of prose, at least this share of the characters is letters and white space."""

_SIGNS = rf"[^{SPACE}{{}}<>=|\\_#*~^$@+;`]+"
_PLAIN = re2.compile(rf"{_SIGNS}(?: {{1,2}}{_SIGNS})* ?\r?")
"""A line without the signs of code, tables and markup, and without columns."""
_ITEM = re2.compile(rf"(?:[-\x{{2022}}\x{{2013}}\x{{2014}}]|\(?(?:{DIGIT}{{1,3}}|[{WORD}])[.)])(?: |$)")
"""The beginning of an item of a list."""


def breaks_in_sentences(text: str) -> npt.NDArray[np.int64]:
    """The line breaks that lie inside a sentence of wrapped prose: character positions, ascending."""
    found: list[int] = []
    for start, lines in _runs(text):
        if _is_prose(lines):
            ends = start + np.cumsum([len(line) + 1 for line in lines[:-1]]) - 1
            found += [end for end, line in zip(ends.tolist(), lines, strict=False) if not _is_ended(line)]
    return np.array(found, np.int64)


def _runs(text: str) -> Iterator[tuple[int, list[str]]]:
    """The runs of lines that are each as wide as the next word allows, with their places and their last lines."""
    lines = [*text.split("\n"), ""]
    sizes = [len(line) for line in lines]
    may_go_on = [_may_go_on(line, following) for line, following in pairwise(lines)]
    start = place = first = 0
    for number, goes_on in enumerate(may_go_on):
        place += sizes[number] + 1
        if goes_on and _is_full(number, lines, sizes):
            continue
        if number - first >= LEAST_BREAKS:
            yield start, lines[first : number + 1]
        start, first = place, number + 1


def _may_go_on(line: str, following: str) -> bool:
    """Whether both are lines of prose, and the first one is as long as a full line can be."""
    return (
        SHORTEST <= len(line) <= LONGEST >= len(following)
        and _PLAIN.fullmatch(line) is not None
        and _PLAIN.fullmatch(following) is not None
        and _ITEM.match(following) is None
    )


def _is_full(number: int, lines: list[str], sizes: list[int]) -> bool:
    """Whether the first word of the next line had no room in this one: the lines near it show the width."""
    width = max(size for size in sizes[max(0, number - NEAR) : number + NEAR + 1] if size <= LONGEST)
    word = lines[number + 1].split(" ", 1)[0]
    return sizes[number] + 1 + len(word) > (1 - RAGGED) * width


def _is_prose(lines: list[str]) -> bool:
    """Whether a run of full lines and its last line are one paragraph of prose."""
    continued = [after for line, after in pairwise(lines) if not _is_ended(line)]
    words = [line.lower().split() for line in lines]
    letters = sum(sign.isalpha() or sign == " " for line in lines for sign in line)
    return (
        len(continued) >= LEAST_BREAKS
        and sum(line[0].islower() for line in continued) >= LOWER * len(continued)
        and not any(_alike([line[place] for line in words if len(line) > 1]) for place in (0, 1, -1))
        and sum(line[0] != ":" and line.split(" ", 1)[0].endswith(":") for line in lines) <= ALIKE * len(lines)
        and sum(line.count(f"{mark} ") for line in lines for mark in ",.;:!?") >= INNER_MARKS * len(lines)
        and letters >= PROSE_LETTERS * sum(map(len, lines))
    )


def _is_ended(line: str) -> bool:
    return line.removesuffix("\r").rstrip("\"')]\u201d\u2019").endswith((".", "!", "?", ":"))


def _alike(words: list[str]) -> bool:
    return max(Counter(words).values(), default=0) > max(2, ALIKE * len(words))
