"""Values of a body that no pool can hold: each is a 400 that names the field, on every endpoint."""

import json
import re

import pytest

from router.http import body as http_body
from router.http.body import parse_body, read_fields
from router.options.errors import InvalidOptionError
from tests.unit.router.bodies import minimal_body
from tests.unit.router.endpoints.test_endpoints import ENDPOINTS
from tests.unit.router.error_kinds import kind_on

CHAT = ENDPOINTS[0]


def written(fields):
    """JSON text, also of integers that have more digits than Python writes by itself."""
    return json.dumps(fields).replace('"huge"', "1" + "0" * 5000).encode()


@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.parametrize("path", ENDPOINTS)
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        *(({"structured_outputs": value}, "structured_outputs") for value in (3, [1], "x", True)),
        ({"stop_token_ids": [1, 2**64]}, "stop_token_ids.1"),
        ({"logit_bias": {"1": -(2**63) - 1}}, "logit_bias.1"),
        *(
            ({"logit_bias": {name: 1}}, f"logit_bias.{name}")
            for name in (f"{2**64}", f" {-(2**63) - 1}", "2" + "_0" * 20)
        ),
        ({"vllm_xargs": {"a": [2**70]}}, "vllm_xargs.a.0"),
        ({"prompt": [2**64]}, "prompt.0"),
        ({"seed": "huge"}, "seed"),
        ({"not_a_field": [{"a": "huge"}]}, "not_a_field.0.a"),
        ({"temperature": float("inf")}, "temperature"),
        ({"top_p": float("nan")}, "top_p"),
        ({"stop": "\ud800"}, "stop"),
        ({"cache_salt": "a\udfff"}, "cache_salt"),
        ({"not_a_field": {"\ud800": 1}}, "not_a_field.\\ud800"),
    ],
)
async def test_a_value_that_no_pool_can_hold_is_a_400(client, pools, path, fields, param):
    body = written({**minimal_body(path), **fields})
    response = await client.post(path, content=body, headers={"content-type": "application/json"})
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert (error["type"], error["code"], error["param"]) == (kind_on(path, 400, "BadRequestError"), 400, param)
    assert param in error["message"]
    assert pools.generates == []


@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.parametrize("field", ["mcp_servers", "container", "compaction", "thread", "output_format"])
async def test_what_only_anthropic_s_servers_do_is_a_400(client, pools, field):
    path = "/v1/messages"
    response = await client.post(path, json={**minimal_body(path), field: [{"type": "x"}]})
    assert response.status_code == 400
    assert response.json()["error"]["message"] == f"{field} has no effect on this endpoint; leave it out"
    assert pools.generates == []
    assert (await client.post(path, json={**minimal_body(path), field: None})).status_code == 200


@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.parametrize("path", ENDPOINTS)
@pytest.mark.parametrize(
    "field",
    [
        {"return_token_offsets": True},
        {"return_assistant_tokens_mask": True},
        {"routed_experts_prompt_start": 1},
        {"kv_transfer_params": {}},
        {"ec_transfer_params": {"a": 1}},
    ],
)
async def test_a_field_that_would_be_ignored_is_a_400(client, pools, path, field):
    [name] = field
    response = await client.post(path, json={**minimal_body(path), **field})
    assert (response.status_code, response.json()["error"]["param"]) == (400, name)
    assert pools.generates == []


@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.parametrize("field", ["background", "truncation"])
async def test_a_null_that_would_break_a_stream_is_a_400(client, field):
    body = {**minimal_body("/v1/responses"), field: None}
    for stream in (True, False):
        response = await client.post("/v1/responses", json={**body, "stream": stream})
        assert response.status_code == 400, response.text
        assert field in response.json()["error"]["message"]
    parse_body(json.dumps(body).encode(), CHAT)


def test_the_render_endpoints_take_their_own_fields():
    body = json.dumps({"return_token_offsets": True, "return_assistant_tokens_mask": True}).encode()
    assert parse_body(body, "/v1/chat/completions/render").fields["return_token_offsets"]


@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.parametrize(
    ("path", "fields", "headers", "message"),
    [
        (CHAT, {"tools": [{"type": "function"}], "tool_choice": {"function": {"name": "a"}}}, {}, '"function"'),
        ("/v1/completions", {"prompt": [2**40]}, {}, "Token id 1099511627776 is out of vocabulary"),
        (CHAT, {"logprobs": True, "logprob_token_ids": [1]}, {}, "logprob_token_ids"),
        (CHAT, {}, {"x-vllm-priority": str(2**70)}, "priority"),
    ],
)
async def test_what_was_a_500_is_a_400(client, path, fields, headers, message):
    response = await client.post(path, json={**minimal_body(path), **fields}, headers=headers)
    assert response.status_code == 400, response.text
    assert message in response.json()["error"]["message"]


@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
@pytest.mark.parametrize("seed", [-(2**63) - 1, 2**63, 2**64, 10**30])
async def test_a_seed_out_of_its_bounds_is_told_in_vllms_words(client, path, seed):
    """vLLM's own tests look for them."""
    response = await client.post(path, json={**minimal_body(path), "seed": seed})
    assert response.status_code == 400
    assert re.search("greater_than_equal|less_than_equal", response.json()["error"]["message"])


@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.parametrize("token", [2**20, 2**31, 2**40])
@pytest.mark.parametrize("more", [0, 600])
async def test_a_token_out_of_the_vocabulary_is_told_in_vllms_words(client, token, more):
    body = {"model": "demo", "prompt": [*[30] * more, token], "max_tokens": 1}
    response = await client.post("/v1/completions", json=body)
    assert response.status_code == 400
    assert f"Token id {token} is out of vocabulary" in response.json()["error"]["message"]


@pytest.mark.parametrize("number", ["1e309", "-1E+400", "1e999", "Infinity", "-Infinity", "NaN", "9" * 400 + ".5"])
def test_a_float_that_overflows_is_refused(number):
    bounds = "greater_than_equal -9223372036854775808 and less_than_equal 18446744073709551615"
    with pytest.raises(InvalidOptionError, match=rf"^a\.0\.b must be a finite number of at most 64 bits, {bounds}$"):
        parse_body(b'{"a": [{"b": %s}]}' % number.encode(), CHAT)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-16-le", "utf-32"])
def test_a_wide_integer_is_found_in_every_encoding_of_json(encoding):
    with pytest.raises(InvalidOptionError, match=r"^a must"):
        parse_body(json.dumps({"a": 2**64}).encode(encoding), CHAT)


@pytest.mark.parametrize(
    "body",
    [
        {"a": [2**64 - 1, -(2**63), 0, True, None]},
        {"a": 1e308, "b": 1e-400, "c": -0.1234567890123456789012},
        {"messages": "NaN, Infinity, 1e999 and 123456789012345678901234567890"},
        {"structured_outputs": None},
        {"logit_bias": {"5": 1, str(2**64 - 1): 1}},
        {"logit_bias": None},
        {"messages": "an emoji is a pair of surrogates: \U0001f600"},
        {"structured_outputs": {"regex": "a"}},
    ],
)
def test_what_fits_passes(body):
    parse_body(json.dumps(body).encode(), CHAT)


@pytest.mark.parametrize("text", ["a", "an emoji \U0001f600", 'texts that keep a "keep"'])
async def test_an_ordinary_body_is_parsed_once_and_in_no_thread(monkeypatch, text):
    for owner, name in ((json, "loads"), (http_body, "parse_body")):
        monkeypatch.setattr(owner, name, lambda *args, **kwargs: pytest.fail("a second parse"))
    fields = {"prompt": list(range(0, 150_000, 11)), "temperature": 1.5e-7, "seed": 2**59, "stop": text}
    assert (await read_fields(json.dumps(fields).encode(), CHAT)).fields == fields


@pytest.mark.parametrize("name", ["tools", "echo", "context_management", "thread", "speculative_prefill"])
@pytest.mark.parametrize("text", ["%s", "\ufeff%s", '{"k": "echo", "other": {"tools": 3}, %s'])
def test_a_field_of_the_router_is_seen_in_any_body(name, text):
    """Whatever else the body has, also behind a byte order mark and in escapes."""
    for shown in (name, f"\\u{ord(name[0]):04x}{name[1:]}"):
        field = json.dumps({name: [1]}).replace(name, shown)
        body = text % (field[1:] if "," in text else field)
        assert parse_body(body.encode(), CHAT).fields[name] == [1]


def test_a_long_name_is_cut():
    with pytest.raises(InvalidOptionError) as refused:
        parse_body(json.dumps({"a" * 100_000: 2**64}).encode(), CHAT)
    assert len(refused.value.param) == 60
