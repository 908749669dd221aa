"""One request's side of its drafting session: what the drafter was told, may be asked, and whether its answer is sound.

Plain bookkeeping over `kv_transfer.drafts`; nothing here waits, and nothing a drafter says can raise.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from kv_transfer.drafts import Draft, DraftRow, SessionState
from kv_transfer.messages import DraftAhead, Float32Array, Int32Array, KeptPrompt, SessionHandle

LAST_RESTORE_AFTER = 64
"""A session that gets lost over and over is sent again after 1, 2, 4, ... and at last every 64 rounds."""


@dataclass(frozen=True, slots=True, eq=False)
class Proposal:
    """Drafts to verify. tokens: int32 [k]. q_ids, q_probs: [k, m], the distribution of each; m is 0 for one-hot."""

    tokens: Int32Array
    q_ids: Int32Array
    q_probs: Float32Array


def one_hot(tokens: Int32Array) -> Proposal:
    """Drafts without q: verified as certain, which is exact for any draft."""
    return Proposal(tokens, np.empty((tokens.size, 0), np.int32), np.empty((tokens.size, 0), np.float32))


def checked_proposal(draft: Draft, row: DraftRow, vocab_size: int) -> Proposal | None:
    """The drafts of an answer to `row`, at most as many as asked for; None for one that cannot be verified.

    A token outside the vocabulary would be read outside the embeddings; a q that does not hold its draft, or does not
    sum to 1, would not be a distribution that the draft was sampled from.
    """
    if draft.position != row.position + row.tokens.size or draft.tokens.ndim != 1:
        return None
    count = draft.tokens.size
    tokens = draft.tokens[: row.max_drafts]
    if not _are_ids(tokens, vocab_size):
        return None
    if row.top_m == 0 or draft.q_ids.size == 0:
        return one_hot(tokens)
    if count == 0 or draft.q_ids.size % count or draft.q_ids.shape != draft.q_probs.shape:
        return None
    ids = draft.q_ids.reshape(count, -1)[: tokens.size]
    probs = draft.q_probs.reshape(count, -1)[: tokens.size]
    held = np.where(ids == tokens[:, None], probs, 0).sum(axis=1)
    # Written so that NaN fails each comparison.
    right = _are_ids(ids, vocab_size) and (probs >= 0).all() and (held > 0).all()
    if not right or not (np.abs(probs.sum(axis=1, dtype=np.float64) - 1) < 1e-3).all():
        return None
    return Proposal(tokens, ids, probs)


def _are_ids(ids: Int32Array, vocab_size: int) -> bool:
    return bool(((ids >= 0) & (ids < vocab_size)).all())


class TargetSession:
    """A request with a session. prompt: called only to restore the session after the drafter lost it.

    draft_ahead: what the drafter is told then.
    """

    def __init__(
        self, session: SessionHandle, prompt: Callable[[], KeptPrompt], draft_ahead: DraftAhead | None = None
    ) -> None:
        self.address, self.id = session.address, session.id
        self.origin = session.address, session.id
        self._prompt, self._draft_ahead = prompt, draft_ahead
        self._told = 0
        self._lost = False
        self._wait, self._restore_after = 0, 1
        self.interrupted = False
        """Set once drafts were missed, until they come again."""

    def ask(
        self, answer: Int32Array, drafts: int, temperature: float, top_m: int
    ) -> tuple[DraftRow, SessionState | None] | None:
        """What to send to have `drafts` tokens after `answer` drafted; None while a lost session waits for its turn."""
        restored = None
        if self._lost:
            self._wait -= 1
            if self._wait > 0:
                return None
            self._restore_after = min(2 * self._restore_after, LAST_RESTORE_AFTER)
            # Taken to have arrived: if it did not, the drafter says lost again.
            self._lost, self._told = False, int(answer.size)
            restored = SessionState(self.id, self._prompt(), answer, self._draft_ahead)
        return DraftRow(self.id, self._told, answer[self._told :], drafts, temperature, top_m), restored

    def heard(self, row: DraftRow) -> None:
        """The drafter answered, and knows what `row` told."""
        self._told = row.position + int(row.tokens.size)

    def drafted(self) -> bool:
        """Drafts came. Returns whether they come again after an interruption."""
        self._restore_after = 1
        resumed, self.interrupted = self.interrupted, False
        return resumed

    def move(self, address: str) -> None:
        """Go on with the drafter at `address`, which does not know the session yet."""
        self.address = address
        self.lost()

    def lost(self) -> None:
        """The drafter does not know the session."""
        if not self._lost:
            self._lost, self._wait = True, self._restore_after
