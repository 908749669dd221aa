"""Where long units are cut, and which stops end no sentence.

A border never lies inside a number, a word or a character. Pure functions from code points to token positions.
"""

from itertools import pairwise, takewhile

import numpy as np
import numpy.typing as npt

from router.prompt.text.codes import WHITE, Codes, among, known_characters

LONGEST = 512
"""Tokens. What has no white space and no structure, such as base64 or minified code, is cut after so many."""
CLAUSE, WORD, INSIDE = 3, 2, 1
"""How good a cut is: after a part of a sentence or a member of JSON, between words, or inside a JSON string."""

_SEPARATORS = ",;:\uff0c\uff1b\uff1a\u3001\u060c\u061b"
_JOINERS = "\u200c\u200d"
_LEADING = "".join(map(chr, [*range(0xE40, 0xE45), *range(0xEC0, 0xEC5)]))
"""Vowels of Thai and Lao that are written before their consonant."""
_UNSTOPPED = (0xE00, 0x17FF)
"""Thai, Lao, Tibetan, Myanmar, Khmer: sentences end at a space, often without a stop. So do many phrases."""

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
_CLOSING = "\"')]\u201d\u2019"
MOST_LETTERS = 8
"""Of an abbreviation, after its single letters."""


def is_abbreviation(text: str, end: int) -> bool:
    """Whether the stop before `end` belongs to an abbreviation, an initial, or a number such as "No. 5". White space
    stands at `end`."""
    part = text[max(0, end - 16) : end]
    before = part.rstrip(_CLOSING)
    if len(part) - len(before) > 2 or not before.endswith("."):
        return False
    signs = takewhile(lambda sign: sign.isalnum() or sign in "._", reversed(before[:-1]))
    word = "".join(signs)[::-1]
    *letters, last = word.split(".")
    if not 0 < len(last) <= MOST_LETTERS or any(len(letter) != 1 for letter in letters):
        return False
    word, after = word.lower(), text[end : end + 4].lstrip()[:1]
    if word in _NUMBERED:
        return after.isdigit()
    return after.islower() or word in _ABBREVIATIONS or "." in word or (len(word) == 1 and word.isalpha())


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
    for (first, end), most in zip(pairwise(borders.tolist()), longest[:-1].tolist(), strict=True):
        starts.append(first)
        if end - first <= most:
            continue
        worth = _worths(codes, begins) if worth is None else worth
        own = _outside_strings(worth[first:end], codes, begins[first:end])
        place = 0
        while end - first - place > most:
            place += _next_cut(own[place:], most, least)
            if end - first - place < least:
                break
            starts.append(first + place)
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
    first = codes[begins.clip(max=codes.size - 1)]
    before = codes[(begins - 1).clip(min=0)]
    white_before = among(before, WHITE)
    after_white = codes[(begins - 2).clip(min=0)]
    separated = np.where(white_before, among(after_white, _SEPARATORS), among(before, _SEPARATORS))
    is_word = among(first, WHITE) | white_before
    digit = (first >= ord("0")) & (first <= ord("9"))
    wide = before >= 0x3001
    clause = separated & (is_word | wide | ~digit)
    text = np.where(first == ord(" "), codes[(begins + 1).clip(max=codes.size - 1)], first)
    ended = np.where(white_before, after_white, before)
    phrase = [(found >= _UNSTOPPED[0]) & (found <= _UNSTOPPED[1]) for found in (text, ended)]
    clause |= is_word & phrase[0] & phrase[1]
    worth = np.where(clause, CLAUSE, np.where(is_word, WORD, 0)).astype(np.int8)
    inside = np.r_[True, begins[1:] == begins[:-1]] | known_characters().mark[first]
    inside |= among(first, _JOINERS) | among(before, _JOINERS + _LEADING)
    worth[inside] = -1
    return worth


def _outside_strings(worth: npt.NDArray[np.int8], codes: Codes, begins: npt.NDArray[np.int64]) -> npt.NDArray[np.int8]:
    """The worths of the tokens of one unit. In a unit of JSON, cuts inside of strings are the last choice."""
    part = codes[begins[0] : begins[-1] + 1]
    quotes = (part == ord('"')) & np.r_[True, part[:-1] != ord("\\")]
    is_json = bool((quotes[:-1] & (part[1:] == ord(":"))).any())
    if not is_json:
        return worth
    open_before = np.r_[0, np.cumsum(quotes)][begins - begins[0]] % 2 == 1
    return np.where(open_before & (worth > 0), INSIDE, worth).astype(np.int8)
