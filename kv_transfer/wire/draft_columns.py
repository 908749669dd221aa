"""The draft messages as columns: each field of all rows travels as one list or one flat array.

A message of 32 rows holds about a hundred small arrays. Encoding them one by one costs ten times as much as the gRPC
call itself. The decoder refuses columns that do not fit each other, and q that is no distribution (`drafts.check_q`),
so the code behind it need not check again.
"""

from itertools import accumulate
from typing import Annotated, Any

import msgspec
import numpy as np

from kv_transfer.arrays import Int32Array
from kv_transfer.drafts import Draft, DraftReply, DraftRequest, DraftRow, check_q
from skim_common.errors import WireError

Natural = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
Sequence = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Temperature = Annotated[float, msgspec.Meta(ge=0, le=1e6)]


class RequestColumns(msgspec.Struct, frozen=True):
    """DraftRequest. Row i has counts[i] tokens. tokens: int32, little-endian."""

    sequence: Sequence
    sessions: list[str]
    positions: list[Natural]
    counts: list[Natural]
    max_drafts: list[Natural]
    temperatures: list[Temperature]
    top_ms: list[Natural]
    tokens: bytearray
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
            _pack([row.tokens for row in rows], np.int32),
            request.closed,
        )

    def message(self) -> DraftRequest:
        """Make the message. Raises WireError if the columns do not fit together."""
        _check_sessions(self.sessions)
        tokens = _split(_ids(self.tokens), self.counts)
        wanted = (self.max_drafts, self.temperatures, self.top_ms)
        # strict: columns of unequal length raise ValueError, which the codec turns into WireError.
        columns = zip(self.sessions, self.positions, tokens, *wanted, strict=True)
        return DraftRequest(self.sequence, [DraftRow(*row) for row in columns], self.closed)


class ReplyColumns(msgspec.Struct, frozen=True):
    """DraftReply. Row i has counts[i] tokens and, for each of them, widths[i] pairs of q (0: one-hot).

    tokens, q_ids: int32, q_probs: float32, all little-endian.
    """

    sequence: Sequence
    sessions: list[str]
    positions: list[Natural]
    counts: list[Natural]
    widths: list[Natural]
    tokens: bytearray
    q_ids: bytearray
    q_probs: bytearray

    @classmethod
    def of(cls, reply: DraftReply) -> "ReplyColumns":
        drafts = reply.drafts
        return cls(
            reply.sequence,
            [draft.session for draft in drafts],
            [draft.position for draft in drafts],
            [draft.tokens.size for draft in drafts],
            [_width(draft) for draft in drafts],
            _pack([draft.tokens for draft in drafts], np.int32),
            _pack([draft.q_ids for draft in drafts], np.int32),
            _pack([draft.q_probs for draft in drafts], np.float32),
        )

    def message(self) -> DraftReply:
        """Make the message. Raises WireError if the columns do not fit together or a row of q is not a distribution."""
        _check_sessions(self.sessions)
        sizes = [count * width for count, width in zip(self.counts, self.widths, strict=True)]
        tokens, q_ids, q_probs = _ids(self.tokens), _ids(self.q_ids), _unpack(self.q_probs, np.float32)
        rows = _split(tokens, self.counts), _split(q_ids, sizes), _split(q_probs, sizes)
        if q_ids.size:
            check_q(tokens, np.repeat(self.widths, self.counts), q_ids, q_probs)
        columns = zip(self.sessions, self.positions, *rows, strict=True)
        return DraftReply(self.sequence, [Draft(*row) for row in columns])


def _width(draft: Draft) -> int:
    """Pairs of q per draft."""
    count, size = draft.tokens.size, draft.q_ids.size
    if size != draft.q_probs.size or (size % count if count else size):
        raise WireError(f"{size} ids and {draft.q_probs.size} probabilities of q do not fit {count} drafts")
    return size // count if count else 0


def _pack(arrays: list[Any], dtype: type) -> bytearray:
    """Concatenate 1-D arrays of one dtype."""
    if not arrays:
        return bytearray()
    flat = np.concatenate(arrays)
    if flat.ndim != 1 or flat.dtype != dtype:
        raise WireError(f"draft messages hold 1-D arrays of {dtype.__name__}, not {flat.ndim}-D ones of {flat.dtype}")
    return bytearray(flat.astype(flat.dtype.newbyteorder("<"), copy=False))


def _unpack(data: bytearray, dtype: type) -> Any:
    """`data` as an array [N] that shares its memory."""
    if len(data) % 4:
        raise WireError(f"a column of {len(data)} bytes is no whole number of elements")
    return np.frombuffer(data, np.dtype(dtype).newbyteorder("<")).astype(dtype, copy=False)


def _ids(data: bytearray) -> Int32Array:
    ids: Int32Array = _unpack(data, np.int32)
    if ids.size and ids.min() < 0:
        raise WireError("a column of token ids holds a negative number")
    return ids


def _split(flat: Any, sizes: list[int]) -> list[Any]:
    """Split a flat array into parts of the given sizes. Raises WireError unless the sizes add up to its length."""
    ends = list(accumulate(sizes))
    if flat.size != (ends[-1] if ends else 0):
        raise WireError(f"a column of {flat.size} elements does not hold rows of {sum(sizes)} together")
    return [flat[end - size : end] for size, end in zip(sizes, ends, strict=True)]


def _check_sessions(sessions: list[str]) -> None:
    if len(set(sessions)) != len(sessions):
        raise WireError("a session has two rows in one message")
