"""The words that the text shares with the question, as scores of tokens. The router finds them (BM25 by units)."""

import numpy as np
import numpy.typing as npt

from kv_transfer.arrays import Float32Array
from kv_transfer.layout import TextLayout


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
