"""Windows: parts of a prompt that are read as short prompts of their own, each followed by the question.

Short texts share a window with what stands between them (`kv_transfer.windows.WindowPlan`). A longer text is cut at
units. Which unit begins a window depends on the unit's own tokens (content-defined chunking, as in LBFS: Muthitacharoen
et al., 2001). So the same text gives the same windows wherever it stands, and a change in a text changes few of its
windows. Pure functions.
"""

from hashlib import blake2b
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from kv_transfer.arrays import Int32Array
from kv_transfer.windows import Window, WindowPlan


def windows_of(token_ids: Int32Array, plan: WindowPlan, starts: npt.NDArray[np.integer]) -> list[Window]:
    """The windows of a prompt: they hold every token of the plan's parts once, in the order of the text.

    token_ids: int32 [M]. starts: int [U], the first tokens of the units, from 0. A single unit that is longer than a
    window is a window of its own.
    """
    windows: list[Window] = []
    for first, end in plan.parts:
        if end - first <= plan.largest:
            windows.append((first, end))
            continue
        inside = starts[np.searchsorted(starts, first, "right") : np.searchsorted(starts, end, "left")]
        borders = np.concatenate([[first], inside, [end]]).astype(np.int64)
        windows += pairwise(_cuts(token_ids, borders, plan))
    return windows


def _cuts(token_ids: Int32Array, borders: npt.NDArray[np.int64], plan: WindowPlan) -> list[int]:
    """The borders of the windows of one text, from its first to its last border. borders: those of its units.

    Among the units that could begin the next window, the one with the smallest hash does.
    """
    cuts = [int(borders[0])]
    hashes: dict[int, bytes] = {}

    def hashed(place: int) -> bytes:
        if place not in hashes:
            unit = token_ids[borders[place] : borders[place + 1]]
            hashes[place] = blake2b(unit.tobytes(), digest_size=8).digest()
        return hashes[place]

    while borders[-1] - cuts[-1] > plan.size:
        low = int(np.searchsorted(borders, cuts[-1] + plan.least, "left"))
        high = int(np.searchsorted(borders, cuts[-1] + plan.size, "right"))
        candidates = range(low, min(high, borders.size - 1))
        place = min(candidates, key=hashed, default=low)  # none: one unit has all these places
        if place >= borders.size - 1:
            break
        cuts.append(int(borders[place]))
    return [*cuts, int(borders[-1])]
