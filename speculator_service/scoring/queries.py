"""Which tokens' queries score a prompt, and whose attention counts: what a scoring request tells the worker.

The paper (Speculative Prefill, arXiv 2502.02789, section 3.2) uses the queries of the last prompt token and of N tokens
decoded after it. Retrieval heads (`heads`) have the queries of the question's tokens and of the last prompt token, and
need no decoding.
"""

from collections.abc import Sequence
from typing import Literal

import msgspec

from kv_transfer.arrays import Span
from kv_transfer.options import SelectionOptions
from kv_transfer.windows import shares
from speculator_service.scoring.heads import HeadProfile

MAX_QUESTION_ROWS = 64
"""Of all questions together. Of a longer one, the last tokens are used."""

SCORE_ARG = "skim_score"
"""Key in `SamplingParams.extra_args`; its value is a ScoreQueries, as builtins."""


class ScoreQueries(msgspec.Struct, frozen=True, kw_only=True):
    """How a prompt of M tokens is scored.

    look_ahead: N. The queries at positions M - 1 to M - 1 + N, the *steps*, see the M prompt keys; a step after one of
    `eos_token_ids` does not count.
    heads: (layer, head, weight) of each head that scores; none: all heads of `layers` score, by `aggregation`.
    questions: of each question, the span of its *rows*, prompt positions before M - 1. The query at row r sees the keys
    0 to r. Only heads have rows. question, last: as in HeadProfile. apart: return the mass of each head, not their sum.
    """

    look_ahead: int = 0
    eos_token_ids: tuple[int, ...] = ()
    layers: Literal["all", "last_half", "last4", "last1"] = "all"
    aggregation: Literal["max", "head_max_layer_mean"] = "max"
    heads: tuple[tuple[int, int, float], ...] = ()
    questions: tuple[Span, ...] = ()
    question: float = 0.0
    last: float = 1.0
    apart: bool = False

    @classmethod
    def of(
        cls,
        options: SelectionOptions,
        prompt: int,
        questions: Sequence[Span],
        profile: HeadProfile | None,
        eos_token_ids: tuple[int, ...] = (),
    ) -> "ScoreQueries":
        """prompt: M. questions: none: the last `options.protect_last` tokens. profile: for `options.scoring` heads."""
        if options.scoring != "heads":
            ahead, layers, aggregation = options.tokens_ahead, options.layers, options.aggregation
            return cls(look_ahead=ahead, eos_token_ids=eos_token_ids, layers=layers, aggregation=aggregation)
        assert profile is not None
        heads = tuple((head.layer, head.head, head.weight) for head in profile.heads)
        # Without a weight for the question, the prefix cache may hold it.
        rows = question_rows(options, prompt, questions) if profile.question else ()
        return cls(heads=heads, questions=rows, question=profile.question, last=profile.last)


def question_rows(options: SelectionOptions, prompt: int, questions: Sequence[Span]) -> tuple[Span, ...]:
    """The last rows of each question before the last prompt token, MAX_QUESTION_ROWS together."""
    spans = questions or [(max(0, prompt - options.protect_last), prompt)]
    spans = [(first, min(end, prompt - 1)) for first, end in spans if first < prompt - 1]
    sizes = shares([end - first for first, end in spans], MAX_QUESTION_ROWS)
    return tuple((end - size, end) for (_, end), size in zip(spans, sizes, strict=True))
