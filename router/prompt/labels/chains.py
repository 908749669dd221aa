"""The chain of labels at each place of a text: which label names it, and which label names that one."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kv_transfer.arrays import Int32Array
from router.prompt.labels.fences import CUT_OFF, add_fences
from router.prompt.labels.forms import add_lines
from router.prompt.labels.keys import add_keys
from router.prompt.labels.marks import FENCE, Marks, TextLines
from router.prompt.labels.nested import add_code, add_json
from router.prompt.labels.tables import add_tables
from router.prompt.labels.tags import add_tags
from router.prompt.text.codes import Codes
from router.prompt.text.lines import Lines

MOST_LABELS = 8
"""Of deeper nested text, the chain has so many outer labels and the nearest one."""
LONG_TURN = 32
"""Tokens. A label at the beginning of a line is a unit of its own if what it names is longer."""
MOST_BEFORE = 2
"""Characters of a token before a label that begins in it."""
NONE = -1
_OF_CODE = ("heading", "code")
"""Groups of which code in a fence has marks. One of another group ends a fence that is cut off, if it ends a label
before it, such as that of a passage."""
_BEYOND = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True, eq=False)
class Labels:
    """The labels of a text. starts, ends: their characters [N]; starts ascend. inline: as in Mark [N]. parents: of each
    the label that names it, or -1 [N]. places: characters from which on another label names the text, ascending [P].
    names: that label, or -1 [P].
    """

    starts: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]
    inline: npt.NDArray[np.bool_]
    parents: npt.NDArray[np.int64]
    places: npt.NDArray[np.int64]
    names: npt.NDArray[np.int64]

    def borders(
        self, begins: npt.NDArray[np.int64], filled: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """The tokens where labels that are units begin, and those where they end, [B] each.

        begins: the first character of each token [M], ascending. filled: as in Lines. A label that ends inside of a
        token is no unit; one that begins in a token has what stands before it there, such as a bracket.
        """
        first, whole = _tokens_at(self.starts, begins, filled)
        end = np.searchsorted(begins, self.ends)
        whole &= ~_has_text(self.ends, np.append(begins, _BEYOND)[end], filled)
        turn = np.append(first[1:], begins.size) - first
        chosen = whole & (end > first) & ~(self.inline & (turn <= LONG_TURN))
        return first[chosen], end[chosen]

    def headings(
        self,
        begins: npt.NDArray[np.int64],
        filled: npt.NDArray[np.int64],
        units: npt.NDArray[np.int64],
        named: npt.NDArray[np.bool_],
    ) -> Int32Array:
        """The unit with the label that names each unit, or its own number, int32 [U]. A unit that begins with labels is
        named by the one above them.

        begins, filled: as in `borders`. units: the first token of each unit [U]. named: the units that may have
        a label [U].
        """
        if not self.places.size:
            return np.arange(units.size, dtype=np.int32)
        unit_of = np.searchsorted(units, _tokens_at(self.starts, begins, filled)[0], "right") - 1
        ends = np.append(units[1:], begins.size)[unit_of]
        unit_of += ~named[unit_of] & (ends < np.searchsorted(begins, self.ends))  # its beginning is kept anyway
        unit_of, parents = np.append(unit_of, NONE), np.append(self.parents, NONE)
        places = np.maximum.accumulate(_tokens_at(self.places, begins, filled)[0])
        place = np.searchsorted(places, units, "right") - 1
        label = np.where(place >= 0, self.names[place], NONE)
        own = np.arange(units.size)
        while (inside := (label >= 0) & (unit_of[label] >= own)).any():
            label = np.where(inside, parents[label], label)
        return np.where(named & (label >= 0), unit_of[label], own).astype(np.int32)


def _tokens_at(
    places: npt.NDArray[np.int64], begins: npt.NDArray[np.int64], filled: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """The first token of the text from each place on [P], and whether a border before it tears nothing [P].

    begins, filled: as in `Labels.borders`. A token that begins with few characters before the place counts.
    """
    token = np.searchsorted(begins, places)
    begin = np.append(begins, _BEYOND)[token]
    torn = _has_text(places, begin, filled)
    near = torn & (places - begins[(token - 1).clip(min=0)] <= MOST_BEFORE)
    return np.where(near, token - 1, token), near | ~torn


def _has_text(
    first: npt.NDArray[np.int64], end: npt.NDArray[np.int64], filled: npt.NDArray[np.int64]
) -> npt.NDArray[np.bool_]:
    """Whether text stands between characters, [N]."""
    return np.searchsorted(filled, first) < np.searchsorted(filled, end)


def labels_of(text: str, codes: Codes, lines: Lines, resets: Iterable[int] = ()) -> Labels:
    """The labels of a text. codes, lines: of the text. resets: characters before which nothing names what follows, such
    as where a message begins."""
    rows = TextLines.of(lines, codes.size)
    marks = Marks()
    messages = list(resets)
    for place in messages:
        marks.add(place, place, "", closes=True)
    add_fences(marks, text, codes, rows, messages)
    add_code(marks, text, codes, rows)
    add_tables(marks, text, codes, rows)
    add_lines(marks, text, codes, rows)
    add_keys(marks, text, codes, rows)
    add_tags(marks, text)
    add_json(marks, text, codes, lines.filled)
    return _Chain(text, marks).labels()


class _Chain:
    """The labels that hold at a place, from the outermost on. The marks of a text are added in its order."""

    def __init__(self, text: str, marks: Marks) -> None:
        self._text, self._marks = text, marks
        self._stack: list[int] = []  # labels
        self._groups: dict[str, list[int]] = {}  # the places in the stack of the labels that hold, by group
        self._outside: dict[str, list[int]] | None = None  # in a fence, those of the labels before it
        self._before = 0  # so many
        self._is_cut_off = False
        self._separator = False  # the last one of the stack only parts what was named from what follows
        self._labels: list[int] = []  # marks
        self._parents: list[int] = []
        self._places: list[int] = []
        self._names: list[int] = []
        order, last = marks.order(), NONE
        starts = marks.starts
        for number, mark in enumerate(order):
            if starts[mark] < last and not marks.closes[mark]:
                continue  # inside of the label before it
            self._add(mark, starts[order[number + 1]] if number + 1 < len(order) else len(text))
            last = max(last, marks.ends[mark])

    def _add(self, mark: int, following: int) -> None:
        """following: where the next mark begins."""
        marks, stack = self._marks, self._stack
        if self._separator:
            self._cut(len(stack) - 1)
        group, level = marks.groups[mark], marks.levels[mark]
        ended = NONE
        if self._outside is not None and self._ends_fence(group):
            self._cut(self._before)
            self._groups, self._outside = self._outside, None
        if group == FENCE and level:
            self._outside, self._groups, self._before = self._groups, {}, len(stack)
            self._is_cut_off = level == CUT_OFF
        elif not group:
            self._cut(0)
        elif holding := self._groups.get(group):
            while holding and marks.levels[self._labels[stack[holding[-1]]]] >= level:
                place = holding[-1]
                ended = stack[place]
                self._cut(place)
        if not marks.closes[mark]:
            self._push(mark, stack[min(len(stack), MOST_LABELS) - 1] if stack else NONE)
        elif ended != NONE and marks.ends[mark] > marks.starts[mark] and self._goes_on(marks.ends[mark], following):
            self._push(mark, ended)
            self._separator = True
        else:
            self._places.append(marks.ends[mark])
            self._names.append(stack[-1] if stack else NONE)

    def _goes_on(self, end: int, following: int) -> bool:
        """Whether text stands between a closing mark and the next one."""
        return bool(self._text[end : min(following, end + 8)].strip(" \t\r\n,"))

    def _push(self, mark: int, parent: int) -> None:
        label = len(self._labels)
        self._labels.append(mark)
        self._parents.append(parent)
        self._groups.setdefault(self._marks.groups[mark], []).append(len(self._stack))
        self._stack.append(label)
        self._places.append(self._marks.starts[mark])
        self._names.append(label)

    def _ends_fence(self, group: str) -> bool:
        """Whether a mark of this group ends the fence around it."""
        return group in ("", FENCE) or bool(
            self._is_cut_off and self._outside and group not in _OF_CODE and self._outside.get(group)
        )

    def _cut(self, size: int) -> None:
        """What holds from `size` on holds no longer."""
        for label in self._stack[size:]:
            self._groups[self._marks.groups[self._labels[label]]].pop()
        del self._stack[size:]
        self._separator = False

    def labels(self) -> Labels:
        """All labels of the text."""
        chosen = np.array(self._labels, np.int64)
        starts, ends, inline = (
            np.array(of, np.int64) for of in (self._marks.starts, self._marks.ends, self._marks.inline)
        )
        places = np.maximum.accumulate(np.array(self._places, np.int64))
        names, parents = np.array(self._names, np.int64), np.array(self._parents, np.int64)
        return Labels(starts[chosen], ends[chosen], inline[chosen] > 0, parents, places, names)
