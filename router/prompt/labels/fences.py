"""Fenced blocks, such as of code: what stands in one names nothing outside of it."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence

import numpy as np
import re2

from router.prompt.labels.marks import FENCE, Marks, TextLines
from router.prompt.text.codes import Codes

CLOSED, CUT_OFF = 1, 2
"""The level of the mark where a fence begins: of one that ends, and of one whose end is missing."""
_ITEMS = re2.compile(r"(?:(?:[-*+]|\d{1,9}[.)])[ \t]+)*")


def add_fences(marks: Marks, text: str, codes: Codes, lines: TextLines, resets: Sequence[int]) -> None:
    """Add where fences begin and end. One that is cut off ends where the next one begins, or with its message.

    text, codes, lines: of the same text. resets: where messages begin, ascending.
    """
    raw, first, _, _ = lines.places
    opened, begin, message = "", 0, 0
    for number, signs, is_bare in _fence_lines(text, codes, lines):
        other = message != (message := bisect_right(resets, raw[number]))
        if opened and not other and not signs.startswith(opened):
            continue
        if opened:
            is_closed = is_bare and not other
            marks.add(begin, begin, FENCE, CLOSED if is_closed else CUT_OFF, closes=True)
            marks.add(raw[number], raw[number], FENCE, closes=True)
            if is_closed:
                opened = ""
                continue
        opened, begin = signs, first[number] + 1  # what ends with the line before ends outside
    if opened:
        marks.add(begin, begin, FENCE, CUT_OFF, closes=True)


def _fence_lines(text: str, codes: Codes, lines: TextLines) -> Iterator[tuple[int, str, bool]]:
    """The lines that can begin or end a fence: their number, the signs, and whether they have no other text. It may
    begin after the sign of an item of a list."""
    places = [np.flatnonzero((codes[2:] == sign) & (codes[1:-1] == sign) & (codes[:-2] == sign)) for sign in b"`~"]
    for number in np.unique(np.searchsorted(lines.raw, np.concatenate(places), "right") - 1).tolist():
        line = lines.text(text, number)
        fence = line if line[0] in "`~" else line[_ITEMS.match(line).end() :]
        info = fence.lstrip(fence[:1])
        signs = fence[: len(fence) - len(info)]
        if len(signs) >= 3 and signs[0] in "`~" and "`" not in info:
            yield number, signs, line == signs
