"""The scores of units of text by retrieval heads and by words together, each with the passage around the unit.

What a unit has is spread over the units around it (`kv_transfer.passages`). Heads and words are compared as z-scores,
because their scales differ from prompt to prompt: the logarithm of the mass per token, and the square root of BM25.
Without heads, the words of a text score its tokens alone, or as much as the attention.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kv_transfer.arrays import Float32Array
from kv_transfer.layout import TextLayout
from kv_transfer.passages import spread

Values = npt.NDArray[np.float64]

LEAST_DEVIATION = 1e-9
SHARPNESS = 0.5
"""The importance is exp(SHARPNESS * sum), so that a share of it says how sure the scores are."""
SURE_SHARE = 0.08
"""What the heads find surest in the first read, by this share of the tokens, loses nothing by the second: text that
shares words with the question can hide text that shares none."""
FLOOR = 1e-3
"""The share of the mean mass that every unit has at least, so that the logarithm of none is far below all others."""


@dataclass(frozen=True, slots=True, eq=False)
class Masses:
    """What a read found. of_tokens: float32 [M], the mass that the heads put on each token. read: bool [M], the tokens
    that were read and may be dropped."""

    of_tokens: Float32Array
    read: npt.NDArray[np.bool_]


def passage_importance(first: Masses, layout: TextLayout, again: Masses | None = None) -> Float32Array:
    """float32 [M]; all tokens of a unit have the same, and those that may not be dropped have 0.

    first: of all that may be dropped. again: of a second read of some units, which ranks these anew: their mean stays,
    and one standard deviation is that of the first read.
    """
    droppable = first.read
    starts = layout.units.astype(np.int64)
    lengths = np.diff(starts, append=droppable.size)
    densities, may_drop = _log_densities(first, starts, lengths, layout)
    heads = z_scores(densities, may_drop)
    if again is not None and (deviation := float(densities[may_drop].std())) > LEAST_DEVIATION:
        second, read_again = _log_densities(again, starts, lengths, layout)
        second[read_again] = (second[read_again] - second[read_again].mean()) / deviation + heads[read_again].mean()
        sure = _best(heads, lengths * may_drop, SURE_SHARE)
        heads[read_again] = np.where(sure, np.maximum(heads, second), second)[read_again]
    words = np.sqrt(layout.words.astype(np.float64))
    total = heads + z_scores(words, may_drop)
    importance = np.where(may_drop, np.exp(SHARPNESS * (total - total[may_drop].max(initial=0))), 0)
    return np.where(droppable, np.repeat(importance, lengths), 0).astype(np.float32)


def z_scores(values: Values, among: npt.NDArray[np.bool_]) -> Values:
    """How many standard deviations each value is above the mean of those `among`; 0 for the others, and if all are
    alike."""
    chosen = values[among]
    deviation = float(chosen.std()) if chosen.size else 0.0
    if deviation < LEAST_DEVIATION:
        return np.zeros(values.size)
    return np.where(among, (values - chosen.mean()) / deviation, 0)


def _log_densities(
    masses: Masses, starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64], layout: TextLayout
) -> tuple[Values, npt.NDArray[np.bool_]]:
    """The logarithm of the mass per token around each unit, float64 [U], and which units were read, bool [U]."""
    read = np.logical_or.reduceat(masses.read, starts)
    mass = np.add.reduceat(np.where(masses.read, masses.of_tokens, 0).astype(np.float64), starts)
    sizes = lengths * read
    floor = FLOOR * mass.sum() / max(1, sizes.sum())
    mass_near, tokens_near = (spread(of_units, lengths, layout.gaps) for of_units in (mass, sizes.astype(np.float64)))
    return np.log(mass_near / np.maximum(tokens_near, 1) + floor + 1e-12), read


def _best(values: Values, sizes: npt.NDArray[np.int64], share: float) -> npt.NDArray[np.bool_]:
    """The units of the highest values that begin within `share` of all tokens, bool [U]. sizes: tokens of each."""
    order = np.argsort(-np.where(sizes > 0, values, -np.inf), kind="stable")
    before = np.cumsum(sizes[order]) - sizes[order]
    best = np.zeros(values.size, bool)
    best[order[before < share * sizes.sum()]] = True
    return best


def lexical_importance(layout: TextLayout, tokens: int) -> Float32Array:
    """Of each token the score of its unit, float32 [M]. layout: with the words of its units. tokens: M."""
    return np.repeat(layout.words, np.diff(layout.units, append=tokens)).astype(np.float32)


def with_lexical(importance: Float32Array, lexical: Float32Array, droppable: npt.NDArray[np.bool_]) -> Float32Array:
    """The sum of both scores, each as a share of its sum over the droppable tokens: float32 [M].

    importance, lexical: float32 [M], not negative. droppable: bool [M]. Scores that are 0 for all droppable tokens are
    left out.
    """
    total = np.zeros(importance.size)
    for scores in (importance, lexical):
        if mass := float(scores[droppable].sum(dtype=np.float64)):
            total += scores / mass
    return total.astype(np.float32)
