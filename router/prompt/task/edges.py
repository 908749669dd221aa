"""The speech of a long text: at its two ends, and the few blocks inside that ask something or are unlike the others."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice

import re2

from router.prompt.markers import CharSpan
from router.prompt.task.blocks import (
    BRIEF,
    SHORT_BLOCK,
    SHORT_TEXT,
    Block,
    block_of,
    blocks_of,
    paragraphs_of,
    sentences_at,
)
from router.prompt.task.words import LABELLED_LINES, MARKS, Sign, has_mark, is_labelled

EDGE = 4096
"""So many bytes of speech are looked for at each end of a long text."""
MAX_INSIDE = 4
"""A long text with more question marks asks something itself. Of more brief paragraphs, or lines with a task's label,
inside, none is the user's."""
SERIES = 3
"""A form of more questions than these is the text's own."""
_SPEAKER = re2.compile(r"[^\n:\x{ff1a}]{1,48}[:\x{ff1a}][\s\pZ]")
_QUOTES = '"\u201d\u2019\xbb\u300d'


def speech_of_long(text: str, ranges: Sequence[CharSpan]) -> list[Block]:
    """The blocks of a long text that are speech. ranges: of the text, in order and apart."""
    spans = [paragraph for part in ranges for paragraph in paragraphs_of(text, *part)]
    brief = min(BRIEF, sum(end - start for start, end in spans) // max(1, 2 * len(spans)))
    marks = (part[0] + mark.start() for part in ranges for mark in MARKS.finditer(text[slice(*part)]))
    first_marks = list(islice(marks, MAX_INSIDE + 1))
    asks = len(first_marks) > MAX_INSIDE
    blocks = {one.start: one for at_end in (False, True) for one in _edge(text, spans, brief, asks, at_end=at_end)}
    inside = [span for span in spans[1:-1] if span[1] - span[0] <= brief]
    inside = [] if len(inside) >= MAX_INSIDE else inside
    starts = [start for start, _ in spans]
    labels = (part[0] + label.end() for part in ranges for label in LABELLED_LINES.finditer(text[slice(*part)]))
    first_labels = list(islice(labels, MAX_INSIDE + 1))
    for mark in [*(() if asks else first_marks), *(() if len(first_labels) > MAX_INSIDE else first_labels)]:
        start, end = spans[bisect_right(starts, mark) - 1]
        if end - start > SHORT_BLOCK:  # the line of the mark
            stop = text.find("\n", mark, end)
            start, end = max(start, text.rfind("\n", start, mark)), end if stop < 0 else stop
        inside.append((start, end))
    for span in inside:
        block = block_of(text, *span, "inside", brief)
        if block.size <= SHORT_BLOCK and block.sign:
            blocks.setdefault(block.start, block)
    return _without_own(text, list(blocks.values()), spans)


def _edge(text: str, spans: Sequence[CharSpan], brief: int, asks: bool, *, at_end: bool) -> list[Block]:
    """The speech at one end: its first block, and those behind it with a sign, with at most one other between: once,
    and again only before one that asks, because brief and long blocks that alternate are headings with their text. Of a
    text that asks something itself, only up to the first that asks, and brief ones. spans: of its paragraphs."""
    taken, waiting, size, sign, bridged = list[Block](), list[Block](), 0, Sign.NONE, False
    for block in _blocks_from(text, spans, brief, at_end=at_end):
        size += block.size
        is_over = asks and sign >= Sign.PLAIN and block.size > (brief if sign >= Sign.LABEL else BRIEF)
        if is_over or not block.is_short or (taken and size > EDGE):
            break
        if not taken and block.is_list and block.size <= BRIEF:  # a question of choice
            block = block._replace(sign=max(block.sign, Sign.PLAIN))
        waiting.append(block)
        if not taken or block.asks or (block.sign and not (bridged and len(waiting) > 1)):
            bridged |= len(waiting) > 1
            taken += waiting
            waiting, sign = [], max(sign, block.sign)
        elif len(waiting) > 1:
            break
    return taken


def _blocks_from(text: str, spans: Sequence[CharSpan], brief: int, *, at_end: bool) -> Iterator[Block]:
    """The blocks of a text from one end on, up to a line that is too long to be one."""
    for start, end in reversed(spans) if at_end else spans:
        part = (max(start, end - 2 * EDGE), end) if at_end else (start, min(end, start + 2 * EDGE))
        blocks = blocks_of(text, *part, "edge", brief)
        for block in reversed(blocks) if at_end else blocks:
            if block.size > SHORT_BLOCK and not block.asks and "\n" not in text[slice(*block.span)]:
                yield from sentences_at(text, *block.span, at_end=at_end)
                return
            yield block


def _without_own(text: str, blocks: list[Block], spans: Sequence[CharSpan]) -> list[Block]:
    """The blocks; without their signs those of a form that recurs in the text, if the user's question has another."""
    forms = Counter(_form(text[start:end]) for start, end in spans) if any(one.asks for one in blocks) else {}

    def recurs(block: Block) -> bool:
        paragraph = spans[bisect_right(spans, (block.start, len(text))) - 1][0]
        line = max(paragraph, text.rfind("\n", paragraph, block.start) + 1)
        name = _SPEAKER.match(text[line : min(block.end, line + BRIEF)])
        form = _form(text[slice(*block.span)])
        return (bool(form) and forms.get(form, 0) > SERIES) or (name is not None and text.count(f"\n{name[0]}") > 1)

    own = {block for block in blocks if block.sign and recurs(block)}
    last = max(blocks, key=lambda block: block.end, default=None)
    if not any((one.asks or one is last) and one.sign and one not in own for one in blocks):
        return blocks
    return [one._replace(sign=Sign.NONE) if one in own else one for one in blocks]


def _form(part: str) -> str:
    """The form of a question of a text: in quotation marks, or the first line of a paragraph."""
    if len(part) > SHORT_TEXT:
        return ""
    *_, end = (0, *(mark.end() for mark in MARKS.finditer(part))) if has_mark(part) else (0,)
    if part[end : end + 1] in _QUOTES and end:
        return "quoted" if end < len(part) else ""
    return "headed" if end and part[end:].lstrip(" ")[:1] == "\n" and not is_labelled(part) else ""
