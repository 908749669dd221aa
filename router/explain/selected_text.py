"""The kept lines of a client's text, to be pasted: with line numbers, and marks where lines are left out. Pure."""

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from kv_transfer.arrays import Span, spans_of
from kv_transfer.layout import TextLayout
from kv_transfer.messages import Selection
from kv_transfer.options import SelectionOptions
from router.prompt.markers import CharSpan
from router.prompt.protected_spans import CharRanges, merged, tokens_touched_by_each

CUT = "..."
"""Stands where a part of a line is left out."""


def kept_lines(text: str, spans: Sequence[CharSpan]) -> tuple[str, list[tuple[int, int]]]:
    """The lines of `text` that have a kept character other than white space, each with its number; and their numbers,
    from 1, as ranges of the first and the last. spans: what is kept of it, in order and apart.

    Blank lines are kept between two kept lines.
    """
    shown: list[str] = []
    ranges: list[tuple[int, int]] = []
    blank: list[int] = []  # since the last other line
    left_out = at = start = 0
    for number, line in enumerate(text.split("\n"), 1):
        end = start + len(line)
        while at < len(spans) and spans[at][1] <= start:
            at += 1
        if piece := _kept_of(text, (start, end), spans, at):
            if left_out or not ranges:
                shown += [_mark(left_out + len(blank))] if left_out else []
                ranges.append((number, number))
            else:
                shown += [f"{one}:" for one in blank]
                ranges[-1] = ranges[-1][0], number
            shown.append(f"{number}: {piece}")
            left_out, blank = 0, []
        elif line.strip():
            left_out, blank = left_out + len(blank) + 1, []
        else:
            blank.append(number)
        start = end + 1
    if left_out:
        shown.append(_mark(left_out))
    return "\n".join(shown), ranges


def _kept_of(text: str, line: CharSpan, spans: Sequence[CharSpan], at: int) -> str:
    """What is kept of a line, with marks where a part of it is left out; empty if nothing is. at: of the first span
    that does not end before it."""
    shown, (end, line_end) = "", line
    while at < len(spans) and spans[at][0] < line_end:
        first, last = max(spans[at][0], line[0]), min(spans[at][1], line_end)
        piece, gap = text[first:last], text[end:first]
        if piece.strip():
            if gap.strip():
                shown = f"{shown.rstrip()} {CUT} {piece.lstrip()}" if shown else f"{CUT} {piece.lstrip()}"
            else:
                shown += gap + piece
            end = last
        at += 1
    return f"{shown.rstrip()} {CUT}" if shown and text[end:line_end].strip() else shown.rstrip()


def _mark(lines: int) -> str:
    return f"{CUT} {lines} line{'' if lines == 1 else 's'} left out {CUT}"


class PlacedText:
    """A client's text and its tokens in a rendered prompt. tokens: half-open, those that have a character of it."""

    def __init__(self, text: str, rendered: str, span: CharSpan, ranges: CharRanges, tokens: Span | None) -> None:
        """span: where the text stands in `rendered`, without outer white space, as it is or inside a JSON string.
        ranges: each token's half-open character range in `rendered`. tokens: by `tokens_touched_by_each`."""
        inner = text.strip()
        self.text, self._span, self._ranges = text, span, ranges
        self._lead = len(text) - len(text.lstrip())
        self._bounds = None if rendered[slice(*span)] == inner else _bounds_in_json(inner)
        self.tokens = tokens or (0, 0)

    def shown(self, kept: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Which of its tokens are shown, bool [tokens]. kept: of the tokens, bool. A first or last token that the
        template shares is always kept, and so is token 0: without its neighbour it says nothing."""
        (first, end), shown = self.tokens, kept.copy()
        if shown.size > 1:
            shown[0] &= shown[1] or bool(first and self._ranges[first, 0] >= self._span[0])
            shown[-1] &= shown[-2] or bool(self._ranges[end - 1, 1] <= self._span[1])
        return shown

    def chars(self, first: int, end: int) -> CharSpan:
        """The characters of the text that these tokens have, half-open; empty at 0 if they have none."""
        ranges = self._ranges[first:end]
        ranges = ranges[ranges[:, 1] > ranges[:, 0]] - self._span[0]
        if not ranges.size:
            return 0, 0
        start, last = max(0, int(ranges[:, 0].min())), min(int(ranges[:, 1].max()), self._span[1] - self._span[0])
        if self._bounds is not None:
            start = int(np.searchsorted(self._bounds, start, "right")) - 1
            last = int(np.searchsorted(self._bounds, last, "left"))
        return self._lead + start, self._lead + last


def placed_texts(
    texts: Sequence[str], rendered: str, spans: Sequence[CharSpan], ranges: CharRanges
) -> list[PlacedText]:
    """All texts of a prompt; the tokens are looked through once. texts, spans: of each, as in PlacedText."""
    tokens = tokens_touched_by_each(spans, ranges)
    return [PlacedText(text, rendered, span, ranges, at) for text, span, at in zip(texts, spans, tokens, strict=True)]


def _bounds_in_json(text: str) -> npt.NDArray[np.int64]:
    """Where each character of `text` begins inside a JSON string, and the end of the last, int64 [len(text) + 1]."""
    widths = {char: len(json.dumps(char, ensure_ascii=False)) - 2 for char in set(text)}
    return np.cumsum([0, *(widths[char] for char in text)])


class SelectedPrompt:
    """A selection by these options. What all texts of the prompt need is found once."""

    def __init__(self, selection: Selection, options: SelectionOptions, layout: TextLayout) -> None:
        self._coverage_of_all, size = selection.coverage, selection.kept.context_length
        self._kept = np.zeros(size, bool)
        self._kept[selection.kept.positions] = True
        self._starts, scores = layout.unit_starts(size, options), selection.unit_scores
        self._scores: npt.NDArray[np.float64] | None = None  # of each token; None: those of the units are not known
        if scores is not None and scores.size == self._starts.size:
            self._scores = np.repeat(scores.astype(np.float64), np.diff(self._starts, append=size))

    def as_json(self, placed: PlacedText, *, scores: bool) -> dict[str, Any]:
        """JSON values of what was kept of a text of the prompt. scores: also the units, each with its score.

        spans: half-open character ranges of the text. coverage: the kept share of its importance. usage: its tokens.
        """
        first, end = placed.tokens
        kept, coverage = self._kept[first:end], self._coverage_of_all
        spans = merged([placed.chars(*run) for run in (spans_of(placed.shown(kept)) + first).tolist()])
        (text, lines), tokens = kept_lines(placed.text, spans), int(kept.sum())
        if self._scores is not None:
            weights = self._scores[first:end]
            total = float(weights.sum())
            coverage = float(weights[kept].sum()) / total if total else float(kept.mean()) if kept.size else 1.0
        answer = {
            "text": text,
            "lines": lines,
            "spans": spans,
            "coverage": float(f"{coverage:.6g}"),
            "usage": {"prompt_tokens": end - first, "kept_tokens": tokens, "dropped_tokens": end - first - tokens},
        }
        return {**answer, "units": self._units(placed)} if scores else answer

    def _units(self, placed: PlacedText) -> list[dict[str, Any]] | None:
        """The units that have a character of the text, with their scores; None if these are not known."""
        if self._scores is None:
            return None
        first, end = placed.tokens
        inner = self._starts[(self._starts > first) & (self._starts < end)]
        units = []
        for begin, last in pairwise([first, *inner.tolist(), end]):
            start, stop = placed.chars(begin, last)
            if start < stop:
                units.append({"start": start, "end": stop, "score": float(f"{self._scores[begin]:.6g}")})
        return units
