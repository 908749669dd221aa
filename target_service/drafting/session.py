"""What a request asks of drafting, and its session on the target's side. No content of a draft can raise an error."""

from typing import Any, NamedTuple, Self

import numpy as np

from kv_transfer.arrays import Float32Array, Int32Array
from kv_transfer.drafts import Drafted, DraftRow
from kv_transfer.messages import GenerateRequest
from kv_transfer.position_map import Int64Array

DRAFTING = "skim_drafting"
"""Key in `SamplingParams.extra_args`; its value is a DraftSettings, or the list that vLLM's messages make of it."""

Q_TOP = 32
"""(token, probability) pairs of the drafter's distribution that are sent per draft."""


class DraftSettings(NamedTuple):
    """Builtins alone, which are cheap to copy. max_drafts: the highest K; 0: no drafts. q_top: pairs of q per draft.
    look_ahead: int32 [N] as bytes, the first drafts. session: address and id.
    """

    max_drafts: int
    adaptive: bool = True
    q_top: int = Q_TOP
    look_ahead: bytes = b""
    session: tuple[str, str] | None = None

    @classmethod
    def of(cls, request: GenerateRequest) -> Self:
        decode, session = request.decode, request.prompt.session
        return cls(
            decode.max_draft_tokens if decode.method != "none" else 0,
            decode.adaptive,
            Q_TOP,
            request.prompt.look_ahead_tokens.astype("<i4").tobytes(),
            (session.address, session.id) if session else None,
        )

    @classmethod
    def read(cls, sampling: Any) -> Self | None:
        """The settings of a request with these SamplingParams of vLLM; None if there are none."""
        sent = sampling.extra_args.get(DRAFTING) if sampling is not None and sampling.extra_args else None
        return None if sent is None else cls(*sent)

    @property
    def may_draft(self) -> bool:
        """Whether the request has a source of remote drafts and allows them."""
        return self.max_drafts > 0 and bool(self.session or self.look_ahead)


def q_entries(drafted: Drafted, rows: Int64Array, vocabulary: int) -> tuple[Int64Array, Float32Array]:
    """The flat places in a table [rows, vocabulary], and the values, of q. rows: those of the first drafts."""
    ids, q = drafted.q
    if not ids.size:
        ids, q = drafted.tokens[:, None], np.ones((drafted.tokens.size, 1), np.float32)
    return (rows[:, None] * vocabulary + ids[: rows.size]).ravel(), q[: rows.size].ravel()


MAX_REST = 64
"""Steps without a question to a drafter that has no drafts: 1, 2, 4, ... after each answer without them, at most 64."""


class TargetSession:
    """The session of one request. It rests after answers without drafts: its prompt is not read yet, or it is gone."""

    def __init__(self, address: str, id: str) -> None:
        self.address, self.id = address, id
        self._acknowledged = 0
        self._left, self._rest = 0, 0

    def rests(self) -> bool:
        """Whether the drafter is not asked in this step. Call it once per step."""
        self._left = max(self._left - 1, 0)
        return self._left > 0

    def ask(self, answer: Int32Array, drafts: int, temperature: float, top_m: int) -> DraftRow:
        return DraftRow(self.id, self._acknowledged, answer[self._acknowledged :], drafts, temperature, top_m)

    def acknowledge(self, row: DraftRow, *, drafted: bool) -> None:
        """The drafter answered, so it has the tokens of `row`. drafted: with drafts."""
        self._acknowledged = row.position + int(row.tokens.size)
        self._rest = 0 if drafted else min(max(2 * self._rest, 1), MAX_REST)
        self._left = self._rest + bool(self._rest)

    def roll_back(self, answered: int) -> None:
        """The answer has become shorter: `answered` tokens."""
        self._acknowledged = min(self._acknowledged, answered)
