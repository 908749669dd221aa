"""Labels before a colon: "Source: x", the speaker of a turn, "Passage 7:", the first field of a record."""

from collections import Counter

import numpy as np
import re2

from router.prompt.labels.forms import REST
from router.prompt.labels.marks import Marks, TextLines
from router.prompt.text.codes import DIGIT, Codes, among

LEAST = 3
"""So often a word that is not known as a label must stand before a colon."""
MOSTLY = 0.8
"""Share of the lines. A field that follows a blank line so often begins a record."""
LONGEST_QUESTION = 160
"""Characters. The question is the label of its answer."""
LONGEST_KEY = 64
"""Characters."""
MOST_WORDS = 6
_KNOWN = {
    "file name",
    "t\u00edtulo",
    "\u6765\u6e90",
    "\u6807\u9898",
    "\u6587\u4ef6",
    "\u51fa\u5178",
    "\u30bd\u30fc\u30b9",
}
_KNOWN |= set(
    str.split(
        "source title filename file path url uri link document doc passage page section chapter article paragraph"
        " topic subject from reference ref snippet chunk result excerpt record entry case step day session service host"
        " server repository repo commit table sheet channel thread question q quelle titel datei dokument fuente"
        " documento archivo fichier titre"
    )
)
_DIGITS = re2.compile(rf"{DIGIT}+(?:[.:,]{DIGIT}+)*")
MOST_FIELDS, LONGEST_HEADER = 3, 200
"""Fields and characters of the header of a passage. That of a letter is too long for a label."""
_QUESTIONS = ("q", "question")


def add_keys(marks: Marks, text: str, codes: Codes, lines: TextLines) -> None:
    """Add the marks of these forms. text, codes, lines: of the same text."""
    if not lines.raw.size:
        return
    following = np.append(codes[1:], ord("\n"))
    colons = np.flatnonzero(((codes == ord(":")) & among(following, " \t\r\n*")) | (codes == ord("\uff1a")))
    colon = np.append(colons, codes.size + LONGEST_KEY)[np.searchsorted(colons, lines.first)]
    near = (colon - lines.first <= LONGEST_KEY) & (colon < lines.end) & (lines.indents <= 1)
    near &= ~among(codes[lines.first], "0123456789#<[({@|=+-/\"'")
    numbers, ends, keys = [], [], []
    places = np.flatnonzero(near)
    for number, end in zip(places.tolist(), (colon[places] + 1).tolist(), strict=True):
        key = text[lines.places[1][number] : end - 1].strip("*")
        if key and key[0].isalpha() and key.count(" ") < MOST_WORDS:
            numbers.append(number)
            ends.append(end + 2 * (text[end : end + 2] == "**"))
            keys.append(key.lower() if key.isalpha() else _DIGITS.sub("", key).lower().strip(" #.[]()"))
    counts = Counter(keys)
    fresh = Counter(key for number, key in zip(numbers, keys, strict=True) if lines.fresh[number])
    begins_record = {key for key, count in counts.items() if count >= LEAST and fresh[key] >= MOSTLY * count}
    members = {key for key, count in counts.items() if count >= LEAST and fresh[key] < count / 2}
    known = _KNOWN & counts.keys()
    named = {key for key, count in counts.items() if count >= LEAST and not (begins_record and key in members)}
    whole = known | (begins_record if members else set())
    raw, _, stops, after = lines.places
    headers = _headers(numbers, lines)
    fields = {key for number, key in zip(numbers, keys, strict=True) if number in headers}
    begins = {key for number, key in zip(numbers, keys, strict=True) if headers.get(number, -1) >= 0}
    for number, end, key in zip(numbers, ends, keys, strict=True):
        last = headers.get(number)
        if last == -1:
            continue
        group, rest = f"key {key}" if key in known else "speaker", stops[number] - end
        if key in begins or (key in fields and lines.fresh[number]):
            for ended in ("header", group):
                marks.add(raw[number], raw[number], ended, closes=True)
        if last is not None:
            marks.add(raw[number], after[last], "header")
            continue
        if key not in named and key not in known:
            continue
        is_title = rest <= REST and text[stops[number] - 1] not in ".!?"
        if rest <= 0 or (key in whole and is_title) or (key in _QUESTIONS and rest <= LONGEST_QUESTION):
            marks.add(raw[number], after[number], group)
        else:
            marks.add(raw[number], end, group, inline=True)


def _headers(numbers: list[int], lines: TextLines) -> dict[int, int]:
    """The lines of headers: two fields or more with a blank line before and after, and then no field. Of the first line
    the number of the last one, of the others -1. numbers: of the lines that begin with a key."""
    raw, _, _, after = lines.places
    fields, found = set(numbers), dict[int, int]()
    for first in numbers:
        if not lines.fresh[first]:
            continue
        last = first
        while last + 1 in fields and not lines.apart[last] and last - first < MOST_FIELDS - 1:
            last += 1
        follows = last + 1 < len(raw) and last + 1 not in fields
        if first < last and lines.apart[last] and follows and after[last] - raw[first] <= LONGEST_HEADER:
            found |= {first: last, **dict.fromkeys(range(first + 1, last + 1), -1)}
    return found
