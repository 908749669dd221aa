"""The speech of a long text: at its two ends, and the few blocks inside that ask something.

Pure functions on a text and character ranges.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import re2

from router.prompt.markers import CharSpan
from router.prompt.task.blocks import (
    BRIEF,
    SHORT_BLOCK,
    SHORT_TEXT,
    STOPS,
    Block,
    blocks_of,
    can_be_task,
    first_clause_end,
    first_line_end,
    is_item,
    says_something,
    sentence_ends,
    size_of,
    trimmed,
)
from router.prompt.task.options import options_of
from router.prompt.task.words import asks, asks_surely, has_mark, marks_of

EDGE = 4096
"""So many bytes of speech are looked for at each end of a long text."""
SEARCHED = 3
"""So many blocks are taken at the end of a long text while none of them asks anything."""
EDGE_LINES = 16
"""So many lines of a long paragraph are searched at each end."""
LINES = 2
"""So many lines of a paragraph are taken before its question."""
GAP = 1
"""So many blocks that ask nothing may stand between two that do, and both are speech."""
ANNOUNCED = 4
"""So many may stand before a line that announces the material, such as "Context:"."""
SERIES = 3
"""So many headings that differ by numbers alone, such as "Passage 7", are those of the material."""
MOST_ANNOUNCED = 8
"""A text with more blocks that begin with a label, such as a heading, has them of its own."""
MOST_ASKED = 4
"""A long text with more blocks that look like a task is a dialogue: those inside it belong to it."""
CHOICES = 2
"""So many blocks of a dialogue, or of an exam, may have the question of choice and its options."""
FEW_BRIEF = 3
"""A long text with so few brief blocks has them wherever they stand."""
LONGEST_HEADING, LONGEST_LABEL = 128, 80
"""Characters."""
_HEADINGS = tuple("#" * level + " " for level in range(1, 7))
SPEAKER = re2.compile(r"([^\n:\x{ff1a}]{1,48}[:\x{ff1a}])[\s\pZ]")
_LONGEST_SPEAKER = 50
"""Characters, with what follows the name."""


def speech_of_long(text: str, ranges: Sequence[CharSpan], *, asked: bool = False) -> list[Block]:
    """The blocks of a long text that are speech, each once: at both ends, and inside if few ask anything. ranges: of
    the text, in order and apart. asked: a question stands outside of it."""
    divided = _compared(text, [block for span in ranges for block in blocks_of(text, *span)])
    if not divided:
        return []
    asking = [block for block in divided[1:-1] if block.asks and block.size <= SHORT_BLOCK]
    inside = [block for block in asking if asks_surely(text, block.start, block.end)]
    for block in divided:
        if block.size > SHORT_TEXT and len(inside) <= MOST_ASKED:
            inside += _questions_in(text, block)
    later = divided[0].start + EDGE
    of_text = sum(block.start > later for block in inside), sum(block.start > later for block in asking)
    is_dialogue = max(len(inside), of_text[1]) > 2 * MOST_ASKED or of_text[0] > MOST_ASKED
    is_dialogue |= 2 * sum(block.size for block in asking) > sum(block.size for block in divided)
    edges = [*_beginning(text, divided, alone=is_dialogue)]
    asked |= any(has_mark(text, block.start, block.end) for block in edges)
    asked |= any(block.asks and block.is_brief for block in [*edges[:1], *asking[:MOST_ASKED]])
    edges += _ending(text, divided, alone=is_dialogue, found=asked)
    edges = [replace(block, at_edge=True) for block in edges]
    if len(inside) > MOST_ASKED:
        inside = []
    brief = [block for block in divided if block.is_brief]
    inside += brief if len(brief) <= FEW_BRIEF else []
    found = {(block.start, block.end): block for block in inside}
    return [*(found | {(block.start, block.end): block for block in edges}).values()]


def _compared(text: str, blocks: list[Block]) -> list[Block]:
    """The blocks of a long text, of which some are brief or ruled. Usual is the size of the blocks with half of it.
    Where speakers begin most blocks, those without one are brief."""
    left, usual = sum(block.size for block in blocks) / 2, 0
    for usual in sorted(block.size for block in blocks):
        left -= usual
        if left <= 0:
            break
    speaks = [bool(speaker_of(text, block.start, block.end)) for block in blocks]
    by_speakers = 2 * sum(speaks) > len(blocks) > 2 * MOST_ASKED
    ruled = [_is_rule(text[block.start : first_line_end(text, block)].strip()) for block in blocks]
    few, brief = sum(ruled) <= MOST_ASKED, min(BRIEF, usual / 2)
    found = blocks.copy()
    for number, block in enumerate(blocks):
        is_brief = block.is_short and not speaks[number] if by_speakers else block.size <= brief
        if is_brief or (few and ruled[number]):
            found[number] = replace(block, is_brief=is_brief, is_ruled=few and ruled[number])
    return found


def _beginning(text: str, blocks: Sequence[Block], *, alone: bool) -> Iterator[Block]:
    """The speech at the beginning of a long text. alone: only its first block."""
    first, size, before = blocks[0], 0, blocks[0]
    if not first.is_short:
        yield from _edge_of(text, first, at_end=False)
        return
    yield first
    waiting: list[Block] = []
    series = Counter(_without_numbers(text, block) for block in blocks)
    labelled = sum(_announces(text, block) for block in blocks) <= MOST_ANNOUNCED

    def names(block: Block) -> bool:
        return labelled and series[_without_numbers(text, block)] < SERIES

    for block in () if alone else blocks[1:-1]:
        size += before.size
        announces = _announces(text, block) and names(block)
        if announces and len(waiting) <= ANNOUNCED:
            yield from waiting
            waiting = []
        if block.is_ruled:
            yield from waiting
            waiting = []
        if size + block.size > EDGE or not block.is_short:
            return
        waiting.append(block)
        follows = block.asks or announces or (block.is_list and before.asks)
        follows |= _is_heading(text, before) and names(before)
        if (follows and len(waiting) <= GAP + 1) or (block.is_brief and len(waiting) == 1):
            yield from waiting
            waiting = []
        before = block


def _ending(text: str, blocks: Sequence[Block], *, alone: bool, found: bool) -> Iterator[Block]:
    """The speech at the end of a long text, from its last block on backwards. alone: only up to one that asks. found:
    a question is known."""
    last, after, size = blocks[-1], blocks[-1], 0
    if not last.is_short and not last.asks:  # a longer block than SHORT_TEXT does not count as one that asks
        yield from _edge_of(text, last, at_end=True)
        return
    waiting: list[Block] = []
    asked, chooses, choices = False, False, 0
    found |= last.is_brief and says_something(text, last.start, last.end)
    for number, block in enumerate(reversed(blocks[1:] or blocks)):
        with_choice = chooses  # the options stand after this block, so the question is in it
        chooses = bool(options_of(text, block.start, block.end))
        of_choice = (chooses or with_choice) and not (alone and choices >= CHOICES)
        choices += of_choice
        if after.goes_on and not block.asks and not of_choice:  # what the paragraph says before its question
            yield from _last_lines(text, block)
            return
        size += block.size
        ends = alone and asked and not of_choice and not block.is_brief
        if block is not last and (size > EDGE or not block.is_short or ends):
            return
        waiting.append(block)
        searching = number < SEARCHED
        brief = block.is_brief and len(waiting) == 1
        if block is last or (searching and not found) or block.asks or of_choice or brief or block.is_ruled:
            yield from waiting
            waiting = []
        elif len(waiting) > (SEARCHED if searching else GAP):
            return
        found, asked, after = found or block.asks, asked or block.asks, block


def _last_lines(text: str, block: Block) -> Iterator[Block]:
    """The last LINES lines of a block; nothing if they are long."""
    start = block.end
    for _ in range(LINES):
        start = max(block.start, text.rfind("\n", block.start, start))
    if (found := trimmed(text, start, block.end)) is not None and found.size <= SHORT_BLOCK:
        yield found


def _edge_of(text: str, block: Block, *, at_end: bool) -> Iterator[Block]:
    """Of a long block: the first or last lines if they are short, else its first or last sentences, if they ask or if
    no full stop ends them."""
    lines = _lines_of(text, block, at_end=at_end)
    if len(lines) > 1 and lines[0].size <= SHORT_BLOCK:
        for line in _edge_lines(text, lines, at_end=at_end):
            is_request = not line.asks and asks(text, line.start, line.end)
            yield replace(line, is_piece=True, is_brief=is_request)
        return
    first = max(block.start, block.end - SHORT_BLOCK) if at_end else block.start
    last = block.end if at_end else min(block.end, block.start + SHORT_BLOCK)
    clause = block.start if at_end else first_clause_end(text, block.start, last)
    if not can_be_task(text, block.start, clause):
        clause = block.start
    ends = [end for end in sentence_ends(text, max(first, clause), last) if end < last]
    if at_end:
        borders = [*(ends[-2:] or [max(first, block.end - BRIEF)]), block.end]
    else:
        borders = [block.start, *[clause] * (clause > block.start), *(ends[:2] or [min(last, clause + BRIEF)])]
    for start, end in pairwise(borders):
        if (piece := trimmed(text, start, end)) is None:
            continue
        at_edge = end == block.end if at_end else start == block.start
        is_open = end == clause or (at_end and at_edge and start in ends and text[end - 1] not in STOPS)
        if piece.asks or (is_open and piece.size <= BRIEF) or (at_edge and asks(text, start, end)):
            yield replace(piece, is_piece=True, is_brief=not piece.asks)


def _lines_of(text: str, block: Block, *, at_end: bool) -> list[Block]:
    """The first or the last EDGE_LINES lines of a block, from its edge on."""
    found: list[Block] = []
    place = block.end if at_end else block.start
    while len(found) < EDGE_LINES and block.start <= place < block.end + at_end:
        line = text.rfind("\n", block.start, place) if at_end else text.find("\n", place, block.end)
        edge = (max(line, block.start), place) if at_end else (place, line if line >= 0 else block.end)
        found += filter(None, [trimmed(text, *edge)])
        if line < 0:
            break
        place = line if at_end else line + 1
    return found


def _edge_lines(text: str, lines: Sequence[Block], *, at_end: bool) -> Iterator[Block]:
    """The lines that are speech: the first, those that ask something with what is between them, and a list under a
    label. At the end, some are searched for one that asks. lines: by `_lines_of`."""
    waiting: list[Block] = []
    found = in_list = False
    plain = 0  # lines that wait and are no items
    for number, line in enumerate(lines):
        in_item = is_item(text, line.start, line.end)
        if in_list and not in_item:
            yield from waiting
            waiting, plain = [], 0
        if line.size > SHORT_BLOCK:
            return
        announces = not at_end and _announces(text, line)
        in_list = announces or (in_list and in_item)
        waiting.append(line)
        plain += not in_item
        if number == 0 or announces or (line.asks and (at_end or plain <= GAP + 1)):
            yield from waiting
            waiting, plain, found = [], 0, found or line.asks
        elif plain > (ANNOUNCED if not at_end else GAP if found else SEARCHED):
            return


def _questions_in(text: str, block: Block) -> list[Block]:
    """The sentences of a long block that end with a question mark, at most MOST_ASKED + 1."""
    found: list[Block] = []
    place = start = block.start  # of what is searched for the end of a sentence, and of the sentence
    for mark, end in marks_of(text, block.start, block.end):
        near = mark - SHORT_BLOCK // 2
        start = [start, *sentence_ends(text, max(place, near), mark)][-1]
        place = mark
        if start >= near:
            found.append(Block(start, end, size_of(text, start, end), True, is_piece=True))
            start = end
        if len(found) > MOST_ASKED:
            break
    return found


def _is_heading(text: str, block: Block) -> bool:
    return _is_label(text, block.start, block.end)


def _announces(text: str, block: Block) -> bool:
    """Whether the first line of a block is a label and nothing else."""
    return _is_label(text, block.start, first_line_end(text, block))


def _is_label(text: str, start: int, end: int) -> bool:
    """Whether a line only announces what follows it."""
    line = text[start:end]
    title = line.lstrip("#").lstrip(" \t")
    is_heading = line.startswith(_HEADINGS) and len(title) < LONGEST_HEADING
    return "\n" not in line and (is_heading or (line.endswith((":", "\uff1a")) and 1 < len(title) <= LONGEST_LABEL))


def _is_rule(line: str) -> bool:
    return len(line) > 2 and line[0] in "-=*_#~+" and line == line[0] * len(line)


def speaker_of(text: str, start: int, end: int) -> str:
    """The name that begins a line, with its colon; empty without one."""
    part = text[start : min(end, start + _LONGEST_SPEAKER)]
    match = SPEAKER.match(part) if ":" in part or "\uff1a" in part else None
    return match[1] if match else ""


def _without_numbers(text: str, block: Block) -> str:
    """The first line of a block, or its beginning, without its digits."""
    end = min(first_line_end(text, block), block.start + LONGEST_HEADING)
    return "".join(letter for letter in text[block.start : end] if not letter.isdecimal())
