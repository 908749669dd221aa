"""The router's app tokenizes a known conversation from where it is new, and the tokens are vLLM's own."""

import pytest

from router.dispatch.request import Request
from router.options.request import PrefillOptions, SpeculationOptions
from router.prompt.token_cache import KnownTokens
from tests.unit.router.asgi_calls import caller
from tests.unit.router.conftest import MODEL_NAME


@pytest.fixture
def reused(served, monkeypatch):
    """Gives how many tokens were not made again since the last call."""
    seen = []
    find = KnownTokens._find
    monkeypatch.setattr(KnownTokens, "_find", lambda self, digests: seen.append(find(self, digests)) or seen[-1])

    def count():
        counts = [0 if tokens is None else tokens.ids.size for _, tokens in seen]
        seen.clear()
        return sum(counts)

    return count


async def prompt_of(client, pools, messages, **fields):
    """The token ids that the speculator got."""
    body = {"model": MODEL_NAME, "messages": messages, "max_tokens": 2, **fields}
    response = await client.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    return pools.selects[-1].token_ids.tolist()


def turns(document):
    first = document.messages
    answer = {"role": "assistant", "content": "The answer."}
    return first, [*first, answer, {"role": "user", "content": "Another question?"}]


async def test_the_next_turn_makes_only_its_own_tokens(client, pools, document, reused):
    first, second = turns(document)
    salt = {"cache_salt": "test_tokenizing"}
    known = await prompt_of(client, pools, first, **salt)
    assert reused() == 0
    whole = await prompt_of(client, pools, second, **salt)
    assert reused() > 0.9 * len(known)
    for options in ({"cache_salt": "another salt"}, {"truncate_prompt_tokens": 4000, "cache_salt": "a third"}):
        assert await prompt_of(client, pools, second, **options) == whole
        assert reused() == 0


def test_a_key_that_shares_no_prefix_finds_no_tokens_of_others():
    def salt(who=None):
        return Request(PrefillOptions(), SpeculationOptions().decode, caller=who).salt("s")

    isolated = [salt(caller(name, isolate_cache=True)) for name in ("a", "b")]
    assert len({salt(), *isolated, salt(caller("c"))}) == 4


async def test_special_tokens_around_a_chat_are_left_to_vllm(client, pools, document, reused):
    first, _ = turns(document)
    whole = await prompt_of(client, pools, first, cache_salt="around", add_special_tokens=False)
    reused()
    assert await prompt_of(client, pools, first, cache_salt="around", add_special_tokens=True) == whole
    assert reused() == 0
    await prompt_of(client, pools, first, cache_salt="around")
    assert reused() > 0


async def test_a_prompt_that_is_too_long_gets_vllms_own_error(client, pools, document):
    long = [{"role": "user", "content": document.messages[-1]["content"] * 8}]
    response = await client.post("/v1/chat/completions", json={"model": MODEL_NAME, "messages": long, "max_tokens": 2})
    assert response.status_code == 400
    assert "maximum context length" in response.json()["error"]["message"] or "4096" in response.text


@pytest.mark.parametrize("asked", [True, False])
async def test_a_client_that_renders_gets_vllms_own_offsets_if_it_asks_for_them(client, document, asked):
    body = {"model": MODEL_NAME, "messages": document.messages, "return_token_offsets": asked}
    response = await client.post("/v1/chat/completions/render", json=body)
    assert response.status_code == 200, response.text
    shown = response.json()
    assert (shown["token_offsets"] is not None) == asked
    if asked:
        assert len(shown["token_offsets"]) == len(shown["token_ids"])
