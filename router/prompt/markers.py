"""Marks in texts: which `keep` a client wishes for a part, and where a part stands in the rendered prompt.

vLLM's schemas do not have the field `keep`, and each endpoint builds its messages anew: a tool result of /v1/messages
becomes a message of its own. So the field is taken out of the body before vLLM's app reads it, and the text that it is
about gets marks. They go along with the text until the prompt is rendered, and are removed there.
"""

import json
from collections.abc import Mapping
from itertools import chain, islice
from typing import Any

import re2

from router.options.errors import InvalidOptionError
from router.options.request import KEEP_VALUES, SYSTEM_ROLES, Keep, read_keep, shown
from skim_common.errors import InvalidRequestError

CharSpan = tuple[int, int]

_AREAS = (range(0xF0000, 0xFFFFE), range(0x100000, 0x10FFFE))
"""Unicode's private use areas A and B: code points without a meaning of their own."""
_LISTS = {"/chat/completions": ("messages",), "/messages": ("system", "messages"), "/responses": ("input",)}
_TEXTS = ("text", "content", "output")
_KEPT_KINDS = ("thinking", "redacted_thinking", "reasoning", "function_call", "tool_use", "refusal")


class Markers:
    """Two characters that `texts` do not have. A mark is a number between them; in reverse order they end a part.

    Raises InvalidRequestError if the texts have all characters of the private use areas.
    """

    def __init__(self, *texts: str) -> None:
        used = set[str]().union(*texts)
        unused = [*islice((c for c in map(chr, chain(*_AREAS)) if c not in used), 2)]
        if len(unused) < 2:
            raise InvalidRequestError("the request has all characters of Unicode's private use areas; leave out two")
        self.left, self.right = left, right = unused
        self._mark = re2.compile(f"{left}([0-9]+){right}|{right}([0-9]+){left}")

    def around(self, number: int, text: str) -> str:
        """`text` with marks around it, inside of its outer white space, which templates may strip."""
        inner, left, right = text.strip(), self.left, self.right
        return text.replace(inner, f"{left}{number}{right}{inner}{right}{number}{left}", 1) if inner else text

    def segments(self, text: str) -> list[tuple[int | None, str]]:
        """The parts of a text of which each has one number or none, in order, without the marks."""
        parts = self._mark.split(text)  # a text, then of each mark: the number that begins, the one that ends, a text
        numbers = [None, *(int(number) if number else None for number in parts[1::3])]
        return [(number, part) for number, part in zip(numbers, parts[::3], strict=True) if part]

    def locate(self, text: str) -> tuple[str, Mapping[int, list[CharSpan]], set[int]]:
        """The text without marks; by number, the half-open ranges of the marked parts in it, which may occur several
        times; and the numbers with a mark that has no counterpart."""
        parts = self._mark.split(text)
        spans: dict[int, list[CharSpan]] = {}
        broken: set[int] = set()
        at, opened = len(parts[0]), None
        start = 0
        for begins, ends, part in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
            if opened and opened == ends:
                spans.setdefault(int(ends), []).append((start, at))
            else:
                broken.update(int(number) for number in (opened, ends) if number)
            start, opened = at, begins
            at += len(part)
        if opened:
            broken.add(int(opened))
        return "".join(parts[::3]), spans, broken


class KeepFields(Markers):
    """The wishes of one request. keeps, names: the values and fields, by the number in the marks around the texts."""

    def __init__(self, *texts: str) -> None:
        super().__init__(*texts)
        self.keeps: list[Keep] = []
        self.names: list[str] = []

    def marked(self, text: str, keep: Keep | None, name: str) -> str:
        """The text with marks around it, if there is a wish and a text. name: of the field."""
        if keep is None or not text.strip():
            return text
        self.keeps.append(keep)
        self.names.append(name)
        return self.around(len(self.keeps) - 1, text)

    def check(self, chat: str | None) -> None:
        """Raise InvalidOptionError unless `chat`, the rendered text of a chat, is known and has no marks.

        A model whose prompts no chat template renders would read them.
        """
        if chat is None or self.left in chat or self.right in chat:
            name = self.names[0]
            raise InvalidOptionError(
                f"{name} has no effect with this model: its prompts are not made by a template", name
            )


def extract_keep_fields(body: dict[str, Any], path: str) -> KeepFields | None:
    """Remove each `keep` from the body sent to `path`, and mark the texts that it is about. None if there is none.

    Raises InvalidOptionError for a value that is no `Keep`, for a `keep` of something that has no text or is always
    kept, and for one of the system prompt that is not `always`.
    """
    path = path.removesuffix("/render").removesuffix("/count_tokens")  # they take the same body
    fields = next((fields for end, fields in _LISTS.items() if path.endswith(end)), ())
    if not any(_has_keep(body.get(name)) for name in fields):
        return None
    found = KeepFields(json.dumps(body, ensure_ascii=False))
    for name in fields:
        value = body.get(name)
        for index, holder in enumerate(value if isinstance(value, list) else ()):
            if isinstance(holder, dict):
                _take(holder, f"{name}.{index}", None, found, name == "system" or holder.get("role") in SYSTEM_ROLES)
    return found if found.keeps else None


def _take(holder: dict[str, Any], path: str, keep: Keep | None, found: KeepFields, is_system: bool) -> None:
    """As `extract_keep_fields` for one message, item or part. keep: of what it is a part of."""
    name, kept_kind = f"{path}.keep", holder.get("type") in _KEPT_KINDS
    own = holder.pop("keep", None)
    if own is not None:
        try:
            keep = read_keep(own)
        except ValueError:
            raise InvalidOptionError(f"{name} must be {KEEP_VALUES}, not {shown(own)}", name) from None
        if is_system and keep != "always":
            raise InvalidOptionError(f"{name} must be always: the system prompt is never compressed", name)
        if kept_kind or not any(isinstance(holder.get(key), str | list) for key in _TEXTS):
            raise InvalidOptionError(f"{name} has no effect: there is no text that could be dropped", name)
    for key in () if kept_kind else _TEXTS:
        value = holder.get(key)
        if isinstance(value, str):
            holder[key] = found.marked(value, keep, name)
        elif isinstance(value, list):
            for index, part in enumerate(value):
                if isinstance(part, dict):
                    _take(part, f"{path}.{key}.{index}", keep, found, is_system)
                elif isinstance(part, str):
                    value[index] = found.marked(part, keep, name)


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
