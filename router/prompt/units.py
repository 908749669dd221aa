"""Units of a prompt: the lines and sentences of its text, each of which is kept or dropped as a whole.

Items of a list, rows of a table and statements of code are lines; JSON records that share a line are units too. Pure
functions from a text and its tokens' places to token positions and indents.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from kv_transfer.arrays import Int32Array
from kv_transfer.layout import TextLayout
from kv_transfer.options import SelectionOptions
from kv_transfer.spans import Span, mask_of
from router.prompt.codes import Codes, among, codes_of
from router.prompt.cuts import cut, is_abbreviation
from router.prompt.lexical import gaps_of, word_scores, words_of
from router.prompt.links import links_of
from router.prompt.protected_spans import CharRanges, Offsets, char_ranges

MAX_TOKENS = 96
"""A longer line or sentence is cut in parts of at most so many tokens: after a comma, a semicolon or a colon, else
between words (`router.prompt.cuts`)."""
MIN_TOKENS = 8
"""A shorter line or sentence joins the one after it, or the one before it if what follows begins something new: a
paragraph, or a line that is indented less."""
NUMBER_CHARACTERS = 4
"""So short a beginning of a line is the number of an item, such as "12.", or an abbreviation, and no sentence."""

CLOSING = "\"')]\u201d\u2019"
"""Quotation marks and brackets that may stand between the end of a sentence and the white space after it."""
STOPS = ".!?\u061f\u06d4\u0964\u0965"
"""Ends of a sentence, if white space follows: also those of Arabic, Urdu and Hindi."""
WIDE_STOPS = "\u3002\uff01\uff1f"
"""Chinese and Japanese ends of a sentence; no white space follows them."""

NUMBER = re.compile(r"^[ \t]*(\d{1,7})[\t:|\u2192\u2502]", re.MULTILINE)
"""The number of a line, as tools of agents show files: "12: ", "  12\t", "12|" or "  12" with an arrow."""


class TextUnits(NamedTuple):
    """starts: int32 [U], the first token of each unit, ascending from 0. indents: int32 [U], of the line in which each
    begins. links: int32 [L, 2], `links_of`."""

    starts: Int32Array
    indents: Int32Array
    links: Int32Array


def with_units(
    layout: TextLayout, text: str | None, offsets: Offsets | None, options: SelectionOptions, prompt_tokens: int
) -> TextLayout:
    """The layout with all that is known of its units; without, where the options or the prompt have none.

    text, offsets: as in RenderedPrompt. The borders of the units include those of messages, because the template
    between messages is protected.
    """
    if options.granularity != "text" or text is None or offsets is None or len(offsets) != prompt_tokens:
        return layout
    last = max(0, prompt_tokens - options.protect_last)
    protected = [*layout.protected.tolist(), (last, prompt_tokens)]
    ranges = char_ranges(offsets)
    starts, indents, links = text_units(text, ranges, layout.rate_spans.ravel(), protected, layout.questions)
    return replace(
        layout,
        units=starts,
        indents=indents,
        links=links,
        **_words_of(layout, text, ranges, starts, indents, protected),
    )


def _words_of(
    layout: TextLayout,
    text: str,
    ranges: CharRanges,
    starts: Int32Array,
    indents: Int32Array,
    protected: Sequence[Span],
) -> dict[str, Any]:
    """The fields `gaps` and `words`. protected: as in `text_units`."""
    codes = codes_of(text)
    tokens = np.diff(starts, append=len(ranges))
    droppable = np.logical_or.reduceat(~mask_of(protected, len(ranges)), starts)
    begins = np.maximum.accumulate(ranges[:, 0])[starts]
    words = words_of(codes)
    gaps = gaps_of(words, codes, begins, indents, droppable)
    asked = [(int(ranges[first, 0]), int(ranges[last - 1, 1])) for first, last in layout.questions.tolist()]
    return {"gaps": gaps, "words": word_scores(words, codes, begins, tokens, gaps, droppable, asked)}


def text_units(
    text: str,
    offsets: Offsets,
    edges: Iterable[int] = (),
    protected: Sequence[Span] = (),
    questions: Int32Array | None = None,
) -> TextUnits:
    """The units of a text.

    A token belongs to the unit in which it begins. An indent is the number of spaces and tabs before the line's text,
    or between its number and its text. offsets: each token's half-open character range in `text`, [M, 2], M > 0.
    protected: half-open token ranges that are always kept. Their edges are borders of units too, and nothing links to
    them. edges: further token positions that are borders of units; none lies outside the prompt. questions: int32
    [Q, 2], parts of protected ranges.
    """
    codes = codes_of(text)
    lines = _Lines.of(codes, _line_numbers(text))
    begins = np.maximum.accumulate(char_ranges(offsets)[:, 0])  # a token without characters has the range (0, 0)
    hard = np.unique(np.r_[0, np.ravel(protected), np.fromiter(edges, np.int64), begins.size].astype(np.int64))
    places = _line_and_sentence_starts(codes, text)
    tokens = np.searchsorted(begins, places)
    strengths = np.zeros(begins.size + 1, np.int64)
    np.maximum.at(strengths, tokens, _strengths(codes, lines, places))
    starts = cut(_joined(hard, np.setdiff1d(tokens, hard), strengths), codes, begins, MAX_TOKENS, MIN_TOKENS)
    links = links_of(codes, begins, starts, ~mask_of(protected, begins.size), questions)
    return TextUnits(starts.astype(np.int32), lines.at(begins[starts])[0].astype(np.int32), links)


def _line_and_sentence_starts(codes: Codes, text: str) -> npt.NDArray[np.int64]:
    """Where lines, sentences and the JSON records of one line begin: character positions, ascending, without 0.

    White space before a sentence belongs to it, as it does in most tokenizers.
    """
    stops, closing, space = among(codes, STOPS), among(codes, CLOSING), among(codes, " \t")
    stops[1:] |= closing[1:] & stops[:-1]
    sentences, begins = np.zeros((2, codes.size + 1), bool)
    sentences[1:-1] = stops[:-1] & space[1:]  # "3.5" and "a.b" are no ends
    begins[1:] = among(codes, "\n" + WIDE_STOPS)
    begins[2:] |= among(codes, "}")[:-1] & among(codes, ",")[1:]
    ends = np.flatnonzero(sentences[:-1])
    sentences[ends[np.fromiter((is_abbreviation(text, end) for end in ends.tolist()), bool, ends.size)]] = False
    found = np.flatnonzero(begins[:-1] | sentences[:-1])
    return found[begins[found] | (np.diff(found, prepend=0) > NUMBER_CHARACTERS)]


def _line_numbers(text: str) -> npt.NDArray[np.int64]:
    """The character ranges of the numbers of lines, from the line's start: int64 [N, 2].

    Alone it may be any number, such as the hour in a log. It counts if the line before or after has the next one.
    """
    found = [(match.start(), match.end(), int(match[1])) for match in NUMBER.finditer(text)]
    ranges = np.array(found, np.int64).reshape(-1, 3)
    follows = np.diff(ranges[:, 2]) == 1
    return ranges[np.r_[False, follows] | np.r_[follows, False]][:, :2] if len(found) else ranges[:, :2]


@dataclass(frozen=True, slots=True, eq=False)
class _Lines:
    """The lines of a text, as character positions, ascending. filled: its characters that are no white space and no
    number of a line. breaks: line breaks [L]. starts: where the white space before each line's text begins [L + 1].
    """

    filled: npt.NDArray[np.int64]
    breaks: npt.NDArray[np.int64]
    starts: npt.NDArray[np.int64]

    @classmethod
    def of(cls, codes: Codes, numbers: npt.NDArray[np.int64]) -> "_Lines":
        """numbers: `_line_numbers`."""
        is_text = ~among(codes, " \t\r\n")
        for start, end in numbers.tolist():
            is_text[start:end] = False
        breaks = np.flatnonzero(codes == ord("\n"))
        starts = np.r_[0, breaks + 1]
        starts[np.searchsorted(starts, numbers[:, 0])] = numbers[:, 1]
        return cls(np.flatnonzero(is_text), breaks, starts)

    def at(
        self, places: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Of the first text from each place on, int64 [P] each: its line's indent, the line breaks before it, where it
        is. places: character positions [P]; after the last text they count as there.
        """
        if not self.filled.size:
            nowhere = np.zeros(places.size, np.int64)
            return nowhere, nowhere, nowhere
        found = np.searchsorted(self.filled, places).clip(max=self.filled.size - 1)
        first, before = self.filled[found], np.where(found > 0, self.filled[found - 1], -1)
        number = np.searchsorted(self.breaks, first)
        start = self.starts[number]
        indents = self.filled[np.searchsorted(self.filled, start)] - start
        return indents, number - np.searchsorted(self.breaks, before), first


def _strengths(codes: Codes, lines: _Lines, places: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """How much begins at each place [P]: a paragraph more than a line, a line more than a sentence in it, and a line
    more than one that is indented further. A closing bracket begins nothing.
    """
    indents, breaks, first = lines.at(places)
    begins_line = (breaks == 1) & ~among(codes, ")]}")[first]
    return np.where(begins_line | (breaks > 1), breaks.clip(max=2) * codes.size - indents, 0)


def _joined(
    hard: npt.NDArray[np.int64], soft: npt.NDArray[np.int64], strengths: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """The borders that are left when short units have joined a neighbour: across the weaker border or, of two equal
    ones, the next unit. The last unit of its range joins the one before.

    hard: borders that stay, from 0 to the number of tokens. soft: the others, between them. strengths: `_strengths` of
    each token.
    """
    kept: list[int] = []
    between = iter(np.split(soft, np.searchsorted(soft, hard[1:-1])))
    for first, last in pairwise(hard.tolist()):
        kept.append(first)
        for border in next(between).tolist():
            if last - border < MIN_TOKENS:
                break
            if border - kept[-1] >= MIN_TOKENS:
                kept.append(border)
            elif kept[-1] != first and strengths[border] > strengths[kept[-1]]:
                kept[-1] = border
    return np.array([*kept, hard[-1]])
