"""Units: what is kept or dropped as a whole. Lines and sentences of the text, chunks, or single tokens.

Lines that are nested under a line that is indented less are understood together, so they rank together. Units that
share an identifier are linked: one of them brings the other. Those that share one with the question come first. A unit
brings the labels that name it, such as its heading.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from kv_transfer.arrays import Float32Array, Int32Array
from kv_transfer.layout import TextLayout
from kv_transfer.options import SelectionOptions

NESTED_TOKENS = 256
"""After a line, so many tokens that are nested under it rank as high as the line."""
GROUP_TOKENS = 192
"""What is nested under one line belongs together up to this size. Evidence in indented JSON needs it."""

LINKED = 0.4
"""Linked units rank at least by this share of each other's mean."""

Float64Array = npt.NDArray[np.float64]
Int64Array = npt.NDArray[np.int64]
Region = tuple[int, int, float]
"""A half-open token range, and how much of it to keep."""
Element = TypeVar("Element", bound=np.generic)


@dataclass(frozen=True, slots=True, eq=False)
class Units:
    """The units of a prompt; all arrays int64 [U].

    starts, lengths: their first tokens, from 0, and their tokens. sizes: what each counts in a budget of tokens: its
    length or, of chunks, the length of a whole one. region: the number of the region that each is in; the number of
    regions for none. layout, of_text: of units of text, the layout, and its unit that each is, or a part of.
    """

    starts: Int64Array
    lengths: Int64Array
    sizes: Int64Array
    region: Int64Array
    of_text: Int64Array
    layout: TextLayout | None

    @classmethod
    def of(
        cls, prompt_tokens: int, options: SelectionOptions, layout: TextLayout, regions: Sequence[Region] = ()
    ) -> "Units":
        """Without units of text, they are chunks. regions: sorted and apart; their borders divide units."""
        if options.granularity == "token":
            starts, size = np.arange(prompt_tokens), 1
        else:
            starts, size = layout.unit_starts(prompt_tokens, options).astype(np.int64), options.chunk_size
        region = np.zeros(starts.size, np.int64)
        if regions:
            first, end = np.array([region[:2] for region in regions]).T
            starts = np.unique(np.concatenate([starts, first, end[end < prompt_tokens]]))
            region = np.searchsorted(end, starts, "right")  # the first region that ends after the unit's start
            region[starts < np.append(first, prompt_tokens)[region]] = len(regions)
        lengths = np.diff(starts, append=prompt_tokens)
        if options.granularity == "text" and layout.units.size:
            of_text = np.searchsorted(layout.units, starts, "right") - 1
            return cls(starts, lengths, lengths, region, of_text, layout)
        return cls(starts, lengths, np.full_like(lengths, size), region, np.arange(starts.size), None)

    @property
    def are_text(self) -> bool:
        return self.layout is not None

    def sums(self, values: npt.NDArray[np.generic]) -> Float64Array:
        """The sum of the tokens' values [M] in each unit: float64 [U]."""
        unit_of = self.each_token(np.arange(self.starts.size))
        return np.bincount(unit_of, values.astype(np.float64), self.starts.size).astype(np.float64, copy=False)

    def ranks(self, means: Float64Array, droppable: npt.NDArray[np.bool_]) -> Float64Array:
        """By what the units are ordered, float64 [U]: their means [U]; of units of text, `nested_ranks` of the means or
        of `by_links` where that is higher, and those of labels as of what they name (`with_labels`).

        droppable: bool [U], the units with a token that may be dropped.
        """
        layout = self.layout
        if layout is None:
            return means
        ranks = means
        if layout.indents.size:
            whole = np.zeros(layout.indents.size)
            np.maximum.at(whole, self.of_text, means)
            raised = np.maximum(means, by_links(whole, layout.links)[self.of_text])
            ranks = nested_ranks(raised, layout.indents[self.of_text], self.starts + self.lengths, droppable)
        return with_labels(ranks, self.of_text, layout.headings, droppable)

    def labels_of(self, kept: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """The units that are labels of those kept, bool [U], or parts of labels."""
        if self.layout is None or not self.layout.headings.size:
            return np.zeros(kept.size, bool)
        whole = np.zeros(self.layout.units.size, bool)
        whole[self.of_text[kept]] = True
        return self.layout.labels_of(whole)[self.of_text]

    def having(self, tokens: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """The units that have one of the marked tokens, bool [U]. tokens: bool [M]."""
        return np.logical_or.reduceat(tokens, self.starts)

    def each_token(self, values: npt.NDArray[Element]) -> npt.NDArray[Element]:
        """The value [U] of its unit for each token, [M]."""
        return np.repeat(values, self.lengths)


def unit_means(importance: Float32Array, starts: npt.NDArray[np.integer]) -> Float64Array:
    """The mean importance of each unit: float64 [U]. importance: float32 [M], M > 0. starts: int [U], from 0."""
    sums = np.add.reduceat(importance.astype(np.float64), starts)
    return sums / np.diff(starts, append=importance.size)


def with_labels(
    ranks: Float64Array,
    of_text: npt.NDArray[np.integer],
    headings: Int32Array,
    droppable: npt.NDArray[np.bool_],
) -> Float64Array:
    """The ranks [U], of which those of a label are at least the highest that it names, so that a selection takes it
    before. What is kept anyway counts as the highest.

    of_text: as in Units. droppable: bool [U]. headings: as in TextLayout; empty: not known.
    """
    if not headings.size:
        return ranks
    named = np.full(headings.size, -np.inf)
    np.maximum.at(named, of_text, np.where(droppable, ranks, ranks.max()))
    own = np.arange(headings.size)
    has_label, later = headings != own, headings > own
    np.maximum.at(named, headings[later], named[later])
    best, heading_of = named.tolist(), headings.tolist()
    for unit in np.flatnonzero(headings < own)[::-1].tolist():  # a label stands before a label that it names
        heading = heading_of[unit]
        best[heading] = max(best[heading], best[unit])
    is_label = np.zeros(headings.size, bool)
    is_label[headings[has_label]] = True
    return np.where(is_label[of_text], np.array(best)[of_text], ranks)


def by_links(means: Float64Array, links: Int32Array) -> Float64Array:
    """By what units are ordered for their links, float64 [U]: those that the question names like the best of all, and
    those that are linked with a unit by the share LINKED of what it has; 0 without a link.

    means: [U]. links: as in TextLayout.
    """
    first, second = links.T
    ranks = np.zeros(means.size)
    ranks[first[first == second]] = means.max()
    values = np.maximum(means, ranks)
    np.maximum.at(ranks, first, LINKED * values[second])
    np.maximum.at(ranks, second, LINKED * values[first])
    return ranks


def nested_ranks(
    means: Float64Array,
    indents: npt.NDArray[np.integer],
    ends: Int64Array,
    droppable: npt.NDArray[np.bool_],
) -> Float64Array:
    """By what units of text are ordered, float64 [U]: the highest mean importance of the unit itself, of the lines
    nested under it, and of the lines that it is nested under, if they stand at most NESTED_TOKENS before it.

    Nested under a line are those after it that are indented more, up to one that is not, or that cannot be dropped:
    messages end there. A line and what is nested under it are a group. In a group of at most GROUP_TOKENS, such as a
    JSON record, all units rank at least half as high as the best of them. means: [U]. indents: as in TextLayout.
    ends: the token after each unit [U]. droppable: units with a token that may be dropped, bool [U].
    """
    enclosing = _enclosing(indents, droppable)
    best, group_ends = means.copy(), ends.copy()
    for inner in np.flatnonzero(enclosing >= 0)[::-1].tolist():  # the innermost first
        outer = enclosing[inner]
        best[outer], group_ends[outer] = max(best[outer], best[inner]), max(group_ends[outer], group_ends[inner])
    is_small = group_ends - np.r_[0, ends[:-1]] <= GROUP_TOKENS
    passed_on, ranks = np.where(is_small, np.maximum(means, best / 2), means), best.copy()
    inner = np.flatnonzero(enclosing >= 0)
    outer = enclosing[inner]
    near = ends[inner] - ends[outer] <= NESTED_TOKENS
    inner, outer = inner[near], outer[near]
    while inner.size:  # outwards: what is nested deeply is passed to the lines that are near, of which there are few
        ranks[inner] = np.maximum(ranks[inner], passed_on[outer])
        near = (enclosing[outer] >= 0) & (ends[inner] - ends[enclosing[outer]] <= NESTED_TOKENS)
        inner, outer = inner[near], enclosing[outer[near]]
    return ranks


def _enclosing(indents: npt.NDArray[np.integer], droppable: npt.NDArray[np.bool_]) -> Int64Array:
    """The nearest earlier unit of a line that is indented less, int64 [U]; -1 for none."""
    found = np.full(indents.size, -1)
    open_lines: list[tuple[int, int]] = []
    for unit, (indent, may_drop) in enumerate(zip(indents.tolist(), droppable.tolist(), strict=True)):
        if not may_drop:
            open_lines.clear()
            continue
        while open_lines and open_lines[-1][0] >= indent:
            open_lines.pop()
        if open_lines:
            found[unit] = open_lines[-1][1]
        open_lines.append((indent, unit))
    return found
