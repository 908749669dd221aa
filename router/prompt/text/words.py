"""The words of a text: where they stand, which of them are one term, and which units hold it.

The terms are the first STEM characters of lower-cased words, so "argued" finds "arguments". This needs no language. In
scripts without spaces, and in Hangul, the terms are pairs of characters. English stop words ask for nothing.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from router.prompt.text.codes import Codes, known_characters

STEM = 5
LONGEST = 16
"""Words with a digit, such as ids, are compared so far."""
NUMBER = 3
"""A word with a digit of at least so many characters is a name."""
STOP_WORDS = frozenset(
    str.split(
        "a about all an and any are as at be been but by can could did do does for from had has have he her his how i"
        " if in into is it its me my no not of on or our she should so than that the their them then there these they"
        " this those to us was we were what when where which who whom whose why will with would you your"
    )
)
"""English."""
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)

Numbers = npt.NDArray[np.int64]


def hashes(characters: npt.NDArray[np.unsignedinteger], starts: Numbers, sizes: Numbers) -> npt.NDArray[np.uint64]:
    """A hash of the characters [C] of each of the parts that begin at `starts` and have `sizes` > 0 of them [P]."""
    if not starts.size:
        return np.empty(0, np.uint64)
    first = np.cumsum(sizes) - sizes
    place = np.arange(sizes.sum()) - np.repeat(first, sizes)
    powers = np.cumprod(np.full(sizes.max(), _MULTIPLIER))  # modulo 2^64
    values = characters[np.repeat(starts, sizes) + place].astype(np.uint64) + np.uint64(1)
    return np.add.reduceat(values * powers[place], first)


@dataclass(frozen=True, slots=True, eq=False)
class TextWords:
    """Where each word of a text begins [W], ascending, where it ends [W], and the number of its term [W], from 0.
    names: terms of which most words begin with a capital, or that have a digit, bool [T]. Scripts without capitals have
    numbers alone."""

    starts: Numbers
    ends: Numbers
    terms: Numbers
    names: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, codes: Codes) -> "TextWords":
        """codes: of the text."""
        known = known_characters()
        inside, alone = known.word[codes], known.alone[codes]
        begins = inside & (alone | ~np.r_[False, inside[:-1] & ~alone[:-1]])
        starts = np.flatnonzero(begins)
        ends = np.flatnonzero(np.r_[begins[1:] | ~inside[1:], True] & inside) + 1
        ends += alone[starts] & np.r_[alone, False][ends]
        has_digit = np.logical_or.reduceat(known.digit[codes], starts) if starts.size else np.zeros(0, bool)
        sizes = np.minimum(ends - starts, np.where(has_digit, LONGEST, STEM))
        lower = known.lower[codes]
        terms = np.unique(hashes(lower, starts, sizes), return_inverse=True)[1]
        is_name = (lower[starts] != codes[starts]) | (has_digit & (sizes >= NUMBER))
        return cls(starts, ends, terms, 2 * np.bincount(terms, is_name) > np.bincount(terms))

    def asked(self, codes: Codes, start: int, end: int) -> Numbers:
        """The distinct terms of a question between two characters: without stop words, unless it has no others."""
        first, last = np.searchsorted(self.starts, (start, end)).tolist()
        places = zip(self.starts[first:last], self.ends[first:last], strict=True)
        words = ("".join(map(chr, codes[place:stop])).lower() for place, stop in places)
        terms, says = self.terms[first:last], np.array([word not in STOP_WORDS for word in words], bool)
        return np.unique(terms[says] if says.any() else terms)


class TermIndex:
    """Which units hold which terms, of the units that may be dropped. size: U. droppable: bool [U]. names: bool [T], as
    in TextWords. terms, units, counts: of each pair of a term and a unit that holds it, by term, then by unit [N].
    holding: the units of each term [T]. words: of each unit [U].
    """

    def __init__(self, words: TextWords, begins: Numbers, droppable: npt.NDArray[np.bool_]) -> None:
        """words: of the text. begins: the first character of each unit [U]."""
        self.size, self.droppable, self.names = begins.size, droppable, words.names
        unit = np.searchsorted(begins, words.starts, "right") - 1
        held = (unit >= 0) & droppable[unit]
        self.words = np.bincount(unit[held], minlength=self.size)
        cells, self.counts = np.unique(words.terms[held] * self.size + unit[held], return_counts=True)
        self.terms, self.units = np.divmod(cells, self.size)
        self.holding = np.bincount(self.terms, minlength=words.names.size)

    def counts_of(self, terms: Numbers) -> npt.NDArray[np.float64]:
        """How often each unit has each of the distinct terms [U, T]."""
        column = np.full(self.names.size, -1)
        column[terms] = np.arange(terms.size)
        column = column[self.terms]
        chosen, counts = column >= 0, np.zeros((self.size, terms.size))
        counts[self.units[chosen], column[chosen]] = self.counts[chosen]
        return counts

    def rarity_of(self, terms: Numbers) -> npt.NDArray[np.float64]:
        """What each term weighs in BM25 [T]."""
        holding = self.holding[terms]
        return np.log1p((self.droppable.sum() - holding + 0.5) / (holding + 0.5))
