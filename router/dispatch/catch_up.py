"""Catch-up: in idle time the target reads what a selection left out, so that the conversation's next turn runs dense.

The prompt and its answer are read as a series of requests of the router's own, each with a longer beginning of them; by
the prefix cache, each reads its new chunk alone. They have the client's cache salt, adapter and affinity, and the
lowest priority; they pass no admission, are charged to no API key and count in no metric of clients.

- No chunk begins while a prompt of a client waits or is read. Under load, the one that runs is cancelled, and asked for
  again later. Between its chunks each pauses, so that streams on its replica keep STREAM_SHARE of their speed.
- The conversation's next turn ends its catch-up. The blocks that are done stay.
- If the replica that the next turn prefers has lost the blocks, the count of cached tokens tells: once it is read on,
  and at the second time the catch-up ends.

The read of the answer also tells which of its tokens the dense model would have chosen (`router.decision.guard`).
"""

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count

import numpy as np
from anyio import CapacityLimiter
from cachetools import LRUCache

from kv_transfer.arrays import Int32Array
from kv_transfer.messages import ADAPTER, READ_ONLY, Envelope, GenerateOutput, GenerateRequest, KeptPrompt
from kv_transfer.options import AUTO, DecodeOptions
from kv_transfer.prefix_hash import block_hashes
from router.decision.catch_up import chunk_tokens, next_read, pause_ms, plan
from router.decision.conversations import Client, Conversations, goes_on
from router.decision.guard import AGREES
from router.decision.ledger import BLOCK_TOKENS
from router.dispatch.parts import Parts
from router.dispatch.request import Prepared
from router.dispatch.state import Outcome
from router.pools.migration import AnswerRecord, ReplicaLostError
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
SCORED_TOKENS = 128
"""Tokens of an answer that are compared. Log probabilities of more would cost memory and say little more."""
LOWEST_PRIORITY = 2**31 - 1
"""vLLM serves higher numbers later, if its scheduling policy is `priority`."""

_CHANGES_TOKENS = (
    *("presence_penalty", "frequency_penalty", "logit_bias", "allowed_token_ids", "bad_words", "min_tokens"),
    *("structured_outputs", "thinking_token_budget", "logits_processors"),
)
"""Fields of vllm.SamplingParams with which a greedy answer is not the model's likeliest tokens."""

_DECIDE_NOTHING_KEPT = {"enabled", "catch_up", "lossy"}
"""Request options with which `auto` keeps what it would keep without them."""


@dataclass(slots=True, eq=False)
class Reading:
    """A conversation that is caught up, and how far."""

    prepared: Prepared
    ids: Int32Array  # [T], the prompt and its answer
    hashes: Sequence[bytes]  # of their blocks
    client: Client
    judged: bool  # the guard learns from the answer
    scored: int  # first tokens of the answer that are still to be scored
    done: int  # tokens of ids that the target has read
    agreement: float | None = None  # of the answer, once it is known
    task: asyncio.Task[None] = field(init=False)
    runs: bool = False  # it has begun to be read
    chunk: asyncio.Task[GenerateOutput] | None = None  # its running request
    outcome: str = "failed"  # of the task when it has ended, one word


class CatchUps:
    """The catch-ups of one router."""

    def __init__(self, parts: Parts) -> None:
        self._parts, self._admission = parts, parts.admission
        self._chance = random.random
        self._conversations = Conversations(self._clock)
        self._readings: list[Reading] = []
        self._places = CapacityLimiter(1)  # as many as there are replicas, each of which has idle time of its own
        self._read: LRUCache[bytes, None] = LRUCache(PREFIXES)
        self._numbers = count()
        self._streams, self._closed = 0, False

    def _clock(self) -> float:
        return asyncio.get_running_loop().time()

    @contextmanager
    def request(self) -> Iterator[None]:
        """A client's request is at the target."""
        self._streams += 1
        try:
            yield
        finally:
            self._streams -= 1

    def plan(self, outcome: Outcome) -> None:
        """Decide whether a prompt of which a selection dropped something is to be caught up."""
        prepared, request, pools = outcome.prepared, outcome.call.request, self._parts.pools
        forecast = prepared.forecast
        ledger, settings = self._parts.forecaster.caches.dense, self._parts.settings
        may_audit = outcome.mode == "speculative" and _is_greedy(prepared) and _is_judged(outcome)
        outcome.catches_up, outcome.catch_up_reason = plan(
            prepared.options,
            tokens=prepared.size + prepared.prompt.max_tokens,
            room=ledger.horizon / max(pools.replicas("target"), 1e-3) if pools.target.cache_tokens else 0.0,
            later_requests=request.later_requests,
            share=self._conversations.share((request.key, outcome.shape)),
            audited=may_audit and self._chance() < settings.audit_share,
            has_home=settings.affinity,
            others=self._conversations.others(forecast.hashes, forecast.sizes.opening),
            capacity=ledger.capacity,
        )

    def arrived(self, outcome: Outcome) -> None:
        """A prompt of a client: if it is the next turn of a conversation, the catch-up of that ends.

        What catch-ups of its earlier turns have read, and is still cached, is noted.
        """
        hashes = outcome.prepared.forecast.hashes
        blocks = next((number for number in range(len(hashes), 0, -1) if hashes[number - 1] in self._read), 0)
        outcome.caught_up = min(blocks * BLOCK_TOKENS, outcome.prepared.forecast.dense.tokens)
        self._conversations.arrived(hashes)
        for reading in [*self._readings]:
            forecast = reading.prepared.forecast
            if goes_on(forecast.hashes, forecast.sizes.opening, hashes):
                self._cancel(reading, "next-turn")

    def hold(self) -> None:
        """The router is loaded: chunks that run are cancelled, and asked for again in idle time."""
        for reading in self._readings:
            if reading.chunk is not None:
                reading.chunk.cancel()

    def close(self) -> None:
        """End all of them, and begin none any more: the router stops."""
        self._closed = True
        for reading in [*self._readings]:
            self._cancel(reading, "stopped")

    def begin(self, outcome: Outcome, answer: AnswerRecord) -> None:
        """A prompt has its answer: catch up, if that is planned."""
        prepared, client = outcome.prepared, (outcome.call.request.key, outcome.shape)
        forecast = prepared.forecast
        self._conversations.answered(
            client, forecast.hashes, forecast.sizes.opening, prepared.size, rests=prepared.ruled.speculative
        )
        if self._closed or not outcome.catches_up or not answer.finished:
            return
        self._places.total_tokens = max(1, int(self._parts.pools.replicas("target")))
        reading = self._reading(outcome, answer)
        self._readings.append(reading)
        reading.task = self._parts.background.start(self._run(reading))
        reading.task.add_done_callback(lambda _: self._end(reading))
        waiting = [other for other in self._readings if not other.runs]
        if len(waiting) > MOST_WAITING + self._places.available_tokens:
            [(most, _)] = Counter(other.client[0] for other in waiting).most_common(1)
            self._cancel(next(other for other in waiting if other.client[0] == most), "dropped")

    def _reading(self, outcome: Outcome, answer: AnswerRecord) -> Reading:
        """Of several answers none is read: the client goes on with one of them at most."""
        prepared = outcome.prepared
        several = (answer.asked.sampling.get("n") or 1) > 1
        prompt, answered = prepared.prompt.rendered.token_ids, answer.first_token_ids[: 0 if several else None]
        target, forecast = self._parts.pools.target, prepared.forecast
        ids = np.concatenate([prompt, answered])[: min(target.max_model_len, target.max_position) - 1]
        return Reading(
            prepared,
            ids,
            block_hashes(ids, BLOCK_TOKENS, forecast.salt, known=forecast.hashes),
            (outcome.call.request.key, outcome.shape),
            _is_judged(outcome),
            min(SCORED_TOKENS, max(0, int(ids.size - prompt.size))) if _is_greedy(prepared) else 0,
            done=min(forecast.known_dense, int(prompt.size) - 1) // BLOCK_TOKENS * BLOCK_TOKENS,
        )

    def _cancel(self, reading: Reading, why: str) -> None:
        self._readings.remove(reading)
        reading.outcome = why
        reading.task.cancel()

    def _end(self, reading: Reading) -> None:
        if reading in self._readings:
            self._readings.remove(reading)
        self._parts.meter.record("skim_router_catch_ups_total", 1, outcome=reading.outcome)
        self._show(reading, reading.outcome)

    def _show(self, reading: Reading, state: str) -> None:
        """In the explain view."""
        shown = {"state": state, "tokens": reading.done, "of": int(reading.ids.size), "agreement": reading.agreement}
        self._parts.log.note_catch_up(reading.prepared.request_id, shown, reading.client[0])

    async def _run(self, reading: Reading) -> None:
        async with self._places:
            reading.runs = True
            try:
                async with asyncio.timeout(LONGEST_S):
                    reading.outcome = await self._catch_up(reading)
            except TimeoutError:
                reading.outcome = "dropped"
            except SkimError as error:
                logger.info("request %s is not caught up: %s", reading.prepared.request_id, error)

    async def _catch_up(self, reading: Reading) -> str:
        """Read the conversation, chunk by chunk. Returns the outcome, one word. Raises SkimError."""
        forecaster, forecast = self._parts.forecaster, reading.prepared.forecast
        losses = 0  # how often the target had lost its tokens
        resume_at = 0.0  # when running streams have had their share of the replica's time
        while reading.done < reading.ids.size:
            # Much of the router changes what this waits for.
            while not self._admission.is_idle or (self._streams and self._clock() < resume_at):  # noqa: ASYNC110
                await asyncio.sleep(LOOK_S)
            done, began = reading.done, self._clock()
            chunk = chunk_tokens(partial(forecaster.read_ms, forecast, done))
            end, scored = next_read(done, reading.prepared.size, reading.scored, int(reading.ids.size), chunk)
            try:
                output = await self._read_chunk(reading, end, scored)
            except ReplicaLostError:
                forecaster.caches.dense.forget(reading.hashes[: done // BLOCK_TOKENS])
                losses, reading.done = losses + 1, 0
                if losses > 1:
                    raise
                continue
            if output is not None:
                now = self._clock()
                resume_at = now + pause_ms(1e3 * (now - began)) / 1e3
                losses += 2 * output.cached_tokens < done
                self._learn(reading, end, scored, output)
                if losses > 1:
                    return "evicted"
        return "done"

    async def _read_chunk(self, reading: Reading, end: int, scored: int) -> GenerateOutput | None:
        """The target's output for the first `end` of ids; None if `hold` has cancelled it."""
        prepared = reading.prepared
        # As the client's own: only the priority is another.
        request = GenerateRequest(
            f"{prepared.wire_id}-catch-up-{next(self._numbers)}",
            KeptPrompt.dense(reading.ids[:end]),
            dict(READ_ONLY),
            LOWEST_PRIORITY,
            prepared.prompt.cache_salt,
            {name: value for name, value in prepared.prompt.engine_args.items() if name == ADAPTER},
            DecodeOptions(method="none"),
            envelope=Envelope(affinity=prepared.affinity),
            scored=scored,
        )
        reading.chunk = asyncio.create_task(self._only_output(request))
        try:
            return await reading.chunk
        except asyncio.CancelledError:
            if reading.task.cancelling():
                raise
            return None
        finally:
            reading.chunk = None

    async def _only_output(self, request: GenerateRequest) -> GenerateOutput:
        async with aclosing(self._parts.pools.generate(request)) as outputs:
            [output] = [output async for output in outputs]
            return output

    def _learn(self, reading: Reading, end: int, scored: int, output: GenerateOutput) -> None:
        """The target has read the conversation up to `end`."""
        blocks = reading.hashes[: end // BLOCK_TOKENS]
        self._parts.forecaster.read_behind(reading.prepared.forecast, reading.ids[:end], blocks, output)
        if blocks:
            self._read[blocks[-1]] = None
        self._parts.meter.record("skim_router_catch_up_tokens_total", end - output.cached_tokens)
        reading.done = end
        if scored:
            reading.scored = 0
            likeliest = [candidates[0].rank == 1 for candidates in output.prompt_logprobs or () if candidates]
            if likeliest:  # none if the answer's tokens were cached
                self._measure(reading, sum(likeliest) / len(likeliest))
        self._show(reading, "reading")

    def _measure(self, reading: Reading, agreement: float) -> None:
        """agreement: the share of the answer's tokens that the dense model would have chosen."""
        reading.agreement, agrees, kind = agreement, agreement >= AGREES, reading.client[1]
        if reading.judged:
            self._parts.agreements.measured(reading.client, agrees=agrees)
        self._parts.meter.record("skim_router_audit_agreement", agreement, kind=kind)
        self._parts.meter.record("skim_router_audits_total", 1, outcome="agrees" if agrees else "differs", kind=kind)


def _is_greedy(prepared: Prepared) -> bool:
    """Whether the answer has the likeliest tokens after the kept prompt, so that those after the whole one compare."""
    sampling = prepared.prompt.sampling
    plain = (sampling.get("repetition_penalty") or 1.0) == 1.0 and not any(map(sampling.get, _CHANGES_TOKENS))
    return plain and sampling.get("temperature", 1.0) == 0 and (sampling.get("n") or 1) == 1


def _is_judged(outcome: Outcome) -> bool:
    """Whether the answer tells what `auto` does by the deployment's own options: the client gives none that decide what
    is kept, and the load has left out nothing of it."""
    request = outcome.call.request
    own = request.options.model_fields_set <= _DECIDE_NOTHING_KEPT and request.keep_fields is None
    return own and request.options.enabled == AUTO and "shed" not in outcome.notes
