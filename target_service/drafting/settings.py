"""The drafting settings of a request. They reach the target's worker in `SamplingParams.extra_args`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from kv_transfer.arrays import Int32Array
from kv_transfer.messages import GenerateRequest, SessionHandle

DRAFTING = "skim_drafting"
"""Key in `SamplingParams.extra_args`; its value is a mapping of builtins and bytes, which are cheap to copy."""

Q_TOP = 32
"""(token, probability) pairs of the drafter's distribution that are sent per draft."""


@dataclass(frozen=True, slots=True, eq=False)
class DraftSettings:
    """max_drafts: the highest K; 0: no drafts. look_ahead: int32 [N], the first drafts. q_top: pairs of q per draft."""

    max_drafts: int
    adaptive: bool
    q_top: int
    look_ahead: Int32Array
    session: SessionHandle | None


def encode_settings(request: GenerateRequest) -> dict[str, Any]:
    """The value of DRAFTING for this request."""
    decode, session = request.decode, request.prompt.session
    return {
        "max_drafts": decode.max_draft_tokens if decode.method != "none" else 0,
        "adaptive": decode.adaptive,
        "q_top": Q_TOP,
        "look_ahead": request.prompt.look_ahead_tokens.astype("<i4").tobytes(),
        "session": [session.address, session.id] if session else None,
    }


def draft_settings(extra_args: Mapping[str, Any] | None) -> DraftSettings | None:
    """The settings of a request with these `extra_args`; None if there are none."""
    sent = extra_args.get(DRAFTING) if extra_args else None
    if sent is None:
        return None
    return DraftSettings(
        max_drafts=sent["max_drafts"],
        adaptive=sent["adaptive"],
        q_top=sent["q_top"],
        look_ahead=np.frombuffer(sent["look_ahead"], "<i4"),
        session=SessionHandle(*sent["session"]) if sent["session"] else None,
    )


def max_drafts(extra_args: Mapping[str, Any] | None) -> int | None:
    """`DraftSettings.max_drafts` only, without decoding the rest; None if there are no settings."""
    sent = extra_args.get(DRAFTING) if extra_args else None
    return None if sent is None else int(sent["max_drafts"])


def may_draft(extra_args: Mapping[str, Any] | None) -> bool:
    """Whether a request with these `extra_args` has a source of remote drafts and allows them."""
    sent = extra_args.get(DRAFTING) if extra_args else None
    return sent is not None and sent["max_drafts"] > 0 and bool(sent["session"] or sent["look_ahead"])
