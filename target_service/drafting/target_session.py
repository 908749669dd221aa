"""A session on the target's side: what the drafter has acknowledged, the next row to send, and its drafts.

Bookkeeping over `kv_transfer.drafts`: nothing here waits, and no content of a draft can raise an error.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from kv_transfer.arrays import Float32Array, Int32Array
from kv_transfer.drafts import Draft, DraftRow, SessionState
from kv_transfer.messages import KeptPrompt, SessionHandle

MAX_RESTORE_AFTER = 64
"""A session that is lost repeatedly is restored after 1, 2, 4, ... rounds, at most 64."""


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

    All else is checked before, in `kv_transfer.drafts`: q by `check_q`, position and count by `check_answers`.
    """
    count = draft.tokens.size
    for ids in (draft.tokens, draft.q_ids):
        if ((ids < 0) | (ids >= vocab_size)).any():
            return None
    shape = count, draft.q_ids.size // max(1, count)
    return Proposal(draft.tokens, draft.q_ids.reshape(shape), draft.q_probs.reshape(shape))


class TargetSession:
    """The session of one request. prompt: returns the kept prompt; called only to restore a lost session.

    cache_salt: sent to the drafter when the session is restored.
    """

    def __init__(
        self,
        session: SessionHandle,
        prompt: Callable[[], KeptPrompt],
        cache_salt: str | None = None,
    ) -> None:
        self.address, self.id = session.address, session.id
        self.origin = session.address, session.id
        self._prompt, self._cache_salt = prompt, cache_salt
        self._acknowledged = 0
        self._lost = False
        self._wait, self._restore_after = 0, 1
        self.interrupted = False
        """Whether the session is without drafts since a failure."""

    def ask(
        self, answer: Int32Array, drafts: int, temperature: float, top_m: int
    ) -> tuple[DraftRow, SessionState | None] | None:
        """The row that asks for `drafts` tokens after `answer`, and the SessionState if the session must be restored.

        None while a lost session waits before it is restored.
        """
        restored = None
        if self._lost:
            self._wait -= 1
            if self._wait > 0:
                return None
            self._restore_after = min(2 * self._restore_after, MAX_RESTORE_AFTER)
            # The state counts as received. If it was not, the drafter reports the session as lost again.
            self._lost, self._acknowledged = False, int(answer.size)
            restored = SessionState(self.id, self._prompt(), answer, self._cache_salt)
        return DraftRow(self.id, self._acknowledged, answer[self._acknowledged :], drafts, temperature, top_m), restored

    def acknowledge(self, row: DraftRow) -> None:
        """The drafter answered, so it has the tokens of `row`."""
        self._acknowledged = row.position + int(row.tokens.size)

    def mark_drafted(self) -> bool:
        """The session got drafts. Returns whether this ends an interruption."""
        self._restore_after = 1
        resumed, self.interrupted = self.interrupted, False
        return resumed

    def move(self, address: str) -> None:
        """Continue with the drafter at `address`, which must restore the session first."""
        self.address = address
        self.mark_lost()

    def mark_lost(self) -> None:
        """The drafter does not know the session."""
        if not self._lost:
            self._lost, self._wait = True, self._restore_after
