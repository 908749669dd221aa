"""One message per step and drafter: the rows of all running requests go out, checked proposals come back."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from kv_transfer.drafts import DraftReply, DraftRequest, DraftRow, SessionState
from kv_transfer.messages import Int32Array
from target_service.drafting.target_session import Proposal, TargetSession, checked_proposal

FALLBACKS = ("timeout", "unreachable", "breaker", "broken", "lost", "no_draft")

MOVE_AFTER = 3
"""Exchanges in a row that a drafter leaves unanswered before its sessions go to another one."""

MOST_CLOSED = 4096
"""Ends of sessions kept for a drafter that cannot be reached; it evicts the others by time."""


class Client(Protocol):
    """What is used of kv_transfer.channel_client.DraftClient, which numbers the messages itself."""

    counters: dict[str, int]

    def exchange(self, request: DraftRequest) -> DraftReply | None: ...

    def close(self) -> None: ...


class Question(NamedTuple):
    """What one request asks in one step. top_m: 0 for one-hot drafts."""

    session: TargetSession
    answer: Int32Array
    drafts: int
    temperature: float
    top_m: int


@dataclass
class _Drafter:
    client: Client
    closed: list[str] = field(default_factory=list)
    pending: list[tuple[Question, DraftRow]] = field(default_factory=list)
    restored: list[SessionState] = field(default_factory=list)
    answered: bool = False
    failures: int = 0  # since it last answered


class DraftExchange:
    """All drafters that the running requests have sessions with.

    connect: makes the client of an address. counters: exchanges (messages), restored, resumed (sessions that drafted
    again after an interruption), moved (to another drafter, because theirs is gone), ahead (drafts that were ready),
    and a request's steps without the drafts it asked for, by reason: those of FALLBACKS.
    """

    def __init__(self, connect: Callable[[str], Client], vocab_size: int) -> None:
        self._connect, self._vocab_size = connect, vocab_size
        self._drafters: dict[str, _Drafter] = {}
        self._threads = ThreadPoolExecutor(thread_name_prefix="draft")
        self.counters: Counter[str] = Counter()

    def ask(self, questions: Iterable[Question]) -> dict[TargetSession, Proposal]:
        """The proposals of those sessions that got one. Blocks for at most the clients' deadline."""
        asked: defaultdict[str, list[Question]] = defaultdict(list)
        for question in questions:
            self._find_home(question.session)
            asked[question.session.address].append(question)
        drafters = [self._prepared(address, rows) for address, rows in asked.items()]
        drafters = [d for d in drafters if d.pending]
        replies = [self._exchange(drafters[0])] if len(drafters) == 1 else self._threads.map(self._exchange, drafters)
        proposals: dict[TargetSession, Proposal] = {}
        for drafter, (reply, reason) in zip(drafters, replies, strict=True):
            self._take(drafter, reply, reason, proposals)
        return proposals

    def close(self, session: TargetSession) -> None:
        """The request ended; its drafter hears of it with the next message."""
        closed = self._drafter(session.address).closed
        closed.append(session.id)
        del closed[:-MOST_CLOSED]

    def flush(self) -> None:
        """Tell the ends of sessions now; for when no further message is to come soon."""
        for drafter in self._drafters.values():
            if drafter.closed:
                drafter.pending, drafter.restored = [], []
                reply, reason = self._exchange(drafter)
                self._take(drafter, reply, reason, {})

    def stats(self) -> dict[str, Any]:
        """Counts since the start, and those of all clients together under `channel`."""
        channel: Counter[str] = Counter()
        for drafter in self._drafters.values():
            channel.update(drafter.client.counters)
        return {
            **{name: self.counters[name] for name in ("exchanges", "restored", "resumed", "moved", "ahead")},
            "fallbacks": {reason: self.counters[reason] for reason in FALLBACKS},
            "channel": dict(channel),
        }

    def shutdown(self) -> None:
        for drafter in self._drafters.values():
            drafter.client.close()
        self._threads.shutdown(wait=False)

    def _find_home(self, session: TargetSession) -> None:
        """Replicas come and go: a session whose drafter is gone goes on at one that answers, where it is restored.

        Where none answers, it waits for its first one, the likeliest to come back.
        """
        if self._drafter(session.address).failures < MOVE_AFTER:
            return
        there = [address for address, other in self._drafters.items() if other.answered and not other.failures]
        home = there[-1] if there else session.origin[0]
        if home != session.address:
            session.move(home)
            self.counters["moved"] += 1

    def _drafter(self, address: str) -> _Drafter:
        if address not in self._drafters:
            self._drafters[address] = _Drafter(self._connect(address))
        return self._drafters[address]

    def _prepared(self, address: str, questions: list[Question]) -> _Drafter:
        drafter = self._drafter(address)
        drafter.pending, drafter.restored = [], []
        for question in questions:
            session = question.session
            sent = session.ask(question.answer, question.drafts, question.temperature, question.top_m)
            if sent is None:
                self.counters["lost"] += 1
                continue
            row, state = sent
            drafter.pending.append((question, row))
            if state is not None:
                drafter.restored.append(state)
        self.counters["restored"] += len(drafter.restored)
        return drafter

    def _exchange(self, drafter: _Drafter) -> tuple[DraftReply | None, str]:
        """The reply, or None and the reason."""
        rows = [row for _, row in drafter.pending]
        before = Counter(drafter.client.counters)
        reply = drafter.client.exchange(DraftRequest(0, rows, drafter.restored, list(drafter.closed)))
        return reply, "" if reply is not None else _failure(Counter(drafter.client.counters) - before)

    def _take(
        self, drafter: _Drafter, reply: DraftReply | None, reason: str, proposals: dict[TargetSession, Proposal]
    ) -> None:
        self.counters["exchanges"] += 1
        drafter.answered |= reply is not None
        drafter.failures = 0 if reply is not None else drafter.failures + 1
        if reply is None:
            for question, _ in drafter.pending:
                self._fall_back(question.session, reason)
            return
        drafter.closed.clear()
        drafts = {draft.session: draft for draft in reply.drafts}
        lost = set(reply.lost)
        for question, row in drafter.pending:
            session, draft = question.session, drafts.get(row.session)
            if row.session in lost:
                session.lost()
                self._fall_back(session, "lost")
                continue
            session.heard(row)
            proposal = checked_proposal(draft, row, self._vocab_size) if draft else None
            if proposal is None:
                self._fall_back(session, "broken" if draft else "no_draft")
            elif proposal.tokens.size:
                proposals[session] = proposal
                self.counters["ahead"] += bool(draft and draft.ahead)
                self.counters["resumed"] += session.drafted()

    def _fall_back(self, session: TargetSession, reason: str) -> None:
        # A drafter that has nothing to say this time is there all the same.
        session.interrupted |= reason != "no_draft"
        self.counters[reason] += 1


def _failure(counted: Counter[str]) -> str:
    """Why an exchange failed, from what the client counted during it."""
    for count, reason in (("timeouts", "timeout"), ("broken", "broken"), ("breaker_opened", "unreachable")):
        if counted[count]:
            return reason
    return "breaker"
