"""Values of a body that no pool can hold: each is a 400 that names the field, on every endpoint."""

import json

import pytest

from router.body import read_fields
from router.options import InvalidOptionError
from tests.unit.router.conftest import MODEL_NAME
from tests.unit.router.test_endpoints import ENDPOINTS


def minimal_body(path):
    """The smallest body that the endpoint answers."""
    messages = [{"role": "user", "content": "x"}]
    prompt = {
        "/v1/chat/completions": {"messages": messages},
        "/v1/completions": {"prompt": "x"},
        "/v1/responses": {"input": "x"},
        "/v1/messages": {"messages": messages},
    }[path]
    return {"model": MODEL_NAME, "max_output_tokens" if path == "/v1/responses" else "max_tokens": 2, **prompt}


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
        ({"vllm_xargs": {"a": [2**70]}}, "vllm_xargs.a.0"),
        ({"prompt": [2**64]}, "prompt.0"),
        ({"seed": "huge"}, "seed"),
        ({"not_a_field": [{"a": "huge"}]}, "not_a_field.0.a"),
        ({"temperature": float("inf")}, "temperature"),
        ({"top_p": float("nan")}, "top_p"),
    ],
)
async def test_a_value_that_no_pool_can_hold_is_a_400(client, pools, path, fields, param):
    body = written({**minimal_body(path), **fields})
    response = await client.post(path, content=body, headers={"content-type": "application/json"})
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert (error["type"], error["code"], error["param"]) == ("BadRequestError", 400, param)
    assert param in error["message"]
    assert pools.generates == []


@pytest.mark.parametrize("number", ["1e309", "-1E+400", "1e999", "Infinity", "-Infinity", "NaN", "9" * 400 + ".5"])
def test_a_float_that_overflows_is_refused(number):
    with pytest.raises(InvalidOptionError, match=r"^a\.0\.b must be a finite number of at most 64 bits$"):
        read_fields(b'{"a": [{"b": %s}]}' % number.encode())


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-16-le", "utf-32"])
def test_a_wide_integer_is_found_in_every_encoding_of_json(encoding):
    with pytest.raises(InvalidOptionError, match=r"^a must"):
        read_fields(json.dumps({"a": 2**64}).encode(encoding))


@pytest.mark.parametrize(
    "body",
    [
        {"a": [2**64 - 1, -(2**63), 0, True, None]},
        {"a": 1e308, "b": 1e-400, "c": -0.1234567890123456789012},
        {"messages": "NaN, Infinity, 1e999 and 123456789012345678901234567890"},
        {"structured_outputs": None},
        {"structured_outputs": {"regex": "a"}},
    ],
)
def test_what_fits_passes(body):
    read_fields(json.dumps(body).encode())


def test_an_ordinary_body_is_not_parsed(monkeypatch):
    monkeypatch.setattr(json, "loads", lambda *args, **kwargs: pytest.fail("a second parse"))
    ids = list(range(0, 150_000, 11))
    assert read_fields(json.dumps({"prompt": ids, "temperature": 1.5e-7, "seed": 2**59}).encode()) == {}


def test_a_long_name_is_cut():
    with pytest.raises(InvalidOptionError) as refused:
        read_fields(json.dumps({"a" * 100_000: 2**64}).encode())
    assert len(refused.value.param) == 60


def test_deep_lists_are_walked_without_recursion():
    with pytest.raises(InvalidOptionError):
        read_fields(b"[" * 900 + b"18446744073709551616" + b"]" * 900)
