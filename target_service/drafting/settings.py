"""The drafting settings of a request. They reach the target's worker in `SamplingParams.extra_args`."""

from collections.abc import Mapping
from typing import Any, NamedTuple, Self

from kv_transfer.messages import GenerateRequest

DRAFTING = "skim_drafting"
"""Key in `SamplingParams.extra_args`; its value is a DraftSettings, or the list that vLLM's messages make of it."""

Q_TOP = 32
"""(token, probability) pairs of the drafter's distribution that are sent per draft."""


class DraftSettings(NamedTuple):
    """Builtins alone, which are cheap to copy.

    max_drafts: the highest K; 0: no drafts. q_top: pairs of q per draft. look_ahead: int32 [N] as bytes, the first
    drafts. session: address and id.
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
    def read(cls, extra_args: Mapping[str, Any] | None) -> Self | None:
        """The settings of a request with these `extra_args`; None if there are none."""
        sent = extra_args.get(DRAFTING) if extra_args else None
        return None if sent is None else cls(*sent)

    @property
    def may_draft(self) -> bool:
        """Whether the request has a source of remote drafts and allows them."""
        return self.max_drafts > 0 and bool(self.session or self.look_ahead)
