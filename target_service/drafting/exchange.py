"""The exchange with the drafters: in each step one message per drafter, with a row for every request it drafts for."""

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from kv_transfer.arrays import Int32Array
from kv_transfer.drafts import DraftReply, DraftRequest, DraftRow
from target_service.drafting.session import Proposal, TargetSession, checked_proposal

FALLBACKS = ("timeout", "unreachable", "breaker", "broken", "no_draft")

FORGET_AFTER_S = 60.0
"""A connection that no running request needs is closed after this time, for example because its replica is gone."""

MAX_CLOSED = 4096
"""Limit for the ended sessions remembered per unreachable drafter; the drafter evicts the others when they are idle."""


class Client(Protocol):
    """The methods of kv_transfer.draft_channel.DraftClient that are used here. The client numbers the
    messages."""

    counters: dict[str, int]

    def exchange(self, request: DraftRequest) -> DraftReply | None: ...

    def close(self) -> None: ...


class ProposalRequest(NamedTuple):
    """The drafts that one request needs in one step. drafts: K. top_m: 0 for one-hot drafts."""

    session: TargetSession
    answer: Int32Array
    drafts: int
    temperature: float
    top_m: int


@dataclass
class _Drafter:
    client: Client
    closed: list[str] = field(default_factory=list)
    pending: list[tuple[ProposalRequest, DraftRow]] = field(default_factory=list)
    failed: bool = False  # it did not answer the last message
    needed: float = 0.0  # when a running request had a session there, in the clock's seconds


class DraftExchange:
    """The connections to all drafters that the running requests have sessions with.

    connect: creates the client for an address. counters: exchanges (messages), and for each reason in FALLBACKS the
    rows that did not get their drafts.
    """

    def __init__(
        self, connect: Callable[[str], Client], vocab_size: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._connect, self._vocab_size, self._clock = connect, vocab_size, clock
        self._drafters: dict[str, _Drafter] = {}
        self._threads = ThreadPoolExecutor(thread_name_prefix="draft")
        self.counters: Counter[str] = Counter()
        self._channel: Counter[str] = Counter()  # counts of the clients that are closed

    def ask(self, requests: Iterable[ProposalRequest]) -> dict[TargetSession, Proposal]:
        """Exchange a message with each drafter; the valid proposals. Blocks until the clients' deadline at most."""
        asked: defaultdict[str, list[ProposalRequest]] = defaultdict(list)
        for request in requests:
            asked[request.session.address].append(request)
        drafters = [self._prepared(address, rows) for address, rows in asked.items()]
        replies = [self._exchange(drafters[0])] if len(drafters) == 1 else self._threads.map(self._exchange, drafters)
        proposals: dict[TargetSession, Proposal] = {}
        for drafter, (reply, reason) in zip(drafters, replies, strict=True):
            self._take(drafter, reply, reason, proposals)
        return proposals

    def close(self, session: TargetSession) -> None:
        """The request ended. The next message to its drafter reports it."""
        closed = self._drafter(session.address).closed
        closed.append(session.id)
        del closed[:-MAX_CLOSED]

    def flush(self, busy: Collection[str] | None = None) -> None:
        """Report ended sessions now, because no message to their drafters is expected soon: each has its place there
        until then.

        busy: the drafters that running requests have sessions with; the next rows will report to them. A drafter that
        did not answer last time is left for later. None: no request runs. Connections that are not needed are closed.
        """
        now = self._clock()
        for address, drafter in list(self._drafters.items()):
            if busy is not None and address in busy:
                drafter.needed = now
                continue
            if drafter.closed and not (busy is not None and drafter.failed):
                drafter.pending = []
                reply, reason = self._exchange(drafter)
                self._take(drafter, reply, reason, {})
            if now - drafter.needed > FORGET_AFTER_S:
                drafter.client.close()
                self._channel.update(drafter.client.counters)
                del self._drafters[address]

    def stats(self) -> dict[str, Any]:
        """Counts since the start. `channel`: the sums of all clients' counters."""
        channel = Counter(self._channel)
        for drafter in self._drafters.values():
            channel.update(drafter.client.counters)
        return {
            "exchanges": self.counters["exchanges"],
            "fallbacks": {reason: self.counters[reason] for reason in FALLBACKS},
            "channel": dict(channel),
        }

    def shutdown(self) -> None:
        for drafter in self._drafters.values():
            drafter.client.close()
        self._threads.shutdown(wait=False)

    def _drafter(self, address: str) -> _Drafter:
        if address not in self._drafters:
            self._drafters[address] = _Drafter(self._connect(address), needed=self._clock())
        return self._drafters[address]

    def _prepared(self, address: str, requests: list[ProposalRequest]) -> _Drafter:
        drafter = self._drafter(address)
        drafter.pending = [
            (asked, asked.session.ask(asked.answer, asked.drafts, asked.temperature, asked.top_m)) for asked in requests
        ]
        return drafter

    def _exchange(self, drafter: _Drafter) -> tuple[DraftReply | None, str]:
        """The reply, or None and the reason."""
        rows = [row for _, row in drafter.pending]
        before = Counter(drafter.client.counters)
        reply = drafter.client.exchange(DraftRequest(rows, list(drafter.closed)))
        return reply, "" if reply is not None else _failure(Counter(drafter.client.counters) - before)

    def _take(
        self, drafter: _Drafter, reply: DraftReply | None, reason: str, proposals: dict[TargetSession, Proposal]
    ) -> None:
        self.counters["exchanges"] += 1
        drafter.failed = reply is None
        if reply is None:
            self.counters[reason] += len(drafter.pending)
            return
        drafter.closed.clear()
        drafts = {draft.session: draft for draft in reply.drafts}
        for request, row in drafter.pending:
            draft = drafts.get(row.session)
            request.session.acknowledge(row, drafted=draft is not None)
            proposal = checked_proposal(draft, self._vocab_size) if draft else None
            if proposal is None:
                self.counters["broken" if draft else "no_draft"] += 1
            elif proposal.tokens.size:
                proposals[request.session] = proposal


def _failure(counted: Counter[str]) -> str:
    """The reason of a failed exchange, from the change of the client's counters."""
    for count, reason in (("timeouts", "timeout"), ("broken", "broken"), ("breaker_opened", "unreachable")):
        if counted[count]:
            return reason
    return "breaker"
