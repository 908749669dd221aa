"""Regions of a user's text: what a tag, a fence or a string of JSON encloses.

Pure functions on a text and character ranges. The work is linear in the text.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from router.prompt.markers import CharSpan

FENCE, STRING = "```", '"'
"""Names of regions that are no tags."""
NEARLY_ALL = 0.9
"""A region with more than this share of a text may be the envelope of the whole prompt."""

_MARK = re.compile(
    r"^[ ]{0,3}(?P<fence>`{3,}|~{3,})[^\n`]*$"
    r"|^[ \t]*<(?P<open>[A-Za-z][\w:.-]{0,63})(?:\s[^<>\n]{0,512})?(?<!/)>"
    r"|</(?P<close>[A-Za-z][\w:.-]{0,63})>",
    re.MULTILINE,
)
_STRING = re.compile(r'"(?:[^"\\]|\\.)*+"', re.DOTALL)
_LONG_STRING = 512
"""Characters. A longer string of a prompt that is one JSON value is a region."""


@dataclass(frozen=True, slots=True)
class Region:
    """start, end: with both marks. inner: between the marks. name: of the tag, FENCE or STRING."""

    name: str
    start: int
    end: int
    inner: CharSpan


def regions_of(text: str, part: CharSpan) -> list[Region]:
    """The regions of a part that lie in no other, in order. A mark without its counterpart is text."""
    first, inner = part[0], text[slice(*part)]  # in a slice, a mark may stand at the beginning of a line
    stripped = inner.strip()
    if stripped[:1] + stripped[-1:] in ("{}", "[]"):
        strings = ((first + match.start(), first + match.end()) for match in _STRING.finditer(inner))
        return [Region(STRING, a, b, (a + 1, b - 1)) for a, b in strings if b - a > _LONG_STRING]
    found: list[Region] = []
    opened: list[tuple[str, CharSpan]] = []
    names = Counter[str]()
    fence = ""  # the marks inside of a fence are text
    for mark in _MARK.finditer(inner):
        place = (first + mark.start(), first + mark.end())
        if mark["fence"] and not fence:
            fence = mark["fence"]
            opened.append((FENCE, place))
        elif mark["fence"]:
            if mark["fence"].startswith(fence):
                fence = ""
                _close(found, opened, names, FENCE, place)
        elif fence:
            continue
        elif name := mark["open"]:
            opened.append((name, place))
            names[name] += 1
        elif names[mark["close"]]:
            _close(found, opened, names, mark["close"], place)
    return found


def _close(
    found: list[Region], opened: list[tuple[str, CharSpan]], names: Counter[str], name: str, mark: CharSpan
) -> None:
    """Close the last open mark with this name, and drop those that were opened after it."""
    while opened:
        last, (start, end) = opened.pop()
        names[last] -= last != FENCE
        if last == name:
            while found and found[-1].start >= start:
                found.pop()
            found.append(Region(name, start, mark[1], (end, mark[0])))
            return


def envelope(part: CharSpan, regions: Sequence[Region]) -> Region | None:
    """The only region of a part, if it encloses nearly all of it."""
    if len(regions) != 1 or regions[0].end - regions[0].start <= NEARLY_ALL * (part[1] - part[0]):
        return None
    return regions[0]
