"""What the forms of labels have in common: marks in a text, and its lines."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from router.prompt.text.lines import Lines

LONGEST_LINE = 240
"""Characters. So much of a line is searched for a label."""
FENCE = "fence"
"""The group of the marks where a fence begins and ends."""


class Marks:
    """The marks of a text. A mark is a label from its first character up to `end`, which names what follows; or the end
    of what a label names.

    A mark ends what is named by earlier labels of its group of at least its level, and by all labels after those.
    closes: it names nothing itself. If it has characters, they separate what was named from what follows. inline: the
    named text begins on the same line. They are kept as lists of numbers and names, of which the garbage collector
    knows nothing: a long text has 10,000.
    """

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.ends: list[int] = []
        self.groups: list[str] = []
        self.levels: list[int] = []
        self.inline: list[bool] = []
        self.closes: list[bool] = []

    def add(
        self, start: int, end: int, group: str, level: int = 0, *, inline: bool = False, closes: bool = False
    ) -> None:
        """Marks may be added in any order."""
        self.starts.append(start)
        self.ends.append(end)
        self.groups.append(group)
        self.levels.append(level)
        self.inline.append(inline)
        self.closes.append(closes)

    def order(self) -> list[int]:
        """Their numbers in the order of the text. At one place, what closes comes first, then the longer label."""
        starts, ends, closes = (np.array(values, np.int64) for values in (self.starts, self.ends, self.closes))
        return np.lexsort((-ends, 1 - closes, starts)).tolist()


class TextLines(NamedTuple):
    """The lines of a text that are not blank, [N] each, as character positions. raw: where they begin, with white space
    and the number of the line. first, end: of their text. after: where the next line begins. indents: as in Lines.
    fresh: a blank line, or none, stands before. apart: a blank line, or none, follows. last: of the lines up to the
    next blank one. places: raw, first, end and after as lists.
    """

    raw: npt.NDArray[np.int64]
    first: npt.NDArray[np.int64]
    end: npt.NDArray[np.int64]
    after: npt.NDArray[np.int64]
    indents: npt.NDArray[np.int64]
    fresh: npt.NDArray[np.bool_]
    apart: npt.NDArray[np.bool_]
    last: npt.NDArray[np.int64]
    places: tuple[list[int], list[int], list[int], list[int]]

    @classmethod
    def of(cls, lines: Lines, characters: int) -> "TextLines":
        """characters: of the text."""
        raw = np.r_[0, lines.breaks + 1]
        after = np.append(raw[1:], characters)
        places = np.searchsorted(lines.filled, np.append(raw, characters))
        number = np.flatnonzero(places[1:] > places[:-1])
        first, end = lines.filled[places[number]], lines.filled[places[number + 1] - 1] + 1
        alone = np.diff(number) > 1
        fresh, apart = np.r_[True, alone], np.r_[alone, True]
        indents = first - lines.starts[number]
        raw, after, fresh, apart = raw[number], after[number], fresh[: number.size], apart[: number.size]
        last = np.flatnonzero(apart)[np.cumsum(fresh) - 1]
        as_lists = raw.tolist(), first.tolist(), end.tolist(), after.tolist()
        return cls(raw, first, end, after, indents, fresh, apart, last, as_lists)

    def text(self, text: str, number: int, longest: int = LONGEST_LINE) -> str:
        """The text of a line, or its beginning."""
        _, firsts, ends, _ = self.places
        first, end = firsts[number], ends[number]
        return text[first : min(end, first + longest)]
