"""Which parts of a prompt a speculator reads as short prompts of their own: router and speculator plan the same."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kv_transfer.arrays import Int32Array, spans_of
from kv_transfer.layout import TextLayout

QUESTION_SHARE = 4
"""The questions take at most this fraction (1/4) of a window. Of a longer one, its beginning and its end are read."""
MOST_COMPUTED = 1.5
"""Windows compute at most so many times the prompt's tokens, and one question with its frame."""

WHOLE = 1.5
"""A text of at most so many times `window_tokens` is one window: it is read sooner than in two, of which the best parts
are read again."""
AGAIN_SHARE, MOST_AGAIN = 0.3, 16384
"""Of a prompt of several windows, this share of what they hold is read once more, and at most so many tokens."""

Window = tuple[int, int]
"""A half-open token range of the prompt."""


@dataclass(frozen=True, slots=True)
class WindowPlan:
    """How a prompt is read in windows, as far as it is known without the units of its text.

    parts: what windows hold of the prompt, in its order. A part of at most `largest` tokens is one window; a longer one
    is a single text, which is cut at its units. size: `window_tokens`. around: tokens of questions and frame, which
    each window has.
    """

    parts: tuple[Window, ...]
    size: int
    around: int

    @classmethod
    def of(cls, may_drop: npt.NDArray[np.bool_], layout: TextLayout, size: int) -> "WindowPlan | None":
        """None for a prompt that is read as a whole: its question or frame is unknown, or its windows could compute
        more than MOST_COMPUTED. may_drop: bool [M]."""
        questions, frame = layout.questions, layout.frame
        if not len(questions) or frame is None:
            return None
        joints = (len(questions) - 1) * frame.joint.size
        asked = min(int(np.diff(questions).sum()) + joints, size // QUESTION_SHARE)
        plan = cls(_joined(spans_of(may_drop), size), size, asked + frame.size)
        most = plan.tokens + plan.most_windows * plan.around
        return plan if most <= MOST_COMPUTED * may_drop.size + plan.around else None

    @property
    def largest(self) -> int:
        """The tokens of the largest window. Of a longer text, none has more than `size`."""
        return int(WHOLE * self.size)

    @property
    def tokens(self) -> int:
        """The prompt's tokens in windows."""
        return sum(end - start for start, end in self.parts)

    @property
    def least(self) -> float:
        """A window of a longer text has so many tokens or more, but for the last one. What is around the windows then
        adds about half of the text at most."""
        return min(self.size, max(self.size / 2, 2 * self.around))

    @property
    def most_windows(self) -> int:
        """The largest number of windows, however the units lie."""
        longer = (end - start - self.size for start, end in self.parts if end - start > self.largest)
        return len(self.parts) + sum(math.ceil(more / self.least) for more in longer)

    @property
    def windows(self) -> float:
        """The number of windows: exact for parts that are one window, that of an average text for longer ones."""
        mean = (self.least + self.size) / 2
        sizes = (end - start for start, end in self.parts)
        return sum(1.0 if size <= self.largest else max(2.0, size / mean) for size in sizes)

    @property
    def tokens_again(self) -> int:
        """The tokens that a second read has besides `around` (`read_again`); 0 for a single window."""
        return min(MOST_AGAIN, int(AGAIN_SHARE * self.tokens)) if self.windows > 1 else 0


def _joined(texts: Int32Array, size: int) -> tuple[Window, ...]:
    """Neighbouring texts, joined with what stands between them while they have at most `size` tokens together.

    texts: int32 [T, 2], sorted and apart. A longer text stays alone.
    """
    starts, ends = texts.T.astype(np.int64, order="C")
    parts, first = [], 0
    while first < len(texts):
        end = max(first + 1, int(np.searchsorted(ends, starts[first] + size, "right")))
        parts.append((int(starts[first]), int(ends[end - 1])))
        first = end
    return tuple(parts)


def shares(sizes: Sequence[int], room: int) -> list[int]:
    """How much of each of several texts fits into `room` together: of each the same, but no more than it has, and 1 at
    least."""
    given = [0] * len(sizes)
    for done, number in enumerate(sorted(range(len(sizes)), key=sizes.__getitem__)):
        given[number] = min(sizes[number], max(1, room // (len(sizes) - done)))
        room -= given[number]
    return given
