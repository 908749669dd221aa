"""Which tokens of a chat prompt are never dropped, and which are its question.

Selection may drop tokens only from the contents of user, assistant and tool messages; of the last user turn, only from
the long part before its question. The chat template, the system prompt, the tool definitions and the question are
always kept. Contents are searched in the rendered text, so this works with every template. A content that is not found,
or that could be in two places, is kept.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from kv_transfer.messages import Int32Array
from kv_transfer.spans import check_spans, spans_of

SYSTEM_ROLES = ("system", "developer")
LONG_TURN_CHARS = 2048

CharSpan = tuple[int, int]


class PromptSpans(NamedTuple):
    """protected: int32 [P, 2], half-open token spans that are never dropped.

    question: half-open token span of the question of the last user turn (the whole turn if it is short). None if it is
    unknown: raw text, a turn that is not found, a question without a visible beginning, or a last user turn that an
    assistant or tool message follows. opening: tokens before the first message that is not the system's: the template's
    beginning, the system prompt, the tools. 0 if it is unknown, and for raw text.
    """

    protected: Int32Array
    question: tuple[int, int] | None = None
    opening: int = 0

    @property
    def protected_tokens(self) -> int:
        """Tokens inside the protected spans, which do not overlap."""
        return int((self.protected[:, 1] - self.protected[:, 0]).sum())


class ChatChars(NamedTuple):
    """Character ranges of a rendered chat. compressible: selection may drop their tokens. question: as in PromptSpans.

    A question is never compressible. opening: characters before the first message that is not the system's.
    """

    compressible: list[CharSpan]
    question: CharSpan | None = None
    opening: int = 0


def prompt_spans(
    size: int,
    asked: Collection[Sequence[int]],
    conversation: Sequence[Mapping[str, Any]] | None,
    text: str | None,
    offsets: Sequence[tuple[int, int]] | None,
) -> PromptSpans:
    """The spans of a prompt of `size` tokens.

    asked: the client's protected spans. conversation: the messages that the template rendered (role, content). text:
    the rendered prompt. offsets: each token's character range in `text`. A prompt without a conversation is raw text:
    every token but the first may be dropped.
    Raises InvalidRequestError for a span that is not inside the prompt.
    """
    keep = np.zeros(size, bool)
    keep[0] = True  # the first token is an attention sink (StreamingLLM, arXiv 2309.17453)
    check_spans(asked, size)
    for start, end in asked:
        keep[start:end] = True
    question, opening = None, 0
    if conversation is not None:
        # Only the text shows where the turns are: without it, nothing may be dropped.
        if text is None or offsets is None or len(offsets) != size:
            keep[:] = True
        else:
            chars = chat_chars(text, conversation)
            # np.asarray would convert each tuple to an array first, which is slow.
            ranges = np.fromiter(chain.from_iterable(offsets), np.int64, 2 * len(offsets)).reshape(-1, 2)
            keep |= ~tokens_inside(chars.compressible, ranges)
            question = tokens_touched(chars.question, ranges)
            opening = int(np.argmax(ranges[:, 1] > chars.opening))
    return PromptSpans(spans_of(keep), question, opening)


def tokens_inside(chars: Iterable[CharSpan], ranges: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Which tokens lie inside one of the character ranges `chars`, bool [M].

    ranges: each token's character range, [M, 2]. A token without characters (some special tokens) is never inside.
    """
    start, end = ranges.T
    inside = np.zeros(start.size, bool)
    for first, last in chars:
        inside |= (start >= first) & (end <= last) & (end > start)
    return inside


def tokens_touched(chars: CharSpan | None, ranges: npt.NDArray[np.int64]) -> tuple[int, int] | None:
    """The half-open token span from the first to the last token that has a character in `chars`; None without one.

    ranges: as in `tokens_inside`.
    """
    if chars is None:
        return None
    start, end = ranges.T
    touched = np.flatnonzero((start < chars[1]) & (end > chars[0]) & (end > start))
    return (int(touched[0]), int(touched[-1]) + 1) if touched.size else None


def chat_chars(text: str, messages: Sequence[Mapping[str, Any]]) -> ChatChars:
    """The ranges of `text`, the rendered chat of `messages`."""
    last_user = max((i for i, m in enumerate(messages) if m.get("role") == "user"), default=-1)
    found: dict[int, list[CharSpan]] = {}
    for i, span in content_places(text, messages):
        if span is not None and messages[i].get("role") not in SYSTEM_ROLES:
            found.setdefault(i, []).append(span)
    question, opening = None, min((span[0] for spans in found.values() for span in spans), default=0)
    if last_user in found:
        found[last_user], question = _split_turn(text, found[last_user])
    if any(message.get("role") not in SYSTEM_ROLES for message in messages[last_user + 1 :]):
        question = None  # the prompt goes on from a tool result or from the beginning of an answer
    return ChatChars([span for spans in found.values() for span in spans], question, opening)


def content_places(text: str, messages: Sequence[Mapping[str, Any]]) -> list[tuple[int, CharSpan | None]]:
    """Of each text part of each message, the message's number and the part's place in `text`, the rendered chat.

    None for a part that is missing or ambiguous.
    """
    parts = [(i, part) for i, message in enumerate(messages) for part in _texts(message.get("content"))]
    places = _places(text, [part for _, part in parts])
    return [(i, place) for (i, _), place in zip(parts, places, strict=True)]


def _places(text: str, parts: Sequence[str]) -> list[CharSpan | None]:
    """The place of each of `parts` in `text`, in this order; None for a part that is missing or ambiguous.

    A part's place is certain if the search from the left and the search from the right find the same one.
    """
    leftmost, cursor = [], 0
    for part in parts:
        leftmost.append(text.find(part, cursor))
        if leftmost[-1] >= 0:
            cursor = leftmost[-1] + len(part)
    rightmost, cursor = [], len(text)
    for part in reversed(parts):
        rightmost.append(text.rfind(part, 0, cursor))
        if rightmost[-1] >= 0:
            cursor = rightmost[-1]
    places = zip(leftmost, reversed(rightmost), parts, strict=True)
    return [(left, left + len(part)) if left == right >= 0 else None for left, right, part in places]


def _split_turn(text: str, parts: list[CharSpan]) -> tuple[list[CharSpan], CharSpan | None]:
    """The last user turn as (the ranges before its question, the question).

    A short turn is the question as a whole. In a long turn, the question is the last part if the client sent several,
    else the last line. In a last line that is itself long, the question cannot be found: all of it may be dropped, but
    for the tokens that every prompt keeps at its end (`protect_last`).
    """
    *earlier, (first, last) = parts
    if sum(end - start for start, end in parts) <= LONG_TURN_CHARS:
        return [], (parts[0][0], last)
    if last - first <= LONG_TURN_CHARS and earlier:
        return earlier, (first, last)
    line = text.rfind("\n", first, last) + 1 or first
    if last - line <= LONG_TURN_CHARS:
        return [*earlier, (first, line)], (line, last)
    return parts, None


def _texts(content: Any) -> Iterable[str]:
    """The text parts of a message's content, stripped, as most templates write them."""
    parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
    for part in parts:
        text = part if isinstance(part, str) else part.get("text")
        if isinstance(text, str) and text.strip():
            yield text.strip()
