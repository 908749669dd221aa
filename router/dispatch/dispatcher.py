"""Runs a prompt through the pools (decide, select, generate) and records the outcome in the request's context."""

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from functools import partial

import numpy as np

from actors.observability.metrics import Meter
from actors.observability.pool_spans import AnswerTally
from actors.observability.tracing import Span
from kv_transfer.messages import GenerateOutput, GenerateRequest, KeptPrompt
from kv_transfer.options import AUTO
from router.admission.controller import Admission
from router.admission.load_shedding import AUDIT
from router.admission.ticket import Place
from router.decision.forecast import Forecaster
from router.decision.guard import Guard
from router.decision.rules import Decision, RequestTraits, decide
from router.dispatch.admit import lightened, place_for
from router.dispatch.audit import Audits
from router.dispatch.context import RequestContext
from router.dispatch.outcome import Outcome, record_decision, record_first_token, record_forecast, record_migration
from router.dispatch.prompt_run import Prompt, Run
from router.dispatch.selection import LexicalFallback, Selecting
from router.dispatch.tracing import GENERATE, note_prompt, note_tokenized
from router.explain.explained import DecisionMade, Explained
from router.explain.prompt_text import message_spans
from router.explain.selection_log import Entry, HeldPrompt, SelectionLog
from router.options.errors import RefusedError
from router.options.headers import add_prefill
from router.options.request import PrefillOptions, SpeculationOptions
from router.options.settings import RouterConfig
from router.pools.answer_record import AnswerRecord
from router.pools.interface import Pools
from router.pools.migration import GivenUpError, Migration, ReplicaLostError, migrate
from router.pools.prefix_affinity import PrefixKeys
from router.pools.session_cleanup import SessionEnds
from router.prompt.protected_spans import prompt_spans, question_text
from skim_common.errors import DeadlineError, EngineUnavailableError, InvalidRequestError
from target_service.limits import check_length as check_target_length


class Dispatcher:
    """defaults, decode_defaults: the deployment's options of a request. settings: the endpoint's.

    admission: None: one without limits.
    """

    def __init__(
        self,
        pools: Pools,
        defaults: PrefillOptions,
        decode_defaults: SpeculationOptions,
        settings: RouterConfig,
        meter: Meter,
        admission: Admission | None = None,
    ) -> None:
        self.pools = pools
        self.meter = meter
        self.settings, self.defaults, self.decode_defaults = settings, defaults, decode_defaults
        self.selections = SelectionLog(holds_text=settings.explain_text)
        self.forecaster = Forecaster()
        self._keys = PrefixKeys() if settings.affinity else None
        self._guard = Guard(meter, enabled=settings.guard, entropy=settings.guard_entropy)
        self.admission = admission or Admission(meter)
        self.audits = Audits(meter, settings.audit_share, settings.audit_max_ongoing)
        self._ends = SessionEnds()
        fallback = LexicalFallback(pools, enabled=settings.on_speculator_failure == "lexical")
        self._selecting = Selecting(
            settings.select_timeout_s, self.admission, self.forecaster, self._guard, fallback, self._ends
        )

    async def run(
        self, request_id: str, prompt: Prompt, context: RequestContext
    ) -> AsyncGenerator[GenerateOutput, None]:
        """Stream the answer. Raises SkimError. Closing the generator aborts the request in both pools, as its deadline
        does."""
        try:
            context.deadline.check()
            async with aclosing(context.deadline.each(self._run(request_id, prompt, context))) as outputs:
                async for output in outputs:
                    yield output
        except DeadlineError:
            self.meter.record("skim_router_deadlines_missed_total", 1, answering=str(context.answering).lower())
            raise

    async def _run(
        self, request_id: str, prompt: Prompt, context: RequestContext
    ) -> AsyncGenerator[GenerateOutput, None]:
        self.selections.check(context.options)
        outcome, place = context.begin(len(prompt.token_ids)), None
        try:
            run = self._prepare(request_id, prompt, context, outcome)
            decision = self._decide(run)
            context.leave_intake()
            async with place_for(self.admission, self.forecaster, run, decision) as place:
                if place.load >= AUDIT:
                    self.audits.drop()
                run = lightened(run, place, self.meter)
                async with aclosing(self._answer(run, decision, place)) as outputs:
                    async for output in outputs:
                        yield output
        except (RefusedError, InvalidRequestError, EngineUnavailableError):
            if place is None or not place.began_at:
                context.give_back(outcome)
            raise

    async def _answer(self, run: Run, decision: Decision, place: Place) -> AsyncGenerator[GenerateOutput, None]:
        request_id, prompt, context, outcome = run.request_id, run.prompt, run.context, run.outcome
        kept = await self._read(run, decision, place)
        outcome.mode = outcome.mode or "dense"
        record_decision(self.meter, outcome)
        began, held = False, False  # held: a target replica has the request and will end its session

        def moved(migration: Migration) -> None:
            nonlocal held
            held = False
            record_migration(self.meter, migration)
            self.selections.note_migration(request_id, outcome.prompt_tokens, migration, context.key)

        reading = self.forecaster.sent(run.forecast, kept)
        with self.audits.request(), reading, context.span.child(GENERATE, "client") as span:
            tally = AnswerTally(span, prompt.sampling)
            answer = AnswerRecord(_request(run, kept, span))
            sent = time.perf_counter()
            admitted = partial(context.admit, outcome)
            self.admission.sent(place)
            try:

                def attempt(request: GenerateRequest) -> AsyncGenerator[GenerateOutput, None]:
                    asked = replace(request, timeout_ms=context.deadline.left_ms)
                    return self.admission.prefilled(place, self.pools.generate(asked, admitted))

                stream = migrate(answer, attempt, moved, enabled=self.settings.migration)
                async with aclosing(stream) as outputs:
                    async for output in outputs:
                        held = True
                        if not began:
                            began = True
                            self._begin(run, kept, output, sent, place.queued_ms)
                        tally.add(output)
                        yield output
            except (ReplicaLostError, GivenUpError):
                held = False
                self.meter.record("skim_router_given_up_total", 1)
                raise
            finally:
                outcome.answer_tokens = tally.tokens
                note_prompt(span, run.wire_id, outcome, tally)
                self.forecaster.ended(run.forecast, kept, answer.first_token_ids)
                # The target ends the session of an answer that it has begun; it may not know any other.
                if kept.session is not None and not held:
                    self._ends.end(self.pools, kept.session)
        self.admission.answered(place, int(answer.first_token_ids.size))
        if context.options.enabled == AUTO:
            loaded = self.admission.load() >= AUDIT
            self.audits.begin(self.pools, run.forecast.ids, answer, loaded=loaded)

    def _prepare(self, request_id: str, prompt: Prompt, context: RequestContext, outcome: Outcome) -> Run:
        context.request_id = context.request_id or request_id
        note_tokenized(context.span, outcome)
        ids = np.asarray(prompt.token_ids, np.int32)
        spans = prompt_spans(ids.size, context.options, prompt.chat, prompt.text, prompt.offsets)
        outcome.lost_contents = spans.lost
        question = question_text(spans.question, prompt.chat, prompt.text, prompt.offsets)
        advice = self._guard.advise(context.options, question, wished=context.keeps is not None)
        outcome.options = advice.options
        told = context.later_requests
        forecast = self.forecaster.look(ids, prompt.cache_salt, advice.options, spans.protected_tokens, told)
        affinity = ""
        if self._keys:
            affinity = self._keys.key(ids, spans.opening, prompt.cache_salt, hashes=forecast.hashes)
        return Run(request_id, prompt, context, outcome, spans, affinity, forecast, advice, context.decode)

    def _begin(self, run: Run, kept: KeptPrompt, output: GenerateOutput, sent: float, queued_ms: float) -> None:
        """Record the first output. sent: when the target got the request. queued_ms: as in Place."""
        now = time.perf_counter()
        add_prefill(run.outcome.timings, output.timings, 1e3 * (now - sent))
        run.outcome.timings["queue"] += queued_ms
        record_first_token(self.meter, run.outcome, 1e3 * (now - run.context.arrived))
        queue, prefill = output.timings.get("queue", 0.0), run.outcome.timings["prefill"]
        self.forecaster.began(run.forecast, kept, output.cached_tokens, prefill, queue)
        record_forecast(self.meter, run.outcome, 1e3 * (sent - run.started) - queued_ms + queue + prefill)
        run.context.answering = True

    def _decide(self, run: Run) -> Decision:
        """Whether the prompt runs dense or speculative."""
        prompt, context, outcome, options = run.prompt, run.context, run.outcome, run.advice.options
        traits = RequestTraits(
            prompt_tokens=len(prompt.token_ids),
            prompt_logprobs=prompt.prompt_logprobs,
            echo=context.echo,
            beam_search=context.beam_search,
            multimodal=prompt.multimodal,
            compressible_tokens=len(prompt.token_ids) - run.spans.protected_tokens,
            rated=run.spans.rates.size > 0,
            unmapped=run.spans.unmapped,
        )
        # The whole prompt must fit, because it runs dense if the selection fails.
        check_target_length(traits.prompt_tokens, traits.prompt_tokens, prompt.max_tokens, self.pools.target)
        decision = decide(traits, options)
        if decision.speculative and options.enabled == AUTO:
            decision, outcome.estimate = run.forecast.choice, run.forecast.estimate
        if decision.speculative:
            decision = self._guard.before(run.advice, decision)
            outcome.guard = run.advice.kind if run.advice.verdict == "more" else ""
        outcome.reason = decision.reason
        return decision

    async def _read(self, run: Run, decision: Decision, place: Place) -> KeptPrompt:
        """The kept prompt for the target, or the whole prompt for a dense run."""
        prompt, outcome, options = run.prompt, run.outcome, run.advice.options
        if decision.speculative and (selection := await self._selecting.select(self.pools, run, place)):
            made, used = DecisionMade(outcome.reason, outcome.guard), outcome.options.selection
            explained = Explained(selection, used, run.spans.protected, dict(outcome.timings), made, run.spans.regions)
            held = None
            if options.explain_text:
                held = HeldPrompt(run.forecast.ids, message_spans(prompt.chat, prompt.offsets))
            self.selections.add(run.request_id, Entry(len(prompt.token_ids), explained, held), run.context.key)
            return selection.kept
        if decision.speculative:
            work = self.forecaster.work(run.forecast, options, run.spans.protected_tokens, 0, selects=False)
            self.admission.runs_dense(place, work)
        return KeptPrompt.dense(prompt.token_ids)


def _request(run: Run, kept: KeptPrompt, span: Span) -> GenerateRequest:
    prompt = run.prompt
    return GenerateRequest(
        run.wire_id,
        kept,
        prompt.sampling,
        prompt.priority,
        prompt.cache_salt,
        prompt.engine_args,
        run.decode,
        trace=span.headers,
        affinity=run.affinity,
    )
