"""Continues an answer on another target replica when its replica is lost.

The next replica gets the same prompt with the tokens sent so far after it, at their own positions. It prefills them and
decodes on. So the client sees no gap and no repeated token. Greedy answers stay what they would have been, as far as
prefill and decode compute the same logits (float32; bfloat16 rounds them differently). So do answers with a seed and
without drafts: the next replica goes on with the random numbers that would have come.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Literal

from kv_transfer.messages import GenerateOutput, GenerateRequest
from router.pools.answer_record import AnswerRecord
from skim_common.errors import EngineUnavailableError, SkimError

logger = logging.getLogger(__name__)

Cause = Literal["died", "drained", "refused"]

MAX_DEATHS = 2
"""A request is given up when so many replicas died under it, also between its tokens: it may be what kills them."""

MAX_REFUSALS = 3
"""A request is given up when so many replicas in a row were gone before they confirmed that they have it."""

HANDOVER_PAUSE_S = 0.1
"""The pause after a second handover in a row: Serve may not have told this router yet that a replica stops."""

Attempt = Callable[[GenerateRequest], AsyncGenerator[GenerateOutput, None]]
"""Runs a request on one replica. Raises ReplicaLostError if the replica is lost, other SkimErrors for other faults."""


class ReplicaLostError(EngineUnavailableError):
    """The target replica of a request is lost. cause: died; drained: it stops and has asked for its replacement; or
    refused: it runs another release, and cannot read the request.

    accepted: whether the replica had confirmed that it has the request.
    """

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


async def migrate(
    record: AnswerRecord,
    attempt: Attempt,
    note: Callable[[Migration], None] = lambda migration: None,
    received: Callable[[GenerateOutput], None] = lambda output: None,
    *,
    enabled: bool = True,
) -> AsyncGenerator[GenerateOutput, None]:
    """The outputs for the request of `record`, from as many replicas as it takes; `record` grows with them.

    note: called before each change of the replica. received: called with each output of a replica, which is not always
    one for the client. enabled: False: an answer that has begun is not continued; nor are several answers.
    Raises DeadlyRequestError, GivenUpError, ReplicaLostError, and what `attempt` raises. Closing the generator aborts
    the attempt.
    """
    losses = _Losses()
    while True:
        request = record.continuation() if record.begun else record.asked
        try:
            async with aclosing(attempt(request)) as outputs:
                async for output in outputs:
                    losses.outlived()
                    received(output)
                    if (told := record.add(output)) is not None:
                        yield told
            return
        except ReplicaLostError as error:
            if record.finished:
                return
            if record.begun and not (enabled and record.is_single):
                raise
            losses.count(error)
            _leave(record, error)
            note(Migration(error.cause, record.tokens))
        if losses.handovers > 1:
            await asyncio.sleep(HANDOVER_PAUSE_S)


def _leave(record: AnswerRecord, error: ReplicaLostError) -> None:
    """The request goes to another replica."""
    told = "request %s goes to another target replica with %d tokens of its answer: its replica %s"
    logger.warning(told, record.asked.request_id, record.tokens, error.cause)
    if error.cause == "refused":  # its prefix would bring the request to the same replica again
        record.asked = replace(record.asked, envelope=replace(record.asked.envelope, affinity=""))


@dataclass(slots=True)
class _Losses:
    """Replicas lost under an answer: by death in all, otherwise since its last token."""

    deaths: int = 0
    refusals: int = 0
    handovers: int = 0

    def outlived(self) -> None:
        """The present replica made a token."""
        self.refusals = self.handovers = 0

    def count(self, error: ReplicaLostError) -> None:
        """Raises an error at the limit. A replica that drains is not the fault of the request."""
        self.handovers += error.cause == "drained"
        self.deaths += error.accepted and error.cause == "died"
        self.refusals = 0 if error.accepted else self.refusals + 1
        if self.deaths >= MAX_DEATHS:
            raise DeadlyRequestError(
                "two target replicas died while they ran this request, so it gets no other one; change it before you "
                "send it again, for instance by asking for less"
            ) from error
        if self.refusals >= MAX_REFUSALS:
            raise GivenUpError("no target replica could take this request; try again in a moment") from error
