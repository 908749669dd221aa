"""Extends the kept prompt of an earlier request, so that the target finds it in its prefix cache.

The order of tokens in a KV cache is free, as long as a token stands after those that it must use. So what stands is not
moved. Late units, which only the new question needs, are appended before that question.

- Late units are those of the most important units of the old text that do not stand yet. The most important are an
  eighth of the fresh selection's units of the old text (LATE_SHARE), or LATE_TOKENS if that is more, and what is nested
  with the last one. Further units of the fresh selection are added until as much of the old text stands as it keeps. A
  unit that ranks below the median is left out, unless its region has a keep rate of its own. Protected tokens that do
  not stand are always added.
- The fresh selection, in the order of the text, is used instead if the target then reads fewer new tokens, if the
  extended prompt is longer than `max_keep` allows, or if nothing is dropped or reused.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from kv_transfer.arrays import Float32Array, Int32Array, common_prefix, mask_of
from kv_transfer.layout import TextLayout
from kv_transfer.options import LATE_TOKENS, SHORT_TEXT, SelectionOptions
from speculator_service.selection.units import Units, unit_means

LATE_SHARE = 1 / 8
GROWTH = 3.0
"""Without `max_keep`, an extended prompt has at most this many times the tokens of a fresh selection."""


@dataclass(frozen=True, slots=True, eq=False)
class KnownPrefix:
    """What a record supplies for a prompt. positions: int32 [K], kept of the record's prompt, in cache order. tokens:
    length of the record's prompt. common: C > 0, the number of leading tokens that both prompts share.
    """

    positions: Int32Array
    tokens: int
    common: int


@dataclass(frozen=True, slots=True, eq=False)
class Extended:
    """positions: int32 [K], in cache order; the last one is M - 1. reused: the number of leading positions that the
    record supplied. late: tokens of late units. compacted: a fresh selection reuses less.
    """

    positions: Int32Array
    reused: int
    late: int = 0
    compacted: bool = False


@dataclass(frozen=True, eq=False)
class Prompt:
    """The new prompt. importance: float32 [M]. fresh: int32 [F], the ascending positions of a fresh selection by
    `options`; the last one is M - 1.
    """

    importance: Float32Array
    fresh: Int32Array
    options: SelectionOptions
    layout: TextLayout

    @property
    def size(self) -> int:
        return int(self.importance.size)

    @cached_property
    def protected(self) -> npt.NDArray[np.bool_]:
        """The tokens that are always kept, bool [M]."""
        return self.layout.fixed(self.size, self.options.protect_last)

    @cached_property
    def spans(self) -> npt.NDArray[np.bool_]:
        """The tokens of protected spans, bool [M]."""
        return mask_of(self.layout.protected, self.size)

    @cached_property
    def question(self) -> int | None:
        """Where the first of `TextLayout.final_questions` begins. Late units stand before it."""
        return next((first for first, _ in self.layout.final_questions(~self.protected)), None)

    @cached_property
    def units(self) -> Units:
        return Units.of(self.size, self.options, self.layout)


def extend(prompt: Prompt, known: KnownPrefix) -> Extended:
    """The kept prompt: the record's longest prefix before position C, the earlier answer, late units, the new text."""
    lead = common_prefix(prompt.fresh, _held(prompt, known, known.common))
    fresh = Extended(prompt.fresh, min(lead, known.positions.size))
    common = min(known.common, prompt.size - 1)  # the prompt's last token is read last
    plan, new = _plan(prompt, known, common)
    if plan.late and prompt.question is not None and prompt.question < common:
        # Late units after the question are hardly used. A short question is read again after them.
        again, read = _plan(prompt, known, prompt.question)
        if read - new <= max(SHORT_TEXT, new):
            plan, new = again, read
    share = prompt.options.max_keep
    most = GROWTH * prompt.fresh.size if share is None else share * prompt.size
    too_long = prompt.fresh.size == prompt.size or plan.positions.size > most
    if too_long or prompt.fresh.size - lead < new or plan.reused <= fresh.reused:
        return replace(fresh, compacted=plan.reused > fresh.reused)
    return plan


def _plan(prompt: Prompt, known: KnownPrefix, common: int) -> tuple[Extended, int]:
    """The extension of what stands before position `common`, and the number of tokens that the target reads for it."""
    reused = known.positions[: _leading(known.positions < common)]
    answer = _answer_end(prompt, known, reused.size, common)
    standing, wanted = np.zeros((2, prompt.size), bool)
    standing[reused] = wanted[prompt.fresh] = True
    new = wanted.copy()
    new[:common] = False
    new[common:answer] = True
    if (~prompt.protected[answer:]).sum() <= SHORT_TEXT:
        new[answer:] = True
    late = _late(prompt, standing, wanted, common)
    ordered = np.flatnonzero(new)
    split = int(np.searchsorted(ordered, _place_of_late(prompt, answer, common)))
    parts = (reused, ordered[:split], _in_order(prompt, late), ordered[split:])
    positions = np.concatenate(parts).astype(np.int32)
    read = positions.size - common_prefix(positions, _held(prompt, known, common))
    return Extended(positions, int(reused.size), int(late.sum())), read


def _place_of_late(prompt: Prompt, answer: int, common: int) -> int:
    """The position before which late units stand: the question or, if it is unknown or stands already, the first
    droppable text after the answer, such as the result of a tool."""
    if prompt.question is not None and prompt.question >= common:
        return prompt.question
    text = np.flatnonzero(~prompt.spans[answer:-1])
    return answer + int(text[0]) if text.size else answer


def _late(
    prompt: Prompt, standing: npt.NDArray[np.bool_], wanted: npt.NDArray[np.bool_], common: int
) -> npt.NDArray[np.bool_]:
    """The tokens of the late units and of protected spans that do not stand yet, bool [M]; all before `common`."""
    units, sizes = prompt.units, prompt.units.sizes
    old = np.arange(prompt.size) < common
    late = prompt.protected & old & ~standing
    droppable = ~prompt.protected & old
    chosen, missing, stands = (units.having(droppable & mask) for mask in (wanted, wanted & ~standing, standing))
    if not missing.any():
        return late
    ranks = units.ranks(unit_means(prompt.importance, units.starts), units.having(~prompt.protected))
    falling = np.flatnonzero(chosen)
    falling = falling[np.argsort(-ranks[falling], kind="stable")]
    after = np.cumsum(sizes[falling])
    most = falling[(after - sizes[falling] < LATE_SHARE * after[-1]) | (after <= LATE_TOKENS)]
    important = np.zeros(sizes.size, bool)
    important[most] = True
    if prompt.layout.indents.size and units.are_text:
        important |= chosen & (ranks == ranks[most[-1]])  # nested with it
    added = missing & important
    wanting = after[-1] - sizes[stands | added].sum()
    further = falling[(missing & ~added)[falling]]
    added[further[np.cumsum(sizes[further]) - sizes[further] < wanting]] = True
    rated = units.having(mask_of(prompt.layout.rate_spans, prompt.size))
    worthy = (ranks >= np.median(ranks[units.starts < common])) | rated
    # A unit that a region with its own keep rate divides is wanted in part.
    return late | (units.each_token(added & worthy) & wanted & old & ~standing)


def _in_order(prompt: Prompt, late: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """The positions of the late tokens in the order in which they are read. Those whose label stands already come
    first, so that none is read under the label of another. late: bool [M]."""
    positions = np.flatnonzero(late)
    units, headings = prompt.units, prompt.layout.headings
    if not headings.size or not units.are_text:
        return positions
    named, is_label = headings != np.arange(headings.size), np.zeros(headings.size, bool)
    is_label[headings[named]] = True
    apart = named & ~units.having(late)[headings] & ~is_label
    return positions[np.argsort(~units.each_token(apart)[positions], kind="stable")]


def _answer_end(prompt: Prompt, known: KnownPrefix, reused: int, common: int) -> int:
    """Where the earlier answer ends, `common` if there is none. A chat's prompt ends where the answer begins, so the
    droppable tokens after the record's prompt are the answer. Raw text does not show where an answer ends.
    """
    if common != known.tokens or reused != known.positions.size:
        return common
    template = np.flatnonzero(prompt.spans[common:])
    return common + int(template[0]) if template.size else common


def _held(prompt: Prompt, known: KnownPrefix, common: int) -> Int32Array:
    """The positions that the target's cache can hold for this prompt, in cache order: the record and the answer."""
    reused = known.positions[: _leading(known.positions < common)]
    end = _answer_end(prompt, known, reused.size, common)
    return np.concatenate([reused, np.arange(common, end, dtype=np.int32)])


def _leading(mask: npt.NDArray[np.bool_]) -> int:
    """The number of leading true values."""
    return int(mask.size if mask.all() else np.argmin(mask))
