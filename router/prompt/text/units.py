"""Units of a prompt: the lines and sentences of its text, each of which is kept or dropped as a whole.

Items of a list, rows of a table and statements of code are lines; JSON records that share a line are units too. Pure
functions from a text and its tokens' places to token positions and indents.
"""

from collections.abc import Iterable, Sequence, Set
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from kv_transfer.arrays import Int32Array, Span, mask_of, spans_of
from kv_transfer.layout import TextLayout
from kv_transfer.options import SelectionOptions
from router.prompt.protected_spans import CharRanges, Offsets, char_ranges
from router.prompt.structure.nesting import labels_of
from router.prompt.text.codes import WHITE, Codes, among, codes_of, known_characters
from router.prompt.text.cuts import cut, sentence_ends
from router.prompt.text.lexical import word_scores
from router.prompt.text.lines import Lines
from router.prompt.text.links import links_of
from router.prompt.text.passages import TextPassages
from router.prompt.text.words import TermIndex, TextWords
from router.prompt.text.wrapped import breaks_in_sentences

MAX_TOKENS = 96
"""A longer line or sentence is cut in parts of at most so many tokens: after a comma, a semicolon or a colon, else
between words (`router.prompt.text.cuts`)."""
MOST_LABEL_TOKENS = 64
"""A longer label is cut as well. What follows is named by its beginning."""
MIN_TOKENS = 8
"""A shorter line or sentence joins the one after it, or the one before it if what follows begins something new: a
paragraph, or a line that is indented less."""
NUMBER_CHARACTERS = 4
"""So short a beginning of a line is the number of an item, such as "12.", or an abbreviation, and no sentence."""

CLOSING = "\"')]\u201d\u2019"
"""Quotation marks and brackets that may stand between the end of a sentence and the white space after it."""
STOPS = ".!?\u061f\u06d4\u0964\u0965\u0589\u1362\u104b\u17d4\u17d5\u0f0d"
"""Ends of a sentence, if white space follows: also those of Arabic, Urdu, Hindi, Armenian, Amharic, Burmese, Khmer and
Tibetan."""
WIDE_STOPS = "\u3002\uff01\uff1f"
"""Chinese and Japanese ends of a sentence; no white space follows them."""
WIDE_CLOSING = "\u300d\u300f\uff09\u3011\u3009\u300b\u201d\u2019"
"""Quotation marks and brackets that close behind such an end, and belong to its sentence."""


class TextUnits(NamedTuple):
    """starts: int32 [U], the first token of each unit, ascending from 0. indents: int32 [U], of the line in which each
    begins. breaks: int64 [U], the line breaks before the text of each. links: int32 [L, 2], `links_of`. headings: int32
    [U], `Labels.headings`."""

    starts: Int32Array
    indents: Int32Array
    breaks: npt.NDArray[np.int64]
    links: Int32Array
    headings: Int32Array


def with_units(
    layout: TextLayout,
    text: str | None,
    offsets: Offsets | None,
    options: SelectionOptions,
    prompt_tokens: int,
    messages: Iterable[int] = (),
) -> TextLayout:
    """The layout with all that is known of its units; without, where the options or the prompt have none.

    text, offsets: as in RenderedPrompt. The borders of the units include those of messages, because the template
    between messages is protected. messages: as in `text_units`.
    """
    if options.granularity != "text" or text is None or offsets is None or len(offsets) != prompt_tokens:
        return layout
    ranges, codes = char_ranges(offsets), codes_of(text)
    unnamed = layout.protected.tolist()
    last = max(0, prompt_tokens - options.protect_last)
    begin = _word_begin(codes, ranges[:, 0], last)
    if begin < last:  # the whole word is kept then
        kept = mask_of([*layout.protected.tolist(), (begin, prompt_tokens)], prompt_tokens)
        layout = replace(layout, protected=spans_of(kept))
    protected = [*layout.protected.tolist(), (begin, prompt_tokens)]
    edges = layout.rate_spans.ravel()
    units = text_units(text, ranges, edges, protected, layout.questions, messages, unnamed, codes=codes)
    words = _words_of(layout, codes, ranges, units, protected)
    layout = replace(layout, units=units.starts, indents=units.indents, links=units.links, headings=units.headings)
    return replace(layout, **words)


def _word_begin(codes: Codes, begins: npt.NDArray[np.int64], token: int) -> int:
    """The token in which the word of `token` begins, if it is near; else `token`. begins: the first character of each
    token [M]."""
    known = known_characters()
    inside = ~(among(codes, WHITE) | known.alone[codes])
    for first in range(token, max(0, token - 2 * MIN_TOKENS), -1):
        place = begins[first] if first < begins.size else 0
        if not place or not (inside[place] and inside[place - 1]):
            return first
    return token


def _words_of(
    layout: TextLayout, codes: Codes, ranges: CharRanges, units: TextUnits, protected: Sequence[Span]
) -> dict[str, Any]:
    """Of the layout: `gaps`, `words`, `placed`. A short label counts with the text after it. protected: as in
    `text_units`."""
    starts, headings = units.starts, units.headings
    tokens = np.diff(starts, append=len(ranges))
    begins_text = headings != np.arange(starts.size) - 1
    begins_text[1:] |= tokens[:-1] >= MIN_TOKENS
    begins_text[:1] = True
    text_of = np.cumsum(begins_text) - 1
    starts = starts[begins_text]
    tokens = np.diff(starts, append=len(ranges))
    droppable = np.logical_or.reduceat(~mask_of(protected, len(ranges)), starts)
    words, begins = TextWords.of(codes), np.maximum.accumulate(ranges[:, 0])[starts]
    index = TermIndex(words, begins, droppable)
    breaks, indents = units.breaks[begins_text], units.indents[begins_text]
    passages = TextPassages.of(index, codes, begins, tokens, breaks, indents)
    asked = [words.asked(codes, ranges[first, 0], ranges[last - 1, 1]) for first, last in layout.questions.tolist()]
    scores, placed = word_scores(index, passages, asked)
    gaps = np.where(begins_text, passages.gaps[text_of], 0).astype(np.int32)
    return {"gaps": gaps, "words": scores[text_of], "placed": placed}


def text_units(
    text: str,
    offsets: Offsets,
    edges: Iterable[int] = (),
    protected: Sequence[Span] = (),
    questions: Int32Array | None = None,
    messages: Iterable[int] = (),
    unnamed: Sequence[Span] = (),
    *,
    codes: Codes | None = None,
) -> TextUnits:
    """The units of a text.

    A token belongs to the unit in which it begins. An indent is the number of spaces and tabs before the line's text,
    or between its number and its text. offsets: each token's half-open character range in `text`, [M, 2], M > 0.
    protected: half-open token ranges that are always kept. Their edges are borders of units too, and nothing links to
    them. edges: further token positions that are borders of units; none lies outside the prompt. questions: int32
    [Q, 2], parts of protected ranges. messages: characters where messages begin, ascending; a label names nothing in
    another message. unnamed: half-open token ranges that no label names, such as the template and questions.
    codes: of the text, if they are known.
    """
    codes = codes_of(text) if codes is None else codes
    lines = Lines.of(codes, text)
    begins = np.maximum.accumulate(char_ranges(offsets)[:, 0])  # a token without characters has the range (0, 0)
    edges_of = np.append(begins, codes.size)[np.reshape(np.array(unnamed, np.int64), (-1, 2))]
    labels = labels_of(text, codes, lines, messages, edges_of)
    label_starts, label_ends = labels.borders(begins, lines.filled)
    borders = [0], np.ravel(protected), np.fromiter(edges, np.int64), label_starts, label_ends, [begins.size]
    hard = np.unique(np.concatenate(borders).astype(np.int64))
    places = _line_and_sentence_starts(codes, text)
    tokens = np.searchsorted(begins, places)
    strengths = np.zeros(begins.size + 1, np.int64)
    np.maximum.at(strengths, tokens, _strengths(codes, lines, places))
    inside = np.searchsorted(label_starts, tokens, "left") > np.searchsorted(label_ends, tokens, "right")
    joined = _joined(hard, np.setdiff1d(tokens[~inside], hard), strengths, set(label_ends.tolist()))
    most = np.where(np.isin(joined, label_starts), MOST_LABEL_TOKENS, MAX_TOKENS)
    starts = cut(joined, codes, begins, most, MIN_TOKENS)
    links = links_of(codes, begins, starts, ~mask_of(protected, begins.size), questions)
    named = np.logical_or.reduceat(~mask_of(unnamed, begins.size), starts)
    headings = labels.headings(begins, lines.filled, starts, named)
    indents, breaks, _ = lines.at(begins[starts])
    return TextUnits(starts.astype(np.int32), indents.astype(np.int32), breaks, links, headings)


def _line_and_sentence_starts(codes: Codes, text: str) -> npt.NDArray[np.int64]:
    """Where lines, sentences and the JSON records of one line begin: character positions, ascending, without 0.

    White space before a sentence belongs to it, as it does in most tokenizers.
    """
    stops, closing, space = among(codes, STOPS), among(codes, CLOSING), among(codes, " \t")
    stops[1:] |= closing[1:] & stops[:-1]
    begins = np.zeros(codes.size + 1, bool)
    begins[1:] = among(codes, "\n") | _wide_ends(codes)
    begins[2:] |= among(codes, "}")[:-1] & among(codes, ",")[1:]
    begins[breaks_in_sentences(codes) + 1] = False
    begins = begins[:-1]
    ends = np.flatnonzero(stops[:-1] & space[1:]) + 1  # "3.5" and "a.b" are no ends
    found = np.union1d(np.flatnonzero(begins), sentence_ends(codes, text, ends))
    return found[begins[found] | (np.diff(found, prepend=0) > NUMBER_CHARACTERS)]


def _wide_ends(codes: Codes) -> npt.NDArray[np.bool_]:
    """The last character of each Chinese or Japanese sentence, bool [C]: a stop, or one of two marks that close it."""
    ends, closing = among(codes, WIDE_STOPS), among(codes, WIDE_CLOSING)
    for _ in range(2):
        ends[1:] |= closing[1:] & ends[:-1]
    return ends & ~np.r_[ends[1:], False]


def _strengths(codes: Codes, lines: Lines, places: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """How much begins at each place [P]: a paragraph more than a line, a line more than a sentence in it, and a line
    more than one that is indented further. A closing bracket begins nothing.
    """
    indents, breaks, first = lines.at(places)
    begins_line = (breaks == 1) & ~among(codes, ")]}")[first]
    return np.where(begins_line | (breaks > 1), breaks.clip(max=2) * codes.size - indents, 0)


def _joined(
    hard: npt.NDArray[np.int64], soft: npt.NDArray[np.int64], strengths: npt.NDArray[np.int64], named: Set[int]
) -> npt.NDArray[np.int64]:
    """The borders that are left when short units have joined a neighbour: across the weaker border or, of two equal
    ones, the next unit. The last unit of its range joins the one before.

    hard: borders that stay, from 0 to the number of tokens. soft: the others, between them. strengths: `_strengths` of
    each token. named: hard borders after a label; a short unit there stays alone before something new.
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
            elif strengths[border] > strengths[kept[-1]]:
                if kept[-1] != first:
                    kept[-1] = border
                elif first in named:
                    kept.append(border)
    return np.array([*kept, hard[-1]])
