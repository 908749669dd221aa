"""Which tokens of a prompt are never dropped, which have a keep rate of their own, and which can be its task.

Of a chat, selection may drop tokens only from the contents of messages, as the policies allow; of a user's turn with
the task, only from what is no speech (`speech`). The chat template, the tool definitions, tool calls and speech are
always kept, and so is the system prompt, unless `keep_by_role` names it. Raw text is one user's turn.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kv_transfer.arrays import Float32Array, Int32Array, Span
from router.options.request import TOOL_ROLES, Keep, PolicyOptions
from router.prompt.contents import ChatContents, Content
from router.prompt.markers import CharSpan
from router.prompt.task.speech import Speech, Turn, merged, speech_of_turns

MOST_NOTE = 1024
"""Characters of a client's note at the end of a tool's result."""

CharRanges = npt.NDArray[np.int64]
"""Each token's half-open character range in the prompt's text, [M, 2]."""
Offsets = Sequence[tuple[int, int]] | CharRanges
"""As CharRanges, also as the pairs that a tokenizer gives."""


class ChatChars(NamedTuple):
    """Character ranges of a rendered chat. compressible: those that selection may drop from, and how much is kept.

    They are sorted and apart. tasks: what can be the task, also if messages of the assistant or of tools follow it; it
    is never compressible. opening: characters before the first message that is not the system's.
    """

    compressible: list[tuple[CharSpan, Keep]]
    tasks: Sequence[CharSpan]
    opening: int


def char_ranges(offsets: Offsets) -> CharRanges:
    """Pairs as an array. np.asarray would convert each tuple to an array first, which is slow."""
    if isinstance(offsets, np.ndarray):
        return offsets
    return np.fromiter(chain.from_iterable(offsets), np.int64, 2 * len(offsets)).reshape(-1, 2)


def tokens_inside(spans: Sequence[CharSpan], ranges: CharRanges) -> npt.NDArray[np.int64]:
    """In which of `spans` each token lies, int64 [M]; -1 for none. spans: sorted and apart.

    A token without characters (some special tokens) is in none.
    """
    start, end = ranges.T
    if not spans:
        return np.full(start.size, -1)
    firsts, lasts = np.array(spans, np.int64).T
    number = np.searchsorted(firsts, start, "right") - 1
    inside = (number >= 0) & (end <= lasts[number]) & (end > start)
    return np.where(inside, number, -1)


def tokens_touched_by_each(spans: Sequence[CharSpan], ranges: CharRanges) -> list[Span | None]:
    """Of each span, the half-open token span from the first to the last token that has a character in it; None without
    one. ranges: in the order of the text."""
    if not spans:
        return []
    number = np.flatnonzero(ranges[:, 1] > ranges[:, 0])
    start, end = ranges[number].T
    chars = np.array(spans, np.int64)
    firsts = np.searchsorted(end, chars[:, 0], "right")
    lasts = np.searchsorted(start, chars[:, 1], "left")
    return [
        (int(number[first]), int(number[last - 1]) + 1) if first < last else None
        for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True)
    ]


def chat_chars(text: str, chat: ChatContents, options: PolicyOptions, tokens: Mapping[int, int]) -> ChatChars:
    """The ranges of `text`, the rendered chat. tokens: the number of tokens of each message, by its index."""
    contents = chat.contents or []
    starts = [start for content in contents if content.role != "system" for start, _ in content.spans]
    parts: dict[int, list[CharSpan]] = {number: [] for number, role in enumerate(chat.roles) if role == "user"}
    last_user = max(parts, default=-1)
    for content in contents:
        if content.message in parts and content.keep in (None, "always"):
            parts[content.message] += content.spans[-1:]
    before = ["", *chat.roles]  # the role before each message
    turns = [Turn(spans, before[number] in TOOL_ROLES) for number, spans in parts.items() if spans]
    speech = Speech([], [*chat.tasks]) if chat.tasks else speech_of_turns(text, turns, chat.system)
    ranges = []
    for content in contents:
        keep = options.keep(content.role, content.tool, tokens.get(content.message, 0), content.keep)
        if keep == "always":
            continue
        spans = content.spans[-1:] if content.message == last_user else content.spans
        kept = _notes(text, spans) if content.role in TOOL_ROLES else speech.spans
        ranges += [(span, keep) for span in without(spans, kept if content.keep is None else [])]
    return ChatChars(sorted(ranges, key=lambda found: found[0]), speech.tasks, min(starts, default=0))


def _notes(text: str, spans: Sequence[CharSpan]) -> list[CharSpan]:
    """The notes of a client at the ends of a tool's results, of at most MOST_NOTE characters."""
    found: list[CharSpan] = []
    for start, end in spans:
        tail = text[max(start, end - MOST_NOTE) : end]
        if tail.rstrip().endswith("</system-reminder>") and (at := tail.rfind("<system-reminder>")) >= 0:
            found.append((end - len(tail) + at, end))
    return found


def without(spans: Sequence[CharSpan], left_out: Sequence[CharSpan]) -> list[CharSpan]:
    """What the spans have besides those left out. Both are sorted and apart."""
    found: list[CharSpan] = []
    firsts, ends = [first for first, _ in left_out], [end for _, end in left_out]
    for start, last in spans:
        for number in range(bisect_right(ends, start), bisect_left(firsts, last)):
            if start < firsts[number]:
                found.append((start, firsts[number]))
            start = ends[number]
        if start < last:
            found.append((start, last))
    return found


def questions_of(tasks: Sequence[CharSpan], ranges: CharRanges) -> Int32Array:
    """The tokens of the tasks, int32 [Q, 2]. Tasks that share a token are one."""
    found = merged([*filter(None, tokens_touched_by_each(tasks, ranges))], gap=0)
    return np.array(found, np.int32).reshape(-1, 2)


def message_tokens(contents: Sequence[Content], ranges: CharRanges) -> dict[int, int]:
    """The number of tokens of each message's contents, by the message's index."""
    placed = sorted((span, content.message) for content in contents for span in content.spans)
    inside = tokens_inside([span for span, _ in placed], ranges)
    messages = np.array([message for _, message in placed], np.int64)
    return dict(enumerate(np.bincount(messages[inside[inside >= 0]]).tolist()))


def rated_spans(
    ranges: Sequence[tuple[CharSpan, Keep]], inside: npt.NDArray[np.int64]
) -> tuple[Int32Array, Float32Array]:
    """The runs of tokens with a keep rate of their own, int32 [R, 2], and their rates. inside: by `tokens_inside`."""
    starts = np.r_[0, np.flatnonzero(np.diff(inside)) + 1]
    spans = np.stack([starts, np.append(starts[1:], inside.size)], 1)
    rates = [np.nan if isinstance(keep, str) else keep for _, keep in ranges]
    found = np.array([*rates, np.nan], np.float32)[inside[starts]]  # the last for the number -1
    return spans[~np.isnan(found)].astype(np.int32), found[~np.isnan(found)]
