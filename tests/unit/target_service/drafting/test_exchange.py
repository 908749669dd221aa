"""The exchange: one message per drafter and step, the counter of each failure, and drafting that goes on."""

import numpy as np
import pytest

from kv_transfer.drafts import Drafted, DraftReply, DraftRequest, DraftRow
from target_service.drafting.exchange import FORGET_AFTER_S, DraftExchange
from target_service.drafting.session import TargetSession

ANSWER = np.array([4, 5], np.int32)


class ScriptedClient:
    """Answers each row with one draft, or fails in the configured way."""

    def __init__(self) -> None:
        self.counters = {"timeouts": 0}
        self.failure = ""
        self.requests: list[DraftRequest] = []
        self.fails: str | None = None
        self.token = 9
        self.closed = False

    def exchange(self, request: DraftRequest) -> DraftReply | None:
        self.requests.append(request)
        if self.fails is not None:
            self.failure = self.fails
            self.counters["timeouts"] += self.fails == "timeout"
            return None
        return DraftReply({row.session: Drafted(np.array([self.token], np.int32)) for row in request.rows})

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def clients() -> dict[str, ScriptedClient]:
    return {address: ScriptedClient() for address in ("a:1", "b:1")}


@pytest.fixture
def exchange(clients: dict[str, ScriptedClient]) -> DraftExchange:
    return DraftExchange(clients.__getitem__, 20)


def request(address: str = "a:1", id: str = "s") -> tuple[TargetSession, DraftRow]:
    session = TargetSession(address, id)
    return session, session.ask(ANSWER, 3, 0.0, 0)


def test_one_message_for_each_drafter(exchange: DraftExchange, clients: dict[str, ScriptedClient]) -> None:
    asked = [request("a:1", "s"), request("b:1", "s"), request("a:1", "t")]
    proposals = exchange.ask(asked)
    assert [proposals[session].tokens.tolist() for session, _ in asked] == [[9]] * 3
    assert [[row.session for row in r.rows] for r in clients["a:1"].requests] == [["s", "t"]]
    assert [[row.session for row in r.rows] for r in clients["b:1"].requests] == [["s"]]
    assert exchange.stats()["exchanges"] == 2


def test_nothing_to_ask_is_no_call(exchange: DraftExchange) -> None:
    assert exchange.ask([]) == {}
    assert exchange.stats()["exchanges"] == 0


@pytest.mark.parametrize("reason", ["timeout", "broken", "unreachable", "breaker"])
def test_failures_are_told_apart_and_drafting_goes_on(
    exchange: DraftExchange, clients: dict[str, ScriptedClient], reason: str
) -> None:
    asked = request()
    clients["a:1"].fails = reason
    assert exchange.ask([asked]) == {}
    clients["a:1"].fails = None
    assert exchange.ask([asked])
    assert exchange.ask([asked])
    stats = exchange.stats()
    assert stats["fallbacks"] == {**dict.fromkeys(stats["fallbacks"], 0), reason: 1}


def test_a_draft_that_cannot_be_verified_is_counted_as_broken(
    exchange: DraftExchange, clients: dict[str, ScriptedClient]
) -> None:
    for broken, token in enumerate((20, -1), 1):
        clients["a:1"].token = token
        assert exchange.ask([request()]) == {}
        assert exchange.stats()["fallbacks"]["broken"] == broken


def test_ended_sessions_are_reported_until_the_drafter_answers(
    exchange: DraftExchange, clients: dict[str, ScriptedClient]
) -> None:
    client = clients["a:1"]
    exchange.close(request(id="old")[0])
    client.fails = "breaker"
    exchange.ask([request()])
    client.fails = None
    exchange.ask([request()])
    exchange.ask([request()])
    assert [r.closed for r in client.requests] == [["old"], ["old"], []]
    exchange.flush()
    assert len(client.requests) == 3
    exchange.close(request(id="last")[0])
    exchange.flush()
    assert (client.requests[-1].closed, client.requests[-1].rows) == (["last"], [])


def test_ends_are_reported_in_a_busy_step_only_to_drafters_that_no_row_would_tell(
    exchange: DraftExchange, clients: dict[str, ScriptedClient]
) -> None:
    """Each session has its place on its drafter until then, also while the target runs answers without drafts."""
    ended = {address: request(address) for address in clients}
    exchange.ask(ended.values())
    for asked in ended.values():
        exchange.close(asked[0])
    exchange.flush({"a:1", "b:1"})
    assert [len(client.requests) for client in clients.values()] == [1, 1]
    exchange.flush({"a:1"})
    assert [[r.closed for r in client.requests] for client in clients.values()] == [[[]], [[], ["s"]]]
    clients["a:1"].fails = "timeout"
    for busy in (set(), set(), None):
        exchange.flush(busy)
    assert len(clients["a:1"].requests) == 3, "one that does not answer is asked again only when nothing runs"


def test_a_connection_that_nobody_needs_is_closed_and_its_counts_stay(clients: dict[str, ScriptedClient]) -> None:
    now = [0.0]
    exchange = DraftExchange(clients.__getitem__, 20, clock=lambda: now[0])
    gone, used = request("a:1"), request("b:1")
    exchange.ask([gone, used])
    exchange.close(gone[0])
    clients["a:1"].fails = "timeout"
    exchange.flush(None)
    for now[0] in (FORGET_AFTER_S, FORGET_AFTER_S + 1):
        assert not clients["a:1"].closed
        exchange.flush({"b:1"})
    assert (clients["a:1"].closed, clients["b:1"].closed) == (True, False)
    assert exchange.stats()["channel"]["timeouts"] == 1


def test_shutdown_closes_the_clients(exchange: DraftExchange, clients: dict[str, ScriptedClient]) -> None:
    exchange.ask([request()])
    exchange.shutdown()
    assert clients["a:1"].closed
