"""Which tokens' queries score a prompt: those of its question, those of the look-ahead, or both.

The paper (Speculative Prefill, arXiv 2502.02789, section 3.2) uses the queries of the last prompt token and of N tokens
decoded after it. The queries of the question's own tokens need no decoding, so they cost less. Retrieval heads
(`heads`) have the queries of the question and of the last prompt token.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from kv_transfer.options import SelectionOptions

MAX_QUESTION_ROWS = 64
"""Of a longer question, the last tokens are used."""


@dataclass(frozen=True, slots=True)
class ScoreQueries:
    """The positions of the queries that score a prompt of M tokens. One of both parts may be empty.

    rows: prompt positions in the question. The query at position r sees the keys at positions 0 to r.
    steps: positions M - 1, M, ..., M - 1 + N, of the last prompt token and of N decoded tokens. They see the M prompt
    keys; a step after an EOS does not count (`importance.valid_steps`).
    """

    rows: Sequence[int]
    steps: range

    @classmethod
    def of(cls, options: SelectionOptions, prompt: int, question: tuple[int, int] | None) -> "ScoreQueries":
        """prompt: M, at least 1. question: half-open span; None: the last `options.protect_last` tokens."""
        steps = range(prompt - 1, prompt + options.tokens_ahead)
        queries = "both" if options.scoring == "heads" else options.score_queries
        if queries == "look_ahead":
            return cls(range(0), steps)
        first, end = question or (max(0, prompt - options.protect_last), prompt)
        if queries == "question":
            return cls(range(max(first, end - MAX_QUESTION_ROWS), end), range(0))
        end = min(end, prompt - 1)  # the last prompt token is a step already
        return cls(range(min(end, max(first, end - MAX_QUESTION_ROWS)), end), steps)

    @property
    def count(self) -> int:
        """S, rows and steps together."""
        return len(self.rows) + len(self.steps)

    def visible(self, prompt: int) -> list[int]:
        """The number of prompt keys that each query sees, [S], rows before steps."""
        return [row + 1 for row in self.rows] + [prompt] * len(self.steps)
