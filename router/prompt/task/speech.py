"""Speech and material: which parts of a user's turn address the assistant, and which are texts to read.

Clients put the task where they like: before the documents, after them, between two of them, before a reminder of their
own. So a turn is divided into regions (tags, fences, strings of JSON) and blocks (blank lines, rules, headings).
Material is what a tag or a fence encloses, if it is long, and the bulk of a long text. Speech is what is left: short
texts around the material, blocks that ask something, and the first and the last blocks of a long text. A block that is
taken for speech by mistake costs a few tokens. A task that is dropped costs the answer. So a block in doubt is speech.

Pure functions on a text and its character ranges.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain, pairwise
from typing import NamedTuple

from router.prompt.markers import CharSpan
from router.prompt.task.blocks import (
    SHORT_TEXT,
    Block,
    asking_part,
    blocks_of,
    can_be_task,
    size_of,
)
from router.prompt.task.edges import speech_of_long
from router.prompt.task.own_questions import own_questions
from router.prompt.task.regions import Region, envelope, regions_of
from router.prompt.task.words import PERSONA, RULES_NAME, TASK_NAME, asks, asks_surely, has_mark, is_labelled

SHORT_REGION = 1024
"""Regions of one name are material if they have more bytes than this together."""
LONG_TASK = 8192
"""A region with the name of a task or of rules is speech up to this length."""
AROUND, AROUND_SHARE = 8192, 1 / 4
"""What stands around the regions is speech as a whole up to so many bytes, if it is at most this share of the turn."""
SHORT_QUESTION = 256
"""Where the last block surely asks, another block at the edge of a long text is a task up to so many bytes, if no
speaker says it. Others are a part of the text, such as a turn of a meeting."""
MOST_TASKS = 8
"""Of more tasks, those with the least between them are one."""
MOST_ENVELOPES = 4
"""So many envelopes inside each other are opened."""
EARLIER_TURNS = 64
"""So many turns before the last one are searched for the task."""


class Speech(NamedTuple):
    """Half-open character ranges, in the order of the text and apart.

    spans: all speech. tasks: the blocks of it that can be the task, at most MOST_TASKS. asks: one of them looks like a
    task. is_sure: one that does not stand at the edge of a long text, or that has a question mark.
    """

    spans: list[CharSpan]
    tasks: list[CharSpan]
    asks: bool = False
    is_sure: bool = False


class Turn(NamedTuple):
    """A user's turn. parts: the ranges of its content parts, in order and apart. after_tool: it follows a tool's result
    directly, so it may be a note of the client, and the task stands before."""

    parts: Sequence[CharSpan]
    after_tool: bool = False


def speech_of_turns(text: str, turns: Sequence[Turn], system: Sequence[CharSpan] = ()) -> Speech:
    """The speech of the last turn, and of those before it back to one that has the task. Of turns before that, only the
    speech around long material: it had this speech too, so its windows stay as they are in later turns. Where no turn
    asks anything, the tasks include those of the system. system: ranges of its texts, which are kept anyway."""
    spans: list[list[CharSpan]] = []
    tasks: list[CharSpan] = []
    asks = is_found = False
    for place, turn in enumerate(reversed(turns)):
        is_found |= place > EARLIER_TURNS
        if is_found and sum(size_of(text, *part) for part in turn.parts) <= SHORT_TEXT:
            continue
        found = find_speech(text, turn.parts)
        spans.append(found.spans)
        if not is_found:
            tasks = _at_most([*found.tasks, *tasks])
            is_found = not turn.after_tool and (found.is_sure or (asks and found.asks))
            asks |= found.asks
    if not asks:
        orders = [block for part in system for block in blocks_of(text, *part) if block.asks]
        tasks = [*((one.start, one.end) for one in orders if not PERSONA.fullmatch(text[one.start : one.end])), *tasks]
    return Speech([*chain.from_iterable(reversed(spans))], _at_most(tasks), asks)


def find_speech(text: str, parts: Sequence[CharSpan], *, raw: bool = False) -> Speech:
    """The speech of one turn. parts: as in Turn. raw: of a raw prompt, of which only what asks is speech: nothing says
    where it addresses the assistant."""
    total = sum(size_of(text, *part) for part in parts)
    if total <= SHORT_TEXT:
        blocks = [block for part in parts for block in blocks_of(text, *part)]
        asked = [(block.start, block.end) for block in blocks if block.asks]
        return _speech(text, asked if raw else [*parts], [] if raw else blocks, blocks)
    found = [(part, region) for whole in parts for part, region in _divided(text, whole)]
    sizes = Counter[str]()
    for part, region in found:
        sizes[region.name if region else ""] += size_of(text, *part)
    spans: list[CharSpan] = []
    named: list[Block] = []
    for span, region in found:
        if region is not None and sizes[region.name] <= _most(region.name):
            spans.append(span)
            if TASK_NAME.fullmatch(region.name):
                named += (replace(block, asks=True) for block in blocks_of(text, *region.inner))
    around: list[CharSpan] = []
    texts: list[list[CharSpan]] = []
    size = 0
    for span, region in found:
        if region is not None:
            continue
        own = size_of(text, *span)
        if own <= SHORT_TEXT or sizes[""] <= AROUND_SHARE * total:
            around.append(span)
            size += own
        else:
            texts.append([span])
    if raw or size > AROUND or size > max(2 * SHORT_TEXT, AROUND_SHARE * total):  # many short texts are one long text
        texts, around = [*texts, around], []
    spans += around
    short = [block for span in around for block in blocks_of(text, *span)]
    known = any(has_mark(text, block.start, block.end) for block in [*named, *short])
    edges = [block for ranges in texts for block in speech_of_long(text, ranges, asked=known)]
    tasks, at_edge = edges, [block for block in edges if block.at_edge]
    for some in ([block for block in at_edge if not block.is_piece], at_edge):
        if any(asks_surely(text, block.start, block.end) for block in [*named, *short, *some]):
            tasks = some  # other questions belong to the text then
            break
    last = max([*named, *short, *edges], key=lambda block: block.end, default=None)
    odd = [one for one in edges if one.is_brief and not one.at_edge and asks_surely(text, one.start, one.end)]
    if odd and not known:  # what asks at the edges may be the text's own, such as its first and last entry of many
        sure = {one for one in at_edge if asks_surely(text, one.start, one.end)}
        if sure <= {*own_questions(text, parts, at_edge, odd[-1])}:
            tasks, last = odd, odd[-1]
    if last is not None and (last.asks or last.is_brief):
        said = own_questions(text, parts, tasks, last)
        tasks = [one for one in tasks if one not in said]
        if asks_surely(text, last.start, last.end):
            tasks = [one for one in tasks if one is last or one.size <= SHORT_QUESTION]
    spans += [(block.start, block.end) for block in edges if block.asks or not raw]
    brief = [block for block in edges if block.is_brief]
    return _speech(text, spans, named or [*short, *brief], [*named, *short, *tasks])


def _divided(text: str, part: CharSpan) -> list[tuple[CharSpan, Region | None]]:
    """The ranges of a part, in order, each with the region that it is. An envelope is opened, unless a task is around
    it: a tag or a fence around the whole prompt."""
    ranges: list[tuple[CharSpan, Region | None]] = []
    regions: list[Region] = []
    for _ in range(MOST_ENVELOPES):
        regions = regions_of(text, part)
        gaps = _gaps(part, regions)
        ranges += [(gap, None) for gap in gaps]
        around = envelope(part, regions)
        if around is None or any(block.asks for gap in gaps for block in blocks_of(text, *gap)):
            break
        part = around.inner
    ranges += [((region.start, region.end), region) for region in regions]
    return sorted((found for found in ranges if text[slice(*found[0])].strip()), key=lambda found: found[0])


def _gaps(part: CharSpan, regions: Sequence[Region]) -> list[CharSpan]:
    """What stands before, between and after the regions of a part."""
    starts = [part[0], *(region.end for region in regions)]
    ends = [*(region.start for region in regions), part[1]]
    return [(start, end) for start, end in zip(starts, ends, strict=True) if start < end]


def _most(name: str) -> int:
    """The most bytes that regions of this name have together, if they are speech."""
    return LONG_TASK if TASK_NAME.fullmatch(name) or RULES_NAME.fullmatch(name) else SHORT_REGION


def _speech(text: str, spans: list[CharSpan], preferred: Sequence[Block], blocks: Sequence[Block]) -> Speech:
    """blocks: of all speech, in any order. preferred: those among which a task is looked for that asks nothing. Of the
    edges of a long text, those that are brief: others may belong to it."""
    tasks = [block for block in blocks if block.asks]
    found = bool(tasks)
    last = max((block.end for block in blocks), default=0)
    sure = any(
        not block.at_edge
        or has_mark(text, block.start, block.end)
        or (block.end == last and is_labelled(text, block.start, block.end))
        for block in tasks
    )
    if not sure:
        saying = [block for block in preferred if can_be_task(text, block.start, block.end)]
        few = [one for one in saying if one.is_brief and (not one.is_piece or asks(text, one.start, one.end))]
        tasks += few if tasks else [*saying[:1], *saying[1:][-2:]]
    apart = merged([asking_part(text, block) for block in tasks], gap=0)
    whole = merged(spans)
    blank = [(end, start) for (_, end), (start, _) in pairwise(whole) if not text[end:start].strip()]
    return Speech(merged([*whole, *blank]), _at_most(apart), found, sure)


def _at_most(tasks: list[CharSpan]) -> list[CharSpan]:
    """MOST_TASKS of the tasks, of which some are joined."""
    gaps = sorted(range(1, len(tasks)), key=lambda at: tasks[at - 1][1] - tasks[at][0])[: MOST_TASKS - 1]
    edges = [0, *sorted(gaps), len(tasks)]
    return [(tasks[first][0], tasks[last - 1][1]) for first, last in pairwise(edges) if first < last]


def merged(spans: Sequence[CharSpan], gap: int = 1) -> list[CharSpan]:
    """The spans in order; those with fewer than `gap` characters between them, and those that overlap, are one."""
    result: list[CharSpan] = []
    for start, end in sorted(spans):
        if result and start < result[-1][1] + gap:
            result[-1] = (result[-1][0], max(end, result[-1][1]))
        elif start < end:
            result.append((start, end))
    return result
