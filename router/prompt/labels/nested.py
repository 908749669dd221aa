"""Labels of nested parts: keys of JSON objects and arrays, classes and functions of code, sections of a config."""

import numpy as np
import numpy.typing as npt
import re2

from router.prompt.labels.marks import Marks, TextLines
from router.prompt.text.codes import SPACE, WORD, Codes, among

LONG_OBJECT = 120
"""Characters. A shorter object or array with a key is text, not a label with text."""
LONG_RECORD = 200
"""Characters. The first member of a longer object without a key is the label of the others."""
LONGEST_KEY = 100
"""Characters."""
_FIRST_MEMBER = re2.compile(
    r'\{\s{0,200}"(?:[^"\\\n]|\\.){0,60}"\s{0,8}:\s{0,8}(?:"(?:[^"\\\n]|\\.){0,80}"|[\w.+-]{1,40}),?'
)
LONGEST_MEMBER = 600
"""Characters."""
_DEFINITION = re2.compile(
    r"(?:(?:export|default|public|private|protected|internal|static|final|abstract|async|virtual|override|unsafe|inline"
    rf"|const|extern|pub(?:\([{WORD}]+\))?|template<[^>]*>)[{SPACE}]+){{0,4}}"
    r"(?:class|def|fn|func|function|struct|impl|interface|trait|enum|module|namespace|object|package|sub|procedure)"
    rf"[{SPACE}]+[{WORD}$*(<:.~]"
)
_METHOD = re2.compile(rf"([{WORD}]+|\$).*\(.*\{{$")
_STATEMENTS = frozenset(str.split("if for while switch catch else do try return with elif match when until"))
_SECTION = re2.compile(rf"(?:-[{SPACE}]+)?[\"']?([{WORD}$@./-][{WORD} $@./()-]*?)[\"']?[{SPACE}]*[:=]?[{SPACE}]*[:{{]$")
MOST_SECTION = 61
"""Characters of the name of a section."""


def add_json(marks: Marks, text: str, codes: Codes, filled: npt.NDArray[np.int64]) -> None:
    """Add the keys of objects and arrays, and long objects without a key, with their ends.

    codes: of the text. filled: as in Lines.
    """
    quotes = _quotes(codes)
    if not (codes[(quotes + 1).clip(max=codes.size - 1)] == ord(":")).any():
        return
    places = _structure(codes, quotes)
    kinds = codes[places].tolist()
    keys, colons = (found.tolist() for found in _keys_before(codes, places, quotes, filled))
    positions = places.tolist()
    partner = _closings(kinds)
    depth = 0
    for number, (place, kind) in enumerate(zip(positions, kinds, strict=True)):
        if kind in _OPEN:
            depth += 1
            size = (positions[partner[number]] if partner[number] >= 0 else codes.size) - place
            if keys[number] >= 0 and size > LONG_OBJECT:
                marks.add(keys[number], colons[number] + 1, "json", depth)
            elif keys[number] >= 0 or size <= LONG_RECORD:
                continue
            elif member := _FIRST_MEMBER.match(text[place : place + LONGEST_MEMBER]):
                marks.add(place, place + member.end(), "json", depth)
        elif depth:
            goes_on = text[place + 1 : place + 4].lstrip(" ,")[:1].strip()
            marks.add(place if goes_on else place + 1, place + 1, "json", depth, closes=True)
            depth -= 1


_OPEN = (ord("{"), ord("["))


def _quotes(codes: Codes) -> npt.NDArray[np.int64]:
    """Where quotation marks stand that are not escaped."""
    quotes = codes == ord('"')
    quotes[1:] &= codes[:-1] != ord("\\")
    return np.flatnonzero(quotes)


def _structure(codes: Codes, quotes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Where brackets stand outside of the strings of a line. quotes: by `_quotes`."""
    places = np.flatnonzero(among(codes, "{}[]"))
    starts = np.r_[0, np.flatnonzero(codes == ord("\n")) + 1]
    line = starts[np.searchsorted(starts, places, "right") - 1]
    return places[(np.searchsorted(quotes, places) - np.searchsorted(quotes, line)) % 2 == 0]


def _keys_before(
    codes: Codes, places: npt.NDArray[np.int64], quotes: npt.NDArray[np.int64], filled: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Where the key before each bracket begins, -1 for one without a key; and where the colon after it is."""
    before = np.searchsorted(filled, places)
    colon, end = filled[(before - 1).clip(min=0)], filled[(before - 2).clip(min=0)]
    quote = np.searchsorted(quotes, end)
    start = quotes[(quote - 1).clip(min=0)]
    has_key = (codes[colon] == ord(":")) & (codes[end] == ord('"')) & (before > 1) & (quote > 0)
    return np.where(has_key & (end - start <= LONGEST_KEY), start, -1), colon


def _closings(kinds: list[int]) -> list[int]:
    """The number of the bracket that closes each opening one; -1 for the others."""
    partner, opened = [-1] * len(kinds), []
    for number, kind in enumerate(kinds):
        if kind in _OPEN:
            opened.append(number)
        elif opened:
            partner[opened.pop()] = number
    return partner


def add_code(marks: Marks, text: str, codes: Codes, lines: TextLines) -> None:
    """Add definitions and sections that have lines nested under them, and where less indented lines end them."""
    if lines.raw.size < 2 or not (lines.indents > 0).any():
        return
    indents = lines.indents
    deeper = np.append(indents[1:] > indents[:-1], False)
    less = np.r_[False, indents[1:] < indents[:-1]]
    first = codes[lines.first]
    closing = among(first, ")]}")
    raw, _, _, after = lines.places
    added = False
    for number in np.flatnonzero(deeper & ~among(first, "#<>*=")).tolist():
        line = lines.text(text, number)
        section, method = _SECTION.match(line), _METHOD.match(line)
        if (
            (section and len(section[1]) <= MOST_SECTION)
            or (method and method[1] not in _STATEMENTS)
            or _DEFINITION.match(line)
        ):
            marks.add(raw[number], after[number], "code", int(indents[number]))
            added = True
    for number in np.flatnonzero(less & ~closing).tolist() if added else ():
        marks.add(raw[number], raw[number], "code", int(indents[number]), closes=True)
