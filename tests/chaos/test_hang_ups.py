"""A client that hangs up stops the work in both pools."""

import asyncio
import time
from typing import Any

import httpx
import pytest
from ray import serve

from cluster.config.load import config_from_settings
from cluster.serve.app import APP_NAME
from cluster.serve.deployment import apply
from demo_models.documents import make_document
from tests.chaos.conftest import SETTINGS, await_replicas
from tests.chaos.support.lost_replicas import await_running
from tests.e2e.conftest import Served

SHORT, MIDDLE, LONG = (make_document(size, 1) for size in (512, 1100, 6000))


@pytest.fixture(scope="module", autouse=True)
def one_replica_each(served: Served, on_its_ray: None) -> None:
    """Each pool has one replica, so its counters come from the replica that served the request."""
    target = {**SETTINGS["target"], "replicas": 1}
    router = {**SETTINGS["router"], "port": served.port}
    apply(config_from_settings({**SETTINGS, "target": target, "router": router}), progress=lambda line: None)
    await_running(1)
    for pool in ("speculator", "target"):
        await_replicas(pool, 1)


def stats(pool: str) -> dict[str, int]:
    counts: dict[str, int] = serve.get_deployment_handle(pool, APP_NAME).stats.remote().result(timeout_s=30)
    return counts


def await_count(pool: str, name: str, expected: int) -> None:
    """Poll until the pool's counter has the value; fails with the counters after 30 s."""
    deadline = time.monotonic() + 30
    while (counts := stats(pool))[name] != expected:
        assert time.monotonic() < deadline, f"{pool}: {counts}, expected {name} == {expected}"
        time.sleep(0.05)


def body(document: Any, **more: Any) -> dict[str, Any]:
    return {"model": "skim-demo", "messages": document.messages, "max_tokens": 200, **more}


def test_a_finished_request_is_not_an_aborted_one(client: httpx.Client) -> None:
    """Negative control: the counters do not change without a hang-up."""
    client.post("/v1/chat/completions", json=body(SHORT, max_tokens=2)).raise_for_status()
    assert stats("target")["aborted"] == 0


def test_hanging_up_a_stream_aborts_on_the_target(client: httpx.Client) -> None:
    before = stats("target")
    with client.stream("POST", "/v1/chat/completions", json=body(SHORT, stream=True)) as response:
        lines = response.iter_lines()  # httpx closes the stream with its iterator, so this one must live on
        next(line for line in lines if '"content"' in line)
        await_count("target", "running", 1)
    await_count("target", "running", 0)
    assert stats("target")["aborted"] == before["aborted"] + 1


@pytest.mark.parametrize("stream", [False, True])
def test_hanging_up_during_speculation_aborts_on_the_speculator(served: Served, stream: bool) -> None:
    before, untouched = stats("speculator"), stats("target")

    async def ask_and_leave() -> None:
        async with httpx.AsyncClient(base_url=served.url, timeout=60) as http:
            request = asyncio.create_task(http.post("/v1/chat/completions", json=body(LONG, stream=stream)))
            await asyncio.to_thread(await_count, "speculator", "running", 1)
            request.cancel()

    asyncio.run(ask_and_leave())
    await_count("speculator", "running", 0)
    assert stats("speculator")["aborted"] == before["aborted"] + 1
    assert stats("target")["started"] == untouched["started"]


def test_hanging_up_before_the_answer_ends_its_drafting_session(served: Served) -> None:
    """A mock target never drafts, so only the router can end the session."""

    async def ask_and_leave() -> None:
        async with httpx.AsyncClient(base_url=served.url, timeout=60) as http:
            request = asyncio.create_task(http.post("/v1/chat/completions", json=body(MIDDLE)))
            await asyncio.to_thread(await_count, "target", "running", 1)
            await asyncio.to_thread(await_count, "speculator", "sessions", before + 1)
            request.cancel()

    before = stats("speculator")["sessions"]
    asyncio.run(ask_and_leave())
    await_count("speculator", "sessions", before)
