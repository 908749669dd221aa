"""Admission: which prompts the pools get and when, and which are refused before any work is done for them.

A prompt is refused (429, with the time after which it would be accepted) if the router has no room for it, if it would
wait longer than `max_wait_s`, or if its answer is expected after its deadline. Waits are predicted from the work
before it (`router.admission.pool_load`). An idle router refuses nothing, so a wrong prediction ends by itself.

What is accepted goes to the pools at once while they drain what they have within `POOL_WAIT_MS`. Beyond that it waits
here, in the order of priorities and fair shares (`router.admission.ticket`). An autoscaled pool gets more (`PoolLoad`):
its autoscaler would not see what waits here. The waits that a router sees include the work of the other routers.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from types import MappingProxyType

from actors.observability.metrics import Meter
from kv_transfer.messages import GenerateOutput
from router.admission.pool_load import AnswerTime, PoolLoad
from router.admission.ticket import KEEP, AdmissionRequest, FairQueue, OverloadedError, Ticket, relative_load
from router.decision.choice import Work

POOL_WAIT_MS = 500.0
"""Work that waits in a pool keeps it busy while the router hears that it has room. More of it would be out of order."""
DOUBT = 1.2
"""A wait may be so many times longer than predicted: an answer that misses its deadline is lost work."""
ENDS_DECAY = 0.9
"""Weight of the measured time between two ends of requests after the next one."""
MOST_BETWEEN_ENDS_S = 60.0
"""A longer time between two ends says that there was nothing to do."""


class Admission:
    """The admission of one router. most: requests at a time. max_wait_s: None: any wait is accepted.

    headroom: of the pools that are autoscaled, by name (`PoolLoad`). clock: seconds; the event loop's by default.
    """

    def __init__(
        self,
        meter: Meter,
        most: int | None = None,
        max_wait_s: float | None = None,
        headroom: Mapping[str, float] = MappingProxyType({}),
        clock: Callable[[], float] = lambda: asyncio.get_running_loop().time(),
    ) -> None:
        self._meter, self._clock = meter, clock
        self._most = math.inf if most is None else most
        self._max_wait_ms = math.inf if max_wait_s is None else 1e3 * max_wait_s
        self._speculator = PoolLoad(clock, headroom.get("speculator", 0.0))
        self._target = PoolLoad(clock, headroom.get("target", 0.0))
        self._queue = FairQueue()
        self._answers = AnswerTime()
        self._ongoing = 0
        self._dispatching = False
        self._sent: set[Ticket] = set()  # what the target reads now; what else `_target` has is not there yet
        self._ended_at, self._ends_s = -math.inf, 1.0

    def resize(self, max_ongoing_requests: int, headroom: Mapping[str, float]) -> None:
        """Change the sizes, as in the constructor, while requests run."""
        self._most = max_ongoing_requests
        self._speculator.headroom = headroom["speculator"]
        self._target.headroom = headroom["target"]
        self._dispatch()

    def refuse_early(self, request: AdmissionRequest) -> None:
        """Raises OverloadedError if a prompt would be refused whatever it asks for. It need not be read then."""
        if request.group.refusal is not None:
            raise request.group.refusal
        if not request.group.prompts:
            with self._noting_refusal(request):
                self._check(request, Work())

    def load(self) -> float:
        """The load of a prompt that arrives now without a deadline, as in Ticket."""
        if self.is_idle:
            return 0.0
        return relative_load(self._wait_ms(Work(), (ticket.work for ticket in self._queue)), self._max_wait_ms)

    @asynccontextmanager
    async def admitted(self, request: AdmissionRequest, work: Work, less: Work | None = None) -> AsyncIterator[Ticket]:
        """A ticket for one prompt, once the pools can take it. Raises OverloadedError.

        less: its work with the smallest keep rate; None: it must be kept as it is.
        """
        with self._noting_refusal(request):
            ticket = self._accept(request, work, less)
        arrived = self._clock()
        try:
            self._dispatch()
            await ticket.dispatched
            ticket.queued_ms = 1e3 * (self._clock() - arrived)
            yield ticket
        finally:
            self._end(ticket)

    def selected(self, ticket: Ticket, waited_ms: float, *, drafts: bool = False) -> None:
        """The speculator has answered. waited_ms: how long the request waited there. drafts: it reads for drafts now.

        Nobody tells when it has read that. Its model is smaller than the target's, whose first output is taken for it.
        """
        self._speculator.learn(ticket.found_ms, waited_ms)
        self._speculator.leave(ticket)
        if drafts:
            self._speculator.enter(ticket, ticket.work.drafts_ms, aside=True)
        self._dispatch()

    def runs_dense(self, ticket: Ticket, work: Work) -> None:
        """The prompt runs dense, although it was to be selected. work: what it costs now."""
        for pool in (self._speculator, self._target):
            pool.leave(ticket)
        ticket.work = replace(ticket.work, target_ms=work.target_ms)
        self._target.enter(ticket, work.target_ms)
        self._dispatch()

    def sent(self, ticket: Ticket) -> None:
        """The request goes to the target."""
        ticket.found_ms, ticket.sent_at = sum(other.work.target_ms for other in self._sent), self._clock()
        self._sent.add(ticket)

    def prefilled(self, ticket: Ticket, output: GenerateOutput) -> None:
        """The target's first output: it says how long the request waited there, and makes room for another."""
        ticket.began_at = self._clock()
        elapsed_ms = 1e3 * (ticket.began_at - ticket.sent_at)
        self._target.learn(ticket.found_ms, elapsed_ms - output.timings.get("prefill", elapsed_ms))
        self._leave(ticket)
        self._dispatch()

    def answered(self, ticket: Ticket, tokens: int) -> None:
        """The answer is complete and has so many tokens."""
        self._answers.learn(max(0, tokens - 1), 1e3 * (self._clock() - ticket.began_at))

    def _accept(self, request: AdmissionRequest, work: Work, less: Work | None) -> Ticket:
        group, wait_ms = request.group, 0.0
        if group.refusal is not None:
            raise group.refusal
        first = not group.prompts
        if first:
            try:
                wait_ms = self._check(request, work)
            except OverloadedError as error:
                if less is None or error.reason == "full":
                    raise
                work, wait_ms = less, self._check(request, less)
        load = relative_load(wait_ms, min(self._max_wait_ms, self._slack_ms(request, work)))
        if less is not None and load >= KEEP:
            work = less
        dispatched = asyncio.get_running_loop().create_future()
        ticket = Ticket(request, first, work, load, work is less, dispatched)
        group.prompts += 1
        self._ongoing += first
        self._queue.push(ticket)
        return ticket

    def _check(self, request: AdmissionRequest, work: Work) -> float:
        """The predicted wait of a prompt that arrives now, in milliseconds. Raises OverloadedError."""
        order = self._queue.next_order(request.key, request.priority)
        if self._ongoing >= self._most:
            raise OverloadedError("full", "this router has as many requests as it may", self._ends_s)
        if self.is_idle:
            return 0.0
        wait_ms = self._wait_ms(work, (ticket.work for ticket in self._queue if ticket.order < order))
        if wait_ms > self._max_wait_ms:
            message = f"this deployment is busy: a request would wait {wait_ms / 1e3:.1f} s"
            raise OverloadedError("wait", message, (wait_ms - self._max_wait_ms) / 1e3)
        self._check_deadline(request, work, wait_ms)
        return wait_ms

    def _check_deadline(self, request: AdmissionRequest, work: Work, wait_ms: float) -> None:
        slack_ms = self._slack_ms(request, work)
        if DOUBT * wait_ms > slack_ms:
            message = f"this deployment is busy: a request would wait {wait_ms / 1e3:.1f} s and miss its deadline"
            raise OverloadedError("deadline", message, (DOUBT * wait_ms - slack_ms) / 1e3)

    def _slack_ms(self, request: AdmissionRequest, work: Work) -> float:
        """How long a request can wait and still have its answer before its deadline."""
        left_ms = request.deadline.left_ms
        return math.inf if left_ms is None else left_ms - work.total_ms - self._answers.estimate(work.most_tokens)

    def _wait_ms(self, work: Work, queued: Iterable[Work]) -> float:
        """The predicted wait of a prompt behind what the pools have and behind `queued`, in both pools together."""
        speculator_ms, target_ms = self._speculator.ahead_ms, self._target.ahead_ms
        for other in queued:
            speculator_ms += other.speculator_ms + other.drafts_ms
            target_ms += other.target_ms
        if not work.answers:
            return self._speculator.wait_ms(speculator_ms)
        in_target = self._target.wait_ms(target_ms)
        if not work.selects:
            return in_target
        in_speculator = self._speculator.wait_ms(speculator_ms)
        # The target drains while the speculator selects.
        return in_speculator + max(0.0, in_target - in_speculator - work.speculator_ms)

    @property
    def queued(self) -> int:
        """Prompts that wait here for a place in the pools."""
        return len(self._queue)

    @property
    def reading(self) -> int:
        """Prompts that the speculator has."""
        return self._speculator.requests

    @property
    def is_idle(self) -> bool:
        """Whether no prompt waits or is read. Answers may run."""
        return not (len(self._queue) or self._speculator.requests or self._target.requests)

    def _dispatch(self) -> None:
        """Send what the pools can take, in the order of the queue. A prompt for an idle pool overtakes others."""
        if self._dispatching:  # by the end of a request that the loop below refuses: the loop goes on with the others
            return
        self._dispatching = True
        try:
            while (ticket := self._queue.first(self._fits)) is not None:
                self._send_or_refuse(ticket)
        finally:
            self._dispatching = False
            self._meter.record("skim_router_queued", len(self._queue))

    def _send_or_refuse(self, ticket: Ticket) -> None:
        work = ticket.work
        try:
            if ticket.may_be_refused and (self._speculator.requests or self._target.requests):
                with self._noting_refusal(ticket.request):
                    self._check_deadline(ticket.request, work, self._wait_ms(work, ()))
        except OverloadedError as error:
            self._end(ticket)
            if not ticket.dispatched.done():
                ticket.dispatched.set_exception(error)
            return
        self._queue.serve(ticket)
        ticket.found_ms = self._speculator.ahead_ms
        if work.selects:
            self._speculator.enter(ticket, work.speculator_ms)
        if work.answers:
            self._target.enter(ticket, work.target_ms)
        if not ticket.dispatched.done():
            ticket.dispatched.set_result(None)

    def _fits(self, ticket: Ticket) -> bool:
        """Whether the pools would begin with this prompt soon."""
        in_target = self._target.wait_ms(self._target.ahead_ms) if self._target.requests else 0.0
        target_fits = self._target.has_headroom or in_target <= POOL_WAIT_MS
        if not ticket.work.selects:
            return target_fits
        in_speculator = self._speculator.wait_ms(self._speculator.ahead_ms) if self._speculator.requests else 0.0
        speculator_fits = self._speculator.has_headroom or in_speculator <= POOL_WAIT_MS
        return speculator_fits and (not ticket.work.answers or target_fits or in_target - in_speculator <= POOL_WAIT_MS)

    def _leave(self, ticket: Ticket) -> None:
        self._speculator.leave(ticket)
        self._target.leave(ticket)
        self._sent.discard(ticket)

    def _end(self, ticket: Ticket) -> None:
        """Whatever became of the prompt, it is no longer here."""
        if ticket.has_ended:
            return
        ticket.has_ended = True
        self._queue.drop(ticket)
        self._leave(ticket)
        self._ongoing -= ticket.first
        now = self._clock()
        if now - self._ended_at < MOST_BETWEEN_ENDS_S:
            self._ends_s += (1 - ENDS_DECAY) * (now - self._ended_at - self._ends_s)
        self._ended_at = now
        self._dispatch()

    @contextmanager
    def _noting_refusal(self, request: AdmissionRequest) -> Iterator[None]:
        """The other prompts of a request that is refused are refused, too; it counts once."""
        try:
            yield
        except OverloadedError as error:
            if request.group.refusal is None:
                request.group.refusal = error
                self._meter.record("skim_router_refused_total", 1, reason=error.reason)
            raise
