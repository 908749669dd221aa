"""The messages of the draft channel, between a target worker and a speculator replica.

Each step of the target sends one DraftRequest for all of its running requests that have a session there, and gets one
DraftReply. Positions count tokens of the answer: 0 is the first decoded token, at position M of the prompt.
"""

from dataclasses import dataclass, field

import numpy as np

from kv_transfer.errors import WireError
from kv_transfer.messages import DraftAhead, Float32Array, Int32Array, KeptPrompt


def _no_ids() -> Int32Array:
    return np.empty(0, np.int32)


@dataclass(frozen=True, slots=True, eq=False)
class DraftRow:
    """One request in one step.

    session: its session's id. position: answer tokens before `tokens`. tokens: int32 [A], what the target accepted
    since the drafter last heard of it (accepted drafts, then the replacement or bonus token). max_drafts: drafts
    wanted, K; 0 only tells the drafter. temperature: 0 asks for greedy drafts. top_m: how many (id, probability) pairs
    of q travel per draft; 0 asks for one-hot drafts (greedy, or structured output), for which q need not travel.
    """

    session: str
    position: int
    tokens: Int32Array
    max_drafts: int
    temperature: float = 0.0
    top_m: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class SessionState:
    """All that the target knows of a session that the speculator lost: enough to draft from the kept tokens.

    draft_ahead: as the request asked; None leaves it to the speculator.
    """

    session: str
    prompt: KeptPrompt
    answer: Int32Array
    draft_ahead: DraftAhead | None = None


@dataclass(frozen=True, slots=True, eq=False)
class DraftRequest:
    """sequence: the reply's is the same; DraftClient sets its own. closed: sessions whose requests have ended."""

    sequence: int
    rows: list[DraftRow] = field(default_factory=list)
    restored: list[SessionState] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, eq=False)
class Draft:
    """Drafts for one row.

    position: answer tokens before the first draft (the row's position plus its tokens). tokens: int32 [k], k <= K.
    q_ids, q_probs: [k * m], row-major: the drafter's distribution that each draft was sampled from, its top m
    renormalised (each row sums to 1); empty for one-hot drafts. ahead: they were ready before they were asked for.
    """

    session: str
    position: int
    tokens: Int32Array
    q_ids: Int32Array = field(default_factory=_no_ids)
    q_probs: Float32Array = field(default_factory=lambda: np.empty(0, np.float32))
    ahead: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class DraftReply:
    """sequence: of the request that this answers. lost: sessions that are not here; send their SessionState."""

    sequence: int
    drafts: list[Draft] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)


def check_answers(reply: DraftReply, request: DraftRequest) -> None:
    """Raise WireError unless each draft of `reply` continues its row of `request`, by no more than was asked for.

    A row may get no draft. Whether the ids are in the target's vocabulary is for the target to check.
    """
    rows = {row.session: row for row in request.rows}
    for draft in reply.drafts:
        row = rows.get(draft.session)
        if row is None:
            raise WireError(f"drafts came for session {draft.session!r}, for which none were asked")
        if draft.position != row.position + row.tokens.size:
            raise WireError(f"drafts for session {draft.session!r} start at token {draft.position} of the answer")
        count = draft.tokens.size
        if count > row.max_drafts or draft.q_ids.size > count * row.top_m:
            raise WireError(f"more drafts, or more of q, came for session {draft.session!r} than were asked for")
    asked = rows.keys() | {state.session for state in request.restored}
    if not asked.issuperset(reply.lost):
        raise WireError("a session is said to be lost that was not asked for")
