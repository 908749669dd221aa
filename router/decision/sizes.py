"""How many tokens each pool reads of a prompt, as far as it is known before a selection. Pure.

    kept = protected + rate * tokens of each region with a rate of its own + share * all other tokens

A share or a rate is one of what may be dropped. In windows (`kv_transfer.windows.WindowPlan`) a speculator reads

    tokens = prompt - outside - cached + windows * (question + frame)
    read   = tokens + again

`again` is the second read, with its question and frame, which is never cached. Each window is a prompt of its own, so
the time is linear in `read`.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from cachetools import LRUCache

from kv_transfer.layout import NO_LAYOUT, TextLayout
from kv_transfer.options import AUTO, SHORT_TEXT, SelectionOptions
from kv_transfer.windows import AGAIN_SHARE, MOST_AGAIN, WindowPlan
from skim_common.models.costs import Read

WAYS = 256
"""So many ways to select by a coverage are remembered, each with the share that it kept."""
BLOCK = 32
"""Windows share the whole blocks of their head in the prefix cache: tokens of a block, on CPU. It is 16 on a GPU."""
MEAN_SHARE = 0.75
"""The mean size of a window of a long text as a share of the largest: it has half or more."""


@dataclass(frozen=True, slots=True, eq=False)
class KeptSizes:
    """fixed: float64 [M], the share of each token that is kept whatever the scores are: 1 if it is protected, the rate
    of its region, or 0.
    """

    fixed: npt.NDArray[np.float64]

    @classmethod
    def of(cls, size: int, protect_last: int, layout: TextLayout = NO_LAYOUT) -> "KeptSizes":
        """Those of a prompt of `size` tokens. protect_last: as in SelectionOptions."""
        fixed = np.zeros(size)
        for start, end, rate in layout.regions:
            fixed[start:end] = rate
        fixed[layout.fixed(size, protect_last)] = 1
        return cls(fixed)

    @property
    def rest(self) -> npt.NDArray[np.bool_]:
        """The tokens of which the scores alone say whether they are kept, [M]."""
        return self.fixed == 0

    @property
    def opening(self) -> int:
        """The tokens at the beginning that every selection keeps: the target reads them alike in both modes. 0 if all
        are kept, as where no text is known."""
        return int(np.argmax(self.fixed < 1))

    @property
    def texts(self) -> int:
        """The texts that a selection may drop from, such as messages: runs of the rest."""
        rest = self.rest
        return int(rest[0]) + int(np.count_nonzero(~rest[:-1] & rest[1:]))

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
        behind = KeptSizes(self.fixed[start:])
        return float(behind.fixed.size) if behind.droppable <= SHORT_TEXT else behind.kept(share)


class KeptShares:
    """The share that selections by a coverage kept of what may be dropped: a mean in which the latest counts half.

    There is one for each way to score (a word), each coverage, and about as many texts: one long text and a hundred
    messages keep different shares.
    """

    def __init__(self) -> None:
        self._shares: LRUCache[_Key, float] = LRUCache(WAYS)

    def of(self, way: str, options: SelectionOptions, sizes: KeptSizes) -> float:
        """The share that a selection will keep: of one like it, else of any number of texts, else the largest."""
        if options.fixed_rate is not None:
            return options.fixed_rate
        largest = options.largest_share if options.keep_rate == AUTO else options.coverage or 1.0
        return next((self._shares[key] for key in _keys(way, options, sizes) if key in self._shares), largest)

    def selected(self, way: str, options: SelectionOptions, sizes: KeptSizes, kept: int) -> None:
        """Learn that a new selection kept so many tokens."""
        share = sizes.share_of(kept)
        if share is not None and options.wanted_coverage is not None:
            for key in _keys(way, options, sizes):
                self._shares[key] = (self._shares.get(key, share) + share) / 2


_Key = tuple[str, float | None, int]
"""The last number is the texts as a power of four; -1 for any."""


def _keys(way: str, options: SelectionOptions, sizes: KeptSizes) -> tuple[_Key, _Key]:
    """Where the share of such a selection stands, and that of all by this way and coverage."""
    coverage = options.covering(sizes.droppable).coverage
    return (way, coverage, sizes.texts.bit_length() // 2), (way, coverage, -1)


@dataclass(frozen=True, slots=True)
class WindowReads:
    """What a speculator reads of a prompt of `size` tokens in windows.

    head: tokens of the frame's beginning. again: the best of several windows is read once more. new: in all methods, so
    many tokens of a long text more.
    """

    plan: WindowPlan
    size: int
    head: int = 0
    again: bool = False

    @classmethod
    def of(cls, options: SelectionOptions, plan: WindowPlan | None, size: int, head: int = 0) -> "WindowReads | None":
        """None for a prompt that is read as a whole."""
        if options.read != "windows" or options.selector == "lexical" or plan is None:
            return None
        return cls(plan, size, head, options.read_again == "on")

    def count(self, new: int = 0) -> float:
        """The windows, at least 1."""
        return max(1.0, self.plan.windows + new / (MEAN_SHARE * self.plan.size))

    def known(self, tokens: int, new: int = 0) -> float:
        """The tokens that windows find in the cache if the first ones of the prompt were read before. All windows but
        the first find the head."""
        outside = self.size - self.plan.tokens
        return max(0, tokens - outside) + (self.count(new) - 1) * (self.head - self.head % BLOCK)

    def tokens(self, cached: float, new: int = 0) -> float:
        """The tokens that the windows compute. cached: tokens that they had cached."""
        return max(1.0, self.plan.tokens + new - cached + self.count(new) * self.plan.around)

    def tokens_again(self, new: int = 0) -> float:
        """The tokens of the second read; 0 without one."""
        if not self.again or self.count(new) <= 1:
            return 0.0
        return self.plan.around + min(MOST_AGAIN, AGAIN_SHARE * (self.plan.tokens + new))

    def read(self, cached: float, new: int = 0) -> Read:
        """All that is computed. cached: as in `tokens`."""
        return Read.of(self.tokens(cached, new) + self.tokens_again(new))
