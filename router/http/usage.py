"""Adds to the usage of an answer what the target did not read, where clients of each endpoint look.

It knows only the published forms of the answers, JSON and events of a stream. All other bytes stay as they are.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

EDIT = "skim_selection"
"""The type of the edit in an answer of /v1/messages."""


class _Form(NamedTuple):
    """details: the object inside `usage`. edits: whether `context_management` tells what was left out of a prompt."""

    details: str
    edits: bool = False


_FORMS = {
    "/completions": _Form("prompt_tokens_details"),
    "/completions/batch": _Form("prompt_tokens_details"),
    "/responses": _Form("input_tokens_details"),
    "/messages": _Form("input_tokens_details", edits=True),
}
"""By the end of the path."""

_Object = dict[str, msgspec.Raw]


def holds_usage(body: bytes) -> bool:
    """Whether a body, or a part of a stream, may hold a usage. Most parts of a stream do not."""
    return b'"usage"' in body


def with_losses(body: bytes, path: str, losses: Mapping[str, Any]) -> bytes:
    """A whole answer, or whole events of a stream, with `losses` in each usage that is not null."""
    form = next((form for end, form in _FORMS.items() if path.endswith(end)), None)
    if form is None or not losses:
        return body
    lines = body.split(b"\n")
    for number, line in enumerate(lines):
        start = line.find(b"{")
        if holds_usage(line) and line[:start] in (b"", b"data: "):
            try:
                lines[number] = line[:start] + _in_answer(line[start:], form, losses)
            except msgspec.DecodeError:
                continue  # a part of an event, or no JSON object
    return b"\n".join(lines)


def _in_answer(text: bytes, form: _Form, losses: Mapping[str, Any]) -> bytes:
    answer = msgspec.json.decode(text, type=_Object)
    # Some events hold the whole answer: the final one of /v1/responses, the first one of /v1/messages.
    outer = next((name for name in ("response", "message") if name in answer), None)
    inner = answer if outer is None else msgspec.json.decode(answer[outer], type=_Object)
    usage = msgspec.json.decode(inner.get("usage", b"null"))
    if not isinstance(usage, dict):
        return text
    usage[form.details] = {**(usage.get(form.details) or {}), **losses}
    inner["usage"] = _raw(usage)
    if form.edits and outer is None and losses["dropped_tokens"]:
        edit = {"type": EDIT, "cleared_input_tokens": losses["dropped_tokens"]}
        inner["context_management"] = _raw({"applied_edits": [edit]})
    if outer is not None:
        answer[outer] = _raw(inner)
    return msgspec.json.encode(answer)


def _raw(value: Any) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))
