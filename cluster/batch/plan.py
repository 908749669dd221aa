"""Reads the whole input once before the job starts: finds unusable rows, and splits the input into parts.

A part is a run of rows that are sent, answered and written as a unit: consecutive rows in the order of
`cluster.batch.order`. Parts depend on the input alone, so every run of the same file has the same parts.
"""

import hashlib
import zlib
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

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


class InputRow(NamedTuple):
    """A row of the input: its line number, from 1, its place in bytes, and the CRC-32 of the line.

    later: how many rows after it begin the same.
    """

    line: int
    offset: int
    size: int
    check: int
    later: int = 0


@dataclass(frozen=True, slots=True)
class Part:
    """Rows of the input in the order in which they are sent. window: the number of theirs, in input order."""

    index: int
    window: int
    sent: tuple[InputRow, ...]

    @property
    def rows(self) -> int:
        return len(self.sent)

    def ranges(self) -> list[tuple[int, int]]:
        """What is read of the input for this part, (start, end) in bytes; each row is in one of them."""
        found: list[tuple[int, int]] = []
        for row in sorted(self.sent):
            start = found.pop()[0] if found and row.offset - found[-1][1] <= GAP_BYTES else row.offset
            found.append((start, row.offset + row.size))
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
    rows, lines_of, repeated = _Windows(), dict[bytes, int](), list[str]()
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
    plan.fingerprint, plan.parts = sha.hexdigest(), rows.parts()
    plan.rows = sum(part.rows for part in plan.parts)
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


class _Windows:
    """The rows of the input by windows, in the order in which they are sent."""

    def __init__(self) -> None:
        self._windows: list[list[InputRow]] = []
        self._rows, self._window, self._end = list[InputRow](), Window(), 0

    def skip(self, line: bytes) -> None:
        self._end += len(line)

    def add(self, number: int, line: bytes, prompt: bytes) -> None:
        self._rows.append(InputRow(number, self._end, len(line), zlib.crc32(line)))
        self._end += len(line)
        if self._window.add(prompt, len(line)):
            self._close()

    def _close(self) -> None:
        """End the window."""
        self._windows.append([self._rows[row]._replace(later=later) for row, later in self._window.take()])
        self._rows = []

    def parts(self) -> list[Part]:
        if self._rows:
            self._close()
        most = min(max(sum(map(len, self._windows)) // PARTS, MIN_ROWS), MAX_ROWS)
        parts: list[Part] = []
        for window, rows in enumerate(self._windows):
            first = 0
            while first < len(rows):
                last = _end_of_part(rows, first, most)
                parts.append(Part(len(parts), window, tuple(rows[first:last])))
                first = last
        return parts


def _end_of_part(rows: Sequence[InputRow], first: int, most: int) -> int:
    """Where a part ends that begins at `first`: before a group that it would divide, if it is half full."""
    last, size = first + 1, rows[first].size
    while last < min(len(rows), first + most):
        size += rows[last].size
        if size > MAX_BYTES:
            break
        last += 1
    ends = [end for end in range(first + (most + 1) // 2, last + 1) if not rows[end - 1].later]
    return ends[-1] if ends else last


def read_part(url: str, part: Part) -> list[bytes]:
    """The lines of the part's rows. Raises SkimError if the rows have changed since `read_plan`."""
    fs, path = locate(url)
    starts, ends = zip(*part.ranges(), strict=True)
    with storage_errors(url):
        found = fs.cat_ranges([path] * len(starts), list(starts), list(ends), on_error="raise")
    lines = []
    for row in part.sent:
        place = bisect_right(starts, row.offset) - 1
        start = row.offset - starts[place]
        line = found[place][start : start + row.size]
        if zlib.crc32(line) != row.check:
            raise SkimError(
                f"{url} changed during the job (part {part.index}): submit again when the file no longer changes"
            )
        lines.append(line)
    return lines
