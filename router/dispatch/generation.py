"""The target's part in the way of one prompt: what is begun before it, learned from it, and ended after it."""

import time
from collections.abc import AsyncGenerator
from contextlib import ExitStack
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Self

from actors.observability.pool_spans import AnswerTally
from kv_transfer.messages import GenerateOutput, GenerateRequest, KeptPrompt
from router.admission.ticket import Ticket
from router.dispatch.metrics import record_first_token, record_forecast, record_migration, since_arrival
from router.dispatch.request import Prepared
from router.dispatch.state import Outcome
from router.dispatch.tracing import GENERATE, note_prompt
from router.options.headers import TOTAL, add_prefill
from router.pools.answer_record import AnswerRecord
from router.pools.migration import DeadlyRequestError, GivenUpError, Migration, ReplicaLostError, migrate

if TYPE_CHECKING:
    from router.dispatch.dispatcher import Dispatcher


class Generation:
    """One prompt at the target. It owns the trace span, the tally of the answer, and the drafting session as long as no
    replica has the request.

    answer: grows with the outputs. The dispatcher's parts are used as they are.
    """

    def __init__(
        self,
        dispatcher: "Dispatcher",
        prepared: Prepared,
        outcome: Outcome,
        kept: KeptPrompt,
        answer: AnswerRecord,
        ticket: Ticket,
    ) -> None:
        self._dispatcher, self._prepared, self._outcome, self._kept = dispatcher, prepared, outcome, kept
        self._answer, self._ticket, self._context = answer, ticket, ExitStack()
        self._held = False  # a target replica has the request and will end its session

    def __enter__(self) -> Self:
        dispatcher, prepared = self._dispatcher, self._prepared
        self._context.enter_context(dispatcher.catch_ups.request())
        self._context.enter_context(dispatcher.forecaster.sent(prepared.forecast, self._kept))
        self._span = self._context.enter_context(self._outcome.call.span.child(GENERATE, "client"))
        self._tally, self._sent = AnswerTally(self._span, prepared.prompt.sampling), time.perf_counter()
        dispatcher.admission.sent(self._ticket)
        return self

    def outputs(self) -> AsyncGenerator[GenerateOutput, None]:
        """The outputs for the client, from as many replicas as it takes; `note` each. Raises as `migrate`."""
        enabled = self._dispatcher.settings.migration
        return migrate(self._answer, self._attempt, self._moved, self._received, enabled=enabled)

    def _attempt(self, request: GenerateRequest) -> AsyncGenerator[GenerateOutput, None]:
        left_ms = self._outcome.call.request.deadline.left_ms
        envelope = replace(request.envelope, timeout_ms=left_ms, trace=self._span.headers)
        return self._dispatcher.pools.generate(replace(request, envelope=envelope), self._outcome.admit)

    def _moved(self, migration: Migration) -> None:
        prepared, self._held = self._prepared, False
        record_migration(self._dispatcher.meter, migration)
        call = self._outcome.call
        log, key = self._dispatcher.log, call.request.key
        log.note_migration(prepared.request_id, prepared.size, migration, key, call.request_id)

    def _received(self, output: GenerateOutput) -> None:
        self._held = True
        if self._ticket.stage == "prefill":
            self._dispatcher.admission.prefilled(self._ticket, output)
            self._dispatcher.clients.began(self._prepared.size, since_arrival(self._outcome, self._prepared.started))
            self._record_first(output)

    def note(self, output: GenerateOutput) -> None:
        """Count an output for the client."""
        self._tally.add(output)

    def _record_first(self, output: GenerateOutput) -> None:
        """Learn from the first output of a replica: the client of an answer in one piece gets the last one alone."""
        dispatcher, outcome, queued_ms = self._dispatcher, self._outcome, self._ticket.queued_ms
        now = time.perf_counter()
        add_prefill(outcome.timings, output.timings, 1e3 * (now - self._sent))
        outcome.timings["queue"] += queued_ms
        outcome.timings[TOTAL] = 1e3 * (now - outcome.call.request.arrived)
        record_first_token(dispatcher.meter, outcome, output.cached_tokens)
        queue, prefill = output.timings.get("queue", 0.0), outcome.timings["prefill"]
        dispatcher.forecaster.began(self._prepared.forecast, self._kept, output.cached_tokens, prefill, queue)
        elapsed_ms = 1e3 * (self._sent - self._prepared.started)
        record_forecast(dispatcher.meter, outcome, elapsed_ms - queued_ms + queue + prefill)
        outcome.call.answering = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        dispatcher, prepared = self._dispatcher, self._prepared
        if isinstance(error, ReplicaLostError | GivenUpError | DeadlyRequestError):
            self._held = False
            dispatcher.meter.record("skim_router_given_up_total", 1)
        self._outcome.answer_tokens = self._tally.tokens
        note_prompt(self._span, prepared.wire_id, self._outcome, self._tally)
        dispatcher.forecaster.ended(prepared.forecast, self._kept, self._answer.first_token_ids)
        # The target ends the session of an answer that it has begun; it may not know any other.
        if self._kept.session is not None and not self._held:
            dispatcher.background.start(dispatcher.pools.end_session(self._kept.session))
        self._context.__exit__(kind, error, trace)
