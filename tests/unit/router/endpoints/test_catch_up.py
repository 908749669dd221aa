"""What a client is told of the catch-up of its conversation, over HTTP."""

import pytest

from tests.unit.router.conftest import MODEL_NAME, until

TOOL = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object", "properties": {}}}}


def body(messages, **prefill):
    asked = {"enabled": "always", "keep_rate": 0.1, **prefill}
    return {
        "model": MODEL_NAME,
        "messages": messages,
        "max_tokens": 4,
        "temperature": 0,
        "speculative_prefill": asked,
        "cache_salt": "catch-up",
    }


@pytest.fixture(autouse=True)
def has_room(use_pools, served, monkeypatch):
    """The target's cache has room, whatever earlier prompts of this router have shown."""
    use_pools(target={"cache_tokens": 2**20})
    monkeypatch.setattr(served.dispatcher.forecaster.caches.dense, "_share", 1.0)


async def test_headers_and_explain_view_tell_the_state(client, served, document):
    catch_ups, path = served.dispatcher.catch_ups, "/v1/chat/completions"
    first = await client.post(path, json=body(document.messages, catch_up="always"))
    assert first.headers["x-skim-catch-up"] == "planned;reason=requested"
    await until(lambda: not catch_ups._readings)
    name = first.json()["id"]
    report = (await client.get(f"/v1/requests/{name}")).json()
    assert report["headers"]["x-skim-catch-up"] == "planned;reason=requested"
    shown = (await client.get(f"/v1/requests/{name}/selection")).json()
    assert shown["decision"]["catch_up"] == "planned;reason=requested"
    size = first.json()["usage"]["prompt_tokens"]
    assert shown["catch_up"].pop("agreement") is not None
    assert shown["catch_up"] == {"state": "done", "tokens": size + 4, "of": size + 4}
    answer = first.json()["choices"][0]["message"]
    turn = [*document.messages, answer, {"role": "user", "content": "What about the kettle?"}]
    second = await client.post(path, json=body(turn, catch_up="off"))
    state, tokens = second.headers["x-skim-catch-up"].split(";tokens=")
    assert state == "off;reason=disabled"
    assert size - 128 <= int(tokens) <= size + 4
    other = await client.post(path, json={**body(turn), "cache_salt": "another tenant"})
    assert "tokens=" not in other.headers["x-skim-catch-up"]


@pytest.mark.parametrize("tools", [[TOOL], []])
async def test_tools_make_a_later_turn_likely(client, served, document, monkeypatch, tools):
    asked = []
    plan = served.dispatcher.catch_ups.plan
    monkeypatch.setattr(
        served.dispatcher.catch_ups,
        "plan",
        lambda outcome: asked.append(outcome.call.request.has_tools) or plan(outcome),
    )
    sent = body(document.messages) | ({"tools": tools, "tool_choice": "none"} if tools else {})
    answer = await client.post("/v1/chat/completions", json=sent)
    assert answer.status_code == 200, answer.text
    assert asked == [bool(tools)]
