"""The input and the output, in the file format of OpenAI's Batch API, and the parts of the input.

Input: `{"custom_id": ..., "method": "POST", "url": "/v1/chat/completions", "body": {...}}`.
Output: `{"id", "custom_id", "response": {"status_code", "request_id", "body", "headers"}, "error"}`.

If the endpoint answered, also with an HTTP error, `error` is null. Otherwise `response` is null and `error` is
`{"code", "message"}`. https://platform.openai.com/docs/guides/batch

The input is read once before the job starts, which finds unusable rows and splits it into parts: consecutive rows that
are sent, answered and written as a unit. They depend on the input alone, so all runs of a file have the same parts.
"""

import hashlib
import zlib
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import msgspec

from cluster.batch.storage import locate, open_rows, storage_errors
from skim_common.errors import SkimError

ENDPOINTS = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages")

PARTS = 200
"""Number of parts, as far as the bounds on their size allow."""
MIN_ROWS, MAX_ROWS = 8, 256
MAX_BYTES = 8 * 2**20
"""Largest input of a part, which stays in memory while the part is answered. A single row may be larger."""
MAX_SHOWN = 5

_BOM = b"\xef\xbb\xbf"


class BatchRequest(msgspec.Struct, frozen=True):
    """A row of the input. body: the body of the HTTP request, with Skim's options."""

    custom_id: str
    method: str
    url: str
    body: dict[str, Any]


class Response(msgspec.Struct, frozen=True, omit_defaults=True):
    """The endpoint's answer. body: decoded JSON, or the text if it is not JSON. headers: Skim's own, `x-skim-*`."""

    status_code: int
    request_id: str
    body: Any
    headers: dict[str, str] = msgspec.field(default_factory=dict)


class RowFault(msgspec.Struct, frozen=True):
    """Why a row has no response. code: machine-readable, OpenAI's code if it has one."""

    code: str
    message: str


class BatchAnswer(msgspec.Struct, frozen=True):
    """A row of the output."""

    id: str
    custom_id: str | None
    response: Response | None
    error: RowFault | None

    @property
    def failed(self) -> bool:
        """Whether the row has no answer: it could not be sent, or the endpoint answered with an HTTP error."""
        return self.response is None or self.response.status_code >= 400


class UnusableRowError(Exception):
    """A line that cannot be sent. custom_id: None if it could not be read."""

    def __init__(self, code: str, message: str, custom_id: str | None) -> None:
        super().__init__(message)
        self.fault, self.custom_id = RowFault(code, message), custom_id


def parse(line: bytes) -> BatchRequest:
    """The request of one line of the input. Raises UnusableRowError."""
    try:
        row = msgspec.json.decode(line.removeprefix(_BOM))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UnusableRowError("invalid_json_line", f"the line is not valid JSON: {error}", None) from None
    try:
        request = msgspec.convert(row, BatchRequest)
    except msgspec.ValidationError as error:
        custom_id = row.get("custom_id") if isinstance(row, dict) else None
        raise UnusableRowError(
            "invalid_request", str(error), custom_id if isinstance(custom_id, str) else None
        ) from None
    if request.method != "POST":
        fault = "invalid_method", f"method must be POST, not {request.method!r}"
    elif request.url not in ENDPOINTS:
        fault = "invalid_url", f"url must be one of {', '.join(ENDPOINTS)}, not {request.url!r:.80}"
    elif request.body.get("stream"):
        fault = "invalid_request", "a batch cannot stream: leave `stream` out of the body"
    else:
        return request
    raise UnusableRowError(*fault, request.custom_id)


def usage_of(body: Any) -> tuple[int, int]:
    """Tokens of prompt and answer in a response body of any endpoint; 0 if it does not say."""
    usage = body.get("usage") if isinstance(body, dict) else None
    fields = usage if isinstance(usage, dict) else {}
    read, written = (
        next((fields[name] for name in names if isinstance(fields.get(name), int)), 0)
        for names in (("prompt_tokens", "input_tokens"), ("completion_tokens", "output_tokens"))
    )
    return read, written


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
    """Read the whole input. Raises SkimError if it cannot be read, has no rows, or uses a custom_id twice."""
    plan, sha, end = InputPlan(), hashlib.sha256(), 0
    rows = list[tuple[int, int, int, int]]()  # line, start, end, check
    lines_of, repeated = dict[str, int](), list[str]()
    with open_rows(url) as file:
        for number, line in enumerate(file, 1):
            sha.update(line)
            start, end = end, end + len(line)
            if not line.strip():
                continue
            rows.append((number, start, end, _check(line)))
            try:
                request = parse(line)
                custom_id: str | None = request.custom_id
                plan.urls[request.url] += 1
            except UnusableRowError as row:
                custom_id = row.custom_id
                plan.unusable += 1
                if len(plan.problems) < MAX_SHOWN:
                    plan.problems.append(f"line {number}: {row}")
            if custom_id is not None and (first := lines_of.setdefault(custom_id, number)) != number:
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
        if last == len(rows) or last - first == most or rows[last][2] - rows[first][1] > MAX_BYTES:
            numbers, starts, ends, checks = zip(*rows[first:last], strict=True)
            plan.parts.append(Part(len(plan.parts), numbers[0], starts[0], ends[-1], checks))
            first = last
    return plan


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
