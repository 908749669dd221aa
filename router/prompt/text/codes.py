"""The characters of a text as an array."""

from functools import cache
from unicodedata import category

import numpy as np
import numpy.typing as npt

Codes = npt.NDArray[np.uint16]
"""The code points of a text [C]; 0xFFFF for those above."""
WHITE = " \t\r\n"
WORD, LETTER, DIGIT, SPACE = r"\pL\pN_", r"\pL\p{Nl}\p{No}", r"\p{Nd}", r"\t-\r\x1c-\x20\x{85}\pZ"
"""For the classes of RE2, whose \\w, \\d and \\s are ASCII. A bounded repeat of WORD or LETTER takes megabytes."""
NO_SPACES = ((0x0E00, 0x0EFF), (0x1000, 0x109F), (0x1780, 0x17FF), (0x3040, 0x30FF), (0x3400, 0x9FFF), (0xAC00, 0xD7AF))
"""Thai and Lao, Myanmar, Khmer, kana, Chinese characters, Hangul."""


def codes_of(text: str) -> Codes:
    """The code points of a text [C]. All that ends a line is a line feed: a carriage return alone, a vertical tab, a
    form feed, U+0085, U+2028 and U+2029."""
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32).clip(max=0xFFFF).astype(np.uint16)
    ends = among(codes, "\r\v\f\x85\u2028\u2029")
    if ends.any():
        ends[:-1] &= (codes[:-1] != ord("\r")) | (codes[1:] != ord("\n"))
        codes[ends] = ord("\n")
    return codes


def among(codes: Codes, characters: str) -> npt.NDArray[np.bool_]:
    """Which of the codes are one of the characters, bool [C]."""
    points = [ord(character) for character in characters]
    if len(points) <= 4:  # faster than a table
        found: npt.NDArray[np.bool_] = np.logical_or.reduce([codes == point for point in points])
        return found
    table = np.zeros(0x10000, bool)  # np.isin takes ten times as long
    table[points] = True
    return table[codes]


class Characters:
    """What is known of each code point. word: belongs to a word. alone: is a word of its own, with the next one. digit:
    a digit. letters: a letter or white space. small: a small letter. lower: its lower case. mark: belongs to the
    character before it."""

    def __init__(self) -> None:
        points = [chr(code) for code in range(0x10000)]
        kinds = np.array([category(point)[0] for point in points])
        self.word = np.isin(kinds, ["L", "M", "N"])
        self.digit = kinds == "N"
        self.mark = kinds == "M"
        self.small = np.array([point.islower() for point in points])
        self.letters = np.isin(kinds, ["L", "M"]) | np.array([point.isspace() for point in points])
        self.lower = np.array(
            [ord(low) if len(low := point.lower()) == 1 else ord(point) for point in points], np.uint16
        )
        self.alone = np.zeros(0x10000, bool)
        for first, last in NO_SPACES:
            self.alone[first : last + 1] = self.word[first : last + 1]


@cache
def known_characters() -> Characters:
    """The table; it takes 30 ms."""
    return Characters()
