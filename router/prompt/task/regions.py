"""Regions of a user's text: what a tag or a fence encloses, and the members of a JSON prompt.

Pure functions on a text and character ranges. The work is linear in the text.
"""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import re2

from router.prompt.markers import CharSpan

FENCE, STRING = "```", '"'
"""Names of regions that are no tags."""
NEARLY_ALL = 0.9
"""A region with more than this share of a text may be the envelope of the whole prompt."""

_MARK = re2.compile(
    r"(?m)^ {0,3}(?:`{3,}|~{3,})[^\n`]*$|^[ \t]*<[A-Za-z][^\s<>/]*(?:\s[^<>\n]*|/)?>|</[A-Za-z][^\s<>/]*>"
)
_JSON = json.JSONDecoder(strict=False, parse_int=str, parse_float=str)  # a long number takes a quadratic time to read
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
    if stripped[:1] + stripped[-1:] in ("{}", "[]") and (members := _members(stripped, first + inner.index(stripped))):
        return [member for member in members if member.end - member.start > _LONG_MEMBER]
    found: list[Region] = []
    opened: list[tuple[str, CharSpan]] = []
    names = Counter[str]()
    fence = ""  # the marks inside of a fence are text
    for mark in _MARK.finditer(inner):
        place = (first + mark.start(), first + mark.end())
        sign = mark[0].lstrip(" \t")
        if sign[0] != "<" and not fence:
            fence = sign[: len(sign) - len(sign.lstrip(sign[0]))]
            opened.append((FENCE, place))
        elif sign[0] != "<":
            if sign.startswith(fence):
                fence = ""
                _close(found, opened, names, FENCE, place)
        elif fence:
            continue
        elif sign[1] == "/":
            if names[name := sign[2:-1]]:
                _close(found, opened, names, name, place)
        elif not sign.endswith("/>"):
            name = sign[1:-1].split(maxsplit=1)[0]
            opened.append((name, place))
            names[name] += 1
    return found


def _members(value: str, first: int) -> list[Region]:
    """The values of a JSON object or array that begins at `first`, each with its key; none if it only begins and ends
    like one. Of a string, the inner part is what it says."""
    found: list[Region] = []
    place = _after_space(value, 1)
    try:
        while place < len(value) - 1:
            key = STRING
            if value[0] == "{":
                if value[place] != STRING:
                    return []
                key, place = _JSON.raw_decode(value, place)
                place = _after_space(value, place)
                if value[place] != ":":
                    return []
                place = _after_space(value, place + 1)
            start, quoted = place, value[place] == STRING
            _, place = _JSON.raw_decode(value, start)
            whole = (first + start, first + place)
            found.append(Region(key, *whole, (whole[0] + quoted, whole[1] - quoted)))
            place = _after_space(value, place)
            if value[place] != "," and place < len(value) - 1:
                return []
            place = _after_space(value, place + 1)
    except (ValueError, IndexError, RecursionError):
        return []
    return found


def _after_space(text: str, place: int) -> int:
    """The first place from this one on without white space."""
    while text[place : place + 1].isspace():
        place += 1
    return place


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
