"""How many tokens of a prompt a selection keeps, as far as it is known before it. Pure.

    kept = protected + rate * tokens of each region with a rate of its own + share * all other tokens

So a share or a rate is one of what may be dropped, as in `speculator_service.scoring.selection`.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from cachetools import LRUCache

from kv_transfer.layout import NO_LAYOUT, TextLayout
from kv_transfer.options import AUTO, SHORT_TEXT, SelectionOptions

WAYS = 256
"""So many ways to select by a coverage are remembered, each with the share that it kept."""


@dataclass(frozen=True, slots=True, eq=False)
class KeptSizes:
    """fixed: float64 [M], the share of each token that is kept whatever the scores are: 1 if it is protected, the rate
    of its region, or 0. rest: bool [M], the other tokens.
    """

    fixed: npt.NDArray[np.float64]
    rest: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, size: int, protect_last: int, layout: TextLayout = NO_LAYOUT) -> "KeptSizes":
        """Those of a prompt of `size` tokens. protect_last: as in SelectionOptions."""
        may_drop = ~layout.fixed(size, protect_last)
        fixed = np.zeros(size)
        for start, end, rate in layout.regions:
            fixed[start:end] = rate
        rest = fixed == 0
        fixed[~may_drop] = 1
        return cls(fixed, rest & may_drop)

    @property
    def opening(self) -> int:
        """The tokens at the beginning that every selection keeps: the target reads them alike in both modes. 0 if it
        keeps all, which is also so where no text is known."""
        return int(np.argmax(self.fixed < 1))

    @property
    def texts(self) -> int:
        """The texts that a selection may drop from, such as messages: runs of the rest."""
        return int(self.rest[0]) + int(np.count_nonzero(~self.rest[:-1] & self.rest[1:]))

    @property
    def droppable(self) -> int:
        """The tokens that a selection may drop."""
        return int((self.fixed < 1).sum())

    def kept(self, share: float) -> float:
        """The tokens that a selection keeps if it keeps `share` of the rest."""
        return float(self.fixed.sum() + share * self.rest.sum())

    def share_of(self, kept: int) -> float | None:
        """The share of a selection that kept so many tokens; None if none follows from it."""
        rest = int(self.rest.sum())
        return min(1.0, max(0.0, kept - float(self.fixed.sum())) / rest) if rest else None

    def new(self, share: float, start: int) -> float:
        """As `kept`, of a later turn, whose tokens begin at `start`: all if at most SHORT_TEXT may be dropped."""
        behind = KeptSizes(self.fixed[start:], self.rest[start:])
        return float(behind.fixed.size) if behind.droppable <= SHORT_TEXT else behind.kept(share)


class KeptShares:
    """The shares that selections by a coverage kept of what may be dropped: for each way to score (a word), each
    coverage and about as many texts, the mean of the latest, where each counts half as much as the next one. One long
    text and a hundred messages keep different shares."""

    def __init__(self) -> None:
        self._found: LRUCache[_Key, float] = LRUCache(WAYS)

    def of(self, way: str, options: SelectionOptions, sizes: KeptSizes) -> float:
        """The share that a selection will keep; before there was one like it, that of any number of texts; before there
        was one at all, the largest."""
        if options.fixed_rate is not None:
            return options.fixed_rate
        most = options.largest_share if options.keep_rate == AUTO else options.coverage or 1.0
        return next((self._found[key] for key in _keys(way, options, sizes) if key in self._found), most)

    def selected(self, way: str, options: SelectionOptions, sizes: KeptSizes, kept: int) -> None:
        """Learn that a new selection kept so many tokens."""
        share = sizes.share_of(kept)
        if share is not None and options.wanted_coverage is not None:
            for key in _keys(way, options, sizes):
                self._found[key] = (self._found.get(key, share) + share) / 2


_Key = tuple[str, float | None, int]
"""The last number is the texts as a power of four; -1 for any."""


def _keys(way: str, options: SelectionOptions, sizes: KeptSizes) -> tuple[_Key, _Key]:
    """Where the share of such a selection stands, and that of all by this way and coverage."""
    coverage = options.covering(sizes.droppable).coverage
    return (way, coverage, sizes.texts.bit_length() // 2), (way, coverage, -1)
