"""Blocks of a user's text: what stands between blank lines, rules and headings, and which of them ask something.

Pure functions on a text and character ranges. They work in any language; the words of `words` add to them.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import re2

from router.prompt.markers import CharSpan
from router.prompt.task.options import options_of
from router.prompt.task.words import asks, belongs_to_earlier, has_mark, marks_of

SHORT_TEXT = 2048
"""A text of at most so many bytes is speech as a whole. Bytes of UTF-8 follow the number of tokens in most scripts
better than characters do."""
SHORT_BLOCK = 1024
"""At the edge of a long text, a block of at most so many bytes is speech; of a longer one, its first or last line or
sentences."""
LONG_LIST = 4096
"""The same for a list, such as rules."""
BRIEF = 256
"""A block of at most so many bytes, and of at most half as many as usual in its text, is speech at the edge."""
FEW_LETTERS = 20
"""A block with fewer letters that has no question mark is no task: "Answer:", "Thanks!", "Continue.". A letter outside
of ASCII counts twice, because a word has fewer of them in many scripts."""
_BORDER = re2.compile(
    r"(?m)\n[ \t\r]*\n|^[ \t]{0,8}(?:-{5,}|={5,}|\*{5,}|_{5,}|#{5,}|~{5,}|\+{5,})[ \t]{0,8}$|^ {0,3}#{1,6} \S"
)
_BULLETS = "-*+\u2022"
_DEEPEST_ITEM = 64
"""Characters before the text of an item."""
STOPS = ".!\u0964\u06d4\u3002\uff01"
"""Ends of sentences that ask nothing."""
_CLAUSE_END = re2.compile(r":[\s\pZ]|\x{ff1a}")
_SENTENCE_END = re2.compile(
    r"[.!?\x{61f}\x{964}\x{6d4}][\"')\]\x{201d}\x{2019}]{0,2}[ \t]+|[\x{3002}\x{ff01}\x{ff1f}]|\n"
)


@dataclass(frozen=True, slots=True)
class Block:
    """A block of text, without outer white space. size: its bytes. asks: it looks like a task. is_list: one of its
    first two lines is an item. goes_on: the block before it is of the same paragraph. at_edge: it stands at the
    beginning or at the end of a long text, and may belong to it. is_piece: a line or a sentence of a long block.
    is_brief: much shorter than the blocks of its long text are. is_ruled: a rule parts it from what stands before, and
    the text has few of them."""

    start: int
    end: int
    size: int
    asks: bool
    is_list: bool = False
    goes_on: bool = False
    at_edge: bool = False
    is_piece: bool = False
    is_brief: bool = False
    is_ruled: bool = False

    @property
    def is_short(self) -> bool:
        return self.size <= (LONG_LIST if self.is_list else SHORT_TEXT if self.asks else SHORT_BLOCK)


def size_of(text: str, start: int, end: int) -> int:
    """Bytes of UTF-8."""
    return len(text[start:end].encode())


def blocks_of(text: str, start: int, end: int) -> Iterator[Block]:
    """The blocks of a text. Of a short one, each line that asks something begins a block; the items of a list stay with
    the line before them."""
    place = start
    for border in (*(start + match.start() for match in _BORDER.finditer(text[start:end])), end):
        if (first := trimmed(text, place, border)) is not None:
            yield from _divided(text, first) if first.size <= SHORT_TEXT else (first,)
        place = border


def _divided(text: str, block: Block) -> Iterator[Block]:
    first, line, goes_on = block.start, text.find("\n", block.start, block.end) + 1, False
    while line:
        next_line = text.find("\n", line, block.end) + 1
        if not is_item(text, line, block.end) and is_task(text, line, next_line or block.end):
            if (before := trimmed(text, first, line)) is not None:
                yield replace(before, goes_on=goes_on)
                goes_on = True
            first = line
        line = next_line
    if first == block.start:
        yield block
    elif (rest := trimmed(text, first, block.end)) is not None:
        yield replace(rest, goes_on=goes_on)


def is_task(text: str, start: int, end: int) -> bool:
    """A request without a question mark needs some words: "Continue." belongs to an earlier task."""
    return has_mark(text, start, end) or (says_something(text, start, end) and asks(text, start, end))


def can_be_task(text: str, start: int, end: int) -> bool:
    """Whether a text that is no task by itself can be one where there is no other."""
    return says_something(text, start, end) or (asks(text, start, end) and not belongs_to_earlier(text, start, end))


def says_something(text: str, start: int, end: int) -> bool:
    """Whether a text has letters for a task."""
    left = FEW_LETTERS
    for letter in text[start:end]:
        left -= letter.isalnum() * (1 if letter.isascii() else 2)
        if left <= 0:
            return True
    return False


def is_item(text: str, start: int, end: int) -> bool:
    """Whether a line or a block begins like an item of a list."""
    head = text[start : min(end, start + _DEEPEST_ITEM)].lstrip(" \t")
    sign, space, _ = head[:5].replace("\t", " ").partition(" ")
    number = sign[:-1].removeprefix("(")
    is_number = sign[-1:] in (".", ")") and len(number) in (1, 2) and number.isascii() and number.isalnum()
    return bool(space) and (is_number or (len(sign) == 1 and sign in _BULLETS))


def first_clause_end(text: str, start: int, end: int) -> int:
    """Where the clause ends that announces what follows, behind a colon; `start` without one."""
    match = _CLAUSE_END.search(text[start : min(end, start + BRIEF)])
    return start + match.end() if match else start


def sentence_ends(text: str, start: int, end: int) -> list[int]:
    """Where sentences of a range end, with the white space behind them."""
    return [start + match.end() for match in _SENTENCE_END.finditer(text[start:end])]


def trimmed(text: str, start: int, end: int) -> Block | None:
    inner = text[start:end]
    if not (stripped := inner.strip()):
        return None
    start += inner.index(stripped[0])
    end = start + len(stripped)
    size = size_of(text, start, end)
    second = text.find("\n", start, end) + 1
    is_list = is_item(text, start, end) or bool(second and is_item(text, second, end))
    asks_something = size <= SHORT_TEXT and (
        is_task(text, start, end) or (is_list and bool(options_of(text, start, end)))
    )
    return Block(start, end, size, asks_something, is_list)


def first_line_end(text: str, block: Block) -> int:
    line = text.find("\n", block.start, block.end)
    return line if line >= 0 else block.end


def asking_part(text: str, block: Block) -> CharSpan:
    """Of a block that is not brief, the sentences from the first to the last with a question mark, and the one before
    these; else all of it. The others may be of the text around it."""
    marks = [*marks_of(text, block.start, block.end)] if block.size > BRIEF else []
    if not marks or options_of(text, block.start, block.end):
        return block.start, block.end
    ends = [end for end in sentence_ends(text, block.start, marks[0][0]) if end < marks[0][1]]
    return [block.start, block.start, *ends][-2], marks[-1][1]
