"""Which prompts the endpoint has read in windows, without an option. The router decides, so its forecast knows it."""

import pytest

from cluster.demo_document import make_document
from kv_transfer.options import WINDOWS_FROM
from tests.unit.router.conftest import MODEL_NAME

pytestmark = pytest.mark.asyncio(loop_scope="session")

LONG, SHORT = 3500, 1500


async def reading(client, pools, tokens, **options):
    """(read, scoring) of the selection of a chat of about so many tokens, and whether it has a frame."""
    prompt = make_document(tokens, seed=2).prompt
    body = {"model": MODEL_NAME, "messages": [{"role": "user", "content": prompt}], "max_tokens": 2}
    answer = await client.post("/v1/chat/completions", json={**body, "speculative_prefill": options})
    assert answer.status_code == 200
    [asked] = pools.selects
    assert (asked.token_ids.size >= WINDOWS_FROM) == (tokens == LONG)
    return (asked.options.read, asked.options.scoring), asked.frame is not None


async def test_long_prompts_are_read_in_windows(client, use_pools):
    pools = use_pools(speculator={"head_profile": True})
    assert await reading(client, pools, LONG) == (("windows", "heads"), True)


async def test_short_ones_and_those_of_other_options_are_not(client, use_pools):
    for tokens, options in ((SHORT, {}), (LONG, {"read": "whole"}), (LONG, {"look_ahead": 4})):
        pools = use_pools(speculator={"head_profile": True})
        assert (await reading(client, pools, tokens, **options))[0] == ("whole", "attention")


async def test_without_a_head_profile_none_is(client, use_pools):
    assert (await reading(client, use_pools(), LONG))[0] == ("whole", "attention")
