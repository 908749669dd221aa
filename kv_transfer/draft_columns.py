"""The draft messages as columns: what all rows hold in common travels as one list or one flat array.

A message of 32 rows holds about a hundred small arrays; one by one they cost ten times the gRPC call's own work. The
columns are checked as a whole: a peer that lies is refused here, so that nobody behind has to doubt a message.
"""

from itertools import accumulate
from operator import mul
from typing import Annotated, Any

import msgspec
import numpy as np

from kv_transfer.drafts import Draft, DraftReply, DraftRequest, DraftRow, SessionState
from kv_transfer.errors import WireError
from kv_transfer.messages import Float32Array, Int32Array

Natural = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
Sequence = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Temperature = Annotated[float, msgspec.Meta(ge=0, le=1e6)]

# A sum of 512 float32 probabilities is off by 1e-5 at most.
_SUM_TOLERANCE = 1e-3


class RequestColumns(msgspec.Struct, frozen=True):
    """DraftRequest. Row i has counts[i] of the tokens."""

    sequence: Sequence
    sessions: list[str]
    positions: list[Natural]
    counts: list[Natural]
    max_drafts: list[Natural]
    temperatures: list[Temperature]
    top_ms: list[Natural]
    tokens: Int32Array
    restored: list[SessionState]
    closed: list[str]

    @classmethod
    def of(cls, request: DraftRequest) -> "RequestColumns":
        rows = request.rows
        return cls(
            request.sequence,
            [row.session for row in rows],
            [row.position for row in rows],
            [row.tokens.size for row in rows],
            [row.max_drafts for row in rows],
            [row.temperature for row in rows],
            [row.top_m for row in rows],
            _flat([row.tokens for row in rows], np.int32),
            request.restored,
            request.closed,
        )

    def message(self) -> DraftRequest:
        """The rows again; WireError if the columns do not fit each other."""
        rows = (self.positions, self.counts, self.max_drafts, self.temperatures, self.top_ms)
        _check_rows(self.sessions, *rows)
        tokens = _split(self.tokens, self.counts)
        columns = zip(
            self.sessions, self.positions, tokens, self.max_drafts, self.temperatures, self.top_ms, strict=True
        )
        return DraftRequest(self.sequence, [DraftRow(*row) for row in columns], self.restored, self.closed)


class ReplyColumns(msgspec.Struct, frozen=True):
    """DraftReply. Row i has counts[i] of the tokens, and widths[i] of the q pairs for each of them (0: one-hot)."""

    sequence: Sequence
    sessions: list[str]
    positions: list[Natural]
    counts: list[Natural]
    widths: list[Natural]
    ahead: list[bool]
    tokens: Int32Array
    q_ids: Int32Array
    q_probs: Float32Array
    lost: list[str]

    @classmethod
    def of(cls, reply: DraftReply) -> "ReplyColumns":
        drafts = reply.drafts
        return cls(
            reply.sequence,
            [draft.session for draft in drafts],
            [draft.position for draft in drafts],
            [draft.tokens.size for draft in drafts],
            [_width(draft) for draft in drafts],
            [draft.ahead for draft in drafts],
            _flat([draft.tokens for draft in drafts], np.int32),
            _flat([draft.q_ids for draft in drafts], np.int32),
            _flat([draft.q_probs for draft in drafts], np.float32),
            reply.lost,
        )

    def message(self) -> DraftReply:
        """The drafts again; WireError if the columns do not fit each other or a row of q is no distribution."""
        _check_rows(self.sessions, self.positions, self.counts, self.widths, self.ahead)
        tokens = _split(self.tokens, self.counts)
        sizes = list(map(mul, self.counts, self.widths))
        q_ids, q_probs = _split(self.q_ids, sizes), _split(self.q_probs, sizes)
        if self.q_ids.size:
            _check_q(self.tokens, np.repeat(self.widths, self.counts), self.q_ids, self.q_probs)
        columns = zip(self.sessions, self.positions, tokens, q_ids, q_probs, self.ahead, strict=True)
        return DraftReply(self.sequence, [Draft(*row) for row in columns], self.lost)


def _width(draft: Draft) -> int:
    """Pairs of q per draft."""
    count, size = draft.tokens.size, draft.q_ids.size
    if size != draft.q_probs.size or (size % count if count else size):
        raise WireError(f"{size} ids and {draft.q_probs.size} probabilities of q do not fit {count} drafts")
    return size // count if count else 0


def _flat(arrays: list[Any], dtype: type) -> Any:
    """One array [sum of sizes] of 1-D arrays that all have `dtype`."""
    if not arrays:
        return np.empty(0, dtype)
    flat = np.concatenate(arrays)
    if flat.ndim != 1 or flat.dtype != dtype:
        raise WireError(f"draft messages hold 1-D arrays of {dtype.__name__}, not {flat.ndim}-D ones of {flat.dtype}")
    return flat


def _split(flat: Any, sizes: list[int]) -> list[Any]:
    """The parts of a flat array; WireError unless it holds exactly as many elements as they need."""
    ends = list(accumulate(sizes))
    if flat.ndim != 1 or flat.size != (ends[-1] if ends else 0):
        raise WireError(f"an array of {list(flat.shape)} does not hold rows of {sum(sizes)} elements together")
    return [flat[end - size : end] for size, end in zip(sizes, ends, strict=True)]


def _check_rows(sessions: list[str], *columns: list[Any]) -> None:
    if any(len(column) != len(sessions) for column in columns):
        raise WireError(f"columns of {[len(c) for c in columns]} rows do not fit {len(sessions)} sessions")
    if len(set(sessions)) != len(sessions):
        raise WireError("a session has two rows in one message")


def _check_q(tokens: Int32Array, widths: Any, ids: Int32Array, probs: Float32Array) -> None:
    """Each draft's pairs are a distribution that the draft can come from. widths: [drafts], pairs of each draft."""
    with_q = widths > 0
    tokens, widths = tokens[with_q], widths[with_q]
    starts = np.cumsum(widths) - widths
    if probs.min() < 0 or (abs(np.add.reduceat(probs, starts) - 1) > _SUM_TOLERANCE).any():
        raise WireError("a draft's probabilities are below 0 or do not sum to 1")
    # An id twice would lose mass where q is spread over the vocabulary, and q = 0 would accept any draft.
    keys = np.sort(np.repeat(np.arange(widths.size) << 31, widths) + ids)
    if (keys[1:] == keys[:-1]).any():
        raise WireError("a draft's distribution names a token twice")
    if not np.logical_or.reduceat((ids == np.repeat(tokens, widths)) & (probs > 0), starts).all():
        raise WireError("a draft cannot come from its own distribution: its probability is 0")
