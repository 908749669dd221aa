"""The labels of a text, and which unit each of them names."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kv_transfer.arrays import Int32Array

LONG_TURN = 32
"""Tokens. A label at the beginning of a line is a unit of its own if what it names is longer."""
MOST_BEFORE = 2
"""Characters of a token before a label that begins in it."""
NONE = -1
_BEYOND = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True, eq=False)
class Labels:
    """The labels of a text. starts, ends: their characters [N]; starts ascend. inline: what it names begins in the same
    line [N]. ahead: it names what stands before it, too [N]. parents: of each the label that names it, or -1 [N].
    places: characters from which on another label names the text, ascending [P]. names: that label, or -1 [P].
    """

    starts: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]
    inline: npt.NDArray[np.bool_]
    ahead: npt.NDArray[np.bool_]
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
        named by the one above them; no label is named by a later one.

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
        ahead = np.append(self.ahead, False)
        is_text = ~np.isin(own, unit_of)
        while (inside := (label >= 0) & (unit_of[label] >= own) & ~(ahead[label] & is_text)).any():
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
