"""What the words of a question say of each unit by itself: the baselines of passages, and the evidence they cannot see.

It shares no code with the words of the product, which it is compared with, but their stop words and constants.
"""

import re
from bisect import bisect_right
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from router.prompt.text.lexical import K1, B
from router.prompt.text.words import STEM, STOP_WORDS

Values = npt.NDArray[np.float64]
FREQUENT = 0.25
"""A stem of more of the units shows nothing, such as the name of a speaker who begins every other turn."""


def stem_counts(text: str, begins: Sequence[int], question: str) -> tuple[Values, Values]:
    """How often each unit has each stem of the question [U, T], and the words of each unit [U].

    begins: the first character of each unit, ascending from 0.
    """
    asked = {word[:STEM] for word in _words(question) if word not in STOP_WORDS}
    places = {stem: place for place, stem in enumerate(sorted(asked))}
    counts, sizes = np.zeros((len(begins), len(places))), np.zeros(len(begins))
    for found in re.finditer(r"\w+", text):
        unit, place = bisect_right(begins, found.start()) - 1, places.get(found[0].lower()[:STEM])
        sizes[unit] += 1
        if place is not None:
            counts[unit, place] += 1
    return counts, sizes


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def bm25(counts: Values, sizes: Values) -> Values:
    """The score of each unit by itself [U], in Lucene's form. counts, sizes: of `stem_counts`."""
    holding = (counts > 0).sum(0)
    rarity = np.log1p((sizes.size - holding + 0.5) / (holding + 0.5))
    norm = K1 * (1 - B + B * sizes / max(1e-9, sizes.mean()))
    return np.asarray((counts * (K1 + 1) * rarity / (counts + norm[:, None] + 1e-9)).sum(1))


def with_neighbours(scores: Values) -> Values:
    """Each score and half of those of the units before and after."""
    padded = np.pad(scores, 1)
    return scores + (padded[:-2] + padded[2:]) / 2


def blind_units(counts: Values) -> npt.NDArray[np.bool_]:
    """The units without a stem of the question that says something, bool [U]. counts: of `stem_counts`."""
    said = (counts > 0).mean(0) <= FREQUENT
    return np.asarray(~(counts[:, said] > 0).any(1))
