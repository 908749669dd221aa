"""One request as its drafter sees it: the answer so far, what was drafted for it, and what is being done."""

import asyncio
import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kv_transfer.drafts import DraftRow
from kv_transfer.errors import SessionLostError
from kv_transfer.messages import DraftAhead, Int32Array
from speculator_service.drafting.budget import SessionAcceptance
from speculator_service.drafting.draft_ahead import Ahead, Ask
from speculator_service.engine import Drafted

MAX_DRAFTS = 64
MAX_TOP = 512

GREEDY_BELOW = 1e-5
"""Temperatures under this are greedy, as they are in vLLM (vllm.sampling_params._SAMPLING_EPS)."""

NOTHING = Drafted(np.empty(0, np.int32))
NO_ASK = Ask(0, 0.0, 0)


@dataclass(slots=True, eq=False)
class DrafterSession:
    """answer: int32 [A], what the target has accepted. used: when it was last asked for, in the clock's seconds.

    sent: the drafts of the last reply, until the target answers them; ask: what they were drafted for. opening: its
    kept prompt is still being read. work: the engine's latest work for a row, or the opening; it holds the lock.
    rounds: replies with drafts. drafts: tokens in them and the look-ahead tokens. accepted: those the target took.
    """

    id: str
    mode: DraftAhead
    used: float
    answer: Int32Array = field(default_factory=lambda: np.empty(0, np.int32))
    sent: Drafted = NOTHING
    ask: Ask = NO_ASK
    opening: bool = False
    work: asyncio.Task[Any] | None = None
    ahead: Ahead | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    acceptance: SessionAcceptance = field(default_factory=SessionAcceptance)
    rounds: int = 0
    drafts: int = 0
    accepted: int = 0

    def extend(self, row: DraftRow) -> None:
        """Take over what a row tells; a row may repeat what is known, or tell of less (the target went back).

        Raises SessionLostError if it leaves a gap or contradicts what is known: then only the whole answer helps.
        """
        position, tokens = row.position, row.tokens
        if not 0 <= position <= self.answer.size or (tokens < 0).any():
            raise SessionLostError(f"session {self.id}: {position} tokens are not where its answer can go on")
        known = self.answer[position : position + tokens.size]
        if not np.array_equal(known, tokens[: known.size]):
            raise SessionLostError(f"session {self.id}: the target's answer is not the one that was told before")
        new = tokens[known.size :]
        if new.size:
            same = self.sent.tokens[: new.size] == new[: self.sent.tokens.size]
            accepted = int(np.cumprod(same).sum())
            self.accepted += accepted
            self.acceptance.add(accepted, int(self.sent.tokens.size))
        self.set_answer(np.concatenate([self.answer[:position], tokens]))
        self.ask = _ask(row)

    def set_answer(self, answer: Int32Array) -> None:
        """The answer is this, whatever was known."""
        self.answer = np.asarray(answer, np.int32)
        self.sent = NOTHING

    def cancel(self) -> None:
        """Ask the engine's work for the session to stop."""
        if self.work is not None:
            self.work.cancel()


def _ask(row: DraftRow) -> Ask:
    """What a row asks for, nothing if its numbers make no sense; one-hot drafts are greedy, so that q is their own."""
    if row.top_m < 0 or not 0 <= row.temperature < math.inf:
        return NO_ASK
    sampled = row.temperature >= GREEDY_BELOW and row.top_m > 0
    count = max(0, min(row.max_drafts, MAX_DRAFTS))
    return Ask(count, row.temperature, min(row.top_m, MAX_TOP)) if sampled else Ask(count, 0.0, 0)
