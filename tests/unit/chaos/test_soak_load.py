"""The load of the soak run: requests come whether or not earlier ones are answered, and each answer is judged."""

import asyncio
import json
import random
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from tests.soak.load import Load, Request, Seen, sustainable

REQUEST = Request("/v1/completions", {"stream": False}, frozenset({"known"}))


@asynccontextmanager
async def answering(text: str, status: int = 200, after: int = 0) -> AsyncIterator[tuple[str, threading.Event]]:
    """A server whose first answers wait until `after` requests have come. Its URL, and an event for that moment."""
    enough, told, count = asyncio.Event(), threading.Event(), 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            await each(reader, writer)

    async def each(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal count
        while head := await reader.readuntil(b"\r\n\r\n"):
            size = next(int(line.split(b":")[1]) for line in head.splitlines() if line.startswith(b"Content-Length"))
            await reader.readexactly(size)
            count += 1
            if count >= after:
                enough.set()
                told.set()
            await enough.wait()
            body = json.dumps({"choices": [{"text": text}]}).encode()
            writer.write(b"HTTP/1.1 %d OK\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body))

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", told
    finally:
        server.close()


async def seen(text: str, status: int = 200, after: int = 1) -> Seen:
    async with answering(text, status, after) as (url, told):
        return await Load(url, [REQUEST], 500.0, random.Random(1)).during(lambda: told.wait(60) and None)


@pytest.mark.parametrize(
    ("text", "status", "kind"), [("known", 200, "answered"), ("other", 200, "wrong"), ("known", 503, "refused")]
)
async def test_requests_come_though_none_is_answered(text, status, kind) -> None:
    kinds = (await seen(text, status, after=40)).kinds
    assert set(kinds) == {kind, "left"}
    assert sum(kinds.values()) >= 40


async def test_a_burst_comes_at_once() -> None:
    async with answering("known", after=20) as (url, told):
        load = Load(url, [REQUEST], 1e-9, random.Random(1))
        found = await load.during(lambda: load.burst([REQUEST] * 30) or (told.wait(60) and None))
    assert sum(found.kinds.values()) == 30


async def test_what_is_sustainable_is_measured_with_right_answers_alone() -> None:
    async with answering("known") as (url, _):
        assert await sustainable(url, [REQUEST], 2, 0.1, random.Random(1)) > 0
    async with answering("other") as (url, _):
        with pytest.raises(AssertionError, match="wrong"):
            await sustainable(url, [REQUEST], 2, 0.1, random.Random(1))
