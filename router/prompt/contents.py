"""The contents of a chat's messages, and where they stand in the rendered prompt.

The messages are rendered twice: as they are, and with marks around each content. Without the marks, both must be the
same text. So the place of a content is exact with every template, also if the content occurs twice or looks like a part
of the template.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from kv_transfer.layout import Frame
from router.options.request import SYSTEM_ROLES, TOOL_ROLES, Keep
from router.prompt.markers import CharSpan, KeepFields, Markers

Messages = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Content:
    """A text of a message, or the part of it that has its own `keep`; of the system's only if it may be selected from.

    message: index of the message. role: of the message. text: without outer white space. tool: the name of the tool
    whose result it is. keep: the client's wish. spans: where it stands in the rendered text, half-open character
    ranges. lost: it stands there, but in another form, so that its characters have no place.
    """

    message: int
    role: str
    text: str
    tool: str | None = None
    keep: Keep | None = None
    spans: tuple[CharSpan, ...] = ()
    lost: bool = False

    def is_at(self, place: str) -> bool:
        """Whether the text between two marks is this content, as it is or inside a JSON string."""
        return place in (self.text, json.dumps(self.text, ensure_ascii=False)[1:-1])


class ChatContents(NamedTuple):
    """roles: of all messages. contents: in their order; None if it is not known where they are. frame: as in
    TextLayout; None if it was not asked for. system: where the texts of the system stand that are no contents. tasks:
    where the task stands if the client has named it; it is not looked for then."""

    roles: Sequence[str]
    contents: Sequence[Content] | None
    frame: Frame | None = None
    system: Sequence[CharSpan] = ()
    tasks: Sequence[CharSpan] = ()


def without_marks(messages: Messages, asked: KeepFields) -> list[dict[str, Any]]:
    """Copies of messages whose texts had the marks of `asked`."""

    def clean(_: int, text: str) -> str:
        return "".join(part for _, part in asked.segments(text))

    return changed(messages, clean)


class MarkedChat:
    """Messages with marks around their contents. messages: what is to be rendered. plain: their rendering as they are.

    asked: the client's wishes for content parts, marked in `messages`. system: the system's messages are marked, too.
    Equal texts of equal roles have equal marks, because templates compare messages.
    """

    def __init__(
        self, messages: Messages, plain: str, asked: KeepFields | None = None, *, system: bool = False
    ) -> None:
        self._marks, self._plain = Markers(plain), plain
        self._contents: list[Content] = []
        self._numbers: list[int] = []
        self._system: list[str] = []
        numbers: dict[tuple[str, str, Keep | None], int] = {}
        tools = tools_of(messages)

        def mark(at: int, text: str) -> str:
            role = str(messages[at].get("role") or "")
            pieces = []
            for wish, part in asked.segments(text) if asked else [(None, text)]:
                keep = asked.keeps[wish] if asked and wish is not None else None
                if not part.strip() or (role in SYSTEM_ROLES and not system):
                    self._system += filter(None, [part.strip()])
                    pieces.append(part)
                    continue
                number = numbers.setdefault((role, part, keep), len(numbers))
                self._contents.append(Content(at, _plain_role(role), part.strip(), tools.get(at), keep))
                self._numbers.append(number)
                pieces.append(self._marks.around(number, part))
            return "".join(pieces)

        self.messages = changed(messages, mark)

    def contents(self, rendered: str | None) -> ChatContents:
        """The contents with their places. rendered: the rendering of `messages`; None if it could not be rendered."""
        roles = [str(message.get("role") or "") for message in self.messages]
        text, spans, broken = self._marks.locate(rendered or "")
        if text != self._plain:
            return ChatContents(roles, None)
        totals, seen = Counter(self._numbers), Counter[int]()
        contents = []
        changed_text: dict[int, bool] = {}  # whether one of the places of a number has another text
        for content, number in zip(self._contents, self._numbers, strict=True):
            found = spans.get(number, [])
            if number not in changed_text:
                changed_text[number] = not all(content.is_at(text[start:end]) for start, end in found)
            lost = number in broken or changed_text[number]
            if found and not lost and totals[number] > 1:
                # Of equal contents, each has one place, unless the template leaves out or repeats some of them.
                lost = totals[number] != len(found)
                found = found[seen[number] : seen[number] + 1]
                seen[number] += 1
            contents.append(replace(content, lost=lost, spans=() if lost else tuple(found)))
        return ChatContents(roles, contents, system=self._places_of_system(text))

    def _places_of_system(self, text: str) -> list[CharSpan]:
        """Where the template wrote the texts of the system as they are."""
        found, end = [], 0
        for part in self._system:
            if (start := text.find(part, end)) >= 0:
                end = start + len(part)
                found.append((start, end))
        return found


def chars_of(messages: Messages) -> int:
    """The characters of all texts of messages whose contents are texts or lists."""
    contents = (message.get("content") for message in messages)
    parts = (part for content in contents for part in (content if isinstance(content, list) else [content]))
    texts = (part.get("text") if isinstance(part, Mapping) else part for part in parts)
    return sum(len(text) for text in texts if isinstance(text, str))


def changed(messages: Messages, change: Callable[[int, str], str] = lambda _, text: text) -> list[dict[str, Any]]:
    """Copies of the messages with other texts. change: gets a message's index and one of its texts.

    A content that is an iterator, as pydantic makes them, becomes a list.
    """

    def part(number: int, given: Any) -> Any:
        if isinstance(given, str):
            return change(number, given)
        if isinstance(given, Mapping) and isinstance(given.get("text"), str):
            return {**given, "text": change(number, given["text"])}
        return given

    copies = []
    for number, message in enumerate(messages):
        copy = dict(message)
        content = copy.get("content")
        if isinstance(content, Iterable) and not isinstance(content, str | Mapping):
            copy["content"] = [part(number, given) for given in content]
        elif content is not None:
            copy["content"] = part(number, content)
        copies.append(copy)
    return copies


def _plain_role(role: str) -> str:
    return "tool" if role in TOOL_ROLES else "system" if role in SYSTEM_ROLES else role


def calls_of(messages: Messages) -> dict[int, tuple[int, int]]:
    """The call of each result of a tool, by its message's index: the index of the call's message, and its place."""
    places: dict[str, tuple[int, int]] = {}
    found: dict[int, tuple[int, int]] = {}
    for number, message in enumerate(messages):
        calls = message.get("tool_calls")
        for place, call in enumerate(calls if isinstance(calls, list | tuple) else ()):
            if isinstance(call, Mapping) and isinstance(call.get("function"), Mapping) and call.get("id"):
                places[str(call["id"])] = number, place
        if message.get("role") in TOOL_ROLES and (at := places.get(str(message.get("tool_call_id")))):
            found[number] = at
    return found


def tools_of(messages: Messages) -> dict[int, str]:
    """The name of the tool whose result a message is, by the message's index: its own, or that of the call."""
    calls = {at: messages[by]["tool_calls"][place]["function"] for at, (by, place) in calls_of(messages).items()}
    results = ((at, message) for at, message in enumerate(messages) if message.get("role") in TOOL_ROLES)
    names = ((at, message.get("name") or calls.get(at, {}).get("name")) for at, message in results)
    return {at: str(name) for at, name in names if name}
