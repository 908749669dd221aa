"""Which tokens' queries score a prompt: those of its question, those of the look-ahead, or both.

The paper (Speculative Prefill, arXiv 2502.02789, section 3.2) uses the queries of the last prompt token and of N tokens
decoded after it. The queries of the question's own tokens need no decoding, so they cost less. Retrieval heads
(`heads`) have the queries of the question and of the last prompt token.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from kv_transfer.arrays import Span
from kv_transfer.options import SelectionOptions
from kv_transfer.windows import shares

MAX_QUESTION_ROWS = 64
"""Of all questions together. Of a longer one, the last tokens are used."""


@dataclass(frozen=True, slots=True)
class ScoreQueries:
    """The positions of the queries that score a prompt of M tokens. One of both parts may be empty.

    by_question: of each question, prompt positions in it. The query at position r sees the keys at positions 0 to r.
    steps: positions M - 1, M, ..., M - 1 + N, of the last prompt token and of N decoded tokens. They see the M prompt
    keys; a step after an EOS does not count (`importance.valid_steps`).
    """

    by_question: tuple[Sequence[int], ...]
    steps: range

    @classmethod
    def of(cls, options: SelectionOptions, prompt: int, questions: Sequence[Span]) -> "ScoreQueries":
        """prompt: M, at least 1. questions: half-open spans; none: the last `options.protect_last` tokens."""
        steps = range(prompt - 1, prompt + options.tokens_ahead)
        queries = "both" if options.scoring == "heads" else options.score_queries
        if queries == "look_ahead":
            return cls((), steps)
        spans = questions or [(max(0, prompt - options.protect_last), prompt)]
        if queries == "question":
            return cls(_last_rows(spans, prompt), range(0))
        return cls(_last_rows(spans, prompt - 1), steps)  # the last prompt token is a step already

    @property
    def rows(self) -> list[int]:
        """The rows of all questions."""
        return [row for rows in self.by_question for row in rows]

    @property
    def count(self) -> int:
        """S, rows and steps together."""
        return len(self.rows) + len(self.steps)

    def visible(self, prompt: int) -> list[int]:
        """The number of prompt keys that each query sees, [S], rows before steps."""
        return [row + 1 for row in self.rows] + [prompt] * len(self.steps)


def _last_rows(spans: Sequence[Span], end: int) -> tuple[range, ...]:
    """The last rows of each span, before `end`."""
    spans = [(first, min(last, end)) for first, last in spans if first < end]
    sizes = shares([last - first for first, last in spans], MAX_QUESTION_ROWS)
    return tuple(range(last - size, last) for (_, last), size in zip(spans, sizes, strict=True))
