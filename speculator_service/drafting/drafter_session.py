"""A session on the drafter's side: the answer so far, the drafts last sent, and the engine's work in progress."""

import asyncio
import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kv_transfer.arrays import Int32Array, no_numbers
from kv_transfer.drafts import DraftRow
from kv_transfer.messages import KeptPrompt
from skim_common.errors import SessionLostError
from speculator_service.engine import Drafted

MAX_DRAFTS = 64
MAX_TOP = 512

GREEDY_BELOW = 1e-5
"""Lower temperatures mean greedy decoding, as in vLLM (vllm.sampling_params._SAMPLING_EPS)."""


@dataclass(frozen=True, slots=True)
class DraftParams:
    """How to draft for a row: at most `count` tokens, from the drafter's top `top_m` at `temperature` (0: greedy)."""

    count: int
    temperature: float
    top_m: int


NOTHING = Drafted(no_numbers())
NO_DRAFTS = DraftParams(0, 0.0, 0)


@dataclass(slots=True, eq=False)
class DrafterSession:
    """answer: int32 [A], the tokens that the target has accepted. used: time of the last row, in the clock's seconds.
    prompt_tokens: of the prompt that the drafts continue.

    sent: the drafts of the last reply, until the target answers them. params: how they were drafted. opening: the kept
    prompt is not prefilled yet. unread: the kept prompt and its cache salt, until its prefill begins. work: the latest
    work of the engine for a row, or the opening; it holds the lock.
    rounds: replies with drafts. drafts: tokens in these replies, plus the look-ahead tokens. accepted: accepted drafts.
    """

    id: str
    used: float
    prompt_tokens: int = 0
    answer: Int32Array = field(default_factory=no_numbers)
    sent: Drafted = NOTHING
    params: DraftParams = NO_DRAFTS
    opening: bool = False
    unread: tuple[KeptPrompt, str | None] | None = None
    work: asyncio.Task[Any] | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    rounds: int = 0
    drafts: int = 0
    accepted: int = 0

    @property
    def tokens(self) -> int:
        """The tokens of prompt and answer, which the session has in the KV cache."""
        return self.prompt_tokens + int(self.answer.size)

    def extend(self, row: DraftRow) -> None:
        """The answer ends with the row's tokens now. A row may repeat known tokens, or take some back.

        Raises SessionLostError if the row leaves a gap.
        """
        position, tokens = row.position, row.tokens
        if not 0 <= position <= self.answer.size or (tokens < 0).any():
            raise SessionLostError(f"session {self.id}: {position} tokens are not where its answer can go on")
        new = tokens[self.answer.size - position :]
        if new.size:
            same = self.sent.tokens[: new.size] == new[: self.sent.tokens.size]
            self.accepted += int(np.cumprod(same).sum())
        self.answer = np.concatenate([self.answer[:position], tokens]).astype(np.int32, copy=False)
        self.sent, self.params = NOTHING, _params(row)

    def cancel(self) -> None:
        """Cancel the engine's work for the session."""
        if self.work is not None:
            self.work.cancel()


def _params(row: DraftRow) -> DraftParams:
    """A row's parameters; NO_DRAFTS if they are invalid. One-hot drafts are greedy, so that a one-hot q is correct."""
    if row.top_m < 0 or not 0 <= row.temperature < math.inf:
        return NO_DRAFTS
    sampled = row.temperature >= GREEDY_BELOW and row.top_m > 0
    count = max(0, min(row.max_drafts, MAX_DRAFTS))
    return DraftParams(count, row.temperature, min(row.top_m, MAX_TOP)) if sampled else DraftParams(count, 0.0, 0)
