"""A router that leaves closes each connection with its answer, behind a real HTTP server."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest
import uvicorn
from fastapi import FastAPI

from router.http.gate import Gate
from tests.unit.kv_transfer.channel_peer import until


def built(app) -> Gate:
    """A gate whose app is there."""
    gate = Gate(None, 0.0, None)
    gate._app = app
    return gate


@contextmanager
def serving(app: Gate) -> Iterator[str]:
    """The URL of uvicorn with `app`, as in Serve's proxy."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, lifespan="off", log_config=None))
    server.install_signal_handlers = lambda: None
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        until(lambda: server.started)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


@pytest.fixture
def app() -> Gate:
    inner = FastAPI()
    inner.get("/")(lambda: "fine")
    return built(inner)


def test_a_kept_connection_is_closed_with_the_next_answer(app):
    with serving(app) as url, httpx.Client(base_url=url) as client:
        assert "connection" not in client.get("/").headers
        assert app.drain()
        answer = client.get("/")
        assert (answer.status_code, answer.json()) == (200, "fine")
        assert answer.headers["connection"] == "close"


def test_it_is_busy_while_requests_come_or_run():
    async def run() -> list[bool]:
        ended = asyncio.Event()

        async def waits(scope, receive, send) -> None:
            await ended.wait()

        app = built(waits)
        told = [app.drain()]
        request = asyncio.create_task(app({"type": "http"}, None, None))
        await asyncio.sleep(0)
        told += [app.drain(), app.drain()]
        ended.set()
        await request
        return [*told, app.drain()]

    assert asyncio.run(run()) == [False, True, True, False]
