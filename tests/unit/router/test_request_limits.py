"""Bodies and headers that are too large or too slow are refused before anything is parsed."""

import asyncio
import json

import pytest
from starlette.datastructures import Headers

from router.body_budget import BodyBudget
from router.middleware import SkimMiddleware
from router.options import PrefillOptions, SpeculationOptions
from router.refusals import RefusedError
from router.request_limits import MAX_HEADER_BYTES, BodyLimits, check_headers, read_body

SMALL = BodyLimits(max_bytes=10)


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


async def refusal(client, headers, limits=SMALL):
    with pytest.raises(RefusedError) as raised:
        await read_body(Headers(headers), client.receive, limits, BodyBudget(limits.memory_bytes))
    return raised.value


@pytest.mark.parametrize("chunks", [(b"0123456789",), (b"01234", b"", b"56789"), (b"",)])
async def test_a_body_within_the_limit_is_whole(chunks):
    size = str(sum(map(len, chunks)))
    body = await read_body(Headers({"content-length": size}), Client(*chunks).receive, SMALL, BodyBudget(99))
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
        await read_body(headers, Client(b"x").receive, SMALL, BodyBudget(99))
    assert raised.value.status == 400


@pytest.mark.parametrize("client", [Client(ends=False), Client(b"01", b"2", ends=False)])
async def test_a_body_that_does_not_end_times_out(client):
    error = await refusal(client, {"content-length": "9"}, BodyLimits(max_bytes=10, timeout_s=0.01))
    assert (error.status, error.type) == (408, "RequestTimeoutError")


async def test_a_client_that_is_gone_ends_the_body():
    messages = [{"type": "http.request", "body": b"01", "more_body": True}, {"type": "http.disconnect"}]

    async def receive():
        return messages.pop(0)

    assert await read_body(Headers({}), receive, SMALL, BodyBudget(99)) == b"01"


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

    middleware = SkimMiddleware(app, PrefillOptions(), SpeculationOptions(), limits=SMALL)
    scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": Headers(headers).raw}
    await middleware(scope, Client(b"x" * 11).receive, send)
    assert sent[0]["status"] == status
    assert json.loads(sent[1]["body"])["error"]["code"] == status
