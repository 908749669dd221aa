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
from router.prompt.task.blocks import SHORT_TEXT, Block, Sign, asking_part, blocks_of, size_of
from router.prompt.task.edges import speech_of_long
from router.prompt.task.regions import Region, envelope, regions_of
from router.prompt.task.words import PERSONA, RULES_NAME, TASK_NAME, asks, can_be_task

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
    if sum(size_of(text, *part) for part in parts) <= SHORT_TEXT:
        blocks = [block for part in parts for block in blocks_of(text, *part, "around")]
        spans = [(block.start, block.end) for block in blocks if block.asks] if raw else [*parts]
        return _speech(text, spans, blocks, _tasks(text, blocks, fallback=not raw))
    spans, blocks, texts = _sources(text, parts, raw=raw)
    known = any(block.sign == Sign.MARK for block in blocks)
    edges = [block for ranges in texts for block in speech_of_long(text, ranges, asked=known)]
    spans += [(block.start, block.end) for block in edges if block.asks or not raw]
    return _speech(text, spans, [*blocks, *edges], _tasks(text, _without_own([*blocks, *edges])))


def _sources(
    text: str, parts: Sequence[CharSpan], *, raw: bool
) -> tuple[list[CharSpan], list[Block], list[list[CharSpan]]]:
    """The speech of a turn around its long texts, its blocks that can be the task, and the ranges of each text."""
    total = sum(size_of(text, *part) for part in parts)
    found = [(part, region) for whole in parts for part, region in _divided(text, whole)]
    sizes = Counter[str]()
    for part, region in found:
        sizes[region.name if region else ""] += size_of(text, *part)
    spans: list[CharSpan] = []
    around: list[CharSpan] = []
    blocks: list[Block] = []
    texts: list[list[CharSpan]] = []
    for span, region in found:
        if region is None:
            is_short = size_of(text, *span) <= SHORT_TEXT or sizes[""] <= AROUND_SHARE * total
            around, texts = ([*around, span], texts) if is_short else (around, [*texts, [span]])
        elif sizes[region.name] <= _most(region.name):
            spans.append(span)
            if TASK_NAME.fullmatch(region.name):
                blocks += (_asking(block) for block in blocks_of(text, *region.inner, "tag"))
    size = sum(size_of(text, *span) for span in around)
    if raw or size > AROUND or size > max(2 * SHORT_TEXT, AROUND_SHARE * total):  # many short texts are one long text
        return spans, blocks, [*texts, around]
    return [*spans, *around], [*blocks, *(one for span in around for one in blocks_of(text, *span, "around"))], texts


def _asking(block: Block) -> Block:
    return replace(block, sign=max(block.sign, Sign.VERB))


def _without_own(blocks: Sequence[Block]) -> list[Block]:
    """The blocks without the text's own questions at its edges: those of a form that recurs in the text and that the
    user's question does not have."""
    last = max(blocks, key=lambda block: block.end, default=None)
    users = [block for block in blocks if block.is_sure and (block.source != "inside" or block.is_brief)]
    users += [last] if last is not None and (last.asks or last.is_brief) else []
    users_forms = frozenset.intersection(*(one.forms for one in users)) if users else None
    return [block for block in blocks if users_forms is None or block.forms <= users_forms]


OUTER = ("tag", "around", "edge")
ROWS = ((OUTER, Sign.LABEL), ((*OUTER, "inside"), Sign.VERB))
"""Where the task is looked for, in this order: the sources of blocks, and the weakest sign that decides. All blocks of
the sources that ask something are tasks then."""


def _tasks(text: str, blocks: Sequence[Block], *, fallback: bool = True) -> list[Block]:
    """The blocks that are the task. fallback: where none asks for certain, some others are."""
    found: list[Block] = []
    for sources, sign in ROWS:
        found = [one for one in blocks if one.source in sources and one.asks]
        if any(one.sign >= sign for one in found):
            break
    end = max((one.end for one in blocks), default=0)
    last = max(found, key=lambda block: block.end, default=None)
    if last is not None and last.is_sure:  # other questions at the edges belong to the text, unless they are short
        found = [one for one in found if one is last or one.source != "edge" or one.size <= SHORT_QUESTION]
    if fallback and not any(_is_certain(one, end) for one in found):
        plain = [one for one in blocks if one.source != "edge" or one.is_brief]
        plain = [one for one in plain if can_be_task(text, one.start, one.end)]
        brief = [one for one in plain if one.is_brief and (not one.is_piece or asks(text, one.start, one.end))]
        found += brief if found else [*plain[:1], *plain[1:][-2:]]
    return found


def _is_certain(task: Block, end: int) -> bool:
    """Whether a task cannot be a part of a long text. end: of all blocks."""
    return task.source != "edge" or task.sign == Sign.MARK or (task.sign == Sign.LABEL and task.end == end)


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


def _speech(text: str, spans: list[CharSpan], blocks: Sequence[Block], tasks: Sequence[Block]) -> Speech:
    end = max((block.end for block in blocks), default=0)
    apart = merged([asking_part(text, block) for block in tasks], gap=0)
    whole = merged(spans)
    blank = [(last, start) for (_, last), (start, _) in pairwise(whole) if not text[last:start].strip()]
    asks_something = any(block.asks for block in tasks)
    certain = any(block.asks and _is_certain(block, end) for block in tasks)
    return Speech(merged([*whole, *blank]), _at_most(apart), asks_something, certain)


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
