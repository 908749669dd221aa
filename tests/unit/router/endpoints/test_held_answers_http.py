"""A client that hangs up on an answer in one piece, and asks again, over HTTP on each endpoint."""

import asyncio

import pytest

from tests.unit.router.conftest import until
from tests.unit.router.endpoints.test_endpoints import ENDPOINTS, ask, request_body
from tests.unit.router.endpoints.test_http_errors import raw_call

pytestmark = pytest.mark.asyncio(loop_scope="session")

TEXTS = {
    "/v1/chat/completions": lambda body: body["choices"][0]["message"]["content"],
    "/v1/completions": lambda body: body["choices"][0]["text"],
    "/v1/responses": lambda body: body["output"][0]["content"][0]["text"],
    "/v1/messages": lambda body: body["content"][0]["text"],
}


async def hung_up(served, pools, path, body):
    """A client leaves after the first token of its answer."""
    leave = asyncio.Event()
    call = asyncio.create_task(served.app(*raw_call(body, path, leave)))
    # The admission counts a prompt as read from its first token on.
    await until(lambda: pools.target_engine.running and served.dispatcher.admission.is_idle)
    leave.set()
    await asyncio.wait_for(call, 60)


@pytest.mark.parametrize("path", ENDPOINTS)
async def test_the_answer_goes_on(served, use_pools, document, path):
    pools = use_pools(target={"decode_ms": 600_000, "cache_tokens": 10**6})
    body = request_body(path, document, max_tokens=24)
    await hung_up(served, pools, path, body)
    [held] = served.dispatcher.held_answers._held
    await until(lambda: held.record.tokens == 2)  # the mock makes the first token of each request at once
    pools.target_engine._decode_ms = 0
    again = await ask(served.client, path, body)
    assert again.headers["x-skim-reason"].endswith(";again=2")
    assert [request.answered for request in pools.generates] == [0, 1, 2]
    assert len(pools.selects) == 1
    new = await ask(served.client, path, body)
    assert ";again=" not in new.headers["x-skim-reason"]
    one, other = again.json(), new.json()
    assert TEXTS[path](one) == TEXTS[path](other)
    counts = ("completion_tokens", "output_tokens", "prompt_tokens", "input_tokens", "total_tokens")
    assert [one["usage"].get(name) for name in counts] == [other["usage"].get(name) for name in counts]


@pytest.mark.parametrize("path", ENDPOINTS)
async def test_a_stream_ends_with_its_client(served, use_pools, document, path):
    pools = use_pools(target={"decode_ms": 600_000, "cache_tokens": 10**6})
    await hung_up(served, pools, path, request_body(path, document, max_tokens=24, stream=True))
    await until(lambda: not pools.target_engine.running)
    pools.target_engine._decode_ms = 0
    again = await ask(served.client, path, request_body(path, document, max_tokens=24))
    assert ";again=" not in again.headers["x-skim-reason"]
    assert [request.answered for request in pools.generates] == [0, 0]
