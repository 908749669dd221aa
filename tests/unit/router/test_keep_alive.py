"""Streams that wait for their first token, through vLLM's app: what each endpoint sends, and when it has a status."""

import asyncio
import json

import pytest

from router.http import middleware
from router.http.response import KEEP_ALIVE, DeferredResponse
from skim_common.errors import EngineUnavailableError
from tests.unit.router.asking import ENDPOINTS, ask, events, request_body

pytestmark = pytest.mark.asyncio(loop_scope="session")

INTERVAL_S, WAIT_MS = 0.02, 300.0
COMMENT = KEEP_ALIVE.decode()


@pytest.fixture
def impatient(monkeypatch):
    """When it is called: from now on, a stream is silent for 20 ms at most."""

    def deferred(context, scope, receive, send, _, report):
        return DeferredResponse(context, scope, receive, send, INTERVAL_S, report)

    return lambda: monkeypatch.setattr(middleware, "DeferredResponse", deferred)


async def reported(client, response):
    """The values that `GET /v1/requests/{id}` tells of a stream."""
    first = events(response)[0]
    request_id = first.get("id") or first.get("response", first.get("message"))["id"]
    report = (await client.get(f"/v1/requests/{request_id}")).json()
    assert report["id"] == request_id
    return report["headers"]


def answer_of(response):
    """The text of a stream, of any endpoint."""
    found = ""
    for event in events(response):
        for part in (*event.get("choices", ()), event):
            delta = part.get("delta", part)
            found += delta if isinstance(delta, str) else delta.get("content") or delta.get("text") or ""
    return found


@pytest.mark.parametrize("path", ENDPOINTS)
async def test_every_streaming_endpoint_is_kept_alive(client, use_pools, document, path, impatient):
    body = request_body(path, document, stream=True)
    quick = await ask(client, path, body)
    use_pools(target={"prefill_ms": WAIT_MS})
    impatient()
    slow = await ask(client, path, body)
    assert COMMENT not in quick.text
    assert slow.text.count(COMMENT) > 1
    assert slow.headers["x-accel-buffering"] == "no"
    # The events are those of the quick stream, in its order.
    assert [event.get("type") for event in events(slow)] == [event.get("type") for event in events(quick)]
    assert answer_of(slow) == answer_of(quick) != ""
    values = await reported(client, slow)
    assert values.keys() | slow.headers.keys() == quick.headers.keys()
    assert "server-timing" in values.keys() - slow.headers.keys()
    assert values.items() >= {k: v for k, v in slow.headers.items() if k.startswith("x-skim")}.items()


@pytest.mark.parametrize("path", ENDPOINTS)
async def test_a_long_selection_is_filled_too(client, use_pools, document, path, impatient):
    use_pools(speculator={"latency_ms": WAIT_MS})
    impatient()
    response = await ask(client, path, request_body(path, document, stream=True))
    assert response.text.count(COMMENT) > 1
    assert {name for name in response.headers if name.startswith("x-skim")} == {"x-skim-prompt-tokens"}
    assert (await reported(client, response))["x-skim-mode"] == "speculative"


@pytest.mark.parametrize("path", ENDPOINTS)
async def test_an_answer_that_is_not_streamed_has_no_comments(client, use_pools, document, path, impatient):
    use_pools(target={"prefill_ms": WAIT_MS})
    impatient()
    response = await ask(client, path, request_body(path, document))
    request_id = json.loads(response.text)["id"]
    assert response.headers["x-skim-mode"] == "speculative"
    report = (await client.get(f"/v1/requests/{request_id}")).json()
    assert report["headers"].items() <= dict(response.headers).items()


@pytest.mark.parametrize("path", ENDPOINTS)
async def test_an_error_after_the_first_comment_is_the_last_event(client, use_pools, document, path, impatient):
    use_pools(speculator={"latency_ms": WAIT_MS}, target={"fail_before_first": 1})
    impatient()
    response = await client.post(path, json=request_body(path, document, stream=True))
    assert (response.status_code, COMMENT in response.text) == (200, True)
    last = events(response)[-1]
    assert (last["type"], last["error"]["code"]) == ("error", 503)
    assert "[DONE]" not in response.text


@pytest.mark.parametrize("path", ENDPOINTS)
async def test_who_is_not_admitted_gets_a_status(client, served, use_pools, document, path, impatient, monkeypatch):
    """The target pool has no free replica, and says so late."""
    pools = use_pools()
    select = pools.select
    impatient()

    async def unnoticed(request, admitted, answers=True):
        return await select(request, answers=answers)

    async def full(request, admitted):
        await asyncio.sleep(WAIT_MS / 1e3)
        raise EngineUnavailableError("the target pool has no free replica")
        yield

    monkeypatch.setattr(pools, "select", unnoticed)
    monkeypatch.setattr(pools, "generate", full)
    response = await client.post(path, json=request_body(path, document, stream=True))
    assert response.status_code == 503
    assert response.headers["retry-after"] == "1"
