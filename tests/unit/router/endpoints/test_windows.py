"""Which prompts the endpoint has read in windows, without an option. The router decides, so its forecast knows it."""

import httpx
import pytest

from demo_models.documents import make_document
from router.dispatch.dispatcher import Dispatcher
from router.options.request import PrefillOptions, SpeculationOptions
from router.options.settings import RouterConfig
from tests.unit.actors.local_meter import LocalMeter
from tests.unit.router.conftest import MAX_MODEL_LEN, MODEL_NAME, MODELS, LocalPools

SYSTEM_FIRST = (
    "{% if messages[0].role != 'system' %}{{ raise_exception('a system message comes first') }}{% endif %}"
    "{% for message in messages %}<{{ message.role }}> {{ message.content }}\n{% endfor %}"
)

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def reading(client, pools, arguments=None, **options):
    """(read, scoring) of the selection of a chat, and whether it has a frame. arguments: of its template."""
    prompt = make_document(1500, seed=2).prompt
    body = {"model": MODEL_NAME, "messages": [{"role": "user", "content": prompt}], "max_tokens": 2}
    body["chat_template_kwargs"] = arguments or {}
    answer = await client.post("/v1/chat/completions", json={**body, "speculative_prefill": options})
    assert answer.status_code == 200
    [asked] = pools.selects
    return (asked.options.read, asked.options.scoring), asked.frame is not None


async def test_prompts_are_read_in_windows(client, use_pools):
    pools = use_pools(speculator={"head_profile": True})
    assert await reading(client, pools) == (("windows", "heads"), True)


async def test_those_of_other_options_are_not(client, use_pools):
    for options in ({"read": "whole"}, {"look_ahead": 4}):
        pools = use_pools(speculator={"head_profile": True})
        assert (await reading(client, pools, **options))[0] == ("whole", "attention")


async def test_without_a_head_profile_none_is(client, use_pools):
    assert (await reading(client, use_pools()))[0] == ("whole", "attention")


async def test_a_template_that_refuses_a_lone_user_message_has_prompts_read_whole():
    """There is no frame for windows. Control: the same prompt with the template of the model, above."""
    from router.vllm_front.app import ServedModel, build_openai_app

    pools = LocalPools(speculator={"head_profile": True})
    defaults, settings = PrefillOptions(enabled="always", min_prompt_tokens=256), RouterConfig()
    dispatcher = Dispatcher(pools, defaults, SpeculationOptions(), settings, LocalMeter())
    options = {"dtype": "float32", "chat_template": SYSTEM_FIRST}
    served = ServedModel(str(MODELS / "target"), "target", (MODEL_NAME,), MAX_MODEL_LEN, options)
    app = await build_openai_app(dispatcher, served, settings)
    prompt = make_document(1500, seed=2).prompt
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": prompt}]
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://router", timeout=60) as client:
        for number in (1, 2):
            body = {"model": MODEL_NAME, "messages": messages, "max_tokens": 2}
            answer = await client.post("/v1/chat/completions", json=body)
            assert answer.status_code == 200, answer.text
            assert (answer.headers["x-skim-mode"], len(pools.selects)) == ("speculative", number)
            assert (pools.selects[-1].options.read, pools.selects[-1].frame) == ("whole", None)
        wrong = await client.post("/v1/chat/completions", json={**body, "messages": messages[1:]})
        assert wrong.status_code == 400
