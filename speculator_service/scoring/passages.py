"""The scores of units of text by retrieval heads and by words together, each with the passage around the unit.

A unit of prose is understood with its neighbours, and evidence that people mark is seldom one sentence. So what a unit
has is spread over the units around it (`kv_transfer.passages`), where the text reads on (`TextLayout.gaps`). Heads and
words are compared as z-scores, because their scales differ from prompt to prompt: the logarithm of the mass per token,
and the square root of BM25. Chosen on people's questions about meetings and papers, and checked on generated tasks.
"""

import numpy as np
import numpy.typing as npt

from kv_transfer.arrays import Float32Array
from kv_transfer.layout import TextLayout
from kv_transfer.passages import spread

Values = npt.NDArray[np.float64]

SHARPNESS = 0.5
"""The importance is exp(SHARPNESS * sum), so that a share of it says how sure the scores are."""
FLOOR = 1e-3
"""The share of the mean mass that every unit has at least, so that the logarithm of none is far below all others."""


def passage_importance(
    masses: Float32Array, layout: TextLayout, weight: float, droppable: npt.NDArray[np.bool_]
) -> Float32Array:
    """float32 [M], not negative; all tokens of a unit have the same, and those that may not be dropped have 0.

    masses: float32 [M], the mass that the heads put on each token. layout: with units, gaps and words. weight: of the
    words against the heads. droppable: bool [M].
    """
    starts = layout.units.astype(np.int64)
    lengths = np.diff(starts, append=droppable.size)
    may_drop = np.logical_or.reduceat(droppable, starts)
    mass = np.add.reduceat(np.where(droppable, masses, 0).astype(np.float64), starts)
    sizes = lengths * may_drop
    floor = FLOOR * mass.sum() / max(1, sizes.sum())
    heads_near = _log_density(
        spread(mass, lengths, layout.gaps), spread(sizes.astype(np.float64), lengths, layout.gaps), floor
    )
    words = np.sqrt(layout.words.astype(np.float64))
    total = z_scores(heads_near, may_drop) + weight * z_scores(words, may_drop)
    importance = np.where(may_drop, np.exp(SHARPNESS * (total - total[may_drop].max(initial=0))), 0)
    return np.where(droppable, np.repeat(importance, lengths), 0).astype(np.float32)


def z_scores(values: Values, among: npt.NDArray[np.bool_]) -> Values:
    """How many standard deviations each value is above the mean of those `among`; 0 for the others, and if all are
    alike."""
    chosen = values[among]
    deviation = float(chosen.std()) if chosen.size else 0.0
    if deviation < 1e-9:
        return np.zeros(values.size)
    return np.where(among, (values - chosen.mean()) / deviation, 0)


def _log_density(mass: Values, sizes: Values, floor: float) -> Values:
    return np.log(mass / np.maximum(sizes, 1) + floor + 1e-12)
