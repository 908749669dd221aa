"""The order in which rows are sent: rows that begin with the same long text follow each other. Pure.

The engines keep what they have read in a prefix cache. Questions about one document find it there if they come one
after the other; far apart, the document would be evicted and read again. Rows are ordered within windows of the input,
because their prompts are in memory until a window is full.
"""

from collections.abc import Sequence

import msgspec

from cluster.batch.rows import BatchRequest

WINDOW_BYTES = 64 * 2**20
WINDOW_ROWS = 16384
"""A window of the input ends where one of these is full. A single row may be larger."""
SHARED_BYTES = 1024
SHARED_PART = 0.75
"""Two prompts begin the same if the common beginning is so long, and this part of the shorter one."""

_FIELDS = ("model", "cache_salt", "tools", "system", "instructions", "messages", "prompt", "input")


def prompt_of(request: BatchRequest) -> bytes:
    """What the engines read of a row, as JSON, with what comes first in all chat templates first."""
    return msgspec.json.encode([request.body.get(name) for name in _FIELDS])


class Window:
    """Rows of the input, in a row, that are put into the order in which they are sent."""

    def __init__(self) -> None:
        self._prompts: list[bytes] = []
        self._bytes = 0

    def add(self, prompt: bytes, size: int) -> bool:
        """Add the next row. prompt: as `prompt_of`; empty if it is unknown. size: of its line. Returns whether the
        window is full."""
        self._prompts.append(prompt)
        self._bytes += size
        return self._bytes >= WINDOW_BYTES or len(self._prompts) >= WINDOW_ROWS

    def take(self) -> list[tuple[int, int]]:
        """(row, later) in the order in which the rows are sent: a row by its place in the window, and how many rows
        after it begin the same. Empties the window.

        Groups stand in the order of their first rows, and the rows of a group in input order.
        """
        groups = _groups(self._prompts)
        self._prompts, self._bytes = [], 0
        return [(row, later) for group in groups for row, later in zip(group, reversed(range(len(group))), strict=True)]


def _groups(prompts: Sequence[bytes]) -> list[list[int]]:
    """Indices of prompts that begin the same. Of sorted prompts, those with the longest common beginnings are next to
    each other."""
    groups: list[list[int]] = []
    for row in sorted(range(len(prompts)), key=prompts.__getitem__):
        if groups and _begin_same(prompts[groups[-1][-1]], prompts[row]):
            groups[-1].append(row)
        else:
            groups.append([row])
    return sorted(map(sorted, groups))


def _begin_same(a: bytes, b: bytes) -> bool:
    enough = max(SHARED_BYTES, int(SHARED_PART * min(len(a), len(b))))
    return min(len(a), len(b)) >= enough and a[:enough] == b[:enough]
