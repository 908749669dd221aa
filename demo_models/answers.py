"""What a client reads of an answer: the events of a stream, and the times in its headers."""

import json
from typing import Any

from skim_common.errors import SkimError


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


def read_server_timing(header: str) -> dict[str, float]:
    """Milliseconds by part of a `Server-Timing` header; empty for an empty one."""
    parts = (part.partition(";dur=") for part in header.split(", ") if part)
    return {name: float(ms) for name, _, ms in parts}
