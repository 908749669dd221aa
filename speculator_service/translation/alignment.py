"""Which characters each token covers, and importance carried from one tokenizer's tokens to another's.

Pure functions of arrays. A span is a half-open range [start, end) of characters of one text. Spans of one tokenizer may
share a character (byte-level tokens inside it), may be empty, and may leave characters out (a normaliser, or trimmed
white space).
"""

import numpy as np
import numpy.typing as npt

Spans = npt.NDArray[np.int64]
Float64Array = npt.NDArray[np.float64]

_INVALID = dict.fromkeys(range(0xDC80, 0xDD00), "\N{REPLACEMENT CHARACTER}")
_SURROGATE = 0xD800
_CHARACTERS_OF_1_TO_4_BYTES = np.array([0x80, 0x800, 0x10000])


def text_of(data: bytes) -> str:
    """UTF-8 as text. Each byte that is not valid becomes one lone surrogate, so no character is lost or merged."""
    return data.decode("utf-8", "surrogateescape")


def readable(text: str) -> str:
    """`text` of `text_of` with U+FFFD in place of each invalid byte; it has the same length."""
    return text.translate(_INVALID)


def spans_of_bytes(text: str, sizes: npt.NDArray[np.int64]) -> Spans:
    """The characters of `text` that each token covers, [T, 2]. sizes: bytes per token, [T]; their sum is the text's.

    text: as from `text_of`. A token that begins or ends inside a character covers that character.
    """
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32).astype(np.int64)
    widths = 1 + np.searchsorted(_CHARACTERS_OF_1_TO_4_BYTES, codes, "right")
    widths[codes >> 11 == _SURROGATE >> 11] = 1
    begins = np.cumsum(widths) - widths
    ends = np.cumsum(sizes)
    starts = ends - sizes
    first = np.maximum(np.searchsorted(begins, starts, "right") - 1, 0)
    # An empty token covers nothing, also where it stands inside a character.
    return np.stack([first, np.where(sizes > 0, np.searchsorted(begins, ends, "left"), first)], 1)


def carried_importance(importance: npt.ArrayLike, spans: Spans, to: Spans, characters: int) -> Float64Array:
    """Importance of the tokens with the spans `to` [T, 2], from that of tokens [S] with `spans` [S, 2] of one text.

    A character has the mean importance of the tokens that cover it. A token has the mean of its characters. Characters
    that no token covers do not count; a token without any other character gets a value between its neighbours'.
    All results lie between the lowest and the highest importance, and equal scores stay equal.
    characters: length of the text.
    """
    values = np.asarray(importance, np.float64)
    total, covered = _added(spans, values, characters), _added(spans, np.ones_like(values), characters)
    of_character = np.divide(total, covered, out=np.zeros(characters), where=covered > 0)
    sums = np.concatenate([[0.0], np.cumsum(of_character)])
    counts = np.concatenate([[0], np.cumsum(covered > 0)])
    shared = counts[to[:, 1]] - counts[to[:, 0]]
    known = shared > 0
    if not known.any():
        return np.full(len(to), values.mean() if values.size else 0.0)
    result = np.divide(sums[to[:, 1]] - sums[to[:, 0]], shared, out=np.zeros(len(to)), where=known)
    places = np.arange(len(to))
    result[~known] = np.interp(places[~known], places[known], result[known])
    # The differences of sums carry rounding errors.
    used = values[spans[:, 1] > spans[:, 0]]
    return np.clip(result, used.min(), used.max())


def _added(spans: Spans, values: Float64Array, characters: int) -> Float64Array:
    """For each character, the sum of the values of the spans that cover it."""
    sizes = spans[:, 1] - spans[:, 0]
    inside = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    places = np.repeat(spans[:, 0], sizes) + inside
    return np.bincount(places, np.repeat(values, sizes), characters).astype(np.float64)
