"""Units of a prompt: the lines and sentences of its text, each of which is kept or dropped as a whole.

Items of a list, rows of a table and statements of code are lines; JSON records that share a line are units too. Pure
functions from a text and its tokens' places to token positions.
"""

from collections.abc import Iterable
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from kv_transfer.messages import Int32Array
from kv_transfer.options import SelectionOptions
from router.prompt.protected_spans import Offsets, PromptSpans, char_ranges

MAX_TOKENS = 96
"""A longer line or sentence is cut in parts of about equal length, of at most so many tokens."""
MIN_TOKENS = 8
"""A shorter line or sentence joins its neighbour."""
NUMBER_CHARACTERS = 4
"""So short a beginning of a line is the number of an item, such as "12.", or an abbreviation, and no sentence."""

CLOSING = "\"')]\u201d\u2019"
"""Quotation marks and brackets that may stand between the end of a sentence and the white space after it."""
WIDE_STOPS = "\u3002\uff01\uff1f"
"""Chinese and Japanese ends of a sentence; no white space follows them."""


def units_of(
    text: str | None, offsets: Offsets | None, spans: PromptSpans, options: SelectionOptions, prompt_tokens: int
) -> Int32Array:
    """The `units` of a SelectRequest; empty where the options or the prompt have none. text, offsets: as in Prompt.

    Their borders include those of messages, because the template between messages is protected.
    """
    if options.granularity != "text" or text is None or offsets is None or len(offsets) != prompt_tokens:
        return np.empty(0, np.int32)
    last = max(0, prompt_tokens - options.protect_last)
    return text_unit_starts(text, offsets, [*spans.protected.ravel(), *spans.rate_spans.ravel(), last])


def text_unit_starts(text: str, offsets: Offsets, edges: Iterable[int] = ()) -> Int32Array:
    """The first token of each unit: int32 [U], ascending, from 0. A token belongs to the unit in which it begins.

    offsets: each token's half-open character range in `text`, [M, 2], M > 0. edges: token positions that are borders of
    units too, such as those of messages and protected spans; none lies outside the prompt.
    """
    begins = np.maximum.accumulate(char_ranges(offsets)[:, 0])  # a token without characters has the range (0, 0)
    hard = np.unique(np.r_[0, np.fromiter(edges, np.int64), begins.size])
    soft = np.setdiff1d(np.searchsorted(begins, line_and_sentence_starts(text)), hard)
    return _cut(_joined(hard, soft)).astype(np.int32)


def line_and_sentence_starts(text: str) -> npt.NDArray[np.int64]:
    """Where lines, sentences and the JSON records of one line begin: character positions, ascending, without 0.

    White space before a sentence belongs to it, as it does in most tokenizers.
    """
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)

    def among(*characters: str) -> npt.NDArray[np.bool_]:
        return np.isin(codes, [ord(character) for character in characters])

    stops, closing, space = among(".", "!", "?"), among(*CLOSING), among(" ", "\t")
    stops[1:] |= closing[1:] & stops[:-1]
    sentences, begins = np.zeros((2, codes.size + 1), bool)
    sentences[1:-1] = stops[:-1] & space[1:]  # "3.5" and "a.b" are no ends
    begins[1:] = among("\n", *WIDE_STOPS)
    begins[2:] |= among("}")[:-1] & among(",")[1:]
    found = np.flatnonzero(begins[:-1] | sentences[:-1])
    return found[begins[found] | (np.diff(found, prepend=0) > NUMBER_CHARACTERS)]


def _joined(hard: npt.NDArray[np.int64], soft: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The borders that are left when short units have joined the next one; the last of its range joins the one before.

    hard: borders that stay, from 0 to the number of tokens. soft: the others, between them.
    """
    kept: list[int] = []
    between = iter(np.split(soft, np.searchsorted(soft, hard[1:-1])))
    for first, last in pairwise(hard.tolist()):
        kept.append(first)
        for border in next(between).tolist():
            if border - kept[-1] >= MIN_TOKENS and last - border >= MIN_TOKENS:
                kept.append(border)
    return np.array([*kept, hard[-1]])


def _cut(borders: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The starts of the units between `borders`, of which the long ones are cut."""
    lengths = np.diff(borders)
    parts = -(-lengths // MAX_TOKENS)
    number = np.arange(parts.sum()) - np.repeat(np.cumsum(parts) - parts, parts)
    return np.repeat(borders[:-1], parts) + number * np.repeat(lengths, parts) // np.repeat(parts, parts)
