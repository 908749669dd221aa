"""The prompts of a session: random token ids that grow turn by turn, and what is always kept of them."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.sessions.traces import Session, Turn
from kv_transfer.arrays import Int32Array, Span
from kv_transfer.layout import Frame, TextLayout
from router.options.request import PrefillOptions
from router.prompt.rendered import PromptSpans, RenderedPrompt

FRAME = Frame(*(np.arange(size, dtype=np.int32) for size in (24, 8, 8)))
UNIT = 16
"""Tokens of a unit: a line. Assumed, as are the two below: traces do not tell."""
CALLS = 0.5
"""The part of an answer that is tool calls, which are always kept."""
TASK = 256
"""Tokens of a user's words, at most; what is more is material."""


@dataclass(frozen=True, slots=True, eq=False)
class SessionPrompt(RenderedPrompt):
    """The prompt of a turn. protected: spans that are always kept, the task last. opening: tokens of tools and system
    prompt."""

    protected: tuple[Span, ...] = ((0, 1),)
    opening: int = 0

    def spans(self, options: PrefillOptions) -> PromptSpans:
        protected, task = np.array(self.protected, np.int32), np.array(self.protected[-1:], np.int32)
        return PromptSpans(TextLayout(protected, questions=task, frame=FRAME), self.opening)

    def layout(self, options: PrefillOptions, spans: PromptSpans | None = None) -> TextLayout:
        known = (spans or self.spans(options)).layout
        starts = np.concatenate([np.arange(0, self.size, UNIT), known.protected.ravel()])
        units = np.unique(starts[starts < self.size]).astype(np.int32)
        return replace(known, units=units, gaps=np.zeros_like(units), words=np.ones(units.size, np.float32))


def grown(
    session: Session, seed: int, vocabulary: range, first: int = 0
) -> Iterator[tuple[Turn, SessionPrompt, Int32Array]]:
    """Each turn from `first` on, with its prompt and its answer. All sessions share their opening's tokens."""
    random = np.random.default_rng([1, seed])

    def tokens(count: int, choose: np.random.Generator = random) -> Int32Array:
        return choose.integers(vocabulary.start, vocabulary.stop, count, np.int32)

    ids = answer = tokens(0)
    calls, task = list[Span](), (0, 1)
    for number, turn in enumerate(session.turns):
        opening = min(session.opening, turn.size - 1)
        if number:
            said = answer[: turn.new if turn.shared == ids.size else 0]
            ids = np.concatenate([ids[: turn.shared], said, tokens(turn.new - said.size)])
            calls = [span for span in calls if span[1] <= turn.shared]
            if said.size > 1:
                calls.append((turn.shared, turn.shared + round(CALLS * said.size)))
        else:
            ids = np.concatenate([tokens(opening, np.random.default_rng(0)), tokens(turn.size - opening)])
        if turn.speech or not number or task[1] > turn.shared:
            task = max(opening, turn.size - TASK), turn.size
        answer = tokens(turn.answer)
        protected = ((0, opening), *(span for span in calls if span[0] >= opening), task)
        if number >= first:
            yield turn, SessionPrompt(ids, protected=protected, opening=opening), answer
