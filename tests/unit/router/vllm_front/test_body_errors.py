"""What a wrong body costs and says: no more errors and no longer a text for more wrong elements."""

import json
import re

import pytest
from fastapi.routing import APIRoute
from pydantic import TypeAdapter, ValidationError

from router.options.request import PrefillOptions
from router.vllm_front.body_errors import MAX_ERROR_CHARS, MAX_ERRORS, client_sentence, fail_fast
from tests.unit.router.bodies import SCHEMAS, minimal_body

FEW, MANY = 20, 500

CHAT, COMPLETIONS, RESPONSES, MESSAGES = (
    f"/v1/{name}" for name in ("chat/completions", "completions", "responses", "messages")
)


def turn(content, role="user"):
    return {"messages": [{"role": role, "content": content}]}


def named(size, value):
    return {f"name {number}": value for number in range(size)}


WRONG = {
    "a token below 0": (COMPLETIONS, lambda size: {"prompt": [*[1] * size, -1]}),
    "no tokens": (COMPLETIONS, lambda size: {"prompt": [{}] * size}),
    "stop_token_ids": (COMPLETIONS, lambda size: {"stop_token_ids": ["x"] * size}),
    "logit_bias": (COMPLETIONS, lambda size: {"logit_bias": named(size, "x")}),
    "vllm_xargs": (COMPLETIONS, lambda size: {"vllm_xargs": named(size, {})}),
    "a list in vllm_xargs": (COMPLETIONS, lambda size: {"vllm_xargs": {"a": [{}] * size}}),
    "empty messages": (CHAT, lambda size: {"messages": [{}] * size}),
    "messages of the wrong kind": (CHAT, lambda size: {"messages": [3] * size}),
    "tools": (CHAT, lambda size: {"tools": [{}] * size}),
    "documents": (CHAT, lambda size: {"documents": [named(size, 3)]}),
    "media_io_kwargs": (CHAT, lambda size: {"media_io_kwargs": named(size, 3)}),
    "items": (RESPONSES, lambda size: {"input": [{}] * size}),
    "items of the wrong kind": (RESPONSES, lambda size: {"input": [1] * size}),
    "parts of an item": (RESPONSES, lambda size: {"input": [{"role": "user", "content": [{}] * size}]}),
    "tools of a response": (RESPONSES, lambda size: {"tools": [{}] * size}),
    "metadata": (RESPONSES, lambda size: {"metadata": named(size, 3)}),
    "messages for Anthropic": (MESSAGES, lambda size: {"messages": [{}] * size}),
    "blocks": (MESSAGES, lambda size: turn([{}] * size)),
    "system": (MESSAGES, lambda size: {"system": [{}] * size}),
    "tools for Anthropic": (MESSAGES, lambda size: {"tools": [{}] * size}),
}
ALSO_WRONG = {
    "a token below 0 in one of two prompts": (COMPLETIONS, lambda size: {"prompt": [[1, 2], [*[1] * size, -1]]}),
    "parts of a message": (CHAT, lambda size: turn([{}] * size)),
    "parts of the wrong kind": (CHAT, lambda size: turn([1] * size)),
    "calls of tools": (
        CHAT,
        lambda size: {"messages": [{"role": "assistant", "content": "x", "tool_calls": [{}] * size}]},
    ),
}
"""What vLLM reads after the body as a whole, and what pydantic refuses by the first elements."""


def field_of(app, path):
    """The app's own reader of a body."""
    [route] = [route for route in app.routes if isinstance(route, APIRoute) and route.path == path]
    [field] = route.dependant.body_params
    return field


def plain_errors(path, body):
    try:
        TypeAdapter(SCHEMAS[path]).validate_python(body)
    except ValidationError as error:
        return error.error_count()
    return 0


@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.parametrize("kind", WRONG)
async def test_more_wrong_elements_cause_no_more_errors(served, kind):
    path, fields = WRONG[kind]
    few, many = ({**minimal_body(path), **fields(size)} for size in (FEW, MANY))
    field = field_of(served.app, path)
    assert len(field.validate(few)[1]) == len(field.validate(many)[1]) > 0
    assert plain_errors(path, many) - plain_errors(path, few) >= MANY - FEW  # pydantic itself collects them all


@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.parametrize("kind", [*WRONG, *ALSO_WRONG])
async def test_the_text_is_one_line_that_does_not_grow(client, kind):
    path, fields = (WRONG | ALSO_WRONG)[kind]
    texts = []
    for size in (FEW, MANY):
        response = await client.post(path, json={**minimal_body(path), **fields(size)})
        assert response.status_code == 400, response.text
        texts.append(response.json()["error"]["message"])
    few, many = texts
    assert "\n" not in many
    assert "http" not in many
    assert re.sub(r"\d+", "n", few) == re.sub(r"\d+", "n", many)
    assert len(many) < (MAX_ERRORS + 1) * MAX_ERROR_CHARS


@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.parametrize(
    ("path", "body", "param", "message"),
    [
        (COMPLETIONS, {"prompt": [5, -1]}, "body.prompt.1", "greater_than_equal"),
        (COMPLETIONS, {"prompt": [5, "x"]}, "body.prompt.1", "Input should be a valid string (string_type)"),
        (CHAT, {"tools": [{"type": "function"}]}, "body.tools.0.function", "Field required (missing)"),
        (CHAT, {"seed": "x"}, "body.seed", "int_parsing"),
        (CHAT, {"model": {"a" * 90_000: 1}}, "body.model", "string_type"),
        (RESPONSES, {"metadata": {"a" * 90_000: 1}}, f"body.metadata.{'a' * 57}...", "string_type"),
    ],
)
async def test_an_error_names_its_place_and_has_pydantics_words(client, path, body, param, message):
    response = await client.post(path, json={**minimal_body(path), **body})
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["param"] == param
    assert re.match(r"\d+ validation errors?: body\.", error["message"])
    assert message in error["message"]
    assert len(response.content) < 2000


@pytest.mark.asyncio(loop_scope="session")
async def test_json_that_cannot_be_parsed_is_told(client):
    response = await client.post(CHAT, content=b'{"a": [', headers={"content-type": "application/json"})
    assert response.status_code == 400
    assert "JSON decode error: Expecting value (json_invalid)" in response.json()["error"]["message"]


def test_the_options_of_skim_stop_at_the_first_wrong_name():
    with pytest.raises(ValidationError) as told:
        PrefillOptions(keep_by_role=named(MANY, 3))
    assert told.value.error_count() == 1


def test_only_lists_and_objects_change():
    """A default and an object's field that is called `type` are no kinds of a schema."""
    schema = {
        "type": "typed-dict",
        "fields": {"type": {"type": "typed-dict-field", "schema": {"type": "list"}}},
        "default": {"type": "list"},
    }
    changed = fail_fast(schema)
    assert changed["fields"]["type"]["schema"] == {"type": "list", "fail_fast": True}
    assert changed["default"] == {"type": "list"}
    assert json.dumps(schema).count("fail_fast") == 0


def test_the_sentence_of_many_errors_ends_with_their_number():
    errors = [{"type": "missing", "loc": ("body", f"a{n}"), "msg": "Field required"} for n in range(20)]
    text = client_sentence(errors)
    assert text.startswith("20 validation errors: body.a0: Field required (missing); body.a1")
    assert text.endswith("; and 12 more")
    assert client_sentence(errors[:1] * 3) == "1 validation error: body.a0: Field required (missing)"
    assert len(client_sentence([{**errors[0], "msg": "x" * 10**6}])) < 2 * MAX_ERROR_CHARS
