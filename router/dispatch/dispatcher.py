"""The way of one prompt through the router and the pools: prepare, decide, admit, select, generate, record."""

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import replace

from actors.observability.metrics import Meter
from kv_transfer.limits import check_speculator_length, check_target_length
from kv_transfer.messages import GenerateOutput, KeptPrompt, Selection
from kv_transfer.options import AUTO
from kv_transfer.sampling_limits import check_sampling, first_logprobs
from router.admission.controller import Admission
from router.admission.ticket import CATCH_UP, Ticket
from router.decision.agreements import shape_of
from router.decision.catch_up import stays_dense
from router.decision.forecaster import Forecaster
from router.decision.rules import CACHED, Decision
from router.dispatch.admit import admit, asking, shed_load
from router.dispatch.catch_up import CatchUps
from router.dispatch.generation import Generation
from router.dispatch.losses import loss_refused
from router.dispatch.metrics import (
    ClientMetrics,
    record_decision,
    since_arrival,
)
from router.dispatch.preparation import Preparation
from router.dispatch.request import Prepared, Prompt
from router.dispatch.selection import OR_LEXICAL, SelectionClient
from router.dispatch.state import CallState, Outcome
from router.dispatch.token_budget import TokenBudget
from router.dispatch.tracing import note_tokenized
from router.explain.explained import Explained
from router.explain.log import Entry, RequestLog
from router.options.errors import RefusedError
from router.options.request import PrefillOptions, SpeculationOptions
from router.options.settings import RouterConfig
from router.pools.answer_record import AnswerRecord
from router.pools.background_tasks import BackgroundTasks
from router.pools.interface import Pools
from skim_common.errors import DeadlineError, EngineUnavailableError, InvalidRequestError

MAX_ID_CHARS = 512
"""Of a prompt's id, which is held with its explanation and travels to the pools. The client may choose most of it."""


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
        self.log = RequestLog()
        self.forecaster = Forecaster()
        self._preparation = Preparation(self.forecaster, meter, keys=settings.affinity, guard=settings.guard)
        self.admission = admission or Admission(meter)
        self.catch_ups = CatchUps(
            meter,
            self.forecaster,
            self.admission,
            self.log,
            audit_share=settings.audit_share,
            has_home=settings.affinity,
        )
        self.background = BackgroundTasks()
        self._selection = SelectionClient(settings.select_timeout_s, self.admission, self.forecaster, self.background)

    async def run(self, request_id: str, prompt: Prompt, call: CallState) -> AsyncGenerator[GenerateOutput, None]:
        """Stream the answer. Raises SkimError. Closing the generator aborts the request in both pools, as its deadline
        does."""
        deadline = call.request.deadline
        with self._counting_missed(call):
            deadline.check()
            async with aclosing(self._answer(request_id, prompt, call)) as outputs:
                while (output := await deadline.next(outputs)) is not None:
                    yield output

    @contextmanager
    def _counting_missed(self, call: CallState) -> Iterator[None]:
        try:
            yield
        except DeadlineError:
            self.meter.record("skim_router_deadlines_missed_total", 1, answering=str(call.answering).lower())
            raise

    async def select(
        self, request_id: str, prompt: Prompt, call: CallState, budget: TokenBudget | None = None
    ) -> tuple[Prepared, Selection]:
        """The selection of a prompt that gets no answer, and the prompt as it was selected from.

        Cancelling this call ends the selection, as its deadline does. Raises SkimError, also where the selection fails.
        """
        with self._counting_missed(call):
            async with call.request.deadline.limit():
                return await self._select_only(request_id, prompt, call, budget)

    async def _select_only(
        self, request_id: str, prompt: Prompt, call: CallState, budget: TokenBudget | None
    ) -> tuple[Prepared, Selection]:
        """The way of a prompt without an answer: prepare, admit, select, record."""
        outcome, decision = call.begin(prompt), Decision(True, "selection-only")
        try:
            self._begin(request_id, outcome)
            self._refuse_selection(prompt, call.request.options)
            prepared = await self._preparation.prepare(self.pools, request_id, prompt, call.request)
            if prepared.ruled.reason == "no-task":
                raise InvalidRequestError("the messages have no question, which these options need; end them with one")
            if budget is not None:
                prepared = replace(prepared, options=budget.limit(prepared.options, prepared.layout))
            outcome.decided(prepared, decision)
            call.release_intake()
            async with admit(self.admission, self.forecaster, prepared, call, decision) as ticket:
                self._hold_back(ticket)
                prepared, selection = await self._selection.select(self.pools, prepared, outcome, ticket)
            if selection is None:
                raise EngineUnavailableError(f"the speculator gave no selection ({outcome.reason}); try again later")
            outcome.timings["queue"] = outcome.timings.get("queue", 0.0) + ticket.queued_ms
            if budget is not None:
                selection = outcome.selection = budget.trim(selection, prepared.options, prepared.layout)
            self._explain(prepared, outcome, selection)
            outcome.messages = list  # else a call of many texts would hold the tokens' places of all
            record_decision(self.meter, outcome)
            return prepared, selection
        except (RefusedError, InvalidRequestError, EngineUnavailableError):
            outcome.give_back()
            raise

    def _refuse_selection(self, prompt: Prompt, options: PrefillOptions) -> None:
        """Raise SkimError where nothing can be selected, before anything is looked for in the prompt."""
        if self.pools.untrusted:
            raise EngineUnavailableError(
                "a replica has failed its start probe, so nothing is selected; try again later"
            )
        speculator = self.pools.speculator
        if speculator is None or options.selector == "lexical":
            return
        if options.read == "whole" or not speculator.has_head_profile:
            ahead = options.for_prompt(windows=False).tokens_ahead
            check_speculator_length(prompt.rendered.size, ahead, speculator, OR_LEXICAL)

    async def _answer(self, request_id: str, prompt: Prompt, call: CallState) -> AsyncGenerator[GenerateOutput, None]:
        """The way of a prompt: prepare, decide, admit, select, generate, record."""
        outcome, ticket = call.begin(prompt), None
        try:
            self._begin(request_id, outcome)
            self._refuse(prompt, outcome)
            self.admission.refuse_early(asking(prompt, call))
            whole = await self._preparation.prepare(self.pools, request_id, prompt, call.request)
            self.catch_ups.arrived(whole)
            decision = self._decide(whole, outcome)
            call.release_intake()
            async with admit(self.admission, self.forecaster, whole, call, decision) as ticket:
                self._hold_back(ticket)
                prepared = shed_load(whole, outcome, ticket, self.meter)
                prepared, kept = await self._select(prepared, outcome, decision, ticket)
                read = kept.in_reading_order(self.pools.target.max_position - prompt.max_tokens)
                answer = AnswerRecord(prepared.generate_request(read), call.add_logprobs)
                record_decision(self.meter, outcome)
                with Generation(self, prepared, outcome, kept, answer, ticket) as generation:
                    async with aclosing(generation.outputs()) as outputs:
                        async for output in outputs:
                            generation.note(output)
                            yield output
                self._record_answer(whole, outcome, answer, ticket)
        except (RefusedError, InvalidRequestError, EngineUnavailableError):
            if ticket is None or not ticket.began_at:
                outcome.give_back()
            raise

    def _hold_back(self, ticket: Ticket) -> None:
        """End the work that no client waits for, under load."""
        if ticket.load >= CATCH_UP:
            self.catch_ups.hold()

    def _begin(self, request_id: str, outcome: Outcome) -> None:
        if len(request_id) > MAX_ID_CHARS:
            message = f"the request's id has more than {MAX_ID_CHARS} characters; shorten x-request-id or request_id"
            raise InvalidRequestError(message)
        outcome.call.request_id = outcome.call.request_id or request_id
        note_tokenized(outcome.call.span, outcome)

    def _refuse(self, prompt: Prompt, outcome: Outcome) -> None:
        """Raise SkimError for what no engine can run, before anything is computed for it."""
        if self.settings.select_only:
            raise RefusedError(404, "NotFoundError", "no target runs here, so nothing is answered; ask /v1/select")
        call, size = outcome.call, outcome.prompt_tokens
        check_sampling(prompt.sampling)
        call.add_logprobs(first_logprobs(size, prompt.sampling, self.pools.target.vocab_size))
        # The whole prompt must fit, because it runs dense if the selection fails.
        check_target_length(size, size, prompt.max_tokens, self.pools.target)

    def _decide(self, prepared: Prepared, outcome: Outcome) -> Decision:
        """Whether the prompt runs dense or speculative."""
        outcome.caught_up = self.catch_ups.tokens(prepared)
        decision, chat = prepared.ruled, prepared.prompt.rendered.chat
        outcome.shape = shape_of(chat and chat.roles, has_tools=outcome.call.request.has_tools)
        if decision.speculative and prepared.options.enabled == AUTO:
            decision, outcome.estimate = prepared.forecast.choice, prepared.forecast.estimate
            known = prepared.forecast.known_dense if outcome.caught_up else 0
            if decision.speculative and stays_dense(decision, known, prepared.size):
                decision = CACHED
        if decision.speculative and prepared.guarded:
            decision = self._guarded(prepared, outcome, decision)
        outcome.decided(prepared, decision)
        return decision

    def _guarded(self, prepared: Prepared, outcome: Outcome, decision: Decision) -> Decision:
        """The guard's decision on a prompt that would run speculative."""
        reason = "none"
        if prepared.needs_whole_text:
            reason = "whole-text"
        elif not self.catch_ups.agreements.trusts((outcome.call.request.key, outcome.shape)):
            reason = "agreement"
        verdict = "compressed" if reason == "none" else "dense"
        self.meter.record("skim_router_guard_total", 1, verdict=verdict, reason=reason)
        return decision if reason == "none" else Decision(False, f"guard-{reason}")

    async def _select(
        self, prepared: Prepared, outcome: Outcome, decision: Decision, ticket: Ticket
    ) -> tuple[Prepared, KeptPrompt]:
        """The prompt as it was selected from, and its kept prompt for the target: the whole prompt for a dense run."""
        if decision.speculative:
            prepared, selection = await self._selection.select(self.pools, prepared, outcome, ticket)
            if selection is not None:
                if outcome.dropped_tokens:
                    outcome.catch_up = self.catch_ups.plan(self.pools, prepared, outcome)
                self._explain(prepared, outcome, selection)
                if prepared.options.lossy == "refuse" and outcome.dropped_tokens:
                    if selection.kept.session is not None:
                        self.background.start(self.pools.end_session(selection.kept.session))
                    raise loss_refused(outcome)
                return prepared, selection.kept
            work = self.forecaster.work(prepared.forecast, prepared.options, 0, selects=False)
            self.admission.runs_dense(ticket, work)
        outcome.mode = "dense"
        return prepared, KeptPrompt.dense(prepared.prompt.rendered.token_ids)

    def _explain(self, prepared: Prepared, outcome: Outcome, selection: Selection) -> None:
        """Hold the selection for the explain view."""
        rendered, options, timings = prepared.prompt.rendered, prepared.options, dict(outcome.timings)
        made = {"reason": outcome.reason, "catch_up": outcome.catch_up_state}
        outcome.messages = rendered.message_spans
        explained = Explained(selection, options.selection, prepared.layout, timings, made)
        call, entry = outcome.call, Entry(prepared.size, explained)
        self.log.add(prepared.request_id, entry, call.request.key, call.request_id)

    def _record_answer(self, prepared: Prepared, outcome: Outcome, answer: AnswerRecord, ticket: Ticket) -> None:
        """Count and learn from a complete answer, and catch up what it was not made from."""
        self.clients.ended(prepared.size, since_arrival(outcome, prepared.started))
        self.admission.answered(ticket, int(answer.first_token_ids.size))
        self.catch_ups.begin(self.pools, prepared, outcome, answer)
