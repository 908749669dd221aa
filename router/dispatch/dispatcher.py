"""The way of one prompt through the router and the pools: prepare, decide, admit, select, generate, record."""

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import replace
from functools import cached_property

from kv_transfer.messages import GenerateOutput, KeptPrompt, Selection
from router.admission.ticket import CATCH_UP, Ticket
from router.decision.choice import Decision
from router.dispatch import prepare as stage
from router.dispatch.catch_up import CatchUps
from router.dispatch.generate import generate
from router.dispatch.parts import Parts
from router.dispatch.request import Prepared, Prompt
from router.dispatch.select import TokenBudget, check_loss, explain, select
from router.dispatch.state import CallState, Outcome
from router.dispatch.telemetry import record_decision
from router.options.errors import RefusedError
from router.pools.migration import AnswerRecord
from skim_common.errors import DeadlineError, EngineUnavailableError, InvalidRequestError


class Dispatcher(Parts):
    """The prompts of one router on their way. Its stages use its parts."""

    @cached_property
    def catch_ups(self) -> CatchUps:
        return CatchUps(self)

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

    async def _answer(self, request_id: str, prompt: Prompt, call: CallState) -> AsyncGenerator[GenerateOutput, None]:
        outcome, ticket = call.begin(prompt), None
        try:
            stage.begin(request_id, outcome)
            stage.check_answer(self, prompt, outcome)
            self.admission.refuse_early(stage.asking(prompt, call))
            outcome.prepared = await stage.prepare(self, request_id, prompt, call.request)
            self.catch_ups.arrived(outcome)
            decision = stage.choose(self, outcome)
            call.release_intake()
            async with stage.admit(self, outcome, decision) as ticket:
                self._hold_back(ticket)
                stage.shed_load(self, outcome, ticket)
                kept = await self._kept(outcome, decision, ticket)
                read = kept.in_reading_order(self.pools.target.max_position - prompt.max_tokens)
                answer = AnswerRecord(outcome.prepared.generate_request(read), call.add_logprobs)
                record_decision(self.meter, outcome)
                with self.catch_ups.request():
                    async with aclosing(generate(self, outcome, kept, answer, ticket)) as outputs:
                        async for output in outputs:
                            yield output
                self.clients.ended(outcome.prompt_tokens, outcome.seconds)
                self.admission.answered(ticket, int(answer.first_token_ids.size))
                self.catch_ups.begin(outcome, answer)
                del outcome.prepared  # else a call of many prompts would hold them all
        except (RefusedError, InvalidRequestError, EngineUnavailableError):
            if ticket is None or not ticket.began_at:
                outcome.give_back()
            raise

    def _hold_back(self, ticket: Ticket) -> None:
        """End the work that no client waits for, under load."""
        if ticket.load >= CATCH_UP:
            self.catch_ups.hold()

    async def _kept(self, outcome: Outcome, decision: Decision, ticket: Ticket) -> KeptPrompt:
        """The kept prompt for the target: the whole prompt for a dense run."""
        if decision.speculative:
            selection = await select(self, outcome, ticket)
            if selection is not None:
                if outcome.dropped_tokens:
                    self.catch_ups.plan(outcome)
                explain(self, outcome, selection)
                check_loss(self, outcome, selection)
                return selection.kept
            work = self.forecaster.work(outcome.prepared.forecast, outcome.prepared.options, 0, selects=False)
            self.admission.runs_dense(ticket, work)
        outcome.mode = "dense"
        return KeptPrompt.dense(outcome.prepared.prompt.rendered.token_ids)

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
        outcome, decision = call.begin(prompt), Decision(True, "selection-only")
        try:
            stage.begin(request_id, outcome)
            if self.pools.untrusted:
                raise EngineUnavailableError("a replica has failed its start probe, so nothing is selected; try later")
            prepared = await stage.prepare(self, request_id, prompt, call.request)
            if prepared.ruled.reason == "no-task":
                raise InvalidRequestError("the messages have no question, which these options need; end them with one")
            if budget is not None:
                prepared = replace(prepared, options=budget.limit(prepared.options, prepared.layout))
            outcome.prepared = prepared
            outcome.decided(decision)
            call.release_intake()
            async with stage.admit(self, outcome, decision) as ticket:
                self._hold_back(ticket)
                selection = await select(self, outcome, ticket)
            if selection is None:
                raise EngineUnavailableError(f"the speculator gave no selection ({outcome.reason}); try again later")
            outcome.timings["queue"] = outcome.timings.get("queue", 0.0) + ticket.queued_ms
            prepared = outcome.prepared
            if budget is not None:
                selection = outcome.selection = budget.trim(selection, prepared.options, prepared.layout)
            explain(self, outcome, selection)
            record_decision(self.meter, outcome)
            outcome.messages = list
            del outcome.prepared
            return prepared, selection
        except (RefusedError, InvalidRequestError, EngineUnavailableError):
            outcome.give_back()
            raise
