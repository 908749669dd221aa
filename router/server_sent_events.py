"""Server-sent events of OpenAI streams: the router writes an error as one, clients read them.

Comments are lines that begin with a colon; clients ignore them. The router writes two kinds: `KEEP_ALIVE`, and at the
end the values that were not known when the headers had to leave.
"""

import json
from collections.abc import Mapping
from typing import Any

from kv_transfer.errors import SkimError


def write_error_event(error: Mapping[str, Any]) -> bytes:
    """An event that both kinds of clients understand. error: in the OpenAI shape.

    OpenAI's clients look for an `error` in the data, Anthropic's for an event of that name.
    """
    return f"event: error\ndata: {json.dumps({'type': 'error', **error})}\n\n".encode()


KEEP_ALIVE = b": keep-alive\n\n"

_LATE = ": skim "


def write_late_values(values: Mapping[str, str]) -> bytes:
    """A comment with response headers that came too late, by name."""
    return f"{_LATE}{json.dumps(dict(values))}\n\n".encode()


def read_late_values(line: str | bytes) -> dict[str, str]:
    """The late response headers in one line of a stream; empty for every other line."""
    text = line.decode() if isinstance(line, bytes) else line
    values: dict[str, str] = json.loads(text.removeprefix(_LATE)) if text.startswith(_LATE) else {}
    return values


def read_event(line: str | bytes) -> dict[str, Any] | None:
    """The event in one line of a stream; None for a line without JSON, such as `data: [DONE]`.

    Raises SkimError for an event that is an error.
    """
    text = line.decode() if isinstance(line, bytes) else line
    if not text.startswith("data: {"):
        return None
    event: dict[str, Any] = json.loads(text.removeprefix("data: "))
    if "error" in event:
        error = event["error"]
        message = error["message"] if isinstance(error, dict) and "message" in error else error
        raise SkimError(f"the answer ended with an error: {message}")
    return event
