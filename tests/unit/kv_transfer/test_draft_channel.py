"""Both ends of the draft channel on loopback: whatever the peer does, an exchange gives a valid reply or None."""

import asyncio
import logging
import threading
from collections.abc import Iterator
from concurrent import futures
from dataclasses import replace

import grpc
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv_transfer.codec import encode
from kv_transfer.draft_channel import METHOD, SERVICE, SHORTEST, TIMES, DraftServer, ExchangeDeadline
from kv_transfer.drafts import DraftReply, DraftRequest, DraftRow
from skim_common.errors import EngineUnavailableError, SessionLostError
from tests.unit.kv_transfer.channel_peer import HOST, REQUEST, answer, client, honest, serving, until
from tests.unit.kv_transfer.message_strategies import same


class Held:
    """A handler that answers only after it is released. begun, cancelled: numbers of calls."""

    def __init__(self) -> None:
        self.let_go = threading.Event()
        self.begun = 0
        self.cancelled = 0

    async def __call__(self, request: DraftRequest) -> DraftReply:
        self.begun += 1
        try:
            await asyncio.to_thread(self.let_go.wait)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return answer(request)


@pytest.fixture
def held() -> Iterator[Held]:
    it = Held()
    yield it
    it.let_go.set()


def test_replies_come_back():
    with serving(honest) as address, client(address) as it:
        for _ in range(3):
            assert same(it.exchange(REQUEST), answer(REQUEST))
        assert it.counters == {"exchanges": 3, "timeouts": 0, "breaker_opened": 0, "broken": 0}


def test_a_message_larger_than_grpc_allows_by_default():
    large = DraftRequest([DraftRow("a", 0, np.ones(2**21, np.int32), 2**21)])
    with serving(honest) as address, client(address) as it:
        assert same(it.exchange(large), answer(large))


def test_the_handler_sees_the_request():
    seen = []

    async def handler(request: DraftRequest) -> DraftReply:
        seen.append(request)
        return answer(request)

    with serving(handler) as address, client(address) as it:
        it.exchange(REQUEST)
    [request] = seen
    assert same(request, REQUEST)


def test_a_late_request_is_cancelled_and_its_reply_never_comes(held):
    with serving(held) as address, client(address) as it:
        held.let_go.set()
        assert it.exchange(REQUEST)
        held.let_go.clear()
        it._deadline = ExchangeDeadline(0.05)
        assert it.exchange(REQUEST) is None
        assert it.failure == "timeout"
        until(lambda: held.cancelled == 1)
        held.let_go.set()
        it._deadline = ExchangeDeadline(60)
        other = replace(REQUEST, rows=REQUEST.rows[:1])
        assert same(it.exchange(other), answer(other))
        assert it.counters == {"exchanges": 2, "timeouts": 1, "breaker_opened": 0, "broken": 0}


def test_one_held_stream_holds_no_other(held):

    async def handler(request: DraftRequest) -> DraftReply:
        return await (held if request.closed else honest)(request)

    with serving(handler) as address, client(address, deadline_s=0.01) as slow, client(address) as quick:
        slow.exchange(replace(REQUEST, closed=["x"]))
        until(lambda: held.begun)
        assert quick.exchange(REQUEST)


def test_it_pauses_while_the_replica_does_not_answer(held, caplog):
    now = [0.0]
    with serving(held) as address, client(address, deadline_s=0.01, pauses_s=(1, 3), clock=lambda: now[0]) as it:
        for pauses, begin in ((1, 0.0), (2, 1.0), (3, 3.0), (4, 6.0)):  # 1, 2, 3 and 3 seconds long
            now[0] = begin - 0.01
            assert it.exchange(REQUEST) is None
            assert it.counters["breaker_opened"] == pauses - 1
            now[0] = begin
            for _ in range(5):
                assert it.exchange(REQUEST) is None
            assert it.failure == "breaker"
            assert (it.counters["timeouts"], it.counters["breaker_opened"]) == (2 + pauses, pauses)
        warnings = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
        assert warnings == [f"No drafts from {address}, next try in 1.0 s: no answer within 0.01 s"]
        held.let_go.set()
        now[0] = 9.0
        it._deadline = ExchangeDeadline(60)
        assert it.exchange(REQUEST)
        assert it.exchange(REQUEST)
        assert (it.counters["exchanges"], it.counters["breaker_opened"]) == (2, 4)


def test_an_answer_starts_the_count_of_failures_again(held):
    with serving(held) as address, client(address) as it:
        for _ in range(3):
            held.let_go.clear()
            it._deadline = ExchangeDeadline(0.05)
            assert [it.exchange(REQUEST), it.exchange(REQUEST)] == [None, None]
            held.let_go.set()
            it._deadline = ExchangeDeadline(60)
            assert it.exchange(REQUEST)
        assert (it.counters["timeouts"], it.counters["breaker_opened"]) == (6, 0)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (SessionLostError("there is no session a"), "ABORTED, there is no session a"),
        (RuntimeError("a bug"), "UNKNOWN, Unexpected <class 'RuntimeError'>: a bug"),
    ],
)
def test_a_handler_that_fails(error, said, caplog):
    fails = [True]

    async def handler(request: DraftRequest) -> DraftReply:
        if fails.pop():
            raise error
        fails.append(False)
        return answer(request)

    with serving(handler) as address, client(address) as it:
        assert it.exchange(REQUEST) is None
        assert it.counters["breaker_opened"] == 1
        assert f"next try in 0.0 s: {said}" in caplog.text
        fails.append(False)
        until(lambda: it.exchange(REQUEST))


def other_session(reply: DraftReply) -> DraftReply:
    return DraftReply({"c": reply.drafts["a"]})


def too_many(reply: DraftReply) -> DraftReply:
    return DraftReply({"a": replace(reply.drafts["a"], tokens=np.ones(9, np.int32))})


@pytest.mark.parametrize("lie", [other_session, too_many])
def test_replies_to_something_else(lie):
    honest_now = []

    async def handler(request: DraftRequest) -> DraftReply:
        return answer(request) if honest_now else lie(answer(request))

    with serving(handler) as address, client(address) as it:
        for broken in (1, 2, 3):
            assert it.exchange(REQUEST) is None
            assert (it.failure, it.counters["broken"]) == ("broken", broken)
        assert it.counters["breaker_opened"] == 1
        honest_now.append(True)
        until(lambda: it.exchange(REQUEST))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"HTTP/1.1 200 OK",
        encode(REQUEST),
        encode(answer(REQUEST))[:-1],
    ],
)
def test_replies_that_are_none(body):
    """The peer is not a DraftServer."""
    server = grpc.server(futures.ThreadPoolExecutor(2))
    method = grpc.stream_stream_rpc_method_handler(lambda bodies, _context: (body for _ in bodies))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {METHOD: method}),))
    port = server.add_insecure_port(f"{HOST}:0")
    server.start()
    try:
        with client(f"{HOST}:{port}") as it:
            assert it.exchange(REQUEST) is None
            assert it.counters["broken"] == 1
    finally:
        server.stop(None).wait()


def test_a_peer_that_ends_the_stream():
    """With a status of success, as no DraftServer does."""
    server = grpc.server(futures.ThreadPoolExecutor(2))
    method = grpc.stream_stream_rpc_method_handler(lambda _bodies, _context: iter([]))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {METHOD: method}),))
    port = server.add_insecure_port(f"{HOST}:0")
    server.start()
    try:
        with client(f"{HOST}:{port}") as it:
            until(lambda: it.exchange(REQUEST) or it.counters["breaker_opened"] == 2)
            assert it.counters["exchanges"] == 0
    finally:
        server.stop(None).wait()


def test_a_request_that_cannot_be_sent():
    wrong = DraftRequest([DraftRow("a", 0, np.zeros(1, np.int64), 2)])
    with serving(honest) as address, client(address) as it:
        assert it.exchange(wrong) is None
        assert it.counters["broken"] == 1
        assert it.exchange(REQUEST)


def test_a_peer_that_sends_no_request():
    with serving(honest) as address, grpc.insecure_channel(address) as channel:
        call = channel.stream_stream(f"/{SERVICE}/{METHOD}")(iter([b"nonsense"]))
        with pytest.raises(grpc.RpcError, match="these bytes are not a message of Skim"):
            next(call)


@pytest.mark.parametrize("address", [f"{HOST}:1", "nowhere.invalid:1", "garbage", ""])
def test_nobody_there(address):
    with client(address) as it:
        assert it.exchange(REQUEST) is None
        assert (it.failure, it.counters["breaker_opened"]) == ("unreachable", 1)


@pytest.mark.parametrize("shown", [None, "", "secre", "secret2", "sécret"])
def test_a_wrong_token_is_refused(shown, caplog):
    calls = []

    async def handler(request: DraftRequest) -> DraftReply:
        calls.append(request)
        return answer(request)

    with serving(handler, token="secret") as address, client(address, token=shown) as it:
        assert it.exchange(REQUEST) is None
        until(lambda: it.exchange(REQUEST) or it.counters["breaker_opened"] == 3)
        assert not calls
        assert it.counters["exchanges"] == 0
        assert "UNAUTHENTICATED, the token is wrong" in caplog.text
        assert "secret" not in caplog.text


@pytest.mark.parametrize("token", ["secret", "sécret ☃"])
def test_the_right_token(token):
    with serving(honest, token=token) as address, client(address, token=token) as it:
        assert it.exchange(REQUEST)


def test_a_port_that_is_taken():
    with serving(honest) as address:
        port = int(address.rpartition(":")[2])
        with pytest.raises(EngineUnavailableError, match=f"cannot listen on {address}"), serving(honest, port):
            pass


async def test_starts_and_stops_on_the_running_loop():
    server = DraftServer(honest, HOST)
    port = await server.start()
    with client(f"{HOST}:{port}") as it:
        assert await asyncio.to_thread(it.exchange, REQUEST)
        await server.stop()
        await server.stop()
        assert await asyncio.to_thread(it.exchange, REQUEST) is None


def test_closing_ends_the_client_s_threads():
    before = set(threading.enumerate())
    with serving(honest) as address, client(address) as it:
        ours = set(threading.enumerate())
        assert it.exchange(REQUEST)
        assert len(set(threading.enumerate()) - ours) <= 3
        it.close()
        it.close()
        until(lambda: set(threading.enumerate()) <= ours)
        assert it.exchange(REQUEST)
    until(lambda: set(threading.enumerate()) <= before)


def test_the_first_exchange_has_the_longest_deadline() -> None:
    assert ExchangeDeadline(0.25).seconds() == 0.25


def test_it_follows_what_exchanges_take() -> None:
    deadline = ExchangeDeadline(0.25)
    for _ in range(50):
        deadline.observe(0.01)
    assert abs(deadline.seconds() - TIMES * 0.01) < 1e-9
    for _ in range(50):
        deadline.observe(0.0001)
    assert deadline.seconds() == SHORTEST * 0.25


def test_misses_lengthen_it_up_to_the_longest() -> None:
    deadline, lasted = ExchangeDeadline(0.25), []
    deadline.observe(0.01)
    while not lasted or lasted[-1] < 0.25:
        lasted.append(deadline.seconds())
        deadline.observe(lasted[-1])
    assert lasted == sorted(lasted)
    assert len(lasted) <= 6


@given(st.floats(0.001, 5.0), st.lists(st.floats(0.0, 10.0), max_size=20))
def test_it_keeps_its_bounds(longest_s: float, took: list[float]) -> None:
    deadline = ExchangeDeadline(longest_s)
    for seconds in took:
        deadline.observe(seconds)
        assert SHORTEST * longest_s <= deadline.seconds() <= longest_s
