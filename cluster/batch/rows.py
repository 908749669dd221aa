"""A row of the input and a row of the output, in the file format of OpenAI's Batch API.

Input: `{"custom_id": ..., "method": "POST", "url": "/v1/chat/completions", "body": {...}}`.
Output: `{"id", "custom_id", "response": {"status_code", "request_id", "body", "headers"}, "error"}`.

If the endpoint answered, also with an HTTP error, `error` is null. Otherwise `response` is null and `error` is
`{"code", "message"}`. OpenAI writes answers and errors to two files; here all rows are in one file, in input order.
https://platform.openai.com/docs/guides/batch
"""

from typing import Any

import msgspec

ENDPOINTS = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages")

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

    def __init__(self, fault: RowFault, custom_id: str | None) -> None:
        super().__init__(fault.message)
        self.fault, self.custom_id = fault, custom_id


def parse(line: bytes) -> BatchRequest:
    """The request of one line of the input. Raises UnusableRowError."""
    try:
        row = msgspec.json.decode(line.removeprefix(_BOM))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _unusable("invalid_json_line", f"the line is not valid JSON: {error}", None) from None
    try:
        request = msgspec.convert(row, BatchRequest)
    except msgspec.ValidationError as error:
        raise _unusable("invalid_request", str(error), _custom_id(row)) from None
    if request.method != "POST":
        raise _unusable("invalid_method", f"method must be POST, not {request.method!r}", request.custom_id)
    if request.url not in ENDPOINTS:
        known = ", ".join(ENDPOINTS)
        raise _unusable("invalid_url", f"url must be one of {known}, not {request.url!r:.80}", request.custom_id)
    if request.body.get("stream"):
        raise _unusable("invalid_request", "a batch cannot stream: leave `stream` out of the body", request.custom_id)
    return request


def _unusable(code: str, message: str, custom_id: str | None) -> UnusableRowError:
    return UnusableRowError(RowFault(code, message), custom_id)


def _custom_id(row: Any) -> str | None:
    custom_id = row.get("custom_id") if isinstance(row, dict) else None
    return custom_id if isinstance(custom_id, str) else None


def usage_of(body: Any) -> tuple[int, int]:
    """Tokens of prompt and answer in a response body of any endpoint; 0 if it does not say."""
    usage = body.get("usage") if isinstance(body, dict) else None
    if not isinstance(usage, dict):
        return 0, 0
    return _count(usage, "prompt_tokens", "input_tokens"), _count(usage, "completion_tokens", "output_tokens")


def _count(usage: dict[str, Any], *names: str) -> int:
    return next((usage[name] for name in names if isinstance(usage.get(name), int)), 0)
