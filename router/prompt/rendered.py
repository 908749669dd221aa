"""A rendered prompt, the one way to its `TextLayout`, and the frame of a window."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from kv_transfer.arrays import Int32Array, check_spans, mask_of, spans_of
from kv_transfer.layout import Frame, TextLayout
from router.options.request import PrefillOptions
from router.prompt.contents import ChatContents
from router.prompt.markers import CharSpan
from router.prompt.protected_spans import (
    CharRanges,
    Offsets,
    char_ranges,
    chat_chars,
    message_tokens,
    questions_of,
    rated_spans,
    tokens_inside,
    tokens_touched_by_each,
)
from router.prompt.task.speech import find_speech
from router.prompt.text.units import with_units

MOST_CHARS = 2048
"""So many characters of a task say which kind it is."""

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


class PromptSpans(NamedTuple):
    """layout: without units, indents and links. Its protected spans are sorted and apart. It has no questions if the
    task is unknown: token ids, a turn that is not found, or a long text without speech.

    opening: tokens before the first message that is not the system's: the template's beginning, the system prompt, the
    tools. 0 if it is unknown, and for raw text. unmapped: of a chat, it is not known where the contents are; all of it
    is protected. lost: the number of contents whose place is not known; they are protected.
    """

    layout: TextLayout
    opening: int = 0
    unmapped: bool = False
    lost: int = 0

    @property
    def protected_tokens(self) -> int:
        """Tokens inside the protected spans."""
        return int((self.layout.protected[:, 1] - self.layout.protected[:, 0]).sum())


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

    @property
    def _ranges(self) -> CharRanges | None:
        """Each token's character range; None if not all are known."""
        if self.text is None or self.offsets is None or len(self.offsets) != self.size:
            return None
        return char_ranges(self.offsets)

    def spans(self, options: PrefillOptions) -> PromptSpans:
        """What is known before the mode is chosen. Raises InvalidRequestError for a span of the options that is not
        inside the prompt."""
        check_spans(options.protected_spans, self.size)
        keep = mask_of(options.protected_spans, self.size)
        keep[0] = True  # the first token is an attention sink (StreamingLLM, arXiv 2309.17453)
        text, ranges, chat = self.text or "", self._ranges, self.chat
        if chat is None and ranges is not None:
            speech = find_speech(text, [(0, len(text))], raw=True)
            keep |= mask_of([*filter(None, tokens_touched_by_each(speech.spans, ranges))], self.size)
            return PromptSpans(TextLayout(spans_of(keep), questions=questions_of(speech.tasks, ranges)))
        if chat is None or chat.contents is None or ranges is None:
            keep[:] |= chat is not None
            return PromptSpans(TextLayout(spans_of(keep)), unmapped=chat is not None)
        chars = chat_chars(text, chat, options, message_tokens(chat.contents, ranges))
        inside = tokens_inside([span for span, _ in chars.compressible], ranges)
        rated, rates = rated_spans(chars.compressible, inside)
        questions = questions_of(chars.tasks, ranges)
        return PromptSpans(
            TextLayout(spans_of(keep | (inside < 0)), rated, rates, questions=questions, frame=chat.frame),
            int(np.argmax(ranges[:, 1] > chars.opening)),
            lost=sum(content.lost for content in chat.contents),
        )

    def layout(self, options: PrefillOptions, spans: PromptSpans | None = None) -> TextLayout:
        """The layout for a selection. spans: by `spans`, if they are known already. Raises as `spans`."""
        known = (spans or self.spans(options)).layout
        contents = (self.chat.contents if self.chat else None) or ()
        places = ((start, content.message) for content in contents for start, _ in content.spans)
        first = {message: start for start, message in sorted(places, reverse=True)}
        return with_units(known, self.text, self.offsets, options, self.size, sorted(first.values()))

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
        spans = zip(places, touched, strict=True)
        found = [MessageSpan(self.chat.roles[number], *span) for number, span in spans if span is not None]
        return sorted(found, key=lambda message: message.start)

    def task_text(self, layout: TextLayout) -> str:
        """The texts of the tasks, each on lines of its own; the end of a long one. Without a task, the end of the last
        user message or of a raw prompt; "" without a text. The guard reads it."""
        text, at, questions = self.text, self.offsets, layout.questions.tolist()
        if questions and text is not None and at is not None:
            task = "\n".join(text[at[first][0] : at[end - 1][1]] for first, end in questions)
        elif self.chat is None:
            task = self.text or ""
        else:
            task = next((one.text for one in reversed(self.chat.contents or ()) if one.role == "user"), "")
        return task[-MOST_CHARS:]


def frame_messages() -> list[dict[str, str]]:
    """The chat that is to be rendered for `frame_of`."""
    return [{"role": "user", "content": TEXT}]


def settings_of(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a chat template that are switches, numbers and short words. The others are texts, such as tools
    and documents, that it writes into the prompt; in the frame, every window would repeat them."""
    return {
        name: value
        for name, value in arguments.items()
        if value is None or isinstance(value, int | float) or (isinstance(value, str) and len(value) <= LONGEST_SETTING)
    }


def frame_of(rendered: str | None, encode: Callable[[str], Sequence[int]]) -> Frame | None:
    """The frame of a window: what the template writes around a text in a chat of one user message. The speculator reads
    a window as such a chat, with the question after the text (`speculator_service.reading`).

    rendered: of `frame_messages`. encode: the token ids of a text, without those that a tokenizer adds around it. None
    if the template changes the text.
    """
    head, found, tail = (rendered or "").partition(TEXT)
    if not found:
        return None
    return Frame(*(np.array(encode(part), np.int32) for part in (head, JOINT, tail)))
