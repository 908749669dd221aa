"""Markers in a text: characters that name a part of it by a number, and that survive a chat template.

Markers stand around a part. A template copies them with the part, so they show where it stands in the rendered prompt.
"""

from collections.abc import Mapping
from functools import cached_property
from itertools import chain, islice
from typing import Any, NamedTuple

import re2

from skim_common.errors import InvalidRequestError

CharSpan = tuple[int, int]

_AREAS = (range(0xF0000, 0xFFFFE), range(0x100000, 0x10FFFE))
"""Unicode's private use areas A and B: code points without a meaning of their own."""


class Located(NamedTuple):
    """A text whose marks were removed. text: what is left. spans: the range of each marked part in it, half-open.

    broken: numbers with a mark that has no counterpart.
    """

    text: str
    spans: Mapping[int, list[CharSpan]]
    broken: frozenset[int]


class Markers:
    """Two characters that `texts` do not have. A mark is a number between them; in reverse order they end a part.

    Raises InvalidRequestError if the texts have all characters of the private use areas.
    """

    def __init__(self, *texts: str) -> None:
        used = set[str]().union(*texts)
        unused = [*islice((c for c in map(chr, chain(*_AREAS)) if c not in used), 2)]
        if len(unused) < 2:
            raise InvalidRequestError("the request has all characters of Unicode's private use areas; leave out two")
        self.left, self.right = unused

    @cached_property
    def _mark(self) -> Any:
        return re2.compile(f"{self.left}([0-9]+){self.right}|{self.right}([0-9]+){self.left}")

    def around(self, number: int, text: str) -> str:
        """`text` with marks around it, inside of its outer white space, which templates may strip."""
        inner = text.strip()
        if not inner:
            return text
        before, after = text[: text.index(inner[0])], text[len(text.rstrip()) :]
        left, right = self.left, self.right
        return f"{before}{left}{number}{right}{inner}{right}{number}{left}{after}"

    def are_in(self, text: str) -> bool:
        """Whether the text has a mark or a part of one."""
        return self.left in text or self.right in text

    def segments(self, text: str) -> list[tuple[int | None, str]]:
        """The parts of a text of which each has one number or none, in order, without the marks."""
        parts: list[tuple[int | None, str]] = []
        number: int | None = None
        end = 0
        for mark in self._mark.finditer(text):
            if mark.start() > end:
                parts.append((number, text[end : mark.start()]))
            number = int(mark[1]) if mark[1] else None
            end = mark.end()
        return [*parts, (number, text[end:])] if end < len(text) else parts

    def locate(self, text: str) -> Located:
        """The text without marks, and where the marked parts are. A part may occur several times."""
        plain: list[str] = []
        spans: dict[int, list[CharSpan]] = {}
        broken: set[int] = set()
        length = end = 0
        opened: tuple[int, int] | None = None  # the number and the start of the part that is open
        for mark in self._mark.finditer(text):
            plain.append(text[end : mark.start()])
            length += mark.start() - end
            end = mark.end()
            if mark[1]:
                if opened:
                    broken.add(opened[0])
                opened = (int(mark[1]), length)
                continue
            number = int(mark[2])
            if opened and opened[0] == number:
                spans.setdefault(number, []).append((opened[1], length))
            else:
                broken |= {number, *([opened[0]] if opened else [])}
            opened = None
        if opened:
            broken.add(opened[0])
        return Located("".join([*plain, text[end:]]), spans, frozenset(broken))
