"""Signs that tell what recurrence cannot: headings with levels, fences, and rows that name what is indented."""

import numpy as np

from router.prompt.structure.classes import BULLETS, SHORT, TITLE
from router.prompt.structure.labels import NONE
from router.prompt.structure.rows import STOPS, Bools, Ints, Rows
from router.prompt.text.codes import Codes, among

SIGN = -10
"""The kind of a heading of level n is SIGN - n."""
_FILE, _HUNK = 7, 8
"""Levels of the file and the hunk of a diff."""
_FLOW = frozenset(
    str.split("if for while else elif try except finally with switch case do catch return default when until match")
)
"""What begins the blocks of programming languages that have no name."""


def headings_of(text: str, rows: Rows, codes: Codes, strength: Ints, bullet: Bools) -> dict[int, int]:
    """The kinds of rows that are headings by a sign; NONE for the line under one. codes: of the text. strength, bullet:
    as in Shapes and Classes."""
    found = dict[int, int]()
    first, size = codes[rows.first], rows.end - rows.first
    candidates = among(first, "#=*<+@-") & (size > 1)
    plain = np.append((strength[1:] < 0) | bullet[1:], True) | rows.apart
    for row in np.flatnonzero(candidates & (rows.indent == 0)).tolist():
        line = text[rows.first[row] : min(rows.end[row], rows.first[row] + SHORT + 1)]
        marks = len(line) - len(line.lstrip(line[0]))
        if line[0] in "-=" and marks == len(line) > 2:
            title = row and rows.fresh[row - 1] and not rows.fresh[row] and size[row - 1] <= SHORT
            if title and text[rows.end[row - 1] - 1] not in STOPS + "|":
                found[row - 1], found[row] = SIGN - (1 if line[0] == "=" else 2), NONE
        elif line[0] in "#=*" and line[marks : marks + 1] in (" ", "\t") and marks <= 6:
            deeper = row + 1 < size.size and text.startswith(line[0] * (marks + 1), rows.first[row + 1])
            if (plain[row] or deeper) and (marks > 1 or (line[0] == "#" and rows.fresh[row])):
                found[row] = SIGN - marks
        elif line[:2] == "<h" and line[2:3].isdigit():
            found[row] = SIGN - int(line[2])
        elif line.startswith("+++ ") and row and text.startswith("--- ", rows.first[row - 1]):
            found[row] = SIGN - _FILE
        elif line.startswith("@@ "):
            found[row] = SIGN - _HUNK
    return found


def fences_of(text: str, rows: Rows, codes: Codes, starts: Ints) -> Ints:
    """By how much the rows in fences are nested [N], 0 for others. A fence that is cut off ends where the next one
    begins, or with its message. starts: the rows with which messages begin."""
    depth, opened, begin, edges = np.zeros(rows.raw.size, np.int64), "", 0, set(starts.tolist())
    found = np.flatnonzero(among(codes[rows.first], "`~") & (rows.end - rows.first > 2))
    for row in np.union1d(found, [*edges, depth.size]).astype(np.int64).tolist():
        line = text[rows.first[row] : min(rows.end[row], rows.first[row] + SHORT)] if row < depth.size else " "
        info = line.lstrip(line[0])
        signs = line[: len(line) - len(info)]
        is_fence, ends = len(signs) > 2 and line[0] in "`~" and "`" not in info, row in edges or row == depth.size
        if not ends and (not is_fence or not signs.startswith(opened)):
            continue
        if opened:
            depth[begin:row] = rows.indent[begin - 1] + 1
        opened, begin = ("" if not is_fence or (opened and not info and not ends) else signs), row + 1
    return depth


def names_indented(line: str) -> bool:
    """Whether a row with deeper ones under it names them. line: its first characters, one more than a label has."""
    if len(line) > SHORT or not any(map(str.isalnum, line)) or line.startswith(("</", "//", "#", "`")):
        return False
    if line.split(None, 1)[0].strip("(:{") in _FLOW:
        return False
    return line[-1] in ":{[(>" or (line[0] not in BULLETS and line[-1] not in STOPS and len(line) <= TITLE)
