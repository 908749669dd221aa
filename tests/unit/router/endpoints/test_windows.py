"""Which prompts the endpoint has read in windows, without an option. The router decides, so its forecast knows it."""

import pytest

from cluster.demo_document import make_document
from tests.unit.router.conftest import MODEL_NAME

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


async def test_a_template_that_refuses_a_single_text_has_the_prompt_read_whole(client, use_pools, monkeypatch):
    def refused():
        raise ValueError("roles must alternate")

    monkeypatch.setattr("router.vllm_front.renderer.frame_messages", refused)
    pools = use_pools(speculator={"head_profile": True})
    of_its_own = {"a_setting_of_no_other_test": 1}
    assert await reading(client, pools, of_its_own) == (("whole", "attention"), False)
