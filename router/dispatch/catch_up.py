"""Catch-up: in idle time the target reads what a selection left out, so that the conversation's next turn runs dense.

The prompt and its answer are read as a series of requests of the router's own, each with a longer beginning of them.
The prefix cache makes each of them read its new chunk alone. So the router knows how far the target is, and can stop
after any chunk. They have the client's cache salt, adapter and affinity, and the lowest priority; they pass no
admission, are charged to no API key and count in no metric of clients.

- No chunk begins while a prompt of a client waits or is read. Under load, the one that runs is cancelled, and asked for
  again later. Between its chunks each pauses, so that streams on its replica keep STREAM_SHARE of their speed.
- The conversation's next turn ends its catch-up. The blocks that are done stay.
- Affinity sends each chunk to the replica that the next turn prefers. If that one is too busy, or has lost the blocks,
  the count of cached tokens tells: once it is read on, and at the second time the catch-up ends.

The read of the answer also tells which of its tokens the dense model would have chosen (`router.decision.agreements`).
"""

import asyncio
import logging
import random
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from cachetools import LRUCache

from actors.observability.metrics import Meter
from kv_transfer.messages import GenerateOutput, TokenLogprob
from router.admission.controller import Admission
from router.decision.agreements import AGREES, Agreements
from router.decision.cache_ledger import BLOCK_TOKENS
from router.decision.catch_up import Conversation, Plan, chunk_tokens, goes_on, middle, next_read, pause_ms, plan
from router.decision.forecast import Forecast
from router.decision.forecaster import Forecaster
from router.decision.live_conversations import LiveConversations
from router.decision.next_turns import NextTurns
from router.dispatch.reading import Reading, is_greedy, is_judged
from router.dispatch.request import Prepared
from router.dispatch.state import Outcome
from router.explain.log import RequestLog
from router.pools.answer_record import AnswerRecord
from router.pools.background_tasks import BackgroundTasks
from router.pools.interface import Pools
from router.pools.migration import ReplicaLostError
from skim_common.errors import SkimError

logger = logging.getLogger(__name__)

MOST_WAITING = 32
"""Conversations that wait for idle time. Of the client that has most of them, the oldest is dropped."""
LONGEST_S = 600.0
"""A conversation that rests so long has probably ended."""
LOOK_S = 0.02
"""How often a catch-up that waits looks whether it may go on."""
PREFIXES = 65536
"""Beginnings of prompts that are remembered as read."""


class CatchUps:
    """The catch-ups of one router.

    audit_share: of the greedy answers, which are caught up for the measurement alone where no later turn is likely.
    has_home: calls prefer the replica of their prefix. chance: a number in [0, 1) for each answer. clock: seconds.
    """

    def __init__(
        self,
        meter: Meter,
        forecaster: Forecaster,
        admission: Admission,
        log: RequestLog,
        *,
        audit_share: float = 0.0,
        has_home: bool = True,
        chance: Callable[[], float] = random.random,
        clock: Callable[[], float] = lambda: asyncio.get_running_loop().time(),
    ) -> None:
        self._meter, self._forecaster, self._admission, self._log = meter, forecaster, admission, log
        self._audit_share, self._has_home, self._chance, self._clock = audit_share, has_home, chance, clock
        self.agreements, self._next_turns = Agreements(), NextTurns(clock)
        self._waiting: deque[Reading] = deque()
        self._running: list[Reading] = []
        self._tasks = BackgroundTasks()
        self._read: LRUCache[bytes, None] = LRUCache(PREFIXES)
        self._streams, self._closed = 0, False
        self._live = LiveConversations(clock)

    @contextmanager
    def request(self) -> Iterator[None]:
        """A client's request is at the target."""
        self._streams += 1
        try:
            yield
        finally:
            self._streams -= 1

    def plan(self, pools: Pools, prepared: Prepared, outcome: Outcome) -> Plan:
        """Whether a prompt of which a selection dropped something is to be caught up."""
        request, replicas = outcome.call.request, max(pools.replicas("target"), 1e-3)
        may_audit = outcome.mode == "speculative" and is_greedy(prepared) and is_judged(prepared, outcome)
        conversation = Conversation(
            tokens=prepared.size + prepared.prompt.max_tokens,
            room=self._forecaster.caches.dense.horizon / replicas if pools.target.cache_tokens else 0.0,
            told=request.later_requests,
            share=self._next_turns.share((request.key, outcome.shape)),
            audited=may_audit and self._chance() < self._audit_share,
            has_home=self._has_home,
            others=self._live.others(*_place(prepared.forecast)),
            capacity=self._forecaster.caches.dense.capacity,
        )
        return plan(prepared.options, conversation)

    def tokens(self, prepared: Prepared) -> int:
        """Tokens at a prompt's beginning that catch-ups of its earlier turns have read, and that are still cached."""
        hashes = prepared.forecast.hashes
        blocks = next((place for place in range(len(hashes), 0, -1) if hashes[place - 1] in self._read), 0)
        return min(blocks * BLOCK_TOKENS, prepared.forecast.dense.tokens)

    def arrived(self, prepared: Prepared) -> None:
        """A prompt of a client: if it is the next turn of a conversation, the catch-up of that ends."""
        self._next_turns.arrived(prepared.forecast.hashes)
        for reading in [*self._waiting, *self._running]:
            forecast = reading.prepared.forecast
            if goes_on(forecast.hashes, forecast.sizes.opening, prepared.forecast.hashes):
                self._cancel(reading, "next-turn")

    def hold(self) -> None:
        """The router is loaded: chunks that run are cancelled, and asked for again in idle time."""
        for reading in self._running:
            reading.hold()

    def close(self) -> None:
        """End all of them, and begin none any more: the router stops."""
        self._closed = True
        for reading in [*self._waiting, *self._running]:
            self._cancel(reading, "stopped")

    def begin(self, pools: Pools, prepared: Prepared, outcome: Outcome, answer: AnswerRecord) -> None:
        """A prompt has its answer: catch up, if that is planned."""
        hashes, opening = _place(prepared.forecast)
        self._live.note(hashes, opening, prepared.size)
        if prepared.ruled.speculative and (block := middle(hashes, opening)) is not None:
            self._next_turns.answered((outcome.call.request.key, outcome.shape), hashes[block])
        if self._closed or outcome.catch_up is None or not outcome.catch_up.wanted or not answer.finished:
            return
        self._waiting.append(Reading.of(pools, prepared, outcome, answer))
        if len(self._waiting) > MOST_WAITING:
            [(most, _)] = Counter(other.key for other in self._waiting).most_common(1)
            self._cancel(next(other for other in self._waiting if other.key == most), "dropped")
        self._start()

    def _start(self) -> None:
        """Start as many as there are replicas, each of which has idle time of its own."""
        while self._waiting and len(self._running) < max(1, int(self._waiting[0].pools.replicas("target"))):
            reading = self._waiting.popleft()
            self._running.append(reading)
            reading.task = self._tasks.start(self._run(reading))

    def _cancel(self, reading: Reading, why: str) -> None:
        if reading.task is not None:
            reading.ended = why
            reading.task.cancel()
        elif reading in self._waiting:
            self._waiting.remove(reading)
            self._end(reading, why)

    def _end(self, reading: Reading, outcome: str) -> None:
        self._meter.record("skim_router_catch_ups_total", 1, outcome=outcome)
        self._note(reading, outcome)

    def _note(self, reading: Reading, state: str) -> None:
        """Tell the explain view."""
        found = {"state": state, "tokens": reading.done, "of": int(reading.ids.size), "agreement": reading.agreement}
        self._log.note_catch_up(reading.prepared.request_id, found, reading.key)

    async def _run(self, reading: Reading) -> None:
        outcome = "failed"
        try:
            async with asyncio.timeout(LONGEST_S):
                outcome = await self._catch_up(reading)
        except TimeoutError:
            outcome = "dropped"
        except asyncio.CancelledError:
            outcome = reading.ended
            raise
        except SkimError as error:
            logger.info("request %s is not caught up: %s", reading.prepared.request_id, error)
        finally:
            self._running.remove(reading)
            self._end(reading, outcome)
            self._start()

    async def _catch_up(self, reading: Reading) -> str:
        """Read the conversation. Returns the outcome, one word. Raises SkimError."""
        while reading.done < reading.ids.size:
            await self._idle(reading)
            size, chunk = reading.prepared.size, self._chunk(reading)
            end, scored = next_read(reading.done, size, reading.scored, reading.ids.size, chunk)
            began = self._clock()
            try:
                output = await reading.read(end, scored)
            except ReplicaLostError:
                self._forecaster.caches.dense.forget(reading.hashes[: reading.done // BLOCK_TOKENS])
                reading.losses, reading.done = reading.losses + 1, 0
                if reading.losses > 1:
                    raise
                continue
            if output is not None:
                now = self._clock()
                reading.resume_at = now + pause_ms(1e3 * (now - began)) / 1e3
                reading.losses += 2 * output.cached_tokens < reading.done
                self._learn(reading, end, scored, output)
                if reading.losses > 1:
                    return "evicted"
        return "done"

    async def _idle(self, reading: Reading) -> None:
        """Wait until no client's prompt waits or is read, and streams on its replica have had their share."""
        # Much of the router changes what this waits for.
        while not self._admission.is_idle or (self._streams and self._clock() < reading.resume_at):  # noqa: ASYNC110
            await asyncio.sleep(LOOK_S)

    def _chunk(self, reading: Reading) -> int:
        forecast, done = reading.prepared.forecast, reading.done
        return chunk_tokens(lambda tokens: self._forecaster.read_ms(forecast, done + tokens, done))

    def _learn(self, reading: Reading, end: int, scored: int, output: GenerateOutput) -> None:
        """The target has read the conversation up to `end`."""
        blocks = reading.hashes[: end // BLOCK_TOKENS]
        self._forecaster.read_behind(reading.prepared.forecast, reading.ids[:end], blocks, output)
        if blocks:
            self._read[blocks[-1]] = None
        self._meter.record("skim_router_catch_up_tokens_total", end - output.cached_tokens)
        reading.done = end
        if scored:
            reading.scored = 0
            self._compare(reading, output.prompt_logprobs or ())
        self._note(reading, "reading")

    def _compare(self, reading: Reading, told: Sequence[Sequence[TokenLogprob] | None]) -> None:
        """Measure how much of the answer the dense model would have chosen. told: empty if its tokens were cached."""
        likeliest = [candidates[0].rank == 1 for candidates in told if candidates]
        if not likeliest:
            return
        reading.agreement = sum(likeliest) / len(likeliest)
        agrees = reading.agreement >= AGREES
        if reading.judged:
            self.agreements.measured((reading.key, reading.shape), agrees=agrees)
        self._meter.record("skim_router_audit_agreement", reading.agreement, kind=reading.shape)
        self._meter.record("skim_router_audits_total", 1, outcome="agrees" if agrees else "differs", kind=reading.shape)


def _place(forecast: Forecast) -> tuple[Sequence[bytes], int]:
    """By what `LiveConversations` knows a prompt's conversation."""
    return forecast.hashes, forecast.sizes.opening
