"""Admission: which prompts the pools get and when, and which are refused before any work is done for them.

A prompt is refused (429, with the time after which it would be accepted) if the router has no room for it, if it would
wait longer than `max_wait_s`, or if its answer is expected after its deadline. Waits are predicted from the work
before it (`router.admission.pool_load`). An idle router refuses nothing, so a wrong prediction ends by itself.

What is accepted goes to the pools at once while they drain what they have within `POOL_WAIT_MS`. Beyond that it waits
here, where priorities and fair shares decide the order (`router.admission.fair_queue`); in a pool it would wait in the
order of arrival. An autoscaled pool gets more (`router.admission.pool_load.Room`): its autoscaler would not see what
waits here. Each router admits its own requests by the waits that it sees, which include the work of the other routers.
"""

import asyncio
import math
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from types import MappingProxyType

from actors.observability.metrics import Meter
from kv_transfer.messages import GenerateOutput
from router.admission.fair_queue import FairQueue, Order, Turn
from router.admission.load_shedding import KEEP, load_of
from router.admission.pool_load import NO_ROOM, AnswerTime, PoolLoad, Room
from router.admission.ticket import Claim, OverloadedError, Place
from router.decision.cost_model import Work

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

    rooms: of the pools that are autoscaled, by name. clock: seconds; the event loop's by default.
    """

    def __init__(
        self,
        meter: Meter,
        most: int | None = None,
        max_wait_s: float | None = None,
        rooms: Mapping[str, Room] = MappingProxyType({}),
        clock: Callable[[], float] = lambda: asyncio.get_running_loop().time(),
    ) -> None:
        self._meter, self._clock = meter, clock
        self._most = math.inf if most is None else most
        self._max_wait_ms = math.inf if max_wait_s is None else 1e3 * max_wait_s
        self._speculator = PoolLoad(clock, rooms.get("speculator", NO_ROOM))
        self._target = PoolLoad(clock, rooms.get("target", NO_ROOM))
        self._queue: FairQueue[Place] = FairQueue()
        self._answers = AnswerTime()
        self._ongoing = 0
        self._dispatching = False
        self._at_target_ms = 0.0  # of `_target`, what the target has; the rest is still in the speculator
        self._ended_at, self._ends_s = -math.inf, 1.0

    def refuse_early(self, claim: Claim) -> None:
        """Raises OverloadedError if a request would be refused whatever it asks for. It need not be tokenized then."""
        try:
            self._check(claim, Work())
        except OverloadedError as error:
            self._count(error)
            raise

    def load(self) -> float:
        """The load of a prompt that arrives now without a deadline, as in Place."""
        if self._is_idle:
            return 0.0
        return load_of(self._wait_ms(Work(), (turn.item.work for turn in self._queue)), self._max_wait_ms)

    @asynccontextmanager
    async def admitted(self, claim: Claim, work: Work, less: Work | None = None) -> AsyncIterator[Place]:
        """A place for one prompt, once the pools can take it. Raises OverloadedError.

        less: its work with the smallest keep rate; None: it must be kept as it is.
        """
        try:
            place = self._accept(claim, work, less)
        except OverloadedError as error:
            if claim.asked.refusal is None:
                claim.asked.refusal = error
                self._count(error)
            raise
        arrived = self._clock()
        try:
            self._dispatch()
            await place.dispatched
            place.queued_ms = 1e3 * (self._clock() - arrived)
            yield place
        finally:
            self._end(place)

    def selected(self, place: Place, waited_ms: float) -> None:
        """The speculator has answered. waited_ms: how long the request waited there."""
        self._speculator.learn(place.found_ms, waited_ms)
        self._leave_speculator(place)
        self._dispatch()

    def runs_dense(self, place: Place, work: Work) -> None:
        """The prompt runs dense, although it was to be selected. work: what it costs now."""
        if place.stage == "select":
            self._leave_speculator(place)
        self._target.leave(place.work.target_ms)
        place.work = replace(place.work, target_ms=work.target_ms)
        self._target.enter(work.target_ms)
        self._dispatch()

    def sent(self, place: Place) -> None:
        """The request goes to the target."""
        if place.stage == "select":  # the speculator did not answer, and the router selected in its place
            self._leave_speculator(place)
            self._dispatch()
        place.stage, place.found_ms, place.sent_at = "prefill", self._at_target_ms, self._clock()
        self._at_target_ms += place.work.target_ms

    async def prefilled(
        self, place: Place, outputs: AsyncGenerator[GenerateOutput, None]
    ) -> AsyncGenerator[GenerateOutput, None]:
        """The target's outputs. The first one says how long the request waited there, and makes room for another."""
        async with aclosing(outputs):
            async for output in outputs:
                if place.stage == "prefill":
                    elapsed_ms = 1e3 * (self._clock() - place.sent_at)
                    self._target.learn(place.found_ms, elapsed_ms - output.timings.get("prefill", elapsed_ms))
                    self._leave_target(place)
                    place.stage, place.began_at = "answer", self._clock()
                    self._dispatch()
                yield output

    def answered(self, place: Place, tokens: int) -> None:
        """The answer is complete and has so many tokens."""
        self._answers.learn(max(0, tokens - 1), 1e3 * (self._clock() - place.began_at))

    def _accept(self, claim: Claim, work: Work, less: Work | None) -> Place:
        asked, wait_ms = claim.asked, 0.0
        if asked.refusal is not None:
            raise asked.refusal
        first = not asked.prompts
        if first:
            try:
                wait_ms = self._check(claim, work)
            except OverloadedError as error:
                if less is None or error.reason == "full":
                    raise
                work, wait_ms = less, self._check(claim, less)
            self._make_room(claim)
        load = load_of(wait_ms, min(self._max_wait_ms, self._slack_ms(claim, work)))
        if less is not None and load >= KEEP:
            work = less
        place = Place(claim, first, work, load, work is less, asyncio.get_running_loop().create_future())
        asked.prompts += 1
        self._ongoing += first
        place.turn = self._queue.push(claim.key, claim.priority, place.cost, place)
        self._meter.record("skim_router_queued", len(self._queue))
        return place

    def _check(self, claim: Claim, work: Work) -> float:
        """The predicted wait of a prompt that arrives now, in milliseconds. Raises OverloadedError."""
        order = self._queue.next_order(claim.key, claim.priority)
        if self._ongoing >= self._most and self._last_behind(order) is None:
            raise OverloadedError("full", "this router has as many requests as it may", self._ends_s)
        if self._is_idle:
            return 0.0
        wait_ms = self._wait_ms(work, (turn.item.work for turn in self._queue if turn.order < order))
        if wait_ms > self._max_wait_ms:
            message = f"this deployment is busy: a request would wait {wait_ms / 1e3:.1f} s"
            raise OverloadedError("wait", message, (wait_ms - self._max_wait_ms) / 1e3)
        self._check_deadline(claim, work, wait_ms)
        return wait_ms

    def _check_deadline(self, claim: Claim, work: Work, wait_ms: float) -> None:
        slack_ms = self._slack_ms(claim, work)
        if DOUBT * wait_ms > slack_ms:
            message = f"this deployment is busy: a request would wait {wait_ms / 1e3:.1f} s and miss its deadline"
            raise OverloadedError("deadline", message, (DOUBT * wait_ms - slack_ms) / 1e3)

    def _slack_ms(self, claim: Claim, work: Work) -> float:
        """How long a request can wait and still have its answer before its deadline."""
        left_ms = claim.deadline.left_ms
        return math.inf if left_ms is None else left_ms - work.total_ms - self._answers.estimate(work.most_tokens)

    def _wait_ms(self, work: Work, queued: Iterable[Work]) -> float:
        """The predicted wait of a prompt behind what the pools have and behind `queued`, in both pools together."""
        speculator_ms, target_ms = self._speculator.ahead_ms, self._target.ahead_ms
        for other in queued:
            speculator_ms += other.speculator_ms
            target_ms += other.target_ms
        in_target = self._target.wait_ms(target_ms)
        if not work.selects:
            return in_target
        in_speculator = self._speculator.wait_ms(speculator_ms)
        # The target drains while the speculator selects.
        return in_speculator + max(0.0, in_target - in_speculator - work.speculator_ms)

    @property
    def _is_idle(self) -> bool:
        return not (len(self._queue) or self._speculator.requests or self._target.requests)

    def _last_behind(self, order: Order) -> Place | None:
        """The last request in the queue that can still be refused, if it is behind `order`."""
        last = None
        for turn in self._queue:
            if turn.order > order and turn.item.may_be_refused:
                last = turn.item
        return last

    def _make_room(self, claim: Claim) -> None:
        """If the router is full, refuse the last one in its queue."""
        if self._ongoing < self._most:
            return
        last = self._last_behind(self._queue.next_order(claim.key, claim.priority))
        if last is not None:
            self._refuse(last, OverloadedError("full", "requests before this one took its place", self._ends_s))

    def _refuse(self, place: Place, error: OverloadedError) -> None:
        """Refuse a request that waits in the queue."""
        self._count(error)
        place.claim.asked.refusal = error
        self._end(place)
        if not place.dispatched.done():
            place.dispatched.set_exception(error)

    def _dispatch(self) -> None:
        """Send what the pools can take, in the order of the queue. A prompt for an idle pool overtakes others."""
        if self._dispatching:  # by the end of a request that the loop below refuses: the loop goes on with the others
            return
        self._dispatching = True
        try:
            while (turn := self._queue.first(self._fits)) is not None:
                self._send_or_refuse(turn)
        finally:
            self._dispatching = False

    def _send_or_refuse(self, turn: Turn[Place]) -> None:
        place, work = turn.item, turn.item.work
        try:
            if place.may_be_refused and (self._speculator.requests or self._target.requests):
                self._check_deadline(place.claim, work, self._wait_ms(work, ()))
        except OverloadedError as error:
            self._refuse(place, error)
            return
        self._queue.serve(turn)
        place.turn, place.found_ms = None, self._speculator.ahead_ms
        place.stage = "select" if work.selects else "ready"
        if work.selects:
            self._speculator.enter(work.speculator_ms)
        self._target.enter(work.target_ms)
        self._meter.record("skim_router_queued", len(self._queue))
        if not place.dispatched.done():
            place.dispatched.set_result(None)

    def _fits(self, place: Place) -> bool:
        """Whether the pools would begin with this prompt soon."""
        in_target = self._target.wait_ms(self._target.ahead_ms) if self._target.requests else 0.0
        target_fits = self._target.has_room or in_target <= POOL_WAIT_MS
        if not place.work.selects:
            return target_fits
        in_speculator = self._speculator.wait_ms(self._speculator.ahead_ms) if self._speculator.requests else 0.0
        speculator_fits = self._speculator.has_room or in_speculator <= POOL_WAIT_MS
        return speculator_fits and (target_fits or in_target - in_speculator <= POOL_WAIT_MS)

    def _leave_speculator(self, place: Place) -> None:
        self._speculator.leave(place.work.speculator_ms)
        place.stage = "ready"

    def _leave_target(self, place: Place) -> None:
        self._target.leave(place.work.target_ms)
        self._at_target_ms = self._at_target_ms - place.work.target_ms if self._target.requests else 0.0

    def _end(self, place: Place) -> None:
        """Whatever became of the prompt, it is no longer here."""
        if place.stage == "end":
            return
        if place.turn is not None:
            self._queue.drop(place.turn, place.claim.key, place.cost)
            place.turn = None
            self._meter.record("skim_router_queued", len(self._queue))
        if place.stage == "select":
            self._speculator.leave(place.work.speculator_ms)
        if place.stage in ("select", "ready"):
            self._target.leave(place.work.target_ms)
        if place.stage == "prefill":
            self._leave_target(place)
        place.stage = "end"
        self._ongoing -= place.first
        now = self._clock()
        if now - self._ended_at < MOST_BETWEEN_ENDS_S:
            self._ends_s += (1 - ENDS_DECAY) * (now - self._ended_at - self._ends_s)
        self._ended_at = now
        self._dispatch()

    def _count(self, error: OverloadedError) -> None:
        self._meter.record("skim_router_refused_total", 1, reason=error.reason)
