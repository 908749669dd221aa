"""Windows: parts of a prompt that are read as short prompts of their own, each followed by the question.

A window ends where a message or a protected text begins. A longer text is cut at units. Which unit begins a window
depends on the unit's own tokens (content-defined chunking, as in LBFS: Muthitacharoen et al., 2001). So the same text
gives the same windows wherever it stands, and a change in a text changes few of its windows. Pure functions.
"""

from hashlib import blake2b
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from kv_transfer.messages import Int32Array
from kv_transfer.spans import spans_of

Window = tuple[int, int]
"""A half-open token range of the prompt."""


def windows_of(
    token_ids: Int32Array, droppable: npt.NDArray[np.bool_], starts: npt.NDArray[np.integer], size: int
) -> list[Window]:
    """The windows of a prompt: they hold every droppable token once, in the order of the text.

    token_ids: int32 [M]. droppable: bool [M], the tokens that may be dropped. starts: int [U], the first tokens of the
    units, from 0. size: tokens of a window at most; a single unit that is longer is a window of its own.
    """
    windows: list[Window] = []
    for first, end in spans_of(droppable).tolist():
        inside = starts[(starts > first) & (starts < end)]
        borders = np.concatenate([[first], inside, [end]]).astype(np.int64)
        cuts = _cuts(token_ids, borders, size)
        windows += pairwise(cuts)
    return windows


def _cuts(token_ids: Int32Array, borders: npt.NDArray[np.int64], size: int) -> list[int]:
    """The borders of the windows of one text, from its first to its last border. borders: those of its units.

    A window that is not the last of its text has half of `size` tokens or more: among the units that could begin the
    next window, the one with the smallest hash does.
    """
    cuts = [int(borders[0])]
    hashes: dict[int, bytes] = {}

    def hashed(place: int) -> bytes:
        if place not in hashes:
            unit = token_ids[borders[place] : borders[place + 1]]
            hashes[place] = blake2b(unit.tobytes(), digest_size=8).digest()
        return hashes[place]

    while borders[-1] - cuts[-1] > size:
        low = int(np.searchsorted(borders, cuts[-1] + size / 2, "left"))
        high = int(np.searchsorted(borders, cuts[-1] + size, "right"))
        candidates = range(low, min(high, borders.size - 1))
        place = min(candidates, key=hashed, default=low)  # none: one unit is longer than half a window
        if place >= borders.size - 1:
            break
        cuts.append(int(borders[place]))
    return [*cuts, int(borders[-1])]
