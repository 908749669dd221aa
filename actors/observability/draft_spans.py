"""Trace spans of drafting on a speculator replica: one per session, which begins with the selection."""

from collections.abc import Mapping

from actors.observability.tracing import Span, Tracer
from speculator_service.drafting.drafter_session import DrafterSession

DRAFT = "skim.speculator.draft"


class DraftSpans:
    """The open spans, by session."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._open: dict[str, Span] = {}

    def begin(self, session: str, trace: Mapping[str, str] | None) -> None:
        """trace: as in Envelope."""
        span = self._tracer.span(DRAFT, trace)
        if span.recording:
            self._leave(session)  # clients choose the ids and may use one twice
            self._open[session] = span

    def end(self, session: DrafterSession) -> None:
        """The session is closed: record what it drafted. Whether the last drafts were accepted is unknown here."""
        if span := self._open.get(session.id):
            counts = {"draft_rounds": session.rounds, "drafts": session.drafts, "accepted_drafts": session.accepted}
            named = {f"skim.{name}": count for name, count in counts.items()}
            span.set({"skim.engine_request_id": session.id, **named})
            self._leave(session.id)

    def close(self) -> None:
        """End all open spans, because the replica stops."""
        for session in list(self._open):
            self._leave(session)

    def _leave(self, session: str) -> None:
        if span := self._open.pop(session, None):
            span.__exit__(None, None, None)
