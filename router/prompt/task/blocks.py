"""Blocks of a user's text: what stands between blank lines, rules and headings, and which of them ask something.

Pure functions on a text and character ranges. They work in any language; the words of `words` add to them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from itertools import pairwise

import re2

from router.prompt.markers import CharSpan
from router.prompt.task.words import asks, can_be_task, has_mark, is_labelled, marks_of, options_of, says_something

SHORT_TEXT = 2048
"""A text of at most so many bytes is speech as a whole. Bytes of UTF-8 follow the number of tokens in most scripts
better than characters do."""
SHORT_BLOCK, SHORT_LIST = 1024, 4096
"""At the edge of a long text, a block or a list of at most so many bytes is speech; of a longer one, its first or last
lines or sentences."""
BRIEF = 256
"""Bytes of a brief block, and the reach of an announcement on a line of its own text."""
EDGE_LINES = 16
"""So many lines of a long paragraph are looked at."""
_BORDER = re2.compile(
    r"(?m)\n[ \t\r]*\n|^[ \t]{0,8}(?:-{5,}|={5,}|\*{5,}|_{5,}|#{5,}|~{5,}|\+{5,})[ \t]{0,8}$|^ {0,3}#{1,6} \S"
)
_BULLETS = "-*+\u2022"
_DEEPEST_ITEM = 64
"""Characters before the text of an item."""
_FULL_STOPS = ".!\u0964\u06d4\u3002\uff01"
_CLAUSE_END = re2.compile(r":[\s\pZ]|\x{ff1a}")
_SENTENCE_END = re2.compile(
    r"[.!?\x{61f}\x{964}\x{6d4}][\"')\]\x{201d}\x{2019}]{0,2}[ \t]+|[\x{3002}\x{ff01}\x{ff1f}]|\n"
)


class Sign(IntEnum):
    """By what a block shows that it is a task, from weak to sure: the first word of a request, a label such as
    "Question:", a question mark."""

    NONE = 0
    VERB = 1
    LABEL = 2
    MARK = 3


@dataclass(frozen=True, slots=True)
class Block:
    """A block of text, without outer white space. size: its bytes. is_list: one of its first two lines is an item.
    goes_on: the block before it is of the same paragraph. is_piece: a line or a sentence of a long block. is_brief:
    much shorter than the blocks of its long text are. source: where it was found (`router.prompt.task.speech`).
    forms: those of its question that recur in the text around it (`router.prompt.task.edges`)."""

    start: int
    end: int
    size: int
    sign: Sign = Sign.NONE
    is_list: bool = False
    goes_on: bool = False
    is_piece: bool = False
    is_brief: bool = False
    source: str = ""
    forms: frozenset[str] = frozenset()

    @property
    def asks(self) -> bool:
        return self.sign > Sign.NONE

    @property
    def is_sure(self) -> bool:
        return self.sign >= Sign.LABEL

    @property
    def is_short(self) -> bool:
        return self.size <= (SHORT_LIST if self.is_list else SHORT_TEXT if self.asks else SHORT_BLOCK)


def size_of(text: str, start: int, end: int) -> int:
    """Bytes of UTF-8."""
    return len(text[start:end].encode())


def blocks_of(text: str, start: int, end: int, source: str = "") -> Iterator[Block]:
    """The blocks of a text. Of a short one, each line that asks something begins a block; the items of a list stay with
    the line before them."""
    place = start
    for border in (*(start + match.start() for match in _BORDER.finditer(text[start:end])), end):
        if (whole := block_at(text, place, border, source=source)) is not None:
            starts = [whole.start, *(_asking_lines(text, whole) if whole.size <= SHORT_TEXT else ())]
            for number, (first, last) in enumerate(pairwise([*starts, whole.end])):
                part = whole if len(starts) == 1 else block_at(text, first, last, source=source, goes_on=number > 0)
                if part is not None:
                    yield part
        place = border


def _asking_lines(text: str, block: Block) -> Iterator[int]:
    """Where the lines after the first one begin that ask something and are no items."""
    line = text.find("\n", block.start, block.end) + 1
    while line:
        following = text.find("\n", line, block.end) + 1
        if not is_item(text, line, block.end) and _sign_of(text, line, following or block.end):
            yield line
        line = following


def block_at(text: str, start: int, end: int, *, source: str = "", goes_on: bool = False) -> Block | None:
    """The block of a range, without outer white space; None without text."""
    inner = text[start:end]
    if not (stripped := inner.strip()):
        return None
    start += inner.index(stripped[0])
    end = start + len(stripped)
    size = len(stripped.encode())
    second = text.find("\n", start, end) + 1
    is_list = is_item(text, start, end) or bool(second and is_item(text, second, end))
    sign = _sign_of(text, start, end) if size <= SHORT_TEXT else Sign.NONE
    if is_list and size <= SHORT_TEXT and not sign and options_of(text, start, end):
        sign = Sign.VERB
    return Block(start, end, size, sign, is_list, goes_on, source=source)


def _sign_of(text: str, start: int, end: int) -> Sign:
    """A request without a question mark needs some words: "Continue." belongs to an earlier task."""
    if has_mark(text, start, end):
        return Sign.MARK
    if not says_something(text, start, end):
        return Sign.NONE
    if is_labelled(text, start, end):
        return Sign.LABEL
    return Sign.VERB if asks(text, start, end) else Sign.NONE


def is_item(text: str, start: int, end: int) -> bool:
    """Whether a line or a block begins like an item of a list."""
    head = text[start : min(end, start + _DEEPEST_ITEM)].lstrip(" \t")
    sign, space, _ = head[:5].replace("\t", " ").partition(" ")
    number = sign[:-1].removeprefix("(")
    is_number = sign[-1:] in (".", ")") and len(number) in (1, 2) and number.isascii() and number.isalnum()
    return bool(space) and (is_number or (len(sign) == 1 and sign in _BULLETS))


def first_line_end(text: str, block: Block) -> int:
    line = text.find("\n", block.start, block.end)
    return line if line >= 0 else block.end


def sentence_ends(text: str, start: int, end: int) -> list[int]:
    """Where sentences of a range end, with the white space behind them."""
    return [start + match.end() for match in _SENTENCE_END.finditer(text[start:end])]


def pieces_of(text: str, block: Block, *, at_end: bool) -> list[Block]:
    """The pieces of a long block that may be speech, from its edge on: its first or last lines, or, of one long line,
    the sentences at the edge that ask or that no full stop ends."""
    lines: list[Block] = []
    place = block.end if at_end else block.start
    while len(lines) < EDGE_LINES and block.start <= place < block.end + at_end:
        line = text.rfind("\n", block.start, place) if at_end else text.find("\n", place, block.end)
        edge = (max(line, block.start), place) if at_end else (place, line if line >= 0 else block.end)
        if (piece := block_at(text, *edge, source=block.source)) is not None:
            is_request = not piece.asks and asks(text, piece.start, piece.end)
            lines.append(replace(piece, is_piece=True, is_brief=is_request))
        if line < 0:
            break
        place = line if at_end else line + 1
    if len(lines) > 1 and lines[0].size <= SHORT_BLOCK:
        return lines
    return _sentences_at_edge(text, block, at_end=at_end)


def _sentences_at_edge(text: str, block: Block, *, at_end: bool) -> list[Block]:
    first = max(block.start, block.end - SHORT_BLOCK) if at_end else block.start
    last = block.end if at_end else min(block.end, block.start + SHORT_BLOCK)
    match = None if at_end else _CLAUSE_END.search(text[first : first + BRIEF])
    clause = first + match.end() if match and can_be_task(text, first, first + match.end()) else first
    ends = [end for end in sentence_ends(text, clause, last) if end < last]
    if at_end:
        borders = [*(ends[-2:] or [max(first, block.end - BRIEF)]), block.end]
    else:
        borders = [first, *[clause] * (clause > first), *(ends[:2] or [min(last, clause + BRIEF)])]
    found: list[Block] = []
    for start, end in pairwise(borders):
        if (piece := block_at(text, start, end, source=block.source)) is None:
            continue
        at_edge = end == block.end if at_end else start == block.start
        is_open = end == clause or (at_end and at_edge and start in ends and text[end - 1] not in _FULL_STOPS)
        if piece.asks or (is_open and piece.size <= BRIEF) or (at_edge and asks(text, start, end)):
            found.append(replace(piece, is_piece=True, is_brief=not piece.asks))
    return found[::-1] if at_end else found


def asking_part(text: str, block: Block) -> CharSpan:
    """Of a block that is not brief, the sentences from the first to the last with a question mark, and the one before
    these; else all of it. The others may be of the text around it."""
    marks = [*marks_of(text, block.start, block.end)] if block.size > BRIEF else []
    if not marks or options_of(text, block.start, block.end):
        return block.start, block.end
    ends = [end for end in sentence_ends(text, block.start, marks[0][0]) if end < marks[0][1]]
    return [block.start, block.start, *ends][-2], marks[-1][1]


def asking_lines(text: str, block: Block, most: int) -> list[Block]:
    """The first lines of a long block that are one question each."""
    found: list[Block] = []
    place = block.start
    for mark, end in marks_of(text, block.start, block.end):
        start = text.rfind("\n", block.start, mark) + 1
        line_end = text.find("\n", end, block.end)
        alone = not text[end : line_end if line_end >= 0 else block.end].strip() and max(start, block.start) >= place
        if alone and start and not sentence_ends(text, start, mark) and mark - start <= BRIEF:
            found.append(Block(start, end, size_of(text, start, end), Sign.MARK, is_piece=True, source="inside"))
        if len(found) == most:
            break
        place = end
    return found


def usual_size(blocks: Sequence[Block]) -> int:
    """The size of the blocks that hold half of a text."""
    left, usual = sum(block.size for block in blocks) / 2, 0
    for usual in sorted(block.size for block in blocks):
        left -= usual
        if left <= 0:
            break
    return usual
