"""Where the results of tools stand in a chat's prompt, how old they are, and what was asked after them. Pure."""

from collections import Counter
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from kv_transfer.arrays import Int32Array
from router.options.policies import PolicyOptions
from router.prompt.protected_spans import char_ranges, tokens_inside, tokens_touched_by_each
from router.prompt.rendered import RenderedPrompt
from router.prompt.task.speech import find_speech, merged

LEAST_TOKENS = 1024
"""A result of a tool with fewer tokens does not age: little would be gained."""
SPEAKERS = ("user", "assistant")
MOST_QUESTIONS = 16
"""So many of the latest questions choose what is kept of a result."""


class ToolResult(NamedTuple):
    """A text of a tool's result, as a half-open token span. turns: messages of the user or the assistant after it."""

    start: int
    end: int
    turns: int


def tool_results(rendered: RenderedPrompt, options: PolicyOptions) -> list[ToolResult]:
    """The texts of large results of tools, in the order of the prompt, of which the options keep no more than of the
    rest. A text with a `keep` of its own is none of them."""
    chat, offsets = rendered.chat, rendered.offsets
    if chat is None or chat.contents is None or offsets is None or len(offsets) != rendered.size:
        return []
    texts = [content for content in chat.contents if content.role == "tool"]
    placed = sorted((span, content.message) for content in texts for span in content.spans)
    inside = tokens_inside([span for span, _ in placed], char_ranges(offsets))
    where = np.flatnonzero(inside >= 0)
    firsts = np.searchsorted(inside[where], np.arange(len(placed) + 1))
    tokens = Counter[int]()
    for (_, message), count in zip(placed, np.diff(firsts).tolist(), strict=True):
        tokens[message] += count
    ages = {
        span
        for content in texts
        if content.keep is None and tokens[content.message] >= LEAST_TOKENS
        if options.keep(content.role, content.tool, tokens[content.message], None) != "always"
        for span in content.spans
    }
    found = []
    for (span, message), (first, end) in zip(placed, pairwise(firsts.tolist()), strict=True):
        if span in ages and first < end:
            turns = sum(role in SPEAKERS for role in chat.roles[message + 1 :])
            found.append(ToolResult(int(where[first]), int(where[end - 1]) + 1, turns))
    return found


def asked_after(rendered: RenderedPrompt, place: int) -> Int32Array:
    """What user and assistant said in the messages that begin after the token `place`, as `TextLayout.questions`: of
    the user what can be a task, of the assistant its texts. Empty if they said nothing."""
    chat, offsets, text = rendered.chat, rendered.offsets, rendered.text
    if chat is None or offsets is None or text is None:
        return np.empty((0, 2), np.int32)
    begin = int(char_ranges(offsets)[place - 1, 1])
    said: list[tuple[int, int]] = []
    for content in chat.contents or ():
        spans = [span for span in content.spans[-1:] if span[0] >= begin]
        if content.role in SPEAKERS and spans:
            said += find_speech(text, spans).tasks if content.role == "user" else spans
    tokens = [*filter(None, tokens_touched_by_each(merged(said), char_ranges(offsets)))]
    return np.array(merged(tokens, gap=0)[-MOST_QUESTIONS:], np.int32).reshape(-1, 2)
