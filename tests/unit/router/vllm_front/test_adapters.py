"""LoRA adapters at the endpoint: listed by name, sent to the target, with caches of their own."""

import httpx
import pytest
import pytest_asyncio

from kv_transfer.messages import ADAPTER
from router.decision.forecast import Forecaster
from router.dispatch.dispatcher import Dispatcher
from router.options.request import PrefillOptions, SpeculationOptions
from router.options.settings import RouterConfig
from router.vllm_front.app import ServedModel, build_openai_app
from tests.unit.actors.local_meter import LocalMeter
from tests.unit.router.conftest import MAX_MODEL_LEN, MODEL_NAME, MODELS, LocalPools

PATH = "/data/of/this/machine"


@pytest.fixture(scope="module")
def updating():
    """vLLM's front has its routes for adapters that come while it runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "1")
        yield


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(updating):
    """The endpoint of a target with one adapter, and its pools."""
    pools, settings = LocalPools(), RouterConfig()
    options = PrefillOptions(enabled="always", min_prompt_tokens=256)
    dispatcher = Dispatcher(pools, options, SpeculationOptions(), settings, LocalMeter())
    engine = {"dtype": "float32", "lora_modules": [f"sql={PATH}"]}
    model = ServedModel(str(MODELS / "target"), "target", (MODEL_NAME,), MAX_MODEL_LEN, engine)
    app = await build_openai_app(dispatcher, model)
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://router", timeout=60) as client:
        yield client, pools


async def ask(served, model, text="What is LoRA?"):
    client, _ = served
    body = {"model": model, "messages": [{"role": "user", "content": text}], "max_tokens": 2, "cache_salt": "s"}
    return await client.post("/v1/chat/completions", json=body)


@pytest.mark.asyncio(loop_scope="module")
async def test_the_endpoint_lists_adapters_without_a_path(served):
    cards = (await served[0].get("/v1/models")).json()["data"]
    assert [(card["id"], card["root"]) for card in cards] == [(MODEL_NAME, "target"), ("sql", "sql")]
    assert PATH not in (await served[0].get("/v1/models")).text


@pytest.mark.asyncio(loop_scope="module")
async def test_the_target_learns_the_adapter_and_the_caches_are_apart(served, document, monkeypatch):
    _, pools = served
    sent, forecasts = [], []
    look = Forecaster.look
    monkeypatch.setattr(
        Forecaster, "look", lambda *args, **more: forecasts.append(look(*args, **more)) or forecasts[-1]
    )
    for model in ("sql", MODEL_NAME):
        answer = await ask(served, model, document.prompt)
        assert (answer.status_code, answer.json()["model"]) == (200, model)
        sent.append((pools.generates[-1], pools.selects[-1]))
    (adapted, read), (plain, other) = sent
    assert (adapted.engine_args.get(ADAPTER), plain.engine_args.get(ADAPTER)) == ("sql", None)
    assert adapted.cache_salt == read.cache_salt
    assert plain.cache_salt == other.cache_salt not in (None, adapted.cache_salt)
    assert adapted.envelope.affinity != plain.envelope.affinity
    assert [forecast.adapted for forecast in forecasts] == [True, False]


@pytest.mark.asyncio(loop_scope="module")
async def test_an_adapter_that_the_target_does_not_have_is_refused(served):
    answer = await ask(served, "legal")
    assert answer.status_code == 404
    assert "legal" in answer.json()["error"]["message"]


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/load_lora_adapter", {"lora_name": "legal", "lora_path": "/legal"}),
        ("/v1/load_lora_adapter", {"lora_name": "sql", "lora_path": "/other", "load_inplace": True}),
        ("/v1/unload_lora_adapter", {"lora_name": "sql"}),
    ],
)
async def test_adapters_are_fixed_while_the_endpoint_runs(served, path, body):
    """One router would change its list, and no target would know."""
    answer = await served[0].post(path, json=body)
    assert answer.status_code == 400
    assert "the adapters are fixed" in answer.json()["error"]["message"]
    cards = (await served[0].get("/v1/models")).json()["data"]
    assert [card["id"] for card in cards] == [MODEL_NAME, "sql"]
