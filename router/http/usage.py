"""Adds to the usage of an answer what the target did not read, where clients of each endpoint look.

It knows only the published forms of the answers, JSON and events of a stream. All other bytes stay as they are.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec
import numpy as np

from router.dispatch.state import CallState

EDIT = "skim_selection"
"""The type of the edit in an answer of /v1/messages."""


_DETAILS = {
    "/completions": "prompt_tokens_details",
    "/completions/batch": "prompt_tokens_details",
    "/responses": "input_tokens_details",
    "/messages": "input_tokens_details",
}
"""The object inside `usage`, by the end of the path."""
COUNTED = "/messages/count_tokens"
USAGE = b'"usage"'
"""A body, or a part of a stream, without it holds no usage."""

_Object = dict[str, msgspec.Raw]
Edits = Sequence[Mapping[str, Any]]


def losses_of(call: CallState) -> dict[str, Any]:
    """The fields that are added to the usage of an answer; all its prompts are decided.

    largest_dropped: the role of a chat's messages that lost most tokens; missing if none did. Empty if nothing was
    dropped and the request has no option of Skim: its answer is then that of a stock server.
    """
    if not (call.request.options.model_fields_set or any(prompt.dropped_tokens for prompt in call.prompts)):
        return {}
    kept, dropped = (sum(getattr(prompt, f"{what}_tokens") for prompt in call.prompts) for what in ("kept", "dropped"))
    losses: dict[str, Any] = {"kept_tokens": kept, "dropped_tokens": dropped}
    by_role = Counter[str]()
    for prompt in call.prompts:
        if prompt.selection is not None and prompt.dropped_tokens:
            is_dropped = np.ones(prompt.prompt_tokens, bool)
            is_dropped[prompt.selection.kept.positions] = False
            for message in prompt.messages():
                by_role[message.role] += int(is_dropped[message.start : message.end].sum())
    for role, tokens in by_role.most_common(1):
        losses["largest_dropped"] = {"role": role, "tokens": tokens}
    return losses


def with_losses(body: bytes, path: str, losses: Mapping[str, Any], edits: Edits = ()) -> bytes:
    """A whole answer, or whole events of a stream, with `losses` in each usage that is not null, and the client's own
    `edits` beside it."""
    details = next((name for end, name in _DETAILS.items() if path.endswith(end)), None)
    if details is None or not (losses or edits):
        return body
    if path.endswith("/messages") and losses.get("dropped_tokens"):
        edits = [*edits, {"type": EDIT, "cleared_input_tokens": losses["dropped_tokens"]}]
    lines = body.split(b"\n")
    for number, line in enumerate(lines):
        start = line.find(b"{")
        if USAGE in line and line[:start] in (b"", b"data: "):
            with suppress(msgspec.DecodeError):  # a part of an event, or no JSON object
                lines[number] = line[:start] + _in_answer(line[start:], details, losses, edits)
    return b"\n".join(lines)


def with_original_tokens(body: bytes, edits: Edits) -> bytes:
    """An answer of Anthropic's `count_tokens`. vLLM does not know the tokens before the edits."""
    answer = msgspec.json.decode(body)
    if management := answer.get("context_management"):  # not in an error
        management["original_input_tokens"] += sum(edit["cleared_input_tokens"] for edit in edits)
    return msgspec.json.encode(answer)


def _in_answer(text: bytes, details: str, losses: Mapping[str, Any], edits: Edits) -> bytes:
    answer = msgspec.json.decode(text, type=_Object)
    # Some events hold the whole answer: the final one of /v1/responses, the first one of /v1/messages.
    outer = next((name for name in ("response", "message") if name in answer), None)
    inner = answer if outer is None else msgspec.json.decode(answer[outer], type=_Object)
    usage = msgspec.json.decode(inner.get("usage", b"null"))
    if not isinstance(usage, dict):
        return text
    if losses:
        usage[details] = {**(usage.get(details) or {}), **losses}
    changed: dict[str, Any] = {**inner, "usage": usage}
    if edits and outer != "message":  # at a stream's start, Anthropic's client would warn of an unknown type
        changed["context_management"] = {"applied_edits": edits}
    return msgspec.json.encode(changed if outer is None else {**answer, outer: changed})
