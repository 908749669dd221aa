"""Reads the whole input once before the job starts: finds unusable rows, and splits the input into parts.

A part is a run of rows that are sent, answered and written as a unit: consecutive rows in the order of
`cluster.batch.order`. Parts depend on the input alone, so every run of the same file has the same parts.
"""

import hashlib
import zlib
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from cluster.batch.order import Window, prompt_of
from cluster.batch.rows import BatchRequest, UnusableRowError, parse
from cluster.batch.storage import locate, open_rows, storage_errors
from skim_common.errors import SkimError

PARTS = 200
"""Number of parts, as far as the bounds on their size allow."""
MIN_ROWS, MAX_ROWS = 8, 256
MAX_BYTES = 8 * 2**20
"""Largest input of a part, which stays in memory while the part is answered. A single row may be larger."""
GAP_BYTES = 16384
"""Rows of a part that stand at most so far from each other in the input are read at once."""

SHOWN = 5


@dataclass(frozen=True, slots=True)
class Part:
    """Rows of the input in the order in which they are sent. window: the number of theirs, in input order.

    lines: their line numbers, from 1. offsets, sizes: their places in the input, bytes. later: as `Window.take`.
    digest: of the rows.
    """

    index: int
    window: int
    lines: tuple[int, ...]
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    later: tuple[int, ...]
    digest: int

    @property
    def rows(self) -> int:
        return len(self.lines)

    def ranges(self) -> list[tuple[int, int]]:
        """What is read of the input for this part, (start, end) in bytes; each row is in one of them."""
        found: list[tuple[int, int]] = []
        for offset, size in sorted(zip(self.offsets, self.sizes, strict=True)):
            start = found.pop()[0] if found and offset - found[-1][1] <= GAP_BYTES else offset
            found.append((start, offset + size))
        return found


@dataclass(slots=True)
class InputPlan:
    """The result of reading the input. fingerprint: SHA-256 of its bytes, unpacked. packed: whether it is in gzip's
    format; offsets are those of the unpacked rows. problems: the first unusable lines."""

    fingerprint: str = ""
    packed: bool = False
    rows: int = 0
    unusable: int = 0
    problems: list[str] = field(default_factory=list)
    urls: Counter[str] = field(default_factory=Counter)
    parts: list[Part] = field(default_factory=list)


def read_plan(url: str) -> InputPlan:
    """Read the whole input. Raises SkimError if it cannot be read, has no rows, or uses a custom_id twice.

    Memory: about 400 bytes per row, for the custom_ids and the parts, and the prompts of one window.
    """
    plan, sha = InputPlan(), hashlib.sha256()
    rows, lines_of, repeated = _Rows(), dict[bytes, int](), list[str]()
    with open_rows(url) as (file, plan.packed):
        for number, line in enumerate(file, 1):
            sha.update(line)
            if not line.strip():
                rows.skip(line)
                continue
            request, custom_id = _examine(plan, number, line)
            rows.add(number, line, prompt_of(request) if request else b"")
            if custom_id is None:
                continue
            key = hashlib.blake2b(custom_id.encode(errors="surrogatepass"), digest_size=16).digest()
            if (first := lines_of.setdefault(key, number)) != number:
                repeated.append(f"{custom_id!r:.60} in lines {first} and {number}")
    if repeated:
        more = f" and {len(repeated) - SHOWN} more" if len(repeated) > SHOWN else ""
        shown = ", ".join(repeated[:SHOWN])
        raise SkimError(f"{url} uses a custom_id twice: {shown}{more}; give every row its own custom_id")
    plan.fingerprint, plan.rows, plan.parts = sha.hexdigest(), len(rows), list(rows.parts())
    if not plan.rows:
        raise SkimError(f"{url} has no rows: it must hold one JSON object per line")
    return plan


def _examine(plan: InputPlan, number: int, line: bytes) -> tuple[BatchRequest | None, str | None]:
    """Count the row. Returns its request and its custom_id, each if it can be read."""
    try:
        request = parse(line)
    except UnusableRowError as row:
        plan.unusable += 1
        if len(plan.problems) < SHOWN:
            plan.problems.append(f"line {number}: {row}")
        return None, row.custom_id
    plan.urls[request.url] += 1
    return request, request.custom_id


class _Rows:
    """The rows in input order and the order in which they are sent, 32 bytes per row."""

    def __init__(self) -> None:
        self._offsets, self._sizes = array("Q"), array("Q")
        self._lines, self._checks = array("I"), array("I")
        self._order, self._later = array("I"), array("I")
        self._ends: list[int] = []
        self._window, self._end = Window(), 0

    def __len__(self) -> int:
        return len(self._lines)

    def skip(self, line: bytes) -> None:
        self._end += len(line)

    def add(self, number: int, line: bytes, prompt: bytes) -> None:
        self._offsets.append(self._end)
        self._sizes.append(len(line))
        self._lines.append(number)
        self._checks.append(zlib.crc32(line))
        self._end += len(line)
        if self._window.add(prompt, len(line)):
            self._close()

    def _close(self) -> None:
        """End the window."""
        first = len(self._order)
        rows, later = self._window.take()
        self._order.extend(first + row for row in rows)
        self._later.extend(later)
        self._ends.append(len(self._order))

    def parts(self) -> Iterator[Part]:
        if len(self._order) < len(self):
            self._close()
        most = min(max(len(self) // PARTS, MIN_ROWS), MAX_ROWS)
        first = index = window = 0
        while first < len(self):
            window += first == self._ends[window]
            last, size = first + 1, self._sizes[self._order[first]]
            while last < min(self._ends[window], first + most):
                size += self._sizes[self._order[last]]
                if size > MAX_BYTES:
                    break
                last += 1
            last = self._whole_groups(first, last, most)
            yield self._part(index, window, first, last)
            first, index = last, index + 1

    def _whole_groups(self, first: int, last: int, most: int) -> int:
        """Where a part ends that has room until `last`: before a group that it would divide, if it is half full."""
        ends = [row for row in range(first + (most + 1) // 2, last + 1) if not self._later[row - 1]]
        return ends[-1] if ends else last

    def _part(self, index: int, window: int, first: int, last: int) -> Part:
        def of(column: Sequence[int]) -> tuple[int, ...]:
            return tuple(column[row] for row in self._order[first:last])

        return Part(
            index,
            window,
            of(self._lines),
            of(self._offsets),
            of(self._sizes),
            tuple(self._later[first:last]),
            _digest(of(self._checks)),
        )


def _digest(checks: Sequence[int]) -> int:
    return zlib.crc32(array("I", checks).tobytes())


def read_part(url: str, part: Part) -> list[tuple[int, bytes]]:
    """(line number, line) of each row of the part. Raises SkimError if the rows have changed since `read_plan`."""
    fs, path = locate(url)
    starts, ends = zip(*part.ranges(), strict=True)
    with storage_errors(url):
        found = fs.cat_ranges([path] * len(starts), list(starts), list(ends), on_error="raise")
    lines = []
    for offset, size in zip(part.offsets, part.sizes, strict=True):
        place = bisect_right(starts, offset) - 1
        start = offset - starts[place]
        lines.append(found[place][start : start + size])
    if _digest([zlib.crc32(line) for line in lines]) != part.digest:
        raise SkimError(
            f"{url} changed during the job (part {part.index}): submit again when the file no longer changes"
        )
    return list(zip(part.lines, lines, strict=True))
