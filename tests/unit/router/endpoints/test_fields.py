"""docs/fields.md describes every field of vLLM's request schemas and of its SamplingParams, and no other."""

import re
from pathlib import Path

import pytest
from vllm.sampling_params import SamplingParams

from tests.unit.router.bodies import SCHEMAS, minimal_body
from tests.unit.router.endpoints.test_endpoints import ENDPOINTS

TABLE = (Path(__file__).parents[4] / "docs" / "fields.md").read_text()
ROW = re.compile(r"^\| `(\w+)` \| ([\w, ]+) \| (acts|refused|information) \| (.+) \|$", re.MULTILINE)
NAMES = dict(zip(("chat", "completions", "responses", "messages"), SCHEMAS.values(), strict=True))

# A value that asks for something, for each refused field.
ASKING = {
    "background": True,
    "chat_template": "x",
    "ec_transfer_params": {"a": 1},
    "kv_transfer_params": {"a": 1},
    "previous_response_id": "resp_1",
    "prompt_embeds": "AAAA",
    "return_assistant_tokens_mask": True,
    "return_token_offsets": True,
    "routed_experts_prompt_start": 1,
    "suffix": "x",
}


def described():
    """{field: places} of the table."""
    return {field: places.split(", ") for field, places, _, _ in ROW.findall(TABLE)}


def refused_fields():
    return [
        (path, field)
        for field, places, status, _ in ROW.findall(TABLE)
        for path, place in zip(SCHEMAS, NAMES, strict=True)
        if status == "refused" and place in places.split(", ")
    ]


def test_the_table_has_every_field_and_no_other():
    fields = {}
    for place, schema in NAMES.items():
        for field in schema.model_fields:
            fields.setdefault(field, []).append(place)
    for field in SamplingParams.__struct_fields__:
        fields.setdefault(field, []).append("sampling")
    assert described() == fields


def test_each_row_is_read():
    assert len(ROW.findall(TABLE)) == TABLE.count("\n| `") == len(described())


@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.parametrize(("path", "field"), refused_fields())
async def test_a_refused_field_is_a_4xx_and_reaches_no_pool(client, pools, path, field):
    assert path in ENDPOINTS
    response = await client.post(path, json={**minimal_body(path), field: ASKING[field]})
    assert response.status_code in (400, 404), response.text
    assert pools.generates == []
