"""`GET /metrics` of the whole app over mock engines counts what was sent, and needs no key."""

import asyncio
from contextlib import aclosing
from types import SimpleNamespace

import httpx
import pytest
import pytest_asyncio

from router.dispatch.dispatcher import Dispatcher
from router.options.request import PrefillOptions, SpeculationOptions
from router.options.settings import RouterConfig
from router.vllm_front.app import ServedModel, build_openai_app
from router.vllm_front.metrics import DeploymentMetrics, FrontMetrics
from tests.unit.actors.local_meter import LocalMeter
from tests.unit.router.conftest import MAX_MODEL_LEN, MODEL_NAME, MODELS, LocalPools
from tests.unit.router.vllm_front.test_deployment_metrics import read, total

pytestmark = pytest.mark.asyncio(loop_scope="session")

KEY = {"authorization": "Bearer key"}
LONG = [7 + i % 900 for i in range(600)]


async def build():
    """client: of an app with an API key and metrics. dispatcher: the app's."""
    settings = RouterConfig()
    defaults = PrefillOptions(enabled="always", min_prompt_tokens=256, selector="speculator")
    dispatcher = Dispatcher(LocalPools(), defaults, SpeculationOptions(), settings, LocalMeter())
    options = {"dtype": "float32", "api_key": ["key"]}
    app = await build_openai_app(
        dispatcher, ServedModel(str(MODELS / "target"), "target", (MODEL_NAME,), MAX_MODEL_LEN, options)
    )

    async def ask():
        return [app.state.metrics.exposition()]

    metrics = DeploymentMetrics(ask)
    metrics.add_route(app)
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    return SimpleNamespace(
        client=httpx.AsyncClient(transport=transport, base_url="http://router", timeout=60), metrics=metrics
    )


@pytest_asyncio.fixture(loop_scope="session")
async def counted():
    """A new app: its counts are 0."""
    return await build()


async def samples(counted):
    counted.metrics._answer = None
    response = await counted.client.get("/metrics")
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    return read(response.text)


async def send(counted, **body):
    """The usage of an answer."""
    asked = {"model": MODEL_NAME, "prompt": "x", "max_tokens": 3, **body}
    response = await counted.client.post("/v1/completions", json=asked, headers=KEY)
    return response.raise_for_status().json()["usage"]


async def test_what_clients_sent_is_counted(counted):
    bodies = [{}, {"prompt": LONG}, {"prompt": LONG, "n": 3}, {"prompt": ["a", "b"]}]
    usages = [await send(counted, **body) for body in bodies]
    found = await samples(counted)
    prompts, tokens = 5, sum(usage["prompt_tokens"] for usage in usages)
    assert tokens > 1200
    assert total(found, "vllm:prompt_tokens_total") == tokens
    assert total(found, "vllm:request_prompt_tokens_sum") == tokens
    for name in ("time_to_first_token", "e2e_request_latency"):
        assert total(found, f"vllm:{name}_seconds_count") == prompts
    assert total(found, "http_requests_total", handler="/v1/completions", status="2xx") == len(bodies)
    assert total(found, "vllm:num_requests_waiting") == 0
    assert "process_cpu_seconds_total" in found


async def test_a_refused_prompt_is_no_prompt_but_a_request(counted):
    response = await counted.client.post("/v1/completions", json={"model": MODEL_NAME, "prompt": [10**6]}, headers=KEY)
    assert response.status_code == 400
    found = await samples(counted)
    assert total(found, "vllm:time_to_first_token_seconds_count") == 0
    assert total(found, "http_requests_total", status="4xx") == 1


async def test_the_first_token_is_counted_when_the_target_has_made_it(counted, monkeypatch):
    """The second one is not made before. The client gets the answer as a whole, so it sees neither."""
    begun, generate = asyncio.Event(), LocalPools.generate
    monkeypatch.setattr(FrontMetrics, "began", lambda self, tokens, seconds: begun.set())

    async def waits(self, *args):
        async with aclosing(generate(self, *args)) as outputs:
            async for output in outputs:
                yield output
                async with asyncio.timeout(60):
                    await begun.wait()

    monkeypatch.setattr(LocalPools, "generate", waits)
    assert (await send(counted, max_tokens=4))["completion_tokens"] == 4


async def test_http_requests_are_not_counted_in_the_registry_of_the_first_middlewares(monkeypatch):
    """Negative control: vLLM's app builds its middlewares twice, and the second ones find their names taken."""
    monkeypatch.setattr(FrontMetrics, "count_requests_of", lambda self, app: None)
    counted = await build()
    await send(counted)
    assert "http_requests_total" not in await samples(counted)
