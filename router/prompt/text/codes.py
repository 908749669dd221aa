"""The characters of a text as an array."""

import numpy as np
import numpy.typing as npt

Codes = npt.NDArray[np.uint16]
"""The code points of a text [C]; 0xFFFF for those above."""
WHITE = " \t\r\n"


def codes_of(text: str) -> Codes:
    """The code points of a text [C]."""
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32).clip(max=0xFFFF).astype(np.uint16)


def among(codes: Codes, characters: str) -> npt.NDArray[np.bool_]:
    """Which of the codes are one of the characters, bool [C]."""
    table = np.zeros(0x10000, bool)  # np.isin takes ten times as long
    table[[ord(character) for character in characters]] = True
    return table[codes]
