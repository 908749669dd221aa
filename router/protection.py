"""Which tokens of a chat prompt are never dropped.

Selection may drop tokens only from the contents of user, assistant and tool messages; of the last user turn, only from
the long part before its question. The chat template, the system prompt, the tool definitions and the question are
always kept. Contents are searched in the rendered text, so this works with every template. A content that is not found,
or that could be in two places, is kept.
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
    """The protected token spans of a prompt of `size` tokens, int32 [P, 2], half-open.

    asked: the client's spans. conversation, text, offsets: as in `droppable_tokens`. A prompt without a conversation is
    raw text: every token but the first may be dropped.
    Raises InvalidRequestError for a span that is not inside the prompt.
    """
    keep = np.zeros(size, bool)
    keep[0] = True  # the first token is an attention sink (StreamingLLM, arXiv 2309.17453)
    check_spans(asked, size)
    for start, end in asked:
        keep[start:end] = True
    if conversation is not None:
        # Only the text shows where the turns are: without it, nothing may be dropped.
        if text is None or offsets is None or len(offsets) != size:
            keep[:] = True
        else:
            keep |= ~droppable_tokens(text, conversation, offsets)
    return spans_of(keep)


def droppable_tokens(
    text: str, messages: Sequence[Mapping[str, Any]], offsets: Sequence[tuple[int, int]]
) -> npt.NDArray[np.bool_]:
    """Which tokens of a chat prompt selection may drop, bool [M].

    text: the rendered prompt. messages: the conversation that the template rendered (role, content). offsets: each
    token's character range in `text`; tokens without characters (some special tokens) are not droppable.
    """
    # np.asarray would convert each tuple to an array first, which is slow.
    start, end = np.fromiter(chain.from_iterable(offsets), np.int64, 2 * len(offsets)).reshape(-1, 2).T
    droppable = np.zeros(start.size, bool)
    for first, last in compressible_chars(text, messages):
        droppable |= (start >= first) & (end <= last) & (end > start)
    return droppable


def compressible_chars(text: str, messages: Sequence[Mapping[str, Any]]) -> list[CharSpan]:
    """The character ranges of `text` from which selection may drop tokens."""
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


def _before_question(text: str, parts: list[CharSpan]) -> list[CharSpan]:
    """The last user turn without its question.

    A short turn is the question as a whole. In a long turn, the question is the last part if the client sent several,
    else the last line. In a last line that is itself long, the question cannot be found: all of it may be dropped, but
    for the tokens that every prompt keeps at its end (`protect_last`).
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
    """The text parts of a message's content, stripped, as most templates write them."""
    parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
    for part in parts:
        text = part if isinstance(part, str) else part.get("text")
        if isinstance(text, str) and text.strip():
            yield text.strip()
