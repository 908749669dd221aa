"""A router answers from its first second, whatever its pools do."""

import asyncio
import json
import re
from contextlib import asynccontextmanager

import httpx
import pytest
from fastapi import FastAPI

from router.http import gate as start_up
from router.http.gate import NOT_BUILT, WAITING, Gate
from skim_common.errors import EngineUnavailableError, ModelError, SkimError
from tests.unit.router.conftest import until


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr(start_up, "RETRY_S", (0.0, 0.0))


@asynccontextmanager
async def running(app: Gate):
    """`app` as Serve runs it: its start, the lifespan's start before the first request, its end after the last."""
    await app.start()
    incoming, sent = asyncio.Queue(), asyncio.Queue()
    living = asyncio.create_task(app({"type": "lifespan"}, incoming.get, sent.put))
    await incoming.put({"type": "lifespan.startup"})
    assert (await sent.get())["type"] == "lifespan.startup.complete"
    try:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://router") as client:
            yield client
    finally:
        await incoming.put({"type": "lifespan.shutdown"})
        assert (await sent.get())["type"] == "lifespan.shutdown.complete"
        await living


async def nobody():
    """Whether another router serves, where this is the only one."""
    return False


def real_app(events):
    """An app with a lifespan of its own, which notes its start and its end."""

    @asynccontextmanager
    async def lifespan(app):
        events.append("start")
        yield
        events.append("end")

    app = FastAPI(lifespan=lifespan)
    app.get("/health")(lambda: "fine")
    return app


async def test_every_request_is_answered_until_the_pools_are_there():
    pools, events = asyncio.Event(), []

    async def build():
        await pools.wait()
        return real_app(events)

    app = Gate(build, startup_timeout_s=0.0, others_serve=nobody)
    async with running(app) as client:
        for method, path in (("GET", "/health"), ("POST", "/v1/chat/completions"), ("GET", "/v1/models")):
            answer = await client.request(method, path)
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
            assert answer.json()["error"]["type"] == "ServiceUnavailableError"
        assert app.problem == (WAITING, False)
        pools.set()
        await until(lambda: app.problem.text is None)
        assert (await client.get("/health")).json() == "fine"
        assert events == ["start"]
    assert events == ["start", "end"]


@pytest.mark.parametrize(
    ("error", "problem", "failed"),
    [
        (EngineUnavailableError("a replica died"), "a replica died", False),
        (ModelError("two tokenizers"), "two tokenizers", True),
        (RuntimeError("in /secret/path"), f"{NOT_BUILT} (RuntimeError: in /secret/path)", True),
    ],
)
async def test_what_goes_wrong_is_told_and_tried_again(error, problem, failed):
    mended, tried = asyncio.Event(), []

    async def build():
        tried.append(1)
        if len(tried) == 3:
            await mended.wait()
            return real_app([])
        raise error

    app = Gate(build, startup_timeout_s=3600.0 if failed else 0.0, others_serve=nobody)
    async with running(app) as client:
        await until(lambda: len(tried) == 3)
        assert app.problem == (problem, failed)
        refused = await client.get("/health")
        assert refused.status_code == 503
        assert "secret" not in json.dumps(refused.json())
        mended.set()
        await until(lambda: app.problem.text is None)
        assert (await client.get("/health")).status_code == 200
        assert app.problem.failed is False


async def test_a_router_that_ends_while_it_waits_ends_at_once():
    async def build():
        await asyncio.Event().wait()

    async with running(Gate(build, startup_timeout_s=0.0, others_serve=nobody)):
        pass


async def test_a_start_waits_a_while_for_the_app():
    """So that an application that Serve calls running answers."""

    async def build():
        await asyncio.sleep(0.01)
        return real_app([])

    app = Gate(build, startup_timeout_s=3600.0, others_serve=nobody)
    async with running(app) as client:
        assert app.problem.text is None
        assert (await client.get("/health")).status_code == 200


class Others:
    """Whether other routers serve: `there` may change. asked: how often that was asked."""

    def __init__(self, there=True):
        self.there, self.asked = there, 0

    async def __call__(self):
        self.asked += 1
        return self.there


@pytest.mark.parametrize("there", [True, False])
async def test_beside_routers_that_serve_a_router_starts_only_with_its_app(there):
    """Serve sends it requests, and stops an old router, as soon as it has started. Control: the first router of all."""
    pools, others = asyncio.Event(), Others(there)

    async def build():
        await pools.wait()
        return real_app([])

    app = Gate(build, startup_timeout_s=0.0, others_serve=others)
    start = asyncio.create_task(app.start())
    if there:
        await until(lambda: others.asked > 3)
        assert not start.done()
        pools.set()
    await start
    assert (app.problem.text is None) is there
    pools.set()
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://router") as client:
        await until(lambda: app.problem.text is None)
        assert (await client.get("/health")).status_code == 200


async def test_a_router_whose_others_are_gone_starts_without_an_app():
    """Then nothing is lost by its 503, and Serve would otherwise have no router."""
    others = Others()
    app = Gate(asyncio.Event().wait, startup_timeout_s=0.0, others_serve=others)
    start = asyncio.create_task(app.start())
    await until(lambda: others.asked > 3)
    others.there = False
    await start
    assert app.problem.text == WAITING


@pytest.mark.parametrize(
    ("error", "problem"),
    [(ModelError("two tokenizers"), "two tokenizers"), (RuntimeError("x"), f"{NOT_BUILT} (RuntimeError: x)")],
)
async def test_beside_routers_that_serve_a_start_fails_for_a_mistake(error, problem):
    """So the old routers keep running, and who deployed is told."""
    tried = []

    async def build():
        tried.append(1)
        raise error

    with pytest.raises(SkimError, match=f"^{re.escape(problem)}$"):
        await Gate(build, startup_timeout_s=3600.0, others_serve=Others()).start()
    attempts = len(tried)
    await asyncio.sleep(0.01)
    assert len(tried) == attempts, "it goes on after its end"


async def test_beside_routers_that_serve_a_pool_that_is_down_is_waited_for():
    tried, others = [], Others()

    async def build():
        tried.append(1)
        if len(tried) < 5:
            raise EngineUnavailableError("a replica died")
        return real_app([])

    app = Gate(build, startup_timeout_s=0.0, others_serve=others)
    await app.start()
    assert app.problem.text is None
