"""The speculator pool's Ray Serve deployment class: an engine behind encoded messages, and the draft channel."""

from collections.abc import AsyncGenerator, Mapping
from typing import Any

import ray
from opentelemetry.trace import Span

from actors.observability.spans import DRAFT, SELECT, note_select_parts, note_selection
from actors.observability.tracing import ending, server_span
from actors.pool_actor import PoolActor, PoolSettings, reply_to_failure
from kv_transfer.codec import decode, encode
from kv_transfer.draft_channel import DraftServer
from kv_transfer.draft_tls import CertificateFiles
from kv_transfer.drafts import DraftRequest
from kv_transfer.messages import SelectRequest
from skim_common.deadline import Deadline
from skim_common.errors import WireError
from speculator_service.drafting import DrafterSession, DraftService
from speculator_service.engine import SpeculatorEngine, create_engine
from speculator_service.service import SpeculatorService
from speculator_service.start.find_heads import ensure_heads
from speculator_service.start.probe import find_failure
from speculator_service.translation import translated, translation_for


class SpeculatorActor(PoolActor):
    """One replica: an engine, the selection service and the draft server."""

    pool = "speculator"
    _engine: SpeculatorEngine

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self,
        settings: PoolSettings,
        channel: Mapping[str, Any] | None = None,
        *,
        reads_for: str | None = None,
    ) -> None:
        """reads_for: the target, whose tokens the messages are in; None: the speculator's own. channel: port, token and
        tls of the draft channel (`kv_transfer.draft_channel.DraftServer`); with None the replica drafts nothing.
        """
        self._draft_spans: dict[str, Span] = {}
        async with self._start("speculator", settings):
            engine = create_engine(
                settings.engine, settings.model, tensor_parallel=settings.tensor_parallel, options=settings.options
            )
            await ensure_heads(engine, settings.model)
            translation = translation_for(settings.model, reads_for) if reads_for else None
            self._engine = translated(engine, translation)
            text = reads_for if translation and reads_for else settings.model
            await self._probe(settings, lambda: find_failure(self._engine, text))
        self._drafts, address = None, None
        if channel is not None:
            self._drafts = DraftService(self._engine, on_end=self._drafted)
            address = await self._serve_drafts(channel, self._drafts)
        self._service = SpeculatorService(self._engine, address, self._drafts)

    async def _serve_drafts(self, channel: Mapping[str, Any], drafts: DraftService) -> str:
        """Start the draft server on this node's address. Returns host:port."""
        host, port, token = ray.util.get_node_ip_address(), channel.get("port", 0), channel.get("token")
        tls = CertificateFiles(**channel["tls"]) if channel.get("tls") else None
        self._server = DraftServer(drafts.handle, host, port, token=token, tls=tls)
        return f"{host}:{await self._server.start()}"

    def _drafted(self, session: DrafterSession) -> None:
        """A drafting session is closed. Whether its last drafts were accepted is unknown here."""
        if span := self._draft_spans.pop(session.id, None):
            counts = {"draft_rounds": session.rounds, "drafts": session.drafts, "accepted_drafts": session.accepted}
            span.set_attributes({f"skim.{name}": count for name, count in counts.items()})
            span.end()

    async def select(self, payload: bytes) -> AsyncGenerator[bytes, None]:
        """Takes a SelectRequest and yields one Selection or error, all encoded. Cancelling aborts it in the engine.

        A stream, because Serve then learns the replica's queue length when the request starts, and not with the reply.
        """
        yield await self._select(payload)

    async def _select(self, payload: bytes) -> bytes:
        try:
            request = decode(payload, SelectRequest)
            envelope = request.envelope
            with ending(server_span(SELECT, envelope.trace)) as span:
                async with Deadline.after(envelope.timeout_ms).limit():
                    selection = await self._service.select(request)
                note_selection(span, request.request_id, selection)
                note_select_parts(span, selection, self._engine.info)
            session = selection.kept.session
            if session is not None and (span := server_span(DRAFT, envelope.trace)).is_recording():
                span.set_attribute("skim.engine_request_id", session.id)
                if (earlier := self._draft_spans.get(session.id)) is not None:
                    earlier.end()  # clients may use an id twice
                self._draft_spans[session.id] = span
            try:
                return encode(selection)
            except WireError:  # too large: no target will ever end its session
                if session is not None:
                    await self.end_session(session.id)
                raise
        except Exception as error:
            await self._watch.check()
            return reply_to_failure(error, "speculator")

    async def end_session(self, session: str) -> None:
        """Close a session that needs no more drafts. An unknown session is no error."""
        if self._drafts is not None:
            await self._drafts.handle(DraftRequest(closed=[session]))

    async def stats(self) -> dict[str, Any]:
        """As PoolActor.stats, with those of drafting and of records."""
        counts = await super().stats() | self._service.stats()
        return counts | (self._drafts.metrics() if self._drafts is not None else {})

    async def check_health(self) -> None:
        """Serve calls this every few seconds. It also evicts idle sessions, even if no more requests come."""
        await super().check_health()
        if self._drafts is not None:
            self._drafts.evict()

    def __del__(self) -> None:
        for span in getattr(self, "_draft_spans", {}).values():
            span.end()
        super().__del__()
