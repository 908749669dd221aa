"""Prose that is wrapped at a width, as in the text of a PDF: line breaks there may lie inside a sentence."""

import numpy as np
import numpy.typing as npt

from router.prompt.text.codes import Codes, among, known_characters

SHORTEST, LONGEST = 40, 160
"""Characters of a full line of wrapped text."""
RAGGED = 0.12
"""A line is full if the next word would end after this share of the width before its end. Lines of a PDF are as wide in
points, not in characters."""
NEAR = 4
"""Lines before and after a line, whose longest one shows the width."""
PROSE_LETTERS = 0.9
"""Of prose, at least this share of the characters is letters and white space."""
SIGNS = "{}<>=|\\_#*~^$@+;`"
"""Of code, tables and markup. A line with one of them is no prose."""
LEAST_BREAKS, LOWER, INNER_MARKS = 2, 0.3, 1 / 3
"""Of the lines that follow each other so, at least so many continue a sentence, this share of them with a small letter
(German has few), and so many commas and stops stand inside a line. Lists of plain statements have none."""


def breaks_in_sentences(codes: Codes) -> npt.NDArray[np.int64]:
    """The line breaks that lie inside a sentence of wrapped prose: character positions, ascending. codes: of a text."""
    known, breaks = known_characters(), np.flatnonzero(codes == ord("\n"))
    if breaks.size < LEAST_BREAKS:
        return breaks[:0]
    codes = np.append(codes, np.uint16(ord("\n")))
    starts, ends = np.r_[0, breaks + 1], np.r_[breaks, codes.size - 1]
    ends = ends - ((codes[ends - 1] == ord("\r")) & (ends > starts))
    sizes, letter, space = ends - starts, known.letters & known.word, known.letters & ~known.word
    inner_marks = among(codes, ",.;!?") & np.r_[codes[1:] == ord(" "), False]
    kinds = known.letters[codes], inner_marks, among(codes, SIGNS)
    letters, marks, signs = (np.add.reduceat(kind, starts, dtype=np.int32) for kind in kinds)
    after = (starts + 1).clip(max=codes.size - 1)
    plain = (sizes <= LONGEST) & (signs == 0)
    plain &= letter[codes[starts]] & known.letters[codes[after]]  # not the sign of an item
    width = sizes * (sizes <= LONGEST)
    for _ in range(NEAR):
        width = np.maximum.reduce([width, np.r_[width[1:], 0], np.r_[0, width[:-1]]])
    spaces = np.append(np.flatnonzero(space[codes]), codes.size)
    words = spaces[np.searchsorted(spaces, starts)] - starts
    full = (sizes[:-1] >= SHORTEST) & (sizes[:-1] + 1 + words[1:] > (1 - RAGGED) * width[:-1])
    goes_on = full & plain[:-1] & plain[1:]
    run = np.cumsum(np.r_[True, ~goes_on]) - 1  # of each line
    inside = goes_on & ~_ended(codes, ends[:-1])
    continued = np.bincount(run[:-1], inside, run[-1] + 1)
    small = np.bincount(run[:-1], inside & known.small[codes[starts[1:]]], run[-1] + 1)
    prose = (continued >= LEAST_BREAKS) & (small >= LOWER * continued)
    prose &= np.bincount(run, marks) >= INNER_MARKS * np.bincount(run)
    prose &= np.bincount(run, letters) >= PROSE_LETTERS * np.bincount(run, sizes + 1)
    return breaks[inside & prose[run[:-1]]]


def _ended(codes: Codes, ends: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Which lines end a sentence, maybe in quotation marks [L]. ends: of the lines, without white space [L]."""
    last = codes[(ends - 1).clip(min=0)]
    before = codes[(ends - 2).clip(min=0)]
    return among(np.where(among(last, "\"')]\u201d\u2019"), before, last), ".!?:")
