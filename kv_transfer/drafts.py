"""The messages of the draft channel, between a target worker and a speculator replica.

In each step the target sends one DraftRequest with a row for every running request that has a session on that replica,
and receives one DraftReply. Positions in these messages count the tokens of the answer.
"""

from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
from msgspec import Meta

from kv_transfer.arrays import Float32Array, Int32Array, no_numbers, no_scores
from skim_common.errors import WireError

UNDRAFTED = 2
"""The first tokens of an answer, which no session drafts: the first one leaves without waiting for drafts, so a target
asks for them after the second one."""

Natural = Annotated[int, Meta(ge=0, le=2**31 - 1)]

# The rounding error in a sum of 512 float32 probabilities is at most 1e-5.
_SUM_TOLERANCE = 1e-3

GREEDY_BELOW = 1e-5
"""Lower temperatures mean greedy decoding, as in vLLM (vllm.sampling_params._SAMPLING_EPS)."""


@dataclass(frozen=True, slots=True, eq=False)
class DraftRow:
    """One request in one step.

    position: number of answer tokens before `tokens`. tokens: int32 [A], what joined the answer since the last exchange
    (accepted drafts, then the replacement or bonus token). max_drafts: K; with 0 the row only reports tokens.
    temperature: 0 asks for greedy drafts. top_m: number of (id, probability) pairs of q per draft; 0 asks for one-hot
    drafts (greedy decoding or structured output), which need no q.
    """

    session: str
    position: Natural
    tokens: Int32Array
    max_drafts: Natural
    temperature: Annotated[float, Meta(ge=0, le=1e6)] = 0.0
    top_m: Natural = 0


@dataclass(frozen=True, slots=True, eq=False)
class DraftRequest:
    """closed: sessions whose requests ended."""

    rows: list[DraftRow] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, eq=False)
class Drafted:
    """A drafted continuation of an answer. tokens: int32 [k].

    q_ids, q_probs: [k * m], row-major: the distribution that each draft was sampled from, that is the drafter's top m,
    renormalised (each row sums to 1). Empty for one-hot drafts, which are exact for any drafter.
    """

    tokens: Int32Array
    q_ids: Int32Array = field(default_factory=no_numbers)
    q_probs: Float32Array = field(default_factory=no_scores)

    @property
    def q(self) -> tuple[Int32Array, Float32Array]:
        """`q_ids` and `q_probs` as rows: [k, m]. m is 0 for one-hot drafts."""
        shape = self.tokens.size, self.q_ids.size // max(1, self.tokens.size)
        return self.q_ids.reshape(shape), self.q_probs.reshape(shape)


@dataclass(frozen=True, slots=True, eq=False)
class DraftReply:
    """drafts: by session; a row may have none."""

    drafts: dict[str, Drafted] = field(default_factory=dict)


def check_answers(reply: DraftReply, request: DraftRequest) -> None:
    """Raise WireError unless the drafts of `reply` belong to rows of `request` and are not longer than requested. The
    target's vocabulary is not known here."""
    rows = {row.session: row for row in request.rows}
    for session, drafted in reply.drafts.items():
        row = rows.get(session)
        if row is None:
            raise WireError(f"drafts came for session {session!r}, for which none were asked")
        count, pairs = drafted.tokens.size, drafted.q_ids.size
        if count > row.max_drafts or pairs > count * row.top_m:
            raise WireError(f"more drafts, or more of q, came for session {session!r} than were asked for")
        if pairs != drafted.q_probs.size or (pairs and pairs % count):
            raise WireError(f"{pairs} ids and {drafted.q_probs.size} probabilities of q do not fit {count} drafts")
    if sampled := [drafted for drafted in reply.drafts.values() if drafted.q_ids.size]:
        _check_q(sampled)


def _check_q(sampled: list[Drafted]) -> None:
    """Check that each draft's pairs of q are a distribution that gives the draft a probability above 0."""
    tokens, ids, probs = (
        np.concatenate([getattr(drafted, name) for drafted in sampled]) for name in ("tokens", "q_ids", "q_probs")
    )
    widths = np.concatenate([np.full(d.tokens.size, d.q_ids.size // d.tokens.size) for d in sampled])
    starts = np.cumsum(widths) - widths
    # A NaN fails this comparison too.
    if not (probs.min() >= 0 and (abs(np.add.reduceat(probs, starts) - 1) <= _SUM_TOLERANCE).all()):
        raise WireError("a draft's probabilities are below 0 or do not sum to 1")
    # A repeated id would lose probability when q is expanded to the vocabulary; q = 0 would accept any draft.
    keys = np.sort(np.repeat(np.arange(widths.size) << 31, widths) + ids)
    if (keys[1:] == keys[:-1]).any():
        raise WireError("a draft's distribution names a token twice")
    if not np.logical_or.reduceat((ids == np.repeat(tokens, widths)) & (probs > 0), starts).all():
        raise WireError("a draft cannot come from its own distribution: its probability is 0")
