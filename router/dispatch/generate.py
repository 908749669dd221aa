"""The stage of a prompt at the target pool: its answer, from as many replicas as it takes, and what is learned."""

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

from opentelemetry.trace import SpanKind

from actors.observability.spans import AnswerTally
from actors.observability.tracing import child_span, ending, headers_of
from kv_transfer.messages import GenerateOutput, GenerateRequest, KeptPrompt
from router.admission.ticket import Ticket
from router.dispatch.parts import Parts
from router.dispatch.state import Outcome
from router.dispatch.telemetry import GENERATE, note_prompt
from router.options.headers import TIMING_PARTS, TOTAL, add_prefill
from router.pools.migration import AnswerRecord, DeadlyRequestError, GivenUpError, Migration, ReplicaLostError, migrate


async def generate(
    parts: Parts, outcome: Outcome, kept: KeptPrompt, answer: AnswerRecord, ticket: Ticket
) -> AsyncGenerator[GenerateOutput, None]:
    """The outputs for the client. answer: grows with them. Raises as `migrate`."""
    prepared, call, pools = outcome.prepared, outcome.call, parts.pools
    forecast = prepared.forecast
    has_begun = False  # a replica has the request; it ends the drafting session with the answer
    sent = time.perf_counter()

    def attempt(request: GenerateRequest) -> AsyncGenerator[GenerateOutput, None]:
        envelope = replace(request.envelope, timeout_ms=call.request.deadline.left_ms, trace=headers_of(span))
        return pools.generate(replace(request, envelope=envelope), outcome.admit)

    def moved(migration: Migration) -> None:
        nonlocal has_begun
        has_begun = False
        parts.meter.record("skim_router_migrations_total", 1, cause=migration.cause)
        parts.meter.record("skim_router_replayed_tokens_total", migration.answered)
        parts.log.note_migration(prepared.request_id, prepared.size, migration, call.request.key, call.request_id)

    def received(output: GenerateOutput) -> None:
        nonlocal has_begun
        has_begun = True
        if not ticket.began_at:
            parts.admission.prefilled(ticket, output)
            parts.clients.began(prepared.size, outcome.seconds)
            _record_first(parts, outcome, kept, ticket, output, sent)

    with parts.forecaster.sent(forecast, kept), ending(child_span(call.span, GENERATE, SpanKind.CLIENT)) as span:
        tally = AnswerTally(span, prepared.prompt.sampling)
        parts.admission.sent(ticket)
        try:
            enabled = parts.settings.migration
            async with aclosing(migrate(answer, attempt, moved, received, enabled=enabled)) as outputs:
                async for output in outputs:
                    tally.add(output)
                    yield output
        except (ReplicaLostError, GivenUpError, DeadlyRequestError):
            has_begun = False
            parts.meter.record("skim_router_given_up_total", 1)
            raise
        finally:
            outcome.answer_tokens = tally.tokens
            note_prompt(span, prepared.wire_id, outcome, tally)
            parts.forecaster.ended(forecast, kept, answer.first_token_ids)
            if kept.session is not None and not has_begun:
                parts.background.start(pools.end_session(kept.session))


def _record_first(
    parts: Parts, outcome: Outcome, kept: KeptPrompt, ticket: Ticket, output: GenerateOutput, sent: float
) -> None:
    """Learn from the first output of a replica: the client of an answer in one piece gets the last one alone."""
    now, queued_ms, timings = time.perf_counter(), ticket.queued_ms, outcome.timings
    add_prefill(timings, output.timings, 1e3 * (now - sent))
    timings["queue"] += queued_ms
    timings[TOTAL] = 1e3 * (now - outcome.call.request.arrived)
    meter, mode = parts.meter, outcome.mode
    meter.record("skim_router_cached_tokens_total", output.cached_tokens, mode=mode)
    for part in (*TIMING_PARTS, TOTAL):
        if part in timings:
            meter.record("skim_router_ttft_seconds", timings[part] / 1e3, mode=mode, part=part)
    queue, prefill = output.timings.get("queue", 0.0), timings["prefill"]
    parts.forecaster.began(outcome.prepared.forecast, kept, output.cached_tokens, prefill, queue)
    if outcome.estimate is not None:
        since_choice_ms = 1e3 * (sent - outcome.prepared.started) - queued_ms + queue + prefill
        meter.record("skim_router_forecast_ratio", outcome.estimate.of(mode) / max(since_choice_ms, 1e-3), mode=mode)
    outcome.call.answering = True
