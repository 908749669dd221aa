"""Begins the drafting session of a selection."""

import numpy as np

from kv_transfer.drafts import SessionState
from kv_transfer.messages import Selection, SelectRequest
from speculator_service.drafting.drafter import DraftService


def begin_drafts(drafts: DraftService, request: SelectRequest, selection: Selection, context: str | None) -> None:
    """Begin the session that `selection` names; without one, do nothing.

    context: by `SpeculatorService.draft_context`. A session over the kept prompt is read in the background.
    """
    if selection.kept.session is None or request.decode is None:
        return
    session, mode = selection.kept.session.id, request.decode.draft_ahead
    if context == "kept":
        drafts.read(SessionState(session, selection.kept, np.empty(0, np.int32), mode, request.cache_salt))
    else:
        drafts.adopt(session, selection.kept.look_ahead_tokens, mode)
