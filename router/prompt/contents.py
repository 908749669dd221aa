"""The contents of a chat's messages, and where they stand in the rendered prompt.

The messages are rendered twice: as they are, and with marks around each content. Without the marks, both must be the
same text. So the place of a content is exact with every template, also if the content occurs twice or looks like a part
of the template.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
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
    return changed(messages, lambda _, text: "".join(part for _, part in asked.segments(text)))


class MarkedChat:
    """Messages with marks around their contents. messages: what is to be rendered. plain: their rendering as they are.

    asked: the client's wishes for content parts, marked in `messages`. system: the system's messages are marked, too.
    Equal texts of equal roles have equal marks, because templates compare messages.
    """

    def __init__(
        self, messages: Messages, plain: str, asked: KeepFields | None = None, *, system: bool = False
    ) -> None:
        self._marks, self._plain = Markers(plain), plain
        self._marked: list[tuple[int, Content]] = []  # with the numbers of their marks
        self._system: list[str] = []
        numbers: dict[tuple[str, str, Keep | None], int] = {}
        tools = tools_of(messages)

        def mark(at: int, text: str) -> str:
            role = str(messages[at].get("role") or "")
            kind = "tool" if role in TOOL_ROLES else "system" if role in SYSTEM_ROLES else role
            pieces = []
            for wish, part in asked.segments(text) if asked else [(None, text)]:
                keep = asked.keeps[wish] if asked and wish is not None else None
                inner = part.strip()
                if inner and (system or kind != "system"):
                    number = numbers.setdefault((role, part, keep), len(numbers))
                    self._marked.append((number, Content(at, kind, inner, tools.get(at), keep)))
                    pieces.append(self._marks.around(number, part))
                else:
                    self._system += [inner] if inner else []
                    pieces.append(part)
            return "".join(pieces)

        self.messages = changed(messages, mark)

    def contents(self, rendered: str | None) -> ChatContents:
        """The contents with their places. rendered: the rendering of `messages`; None if it could not be rendered."""
        roles = [str(message.get("role") or "") for message in self.messages]
        text, spans, broken = self._marks.locate(rendered or "")
        if text != self._plain:
            return ChatContents(roles, None)
        totals = Counter(number for number, _ in self._marked)
        lost, places = set(broken), {}
        for number, content in dict(self._marked).items():
            found = spans.get(number, [])
            # Of equal contents, each has one place, unless the template leaves out or repeats some of them.
            is_uneven = found and totals[number] not in (1, len(found))
            if is_uneven or not all(content.is_at(text[start:end]) for start, end in found):
                lost.add(number)
            places[number] = iter(() if number in lost else found)
        contents = [
            replace(
                content,
                lost=number in lost,
                spans=tuple(islice(places[number], 1 if totals[number] > 1 else None)),
            )
            for number, content in self._marked
        ]
        system: list[CharSpan] = []  # where the template wrote the texts of the system as they are
        end = 0
        for part in self._system:
            if (start := text.find(part, end)) >= 0:
                end = start + len(part)
                system.append((start, end))
        return ChatContents(roles, contents, system=system)


def texts_of(message: Mapping[str, Any]) -> list[str]:
    """The texts of a message's content."""
    content = message.get("content")
    parts = content if isinstance(content, list | tuple) else [content]
    texts = (part.get("text") if isinstance(part, Mapping) else part for part in parts)
    return [text for text in texts if isinstance(text, str)]


def chars_of(messages: Messages) -> int:
    return sum(len(text) for message in messages for text in texts_of(message))


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
    names = {at: message.get("name") for at, message in enumerate(messages) if message.get("role") in TOOL_ROLES}
    for at, (by, place) in calls_of(messages).items():
        names[at] = names[at] or messages[by]["tool_calls"][place]["function"].get("name")
    return {at: str(name) for at, name in names.items() if name}
