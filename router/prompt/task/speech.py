"""Speech and material: which parts of a user's turn address the assistant, and which are texts to read.

Clients put the task where they like: before the documents, after them, between two of them, before a reminder of their
own. So a turn is divided into regions (tags, fences, strings of JSON) and blocks (blank lines, rules, headings).
Material is what a tag or a fence encloses, if it is long, and the bulk of a long text. Speech is what is left: short
texts around the material, a client's rules, blocks that ask something, and the first and the last blocks of a long
text. A block that is taken for speech by mistake costs a few tokens, and a task that is dropped costs the answer. So a
block in doubt is speech.

Pure functions on a text and its character ranges.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import chain, pairwise
from typing import Any, NamedTuple

from router.prompt.markers import CharSpan
from router.prompt.task.blocks import SHORT_TEXT, Block, blocks_between, size_of
from router.prompt.task.edges import speech_of_long
from router.prompt.task.regions import divided
from router.prompt.task.words import PERSONA, RULES_FIRST, Sign

SHORT_REGION = 1024
"""Regions of one name are material if they have more bytes than this together."""
AROUND, AROUND_SHARE = 8192, 1 / 4
"""What stands around the regions is speech as a whole up to so many bytes, if it is at most this share of the turn."""
LONG_RULES = 9216
"""Tags around a task, and those around rules, are speech up to so many bytes together: 8 KiB and what a client writes
around them."""
SHORT_QUESTION = 256
"""Where the last block that asks is sure, another block at the edge of a long text is a task up to so many bytes. A
longer one is a part of the text, such as a turn of a meeting."""
MOST_TASKS = 8
"""Of more tasks, those with the least between them are one."""
EARLIER_TURNS = 64
"""So many turns before the last one are searched for the task."""


class Speech(NamedTuple):
    """Half-open character ranges, in the order of the text and apart.

    spans: all speech. tasks: the blocks of it that can be the task, at most MOST_TASKS. asks: one of them looks like a
    task. is_sure: one that does not stand at the edge of a long text, or that has a question mark or a label.
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
    """The speech of the last turn, and of those before it back to one that has the task. Of turns before that, only a
    client's rules, and the speech around long material: it had this speech too, so its windows stay as they are later.
    Where no turn asks anything, the tasks include those of the system. system: ranges of its texts, which are kept
    anyway."""
    spans: list[list[CharSpan]] = []
    tasks: list[CharSpan] = []
    asks = is_found = False
    for place, turn in enumerate(reversed(turns)):
        is_found |= place > EARLIER_TURNS
        is_short = sum(size_of(text, *part) for part in turn.parts) <= SHORT_TEXT
        if is_found and is_short and not any(_rules_at(text, part) for part in turn.parts):
            continue
        speech = find_speech(text, turn.parts)
        spans.append(speech.spans)
        if not is_found:
            tasks = _at_most([*speech.tasks, *tasks])
            is_found = not turn.after_tool and (speech.is_sure or (asks and speech.asks))
            asks |= speech.asks
    if not asks:
        orders = (block for part in system for block in blocks_between(text, *part, "around") if block.asks)
        tasks = [*(one.span for one in orders if not PERSONA.fullmatch(text[slice(*one.span)])), *tasks]
    return Speech([*chain.from_iterable(reversed(spans))], _at_most(tasks), asks)


def find_speech(text: str, parts: Sequence[CharSpan], *, raw: bool = False) -> Speech:
    """The speech of one turn. parts: as in Turn. raw: of a raw prompt, of which only what asks is speech: nothing says
    where it addresses the assistant."""
    spans, blocks = _sources(text, parts, raw=raw)
    if raw:
        blocks = [block for block in blocks if block.asks]
    tasks = _tasks(blocks)
    whole = merged([*spans, *(one.span for one in blocks if raw or one.source in ("edge", "inside"))])
    blank = [(last, start) for (_, last), (start, _) in pairwise(whole) if not text[last:start].strip()]
    is_sure = any(task.asks and (task.source != "edge" or task.is_sure) for task in tasks)
    apart = merged([task.span for task in tasks], gap=0)
    return Speech(merged([*whole, *blank]), _at_most(apart), any(task.asks for task in tasks), is_sure)


OUTER, ALL = ("tag", "around", "edge"), ("tag", "around", "edge", "inside")
ROWS = (
    (OUTER, Sign.LABEL, Sign.VERB),
    (ALL, Sign.VERB, Sign.PLAIN),
    (ALL, Sign.PLAIN, Sign.PLAIN),
    (OUTER, Sign.PLACE, Sign.PLACE),
)
"""Where the task is looked for, in this order: the sources of blocks, the weakest sign that decides, and the weakest
sign of the blocks that are tasks then."""


def _tasks(blocks: Sequence[Block]) -> list[Block]:
    """The blocks that are the task."""
    last = max((one for one in blocks if one.asks), key=lambda block: block.end, default=None)
    if last is not None and last.is_sure:  # other questions at the edges belong to the text, unless they are short
        blocks = [one for one in blocks if one is last or one.source != "edge" or one.size <= SHORT_QUESTION]
    for sources, deciding, weakest in ROWS:
        tasks = [one for one in blocks if one.source in sources and one.sign >= weakest]
        if any(one.sign >= deciding for one in tasks):
            return tasks
    return []


def _sources(text: str, parts: Sequence[CharSpan], *, raw: bool) -> tuple[list[CharSpan], list[Block]]:
    """What of a turn is speech around its long texts, and the blocks that can be speech or the task."""
    total = sum(size_of(text, *part) for part in parts)
    ranges = divided(text, parts, LONG_RULES) if total > SHORT_TEXT else [(part, None) for part in parts]
    sizes = Counter[str]()
    for span, region in ranges:
        sizes[region.name if region else ""] += size_of(text, *span)
    files = [part for part in parts if (rules := _rules_at(text, part)) and rules[1] and not raw]
    spans = [part for part in files if size_of(text, *part) <= LONG_RULES]
    around: list[CharSpan] = []
    blocks: list[Block] = []
    kept = Counter[str]()
    for span, region in ranges:
        size = size_of(text, *span)
        if region is None:
            if size > SHORT_TEXT and sizes[""] > AROUND_SHARE * total:
                blocks += speech_of_long(text, [span])
            else:
                around.append(span)
        elif kept[region.kind] + size <= LONG_RULES if region.kind else sizes[region.name] <= SHORT_REGION:
            spans.append(span)
            kept[region.kind] += size
            if region.kind == "task":
                inner = blocks_between(text, *region.inner, "tag")
                blocks += [one._replace(sign=max(one.sign, Sign.VERB)) for one in inner]
    size = sum(size_of(text, *span) for span in around)
    if total > SHORT_TEXT and (raw or size > AROUND or size > max(2 * SHORT_TEXT, AROUND_SHARE * total)):
        return spans, [*blocks, *speech_of_long(text, around)]  # many short texts are one long text
    blocks += [one for span in around for one in blocks_between(text, *span, "around")]
    return spans if raw else [*spans, *around], blocks


def _rules_at(text: str, part: CharSpan) -> Any:
    """How a part begins like a client's copy of rules; None if it does not."""
    return RULES_FIRST.match(text[part[0] : min(part[1], part[0] + SHORT_QUESTION)])


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
