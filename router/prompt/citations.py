"""Which units of a tool's result the assistant has cited since, or has named in a call of a tool. Pure.

What it said stands in its contents, its reasoning and the arguments of its calls. A citation is an identifier or a run
of RUN words that stands in the result word for word, in at most MOST_UNITS of its units: common words and what stands
everywhere cite nothing. An identifier is a word of at least LEAST_CHARACTERS characters with a digit, an underscore, a
capital after its first character, or a dot or a slash inside, such as an id, a number or a path.

Results of tools cite nothing. A file that is read again repeats most of its earlier reading, and only the newer one is
true.
"""

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence

from kv_transfer.arrays import Int32Array
from kv_transfer.spans import Span
from router.prompt.markers import CharSpan
from router.prompt.protected_spans import char_ranges, without
from router.prompt.rendered import RenderedPrompt
from router.prompt.task.speech import merged
from router.prompt.text.codes import NO_SPACES

RUN = 6
LEAST_CHARACTERS = 4
MOST_UNITS = 3

_ALONE = "".join(f"{chr(first)}-{chr(last)}" for first, last in NO_SPACES)
_WORD = re.compile(rf"[{_ALONE}]|[^\W{_ALONE}]+(?:[./-]+[^\W{_ALONE}]+)*")
"""Each character of a script without spaces is a word."""
_MARKED = re.compile(r"[\d_./]|.[A-Z]")
_ESCAPES = re.compile(r'\\[nrt"/]')
"""In the arguments of a call, which are JSON."""

Citation = str | tuple[str, ...]
"""An identifier, or the words of a run."""


def cited_spans(rendered: RenderedPrompt, units: Int32Array, results: Int32Array, share: float) -> list[Span]:
    """The token spans of the units of old results that were cited after their result, sorted.

    units: int32 [U], the first token of each. results: int32 [R, 2], token spans, sorted and apart. share: the most of
    the tokens of each result that the spans have together; the rarest citations come first.
    """
    chat, text, offsets = rendered.chat, rendered.text, rendered.offsets
    if chat is None or chat.contents is None or text is None or offsets is None:
        return []
    others = [content for content in chat.contents if content.role != "assistant"]
    if any(content.lost for content in others):
        return []  # what was said cannot be told from it
    heard = merged([*chat.system, *(span for content in others for span in content.spans)])
    ranges, found, cited = char_ranges(offsets), list[Span](), set[Citation]()
    said = without([(int(ranges[results[0, 1] - 1, 1]), len(text))], heard)
    for first, end in results[::-1].tolist():
        begin = int(ranges[end - 1, 1])
        while said and said[-1][0] >= begin:
            cited |= {citation for citation, _ in _citations(_ESCAPES.sub(" ", text[slice(*said.pop())]))}
        edges = [first, *units[(units > first) & (units < end)].tolist(), end]
        places = _places(text, (int(ranges[first, 0]), begin), ranges[edges[:-1], 0].tolist(), cited)
        found += [(edges[unit], edges[unit + 1]) for unit in _rarest(places, edges, share * (end - first))]
    return sorted(found)


def _places(text: str, span: CharSpan, begins: Sequence[int], cited: set[Citation]) -> dict[Citation, set[int]]:
    """The units in which each citation stands. begins: the first character of each unit of the span."""
    places = defaultdict[Citation, set[int]](set)
    for citation, (start, end) in _citations(text, *span):
        if citation in cited:
            places[citation].update(range(bisect_right(begins, start) - 1, bisect_right(begins, end - 1)))
    return places


def _rarest(places: dict[Citation, set[int]], edges: Sequence[int], most: float) -> set[int]:
    """The units of the rarest citations, of two equal ones the longest, that have at most so many tokens together."""
    found, left = set[int](), most
    for citation in sorted(places, key=lambda one: (len(places[one]), -len("".join(one)))):
        new = places[citation] - found
        tokens = sum(edges[unit + 1] - edges[unit] for unit in new)
        if len(places[citation]) <= MOST_UNITS and tokens <= left:
            found |= new
            left -= tokens
    return found


def _citations(text: str, *span: int) -> Iterator[tuple[Citation, CharSpan]]:
    """The identifiers and runs of words of a text, with their places. span: where it begins and ends."""
    words = list(_WORD.finditer(text, *span))
    texts = [word[0] for word in words]
    for word, part in zip(words, texts, strict=True):
        if len(part) >= LEAST_CHARACTERS and _MARKED.search(part):
            yield part, word.span()
    for first, run in enumerate(zip(*(texts[at:] for at in range(RUN)), strict=False)):
        yield run, (words[first].start(), words[first + RUN - 1].end())
