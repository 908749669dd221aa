"""How much the units of a text say of what a question names: BM25 over words, in the passage around each unit.

The terms are the first STEM characters of lower-cased words, so "argued" finds "arguments". This
needs no language. In scripts without spaces, and in
Hangul, the terms are pairs of characters. English stop words ask for nothing. The formula is BM25 in Lucene's form
(Kamphuis et al., "Which BM25 Do You Mean?", 2020, table 1). Before the formula, a unit's counts and its
length are spread over the units around it (`kv_transfer.passages`).

Also how far units are apart besides their tokens (`gaps_of`).
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kv_transfer.arrays import Float32Array, Int32Array
from kv_transfer.passages import spread
from router.prompt.text.codes import WHITE, Codes, among, known_characters

K1, B = 1.2, 0.4
MOST_TERMS = 512
"""If the questions have more terms, they count as one question, and of its terms the rarest ones of the text."""
STEM = 5
LONGEST = 16
"""Words with a digit, such as ids, are compared so far."""
PROSE_LETTERS = 0.75
"""Of a unit of prose, at least this share of the characters is letters and white space. Logs and JSON have less."""
STOP_WORDS = frozenset(
    str.split(
        "a about all an and any are as at be been but by can could did do does for from had has have he her his how i"
        " if in into is it its me my no not of on or our she should so than that the their them then there these they"
        " this those to us was we were what when where which who whom whose why will with would you your"
    )
)
"""English."""
APART = 1 << 20
"""Tokens. Nothing is spread over such a gap."""
BLANK_LINE, OTHER = 60, 30
"""Tokens. The gap at a blank line, and between units of which one is no prose."""
NEAR, FREQUENT = 3, 8
PRIOR, LIKELY = 2, 1.5
"""So many pairs, of a text that reads on a little, count besides those of the text."""
READS_ON, READS_ON_AFTER_BLANK = 1.3, 0.9
"""From this ratio on, a text reads on at a kind of border. Chosen to part meetings and papers from generated sentences
that have nothing to do with each other."""
MOST_INDENTED = 0.3
"""A text of which more units are indented is code or data."""
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


class TextWords(NamedTuple):
    """Where each word of a text begins [W], ascending, where it ends [W], and a hash of its term [W]."""

    starts: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]
    keys: npt.NDArray[np.uint64]


def gaps_of(
    text: TextWords, codes: Codes, begins: npt.NDArray[np.int64], indents: Int32Array, droppable: npt.NDArray[np.bool_]
) -> Int32Array:
    """The gap before each unit in tokens, int32 [U], as in TextLayout.

    text: of the same codes. codes: of the text. begins: the first character of each unit [U]. indents: as in
    TextLayout. droppable: units with a token that may be dropped, bool [U]. What is indented, or has few letters, is no
    prose. Nothing is spread over borders of a kind at which this text does not read on (`_reads_on`), nor in code.
    """
    lines, blank = (_between(codes, found, begins) for found in (codes == ord("\n"), _blank_lines(codes)))
    kinds = np.where(blank, 2, np.where(lines, 1, 0))
    within, at_line, at_blank = _reads_on(text, begins, kinds, droppable)
    is_code = droppable.any() and (indents[droppable] > 0).mean() > MOST_INDENTED
    if is_code:
        return np.full(begins.size, APART, np.int32)
    gap_of = np.array(
        [
            0 if within >= READS_ON else APART,
            0 if at_line >= READS_ON else APART,
            BLANK_LINE if at_blank >= READS_ON_AFTER_BLANK else APART,
        ],
        np.int32,
    )
    ends = np.append(begins[1:], codes.size)
    letters = np.r_[0, np.cumsum(known_characters().letters[codes])]
    prose = (letters[ends] - letters[begins] >= PROSE_LETTERS * (ends - begins)) & (indents == 0)
    gaps = gap_of[kinds]
    gaps[1:] = np.where(prose[1:] & prose[:-1], gaps[1:], np.maximum(gaps[1:], OTHER))
    gaps[1:][~(droppable[1:] & droppable[:-1])] = APART
    gaps[:1] = APART
    return gaps


def _reads_on(
    text: TextWords, begins: npt.NDArray[np.int64], kinds: npt.NDArray[np.integer], droppable: npt.NDArray[np.bool_]
) -> tuple[float, float, float]:
    """How often words of few units recur in near units, over what chance gives; for each kind of border.

    A text that reads on repeats its words nearby; a list of sentences or of records does not. Counted are terms of 2 to
    1/FREQUENT of the units, over pairs of units that are at most NEAR units apart. A pair has the strongest border
    between its units. kinds: of the border before each unit, 0 to 2 [U].
    """
    unit = np.searchsorted(begins, text.starts, "right") - 1
    held = (unit >= 0) & droppable[unit]
    size = begins.size + NEAR
    cells = np.unique(np.unique(text.keys[held], return_inverse=True)[1] * size + unit[held])
    term = cells // size
    count = np.bincount(term)
    units = int(droppable.sum())
    rare = (count >= 2) & (count <= max(2, units / FREQUENT))
    chance = float((count * (count - 1.0))[rare].sum()) / max(1, units * (units - 1))
    cells = cells[rare[term]]
    seen, expected = np.zeros(3), np.zeros(3)
    strongest, joined = kinds, np.r_[False, droppable[1:] & droppable[:-1]]
    follows = joined
    for apart in range(1, NEAR + 1):
        if apart > 1:
            strongest = np.maximum(np.r_[0, strongest[:-1]], kinds)
            follows = np.r_[False, follows[:-1]] & joined
        later = cells[np.isin(cells - apart, cells, assume_unique=True)] % size
        later = later[(later >= apart) & (later < begins.size)]
        seen += np.bincount(strongest[later[follows[later]]], minlength=3)
        expected += np.bincount(strongest[follows], minlength=3) * chance
    within, at_line, at_blank = ((seen + PRIOR * LIKELY) / (expected + PRIOR)).tolist()
    return within, at_line, at_blank


def _between(codes: Codes, marked: npt.NDArray[np.bool_], begins: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Whether a marked character stands between the text before and after the beginning of each unit, bool [U]."""
    filled = np.flatnonzero(~among(codes, WHITE))
    before = np.searchsorted(filled, begins)
    first = np.append(0, filled + 1)[before]
    last = np.append(filled, codes.size)[before]
    marks = np.r_[0, np.cumsum(marked)]
    return marks[last] > marks[first]


def _blank_lines(codes: Codes) -> npt.NDArray[np.bool_]:
    """Where a line break follows another one, bool [C]."""
    breaks = codes == ord("\n")
    return breaks & np.r_[False, breaks[:-1]]


def word_scores(
    text: TextWords,
    codes: Codes,
    begins: npt.NDArray[np.int64],
    tokens: npt.NDArray[np.integer],
    gaps: Int32Array,
    droppable: npt.NDArray[np.bool_],
    questions: Sequence[tuple[int, int]],
) -> tuple[Float32Array, float]:
    """The score of each unit with the passage around it, float32 [U], not negative: the best over the questions, each
    by the square root of its number of terms. So one with many terms, such as a list of rules, hides no short one.
    0 without a shared term near, and for units that cannot be dropped.

    And how well words place the questions, as TextLayout.placed.

    text, codes, begins, droppable: as in `gaps_of`. tokens: of each unit [U]. gaps: by `gaps_of`. questions: character
    ranges.
    """
    starts, ends, keys = text
    unit = np.searchsorted(begins, starts, "right") - 1
    words = np.bincount(unit[unit >= 0], minlength=begins.size) * droppable
    of_text = (unit >= 0) & droppable[unit]
    unit, held = unit[of_text], keys[of_text]
    asked = [
        _terms(codes, starts[first:end], ends[first:end], keys[first:end])
        for first, end in np.searchsorted(starts, np.reshape(questions, (-1, 2))).tolist()
    ]
    if sum(of_one.size for of_one in asked) > MOST_TERMS:
        asked = [np.unique(np.concatenate(asked))]
    shared = np.isin(held, np.concatenate([held[:0], *asked]))
    terms, term = np.unique(held[shared], return_inverse=True)
    cells, counts = np.unique(term * begins.size + unit[shared], return_counts=True)
    term, unit = np.divmod(cells, begins.size)
    holding = np.bincount(term, minlength=terms.size)
    rarest = np.sort(np.argsort(holding, kind="stable")[:MOST_TERMS])
    chosen = np.isin(term, rarest)
    own = np.zeros((begins.size, 1 + rarest.size))
    own[:, 0] = words
    own[unit[chosen], 1 + np.searchsorted(rarest, term[chosen])] = counts[chosen]
    near, rarity = spread(own, tokens, gaps), _rarity(holding[rarest], int(droppable.sum()))
    weights, held_near = _bm25(near, rarity, droppable), near[:, 1:].clip(max=1) * rarity * droppable[:, None]
    best, placed = np.zeros(begins.size), 0.0
    for of_one in asked:
        columns = np.isin(terms[rarest], of_one)
        scores = weights[:, columns].sum(1) / max(1, of_one.size) ** 0.5
        if scores.max(initial=0) > best.max(initial=0):
            absent = (of_one.size - columns.sum()) * _rarity(np.zeros(1), int(droppable.sum()))[0]
            placed = held_near[:, columns].sum(1).max() / (rarity[columns].sum() + absent)
        best = np.maximum(best, scores)
    return best.astype(np.float32), float(placed)


def _rarity(holding: npt.NDArray[np.number], units: int) -> npt.NDArray[np.float64]:
    """What terms weigh that so many of the units hold [T]."""
    return np.log1p((units - holding + 0.5) / (holding + 0.5))


def _bm25(
    around: npt.NDArray[np.float64], rarity: npt.NDArray[np.float64], droppable: npt.NDArray[np.bool_]
) -> npt.NDArray[np.float64]:
    """What each term says of each unit [U, T]. around: the words of each unit and how often it has each term, or both
    spread over its passage [U, 1 + T]. rarity: of each term [T]."""
    if not rarity.size:
        return np.zeros((droppable.size, 0))
    words, counts = around[:, :1], around[:, 1:]
    sizes = 1 - B + B * words / words[droppable].mean()
    return counts * ((K1 + 1) * rarity * droppable[:, None]) / (counts + K1 * sizes)


def _terms(
    codes: Codes, starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64], keys: npt.NDArray[np.uint64]
) -> npt.NDArray[np.uint64]:
    """The distinct terms of a question, ascending: without stop words, unless it has no others."""
    words = ("".join(map(chr, codes[start:end])).lower() for start, end in zip(starts, ends, strict=True))
    says = np.array([word not in STOP_WORDS for word in words], bool)
    return np.unique(keys[says] if says.any() else keys)


def words_of(codes: Codes) -> TextWords:
    """The words of a text. codes: of the text."""
    known = known_characters()
    inside, alone = known.word[codes], known.alone[codes]
    begins = inside & (alone | ~np.r_[False, inside[:-1] & ~alone[:-1]])
    stops = np.flatnonzero(np.r_[begins[1:] | ~inside[1:], True] & inside) + 1
    starts = np.flatnonzero(begins)
    ends = stops[np.searchsorted(stops, starts, "right")]
    paired = alone[starts] & np.r_[alone, False][ends]
    ends = ends + paired
    digits = np.r_[0, np.cumsum(known.digit[codes])]
    sizes = np.minimum(ends - starts, np.where(digits[ends] > digits[starts], LONGEST, STEM))
    lower, keys = known.lower[codes], np.zeros(starts.size, np.uint64)
    for place in range(LONGEST):
        has = np.flatnonzero(sizes > place)
        keys[has] = (keys[has] + lower[starts[has] + place] + np.uint64(1)) * _MULTIPLIER
    return TextWords(starts, ends, keys)
