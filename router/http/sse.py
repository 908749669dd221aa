"""Server-sent events of OpenAI streams: the router writes an error as one, clients read them."""

import json
from collections.abc import Mapping
from typing import Any

from skim_common.errors import SkimError


def write_error_event(error: Mapping[str, Any]) -> bytes:
    """An event that both kinds of clients understand. error: as `HttpError.body`.

    OpenAI's clients look for an `error` in the data, Anthropic's for an event of that name.
    """
    return f"event: error\ndata: {json.dumps({'type': 'error', **error})}\n\n".encode()


KEEP_ALIVE = b": keep-alive\n\n"
"""A comment: clients ignore lines that begin with a colon."""


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
