"""The importance of each prompt token by the words that it shares with the question: BM25, without any model.

The terms are token ids. The documents are the units of the text. Where these are not known, they are overlapping
passages of two chunks, because a fact often crosses the border of a chunk. The score of a document is BM25 in Lucene's
form (Robertson and Zaragoza, "The Probabilistic Relevance Framework: BM25 and Beyond", 2009; Kamphuis et al., "Which
BM25 Do You Mean?", 2020, table 1):

    sum over the question's distinct terms t of  idf(t) * tf / (tf + k1 * (1 - b + b * length / mean length))
    idf(t) = ln(1 + (N - n(t) + 0.5) / (n(t) + 0.5))

N documents, of which n(t) hold t; tf is how often the document holds t. The importance of a token is the mean score of
the documents that hold it.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from kv_transfer.arrays import Float32Array, Int32Array
from kv_transfer.spans import Span

K1, B = 1.5, 0.75
PASSAGE_CHUNKS = 2
STEPS_PER_CHUNK = 4
"""A passage begins at every quarter of a chunk."""
NO_TERM = -1


def with_lexical(
    importance: Float32Array, lexical: Float32Array, weight: float, droppable: npt.NDArray[np.bool_]
) -> Float32Array:
    """The sum of both scores, each as a share of its sum over the droppable tokens: float32 [M].

    importance, lexical: float32 [M], not negative. weight: of `lexical`. droppable: bool [M]. Scores that are 0 for all
    droppable tokens are left out.
    """
    total = np.zeros(importance.size)
    for scores, factor in ((importance, 1.0), (lexical, weight)):
        if mass := float(scores[droppable].sum(dtype=np.float64)):
            total += factor / mass * scores
    return total.astype(np.float32)


def lexical_importance(
    token_ids: Int32Array, questions: Sequence[Span], chunk_size: int, units: Int32Array | None = None
) -> Float32Array:
    """float32 [M], not negative: the best over the questions, each a share of its sum; all 0 if the text shares no term
    with them.

    units: the first token of each unit of the text; None or empty if they are not known.
    token_ids: int32 [M], at least 0. questions: half-open spans; the tokens of each are its terms. They are kept in any
    case, so they are no part of the text that is searched: they would be the best match for themselves.
    """
    text = token_ids.copy()
    for first, end in questions:
        text[first:end] = NO_TERM
    if units is not None and units.size:
        starts, ends = units.astype(np.int64), np.append(units[1:], token_ids.size).astype(np.int64)
    else:
        starts, ends = passages(token_ids.size, chunk_size)
    best = np.zeros(token_ids.size, np.float32)
    for first, end in questions:
        scores = bm25(text, starts, ends, np.unique(token_ids[first:end]))
        found = _mean_of_passages(scores, starts, ends, token_ids.size)
        if mass := float(found.sum(dtype=np.float64)):
            np.maximum(best, found / mass, out=best)
    return best


def passages(tokens: int, chunk_size: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Starts and ends of the overlapping passages of a prompt, int64 [N] each. Together they hold every token."""
    step = max(1, chunk_size // STEPS_PER_CHUNK)
    width = PASSAGE_CHUNKS * chunk_size
    starts = np.arange(0, max(step, tokens - width + step), step)
    return starts, np.minimum(starts + width, tokens)


def bm25(
    token_ids: Int32Array, starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64], terms: Int32Array
) -> npt.NDArray[np.float64]:
    """The score of each passage [N] of token_ids [M] for distinct `terms`, ascending. starts and ends ascend. The time
    does not grow with the number of terms."""
    lengths = (ends - starts).astype(np.float64)
    saturation = K1 * (1 - B + B * lengths / lengths.mean())
    places = np.flatnonzero(np.isin(token_ids, terms))
    first, last = np.searchsorted(ends, places, "right"), np.searchsorted(starts, places, "right")
    holders = last - first  # passages that hold each place: one behind the other, because starts and ends ascend
    number = np.arange(holders.sum()) - np.repeat(np.cumsum(holders) - holders, holders)
    passage, term = np.repeat(first, holders) + number, np.repeat(np.searchsorted(terms, token_ids[places]), holders)
    held, counts = np.unique(term * starts.size + passage, return_counts=True)  # in the order of the terms
    holding = np.bincount(held // starts.size, minlength=terms.size)
    rarity = np.log1p((starts.size - holding + 0.5) / (holding + 0.5))[held // starts.size]
    passage, frequency = held % starts.size, counts.astype(np.float64)
    summed = np.bincount(passage, rarity * frequency / (frequency + saturation[passage]), starts.size)
    return summed.astype(np.float64, copy=False)


def _mean_of_passages(
    scores: npt.NDArray[np.float64], starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64], tokens: int
) -> Float32Array:
    """The mean score of the passages that hold each token."""
    # Each passage adds its score from its first token on and takes it away after its last one.
    changes, counts = np.zeros((2, tokens + 1))
    np.add.at(changes, starts, scores)
    np.add.at(changes, ends, -scores)
    np.add.at(counts, starts, 1)
    np.add.at(counts, ends, -1)
    means = np.cumsum(changes[:-1]) / np.cumsum(counts[:-1])
    return np.maximum(means, 0).astype(np.float32)  # sums of differences can fall below 0 by rounding
