"""Blocks of a user's text: what stands between blank lines, rules and headings, and which of them ask something.

Pure functions on a text and character ranges. They work in any language; the words of `words` add to them.
"""

from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate, pairwise
from typing import NamedTuple

import re2

from router.prompt.markers import CharSpan
from router.prompt.task.words import Sign, asks, sign_of

SHORT_TEXT = 2048
"""A text of at most so many bytes is speech as a whole. Bytes of UTF-8 follow the number of tokens in most scripts
better than characters do."""
SHORT_BLOCK = 1024
"""So many bytes has a block at the edge of a long text at most, unless it asks or is a list."""
BRIEF = 256
"""Bytes of a brief block, and the reach of an announcement on a line of its own text."""
_RULES = "-=*_#~+"
_LONG_RULE = 5
_FIRST = 80
_ITEM = re2.compile(r"[ \t]{0,64}(?:[-*+\x{2022}]|\(?[0-9A-Za-z]{1,2}[.)])[ \t]")
_CLAUSE_END = re2.compile(r":[\s\pZ]|\x{ff1a}")
SENTENCE_END = re2.compile(
    r"[.!?\x{61f}\x{964}\x{6d4}][\"')\]\x{201d}\x{2019}]{0,2}[ \t]+|[\x{3002}\x{ff01}\x{ff1f}]|\n"
)
_FULL_STOPS = ".!\u0964\u06d4\u3002\uff01"


class Block(NamedTuple):
    """A block of text, without outer white space. source: tag, around, edge or inside (`router.prompt.task.speech`)."""

    start: int
    end: int
    size: int
    sign: Sign
    source: str
    is_list: bool = False

    @property
    def span(self) -> CharSpan:
        return self.start, self.end

    @property
    def asks(self) -> bool:
        return self.sign >= Sign.VERB

    @property
    def is_sure(self) -> bool:
        return self.sign >= Sign.LABEL

    @property
    def is_short(self) -> bool:
        return self.size <= (SHORT_TEXT if self.asks or self.is_list else SHORT_BLOCK)


def size_of(text: str, start: int, end: int) -> int:
    """Bytes of UTF-8."""
    part = text[start:end]
    return len(part) if part.isascii() else len(part.encode())


def paragraphs_of(text: str, start: int, end: int) -> list[CharSpan]:
    """What stands between blank lines, rules and headings, without outer white space."""
    found: list[CharSpan] = []
    place, first, last = start, -1, start
    for line in text[start:end].split("\n"):
        stripped = line.strip()
        if first >= 0 and (not stripped or (stripped[0] in _RULES and _is_border(stripped))):
            found.append((first, last))
            first = -1
        if stripped:
            begins = place + line.index(stripped[0])
            first, last = begins if first < 0 else first, begins + len(stripped)
        place += len(line) + 1
    return [*found, (first, last)] if first >= 0 else found


def _is_border(line: str) -> bool:
    is_heading = line[0] == "#" and line.lstrip("#")[:1] == " "
    return is_heading or (len(line) >= _LONG_RULE and line == line[0] * len(line))


def blocks_between(text: str, start: int, end: int, source: str) -> Iterator[Block]:
    """The blocks of a short text."""
    return (one for paragraph in paragraphs_of(text, start, end) for one in blocks_of(text, *paragraph, source))


def blocks_of(text: str, start: int, end: int, source: str, brief: int = SHORT_TEXT) -> list[Block]:
    """The blocks of a paragraph: each line that asks begins one, and so does the second line before the first of them;
    of a long paragraph, also the second line, the last one, and what follows a line that asks. The items of a list stay
    with the line before them. brief: bytes of a plain paragraph that can be a task."""
    lines = text[start:end].split("\n")
    plain = [at for at, line in enumerate(lines) if at == 0 or not _ITEM.match(line[:_FIRST])]
    asking = [at for at in plain if sign_of(lines[at]) > Sign.PLAIN]
    cuts = {0, *asking, *(max(0, at - 2) for at in asking[:1])}
    if size_of(text, start, end) > SHORT_TEXT:
        cuts |= {1, len(lines) - 1, *(at + 1 for at in asking), *([3] if asking[:1] == [0] else [])}
    places = [*accumulate((len(line) + 1 for line in lines), initial=start)]
    starts = {places[plain[at]] for cut in cuts if (at := bisect_left(plain, cut)) < len(plain)}
    blocks = [block_of(text, *span, source, brief) for span in pairwise([*sorted(starts), end])]
    if len(blocks) == 1 or source != "edge":
        return blocks
    weak = [(Sign.PLAIN if one.is_list else Sign.PLACE) if one.size <= BRIEF else Sign.NONE for one in blocks]
    return [one if one.asks else one._replace(sign=sign) for one, sign in zip(blocks, weak, strict=True)]


def block_of(text: str, start: int, end: int, source: str, brief: int = SHORT_TEXT) -> Block:
    """One block, without outer white space."""
    part = text[start:end].strip()
    start = text.index(part, start)
    size = len(part.encode())
    sign = sign_of(part) if size <= SHORT_TEXT else Sign.NONE
    is_list = any(_ITEM.match(line[:_FIRST]) for line in part.split("\n", 2)[:2])
    sign = Sign.NONE if sign == Sign.PLAIN and size > brief else sign
    return Block(start, start + len(part), size, sign, source, is_list)


def sentences_at(text: str, start: int, end: int, *, at_end: bool) -> list[Block]:
    """Of a long line, the sentences at its edge that ask or that no full stop ends."""
    first, last = (max(start, end - SHORT_BLOCK), end) if at_end else (start, min(end, start + SHORT_BLOCK))
    match = None if at_end else _CLAUSE_END.search(text[first : first + BRIEF])
    clause = first + match.end() if match else first
    ends = [clause + match.end() for match in SENTENCE_END.finditer(text[clause:last]) if clause + match.end() < last]
    if at_end:
        borders = [*(ends[-2:] or [max(first, end - BRIEF)]), end]
    else:
        borders = [first, *[clause] * (clause > first), *(ends[:2] or [min(last, clause + BRIEF)])]
    found = []
    for begins, stops in pairwise(borders):
        is_open = stops == clause or (stops == end and begins in ends and text[end - 1] not in _FULL_STOPS)
        block = block_of(text, begins, stops, "edge", 0)
        if not block.asks and block.size <= BRIEF and (is_open or asks(text[block.start : block.end])):
            block = block._replace(sign=Sign.PLACE if is_open else Sign.PLAIN)
        if block.sign:
            found.append(block)
    return found[::-1] if at_end else found
