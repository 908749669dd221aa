"""What a long text itself asks at its edges: in a turn of a meeting, in a heading, or in quotation marks.

Pure functions on a text and character ranges.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import islice

import re2

from router.prompt.markers import CharSpan
from router.prompt.task.blocks import Block, blocks_of, first_line_end
from router.prompt.task.edges import MOST_ASKED, SERIES, SPEAKER, speaker_of
from router.prompt.task.words import MARK, has_mark, is_labelled, marks_of

MOST_LINES = 1024
"""Lines of a part that are searched for the names of speakers."""
_QUOTED = re2.compile(rf"{MARK}[\"\x{{201d}}\x{{2019}}\xbb\x{{300d}}]")
_SPOKEN = re2.compile(rf"(?m)^{SPEAKER.pattern}")


def own_questions(text: str, parts: Sequence[CharSpan], blocks: Sequence[Block], last: Block) -> list[Block]:
    """The blocks at the edges that are no task beside the last block, because the text says them: what a speaker says,
    and, if the last block asks, questions that head a paragraph and quoted ones. A kind that the last block has itself
    is left out: nothing tells it from the text's."""
    edges = [block for block in blocks if block.at_edge and block is not last]
    found = _spoken(text, parts, edges, last)
    if last.asks:
        found += [*_heading(text, parts, edges, last), *_quoted(text, parts, edges, last)]
    return found


def _spoken(text: str, parts: Sequence[CharSpan], edges: Sequence[Block], last: Block) -> list[Block]:
    """The blocks in a line that begins with a name which begins other lines, too, of more than MOST_ASKED with one."""
    names = {block: name for block in [*edges, last] if (name := _speaker(text, parts, block))}
    if not names:
        return []
    lines = Counter(match[1] for part in parts for match in islice(_SPOKEN.finditer(text[slice(*part)]), MOST_LINES))
    if lines.total() <= MOST_ASKED or lines[names.get(last, "")] > 1:
        return []
    return [block for block in edges if lines[names.get(block, "")] > 1]


def _heading(text: str, parts: Sequence[CharSpan], edges: Sequence[Block], last: Block) -> list[Block]:
    """The blocks whose first line alone asks, if SERIES others do so and the last block has another form."""
    found = [block for block in edges if _is_headed(text, block)]
    if not found or (_is_headed(text, last) and not is_labelled(text, last.start, last.end)):
        return []
    headed = sum(_is_headed(text, block) for part in parts for block in blocks_of(text, *part))
    return found if headed >= SERIES + len(found) else []


def _quoted(text: str, parts: Sequence[CharSpan], edges: Sequence[Block], last: Block) -> list[Block]:
    """The blocks whose questions are all quoted, if SERIES other questions are."""
    found = [block for block in edges if _asks_quoted(text, block)]
    if not found or _asks_quoted(text, last):
        return []
    quoted = (mark for part in parts for mark in _QUOTED.finditer(text[slice(*part)]))
    return found if len([*islice(quoted, SERIES + len(found))]) == SERIES + len(found) else []


def _speaker(text: str, parts: Sequence[CharSpan], block: Block) -> str:
    """The name that begins the line in which a block begins; empty without one. Each part begins a line."""
    begins = max(start for start, _ in parts if start <= block.start)
    return speaker_of(text, max(begins, text.rfind("\n", begins, block.start) + 1), block.end)


def _is_headed(text: str, block: Block) -> bool:
    line = first_line_end(text, block)
    return line < block.end and has_mark(text, block.start, line) and not has_mark(text, line, block.end)


def _asks_quoted(text: str, block: Block) -> bool:
    asked = len([*marks_of(text, block.start, block.end)])
    return 0 < asked == len(_QUOTED.findall(text[block.start : block.end]))
