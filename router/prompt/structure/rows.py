"""The rows of a text: its lines and, in long lines of JSON, the members of objects; and the shape of each row.

A shape is how a row begins: runs of digits, words and signs, up to the first white space after a sign or a number.
"""

from collections.abc import Iterator
from functools import cache
from itertools import islice
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import re2

from router.prompt.text.codes import Codes, among, known_characters
from router.prompt.text.lines import Lines

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

LONG = 200
"""Characters. A longer line of JSON has a row for each member of its objects."""
LONG_OBJECT = 100
"""Characters. A shorter object or array is a value of one row."""
MOST_PARTS = 100_000
"""Brackets or tags of one line that are looked at: as many as data of a megabyte has."""
MOST_QUOTES = 8
"""Signs of a quotation before a line, each of which counts as an indent."""
SYMBOLS = 14
"""A shape has so many at most."""
PROSE, WORDS = 3, 4
"""Prose, which has no sign so early, is told apart by its first symbols alone; a row's first word is among these."""
WIDTH, LONGEST_WORD = 100, 16
"""Characters of a row that its shape looks at, and of its first word."""
MARKS = ":|=)]>#@\u00a7%+/&~^{$\\\t\uff1a\u3011\u3001"
"""Signs that end a prefix, such as "12)" or "Name:"."""
JOINS = "|*+:=~^\uff1a"
"""Signs that end it also without white space, after the first word."""
STOPS = ".!?,;\u3002\uff01\uff1f\u060c\u061f\u0964\u06d4"
NUMERALS = "\u3007\u4e00\u4e8c\u4e09\u56db\u4e94\u516d\u4e03\u516b\u4e5d\u5341\u767e\u5343\u96f6"
"""Chinese and Japanese digits."""
_TAG = re2.compile(r"<(/?)([A-Za-z_][\w:.-]*)([^<>]*)>")
_LOWER, _UPPER, _DIGIT, _MIXED, _SPACE, _SIGN = range(1, 7)
_M = np.uint64(0x9E3779B97F4A7C15)
_INVERSE = np.uint64(pow(int(_M), -1, 1 << 64))


class Rows(NamedTuple):
    """The rows that are not blank [N]. raw: where they begin. first, end: of their text. after: where the next line
    begins. indent: as in Lines; of a member, one more than that of its object. fresh: after a blank line or at the
    beginning. apart: before one, or at the end."""

    raw: Ints
    first: Ints
    end: Ints
    after: Ints
    indent: Ints
    fresh: Bools
    apart: Bools

    @classmethod
    def of(cls, text: str, codes: Codes, lines: Lines, outside: Ints) -> "Rows":
        """codes: of the text. outside: character ranges, ascending [S, 2]. Rows inside of one are left out."""
        raw = np.r_[0, lines.breaks + 1]
        members = _members(text, codes, raw)
        begins = np.union1d(raw, [*members]).astype(np.int64)
        line = np.searchsorted(raw, begins, "right") - 1
        depth = np.zeros(begins.size, np.int64)
        depth[np.searchsorted(begins, [*members])] = [*members.values()]
        after = np.append(begins[1:], codes.size)
        places = np.searchsorted(lines.filled, np.append(begins, codes.size))
        number = np.flatnonzero(places[1:] > places[:-1])
        edges = lines.filled[places[number]], lines.filled[places[number + 1] - 1]
        span = np.searchsorted(outside.ravel(), edges, "right")
        number = number[(span[0] % 2 == 0) | (span[0] != span[1])]
        line, depth = line[number], depth[number]
        first, end = lines.filled[places[number]], lines.filled[places[number + 1] - 1] + 1
        blank = np.diff(line) > 1
        fresh, apart = np.r_[True, blank][: line.size], np.r_[blank, True][: line.size]
        held = lines.filled[np.searchsorted(lines.filled, lines.starts[line]).clip(max=lines.filled.size - 1)]
        indent = held - lines.starts[line] + depth
        for _ in range(MOST_QUOTES):
            second = codes[(first + 1).clip(max=codes.size - 1)]
            quoted = (codes[first] == ord(">")) & among(second, "> ") & (first + 2 < end)
            indent += quoted
            first = first + quoted * (1 + (second == ord(" ")))
        return cls(begins[number], first, end, after[number], indent, fresh, apart)


def _members(text: str, codes: Codes, raw: Ints) -> dict[int, int]:
    """Where the members of long objects and elements begin in long lines, and how deep each lies. raw: where lines
    begin."""
    found = dict[int, int]()
    for starts, ends, names, steps in _parts(text, codes, raw):
        opened, size = list[int](), [0] * len(starts)
        for number, step in enumerate(steps):
            if step > 0:
                opened.append(number)
                size[number] = 0 if names[number] else LONG  # if it is cut off
            elif step < 0 and opened and names[opened[-1]] == names[number]:
                size[opened[-1]] = size[number] = starts[number] - starts[opened[-1]]
                opened.pop()
        held, depth, before = list[bool](), 0, 0
        for start, end, name, step, length in zip(starts, ends, names, steps, size, strict=True):
            is_long = length > LONG_OBJECT
            inside = held[-1] if held else before < 0
            if step < 0 and length:
                held.pop()
                depth -= is_long
            if is_long and (step < 0 or name):
                found[start] = depth
            if step > 0:
                held.append(is_long)
                depth += is_long
            if (is_long and (step > 0 or name)) or (not step and inside):
                found[end] = depth
            before = step
    return found


_Parts = tuple[list[int], list[int], list[str], list[int]]
"""Where parts begin and end, the name of a tag, and 1 if it opens something, -1 if it closes it, else 0."""


def _parts(text: str, codes: Codes, raw: Ints) -> Iterator[_Parts]:
    """The brackets and commas outside of strings, or the tags, of each long line that has them."""
    stops = np.append(raw[1:], codes.size)
    quotes = np.flatnonzero((codes == ord('"')) & np.r_[True, codes[:-1] != ord("\\")])
    keys = quotes[np.append(codes[1:], 0)[quotes] == ord(":")]
    for start, end in zip(*(of[stops - raw > LONG].tolist() for of in (raw, stops)), strict=True):
        if np.diff(np.searchsorted(keys, (start, end))) > 1:
            places = start + np.flatnonzero(among(codes[start:end], "{}[],"))[:MOST_PARTS]
            places = places[(np.searchsorted(quotes, places) - np.searchsorted(quotes, start)) % 2 == 0]
            steps = among(codes[places], "{[").astype(np.int64) - among(codes[places], "}]")
            yield places.tolist(), (places + 1).tolist(), [""] * places.size, steps.tolist()
        elif text.find("</", start, end) >= 0:
            tags = [tag for tag in islice(_TAG.finditer(text[start:end]), MOST_PARTS) if not tag[3].endswith("/")]
            closed = {tag[2] for tag in tags if tag[1]}
            tags = [tag for tag in tags if tag[2] in closed]
            starts, ends = [start + tag.start() for tag in tags], [start + tag.end() for tag in tags]
            yield starts, ends, [tag[2] for tag in tags], [-1 if tag[1] else 1 for tag in tags]


@cache
def _symbols() -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """The symbol of each character: its kind or, of a sign and of what is written without spaces, its own. And the same
    with one symbol for all that a word with digits is made of."""
    known, points = known_characters(), [chr(code) for code in range(0x10000)]
    table = np.where(known.word | known.mark, np.where(known.small, _LOWER, _UPPER), np.arange(0x10000) + _SIGN)
    table[ord("_")] = _LOWER
    table[known.alone] = np.flatnonzero(known.alone) + _SIGN
    table[known.digit] = _DIGIT
    table[[ord(point) for point in NUMERALS]] = _DIGIT
    table[[point.isspace() and point != "\t" for point in points]] = _SPACE
    together = np.where((table == _UPPER) | (table == _DIGIT), _LOWER, table)
    return table.astype(np.int32), together.astype(np.int32)


class Shapes(NamedTuple):
    """Of each row: its shape; the shape with its first word as it is; the whole row; the characters of its prefix; its
    strength: whether a sign (1) or only a number (0) ends the prefix, or it is words alone (-1); whether it has a word
    or a number at all."""

    shape: Ints
    worded: Ints
    whole: Ints
    cut: Ints
    strength: Ints
    has_word: Bools

    @classmethod
    def of(cls, codes: Codes, rows: Rows) -> "Shapes":
        """codes: of the text."""
        length = rows.end - rows.first
        size = length.clip(max=WIDTH)
        ends = np.cumsum(size)
        starts = ends - size
        offset = np.arange(int(ends[-1])) - np.repeat(starts, size)
        seen = codes[np.repeat(rows.first, size) + offset]
        sums = np.r_[np.uint64(0), np.cumsum((seen + np.uint64(1)) * _powers(_M)[offset])]

        kinds, groups = _symbols()
        group = groups[seen]
        edge = np.r_[True, (group[1:] != group[:-1]) | (group[1:] > _SIGN)]
        edge[starts] = True
        run = np.flatnonzero(edge)
        at = np.searchsorted(run, starts)
        place = np.arange(run.size) - np.repeat(at, np.diff(at, append=run.size))
        few = place < SYMBOLS
        run, run_ends, place = run[few], np.append(run[1:], seen.size)[few], place[few]
        at = np.flatnonzero(place == 0)
        row = np.cumsum(place == 0) - 1
        symbol, char = kinds[seen[run]], seen[run]
        digit = np.r_[0, np.cumsum((kinds == _DIGIT)[seen], dtype=np.int32)]
        digits = digit[run_ends] - digit[run]
        mixed = (group[run] == _LOWER) & (digits > 0)
        symbol[mixed] = np.where(digits == run_ends - run, _DIGIT, _MIXED)[mixed]
        after_number = np.r_[False, symbol[:-1] == _DIGIT] & (place > 0)

        numbered = (symbol == _DIGIT) | (symbol == _MIXED)
        signed = among(char, MARKS) | ((char == ord("*")) & (place > 0)) | ((char == ord(".")) & after_number)
        told = _first(numbered | signed, place, at)
        is_end = ((symbol == _SPACE) & (place > told[row])) | (char == ord("\t"))
        is_end |= ((char == ord(">")) & (place > 1)) | ((place == 1) & among(char, JOINS) & ~after_number)
        last = _first(is_end, place, at)
        held = place <= last[row]
        strength = np.maximum.reduceat(np.where(held, np.where(signed, 1, numbered - 1), -1), at)
        word = _first(held & (place < WORDS) & ((symbol <= _MIXED) | known_characters().alone[char]), place, at)
        has_word = word < SYMBOLS
        begin = at + np.where(has_word, word, 0)
        name = sums[np.minimum(run_ends[begin], run[begin] + LONGEST_WORD)] - sums[run[begin]]
        name *= has_word * _powers(_INVERSE)[offset[run[begin]]]
        held &= (strength >= 0)[row] | (place < PROSE)
        indent = rows.indent.astype(np.uint64) * _M
        key = indent + np.add.reduceat(held * (symbol.astype(np.uint64) + np.uint64(1)) * _powers(_M)[place + 1], at)
        whole = indent + sums[ends] - sums[starts] + length.astype(np.uint64)
        stop = at + np.minimum(last, np.diff(at, append=run.size) - 1)
        prefix = np.where(last < SYMBOLS, run[stop] + (symbol[stop] != _SPACE), run_ends[stop]) - starts
        cut = rows.first + np.where(strength < 0, 0, prefix)
        return cls(_numbered(key), _numbered(key + name * _M), _numbered(whole), cut, strength, has_word)


def _first(chosen: Bools, place: Ints, at: Ints) -> Ints:
    """The first place in each row that is chosen, or SYMBOLS. at: where each row begins among the places."""
    first: Ints = np.minimum.reduceat(np.where(chosen, place, SYMBOLS), at)
    return first


def _numbered(keys: npt.NDArray[np.uint64]) -> Ints:
    return np.unique(keys, return_inverse=True)[1].astype(np.int64)


@cache
def _powers(base: np.uint64) -> npt.NDArray[np.uint64]:
    powers: npt.NDArray[np.uint64] = np.cumprod(np.r_[np.uint64(1), np.full(WIDTH, base)], dtype=np.uint64)
    return powers
