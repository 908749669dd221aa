"""Labels of tables: the first line of rows with the same separators, or of columns that are aligned by spaces."""

import numpy as np
import numpy.typing as npt
import re2

from router.prompt.labels.marks import Marks, TextLines
from router.prompt.text.codes import DIGIT, SPACE, Codes, among

LEAST_ROWS = 3
"""Rows of a table, its header included."""
MEAN_CELL = 32
"""Characters. Longer cells of the first line are no names of columns."""
MOST_SPACES = 2
"""In the name of a column, where commas part columns: they part the clauses of prose, too."""
LONGEST_HEADER = 2000
_NUMBER = re2.compile(rf"[{SPACE}]*[\"']?[-+$\x{{20ac}}\x{{a3}}<>~]?{DIGIT}[{DIGIT}.,:%/ _-]*[\"']?[{SPACE}]*$")
_CODE = re2.compile(r"[{}<>=;]|\(.*,|://")
_GROUP = "table"


def add_tables(marks: Marks, text: str, codes: Codes, lines: TextLines) -> None:
    """Add the headers of tables and the ends of their rows. text, codes, lines: of the same text."""
    if lines.raw.size < LEAST_ROWS:
        return
    free = np.zeros(lines.raw.size, bool)
    quotes = np.r_[0, np.cumsum(codes == ord('"'))]
    for separator in "|\t,":
        places = np.flatnonzero(codes == ord(separator))
        if places.size < LEAST_ROWS:
            continue
        line = np.searchsorted(lines.raw, places, "right") - 1
        outside = (line >= 0) & (places < lines.end[line]) & ((quotes[places] - quotes[lines.raw[line]]) % 2 == 0)
        counts = np.bincount(line[outside], minlength=lines.raw.size)
        _add_tables(marks, text, lines, counts, separator, free)
    _add_tables(marks, text, lines, _wide_gaps(codes, lines), None, free)


def _wide_gaps(codes: Codes, lines: TextLines) -> npt.NDArray[np.int64]:
    """How often two or more spaces part the text of each line, [N]; not after the stop of a sentence."""
    space = codes == ord(" ")
    ends = np.flatnonzero(space[2:] & space[1:-1] & ~space[:-2])  # the character before a gap
    ends = ends[~among(codes[ends], ".!?:;,\n")]
    line = np.searchsorted(lines.first, ends, "right") - 1
    held = (line >= 0) & (ends + 1 < lines.end[line])
    return np.bincount(line[held], minlength=lines.raw.size)


def _add_tables(
    marks: Marks,
    text: str,
    lines: TextLines,
    counts: npt.NDArray[np.int64],
    separator: str | None,
    taken: npt.NDArray[np.bool_],
) -> None:
    """Add the tables whose rows have `counts` [N] separators. None: spaces. taken: the lines of tables so far, [N]."""
    wanted = 2 if separator is None else 1
    is_row = (counts >= wanted) & ~taken
    joined = is_row[1:] & is_row[:-1] & ~lines.fresh[1:]
    if separator is not None:
        joined &= counts[1:] >= counts[:-1]
    edges = np.flatnonzero(np.diff(joined, prepend=False, append=False))
    last = -1
    for first, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        if first <= last or end - first + 1 < LEAST_ROWS or not _is_header(text, lines, first, separator):
            continue
        if separator is not None and int((counts[first : first + LEAST_ROWS] != counts[first]).sum()):
            continue
        fewer = counts[first] if separator is not None else 1
        last = _last_row(lines, counts, first, int(fewer))
        taken[first : last + 1] = True
        place = int(lines.after[last])
        marks.add(int(lines.raw[first]), int(lines.after[first]), _GROUP)
        marks.add(place, place, _GROUP, closes=True)


def _last_row(lines: TextLines, counts: npt.NDArray[np.int64], first: int, least: int) -> int:
    """The last of the rows that follow each other from `first` on."""
    at, width = first + 1, 64
    while at < counts.size:
        ends = (counts[at : at + width] < least) | lines.fresh[at : at + width]
        if ends.any():
            return at + int(np.argmax(ends)) - 1
        at, width = at + width, 2 * width
    return int(counts.size) - 1


def _is_header(text: str, lines: TextLines, number: int, separator: str | None) -> bool:
    """Whether the line can name columns: short cells, none of them a number, and no code."""
    line = lines.text(text, number, LONGEST_HEADER)
    if separator is None:
        return not any(character.isdigit() for character in line)
    cells = line.strip("|").split(separator)
    if separator == "," and (_CODE.search(line) or line.endswith((".", ",", "!", "?"))):
        return False
    if separator == "," and max(cell.count(" ") for cell in cells) > MOST_SPACES:
        return False
    short = len(line) <= MEAN_CELL * len(cells)
    return short and not any(map(_NUMBER.match, cells)) and any(character.isalpha() for character in line)
