"""A rendered prompt, the one way to its `TextLayout`, and the frame of a window."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kv_transfer.arrays import Int32Array
from kv_transfer.layout import Frame, TextLayout
from router.options.request import PrefillOptions
from router.prompt.contents import ChatContents
from router.prompt.markers import CharSpan
from router.prompt.protected_spans import (
    Offsets,
    PromptSpans,
    char_ranges,
    prompt_spans,
    task_text,
    tokens_touched_by_each,
)
from router.prompt.text.units import with_units

TEXT = "\U000f0000\U000f0001"
"""Stands for the text in a frame: characters without a meaning (Unicode's private use area), which templates copy."""
JOINT = "\n\n"
LONGEST_SETTING = 64
"""Characters. A longer argument of a chat template is a text."""


@dataclass(frozen=True, slots=True)
class MessageSpan:
    """The content of one message of a chat: its role and its half-open token span."""

    role: str
    start: int
    end: int


@dataclass(frozen=True, slots=True, eq=False)
class RenderedPrompt:
    """A prompt as the models read it.

    token_ids: int32 [M]. text: what was tokenized, of a chat with the template; None for token ids. offsets: each
    token's half-open character range in `text`; None if it is not known. chat: the contents of a chat; None for a raw
    prompt.
    """

    token_ids: Int32Array
    text: str | None = None
    offsets: Offsets | None = None
    chat: ChatContents | None = None

    @property
    def size(self) -> int:
        """M, the number of tokens."""
        return int(self.token_ids.size)

    @property
    def length(self) -> int:
        """How long it takes to read, as characters of text."""
        return len(self.text or "") or self.size

    def spans(self, options: PrefillOptions) -> PromptSpans:
        """What is known before the mode is chosen. Raises InvalidRequestError for spans that are not in the prompt."""
        return prompt_spans(self.size, options, self.chat, self.text, self.offsets)

    def layout(self, options: PrefillOptions, spans: PromptSpans | None = None) -> TextLayout:
        """The layout for a selection. spans: by `spans`, if they are known already. Raises as `spans`."""
        known = (spans or self.spans(options)).layout
        return with_units(known, self.text, self.offsets, options, self.size, self._messages())

    def _messages(self) -> list[int]:
        """The characters where the contents of messages begin, ascending."""
        contents = (self.chat.contents if self.chat else None) or ()
        first: dict[int, int] = {}
        for content in contents:
            for start, _ in content.spans:
                first[content.message] = min(start, first.get(content.message, start))
        return sorted(first.values())

    def message_spans(self) -> list[MessageSpan]:
        """The messages of a chat whose place is known, each from its first content to its last; not the system's.

        The last place of a content counts, if the template repeats it.
        """
        if self.chat is None or self.chat.contents is None or self.offsets is None:
            return []
        places = dict[int, CharSpan]()
        for content in self.chat.contents:
            for start, end in content.spans[-1:]:
                first, last = places.get(content.message, (start, end))
                places[content.message] = min(first, start), max(last, end)
        touched = tokens_touched_by_each(list(places.values()), char_ranges(self.offsets))
        spans = [
            MessageSpan(self.chat.roles[number], *span)
            for number, span in zip(places, touched, strict=True)
            if span is not None
        ]
        return sorted(spans, key=lambda message: message.start)

    def task_text(self, layout: TextLayout) -> str:
        """The text of the task, which the guard reads."""
        return task_text(layout.questions, self.chat, self.text, self.offsets)


def frame_messages() -> list[dict[str, str]]:
    """The chat that is to be rendered for `frame_of`."""
    return [{"role": "user", "content": TEXT}]


def settings_of(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a chat template that are settings: switches, numbers and short words.

    The others are texts that it writes into the prompt, such as tools and documents. They are protected there. In the
    frame, every window would repeat them.
    """
    return {
        name: value
        for name, value in arguments.items()
        if value is None or isinstance(value, int | float) or (isinstance(value, str) and len(value) <= LONGEST_SETTING)
    }


def frame_of(rendered: str | None, encode: Callable[[str], Sequence[int]]) -> Frame | None:
    """The frame of a window: what the template writes around a text in a chat of one user message. The speculator reads
    a window as such a chat, with the question after the text (`speculator_service.reading`).

    rendered: of `frame_messages`. None if the template changes the text.

    encode: the token ids of a text, without those that a tokenizer adds around it.
    """
    head, found, tail = (rendered or "").partition(TEXT)
    if not found:
        return None
    return Frame(*(np.array(encode(part), np.int32) for part in (head, JOINT, tail)))
