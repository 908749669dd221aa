"""Regions of a user's text: what a tag or a fence encloses, and the members of a JSON prompt.

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
_JSON = re.compile(r'"(?:[^"\\]|\\.)*+"|[{}\[\],:]', re.DOTALL)
_LONG_MEMBER = 512
"""Characters. A longer member of a prompt that is one JSON value is a region."""


@dataclass(frozen=True, slots=True)
class Region:
    """start, end: with both marks. inner: between the marks. name: of the tag or the member, FENCE or STRING."""

    name: str
    start: int
    end: int
    inner: CharSpan


def regions_of(text: str, part: CharSpan) -> list[Region]:
    """The regions of a part that lie in no other, in order. A mark without its counterpart is text."""
    first, inner = part[0], text[slice(*part)]  # in a slice, a mark may stand at the beginning of a line
    stripped = inner.strip()
    members = _members(text, *part) if stripped[:1] + stripped[-1:] in ("{}", "[]") else None
    if members is not None:
        return [member for member in members if member.end - member.start > _LONG_MEMBER]
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


def _members(text: str, start: int, end: int) -> list[Region] | None:
    """The values of a JSON object or array, each with its key; None if a text only begins and ends like one. Of a
    string, the inner part is what it says."""
    found: list[Region] = []
    depth, place, key, last = 0, start, STRING, ""
    for mark in _JSON.finditer(text, start, end):
        sign = mark[0][0]
        opens, closes = sign in "[{", sign in "]}"
        if not depth and (place > start or not opens):
            return None
        depth += opens - closes
        if place > start and (depth == 0 or (depth == 1 and sign == ",")):
            value = text[place : mark.start()].strip()
            first = text.index(value, place)
            quoted = value[:1] == STRING
            found.append(Region(key, first, first + len(value), (first + quoted, first + len(value) - quoted)))
            key = STRING
        if sign == ":" and depth == 1:
            key = last or STRING
        if depth == 0 or (depth == 1 and (opens or sign in ",:")):
            place = mark.end()
        last = mark[0][1:-1] if sign == STRING else ""
    return found if depth == 0 and not text[place:end].strip() else None


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
