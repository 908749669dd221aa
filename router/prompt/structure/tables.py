"""Tables: rows with equally many separators, and the header before them."""

import numpy as np

from router.prompt.structure.classes import TITLE
from router.prompt.structure.rows import STOPS, Rows
from router.prompt.text.codes import Codes, among

LEAST_ROWS = 3
"""Rows of a table, its header included."""
MEAN_CELL = 32
"""Characters. Longer cells of the first row are no names of columns."""
LONGEST_HEADER = 2000


def tables_of(text: str, codes: Codes, rows: Rows) -> tuple[dict[int, int], dict[int, int]]:
    """The first row of each table, and the rows that name a group of it since they have text in one cell alone; with
    the last row of the table."""
    n, found, groups = rows.first.size, dict[int, int](), dict[int, int]()
    taken, short = np.zeros(n, bool), rows.end - rows.first <= TITLE
    quotes = np.r_[0, np.cumsum(codes == ord('"'))]
    space = codes == ord(" ")
    gaps = np.flatnonzero(space[2:] & space[1:-1] & ~space[:-2] & ~among(codes[:-2], STOPS + ":\n"))
    for separator in "|\t,;< ":
        places = gaps if separator == " " else np.flatnonzero(codes == ord(separator))
        line = np.searchsorted(rows.first, places, "right") - 1
        held = (line >= 0) & (places < rows.end[line]) & ((quotes[places] - quotes[rows.first[line]]) % 2 == 0)
        counts = np.bincount(line[held], minlength=n)
        row = (counts > (separator == " ")) & ~taken
        title = ~row & ~rows.fresh & short
        row[1:-1] |= title[1:-1] & row[2:] & row[:-2] & ~rows.fresh[2:]
        joined = row[1:] & row[:-1] & ~rows.fresh[1:]
        same = (counts[1:] == counts[:-1]) | (separator == " ")
        edges = np.flatnonzero(np.diff(joined, prepend=False, append=False))
        for first, last in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
            begins = (at for at in range(first, min(first + LEAST_ROWS, last - 1)) if same[at] and same[at + 1])
            if (first := next(begins, last)) == last or not _is_header(text, rows, first, separator):
                continue
            found[first] = last
            taken[first : last + 1] = True
            if separator in "|\t ":
                parts = first + 1 + np.flatnonzero(short[first + 1 : last + 1])
                groups |= {at: last for at in parts.tolist() if _is_group(text, rows, at, separator)}
    return found, groups


def _is_group(text: str, rows: Rows, at: int, separator: str) -> bool:
    line = text[rows.first[at] : rows.end[at]]
    cells = line.split("  " if separator == " " else separator)
    return sum(any(map(str.isalnum, cell)) for cell in cells) == 1 and line[-1] not in STOPS


def _is_header(text: str, rows: Rows, at: int, separator: str) -> bool:
    """Whether a row can name columns: short cells of words, or of years."""
    line = text[rows.first[at] : min(rows.end[at], rows.first[at] + LONGEST_HEADER)]
    if separator == "<":
        return "<th" in line
    cells = line.strip("|").split(separator) if separator != " " else [line] * 8
    numbers = [part for part in line.replace(separator, " ").split() if part.strip('"').isdigit()]
    if separator in ",;":
        is_prose = line[-1] in STOPS or any(sign in line for sign in "{}<>=(")
        if is_prose or numbers or max(cell.count(" ") for cell in cells) > 2:
            return False
    years = all(number[:2] in ("19", "20") and len(number) == 4 for number in numbers)
    return (
        years and any(map(str.isalpha, line + numbers[0] if numbers else line)) and len(line) <= MEAN_CELL * len(cells)
    )
