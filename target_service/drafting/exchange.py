"""The exchange with the drafters: in each step one message per drafter, with a row for every request it drafts for."""

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from kv_transfer.draft_channel import DraftClient
from kv_transfer.drafts import Drafted, DraftReply, DraftRequest, DraftRow
from target_service.drafting.session import TargetSession

FALLBACKS = ("timeout", "unreachable", "breaker", "broken", "no_draft")

FORGET_AFTER_S = 60.0
"""A connection that no running request needs is closed after this time, for example because its replica is gone."""

MAX_CLOSED = 4096
"""Limit for the ended sessions remembered per unreachable drafter; the drafter evicts the others when they are idle."""


@dataclass
class _Drafter:
    client: DraftClient
    needed: float  # when a running request had a session there, in the clock's seconds
    closed: list[str] = field(default_factory=list)  # ended sessions of which it has not been told
    failed: bool = False  # it did not answer the last message

    def exchange(self, rows: list[DraftRow]) -> DraftReply | None:
        reply = self.client.exchange(DraftRequest(rows, list(self.closed)))
        self.failed = reply is None
        if reply is not None:
            self.closed.clear()
        return reply


class DraftExchange:
    """The connections to the drafters of the running requests. connect: creates the client for an address. counters:
    exchanges (messages), and for each reason in FALLBACKS the rows that did not get their drafts."""

    def __init__(
        self, connect: Callable[[str], DraftClient], vocab_size: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._connect, self._vocab_size, self._clock = connect, vocab_size, clock
        self._drafters: dict[str, _Drafter] = {}
        self._threads = ThreadPoolExecutor(thread_name_prefix="draft")
        self.counters: Counter[str] = Counter()
        self._channel: Counter[str] = Counter()  # counts of the clients that are closed

    def ask(self, rows: Iterable[tuple[TargetSession, DraftRow]]) -> dict[TargetSession, Drafted]:
        """Exchange a message with each drafter; the valid drafts. Blocks until the clients' deadline at most."""
        asked: defaultdict[str, list[tuple[TargetSession, DraftRow]]] = defaultdict(list)
        for session, row in rows:
            asked[session.address].append((session, row))
        drafters = [self._drafter(address) for address in asked]
        messages = [[row for _, row in asked[address]] for address in asked]
        in_parallel = self._threads.map if len(drafters) > 1 else map
        replies = in_parallel(_Drafter.exchange, drafters, messages)
        proposals: dict[TargetSession, Drafted] = {}
        for drafter, sent, reply in zip(drafters, asked.values(), replies, strict=True):
            self.counters["exchanges"] += 1
            if reply is None:
                self.counters[drafter.client.failure] += len(sent)
                continue
            for session, row in sent:
                drafted = reply.drafts.get(row.session)
                session.acknowledge(row, drafted=drafted is not None)
                if drafted is None:
                    self.counters["no_draft"] += 1
                elif any(((ids < 0) | (ids >= self._vocab_size)).any() for ids in (drafted.tokens, drafted.q_ids)):
                    self.counters["broken"] += 1
                elif drafted.tokens.size:
                    proposals[session] = drafted
        return proposals

    def close(self, session: TargetSession) -> None:
        """The request ended. The next message to its drafter reports it."""
        closed = self._drafter(session.address).closed
        closed.append(session.id)
        del closed[:-MAX_CLOSED]

    def flush(self, busy: Collection[str] | None = None) -> None:
        """Report ended sessions to the drafters that get no message soon, and close connections that are not needed.

        busy: the drafters that running requests have sessions with. One that did not answer last time is left for
        later. None: no request runs.
        """
        now = self._clock()
        for address, drafter in list(self._drafters.items()):
            if busy is not None and address in busy:
                drafter.needed = now
                continue
            if drafter.closed and not (busy is not None and drafter.failed):
                drafter.exchange([])
                self.counters["exchanges"] += 1
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
            self._drafters[address] = _Drafter(self._connect(address), self._clock())
        return self._drafters[address]
