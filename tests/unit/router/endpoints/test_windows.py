"""Which prompts the endpoint has read in windows, without an option. The router decides, so its forecast knows it."""

import httpx
import pytest

from demo_models.documents import make_document
from kv_transfer.arrays import spans_of
from router.decision.sizes import WindowReads
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
    return (asked.options.read, asked.options.scoring), asked.layout.frame is not None


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
    defaults, settings = PrefillOptions(enabled="always", min_prompt_tokens=256, selector="speculator"), RouterConfig()
    dispatcher = Dispatcher(pools, defaults, SpeculationOptions(), settings, LocalMeter())
    options = {"dtype": "float32", "chat_template": SYSTEM_FIRST}
    served = ServedModel(str(MODELS / "target"), "target", (MODEL_NAME,), MAX_MODEL_LEN, options)
    app = await build_openai_app(dispatcher, served)
    prompt = make_document(1500, seed=2).prompt
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": prompt}]
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://router", timeout=60) as client:
        for number in (1, 2):
            body = {"model": MODEL_NAME, "messages": messages, "max_tokens": 2}
            answer = await client.post("/v1/chat/completions", json=body)
            assert answer.status_code == 200, answer.text
            assert (answer.headers["x-skim-mode"], len(pools.selects)) == ("speculative", number)
            assert (pools.selects[-1].options.read, pools.selects[-1].layout.frame) == ("whole", None)
        wrong = await client.post("/v1/chat/completions", json={**body, "messages": messages[1:]})
        assert wrong.status_code == 400


def _log(steps):
    """A task, then results of tools, each after a short call."""
    task = {"role": "user", "content": "Which of the steps failed? Read the whole log before you answer."}
    turns = [turn for step in range(steps) for turn in _turns(step)]
    return [task, *({"role": role, "content": text} for role, text in turns), task]


def _turns(step):
    return ("assistant", f"I run step {step}."), ("user", f"The output of step {step} has {step * 17} lines. " * 6)


async def test_the_router_counts_the_windows_that_are_read(client, use_pools, monkeypatch):
    """Of many short messages, and of spans that a client protects between all tokens: their windows are shared."""
    counted, of = [], WindowReads.of

    def noted(options, plan, size, head):
        counted.append((of(options, plan, size, head), size))
        return counted[-1][0]

    monkeypatch.setattr(WindowReads, "of", noted)
    one = [{"role": "user", "content": make_document(2000, seed=3).prompt}]
    spans = {"protected_spans": [[start, start + 1] for start in range(40, 1900, 4)]}
    for messages, options, texts in ((_log(12), {}, 10), (one, spans, 400)):
        pools = use_pools(speculator={"head_profile": True})
        body = {"model": MODEL_NAME, "messages": messages, "max_tokens": 2}
        answer = await client.post("/v1/chat/completions", json={**body, "speculative_prefill": options})
        assert answer.status_code == 200, answer.text
        [asked], (reads, size) = pools.selects, counted[-1]
        assert len(spans_of(asked.droppable)) > texts
        assert reads.count() == pytest.approx(pools.speculator_engine.started, rel=0.01)
        assert reads.tokens(0) <= 1.5 * size
