"""An answer from as many target replicas as it takes: it goes on at another one when its replica is lost.

The next replica gets the same prompt with the tokens sent so far after it, at their own positions. So the client sees
no gap and no repeated token. Greedy answers stay what they would have been, as far as prefill and decode compute the
same logits (float32; bfloat16 rounds them differently). So do answers with a seed and without drafts: the next replica
goes on with the random numbers that would have come.

The engine is always asked for new tokens only (DELTA); an answer that the client gets as a whole is put together here.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from kv_transfer.arrays import Int32Array
from kv_transfer.messages import DELTA, Completion, GenerateOutput, GenerateRequest, TokenLogprob
from skim_common.errors import EngineUnavailableError, SkimError

logger = logging.getLogger(__name__)

Cause = Literal["died", "drained", "refused"]

MAX_DEATHS = 2
"""A request is given up when so many replicas died under it, also between its tokens: it may be what kills them."""

MAX_REFUSALS = 3
"""A request is given up when so many replicas in a row were gone before they confirmed that they have it."""

HANDOVER_PAUSE_S = 0.1
"""The pause after a second handover in a row: Serve may not have told this router yet that a replica stops."""

STREAM_INTERVAL = 16
"""Tokens per message of an answer that the client gets as a whole."""

MAX_TOGETHER = 256
"""With more log probabilities a token (-1: all), tokens travel one by one: a message has a limit."""

Attempt = Callable[[GenerateRequest], AsyncGenerator[GenerateOutput, None]]
"""Runs a request on one replica. Raises ReplicaLostError if the replica is lost, other SkimErrors for other faults."""


class ReplicaLostError(EngineUnavailableError):
    """The target replica of a request died, drains (it has asked for its replacement), or refuses the request, which it
    cannot read because it runs another release. accepted: it had confirmed that it has the request."""

    def __init__(self, cause: Cause, *, accepted: bool) -> None:
        super().__init__("the target replica of this request died during its answer")
        self.cause, self.accepted = cause, accepted


class GivenUpError(EngineUnavailableError):
    """No further replica gets this request now."""


class DeadlyRequestError(SkimError):
    """No further replica ever gets this request (HTTP 500): several died under it."""


@dataclass(frozen=True, slots=True)
class Migration:
    """A request that goes to another replica. answered: tokens of unfinished answers that the next replica prefills."""

    cause: Cause
    answered: int


def in_larger_messages(sampling: Mapping[str, Any], tokens: int) -> Mapping[str, Any]:
    """These sampling parameters, with at least so many tokens in each message but the first and the last."""
    tokens = max(tokens, sampling.get("stream_interval") or 1)
    few = 0 <= (sampling.get("logprobs") or 0) <= MAX_TOGETHER
    return {**sampling, "stream_interval": tokens} if few and tokens > 1 else sampling


@dataclass(slots=True)
class _Part:
    """One of the n answers. text, logprobs: kept if the client gets the whole answer at its end."""

    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    logprobs: list[list[TokenLogprob]] | None = None
    last: Completion | None = None

    @property
    def is_finished(self) -> bool:
        return self.last is not None and self.last.finish_reason is not None


class AnswerRecord:
    """The n answers of one request, of which a single one can be continued.

    request: its `output_kind` is the client's: DELTA, or the whole answer in one output. asked: what an engine gets:
    the same request with DELTA outputs. hold: called with the number of log probabilities that are added to an answer
    held here; it may raise an error that ends the request.
    """

    def __init__(self, request: GenerateRequest, hold: Callable[[int], None] = lambda count: None) -> None:
        self._hold = hold
        self._parts = [_Part() for _ in range(request.sampling.get("n") or 1)]
        self._first: GenerateOutput | None = None
        self._cached_tokens = self._created_tokens = 0
        self._earlier_logprob: float | None = None  # of the tokens that other replicas made; None: there are none
        self._is_whole = request.sampling.get("output_kind", DELTA) != DELTA
        if self._is_whole:
            sampling = in_larger_messages({**request.sampling, "output_kind": DELTA}, STREAM_INTERVAL)
            request = replace(request, sampling=sampling)
        self.asked = request

    @property
    def begun(self) -> bool:
        return any(part.token_ids or part.is_finished for part in self._parts)

    @property
    def finished(self) -> bool:
        return all(part.is_finished for part in self._parts)

    @property
    def can_continue(self) -> bool:
        return len(self._parts) == 1

    @property
    def first_token_ids(self) -> Int32Array:
        """The tokens of the first answer, int32 [A]."""
        return np.array(self._parts[0].token_ids, np.int32)

    def continuation(self) -> GenerateRequest:
        """The request that continues a single answer on any replica."""
        [part] = self._parts
        self._earlier_logprob = part.last.cumulative_logprob or 0.0 if part.last else 0.0
        # The first output had the prompt's; and each token shall show that the replica makes progress.
        left_out = ("prompt_logprobs", "stream_interval")
        sampling = {name: value for name, value in self.asked.sampling.items() if name not in left_out}
        prompt = self.asked.prompt.extended(part.token_ids) if part.token_ids else self.asked.prompt
        return replace(self.asked, prompt=prompt, sampling=sampling, answered=len(part.token_ids))

    def add(self, output: GenerateOutput) -> GenerateOutput | None:
        """Record an output of an engine. Returns the output for the client; None if there is none yet."""
        self._first = self._first or output
        continues = self._earlier_logprob is not None
        if not continues:  # some engines tell it on their first output only
            self._cached_tokens = max(self._cached_tokens, output.cached_tokens)
            self._created_tokens = max(self._created_tokens, output.created_tokens)
        new = [self._grow(completion) for completion in output.completions]
        if not (self._is_whole or continues):
            return output
        told = GenerateOutput(new, self.finished, self._cached_tokens, created_tokens=self._created_tokens)
        if not self._is_whole:
            return told
        if not self.finished:
            return None
        first, whole = self._first, list(map(_joined, self._parts))
        return replace(told, completions=whole, prompt_logprobs=first.prompt_logprobs, timings=first.timings)

    def _grow(self, new: Completion) -> Completion:
        part = self._parts[new.index]
        if self._earlier_logprob is not None and new.cumulative_logprob is not None:
            new = replace(new, cumulative_logprob=self._earlier_logprob + new.cumulative_logprob)
        part.token_ids += new.token_ids.tolist()
        part.last = new
        if self._is_whole:
            part.text += new.text
            if new.logprobs is not None:
                self._hold(sum(map(len, new.logprobs)))
                part.logprobs = part.logprobs or []
                part.logprobs += new.logprobs
        return new


def _joined(part: _Part) -> Completion:
    """A whole answer."""
    assert part.last is not None
    return replace(part.last, text=part.text, token_ids=np.array(part.token_ids, np.int32), logprobs=part.logprobs)


async def migrate(
    record: AnswerRecord,
    attempt: Attempt,
    note: Callable[[Migration], None] = lambda migration: None,
    received: Callable[[GenerateOutput], None] = lambda output: None,
    *,
    enabled: bool = True,
) -> AsyncGenerator[GenerateOutput, None]:
    """The outputs for the request of `record`, from as many replicas as it takes; `record` grows with them.

    note: called before each change of the replica. received: called with each output of a replica. enabled: False: an
    answer that has begun is not continued. Raises DeadlyRequestError, GivenUpError, ReplicaLostError and as `attempt`.
    Closing the generator aborts the attempt.
    """
    deaths = refusals = handovers = 0  # the last two since the last token
    while True:
        request = record.continuation() if record.begun else record.asked
        try:
            async with aclosing(attempt(request)) as outputs:
                async for output in outputs:
                    refusals = handovers = 0
                    received(output)
                    if (told := record.add(output)) is not None:
                        yield told
            return
        except ReplicaLostError as error:
            if record.finished:
                return
            if record.begun and not (enabled and record.can_continue):
                raise
            handovers += error.cause == "drained"  # not the fault of the request
            deaths += error.accepted and error.cause == "died"
            refusals = 0 if error.accepted else refusals + 1
            if deaths >= MAX_DEATHS:
                raise DeadlyRequestError(
                    "two target replicas died while they ran this request, so it gets no other one; change it before "
                    "you send it again, for instance by asking for less"
                ) from error
            if refusals >= MAX_REFUSALS:
                raise GivenUpError("no target replica could take this request; try again in a moment") from error
            answered, name = int(record.first_token_ids.size), record.asked.request_id
            message = "request %s goes to another target replica with %d tokens of its answer: its replica %s"
            logger.warning(message, name, answered, error.cause)
            if error.cause == "refused":  # its prefix would bring the request to the same replica again
                record.asked = replace(record.asked, envelope=replace(record.asked.envelope, affinity=""))
            note(Migration(error.cause, answered))
        if handovers > 1:
            await asyncio.sleep(HANDOVER_PAUSE_S)
