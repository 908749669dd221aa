"""The exchange: one message per drafter and step, the counter of each failure, and drafting that resumes."""

import numpy as np
import pytest

from kv_transfer.drafts import Draft, DraftReply, DraftRequest
from kv_transfer.messages import KeptPrompt, SessionHandle
from target_service.drafting.exchange import MOVE_AFTER, DraftExchange, ProposalRequest
from target_service.drafting.target_session import TargetSession

ANSWER = np.array([4, 5], np.int32)


class ScriptedClient:
    """Answers each row with one draft, or fails in the configured way."""

    def __init__(self) -> None:
        self.counters = {"timeouts": 0, "broken": 0, "breaker_opened": 0}
        self.requests: list[DraftRequest] = []
        self.fails: str | None = None
        self.lost: list[str] = []
        self.token = 9
        self.closed = False

    def exchange(self, request: DraftRequest) -> DraftReply | None:
        self.requests.append(request)
        if self.fails is not None:
            self.counters.update({self.fails: self.counters[self.fails] + 1} if self.fails else {})
            return None
        drafts = [
            Draft(r.session, r.position + r.tokens.size, np.array([self.token], np.int32))
            for r in request.rows
            if r.session not in self.lost
        ]
        return DraftReply(request.sequence, drafts, [r.session for r in request.rows if r.session in self.lost])

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def clients() -> dict[str, ScriptedClient]:
    return {address: ScriptedClient() for address in ("a:1", "b:1")}


@pytest.fixture
def exchange(clients: dict[str, ScriptedClient]) -> DraftExchange:
    return DraftExchange(clients.__getitem__, 20)


def request(address: str = "a:1", id: str = "s") -> ProposalRequest:
    return ProposalRequest(
        TargetSession(SessionHandle(address, id), lambda: KeptPrompt.dense([1, 2])), ANSWER, 3, 0.0, 0
    )


def test_one_message_for_each_drafter(exchange: DraftExchange, clients: dict[str, ScriptedClient]) -> None:
    asked = [request("a:1", "s"), request("b:1", "s"), request("a:1", "t")]
    proposals = exchange.ask(asked)
    assert [proposals[q.session].tokens.tolist() for q in asked] == [[9]] * 3
    assert [[row.session for row in r.rows] for r in clients["a:1"].requests] == [["s", "t"]]
    assert [[row.session for row in r.rows] for r in clients["b:1"].requests] == [["s"]]
    assert exchange.stats()["exchanges"] == 2


def test_nothing_to_ask_is_no_call(exchange: DraftExchange) -> None:
    assert exchange.ask([]) == {}
    assert exchange.stats()["exchanges"] == 0


@pytest.mark.parametrize(
    ("fails", "reason"),
    [("timeouts", "timeout"), ("broken", "broken"), ("breaker_opened", "unreachable"), ("", "breaker")],
)
def test_failures_are_told_apart_and_drafting_resumes(
    exchange: DraftExchange, clients: dict[str, ScriptedClient], fails: str, reason: str
) -> None:
    asked = request()
    clients["a:1"].fails = fails
    assert exchange.ask([asked]) == {}
    clients["a:1"].fails = None
    assert exchange.ask([asked])
    assert exchange.ask([asked])
    stats = exchange.stats()
    assert stats["fallbacks"] == {**dict.fromkeys(stats["fallbacks"], 0), reason: 1}
    assert stats["resumed"] == 1


def test_a_lost_session_is_restored_with_the_next_message(
    exchange: DraftExchange, clients: dict[str, ScriptedClient]
) -> None:
    asked, client = request(), clients["a:1"]
    client.lost = ["s"]
    assert exchange.ask([asked]) == {}
    client.lost = []
    assert exchange.ask([asked])
    [state] = client.requests[1].restored
    assert (state.session, state.answer.tolist(), state.prompt.token_ids.tolist()) == ("s", [4, 5], [1, 2])
    assert client.requests[1].rows[0].position == 2
    stats = exchange.stats()
    assert (stats["fallbacks"]["lost"], stats["restored"], stats["resumed"]) == (1, 1, 1)


def test_a_draft_that_cannot_be_verified_is_counted_as_broken(
    exchange: DraftExchange, clients: dict[str, ScriptedClient]
) -> None:
    clients["a:1"].token = 20
    assert exchange.ask([request()]) == {}
    assert exchange.stats()["fallbacks"]["broken"] == 1


def test_ended_sessions_are_reported_until_the_drafter_answers(
    exchange: DraftExchange, clients: dict[str, ScriptedClient]
) -> None:
    client = clients["a:1"]
    exchange.close(request(id="old").session)
    client.fails = ""
    exchange.ask([request()])
    client.fails = None
    exchange.ask([request()])
    exchange.ask([request()])
    assert [r.closed for r in client.requests] == [["old"], ["old"], []]
    exchange.flush()
    assert len(client.requests) == 3
    exchange.close(request(id="last").session)
    exchange.flush()
    assert (client.requests[-1].closed, client.requests[-1].rows) == (["last"], [])


def test_ends_are_reported_in_a_busy_step_only_to_drafters_that_no_row_would_tell(
    exchange: DraftExchange, clients: dict[str, ScriptedClient]
) -> None:
    """Each session has its place on its drafter until then, also while the target runs answers without drafts."""
    ended = {address: request(address) for address in clients}
    exchange.ask(ended.values())
    for asked in ended.values():
        exchange.close(asked.session)
    exchange.flush({"a:1", "b:1"})
    assert [len(client.requests) for client in clients.values()] == [1, 1]
    exchange.flush({"a:1"})
    assert [[r.closed for r in client.requests] for client in clients.values()] == [[[]], [[], ["s"]]]
    clients["a:1"].fails = "timeouts"
    for busy in (set(), set(), None):
        exchange.flush(busy)
    assert len(clients["a:1"].requests) == 3, "one that does not answer is asked again only when nothing runs"


def test_a_session_moves_to_a_drafter_that_answers_once_its_own_is_gone(
    exchange: DraftExchange, clients: dict[str, ScriptedClient]
) -> None:
    orphan, other = request("a:1", "orphan"), request("b:1", "other")
    exchange.ask([orphan])
    clients["a:1"].fails = ""
    for _ in range(MOVE_AFTER):
        assert not exchange.ask([orphan]), "nowhere to go yet: no other drafter has answered"
    exchange.ask([other])
    assert exchange.ask([orphan])[orphan.session].tokens.tolist() == [9]
    assert [state.session for state in clients["b:1"].requests[-1].restored] == ["orphan"]
    assert (exchange.counters["moved"], exchange.counters["resumed"]) == (1, 1)
    assert orphan.session.address == "b:1"


def test_a_session_that_moved_goes_home_when_nobody_answers(
    exchange: DraftExchange, clients: dict[str, ScriptedClient]
) -> None:
    """Its first replica restarts on the same port; the replica it moved to is gone for good."""
    orphan, other = request("a:1", "orphan"), request("b:1", "other")
    exchange.ask([orphan, other])
    for client in clients.values():
        client.fails = ""
    for _ in range(MOVE_AFTER):
        exchange.ask([orphan])
    for _ in range(MOVE_AFTER):
        exchange.ask([orphan])
        assert orphan.session.address == "b:1"
    clients["a:1"].fails = None
    # A session that is lost a second time waits for one round before it is restored.
    proposals = [exchange.ask([orphan]) for _ in range(3)]
    assert proposals[-1]
    assert orphan.session.address == "a:1"
    assert [state.session for request in clients["a:1"].requests for state in request.restored] == ["orphan"]
    assert (exchange.counters["moved"], exchange.counters["resumed"]) == (2, 1)


def test_a_session_stays_with_a_drafter_that_is_only_slow_once(
    exchange: DraftExchange, clients: dict[str, ScriptedClient]
) -> None:
    asked = request("a:1", "s")
    exchange.ask([asked, request("b:1", "other")])
    clients["a:1"].fails = "timeouts"
    exchange.ask([asked])
    clients["a:1"].fails = None
    assert exchange.ask([asked])
    assert (asked.session.address, exchange.counters["moved"]) == ("a:1", 0)


def test_shutdown_closes_the_clients(exchange: DraftExchange, clients: dict[str, ScriptedClient]) -> None:
    exchange.ask([request()])
    exchange.shutdown()
    assert clients["a:1"].closed
