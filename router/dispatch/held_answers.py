"""Answers whose clients hung up: the same request that comes again goes on from what the target has made.

A client may wait less long than an answer in one piece takes. Each time that it asks, it would get nothing. So what the
target has made of the answer when the client hangs up is held, and in idle time the target goes on with it: at the
lowest priority, one answer for each replica. The same request takes the answer out: it gets it at once if it is
complete, else it runs on from there, as one that has lost its replica (`router.pools.migration`). Under load the target
does not go on, and what it has made stays.

An answer is given to one request, and only to one of the same API key that is the same in all that could change the
answer. Each router holds its own.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, Self

from actors.observability.meter import Meter
from kv_transfer.messages import KeptPrompt
from kv_transfer.sampling import FINAL_ONLY
from router.admission.controller import Admission
from router.admission.load_shedding import CATCH_UP
from router.dispatch.reading import LOWEST_PRIORITY
from router.dispatch.request import Prepared, Request
from router.dispatch.state import Outcome
from router.pools.answer_record import AnswerRecord
from router.pools.background_tasks import BackgroundTasks
from router.pools.interface import Pools
from router.pools.migration import migrate
from skim_common.errors import SkimError

logger = logging.getLogger(__name__)

MOST = 16
"""Answers held. Each has its prompt, a megabyte for 131,072 tokens. The oldest is dropped."""
HELD_S = 60.0
"""Clients repeat a request within seconds. The time begins when nothing goes on with the answer."""


@dataclass(slots=True, eq=False)
class OpenAnswer:
    """An answer, with what it takes to go on with it. kept: what the target reads of the prompt.

    asked: equal for the same request. until: seconds of the event loop's clock. task: goes on with it for no client.
    """

    prepared: Prepared
    outcome: Outcome
    kept: KeptPrompt
    record: AnswerRecord
    asked: tuple[Any, ...] = ()
    until: float = 0.0
    task: asyncio.Task[None] | None = None

    @classmethod
    def begin(cls, pools: Pools, prepared: Prepared, outcome: Outcome, kept: KeptPrompt) -> Self:
        """The answer to a prompt before its first token."""
        read = kept.in_reading_order(pools.target.max_position - prepared.prompt.max_tokens)
        return cls(prepared, outcome, kept, AnswerRecord(prepared.generate_request(read), outcome.call.add_logprobs))

    @property
    def may_be_held(self) -> bool:
        """Whether it has begun, nobody has seen a part, and it can go on as one answer to the request as it is.

        Log probabilities would take too much memory. A request that failed, or whose deadline is over, did not hang up.
        """
        call, sampling = self.outcome.call, self.prepared.prompt.sampling
        single = sampling.get("n", 1) == 1 and not call.request.beam_search
        small = all(sampling.get(name) is None for name in ("logprobs", "prompt_logprobs", "logprob_token_ids"))
        unseen = sampling.get("output_kind") == FINAL_ONLY and self.record.begun
        hung_up = call.error is None and call.request.deadline.left_ms != 0
        return single and small and unseen and hung_up

    async def resume(self, repeat: Prepared, outcome: Outcome) -> None:
        """Go on for a client that asks again. What goes on with it for no client ends first."""
        if self.task is not None:
            self.task.cancel()
            await asyncio.wait([self.task])
        self._continue(repeat)
        outcome.resume(self.outcome, self.record.earlier_tokens)
        self.prepared = replace(self.prepared, request_id=repeat.request_id, suffix=repeat.suffix)
        self.outcome = outcome

    async def go_on(self, pools: Pools) -> None:
        """Let the target go on with it, for no client."""
        self._continue(self.prepared)
        asked = self.record.asked
        self.record.asked = replace(asked, request_id=f"{asked.request_id}-held", priority=LOWEST_PRIORITY)
        try:
            async with aclosing(migrate(self.record, pools.generate)) as outputs:
                async for _ in outputs:
                    pass
        except SkimError as error:
            logger.info("the held answer of request %s does not go on: %s", self.prepared.request_id, error)

    def _continue(self, prepared: Prepared) -> None:
        """Its drafting session ended with the request before."""
        self.kept = replace(self.kept, session=None)
        read = replace(self.record.asked.prompt, session=None)
        self.record = self.record.continued_by(prepared.generate_request(read))


class HeldAnswers:
    """Those of one router. enabled: False: none are held. clock: seconds."""

    def __init__(
        self,
        meter: Meter,
        admission: Admission,
        background: BackgroundTasks,
        *,
        enabled: bool,
        clock: Callable[[], float] = lambda: asyncio.get_running_loop().time(),
    ) -> None:
        self._meter, self._admission, self._background = meter, admission, background
        self._enabled, self._clock = enabled, clock
        self._held: list[OpenAnswer] = []

    def hold(self, pools: Pools, answer: OpenAnswer) -> None:
        """Its client has hung up, or is refused before it goes on."""
        if not (self._enabled and answer.may_be_held):
            return
        self._drop_late()
        answer.asked = _asked(answer.prepared, answer.outcome.call.request)
        answer.until = self._clock() + HELD_S
        self._held.append(answer)
        if len(self._held) > MOST:
            self._end(self._held.pop(0))
        self._meter.record("skim_router_held_answers_total", 1, outcome="held")
        if answer.task is None and not answer.record.finished and self._has_room(pools):
            answer.task = self._background.start(self._run(pools, answer))

    def _has_room(self, pools: Pools) -> bool:
        """Whether the target has idle time for one more, and reads nothing again for it."""
        running = sum(answer.task is not None for answer in self._held)
        idle = self._admission.load() < CATCH_UP and running < max(1, int(pools.replicas("target")))
        return idle and pools.target.cache_tokens > 0

    def claim(self, prepared: Prepared, request: Request) -> OpenAnswer | None:
        """The answer to the same request, which nobody else gets then; None if there is none."""
        self._drop_late()
        if not self._held:
            return None
        asked = _asked(prepared, request)
        found = next((answer for answer in self._held if answer.asked == asked), None)
        if found is not None:
            self._held.remove(found)
            self._meter.record("skim_router_held_answers_total", 1, outcome="resumed")
        return found

    def hold_back(self) -> None:
        """The router is loaded: the target goes on with none. What it has made stays."""
        for answer in self._held:
            self._end(answer)

    def close(self) -> None:
        """Hold none any more: the router stops."""
        self._enabled = False
        self.hold_back()
        self._held.clear()

    def _drop_late(self) -> None:
        now = self._clock()
        self._held = [answer for answer in self._held if answer.task is not None or answer.until > now]

    def _end(self, answer: OpenAnswer) -> None:
        if answer.task is not None:
            answer.task.cancel()

    async def _run(self, pools: Pools, answer: OpenAnswer) -> None:
        try:
            await answer.go_on(pools)
        finally:
            answer.task, answer.until = None, self._clock() + HELD_S


def _asked(prepared: Prepared, request: Request) -> tuple[Any, ...]:
    """All that decides who may get an answer and what it is."""
    prompt, keeps, chat = prepared.prompt, request.keep_fields, prepared.prompt.rendered.chat
    whose = request.key, prompt.cache_salt
    asks = prompt.rendered.token_ids.tobytes(), prompt.sampling, prompt.max_tokens, prompt.engine_args, prompt.priority
    options = request.options, request.decode, request.decode_is_explicit, keeps and (keeps.keeps, keeps.names)
    told = chat and chat.roles, request.echo, request.edits, request.later_requests, request.has_tools
    return *whose, *asks, *options, *told
