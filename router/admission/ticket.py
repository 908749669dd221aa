"""What a prompt asks of the admission, and the ticket that it gets there.

The load of a prompt is its predicted wait, divided by the longest wait that is allowed: `max_wait_s`, or what its
deadline leaves. A loaded router leaves out one thing more from each of these shares on:

    CATCH_UP     no reads for later turns (`router.dispatch.catch_up`)
    KEEP         the smallest keep rate (`min_keep`), where the request leaves the rate to the deployment
    1            the request is refused (`router.admission.controller`)
"""

import asyncio
import math
from dataclasses import dataclass, field

from router.admission.fair_queue import QueueEntry
from router.decision.choice import Work
from router.options.errors import RefusedError
from skim_common.deadline import NO_DEADLINE, Deadline

CATCH_UP, KEEP = 0.1, 0.75


def relative_load(wait_ms: float, longest_ms: float) -> float:
    """The load from 0 to 1. longest_ms: may be infinite (load 0) or negative (load 1 if there is a wait)."""
    return 0.0 if wait_ms <= 0 else min(1.0, wait_ms / longest_ms) if longest_ms > 0 else 1.0


class OverloadedError(RefusedError):
    """The request is refused before any work for it (HTTP 429). reason: one word, for the metric.

    retry_after_s: seconds after which it would be accepted, if no more requests came.
    """

    def __init__(self, reason: str, message: str, retry_after_s: float) -> None:
        seconds = max(1, math.ceil(retry_after_s))
        super().__init__(429, "RateLimitError", f"{message}; try again in {seconds} s", seconds)
        self.reason = reason


@dataclass(slots=True)
class PromptGroup:
    """The prompts of one request. Only its first one can be refused, and only while no other one was admitted."""

    prompts: int = 0
    refusal: OverloadedError | None = None


@dataclass(frozen=True, slots=True)
class AdmissionRequest:
    """A prompt that wants a ticket. key, share: the name of its API key, which has a share of its own, and its weight.

    priority: lower numbers are served first.
    """

    key: str = ""
    share: float = 1.0
    priority: int = 0
    deadline: Deadline = NO_DEADLINE
    group: PromptGroup = field(default_factory=PromptGroup)


@dataclass(slots=True, eq=False)
class Ticket:
    """One prompt from its admission to its end. work: with the smallest keep rate if `keeps_less`.

    first: it is the first prompt of its request. entry: in the queue. queued_ms: waited in the router. found_ms: the
    work before it in the pool where it is. began_at: when its first token came; 0 before.
    """

    request: AdmissionRequest
    first: bool
    work: Work
    load: float
    keeps_less: bool
    dispatched: asyncio.Future[None]
    entry: "QueueEntry[Ticket]" = field(init=False)
    queued_ms: float = 0.0
    found_ms: float = 0.0
    sent_at: float = 0.0
    began_at: float = 0.0
    has_ended: bool = False

    @property
    def cost(self) -> float:
        """What it takes of its key's share."""
        return max(1.0, self.work.total_ms + self.work.drafts_ms) / self.request.share

    @property
    def may_be_refused(self) -> bool:
        """Whether nothing has run for its request, if it waits in the queue."""
        return self.first and self.request.group.prompts == 1
