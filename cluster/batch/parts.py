"""Reads the whole input once before the job starts: finds unusable rows, and splits the input into parts.

A part is a run of consecutive rows that are sent, answered and written as a unit. Parts depend on the input alone, so
every run of the same file has the same parts.
"""

import hashlib
import zlib
from collections import Counter
from dataclasses import dataclass, field

from cluster.batch.rows import UnusableRowError, parse
from cluster.batch.storage import locate, open_rows, storage_errors
from skim_common.errors import SkimError

PARTS = 200
"""Number of parts, as far as the bounds on their size allow."""
MIN_ROWS, MAX_ROWS = 8, 256
MAX_BYTES = 8 * 2**20
"""Largest input of a part, which stays in memory while the part is answered. A single row may be larger."""
MAX_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Part:
    """Consecutive rows of the input. line: the first one's number, from 1. start, end: their place, in bytes.

    checks: the CRC-32 of each row's line.
    """

    index: int
    line: int
    start: int
    end: int
    checks: tuple[int, ...]

    @property
    def rows(self) -> int:
        return len(self.checks)


@dataclass(slots=True)
class InputPlan:
    """The result of reading the input. fingerprint: SHA-256 of its bytes. problems: the first unusable lines."""

    fingerprint: str = ""
    rows: int = 0
    unusable: int = 0
    problems: list[str] = field(default_factory=list)
    urls: Counter[str] = field(default_factory=Counter)
    parts: list[Part] = field(default_factory=list)


def read_plan(url: str) -> InputPlan:
    """Read the whole input. Raises SkimError if it cannot be read, has no rows, or uses a custom_id twice.

    Memory: about 400 bytes per row, for the custom_ids and the parts.
    """
    plan, sha, end = InputPlan(), hashlib.sha256(), 0
    rows = list[tuple[int, int, int, int]]()  # line, start, end, check
    lines_of, repeated = dict[bytes, int](), list[str]()
    with open_rows(url) as file:
        for number, line in enumerate(file, 1):
            sha.update(line)
            start, end = end, end + len(line)
            if not line.strip():
                continue
            rows.append((number, start, end, _check(line)))
            custom_id = _examine(plan, number, line)
            if custom_id is None:
                continue
            key = hashlib.blake2b(custom_id.encode(errors="surrogatepass"), digest_size=16).digest()
            if (first := lines_of.setdefault(key, number)) != number:
                repeated.append(f"{custom_id!r:.60} in lines {first} and {number}")
    if repeated:
        more = f" and {len(repeated) - MAX_SHOWN} more" if len(repeated) > MAX_SHOWN else ""
        shown = ", ".join(repeated[:MAX_SHOWN])
        raise SkimError(f"{url} uses a custom_id twice: {shown}{more}; give every row its own custom_id")
    if not rows:
        raise SkimError(f"{url} has no rows: it must hold one JSON object per line")
    plan.fingerprint, plan.rows = sha.hexdigest(), len(rows)
    most, first = min(max(len(rows) // PARTS, MIN_ROWS), MAX_ROWS), 0
    for last in range(1, len(rows) + 1):
        full = last == len(rows) or last - first == most or rows[last][2] - rows[first][1] > MAX_BYTES
        if full:
            numbers, starts, ends, checks = zip(*rows[first:last], strict=True)
            plan.parts.append(Part(len(plan.parts), numbers[0], starts[0], ends[-1], checks))
            first = last
    return plan


def _examine(plan: InputPlan, number: int, line: bytes) -> str | None:
    """Count the row. Returns its custom_id, if it can be read."""
    try:
        request = parse(line)
    except UnusableRowError as row:
        plan.unusable += 1
        if len(plan.problems) < MAX_SHOWN:
            plan.problems.append(f"line {number}: {row}")
        return row.custom_id
    plan.urls[request.url] += 1
    return request.custom_id


def _check(line: bytes) -> int:
    return zlib.crc32(line.rstrip(b"\n"))


def read_part(url: str, part: Part) -> list[tuple[int, bytes]]:
    """The part's rows with their line numbers. Raises SkimError if they have changed since `read_plan`."""
    fs, path = locate(url)
    with storage_errors(url):
        data = fs.cat_file(path, part.start, part.end)
    rows = [(number, line) for number, line in enumerate(data.split(b"\n"), part.line) if line.strip()]
    if tuple(_check(line) for _, line in rows) != part.checks:
        raise SkimError(
            f"{url} changed during the job (part {part.index}): submit again when the file no longer changes"
        )
    return rows
