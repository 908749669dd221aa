"""How much the units of a text say of what a question names: BM25 over words, in the passage around each unit.

The formula is BM25 in Lucene's form (Kamphuis et al., "Which BM25 Do You Mean?", 2020, table 1). Before the formula, a
unit's counts and its length are spread over the units around it (`kv_transfer.passages`). Names and numbers of the best
units then search once more: a question can ask for the mayor of the town in which somebody was born.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kv_transfer.arrays import Float32Array
from kv_transfer.passages import spread
from router.prompt.text.passages import APART, TextPassages
from router.prompt.text.words import Numbers, TermIndex

K1, B = 1.2, 0.4
MOST_TERMS = 512
"""If the questions have more terms, they count as one question, and of its terms the rarest ones of the text."""
LEADS, SECOND_HOP = 5, 0.5
"""So many best units lead on, and what their names find counts so much. Chosen on questions of people over collections
of paragraphs, and checked on meetings and papers."""
RARE_NAME, MOST_NAMES = 0.05, 32
"""Only names in at most this share of the units lead on, and the rarest so many."""
FAR_AWAY = 1e-6
"""What a unit without a shared word near has, as a share of the best: less, the further it is from one."""

Values = npt.NDArray[np.float64]


class WordScores(NamedTuple):
    """scores: of each unit, float32 [U], not negative; 0 if no word is shared, and for units that cannot be dropped.
    placed: as in TextLayout."""

    scores: Float32Array
    placed: float


def word_scores(index: TermIndex, passages: TextPassages, asked: Sequence[Numbers]) -> WordScores:
    """The score of each unit with the passage around it: the best over the questions, each by the square root of its
    number of terms. So one with many terms, such as a list of rules, hides no short one. Where the text reads on, which
    code does not, the names of the best units add a second hop.

    index, passages: of the same units. asked: the terms of each question (`TextWords.asked`).
    """
    if sum(terms.size for terms in asked) > MOST_TERMS:
        asked = [np.unique(np.concatenate(asked))]
    wanted = np.unique(np.concatenate([index.terms[:0], *asked]))
    shared = wanted[index.holding[wanted] > 0]
    shared = shared[np.sort(np.argsort(index.holding[shared], kind="stable")[:MOST_TERMS])]
    near, rarity = _near(index, passages, index.counts_of(shared)), index.rarity_of(shared)
    weights = _bm25(near, rarity, index.droppable)
    best, placed, root = np.zeros(index.size), 0.0, 1.0
    for terms in asked:
        own = np.isin(shared, terms)
        scores = weights[:, own].sum(1) / max(1, terms.size) ** 0.5
        if scores.max(initial=0) > best.max(initial=0):
            held = near[index.droppable][:, 1:][:, own].clip(max=1) @ rarity[own]
            placed, root = held.max() / index.rarity_of(terms).sum(), terms.size**0.5
        best = np.maximum(best, scores)
    if best.any() and (passages.gaps < APART).any():
        best += SECOND_HOP / root * _second_hop(index, passages, best, wanted)
    return WordScores(_around_hits(best, index.droppable).astype(np.float32), float(placed))


def _near(index: TermIndex, passages: TextPassages, counts: Values) -> Values:
    """The words of the passage around each unit, and the counts [U, T] in it: [U, 1 + T]."""
    return spread(np.column_stack([index.words, counts]), passages.tokens, passages.gaps, passages.reach)


def _bm25(near: Values, weights: Values, droppable: npt.NDArray[np.bool_]) -> Values:
    """What each term says of each unit [U, T]. near: by `_near`. weights: of the terms [T]."""
    mean = near[droppable, 0].sum() / max(1, droppable.sum())
    sizes = 1 - B + B * near[:, :1] / (mean or 1)
    return near[:, 1:] * ((K1 + 1) * weights * droppable[:, None]) / (near[:, 1:] + K1 * sizes)


def _second_hop(index: TermIndex, passages: TextPassages, scores: Values, asked: Numbers) -> Values:
    """BM25 of the rare names of the LEADS best units [U], each by 1/n if the nth has it. The units that led there get
    nothing for their own names, and terms of the questions lead nowhere. scores: [U]."""
    leads = np.argsort(-scores, kind="stable")[:LEADS]
    ranks = np.zeros(scores.size)
    ranks[leads] = (scores[leads] > 0) / np.arange(1, leads.size + 1)
    leading, holding = np.bincount(index.terms, ranks[index.units], index.names.size), index.holding
    leading[asked] = 0
    most = max(2, RARE_NAME * index.droppable.sum())
    rare = np.flatnonzero(index.names & (leading > 0) & (holding > 1) & (holding <= most))
    rare = rare[np.argsort(holding[rare], kind="stable")[:MOST_NAMES]]
    counts = index.counts_of(rare)
    counts[leads] = 0
    weights = index.rarity_of(rare) * leading[rare].clip(max=1)
    return _bm25(_near(index, passages, counts), weights, index.droppable).sum(1)


def _around_hits(scores: Values, droppable: npt.NDArray[np.bool_]) -> Values:
    """The scores [U], where units without any have a trace of one, so that those nearest to a hit come first."""
    trace = FAR_AWAY * scores.max(initial=0)
    hits = np.flatnonzero(scores > trace)
    if not hits.size:
        return scores
    units = np.arange(scores.size)
    after = np.searchsorted(hits, units).clip(max=hits.size - 1)
    away = np.minimum(np.abs(units - hits[after]), np.abs(units - hits[(after - 1).clip(min=0)]))
    return np.where(scores > trace, scores, trace / (1 + away)) * droppable
