"""Next-turn warm-ups after answers of each endpoint."""

import pytest

from router.forecast import Forecaster
from router.warm_up import WarmUps
from speculator_service.records import Records
from tests.unit.actors.local_meter import LocalMeter
from tests.unit.router.asking import ENDPOINTS, KEEP, ask, request_body
from tests.unit.router.conftest import MODEL_NAME, until

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.mark.parametrize("path", ENDPOINTS)
async def test_after_a_chat_s_answer_idle_pools_read_the_start_of_the_next_turn(
    client, served, use_pools, document, path, monkeypatch
):
    monkeypatch.setattr(served.dispatcher, "_warm_ups", warm_ups := WarmUps(LocalMeter(), Forecaster()))
    cache = {"cache_tokens": 16384, "block_size": 4}
    pools = use_pools(speculator=cache, target=cache)
    pools.records = Records()
    response = await ask(client, path, request_body(path, document, max_tokens=40, speculative_prefill=KEEP))
    await until(lambda: not warm_ups._running)
    if path == "/v1/completions":
        assert pools.warm_ups == []
        return
    read = dict(pools.warm_ups)["speculator"].prompt.token_ids.tolist()
    kept = dict(pools.warm_ups)["target"].prompt
    answer = response.json()
    text = {
        "/v1/chat/completions": lambda: answer["choices"][0]["message"]["content"],
        "/v1/responses": lambda: answer["output"][0]["content"][0]["text"],
        "/v1/messages": lambda: answer["content"][0]["text"],
    }[path]()
    turns = [*document.messages, {"role": "assistant", "content": text}, {"role": "user", "content": "And why?"}]
    before = pools.speculator_engine.compute.cached_tokens
    chat = {"model": MODEL_NAME, "messages": turns, "max_tokens": 4, "speculative_prefill": KEEP}
    await ask(client, "/v1/chat/completions", chat)
    assert pools.selects[1].token_ids[: len(read)].tolist() == read
    # The whole answer is read already, and not only the prompt before it.
    spared = pools.speculator_engine.compute.cached_tokens - before
    assert spared >= len(read) - 4 > document.prompt_tokens + 20
    # The target's prompt begins with what was kept of the first turn and the answer, as it was read ahead.
    assert kept.token_ids.size > pools.generates[0].prompt.token_ids.size + 20
    assert pools.generates[1].prompt.positions[: kept.positions.size].tolist() == kept.positions.tolist()


async def test_a_chat_with_tools_is_not_warmed_up(client, served, pools, document, monkeypatch):
    monkeypatch.setattr(served.dispatcher, "_warm_ups", warm_ups := WarmUps(LocalMeter(), Forecaster()))
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
    path = "/v1/chat/completions"
    await ask(client, path, request_body(path, document, tools=[tool], tool_choice="none"))
    await until(lambda: not warm_ups._running)
    assert len(pools.generates) == 1
    assert pools.warm_ups == []
