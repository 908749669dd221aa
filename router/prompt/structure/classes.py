"""Classes of rows: which of them open a block, and which rows name it.

A class is a shape that recurs, with its first word where words recur in a fixed order, as the fields of records do. It
opens blocks if other rows stand between, and its rows begin something. What is the same in all records names nothing:
then the first row of the record that differs does. A class with nothing after its last row names what stands before.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from router.prompt.structure.rows import STOPS, Bools, Ints, Rows, Shapes
from router.prompt.text.codes import Codes, among, known_characters

LEAST, MANY = 3, 6
"""So often a class recurs; and one of words alone whose rows only follow in order."""
MOSTLY = 0.7
"""Share of the rows of a class that have what makes it one that opens blocks."""
ORDERED = 0.8
"""Share of the rows of a field that the same field precedes."""
DIFFERENT = 0.9
"""Share of the rows of a class that no earlier one equals, if its rows can name records."""
NESTED = 0.3
"""In a text with more indented rows, indents tell what is nested, and indented rows open no block by their shape."""
SHORT, TITLE = 100, 60
"""Characters of a row that is a label as a whole, and of a title."""
FAR = 24
"""Rows from the beginning of a record to the one that names it."""
LAST = 2
"""A class names what follows its last row for so many times the longest of its other blocks."""
FOOT, BODY = 0.1, 0.5
"""Shares of a mean block: a class with less after its last row, and more before its first one, names what stands
before."""
BULLETS = ">-*\u2022\u2013\u25e6\u00b7"
CLOSINGS = ")]}`~"


class Classes(NamedTuple):
    """Of each row [N]:

    kind: the class of blocks that it opens, or -1. named: the row that names the block. until: its last row at most.
    key: its class. members: rows of that. turn: its prefix alone is a label. fresh: a blank line stands before most of
    them. constant: most of them are equal. field: the same row stands before most of them, and began the record.
    closes: they name what stands before. outer: they are few among rows of another class. bullet: an item of a list.
    deeper: the next row is indented further. title: a short row without a stop at its end.
    """

    kind: Ints
    named: Ints
    until: Ints
    key: Ints
    members: Ints
    turn: Bools
    fresh: Bools
    constant: Bools
    field: Bools
    closes: Bools
    outer: Bools
    bullet: Bools
    deeper: Bools
    title: Bools

    @classmethod
    def of(cls, codes: Codes, rows: Rows, shapes: Shapes, fenced: Ints, starts: Ints) -> "Classes":
        """codes: of the text. fenced: how deep the rows in fences are nested [N]. starts: the rows with which messages
        begin, ascending from 0."""
        size, last = rows.end - rows.first, codes[rows.end - 1]
        first, second = codes[rows.first], codes[(rows.first + 1).clip(max=codes.size - 1)]
        bullet = among(first, BULLETS) & among(second, " \t")
        deeper = np.append(rows.indent[1:] > rows.indent[:-1], False)
        title = (size <= SHORT) & ~among(last, STOPS)

        _, ordered = _beside(shapes.worded, np.r_[shapes.worded.max() + 1, shapes.worded[:-1]])
        worded = ordered & (np.bincount(shapes.worded)[shapes.worded] >= LEAST)
        key = np.unique(np.where(worded, shapes.worded + size.size, shapes.shape), return_inverse=True)[1]
        count = np.bincount(key)[key]
        before, ordered = _beside(key, np.r_[key.max() + 1, key[:-1]])
        after, _ = _beside(key, np.r_[key[1:], key.max() + 1])
        seen = np.append(np.unique(key, return_index=True)[1], -1)
        later = ordered & (seen[before] > seen[key])
        outer = ordered & ~later & (before == after) & (count < BODY * np.append(np.bincount(key), 0)[before])
        outer &= _share(key, title) >= MOSTLY
        field = ordered & ~later & ~outer & (before != key)
        alternate = _share(key, np.r_[False, False, key[2:] == key[:-2]][: key.size]) >= BODY  # two speakers
        cycle = (later & ~alternate) | outer

        edge, words = rows.fresh | rows.apart, shapes.strength < 0
        heading = edge & title & ~known_characters().small[first]
        able = (shapes.strength > 0) | ((shapes.strength == 0) & (_share(key, edge & title) >= BODY))
        able |= words & (_share(key, heading) >= MOSTLY)
        able |= cycle & (_share(key, ~among(last, STOPS)) >= MOSTLY) & (~words | (count > MANY))
        indented = rows.indent > fenced
        free = bullet | (indented & (indented.mean() > NESTED)) | among(first, CLOSINGS)
        free |= (first == ord("<")) & (second == ord("/"))
        able &= (count >= LEAST) & ~free & (_share(key, np.append(key[1:] != key[:-1], True)) >= MOSTLY)
        body = np.append(words[1:] | deeper[:-1], True) & ~field
        opens = able & ((_share(key, rows.fresh | body) >= BODY) | cycle)

        times = np.bincount(shapes.whole)[shapes.whole]
        constant = (times >= LEAST) & (times >= BODY * count)
        different = np.zeros(size.size, bool)
        different[np.unique(shapes.whole, return_index=True)[1]] = True
        names = (_share(key, different) >= DIFFERENT) & (count >= LEAST) & shapes.has_word & (size <= SHORT) & ~bullet
        records = constant & (opens | deeper & among(first, "{[<("))
        named = np.where(constant, _names(rows, shapes, key, records, opens, names), np.arange(size.size))
        closes = able & _closing(rows, key, opens & (named >= 0), starts)
        kind = np.where(opens | closes, key, -1)
        turn = (shapes.strength > 0) | ((shapes.strength == 0) & (_share(key, rows.fresh) >= BODY))
        turn &= (kind < 0) & ~(field & (size <= SHORT)) & ~free & (first != ord("{"))
        turn &= np.bincount(shapes.shape)[shapes.shape] >= LEAST
        fresh = _share(key, rows.fresh) >= MOSTLY
        return cls(
            kind, named, _until(key), key, count, turn, fresh, constant, field, closes, outer, bullet, deeper, title
        )


def _share(key: Ints, chosen: Bools) -> npt.NDArray[np.float64]:
    """Of each row the share of the rows of its class that are chosen."""
    return (np.bincount(key, chosen) / np.bincount(key))[key]


def _beside(key: Ints, other: Ints) -> tuple[Ints, Bools]:
    """Of each row the class that stands most often beside the rows of its class, and whether it nearly always does.
    other: the class beside each row, which may be one more than the last."""
    size = int(key.max()) + 2
    pairs, counts = np.unique(key * size + other, return_counts=True)
    order = np.argsort(counts, kind="stable")
    own, beside = np.divmod(pairs[order], size)
    usual, most = np.zeros((2, size), np.int64)
    usual[own], most[own] = beside, counts[order]
    return usual[key], most[key] >= ORDERED * (np.bincount(key)[key] - 1)


def _by_class(key: Ints) -> tuple[Ints, Ints]:
    """The rows by class, in the order of the text; and where each class begins there."""
    order = np.argsort(key, kind="stable")
    return order, np.flatnonzero(np.diff(key[order], prepend=-1))


def _until(key: Ints) -> Ints:
    """The last row at most of the block that each row opens."""
    order, edges = _by_class(key)
    gaps = np.diff(order, prepend=0)
    gaps[edges] = 0
    longest = np.maximum.reduceat(gaps, edges)
    until = np.full(key.size, key.size)
    last = order[np.append(edges[1:], key.size) - 1]
    until[last] = last + LAST * longest + 1
    return until


def _closing(rows: Rows, key: Ints, opens: Bools, starts: Ints) -> Bools:
    """The rows of classes with nothing after the last one, and before the first one as much as between two; and no
    row that opens a block right after them."""
    order, edges = _by_class(key)
    first, last = order[edges], order[np.append(edges[1:], key.size) - 1]
    begin = rows.raw[starts[np.searchsorted(starts, first, "right") - 1]]
    end = rows.after[np.append(starts[1:], key.size)[np.searchsorted(starts, last, "right") - 1] - 1]
    mean = (rows.raw[last] - rows.raw[first]) / np.maximum(1, np.bincount(key) - 1)
    closing = (end - rows.after[last] <= FOOT * mean) & (rows.raw[first] - begin >= BODY * mean)
    return closing[key] & (_share(key, rows.apart) >= MOSTLY) & (_share(key, np.append(opens[1:], False)) < BODY)


def _names(rows: Rows, shapes: Shapes, key: Ints, records: Bools, opens: Bools, names: Bools) -> Ints:
    """The row that names each record, or -1: of the first class of `names` that each of the equal records has once.
    records: the rows with which they begin. opens: of a class that came before, they end a record."""
    seen = np.unique(key, return_index=True)[1][key]
    at = np.flatnonzero(records)
    groups, group = np.unique(shapes.whole[at], return_inverse=True)
    size, going, parts = np.bincount(group, minlength=groups.size), np.ones(at.size, bool), [np.zeros((3, 0), np.int64)]
    for apart in range(1, FAR + 1):
        place = np.minimum(at + apart, key.size - 1)
        going &= (at + apart < key.size) & (shapes.whole[place] != shapes.whole[at])
        going &= (rows.indent[place] >= rows.indent[at]) & (~opens[place] | (seen[place] > seen[at]))
        held = going & names[place]
        parts.append(np.stack([group[held] * key.size + key[place[held]], at[held], place[held]]))
    pair, record, row = np.concatenate(parts, 1)
    pairs, first, number, counts = np.unique(pair, return_index=True, return_inverse=True, return_counts=True)
    of = pairs // key.size
    good = np.flatnonzero((counts >= ORDERED * size[of]) & (counts <= size[of] / ORDERED))
    best = np.full(groups.size, -1)
    for choice in good[np.argsort(-first[good], kind="stable")].tolist():
        best[of[choice]] = choice
    found = np.full(key.size, -1)
    chosen = np.flatnonzero(best[pair // key.size] == number)[::-1]
    found[record[chosen]] = row[chosen]
    return found
