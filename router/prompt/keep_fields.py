"""The field `keep` of content parts, messages and items, taken out of a request's body before vLLM's app reads it.

vLLM's schemas do not have the field. Each endpoint also builds its messages anew: a tool result of /v1/messages becomes
a message of its own. So the text of a part with a `keep` gets marks. They go along with the text until the
prompt is rendered, and are removed there.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from router.options.errors import InvalidOptionError
from router.options.request import KEEP_VALUES, SYSTEM_ROLES, Keep, read_keep, shown
from router.prompt.markers import Markers

_LISTS = {"/chat/completions": ("messages",), "/messages": ("system", "messages"), "/responses": ("input",)}
_SAME_BODY = ("/render", "/count_tokens")
"""Endpoints behind these that take the same body."""
_TEXTS = ("text", "content", "output")
_KEPT_KINDS = ("thinking", "redacted_thinking", "reasoning", "function_call", "tool_use", "refusal")


@dataclass(frozen=True, slots=True)
class KeepFields:
    """The wishes of one request. keeps, names: the values and fields, by the number in the marks around the texts."""

    marks: Markers
    keeps: list[Keep] = field(default_factory=list)
    names: list[str] = field(default_factory=list)

    def check(self, chat: str | None) -> None:
        """Raise InvalidOptionError unless `chat`, the rendered text of a chat, is known and has no marks.

        A model whose prompts no chat template renders would read them.
        """
        if chat is None or self.marks.are_in(chat):
            name = self.names[0]
            raise InvalidOptionError(
                f"{name} has no effect with this model: its prompts are not made by a template", name
            )


def extract_keep_fields(body: dict[str, Any], path: str) -> KeepFields | None:
    """Remove each `keep` from the body sent to `path`, and mark the texts that it is about. None if there is none.

    Raises InvalidOptionError for a value that is no `Keep`, for a `keep` of something that has no text or is always
    kept, and for one of the system prompt that is not `always`.
    """
    for end in _SAME_BODY:
        path = path.removesuffix(end)
    fields = next((fields for end, fields in _LISTS.items() if path.endswith(end)), ())
    if not fields or not any(_has_keep(body.get(name)) for name in fields):
        return None
    found = KeepFields(Markers(json.dumps(body, ensure_ascii=False)))
    for name in fields:
        value = body.get(name)
        for index, holder in enumerate(value if isinstance(value, list) else ()):
            if isinstance(holder, dict):
                _take(holder, f"{name}.{index}", None, found, name == "system" or holder.get("role") in SYSTEM_ROLES)
    return found if found.keeps else None


def _take(holder: dict[str, Any], path: str, outer: Keep | None, found: KeepFields, is_system: bool) -> None:
    """As `extract_keep_fields` for one message, item or part. outer: the `keep` of what it is a part of."""
    name, keep = f"{path}.keep", outer
    own = holder.pop("keep", None)
    if own is not None:
        try:
            keep = read_keep(own)
        except ValueError:
            raise InvalidOptionError(f"{name} must be {KEEP_VALUES}, not {shown(own)}", name) from None
        if is_system and keep != "always":
            raise InvalidOptionError(f"{name} must be always: the system prompt is never compressed", name)
        texts = [key for key in _TEXTS if isinstance(holder.get(key), str | list)]
        if not texts or holder.get("type") in _KEPT_KINDS:
            raise InvalidOptionError(f"{name} has no effect: there is no text that could be dropped", name)

    def marked(text: str) -> str:
        if keep is None or not text.strip():
            return text
        found.keeps.append(keep)
        found.names.append(name)
        return found.marks.around(len(found.keeps) - 1, text)

    if holder.get("type") in _KEPT_KINDS:
        return
    for key in _TEXTS:
        value = holder.get(key)
        if isinstance(value, str):
            holder[key] = marked(value)
        for index, part in enumerate(value if isinstance(value, list) else ()):
            if isinstance(part, dict):
                _take(part, f"{path}.{key}.{index}", keep, found, is_system)
            elif isinstance(part, str) and isinstance(value, list):
                value[index] = marked(part)


def messages_with_keeps(messages: Any) -> tuple[list[dict[str, Any]], KeepFields | None]:
    """Copies of chat messages whose texts are marked, and the wishes in them. Raises as `extract_keep_fields`."""
    try:
        copies = [_copy(message) for message in messages]
    except RecursionError:
        raise InvalidOptionError("messages has too many levels of lists and objects; flatten it", "messages") from None
    return copies, extract_keep_fields({"messages": copies}, "/chat/completions")


def _has_keep(value: Any) -> bool:
    """Whether an object in the lists and objects of `value` has the field."""
    if isinstance(value, dict):
        return "keep" in value or any(_has_keep(value.get(name)) for name in _TEXTS)
    return isinstance(value, list) and any(map(_has_keep, value))


def _copy(value: Any) -> Any:
    """A deep copy of the objects and lists in `value`."""
    if isinstance(value, Mapping):
        return {name: _copy(item) for name, item in value.items()}
    return [_copy(item) for item in value] if isinstance(value, list | tuple) else value
