"""Regions of a user's text: what a tag or a fence encloses, and the members of a JSON prompt. Linear in the text."""

import json
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import re2

from router.prompt.markers import CharSpan
from router.prompt.task.blocks import blocks_between, size_of
from router.prompt.task.words import RULES_NAME, TASK_NAME

FENCE, STRING = "```", '"'
"""Names of regions that are no tags."""
NEARLY_ALL, MOST_ENVELOPES = 0.9, 4
"""A region with more than this share of a text may be the envelope of the whole prompt. So many inside each other are
opened."""

_MARK = re2.compile(
    r"(?m)^ {0,3}(?:`{3,}|~{3,})[^\n`]*$|^[ \t]*<[A-Za-z][^\s<>/]*(?:\s[^<>\n]*|/)?>|</[A-Za-z][^\s<>/]*>"
)
_JSON = json.JSONDecoder(strict=False, parse_int=str, parse_float=str)  # a long number takes a quadratic time to read
_LONG_MEMBER = 512
"""Characters. A longer member of a prompt that is one JSON value is a region."""


class Region(NamedTuple):
    """start, end: with both marks. inner: between the marks. name: of the tag or the member, FENCE or STRING."""

    name: str
    start: int
    end: int
    inner: CharSpan

    @property
    def kind(self) -> str:
        """ "task" or "rules" by its name, else ""."""
        return "task" if TASK_NAME.fullmatch(self.name) else "rules" if RULES_NAME.fullmatch(self.name) else ""


def divided(text: str, parts: Sequence[CharSpan], most: int) -> list[tuple[CharSpan, Region | None]]:
    """The ranges of parts, in order, each with the region that it is. An envelope, which is a tag or a fence around the
    whole part, is opened, unless a task is around it, or it encloses at most so many bytes of a task or of rules."""
    ranges: list[tuple[CharSpan, Region | None]] = []
    for part in parts:
        for _ in range(MOST_ENVELOPES):
            regions = regions_of(text, part)
            edges = [part[0], *(edge for one in regions for edge in (one.start, one.end)), part[1]]
            gaps = [gap for gap in zip(edges[::2], edges[1::2], strict=True) if text[slice(*gap)].strip()]
            ranges += [(gap, None) for gap in gaps]
            if len(regions) != 1 or regions[0].end - regions[0].start <= NEARLY_ALL * (part[1] - part[0]):
                break
            if regions[0].kind and size_of(text, *part) <= most:
                break
            if any(block.sign for gap in gaps for block in blocks_between(text, *gap, "around")):
                break
            part = regions[0].inner
            regions = []
        ranges += [((one.start, one.end), one) for one in regions]
    return sorted(ranges, key=lambda found: found[0])


def regions_of(text: str, part: CharSpan) -> list[Region]:
    """The regions of a part that lie in no other, in order. A mark without its counterpart is text."""
    first, inner = part[0], text[slice(*part)]  # in a slice, a mark may stand at the beginning of a line
    stripped = inner.strip()
    if stripped[:1] + stripped[-1:] in ("{}", "[]") and (members := _members(stripped, first + inner.index(stripped))):
        return [member for member in members if member.end - member.start > _LONG_MEMBER]
    found: list[Region] = []
    opened: list[tuple[str, int, int]] = []
    names = Counter[str]()
    fence = ""  # the marks inside of a fence are text
    for mark in _MARK.finditer(inner):
        sign, start, end = mark[0].lstrip(" \t"), first + mark.start(), first + mark.end()
        if fence and not sign.startswith(fence):
            continue
        name = FENCE if sign[0] != "<" else sign.strip("</>").split(maxsplit=1)[0]
        if not fence and sign[:2] != "</":
            if not sign.endswith("/>"):
                opened.append((name, start, end))
                names[name] += 1
                fence = sign[: len(sign) - len(sign.lstrip(sign[0]))] if name == FENCE else ""
        elif names[name]:
            fence, last, last_start, inside = "", "", start, end
            while last != name:
                last, last_start, inside = opened.pop()
                names[last] -= 1
            while found and found[-1].start >= last_start:
                found.pop()
            found.append(Region(name, last_start, end, (inside, start)))
    return found


def _members(value: str, first: int) -> list[Region]:
    """The values of a JSON object or array that begins at `first`, each with its key; none if it only begins and ends
    like one. Of a string, the inner part is what it says."""
    found: list[Region] = []

    def after(place: int, sign: str = "") -> int:
        """The next place that is no white space, behind a sign; the end without the sign."""
        for part in (sign, ""):
            while value[place : place + 1].isspace():
                place += 1
            if not value.startswith(part, place):
                return len(value)
            place += len(part)
        return place

    place = after(0, value[0])
    try:
        while place < len(value) - 1:
            key = STRING
            if value[0] == "{":
                key, place = _JSON.raw_decode(value, place)
                place = after(place, ":")
            start, quoted = first + place, value[place] == STRING
            _, place = _JSON.raw_decode(value, place)
            found.append(Region(str(key), start, first + place, (start + quoted, first + place - quoted)))
            place = after(place) if after(place) == len(value) - 1 else after(place, ",")
    except (ValueError, IndexError, RecursionError):
        return []
    return found if place == len(value) - 1 else []
