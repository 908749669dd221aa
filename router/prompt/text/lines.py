"""The lines of a text."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import re2

from kv_transfer.arrays import mask_of
from router.prompt.text.codes import DIGIT, WHITE, Codes, among

NUMBER = re2.compile(rf"(?m)^[ \t]*({DIGIT}{{1,7}})[\t:|\x{{2192}}\x{{2502}}]")
"""The number of a line, as tools of agents show files: "12: ", "  12\t", "12|" or "  12" with an arrow."""


@dataclass(frozen=True, slots=True, eq=False)
class Lines:
    """The lines of a text, as character positions, ascending. filled: its characters that are no white space and no
    number of a line. breaks: line breaks [L]. starts: where the white space before each line's text begins [L + 1].
    """

    filled: npt.NDArray[np.int64]
    breaks: npt.NDArray[np.int64]
    starts: npt.NDArray[np.int64]

    @classmethod
    def of(cls, codes: Codes, text: str) -> "Lines":
        """codes: of the text."""
        numbers = _line_numbers(text)
        is_text = ~(among(codes, WHITE) | mask_of(numbers, codes.size))
        breaks = np.flatnonzero(codes == ord("\n"))
        starts = np.r_[0, breaks + 1]
        starts[np.searchsorted(starts, numbers[:, 0])] = numbers[:, 1]
        return cls(np.flatnonzero(is_text), breaks, starts)

    def at(
        self, places: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Of the first text from each place on, int64 [P] each: its line's indent, the line breaks before it, where it
        is. places: character positions [P]; after the last text they count as there.
        """
        if not self.filled.size:
            nowhere = np.zeros(places.size, np.int64)
            return nowhere, nowhere, nowhere
        found = np.searchsorted(self.filled, places).clip(max=self.filled.size - 1)
        first, before = self.filled[found], np.where(found > 0, self.filled[found - 1], -1)
        number = np.searchsorted(self.breaks, first)
        start = self.starts[number]
        indents = self.filled[np.searchsorted(self.filled, start)] - start
        return indents, number - np.searchsorted(self.breaks, before), first


def _line_numbers(text: str) -> npt.NDArray[np.int64]:
    """The character ranges of the numbers of lines, from the line's start: int64 [N, 2].

    Alone it may be any number, such as the hour in a log. It counts if the line before or after has the next one.
    """
    found = [(match.start(), match.end(), int(match[1])) for match in NUMBER.finditer(text)]
    ranges = np.array(found, np.int64).reshape(-1, 3)
    follows, is_followed = np.diff(ranges[:, 2], prepend=-2) == 1, np.diff(ranges[:, 2], append=-2) == 1
    return ranges[follows | is_followed, :2]
