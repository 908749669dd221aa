"""The speech of a long text: at its two ends, and the few blocks inside that ask something or are unlike the others.

Pure functions on a text and character ranges.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

import re2

from router.prompt.markers import CharSpan
from router.prompt.task.blocks import (
    BRIEF,
    SHORT_BLOCK,
    SHORT_TEXT,
    Block,
    asking_lines,
    blocks_of,
    first_line_end,
    pieces_of,
    usual_size,
)
from router.prompt.task.words import MARK, has_mark, is_labelled, marks_of, options_of, says_something

EDGE = 4096
"""So many bytes of speech are looked for at each end of a long text."""
SEARCHED = 3
"""So many blocks are taken at the end of a long text while none of them asks anything."""
GAP, ANNOUNCED = 1, 4
"""So many blocks that ask nothing may stand before one that asks, or before a line that announces the material, such as
"Context:"; all of them are speech then."""
PARAGRAPH_LINES = 2
"""So many lines of a paragraph are taken before its question."""
SERIES = 3
"""What has so many others of its form in the text belongs to the text, such as "Passage 7:"."""
MAX_LABELS = 8
"""A text with more blocks that begin with a label has them of its own."""
MAX_ASKING = 4
"""A long text with more blocks inside that ask something is a dialogue: they belong to it."""
MAX_CHOICES = 2
"""So many blocks of a dialogue, or of an exam, may have the question of choice and its options."""
MAX_BRIEF = 3
"""A long text with so few brief blocks has them wherever they stand."""
MAX_LINES = 1024
"""Lines that are searched for the names of speakers."""
HEADING_CHARS, LABEL_CHARS, SPEAKER_CHARS = 128, 80, 50
_HEADINGS = tuple("#" * level + " " for level in range(1, 7))
_SPEAKER = r"([^\n:\x{ff1a}]{1,48}[:\x{ff1a}])[\s\pZ]"
_NAME, _NAMES = re2.compile(_SPEAKER), re2.compile(rf"(?m)^{_SPEAKER}")
_QUOTED = re2.compile(rf"{MARK}[\"\x{{201d}}\x{{2019}}\xbb\x{{300d}}]")


def speech_of_long(text: str, ranges: Sequence[CharSpan], *, asked: bool = False) -> list[Block]:
    """The blocks of a long text that are speech, each once. ranges: of the text, in order and apart. asked: a question
    stands outside of it. A block has the source `edge` or `inside`, and the forms that recur in the text."""
    form = Forms(text, ranges)
    blocks = [block for span in ranges for block in blocks_of(text, *span, "edge")]
    if not blocks:
        return []
    brief_size = min(BRIEF, usual_size(blocks) / 2)
    blocks = [block if block.size > brief_size else replace(block, is_brief=True) for block in blocks]
    asking = [block for block in blocks[1:-1] if block.asks and block.size <= SHORT_BLOCK]
    inside = [block for block in asking if block.is_sure]
    for block in blocks:
        if block.size > SHORT_TEXT and len(inside) <= MAX_ASKING:
            inside += asking_lines(text, block, MAX_ASKING + 1)
    later = blocks[0].start + EDGE
    of_text = sum(block.start > later for block in inside), sum(block.start > later for block in asking)
    is_dialogue = max(len(inside), of_text[1]) > 2 * MAX_ASKING or of_text[0] > MAX_ASKING
    is_dialogue |= 2 * sum(block.size for block in asking) > sum(block.size for block in blocks)
    edges = _beginning(text, blocks, alone=is_dialogue)
    asked |= any(has_mark(text, block.start, block.end) for block in edges)
    asked |= any(block.asks and block.is_brief for block in [*edges[:1], *asking[:MAX_ASKING]])
    edges += _ending(text, blocks, alone=is_dialogue, asked=asked)
    brief = [
        replace(block, source="inside") for block in islice((one for one in blocks if one.is_brief), MAX_BRIEF + 1)
    ]
    inside = [replace(block, source="inside") for block in inside] if len(inside) <= MAX_ASKING else []
    inside += brief if len(brief) <= MAX_BRIEF else []
    found = {(block.start, block.end): block for block in [*inside, *edges]}
    return [replace(block, forms=form.recurring(block, blocks)) for block in found.values()]


def _beginning(text: str, blocks: Sequence[Block], *, alone: bool) -> list[Block]:
    """The speech at the beginning of a long text. alone: only its first block."""
    series = Counter(_without_numbers(text, block) for block in blocks)
    few = sum(_is_label(text, block.start, first_line_end(text, block)) for block in blocks) <= MAX_LABELS

    def announces(block: Block) -> bool:
        is_label = few and _is_label(text, block.start, first_line_end(text, block))
        return is_label and series[_without_numbers(text, block)] < SERIES

    if not blocks[0].is_short:
        blocks, alone = pieces_of(text, blocks[0], at_end=False), False
    taken, waiting, size = [*blocks[:1]], list[Block](), 0
    in_list = False
    for before, block in zip(blocks, () if alone else blocks[1:], strict=False):
        size += before.size
        opens = before.asks or announces(before)
        if in_list and not block.is_list:
            taken, waiting, opens = [*taken, *waiting], [], True
        in_list = block.is_list and (in_list or opens)
        names = announces(block)
        if names and len(waiting) <= ANNOUNCED:
            taken, waiting = [*taken, *waiting], []
        if size + block.size > EDGE or not block.is_short:
            break
        waiting.append(block)
        plain = sum(not (one.is_list and one.is_piece) for one in waiting)
        follows = block.asks or names or (opens and "\n" not in text[before.start : before.end] and not before.asks)
        if (follows and plain <= GAP + 1) or (block.is_brief and len(waiting) == 1):
            taken, waiting = [*taken, *waiting], []
        elif plain > ANNOUNCED + 1:
            break
    return taken


def _ending(text: str, blocks: Sequence[Block], *, alone: bool, asked: bool) -> list[Block]:
    """The speech at the end of a long text, from its last block on backwards. alone: only up to one that asks. asked: a
    question is known."""
    after = blocks[-1]
    if not after.is_short and not after.asks:  # a longer block than SHORT_TEXT has no sign
        blocks, alone, asked = pieces_of(text, after, at_end=True), False, True
    else:
        blocks = [*reversed(blocks[1:] or blocks)]
        asked |= after.is_brief and says_something(text, after.start, after.end)
    taken, waiting = list[Block](), list[Block]()
    size = choices = 0
    has_asked = ended = chooses = False
    for number, block in enumerate(blocks):
        of_choice, chooses = chooses, bool(options_of(text, block.start, block.end))  # the question stands before
        of_choice = (of_choice or chooses) and not (alone and choices >= MAX_CHOICES)
        choices += of_choice
        if number and blocks[number - 1].goes_on and not block.asks and not of_choice:
            lines = pieces_of(text, block, at_end=True)[:PARAGRAPH_LINES]
            return [*taken, *(line for line in lines if line.size <= SHORT_BLOCK)]
        size += block.size
        ended |= alone and has_asked and not of_choice and not block.is_brief
        if number and (size > EDGE or not block.is_short or ended):
            break
        waiting.append(block)
        plain = sum(not (one.is_list and one.is_piece) for one in waiting)
        searching = number < SEARCHED and not asked
        if not number or searching or block.asks or of_choice or (block.is_brief and len(waiting) == 1):
            taken += waiting
            has_asked |= any(one.asks for one in waiting)
            waiting = []
        elif plain > (SEARCHED if number < SEARCHED or not has_asked else GAP):
            break
        asked |= block.asks
    return taken


class Forms:
    """The forms of a text's own questions: said by a speaker, at the head of a paragraph, in quotation marks."""

    def __init__(self, text: str, ranges: Sequence[CharSpan]) -> None:
        self._text, self._begins = text, [start for start, _ in ranges]
        lines = (match[1] for span in ranges for match in islice(_NAMES.finditer(text[slice(*span)]), MAX_LINES))
        self._names = Counter(lines)
        self._counts: Counter[str] | None = None

    def recurring(self, block: Block, blocks: Sequence[Block]) -> frozenset[str]:
        """The forms of a block that recur in the text. blocks: of the text."""
        spoken = {"spoken"} if self._names.total() > MAX_ASKING and self._names[self._speaker(block)] > 1 else set()
        forms = self._of(block)
        if forms and self._counts is None:
            self._counts = Counter(form for one in blocks for form in self._of(one))
        return frozenset(spoken | {form for form in forms if self._counts and self._counts[form] > SERIES})

    def _of(self, block: Block) -> set[str]:
        text, line = self._text, first_line_end(self._text, block)
        forms = set[str]()
        if not has_mark(text, block.start, block.end):
            return forms
        if line < block.end and has_mark(text, block.start, line) and not has_mark(text, line, block.end):
            forms |= {"headed"} if not is_labelled(text, block.start, block.end) else set()
        if len(_QUOTED.findall(text[block.start : block.end])) == len([*marks_of(text, block.start, block.end)]):
            forms.add("quoted")
        return forms

    def _speaker(self, block: Block) -> str:
        """The name that begins the line in which a block begins; empty without one. Each range begins a line."""
        begins = self._begins[bisect_right(self._begins, block.start) - 1]
        return speaker_of(self._text, max(begins, self._text.rfind("\n", begins, block.start) + 1), block.end)


def _is_label(text: str, start: int, end: int) -> bool:
    """Whether a line only announces what follows it: a heading, a rule, or words before a colon."""
    line = text[start:end]
    title = line.lstrip("#").lstrip(" \t")
    is_heading = line.startswith(_HEADINGS) and len(title) < HEADING_CHARS
    is_rule = len(line) > 2 and line[0] in "-=*_#~+" and line == line[0] * len(line)
    return is_heading or is_rule or (line.endswith((":", "\uff1a")) and 1 < len(title) <= LABEL_CHARS)


def speaker_of(text: str, start: int, end: int) -> str:
    """The name that begins a line, with its colon; empty without one."""
    part = text[start : min(end, start + SPEAKER_CHARS)]
    match = _NAME.match(part) if ":" in part or "\uff1a" in part else None
    return match[1] if match else ""


def _without_numbers(text: str, block: Block) -> str:
    """The first line of a block, or its beginning, without its digits."""
    end = min(first_line_end(text, block), block.start + HEADING_CHARS)
    return "".join(letter for letter in text[block.start : end] if not letter.isdecimal())
