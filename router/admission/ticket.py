"""What a prompt asks of the admission, the ticket that it gets there, and the queue in which tickets wait.

The load of a prompt is its predicted wait, divided by the longest wait that is allowed: `max_wait_s`, or what its
deadline leaves. A loaded router leaves out one thing more from each of these shares on:

    CATCH_UP     no reads for later turns (`router.dispatch.catch_up`)
    KEEP         the smallest keep rate (`min_keep`), where the request leaves the rate to the deployment
    1            the request is refused (`router.admission.controller`)

The queue goes by priority, then in fair shares of work for each API key: start-time fair queueing (Goyal, Vin and
Cheng, 1996). A ticket's start tag is the virtual time of its arrival, or the end of its key's work before it if that is
later, and the lowest tag is served first. So a key that sends much waits for itself. A key of weight w gets w times the
work of a key of weight 1 while both wait: its work costs 1/w.
"""

import asyncio
import math
from bisect import insort
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from operator import attrgetter

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


Order = tuple[int, float, float]


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

    first: it is the first prompt of its request. order: in the queue: priority, start tag and number of arrival.
    queued_ms: waited in the router. found_ms: the work before it in the pool where it is. began_at: when its first
    token came; 0 before.
    """

    request: AdmissionRequest
    first: bool
    work: Work
    load: float
    keeps_less: bool
    dispatched: asyncio.Future[None]
    order: Order = (0, 0.0, 0)
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


class FairQueue:
    """The tickets that wait, in the order of service."""

    def __init__(self) -> None:
        self._tickets: list[Ticket] = []
        self._ends: dict[str, float] = {}
        self._now, self._numbers = 0.0, 0

    def __len__(self) -> int:
        return len(self._tickets)

    def __iter__(self) -> Iterator[Ticket]:
        return iter(self._tickets)

    def next_order(self, key: str, priority: int) -> Order:
        """The order that the key's next ticket would have."""
        return priority, max(self._now, self._ends.get(key, 0.0)), math.inf

    def push(self, ticket: Ticket) -> None:
        priority, start, _ = self.next_order(ticket.request.key, ticket.request.priority)
        self._ends[ticket.request.key] = start + ticket.cost
        ticket.order = priority, start, self._numbers
        self._numbers += 1
        insort(self._tickets, ticket, key=attrgetter("order"))

    def serve(self, ticket: Ticket) -> None:
        """Take a ticket out because it is served: virtual time goes on to its start."""
        self._tickets.remove(ticket)
        self._now = max(self._now, ticket.order[1])
        if not self._tickets:
            # Nobody waits: a key's past does not count against it.
            self._ends = {key: end for key, end in self._ends.items() if end > self._now}

    def drop(self, ticket: Ticket) -> None:
        """Take a ticket out, if it was not served. It no longer counts for its key."""
        if ticket in self._tickets:
            self._tickets.remove(ticket)
            self._ends[ticket.request.key] -= ticket.cost

    def first(self, fits: Callable[[Ticket], bool]) -> Ticket | None:
        """The first ticket in the order that `fits`."""
        return next(filter(fits, self._tickets), None)
