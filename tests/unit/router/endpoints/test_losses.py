"""A client learns what was dropped of its prompt in the body of the answer, or refuses to lose anything."""

import httpx2
import pytest
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI

from router.options.request import PrefillOptions
from speculator_service.selection.records import Records
from tests.unit.router.asking import CHAT_LIKE, ENDPOINTS, KEEP, ask, events, request_body
from tests.unit.router.conftest import MODEL_NAME, until

pytestmark = pytest.mark.asyncio(loop_scope="session")

REFUSE = {**KEEP, "lossy": "refuse"}


def asking(path, document, stream, wish=KEEP, **fields):
    usage = {"stream_options": {"include_usage": True}} if stream and path.endswith("completions") else {}
    return request_body(path, document, stream=stream, speculative_prefill=wish, **usage, **fields)


def answers(response):
    """The parts of an answer, or the whole, that are objects."""
    return [event.get("message", event) for event in events(response) or [response.json()]]


def told(response, path):
    """What the last usage of an answer says of the prompt."""
    [*_, usage] = [found["usage"] for part in answers(response) if (found := part.get("response", part)).get("usage")]
    return usage.get("prompt_tokens_details" if path.endswith("completions") else "input_tokens_details")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ENDPOINTS)
async def test_the_body_says_what_the_target_did_not_read(client, pools, document, path, stream):
    response = await ask(client, path, asking(path, document, stream))
    kept = pools.generates[-1].prompt
    lost = kept.context_length - kept.positions.size
    details = told(response, path)
    assert stream or int(response.headers["content-length"]) == len(response.content)
    assert (details["kept_tokens"], details["dropped_tokens"]) == (kept.positions.size, lost)
    assert details.get("largest_dropped") == ({"role": "user", "tokens": lost} if path in CHAT_LIKE else None)
    named = next(found["id"] for event in answers(response) if "id" in (found := event.get("response", event)))
    shown = (await client.get(f"/v1/requests/{named}/selection")).json()
    assert shown["kept_tokens"] == kept.positions.size


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ENDPOINTS)
async def test_a_dense_prompt_lost_nothing(client, pools, document, path, stream):
    details = told(await ask(client, path, asking(path, document, stream, wish=False)), path)
    size = pools.generates[-1].prompt.context_length
    assert (details["kept_tokens"], details["dropped_tokens"]) == (size, 0)
    assert "largest_dropped" not in details


@pytest.mark.parametrize("path", ENDPOINTS)
async def test_a_dense_answer_without_an_option_is_a_stock_server_s(client, served, pools, document, path, monkeypatch):
    monkeypatch.setattr(served.dispatcher, "defaults", PrefillOptions(min_prompt_tokens=4000))
    assert "dropped_tokens" not in (told(await ask(client, path, request_body(path, document)), path) or {})
    monkeypatch.setattr(served.dispatcher, "defaults", PrefillOptions(enabled="always", min_prompt_tokens=256))
    assert told(await ask(client, path, request_body(path, document)), path)["dropped_tokens"] > 0


async def test_the_role_that_lost_most_is_named(client, pools, document):
    filler = document.messages[-1]["content"]
    chat = [
        {"role": "user", "content": filler[: len(filler) // 4]},
        {"role": "assistant", "content": filler},
        {"role": "user", "content": "Where?"},
    ]
    body = {"model": MODEL_NAME, "messages": chat, "speculative_prefill": {"keep_rate": 0.1}, "max_tokens": 2}
    details = told(await ask(client, "/v1/chat/completions", body), "/v1/chat/completions")
    assert details["largest_dropped"]["role"] == "assistant"
    assert details["dropped_tokens"] > details["largest_dropped"]["tokens"] > details["dropped_tokens"] / 2


async def test_the_prompts_of_a_call_are_added_up(client, pools, document):
    body = {**asking("/v1/completions", document, False), "prompt": ["short", document.prompt, document.prompt]}
    response = await ask(client, "/v1/completions", body)
    details = told(response, "/v1/completions")
    assert (await client.get(f"/v1/requests/{response.json()['id']}-1/selection")).status_code == 200
    kept = [request.prompt for request in pools.generates]
    assert details["kept_tokens"] == sum(one.positions.size for one in kept)
    assert details["dropped_tokens"] == sum(one.context_length - one.positions.size for one in kept) > 0


async def test_several_chats_in_one_call(client, pools, document):
    path = "/v1/chat/completions/batch"
    body = {"model": MODEL_NAME, "messages": [document.messages] * 2, "max_tokens": 2, "speculative_prefill": KEEP}
    details = (await ask(client, path, body)).json()["usage"]["prompt_tokens_details"]
    kept = [request.prompt for request in pools.generates]
    lost = sum(one.context_length - one.positions.size for one in kept)
    assert details["dropped_tokens"] == details["largest_dropped"]["tokens"] == lost > 0
    refused = await client.post(path, json={**body, "speculative_prefill": REFUSE})
    assert refused.status_code == 422


async def test_the_clients_of_openai_and_anthropic_read_it(served, pools, document):
    transport = httpx2.ASGITransport(app=served.app)
    options = {"api_key": "none", "max_retries": 0, "http_client": httpx2.AsyncClient(transport=transport)}
    openai = AsyncOpenAI(base_url="http://router/v1", **options)
    chat = {"model": MODEL_NAME, "max_tokens": 4, "extra_body": {"speculative_prefill": KEEP}}
    whole = await openai.chat.completions.create(messages=document.messages, **chat)
    lost = whole.usage.prompt_tokens_details.dropped_tokens
    assert 0 < lost == whole.usage.prompt_tokens - whole.usage.prompt_tokens_details.kept_tokens
    usage = {"stream": True, "stream_options": {"include_usage": True}}
    chunks = await openai.chat.completions.create(messages=document.messages, **chat, **usage)
    [*_, last] = [chunk async for chunk in chunks]
    assert last.usage.prompt_tokens_details.dropped_tokens == lost
    fields = {"model": MODEL_NAME, "input": document.prompt, "max_output_tokens": 4}
    response = await openai.responses.create(**fields, extra_body=chat["extra_body"])
    assert response.usage.input_tokens_details.dropped_tokens == lost
    async with openai.responses.stream(**fields, extra_body=chat["extra_body"]) as stream:
        async for _ in stream:
            pass
        assert (await stream.get_final_response()).usage.input_tokens_details.dropped_tokens == lost

    anthropic = AsyncAnthropic(base_url="http://router", **options)
    for messages in (anthropic.messages, anthropic.beta.messages):
        message = await messages.create(messages=document.messages, **chat)
        async with messages.stream(messages=document.messages, **chat) as stream:
            streamed = await stream.get_final_message()
        assert streamed.usage.input_tokens_details == message.usage.input_tokens_details
        assert message.usage.input_tokens_details["dropped_tokens"] == lost
        # The client without `beta` does not take edits from a stream.
        for found in (message, streamed) if messages is anthropic.beta.messages else (message,):
            [edit] = found.model_dump(warnings=False)["context_management"]["applied_edits"]
            assert (edit["type"], edit["cleared_input_tokens"]) == ("skim_selection", lost)


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ENDPOINTS)
async def test_a_request_may_refuse_to_lose_anything(client, use_pools, document, path, stream, cached):
    pools = use_pools()
    pools.records = Records()
    if cached:
        await ask(client, path, asking(path, document, stream))
        pools.generates.clear()
    refused = await client.post(path, json=asking(path, document, stream, REFUSE))
    assert refused.status_code == 422
    error = refused.json()["error"]
    assert error["type"] == ("invalid_request_error" if path == "/v1/messages" else "UnprocessableEntityError")
    size = pools.selects[-1].size
    assert f" of the prompt's {size} tokens would be dropped" in error["message"]
    assert 0 < int(error["message"].split()[0]) < size
    assert pools.generates == []
    await until(lambda: set(pools.speculator_engine.sessions) == {one.request_id for one in pools.selects[:-1]})
    by_header = await client.post(
        path, json=asking(path, document, stream, None), headers={"x-skim-prefill": "keep=0.5; lossy=refuse"}
    )
    assert by_header.status_code == 422


@pytest.mark.parametrize(
    "wish", [{"keep_rate": 1.0}, {"enabled": False}, {"min_prompt_tokens": 4000}, {"min_keep": 1.0}]
)
@pytest.mark.parametrize("path", ENDPOINTS)
async def test_what_loses_nothing_is_answered(client, pools, document, path, wish):
    await ask(client, path, asking(path, document, False, {**wish, "lossy": "refuse"}))


async def test_one_prompt_of_several_refuses_the_call(client, pools, document):
    body = {**asking("/v1/completions", document, False, REFUSE), "prompt": ["short", document.prompt]}
    assert (await client.post("/v1/completions", json=body)).status_code == 422
