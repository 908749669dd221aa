"""Reads the whole input once before the job starts: finds unusable rows, and splits the input into parts.

A part is a run of consecutive rows that are sent, answered and written as a unit. Parts depend on the input alone, so
every run of the same file has the same parts.
"""

import hashlib
import io
import zlib
from array import array
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from cluster.batch.rows import UnusableRowError, parse
from cluster.batch.storage import locate, storage_errors
from kv_transfer.errors import SkimError

PARTS = 200
"""Number of parts, as far as the bounds on their size allow."""
MIN_ROWS, MAX_ROWS = 8, 256
MAX_BYTES = 8 * 2**20
"""Largest input of a part, which stays in memory while the part is answered. A single row may be larger."""

SHOWN = 5


@dataclass(frozen=True, slots=True)
class Part:
    """Rows of the input from byte `offset`. line: line number of the first row, from 1. digest: of the rows."""

    index: int
    offset: int
    size: int
    line: int
    rows: int
    digest: int


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

    Memory: about 150 bytes per row, for the custom_ids.
    """
    plan, sha = InputPlan(), hashlib.sha256()
    rows, lines_of, repeated = _Rows(), dict[bytes, int](), list[str]()
    fs, path = locate(url)
    with storage_errors(url), fs.open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            sha.update(line)
            rows.add(number, line)
            if not line.strip():
                continue
            custom_id = _examine(plan, number, line)
            if custom_id is None:
                continue
            key = hashlib.blake2b(custom_id.encode(errors="surrogatepass"), digest_size=16).digest()
            if (first := lines_of.setdefault(key, number)) != number:
                repeated.append(f"{custom_id!r:.60} in lines {first} and {number}")
    if repeated:
        more = f" and {len(repeated) - SHOWN} more" if len(repeated) > SHOWN else ""
        shown = ", ".join(repeated[:SHOWN])
        raise SkimError(f"{url} uses a custom_id twice: {shown}{more}; give every row its own custom_id")
    plan.fingerprint, plan.rows, plan.parts = sha.hexdigest(), len(rows.offsets), list(rows.parts())
    if not plan.rows:
        raise SkimError(f"{url} has no rows: it must hold one JSON object per line")
    return plan


def _examine(plan: InputPlan, number: int, line: bytes) -> str | None:
    """Count the row. Returns its custom_id if that can be read."""
    try:
        request = parse(line)
    except UnusableRowError as row:
        plan.unusable += 1
        if len(plan.problems) < SHOWN:
            plan.problems.append(f"line {number}: {row}")
        return row.custom_id
    plan.urls[request.url] += 1
    return request.custom_id


class _Rows:
    """Offsets, line numbers and checksums of the rows, 16 bytes per row. Blank lines belong to the row before them."""

    def __init__(self) -> None:
        self.offsets, self._numbers, self._checks = array("Q"), array("I"), array("I")
        self._end = 0

    def add(self, number: int, line: bytes) -> None:
        if line.strip():
            self.offsets.append(self._end)
            self._numbers.append(number)
            self._checks.append(zlib.crc32(line))
        self._end += len(line)

    def parts(self) -> Iterator[Part]:
        count, offsets = len(self.offsets), self.offsets + array("Q", [self._end])
        most = min(max(count // PARTS, MIN_ROWS), MAX_ROWS)
        first = index = 0
        while first < count:
            last = first + 1
            while last < min(count, first + most) and offsets[last + 1] - offsets[first] <= MAX_BYTES:
                last += 1
            digest = zlib.crc32(self._checks[first:last].tobytes())
            yield Part(
                index, offsets[first], offsets[last] - offsets[first], self._numbers[first], last - first, digest
            )
            first, index = last, index + 1


def read_part(url: str, part: Part) -> list[tuple[int, bytes]]:
    """(line number, line) of each row of the part. Raises SkimError if the rows have changed since `read_plan`."""
    fs, path = locate(url)
    with storage_errors(url):
        data = fs.cat_file(path, start=part.offset, end=part.offset + part.size)
    lines = enumerate(io.BytesIO(data), part.line)
    rows = [(number, line) for number, line in lines if line.strip()]
    if zlib.crc32(array("I", [zlib.crc32(line) for _, line in rows]).tobytes()) != part.digest:
        raise SkimError(
            f"{url} changed during the job (part {part.index}): submit again when the file no longer changes"
        )
    return rows
