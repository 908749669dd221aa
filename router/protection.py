"""Which tokens of a chat prompt are never dropped.

Everything is protected but the contents of messages that carry material: user, assistant and tool turns other than the
last user turn, and the long part of the last user turn itself. So the chat template, the system prompt, the tool
definitions and the question stay whole, whatever the template looks like: contents are found in the rendered text, and
what is not found, or could stand in two places, is kept.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from kv_transfer.messages import Int32Array
from kv_transfer.spans import check_spans, spans_of

SYSTEM_ROLES = ("system", "developer")
LONG_TURN_CHARS = 2048

CharSpan = tuple[int, int]


def protected_spans(
    size: int,
    asked: Collection[Sequence[int]],
    conversation: Sequence[Mapping[str, Any]] | None,
    text: str | None,
    offsets: Sequence[tuple[int, int]] | None,
) -> Int32Array:
    """The token spans that stay of a prompt of `size` tokens, int32 [P, 2], half-open.

    asked: the client's own. conversation, text, offsets: as in `droppable_tokens`; a prompt without a conversation is
    raw text, of which anything may be dropped but the first token.
    Raises InvalidRequestError for a span that is not inside the prompt.
    """
    keep = np.zeros(size, bool)
    keep[0] = True  # attention rests on the first token (StreamingLLM, arXiv 2309.17453)
    check_spans(asked, size)
    for start, end in asked:
        keep[start:end] = True
    if conversation is not None:
        # Where the turns lie is known only from the text: without it, nothing may be dropped.
        if text is None or offsets is None or len(offsets) != size:
            keep[:] = True
        else:
            keep |= ~droppable_tokens(text, conversation, offsets)
    return spans_of(keep)


def droppable_tokens(
    text: str, messages: Sequence[Mapping[str, Any]], offsets: Sequence[tuple[int, int]]
) -> npt.NDArray[np.bool_]:
    """Which tokens of a chat prompt selection may drop, bool [M].

    text: the rendered prompt. messages: the conversation as the template saw it (role, content). offsets: per token of
    the prompt, its character range in `text`; tokens without characters (some special tokens) are not droppable.
    """
    # np.asarray would look at each tuple as an array of its own.
    start, end = np.fromiter(chain.from_iterable(offsets), np.int64, 2 * len(offsets)).reshape(-1, 2).T
    droppable = np.zeros(start.size, bool)
    for first, last in compressible_chars(text, messages):
        droppable |= (start >= first) & (end <= last) & (end > start)
    return droppable


def compressible_chars(text: str, messages: Sequence[Mapping[str, Any]]) -> list[CharSpan]:
    """Character ranges of `text` that selection may thin out."""
    last_user = max((i for i, m in enumerate(messages) if m.get("role") == "user"), default=-1)
    parts = [(i, part) for i, message in enumerate(messages) for part in _texts(message.get("content"))]
    found: dict[int, list[CharSpan]] = {}
    for (i, _), span in zip(parts, _places(text, [part for _, part in parts]), strict=True):
        if span is not None and messages[i].get("role") not in SYSTEM_ROLES:
            found.setdefault(i, []).append(span)
    if last_user in found:
        found[last_user] = _before_question(text, found[last_user])
    return [span for spans in found.values() for span in spans]


def _places(text: str, parts: Sequence[str]) -> list[CharSpan | None]:
    """Where each of `parts`, which follow each other, stands in `text`; None where it does not or is not certain.

    The leftmost and the rightmost way to find them all are the same only if there is no other.
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


def _before_question(text: str, parts: list[CharSpan]) -> list[CharSpan]:
    """The material of the last user turn: all but its question.

    A short turn is all question. Of a long one, the question is its last part where the client sent several, else its
    last line; a last line that is itself long has no telling end, and only the tokens that every prompt keeps at its
    end are safe there.
    """
    if not parts:
        return []
    *earlier, (first, last) = parts
    if sum(end - start for start, end in parts) <= LONG_TURN_CHARS:
        return []
    if last - first <= LONG_TURN_CHARS and earlier:
        return earlier
    line = text.rfind("\n", first, last) + 1 or first
    question = line if last - line <= LONG_TURN_CHARS else last
    return [*earlier, (first, question)]


def _texts(content: Any) -> Iterable[str]:
    """The text parts of a message's content as the template wrote them (most templates strip them)."""
    parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
    for part in parts:
        text = part if isinstance(part, str) else part.get("text")
        if isinstance(text, str) and text.strip():
            yield text.strip()
