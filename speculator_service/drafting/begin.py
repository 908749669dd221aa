"""Begins the drafting session of a selection."""

from dataclasses import replace

from kv_transfer.messages import Selection, SelectRequest
from speculator_service.drafting.drafter import DraftService


def begin_drafts(drafts: DraftService, request: SelectRequest, selection: Selection, context: str | None) -> Selection:
    """Begin the session that `selection` names; without one, do nothing.

    context: by `SpeculatorService.draft_context`. A session over the kept prompt is read in the background.
    Returns the selection for the target. It names no session if the speculator has no room for one more.
    """
    kept = selection.kept
    if kept.session is None or request.decode is None:
        return selection
    session = kept.session.id
    if context == "kept":
        begun = drafts.read(session, kept, request.cache_salt)
    else:
        begun = drafts.adopt(session, kept.look_ahead_tokens, tokens=kept.context_length)
    return selection if begun else replace(selection, kept=replace(kept, session=None))
