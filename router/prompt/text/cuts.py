"""Where long units are cut, and which stops end a sentence.

A border never lies inside a number, a word or a character. Pure functions from code points to positions.
"""

from itertools import pairwise

import numpy as np
import numpy.typing as npt

from router.prompt.text.codes import WHITE, Codes, among, known_characters

LONGEST = 512
"""Tokens. What has no white space and no structure, such as base64 or minified code, is cut after so many."""
CLAUSE, WORD = 2, 1
"""How good a cut is: after a part of a sentence or a member of JSON, or between words."""
_SEPARATORS = ",;:\uff0c\uff1b\uff1a\u3001\u060c\u061b"
_JOINERS = "\u200c\u200d"

_ABBREVIATIONS = frozenset(
    str.split(
        "inc ltd co corp dr mr mrs ms prof sr jr st vs etc approx dept est ed eds al ca cf eg hon rev capt lt sgt jan"
        " feb apr jun jul aug sept oct nov dec bzw usw evtl ggf vgl inkl zzgl sra srta ud uds mme mlle avg tbd resp"
        " incl excl ave blvd"
    )
)
_NUMBERED = frozenset(
    {"no", "nos", "nr", "fig", "figs", "eq", "sec", "ch", "vol", "pp", "art", "abs", "pag", "num", "tel"}
)
"""Abbreviations before a number."""
MOST_LETTERS = 8
"""Of an abbreviation. A longer word before a stop ends its sentence, also before a small letter."""


def sentence_ends(codes: Codes, text: str, ends: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Those of the places that end a sentence: not after an abbreviation, an initial, or a number such as "No. 5".

    codes: of the text. ends: of white space, each right behind a stop [E].
    """
    known, stops = known_characters(), ends - 1
    begins = np.maximum.accumulate(np.where(known.word[codes], 0, np.arange(1, codes.size + 1)))  # of each word
    starts, after = begins[(stops - 1).clip(min=0)], codes[(ends + 1).clip(max=codes.size - 1)]
    before = (starts - 1).clip(min=0)
    sizes, letters_before = stops - starts, before - begins[(before - 1).clip(min=0)]
    words = [text[start:stop].lower() for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)]
    short, numbered = (
        np.fromiter((word in known_ones for word in words), bool, ends.size)
        for known_ones in (_ABBREVIATIONS, _NUMBERED)
    )
    initial = (sizes == 1) & ~known.digit[codes[starts]]
    dotted = (codes[before] == ord(".")) & (letters_before == 1)  # "U.S.", "z.B."
    abbreviated = np.where(numbered, known.digit[after], known.small[after] | short | initial | dotted)
    abbreviated &= (codes[stops] == ord(".")) & (sizes > 0) & (sizes <= MOST_LETTERS)
    return ends[~abbreviated]


def cut(
    borders: npt.NDArray[np.int64],
    codes: Codes,
    begins: npt.NDArray[np.int64],
    longest: npt.NDArray[np.int64],
    least: int,
) -> npt.NDArray[np.int64]:
    """The starts of the units between `borders` [B], of which those of more than `longest` tokens are cut.

    codes: of the text. begins: the first character of each token [M]. longest: for the unit after each border [B].
    least: tokens of the last part.
    """
    starts: list[int] = []
    worth: npt.NDArray[np.int8] | None = None
    for (place, end), most in zip(pairwise(borders.tolist()), longest[:-1].tolist(), strict=True):
        starts.append(place)
        while end - place > most:
            worth = _worths(codes, begins) if worth is None else worth
            place += _next_cut(worth[place:end], most, least)
            if end - place < least:
                break
            starts.append(place)
    return np.array(starts)


def _next_cut(worth: npt.NDArray[np.int8], most: int, least: int) -> int:
    """The number of tokens of the next part: up to the best cut within `most`, the latest of equals, or up to the first
    one after that. worth: of each token from the part's first one on."""
    near = worth[least : min(most + 1, worth.size - least)]
    if near.size and near.max() > 0:
        return least + int(np.flatnonzero(near == near.max())[-1])
    later = np.flatnonzero(worth[most : LONGEST + 1] > 0)
    if later.size:
        return most + int(later[0])
    borders = np.flatnonzero(worth[: LONGEST + 1] == 0)  # at least not inside a character
    return int(borders[-1]) if borders.size and borders[-1] > 0 else min(LONGEST, worth.size)


def _worths(codes: Codes, begins: npt.NDArray[np.int64]) -> npt.NDArray[np.int8]:
    """How good a cut before each token is, int8 [M]: 0 inside a word or a number, -1 inside a character."""
    first, before, earlier = (codes[(begins - back).clip(0, codes.size - 1)] for back in range(3))
    after_white, digit = among(before, WHITE), (first >= ord("0")) & (first <= ord("9"))
    is_word = among(first, WHITE) | after_white
    separated = among(np.where(after_white, earlier, before), _SEPARATORS)
    clause = separated & (is_word | (before >= 0x3001) | ~digit)
    worth = np.where(clause, CLAUSE, np.where(is_word, WORD, 0)).astype(np.int8)
    worth[known_characters().mark[first] | among(first, _JOINERS) | among(before, _JOINERS)] = -1
    worth[np.r_[True, begins[1:] == begins[:-1]]] = -1
    return worth
