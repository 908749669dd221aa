"""The layout of a prompt: what router and speculator know of its tokens besides their ids."""

from dataclasses import dataclass, field, fields

import numpy as np
import numpy.typing as npt

from kv_transfer.arrays import Float32Array, Int32Array, Span, mask_of, no_numbers, no_pairs, no_scores
from kv_transfer.options import SelectionOptions


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """What stands around a text in a chat of one user message, as the chat template writes it: int32 arrays of tokens.

    head: before the text. joint: between a text and the question about it. tail: after the question, up to the answer.
    """

    head: Int32Array
    joint: Int32Array
    tail: Int32Array

    @property
    def size(self) -> int:
        return self.head.size + self.joint.size + self.tail.size


@dataclass(frozen=True, slots=True, eq=False)
class TextLayout:
    """What is known of a prompt of M tokens. Spans are ranges [start, end) of its tokens; what is not known is empty.

    protected: spans that are always kept.
    rate_spans, rates: [R, 2] and [R], spans that have a keep rate of their own, in (0, 1], sorted and apart. The
    options select from the rest of the prompt.
    units: [U], the first token of each unit of the text (`granularity: text`), ascending from 0. The edges of protected
    and rate_spans are among them.
    indents: [U], the spaces and tabs before the text of the line in which each unit begins.
    gaps: [U], how far each unit is apart from the one before it, in tokens, besides the tokens of both: at a blank
    line, in a table, in code. 0 inside a paragraph.
    words: [U], BM25 of the words in the passage around each unit, for the questions.
    headings: [U], the unit with the label that names each unit, such as a heading, a tag, the header of a table or the
    speaker of a turn; itself for none. A label may have a label, which stands before it: the heading chain. What is no
    label may be named by a later unit, such as a signature.
    links: [L, 2], the pairs of units that share an identifier, such as an id or the name of a function. A unit that
    shares one with a question is paired with itself.
    questions: spans that can be the task of the prompt, wherever they stand, sorted and apart. A token's score is the
    best over them.
    frame: for `read: windows`; None: the prompt is read as a whole.
    placed: how well words place the question, 0 to 1: the share of the weight of its terms (their rarity, as in BM25)
    that the passage around the best unit holds. Terms that the text lacks weigh most. Of several questions, of the one
    that words say most of. 0 where no word is shared.
    """

    protected: Int32Array = field(default_factory=no_pairs)
    rate_spans: Int32Array = field(default_factory=no_pairs)
    rates: Float32Array = field(default_factory=no_scores)
    units: Int32Array = field(default_factory=no_numbers)
    indents: Int32Array = field(default_factory=no_numbers)
    gaps: Int32Array = field(default_factory=no_numbers)
    words: Float32Array = field(default_factory=no_scores)
    headings: Int32Array = field(default_factory=no_numbers)
    links: Int32Array = field(default_factory=no_pairs)
    questions: Int32Array = field(default_factory=no_pairs)
    frame: Frame | None = None
    placed: float = 0.0

    def __post_init__(self) -> None:
        for name in ("protected", "rate_spans", "links", "questions"):
            if (shape := getattr(self, name).shape)[1:] != (2,):
                raise ValueError(f"{name} must be pairs [N, 2], not {list(shape)}")
        if self.rates.shape != self.rate_spans.shape[:1]:
            raise ValueError(f"there must be one of rates for each of {len(self.rate_spans)} rate_spans")

    def final_questions(self, droppable: npt.NDArray[np.bool_]) -> tuple[Span, ...]:
        """The questions after which nothing may be dropped. Tokens of the others do not see all of it: those
        before a document or before a tool's result. droppable: bool [M]."""
        text = np.flatnonzero(droppable)
        end = int(text[-1]) + 1 if text.size else 0
        return tuple((first, last) for first, last in self.questions.tolist() if last >= end)

    @property
    def regions(self) -> list[tuple[int, int, float]]:
        """rate_spans with their rates, as (start, end, rate). The rates are the decimals that the user wrote."""
        spans = self.rate_spans.tolist()
        return [(start, end, float(str(rate))) for (start, end), rate in zip(spans, self.rates, strict=True)]

    def fixed(self, prompt_tokens: int, protect_last: int) -> npt.NDArray[np.bool_]:
        """The tokens that every selection keeps, bool [M]: the protected ones, and the last `protect_last` ones."""
        return mask_of(self.protected, prompt_tokens) | (np.arange(prompt_tokens) >= prompt_tokens - protect_last)

    def unit_starts(self, prompt_tokens: int, options: SelectionOptions) -> Int32Array:
        """The first token of each unit that has a score, int32 [U].

        Without units of text they are chunks, also where single tokens are chosen.
        """
        if options.granularity == "text" and self.units.size:
            return self.units
        return np.arange(0, prompt_tokens, options.chunk_size, dtype=np.int32)

    def labels_of(self, kept: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """The labels that name the kept units, and the labels of these, bool [U]. kept: bool [U]. `headings` must be
        known."""
        own, labels = np.arange(kept.size), np.zeros(kept.size, bool)
        labels[self.headings[kept & (self.headings > own)]] = True
        headings, named = self.headings.tolist(), (kept | labels).tolist()
        for unit in np.flatnonzero(self.headings < own)[::-1].tolist():
            if named[unit]:  # a label stands before a label that it names
                named[headings[unit]] = labels[headings[unit]] = True
        return labels

    @property
    def nbytes(self) -> int:
        """Bytes of what grows with the prompt."""
        return sum(getattr(getattr(self, part.name), "nbytes", 0) for part in fields(self))


NO_LAYOUT = TextLayout()
"""Of a prompt of which the token ids alone are known."""
