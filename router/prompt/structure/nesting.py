"""Which label names which rows: a block lasts until a row ends it, by its indent, its sign or its class."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from router.prompt.structure.classes import SHORT, TITLE, Classes
from router.prompt.structure.labels import NONE, Labels
from router.prompt.structure.rows import Ints, Rows, Shapes
from router.prompt.structure.signs import SIGN, fences_of, headings_of, names_indented
from router.prompt.structure.tables import tables_of
from router.prompt.text.codes import Codes, among, known_characters
from router.prompt.text.lines import Lines

MOST_LABELS = 8
"""Of deeper nested text, the chain has so many outer labels and the nearest one."""
MOST_HEAD, LONGEST_HEAD = 3, 200
"""Rows and characters of the head of a block."""
ALIKE = 0.7, 1.4
"""A field of a record stands in so large a share of the records."""
SHORT_TITLE, PREFIX = 32, 48
"""Characters. So short a sentence after a number is its title; so far a sign after a prefix, such as the colon of a
speaker after a time, belongs to it."""
INDENTED, LIST, TABLE, GROUP, TURN = range(-2, -7, -1)
"""Kinds of blocks besides those of a class: under a row with deeper ones, after a colon, of a table and a part of it,
after a prefix."""
_TITLE = SIGN - 9


def labels_of(text: str, codes: Codes, lines: Lines, resets: Iterable[int], outside: Ints) -> Labels:
    """The labels of a text. codes, lines: of the text. resets: characters before which nothing names what follows, such
    as where a message begins. outside: as in `Rows.of`, such as the template."""
    nesting = _Nesting(text)
    rows = Rows.of(text, codes, lines, outside)
    if rows.raw.size:
        nesting.run(rows, codes, sorted(resets))
    return nesting.labels()


class _Block(NamedTuple):
    """A block that holds: its indent, its kind, its label, its first row, and its last row at most."""

    indent: int
    kind: int
    label: int
    row: int
    until: int


class _Nesting:
    """The blocks that hold at a row, from the outermost on, and all labels so far."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.stack = list[_Block]()
        self.starts, self.ends, self.parents, self.places, self.names = (list[int]() for _ in range(5))
        self.inline, self.ahead = list[bool](), list[bool]()
        self.taken = set[int]()

    def run(self, rows: Rows, codes: Codes, resets: list[int]) -> None:
        """Find the labels."""
        first, last, size = codes[rows.first], codes[rows.end - 1], rows.end - rows.first
        starts = np.unique(np.r_[0, np.searchsorted(rows.raw, resets)])
        starts = starts[starts < rows.raw.size]
        fenced = fences_of(self.text, rows, codes, starts)
        rows = rows._replace(indent=rows.indent + fenced)
        shapes = Shapes.of(codes, rows)
        classes = Classes.of(codes, rows, shapes, fenced, starts)
        bullet, deeper = classes.bullet, classes.deeper
        colon, listed = among(last, ":\uff1a"), np.append(bullet[1:], False)
        title = (np.append(size[1:], 0) > np.maximum(TITLE, 2 * size)) & classes.title & (size <= TITLE) & (size > 1)
        title = (title & ~known_characters().small[first]) | (colon & ~listed & rows.apart & (size <= SHORT))
        title &= rows.fresh & ~bullet
        self.cut, self.list, self.fresh = shapes.cut.tolist(), (colon & listed).tolist(), rows.fresh.tolist()
        self.raw, self.first, self.end, self.after, self.indent = (of.tolist() for of in rows[:5])
        self.named, self.until, self.members = (of.tolist() for of in (classes.named, classes.until, classes.members))
        self.field, self.constant, self.bullet = (of.tolist() for of in (classes.field, classes.constant, bullet))
        self.deeper, self.turn = deeper.tolist(), (classes.turn & (shapes.strength >= 0)).tolist()
        same = np.append(classes.key[1:] == classes.kind[:-1], False)
        self.prefixed = (same | ((size > SHORT) & ~classes.constant)).tolist()
        self.speaks = (shapes.strength >= 0).tolist()
        self.signs = headings_of(self.text, rows, codes, shapes.strength, bullet)
        self.tables, self.groups = tables_of(self.text, codes, rows)
        self.feet = self._feet(classes, starts)
        kind = np.where(classes.closes | (deeper & ~classes.fresh), NONE, classes.kind)
        levels = {row: level for row, level in self.signs.items() if level != NONE}
        kind[[*levels]] = [*levels.values()]
        kind[title & (kind == NONE)] = _TITLE
        kind[[*self.feet]] = [foot for foot, _ in self.feet.values()]
        self.kind = kind.tolist()
        kinds, firsts = np.unique(kind, return_index=True)
        self.seen = dict(zip(kinds.tolist(), np.where(classes.outer[firsts], NONE, firsts).tolist(), strict=True))
        events = (kind != NONE) | classes.turn | deeper | colon | rows.fresh | (first == ord("<"))
        events |= np.r_[False, rows.indent[1:] < rows.indent[:-1]]
        ends = [row + 1 for row in self.tables.values() if row + 1 < size.size]
        events[[*self.tables, *self.groups, *starts, *ends]] = True
        waiting = resets[::-1]
        for row in np.flatnonzero(events).tolist():
            while waiting and waiting[-1] <= self.raw[row]:
                self.stack.clear()
                self.places.append(waiting.pop())
                self.names.append(NONE)
            self._add(row)

    def _feet(self, classes: Classes, starts: Ints) -> dict[int, tuple[int, list[int]]]:
        """The blocks of classes that name what stands before: their first row, with the class and the rows of the
        label."""
        found, begin = dict[int, tuple[int, list[int]]](), dict[int, int]()
        for row in np.flatnonzero(classes.closes).tolist():
            kind, message = int(classes.kind[row]), int(starts[np.searchsorted(starts, row, "right") - 1])
            if head := self._head(row):
                found[max(message, begin.get(kind, message))] = kind, head
                begin[kind] = head[-1] + 1
        return found

    def _head(self, row: int) -> list[int]:
        """The rows that name the block that a row of a class opens: itself or what differs, and fields after it."""
        first = self.named[row]
        if first < 0:
            return []
        head, count = [first], self.members[row]
        for field in range(first + 1, min(first + 2 * MOST_HEAD, len(self.raw))):
            alike = ALIKE[0] * count <= self.members[field] <= ALIKE[1] * count
            near = not self.fresh[field] and self.indent[field] == self.indent[first]
            if not (self.field[field] and alike and near and self.end[field] - self.first[first] <= LONGEST_HEAD):
                break
            if not self.constant[field] and len(head) < MOST_HEAD:
                head.append(field)
        return head

    def _add(self, row: int) -> None:
        """End the blocks that a row ends, and open the one that it opens."""
        kind, stack, labels, size = self.kind[row], self.stack, len(self.starts), len(self.stack)
        while stack and self._ends(stack[-1], row, kind):
            stack.pop()
        if self.text.startswith("</", self.first[row]):
            self._end_element(row)
        if row not in self.taken:
            self._open(row, kind)
        if self.list[row] and len(self.starts) == labels:
            self._push(self._last_sentence(row), self.after[row], row, LIST)
        if len(self.starts) == labels and len(stack) < size:
            self.places.append(self.raw[row])
            self.names.append(stack[-1].label if stack else NONE)

    def _ends(self, block: _Block, row: int, kind: int) -> bool:
        """Whether a row, which opens a block of a kind, ends a block."""
        if block.until < row or block.indent > self.indent[row]:
            return True
        if block.indent < self.indent[row] or block.kind in (TABLE, GROUP):
            return block.kind == GROUP and row in self.groups
        if block.kind == LIST:
            return self.fresh[row] and not self.bullet[row]
        if block.kind in (INDENTED, kind):
            return True
        if block.kind == TURN:
            return kind != NONE or self.turn[row]
        if block.kind <= SIGN and kind <= SIGN:
            return block.kind <= kind
        return kind != NONE and self.seen[kind] < self.seen[block.kind]

    def _end_element(self, row: int) -> None:
        """End the element that an end tag closes."""
        start = "<" + self.text[self.first[row] + 2 : self.end[row]].split(">")[0]
        for place in range(len(self.stack) - 1, -1, -1):
            if self.stack[place].indent != self.indent[row]:
                return
            if self.text.startswith(start, self.first[self.stack[place].row]):
                del self.stack[place:]
                return

    def _open(self, row: int, kind: int) -> None:
        start, end = self.raw[row], self.after[row]
        if row in self.tables:
            self._push(start, end, row, TABLE, until=self.tables[row])
        elif row in self.groups:
            self._push(start, end, row, GROUP, until=self.groups[row])
        elif row in self.feet:
            self._push_rows(self.feet[row][1], row, kind)
        elif kind <= SIGN:
            underlined = row + 1 in self.signs and self.signs[row + 1] == NONE
            self._push(start, self.after[row + underlined], row, kind)
        elif kind >= 0:
            if not self.prefixed[row]:
                self._push_rows(self._head(row), row, kind)
            elif self.speaks[row]:
                self._push_prefix(row, kind)
        elif self.deeper[row] and self._names_indented(row):
            self._push(start, end, row, INDENTED)
        elif self.deeper[row] and self.constant[row] and self.named[row] >= 0:
            self._push_rows(self._head(row), row, INDENTED)
        elif self.turn[row]:
            self._push_prefix(row, TURN)

    def _push(self, start: int, end: int, row: int, kind: int, place: int = NONE, until: int = NONE) -> None:
        """Open a block with a label. place: where the label names the text from on, if not from its own start."""
        stack, label = self.stack, len(self.starts)
        self.parents.append(stack[min(len(stack), MOST_LABELS) - 1].label if stack else NONE)
        self.places.append(start if place < 0 else place)
        self.names.append(label)
        self.starts.append(start)
        self.ends.append(end)
        self.inline.append(end < self.end[row])
        self.ahead.append(0 <= place < start)
        until = until if until >= 0 else self.until[row] if kind >= 0 else len(self.raw)
        stack.append(_Block(self.indent[row], kind, label, row, until))

    def _push_rows(self, head: list[int], row: int, kind: int) -> None:
        for named in head:
            place, start = self.raw[min(named, row)], self.raw[named]
            if len(self.text[place:start].strip()) <= 1:  # its opening bracket
                start = place
            self._push(start, self.after[named], row, kind, place=place)
        self.taken.update(head)

    def _push_prefix(self, row: int, kind: int) -> None:
        """Open a block with the beginning of a row."""
        text, cut, end = self.text, self.cut[row], self.end[row]
        before_label = self.stack and self.ahead[self.stack[-1].label] and self.starts[self.stack[-1].label] > cut
        if kind == TURN and before_label:
            return
        window = text[cut : min(end, cut + PREFIX)]
        sign = max(window.rfind(sign) for sign in (": ", "] ", "> ", ") ", "\t", "\uff1a"))
        if sign >= 0:
            cut += sign + 1
        elif 0 < (stop := window.find(". ")) <= SHORT_TITLE and text[cut - 1] in ".0123456789":
            cut += stop + 1
        if any(map(str.isalnum, text[self.first[row] : cut])):
            self._push(self.raw[row], cut if cut < end else self.after[row], row, kind)

    def _last_sentence(self, row: int) -> int:
        """Where the last sentence of a row begins, if the row is no label as a whole."""
        line = self.text[self.first[row] : self.end[row]]
        stop = max(line.rfind(sign) for sign in (". ", "? ", "! ", "\u3002")) if len(line) > SHORT else -1
        return self.first[row] + stop + 1 if stop >= 0 else self.raw[row]

    def _names_indented(self, row: int) -> bool:
        line = self.text[self.first[row] : min(self.end[row], self.first[row] + SHORT + 1)]
        return names_indented(line) and not (line[0] == "<" and self.constant[row])

    def labels(self) -> Labels:
        """All labels of the text."""
        starts, ends, parents, places, names = (
            np.array(of, np.int64) for of in (self.starts, self.ends, self.parents, self.places, self.names)
        )
        order = np.argsort(starts, kind="stable")
        number = np.full(order.size + 1, NONE)
        number[order] = np.arange(order.size)
        inline, ahead = (np.array(of, bool)[order] for of in (self.inline, self.ahead))
        places = np.maximum.accumulate(places)
        return Labels(starts[order], ends[order], inline, ahead, number[parents[order]], places, number[names])
