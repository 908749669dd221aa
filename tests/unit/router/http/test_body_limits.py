"""Bodies and headers that are too large or too slow are refused before anything is parsed.

The bodies that a router reads at the same time have a bounded size; the slowest one is given up for the others.
"""

import asyncio
import json

import pytest
from starlette.datastructures import Headers

from router.http import body as http_body
from router.http.body import (
    FREE_BYTES,
    MAX_HEADER_BYTES,
    RETRY_S,
    BodyBudget,
    check_headers,
    read_body,
)
from router.options.errors import RefusedError
from router.options.settings import RouterConfig
from tests.unit.router.asgi_calls import middleware

MOST = RouterConfig().max_body_bytes
CHUNK, SMALL_BODY = bytes(FREE_BYTES + 1), bytes(FREE_BYTES)


@pytest.fixture
def memory(monkeypatch):
    """Sets the memory for all bodies."""
    return lambda size: monkeypatch.setattr(http_body, "MAX_MEMORY_BYTES", size)


class Client:
    """Sends the body's chunks, then nothing more. read: how many chunks were asked for."""

    def __init__(self, *chunks, ends=True):
        self._chunks, self._ends, self.read = list(chunks), ends, 0

    async def receive(self):
        self.read += 1
        if not self._chunks:
            await asyncio.Event().wait()
        chunk = self._chunks.pop(0)
        return {"type": "http.request", "body": chunk, "more_body": bool(self._chunks) or not self._ends}


async def refusal(client, headers):
    with pytest.raises(RefusedError) as raised:
        await read_body(Headers(headers), client.receive, 10, BodyBudget())
    return raised.value


@pytest.mark.parametrize("chunks", [(b"0123456789",), (b"01234", b"", b"56789"), (b"",)])
async def test_a_body_within_the_limit_is_whole(chunks):
    size = str(sum(map(len, chunks)))
    body = await read_body(Headers({"content-length": size}), Client(*chunks).receive, 10, BodyBudget())
    assert body == b"".join(chunks)


@pytest.mark.parametrize("length", ["11", "9" * 30, "0" * 30 + "11"])
async def test_a_declared_length_is_refused_before_a_byte_is_read(length):
    client = Client(b"x")
    error = await refusal(client, {"content-length": length})
    assert (error.status, error.type, client.read) == (413, "RequestTooLargeError", 0)


async def test_a_body_without_length_is_refused_where_it_exceeds_the_limit():
    client = Client(b"0123456789", b"0", *[b"x"] * 100)
    assert (await refusal(client, {"transfer-encoding": "chunked"})).status == 413
    assert client.read == 2


@pytest.mark.parametrize("length", ["-1", "x", "1.5", "\u0663", ""])
async def test_a_wrong_length_is_refused(length):
    headers = Headers(raw=[(b"content-length", length.encode("latin-1", "replace"))])
    if length == "\u0663":
        headers = Headers(raw=[(b"content-length", b"\xb3")])  # a digit to str.isdigit, not to HTTP
    with pytest.raises(RefusedError) as raised:
        await read_body(headers, Client(b"x").receive, 10, BodyBudget())
    assert raised.value.status == 400


@pytest.mark.parametrize("client", [Client(ends=False), Client(b"01", b"2", ends=False)])
async def test_a_body_that_does_not_end_times_out(client, monkeypatch):
    monkeypatch.setattr(http_body, "TIMEOUT_S", 0.01)
    error = await refusal(client, {"content-length": "9"})
    assert (error.status, error.type) == (408, "RequestTimeoutError")


async def test_a_client_that_is_gone_ends_the_body():
    messages = [{"type": "http.request", "body": b"01", "more_body": True}, {"type": "http.disconnect"}]

    async def receive():
        return messages.pop(0)

    assert await read_body(Headers({}), receive, 10, BodyBudget()) == b"01"


def test_headers():
    check_headers(Headers({"a": "x" * (MAX_HEADER_BYTES - 1)}))
    with pytest.raises(RefusedError) as raised:
        check_headers(Headers({"a": "x" * MAX_HEADER_BYTES}))
    assert raised.value.status == 431


@pytest.mark.parametrize(
    ("headers", "status"),
    [({"content-length": "11"}, 413), ({"a": "x" * MAX_HEADER_BYTES}, 431), ({"content-length": "x"}, 400)],
)
async def test_the_client_gets_openais_error_and_the_app_nothing(headers, status):
    async def app(scope, receive, send):
        raise AssertionError("the app was called")

    sent = []

    async def send(message):
        sent.append(message)

    limited = middleware(app, RouterConfig(max_body_bytes=10))
    scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": Headers(headers).raw}
    await limited(scope, Client(b"x" * 11).receive, send)
    assert sent[0]["status"] == status
    assert json.loads(sent[1]["body"])["error"]["code"] == status


class Body:
    """A body that is being read; `send` gives it its next chunk."""

    def __init__(self, budget):
        self._messages = asyncio.Queue()
        self.task = asyncio.create_task(read_body(Headers({}), self._messages.get, MOST, budget))

    async def send(self, chunk=CHUNK, *, last=False):
        """Also waits until every reader has seen what became of its body."""
        self._messages.put_nowait({"type": "http.request", "body": chunk, "more_body": not last})
        for _ in range(6):
            await asyncio.sleep(0)

    async def hang_up(self):
        self._messages.put_nowait({"type": "http.disconnect"})
        await asyncio.wait([self.task], timeout=30)

    def is_given_up(self):
        if not self.task.done() or self.task.exception() is None:
            return False
        error = self.task.exception()
        assert isinstance(error, RefusedError)
        assert (error.status, error.retry_after_s) == (503, RETRY_S)
        return True


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.mark.parametrize("bound", [10, 10**6], ids=["bounded", "not bounded"])
async def test_many_slow_bodies_have_a_bounded_size(bound, memory):
    """With a bound that is never reached, the control, all of them are held."""
    memory(bound * len(CHUNK))
    budget = BodyBudget()
    bodies = [Body(budget) for _ in range(50)]
    most = 0
    for body in bodies:
        await body.send()
        most = max(most, budget.held_bytes)
    assert most == min(bound, 50) * len(CHUNK)
    assert sum(body.is_given_up() for body in bodies) == 50 - min(bound, 50)
    for body in bodies:
        await body.hang_up()
    assert budget.held_bytes == 0


async def test_a_fast_body_passes_slow_ones(memory):
    clock = Clock()
    memory(4 * len(CHUNK))
    budget = BodyBudget(clock)
    slow = []
    for clock.now in (0.0, 1.0, 2.0, 3.0):
        slow.append(Body(budget))
        await slow[-1].send()
    clock.now = 20.0
    fast = Body(budget)
    for last in (False, False, True):
        await fast.send(last=last)
    assert await fast.task == 3 * CHUNK
    assert [body.is_given_up() for body in slow] == [True, True, True, False]
    await slow[3].send(last=True)
    assert await slow[3].task == 2 * CHUNK


async def test_the_body_that_is_itself_the_slowest_is_given_up(memory):
    clock = Clock()
    memory(2 * len(CHUNK))
    budget = BodyBudget(clock)
    slow = Body(budget)
    await slow.send(SMALL_BODY)
    clock.now = 20.0
    others = [Body(budget), Body(budget)]
    for other in others:
        await other.send()
    await slow.send()
    assert slow.is_given_up()
    for other in others:
        await other.send(b"", last=True)
        assert await other.task == CHUNK


async def test_small_bodies_are_read_beside_large_slow_ones(memory):
    memory(len(CHUNK))
    budget = BodyBudget()
    large = Body(budget)
    await large.send()
    small = [Body(budget) for _ in range(50)]
    for body in small:
        await body.send(SMALL_BODY[: len(SMALL_BODY) // 2])
        await body.send(SMALL_BODY[: len(SMALL_BODY) // 2], last=True)
        assert await body.task == SMALL_BODY
    await large.send(last=True)
    assert await large.task == 2 * CHUNK


async def test_one_body_alone_may_exceed_the_budget(memory):
    memory(1)
    alone = Body(BodyBudget())
    await alone.send()
    await alone.send(last=True)
    assert await alone.task == 2 * CHUNK


async def test_a_body_that_ends_otherwise_leaves_no_bytes(memory):
    memory(10**9)
    budget = BodyBudget()
    too_large = [bytes(MOST), b"x"]
    body = Body(budget)
    for chunk in too_large:
        await body.send(chunk)
    assert body.task.exception().status == 413
    cancelled = Body(budget)
    await cancelled.send()
    cancelled.task.cancel()
    await asyncio.gather(cancelled.task, return_exceptions=True)
    assert budget.held_bytes == 0


async def test_the_bodies_of_all_requests_of_a_router_count_together(memory):
    sent, reached = {}, []

    async def app(scope, receive, send):
        reached.append(scope["name"])

    memory(len(CHUNK))
    limited = middleware(app)

    def ask(name, messages):
        async def send(message):
            sent.setdefault(name, []).append(message)

        scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": [], "name": name}
        return asyncio.create_task(limited(scope, messages.get, send))

    first, second = asyncio.Queue(), asyncio.Queue()
    slow = ask("slow", first)
    first.put_nowait({"type": "http.request", "body": CHUNK, "more_body": True})
    await asyncio.sleep(0.02)
    fast = ask("fast", second)
    second.put_nowait({"type": "http.request", "body": CHUNK, "more_body": False})
    await asyncio.gather(slow, fast)
    assert reached == ["fast"]
    start, body = sent["slow"]
    assert (start["status"], dict(start["headers"])[b"retry-after"]) == (503, b"5")
    assert json.loads(body["body"])["error"]["type"] == "ServiceUnavailableError"


async def test_a_body_whose_time_is_over_in_this_moment_can_be_given_up(memory):
    """Its time is over, and its task has not run since. The body that needs its place must not fail for that."""
    clock = Clock()
    memory(2 * len(CHUNK))
    budget = BodyBudget(clock)
    late = asyncio.create_task(read_late(budget, expiring := []))
    for _ in range(2):
        await asyncio.sleep(0)
    assert expiring[0].expired()
    assert not late.done()
    clock.now = 1.0
    with budget.reading(asyncio.Timeout(None)) as reading:
        budget.grown(reading, 2 * len(CHUNK))
        assert budget.held_bytes == 2 * len(CHUNK)
    with pytest.raises(TimeoutError):
        await late


async def read_late(budget, timeouts):
    """A body whose time-out expires at once."""
    async with asyncio.timeout(0.0) as timeout:
        with budget.reading(timeout) as reading:
            timeouts.append(timeout)
            budget.grown(reading, len(CHUNK))
            await asyncio.Event().wait()
