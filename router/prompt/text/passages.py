"""Which units of a text belong together: how far each is apart from the one before it, and how far it reaches.

A text that reads on repeats its rare words nearby; a list of sentences, of records or of search results does not.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kv_transfer.arrays import Int32Array
from kv_transfer.passages import reach_of
from router.prompt.text.codes import Codes, known_characters
from router.prompt.text.words import Numbers, TermIndex

PROSE_LETTERS = 0.75
"""Of a unit of prose, at least this share of the characters is letters and white space. Logs and JSON have less."""
APART = 1 << 20
"""Tokens. Nothing is spread over such a gap."""
BLANK_LINE, OTHER = 60, 30
"""Tokens. The gap at a blank line, and between units of which one is no prose. Chosen on papers, which have tables."""
NEAR, FREQUENT = 3, 8
PRIOR, LIKELY = 2, 1.5
"""So many pairs, of a text that reads on a little, count besides those of the text."""
READS_ON, READS_ON_AFTER_BLANK = 1.3, 0.9
"""From this ratio on, a text reads on at a kind of border. Chosen to part meetings and papers from generated sentences
that have nothing to do with each other."""
PARTED = 1 / 3
"""A text that reads on at its blank lines by less than this share of how it reads on inside its lines is a collection,
such as what a search found. Chosen on collections of paragraphs (.1 to .3), meetings and papers (.5 to .7)."""
PASSAGE_SHARE, LEAST_REACH = 1 / 3, 20.0
"""In a collection, the reach of a unit is at most this share of its passage, but not less than so many tokens."""
MOST_INDENTED = 0.3
"""A text of which more units are indented is code or data."""


@dataclass(frozen=True, slots=True, eq=False)
class TextPassages:
    """tokens: of each unit [U]. gaps: as in TextLayout [U]. reach: tokens after which what is found at each unit counts
    1/e as much [U]."""

    tokens: Numbers
    gaps: Int32Array
    reach: npt.NDArray[np.float64]

    @classmethod
    def of(
        cls, index: TermIndex, codes: Codes, begins: Numbers, tokens: Numbers, breaks: Numbers, indents: Int32Array
    ) -> "TextPassages":
        """index: of the units. codes: of the text. begins: the first character of each unit [U]. tokens: of each unit
        [U]. breaks, indents: as in TextUnits.

        What is indented, or has few letters, is no prose. Nothing is spread over borders of a kind at which this text
        does not read on (`_reads_on`), nor in code.
        """
        droppable, kinds = index.droppable, breaks.clip(max=2)
        within, at_line, at_blank = _reads_on(index, kinds)
        reach = np.full(tokens.size, reach_of(int(tokens.sum())))
        if at_blank < PARTED * within:
            passage = np.cumsum(kinds == 2)
            sizes = np.bincount(passage, tokens)[passage]
            reach = np.minimum(reach, np.maximum(LEAST_REACH, PASSAGE_SHARE * sizes))
        gap_of = np.full(3, APART, np.int32)
        if not droppable.any() or (indents[droppable] > 0).mean() <= MOST_INDENTED:  # no code
            gap_of[[within >= READS_ON, at_line >= READS_ON, False]] = 0
            gap_of[2] = BLANK_LINE if at_blank >= READS_ON_AFTER_BLANK else APART
        letters = np.r_[0, np.cumsum(known_characters().letters[codes])]
        ends = np.append(begins[1:], codes.size)
        prose = (letters[ends] - letters[begins] >= PROSE_LETTERS * (ends - begins)) & (indents == 0)
        gaps = np.where(prose & np.r_[True, prose[:-1]], gap_of[kinds], np.maximum(gap_of[kinds], OTHER))
        gaps[~(droppable & np.r_[False, droppable[:-1]])] = APART
        return cls(tokens, gaps, reach)


def _reads_on(index: TermIndex, kinds: npt.NDArray[np.integer]) -> tuple[float, float, float]:
    """How often words of few units recur in near units, over what chance gives; for each kind of border.

    Counted are terms of 2 to 1/FREQUENT of the units, over pairs of units that are at most NEAR units apart. A pair has
    the strongest border between its units. kinds: of the border before each unit, 0 to 2 [U].
    """
    size, droppable, count = index.size + NEAR, index.droppable, index.holding
    units = int(droppable.sum())
    rare = (count >= 2) & (count <= max(2, units / FREQUENT))
    chance = float((count * (count - 1.0))[rare].sum()) / max(1, units * (units - 1))
    cells = (index.terms * size + index.units)[rare[index.terms]]
    seen, expected = np.zeros(3), np.zeros(3)
    strongest, joined = kinds, np.r_[False, droppable[1:] & droppable[:-1]]
    follows = joined
    for apart in range(1, NEAR + 1):
        if apart > 1:
            strongest = np.maximum(np.r_[0, strongest[:-1]], kinds)
            follows = np.r_[False, follows[:-1]] & joined
        later = cells[np.isin(cells - apart, cells, assume_unique=True)] % size
        later = later[(later >= apart) & (later < index.size)]
        seen += np.bincount(strongest[later[follows[later]]], minlength=3)
        expected += np.bincount(strongest[follows], minlength=3) * chance
    within, at_line, at_blank = ((seen + PRIOR * LIKELY) / (expected + PRIOR)).tolist()
    return within, at_line, at_blank
