"""A session on the target's side: what the drafter has acknowledged, the next row to send, and its drafts.

Bookkeeping over `kv_transfer.drafts`: nothing here waits, and no content of a draft can raise an error.
"""

from dataclasses import dataclass

import numpy as np

from kv_transfer.arrays import Float32Array, Int32Array
from kv_transfer.drafts import Draft, DraftRow
from kv_transfer.messages import SessionHandle

MAX_REST = 64
"""Steps without a question to a drafter that has no drafts: 1, 2, 4, ... after each answer without them, at most 64."""


@dataclass(frozen=True, slots=True, eq=False)
class Proposal:
    """Drafts to verify. tokens: int32 [k]. q_ids, q_probs: [k, m], each draft's distribution; m is 0 for one-hot."""

    tokens: Int32Array
    q_ids: Int32Array
    q_probs: Float32Array


def one_hot(tokens: Int32Array) -> Proposal:
    """Drafts without q. They are verified as if q were one-hot, which is exact for any draft."""
    return Proposal(tokens, np.empty((tokens.size, 0), np.int32), np.empty((tokens.size, 0), np.float32))


def checked_proposal(draft: Draft, vocab_size: int) -> Proposal | None:
    """The drafts as a proposal; None if a token id is not in the target's vocabulary.

    All else is checked before, by `kv_transfer.drafts.check_answers`.
    """
    count = draft.tokens.size
    for ids in (draft.tokens, draft.q_ids):
        if ((ids < 0) | (ids >= vocab_size)).any():
            return None
    shape = count, draft.q_ids.size // max(1, count)
    return Proposal(draft.tokens, draft.q_ids.reshape(shape), draft.q_probs.reshape(shape))


class TargetSession:
    """The session of one request. It rests after answers without drafts: its prompt is not read yet, or it is gone."""

    def __init__(self, session: SessionHandle) -> None:
        self.address, self.id = session.address, session.id
        self._acknowledged = 0
        self._left, self._rest = 0, 0

    def rests(self) -> bool:
        """Whether the drafter is not asked in this step. Call it once per step."""
        self._left = max(self._left - 1, 0)
        return self._left > 0

    def ask(self, answer: Int32Array, drafts: int, temperature: float, top_m: int) -> DraftRow:
        """The row that asks for `drafts` tokens after `answer`."""
        return DraftRow(self.id, self._acknowledged, answer[self._acknowledged :], drafts, temperature, top_m)

    def acknowledge(self, row: DraftRow, *, drafted: bool) -> None:
        """The drafter answered, so it has the tokens of `row`. drafted: with drafts."""
        self._acknowledged = row.position + int(row.tokens.size)
        self._rest = 0 if drafted else min(max(2 * self._rest, 1), MAX_REST)
        self._left = self._rest + bool(self._rest)

    def roll_back(self, answered: int) -> None:
        """The answer has become shorter: `answered` tokens."""
        self._acknowledged = min(self._acknowledged, answered)
