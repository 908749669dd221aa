"""Which tokens of a prompt are never dropped, which have a keep rate of their own, and which are a chat's question.

Of a chat, selection may drop tokens only from the contents of messages, as the policies allow; of the last user turn,
only from the long part before its question. The chat template, the tool definitions, tool calls and the question are
always kept, and so is the system prompt, unless `keep_by_role` names it. Of raw text, every token but the first may be
dropped.
"""

from collections.abc import Mapping, Sequence
from itertools import chain, pairwise
from typing import NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt

from kv_transfer.arrays import Float32Array, Int32Array, no_pairs
from kv_transfer.layout import TextLayout
from kv_transfer.spans import Span, check_spans, mask_of, spans_of
from router.options.errors import InvalidOptionError
from router.options.policies import Keep, PolicyOptions
from router.options.request import PrefillOptions
from router.prompt.contents import ChatContents, Content
from router.prompt.markers import CharSpan

LONG_TURN_CHARS = 2048

CharRanges = npt.NDArray[np.int64]
"""Each token's half-open character range in the prompt's text, [M, 2]."""
Offsets = Sequence[tuple[int, int]] | CharRanges
"""As CharRanges, also as the pairs that a tokenizer gives."""


class PromptSpans(NamedTuple):
    """layout: without units, indents and links. Its protected spans are sorted and apart. It has no question if that is
    unknown: raw text, a turn that is not found, or a question without a visible beginning.

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


class ChatChars(NamedTuple):
    """Character ranges of a rendered chat. compressible: those that selection may drop from, and how much is kept.

    They are sorted and apart. question: the question of the last user turn (the whole turn if it is short), also if
    messages of the assistant or of tools follow it; it is never compressible. opening: characters before the first
    message that is not the system's.
    """

    compressible: list[tuple[CharSpan, Keep]]
    question: CharSpan | None = None
    opening: int = 0


def prompt_spans(
    size: int,
    options: PrefillOptions,
    chat: ChatContents | None,
    text: str | None,
    offsets: Offsets | None,
) -> PromptSpans:
    """The spans of a prompt of `size` tokens.

    chat: the contents of a chat; None for raw text. text: the prompt, of a chat as it was rendered. offsets: each
    token's character range in `text`.
    Raises InvalidRequestError for a span or a range of the options that is not inside the prompt.
    """
    check_spans(options.protected_spans, size)
    keep = mask_of(options.protected_spans, size)
    keep[0] = True  # the first token is an attention sink (StreamingLLM, arXiv 2309.17453)
    ranges = None if text is None or offsets is None or len(offsets) != size else char_ranges(offsets)
    if chat is None:
        asked = _asked_ranges(options, text, ranges)
        if ranges is not None:
            always = [span for span, wish in asked if wish == "always"]
            keep |= mask_of([*filter(None, tokens_touched_by_each(always, ranges))], size)
        regions = [] if ranges is None else _regions(asked, tokens_inside([span for span, _ in asked], ranges))
        return PromptSpans(TextLayout(spans_of(keep), *_as_arrays(regions)))
    if options.keep_ranges:
        _refuse_ranges("is for raw prompts; in a chat, give a content part its own keep")
    if text is None or ranges is None or chat.contents is None:
        keep[:] = True
        return PromptSpans(TextLayout(spans_of(keep)), unmapped=True)
    chars = chat_chars(text, chat, options, _message_tokens(chat.contents, ranges))
    inside = tokens_inside([span for span, _ in chars.compressible], ranges)
    keep |= inside < 0
    found = tokens_touched(chars.question, ranges)
    questions = no_pairs() if found is None else np.array([found], np.int32)
    rated = _as_arrays(_regions(chars.compressible, inside))
    return PromptSpans(
        TextLayout(spans_of(keep), *rated, questions=questions, frame=chat.frame),
        int(np.argmax(ranges[:, 1] > chars.opening)),
        lost=sum(content.lost for content in chat.contents),
    )


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


def tokens_touched(chars: CharSpan | None, ranges: CharRanges) -> Span | None:
    """The half-open token span from the first to the last token that has a character in `chars`; None without one."""
    if chars is None:
        return None
    start, end = ranges.T
    touched = np.flatnonzero((start < chars[1]) & (end > chars[0]) & (end > start))
    return (int(touched[0]), int(touched[-1]) + 1) if touched.size else None


def tokens_touched_by_each(spans: Sequence[CharSpan], ranges: CharRanges) -> list[Span | None]:
    """As `tokens_touched` for many spans, with one search of the tokens for all. ranges: in the order of the text."""
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
    last_user = max((i for i, role in enumerate(chat.roles) if role == "user"), default=-1)
    starts = [start for content in contents if content.role != "system" for start, _ in content.spans]
    turn = [content for content in contents if content.message == last_user and content.keep in (None, "always")]
    question: CharSpan | None = None
    before: list[CharSpan] = []
    if turn and not any(content.lost for content in turn):
        before, question = _split_turn(text, [span for content in turn for span in content.spans[-1:]])
    in_turn = {id(content) for content in turn}
    # A range before the question lies in one content, and begins with it.
    by_start = {span[0]: span for span in before}
    ranges = []
    for content in contents:
        keep = options.keep(content.role, content.tool, tokens.get(content.message, 0), content.keep)
        if keep == "always":
            continue
        if id(content) in in_turn:
            ranges += [(by_start[start], keep) for start, _ in content.spans[-1:] if start in by_start]
        else:
            ranges += [(span, keep) for span in content.spans]
    return ChatChars(sorted(ranges, key=lambda found: found[0]), question, min(starts, default=0))


def _split_turn(text: str, parts: list[CharSpan]) -> tuple[list[CharSpan], CharSpan | None]:
    """The last user turn as (the ranges before its question, the question). parts: not empty.

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


def _message_tokens(contents: Sequence[Content], ranges: CharRanges) -> dict[int, int]:
    """The number of tokens of each message's contents, by the message's index."""
    placed = sorted((span, content.message) for content in contents for span in content.spans)
    inside = tokens_inside([span for span, _ in placed], ranges)
    counts = np.bincount(inside[inside >= 0], minlength=len(placed))
    tokens: dict[int, int] = {}
    for (_, message), count in zip(placed, counts.tolist(), strict=True):
        tokens[message] = tokens.get(message, 0) + count
    return tokens


def _regions(ranges: Sequence[tuple[CharSpan, Keep]], inside: npt.NDArray[np.int64]) -> list[tuple[int, int, float]]:
    """The runs of tokens with a keep rate of their own, as (start, end, rate). inside: by `tokens_inside`."""
    regions = []
    for start, end in _runs(inside):
        keep = ranges[inside[start]][1] if inside[start] >= 0 else "auto"
        if not isinstance(keep, str):
            regions.append((start, end, keep))
    return regions


def _runs(values: npt.NDArray[np.int64]) -> list[tuple[int, int]]:
    """The runs of equal values, as half-open ranges."""
    edges = [0, *(np.flatnonzero(np.diff(values)) + 1).tolist(), values.size]
    return list(pairwise(edges))


def _as_arrays(regions: list[tuple[int, int, float]]) -> tuple[Int32Array, Float32Array]:
    spans = np.array([region[:2] for region in regions], np.int32).reshape(-1, 2)
    return spans, np.array([rate for *_, rate in regions], np.float32)


def _asked_ranges(options: PrefillOptions, text: str | None, ranges: CharRanges | None) -> list[tuple[CharSpan, Keep]]:
    """The option `keep_ranges` of a raw prompt, sorted. Raises InvalidOptionError for ranges that it cannot have."""
    if not options.keep_ranges or not options.enabled:
        return []
    if text is None or ranges is None:
        _refuse_ranges("needs a prompt of text; for token ids there is protected_spans")
    asked = sorted((((start, end), keep) for start, end, keep in options.keep_ranges), key=lambda found: found[0])
    edges = [0, *chain.from_iterable(span for span, _ in asked), len(text)]
    if any(after < before for before, after in pairwise(edges)):
        _refuse_ranges(f"must lie inside the prompt's {len(text)} characters and must not overlap")
    return asked


def _refuse_ranges(why: str) -> NoReturn:
    name = "speculative_prefill.keep_ranges"
    raise InvalidOptionError(f"{name} {why}", name)


def question_text(question: Span | None, chat: ChatContents | None, text: str | None, offsets: Offsets | None) -> str:
    """The question of the last user turn, if its token span is known, else the end of the last user message. Of a raw
    prompt, its last line. Of a long one, the end; "" without a text. question: its token span. chat, text, offsets: as
    in `prompt_spans`.
    """
    if question is not None and text is not None and offsets is not None:
        return text[offsets[question[0]][0] : offsets[question[1] - 1][1]][-LONG_TURN_CHARS:]
    if chat is None:
        return _last_line(text or "")
    asked = [content.text for content in chat.contents or () if content.role == "user"]
    return _last_line(asked[-1]) if asked else ""


def _last_line(text: str) -> str:
    """The last line that is not empty, or the whole text if it is short."""
    stripped = text.strip()
    if len(stripped) <= LONG_TURN_CHARS:
        return stripped
    return stripped[-LONG_TURN_CHARS:].rsplit("\n", 1)[-1]
