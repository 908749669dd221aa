"""The way of one prompt through the router and the pools: decide, admit, select, generate, record."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

import numpy as np

from actors.observability.meter import Meter
from kv_transfer.limits.target import check_length as check_target_length
from kv_transfer.limits.target import check_sampling, first_logprobs
from kv_transfer.messages import ADAPTER, GenerateOutput, GenerateRequest, KeptPrompt
from kv_transfer.options import AUTO
from kv_transfer.spans import droppable_of
from kv_transfer.windows import WindowPlan
from router.admission.controller import Admission
from router.admission.load_shedding import AUDIT
from router.admission.ticket import Ticket
from router.decision.forecast import Forecaster
from router.decision.guard import Advice, Guard
from router.decision.rules import Decision, RequestTraits, decide
from router.decision.window_reads import WindowReads
from router.dispatch.admit import admit, shed_load
from router.dispatch.audit import Audits
from router.dispatch.generation import Generation
from router.dispatch.metrics import (
    ClientMetrics,
    record_decision,
    record_speeds,
    since_arrival,
)
from router.dispatch.request import Prompt
from router.dispatch.selection import LexicalFallback, SelectionClient
from router.dispatch.state import CallState, PromptState
from router.dispatch.tracing import note_tokenized
from router.explain.explained import DecisionMade, Explained
from router.explain.prompt_text import message_spans
from router.explain.selection_log import Entry, HeldPrompt, SelectionLog
from router.options.errors import RefusedError
from router.options.request import PrefillOptions, SpeculationOptions
from router.options.settings import RouterConfig
from router.pools.answer_record import AnswerRecord
from router.pools.background_tasks import BackgroundTasks
from router.pools.interface import Pools
from router.pools.prefix_affinity import PrefixKeys
from router.prompt.protected_spans import prompt_spans, question_text
from router.prompt.units import units_of
from skim_common.errors import DeadlineError, EngineUnavailableError, InvalidRequestError

INLINE_CHARS = 16384
"""The units of a longer text are found in a thread: those of 131,072 tokens take .2 s."""


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
        self.clients = ClientMetrics()
        self.settings, self.defaults, self.decode_defaults = settings, defaults, decode_defaults
        self.selections = SelectionLog(holds_text=settings.explain_text)
        self.forecaster = Forecaster()
        self._keys = PrefixKeys() if settings.affinity else None
        self._guard = Guard(meter, enabled=settings.guard, entropy=settings.guard_entropy)
        self.admission = admission or Admission(meter)
        self.audits = Audits(meter, settings.audit_share, settings.audit_max_ongoing)
        self.background = BackgroundTasks()
        fallback = LexicalFallback(pools, enabled=settings.on_speculator_failure == "lexical")
        self._selection = SelectionClient(
            settings.select_timeout_s, self.admission, self.forecaster, self._guard, fallback, self.background
        )

    async def run(self, request_id: str, prompt: Prompt, call: CallState) -> AsyncGenerator[GenerateOutput, None]:
        """Stream the answer. Raises SkimError. Closing the generator aborts the request in both pools, as its deadline
        does."""
        deadline = call.request.deadline
        try:
            deadline.check()
            async with aclosing(self._answer(request_id, prompt, call)) as outputs:
                while (output := await deadline.next(outputs)) is not None:
                    yield output
        except DeadlineError:
            self.meter.record("skim_router_deadlines_missed_total", 1, answering=str(call.answering).lower())
            raise

    async def _answer(self, request_id: str, prompt: Prompt, call: CallState) -> AsyncGenerator[GenerateOutput, None]:
        """The way of a prompt: decide, admit, select, generate, record."""
        self.selections.check(call.request.options)
        state, ticket = call.begin(request_id, prompt), None
        try:
            self._refuse(state)
            ruled = self._rule(state)
            self._prepare(state, ruled)
            decision = self._decide(state, ruled)
            call.release_intake()
            async with admit(self.admission, self.forecaster, state, decision) as ticket:
                if ticket.load >= AUDIT:
                    self.audits.drop()
                shed_load(state, ticket, self.meter)
                kept = await self._select(state, decision, ticket)
                record_decision(self.meter, state)
                target = self.pools.target
                read = kept.in_reading_order(target.max_position - prompt.max_tokens)
                answer = AnswerRecord(_generate_request(state, read), call.add_logprobs)
                with Generation(self, state, kept, answer, ticket) as generation:
                    async with aclosing(generation.outputs()) as outputs:
                        async for output in outputs:
                            generation.note(output)
                            yield output
                self._record_answer(state, answer, ticket)
        except (RefusedError, InvalidRequestError, EngineUnavailableError):
            if ticket is None or not ticket.began_at:
                state.give_back()
            raise

    def _refuse(self, state: PromptState) -> None:
        """Raise InvalidRequestError for what no engine can run, before anything is computed for it."""
        call, prompt, size = state.call, state.prompt, state.prompt_tokens
        call.request_id = call.request_id or state.request_id
        note_tokenized(call.span, state)
        check_sampling(prompt.sampling)
        call.add_logprobs(first_logprobs(size, prompt.sampling, self.pools.target.vocab_size))
        # The whole prompt must fit, because it runs dense if the selection fails.
        check_target_length(size, size, prompt.max_tokens, self.pools.target)

    def _rule(self, state: PromptState) -> Decision:
        """Find the protected spans, and decide by the rules."""
        prompt, request = state.prompt, state.call.request
        spans = prompt_spans(state.prompt_tokens, request.options, prompt.chat, prompt.text, prompt.offsets)
        state.spans, state.lost_contents = spans, spans.lost
        traits = RequestTraits(
            prompt_tokens=state.prompt_tokens,
            prompt_logprobs=prompt.prompt_logprobs,
            echo=request.echo,
            beam_search=request.beam_search,
            compressible_tokens=state.prompt_tokens - spans.protected_tokens,
            rated=spans.rates.size > 0,
            unmapped=spans.unmapped,
            untrusted=self.pools.untrusted,
        )
        return decide(traits, request.options)

    def _prepare(self, state: PromptState, ruled: Decision) -> None:
        """Find what the choice by time rests on: the guard's advice, unless the prompt runs dense anyway, and the
        forecast."""
        prompt, request, spans = state.prompt, state.call.request, state.spans
        ids = np.asarray(prompt.token_ids, np.int32)
        state.advice = Advice(request.options, acts=False)
        if ruled.speculative:
            question = question_text(spans.question, prompt.chat, prompt.text, prompt.offsets)
            state.advice = self._guard.advise(request.options, question, explicit=request.keep_fields is not None)
        state.options, hinted = state.advice.options, request.later_requests
        for pool, model in (("speculator", self.pools.speculator), ("target", self.pools.target)):
            if model is not None:
                self.forecaster.know(pool, model, self.pools.replicas(pool))
        frame = prompt.chat.frame if prompt.chat else None
        speculator = self.pools.speculator
        may_drop = droppable_of(spans.protected, state.options.protect_last, ids.size)
        plan = WindowPlan.of(may_drop, spans.question, frame, state.options.window_tokens)
        windowed = bool(speculator and speculator.has_head_profile and plan)
        state.options = state.options.for_prompt(windows=windowed)
        windows = WindowReads.of(state.options, plan, ids.size, frame.head.size if frame else 0)
        adapted = ADAPTER in prompt.engine_args
        state.forecast = self.forecaster.look(
            ids, prompt.cache_salt, state.options, spans.protected, spans.regions, hinted, windows, adapted=adapted
        )
        record_speeds(self.meter, self.forecaster.speeds())  # here they are fitted anyway
        if self._keys:
            state.affinity = self._keys.key(ids, spans.opening, prompt.cache_salt, hashes=state.forecast.hashes)
        state.started = time.perf_counter()

    def _decide(self, state: PromptState, decision: Decision) -> Decision:
        """Whether the prompt runs dense or speculative. decision: by the rules."""
        if decision.speculative and state.options.enabled == AUTO:
            decision, state.estimate = state.forecast.choice, state.forecast.estimate
        if decision.speculative:
            decision = self._guard.before(state.advice, decision)
            state.guard = state.advice.kind if state.advice.verdict == "more" else ""
        state.reason = decision.reason
        return decision

    async def _select(self, state: PromptState, decision: Decision, ticket: Ticket) -> KeptPrompt:
        """The kept prompt for the target, or the whole prompt for a dense run."""
        prompt, spans = state.prompt, state.spans
        if decision.speculative:
            args = prompt.text, prompt.offsets, spans, state.options, state.prompt_tokens
            is_long = len(prompt.text or "") > INLINE_CHARS
            found = await asyncio.to_thread(units_of, *args) if is_long else units_of(*args)
            state.units, state.indents, state.links = found
        if decision.speculative and (selection := await self._selection.select(self.pools, state, ticket)):
            made, used = DecisionMade(state.reason, state.guard), state.options.selection
            timings = dict(state.timings)
            explained = Explained(selection, used, spans.protected, state.units, timings, made, spans.regions)
            held = None
            if state.options.explain_text:
                held = HeldPrompt(state.forecast.ids, message_spans(prompt.chat, prompt.offsets))
            self.selections.add(state.request_id, Entry(state.prompt_tokens, explained, held), state.call.request.key)
            return selection.kept
        if decision.speculative:
            work = self.forecaster.work(state.forecast, state.options, 0, selects=False)
            self.admission.runs_dense(ticket, work)
        state.mode = "dense"
        return KeptPrompt.dense(prompt.token_ids)

    def _record_answer(self, state: PromptState, answer: AnswerRecord, ticket: Ticket) -> None:
        """Count and learn from a complete answer, and audit a share of them."""
        self.clients.ended(state.prompt_tokens, since_arrival(state))
        self.admission.answered(ticket, int(answer.first_token_ids.size))
        if state.call.request.options.enabled == AUTO:
            loaded = self.admission.load() >= AUDIT
            self.audits.begin(self.pools, state.forecast.ids, answer, loaded=loaded)


def _generate_request(state: PromptState, kept: KeptPrompt) -> GenerateRequest:
    prompt = state.prompt
    return GenerateRequest(
        state.wire_id,
        kept,
        prompt.sampling,
        prompt.priority,
        prompt.cache_salt,
        prompt.engine_args,
        state.decode,
        affinity=state.affinity,
    )
