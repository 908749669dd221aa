"""Errors that a client sees: one HTTP error in the form of the endpoint, also for streams."""

import asyncio
import json
import re
from types import SimpleNamespace

import pytest
from openai import APIError, AsyncOpenAI

from router.vllm_front.app import _problem_of
from skim_common.errors import EngineUnavailableError, InvalidRequestError, SkimError
from tests.unit.router.conftest import MAX_MODEL_LEN, MODEL_NAME, until
from tests.unit.router.endpoints.test_endpoints import ENDPOINTS, ask, request_body
from tests.unit.router.error_kinds import kind_on

pytestmark = pytest.mark.asyncio(loop_scope="session")

INTERNAL = "an internal error stopped this request; the server's log has the cause"


async def refused(client, path, body, status, **kwargs):
    """The error object of a response with `status`."""
    response = await client.post(path, **({"json": body} if isinstance(body, dict) else {"content": body}), **kwargs)
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    assert "Traceback" not in response.text
    error = response.json()["error"]
    assert error["code"] == status
    return SimpleNamespace(**error, headers=response.headers)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ENDPOINTS)
@pytest.mark.parametrize(
    ("failure", "status", "kind", "message"),
    [
        (EngineUnavailableError("no replica is free"), 503, "ServiceUnavailableError", "no replica is free"),
        (InvalidRequestError("too many of them"), 400, "BadRequestError", "too many of them"),
        (SkimError("the pools disagree"), 500, "InternalServerError", "the pools disagree"),
        (RuntimeError("secret /root/path"), 500, "InternalServerError", INTERNAL),
    ],
)
async def test_a_failing_target_is_one_clean_error(
    client, pools, document, path, stream, failure, status, kind, message
):
    pools.generate_error = failure
    error = await refused(client, path, request_body(path, document, stream=stream), status)
    assert error.type == kind_on(path, status, kind)
    assert message in error.message
    assert "secret" not in error.message
    assert error.headers.get("retry-after") == ("1" if status == 503 else None)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_failing_speculator_costs_no_answer(client, pools, document, stream):
    pools.select_error = EngineUnavailableError("gone")
    response = await ask(client, ENDPOINTS[0], request_body(ENDPOINTS[0], document, stream=stream))
    assert (response.headers["x-skim-mode"], response.headers["x-skim-reason"]) == ("dense", "speculator-error")
    assert "gone" not in response.text


@pytest.mark.parametrize("stream", [False, True])
async def test_what_the_speculator_refuses_is_a_400(client, pools, document, stream):
    pools.select_error = InvalidRequestError("token id 5000 is outside")
    error = await refused(client, ENDPOINTS[0], request_body(ENDPOINTS[0], document, stream=stream), 400)
    assert "token id 5000 is outside" in error.message
    assert pools.generates == []


class Breaking:
    """Pools whose target breaks after its second output: the first may be a part of a character, which is no event."""

    untrusted = False

    def __init__(self, pools):
        self.speculator, self.target, self.select = pools.speculator, pools.target, pools.select
        self.replicas = pools.replicas
        self._generate = pools.generate

    async def generate(self, request, admitted):
        outputs = 0
        async for output in self._generate(request):
            yield output
            outputs += 1
            if outputs == 2:
                raise RuntimeError("secret /root/path")


@pytest.mark.parametrize("path", ENDPOINTS)
async def test_an_error_inside_a_stream_shows_nothing_of_its_inside(served, client, pools, document, path, monkeypatch):
    """The status is sent with the first token, so a later error is an event of the stream."""
    monkeypatch.setattr(served.dispatcher, "pools", Breaking(pools))
    response = await client.post(path, json=request_body(path, document, stream=True))
    assert response.status_code == 200
    assert response.headers["x-skim-mode"] == "speculative"
    assert response.text.endswith("\n\n")
    name, data = response.text.removesuffix("\n\n").rpartition("event: ")[2].split("\ndata: ")
    assert (name, json.loads(data)["error"]["message"]) == ("error", INTERNAL)
    assert "secret" not in response.text
    assert "pydantic" not in response.text


async def test_the_openai_client_raises_an_error_inside_a_stream(served, client, pools, document, monkeypatch):
    monkeypatch.setattr(served.dispatcher, "pools", Breaking(pools))
    openai = AsyncOpenAI(base_url="http://router/v1", api_key="none", http_client=client, max_retries=0)
    streams = (
        await openai.chat.completions.create(model=MODEL_NAME, messages=document.messages, max_tokens=4, stream=True),
        await openai.responses.create(model=MODEL_NAME, input=document.prompt, max_output_tokens=4, stream=True),
    )
    for stream in streams:
        with pytest.raises(APIError, match=INTERNAL):
            async for _ in stream:
                pass


@pytest.mark.parametrize("path", ENDPOINTS)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_wrong_option_is_a_400_that_names_it(client, pools, document, path, stream):
    body = request_body(path, document, stream=stream, speculative_prefill={"keep_rate": 2})
    error = await refused(client, path, body, 400)
    assert error.message == "speculative_prefill.keep_rate must be auto or a number > 0 and <= 1, not 2"
    assert (error.type, error.param) == (kind_on(path, 400, "BadRequestError"), "speculative_prefill.keep_rate")
    error = await refused(client, path, request_body(path, document), 400, headers={"x-skim-prefill": "keep=2"})
    assert error.param == "speculative_prefill.keep_rate"
    assert pools.selects == pools.generates == []


@pytest.mark.parametrize(
    "option", [b"1", b'{"\\ud800": 1}', b'{"keep_rate": NaN}', b'{"keep_rate": ' + b"9" * 400 + b"}", b'{"x": {}}']
)
async def test_odd_options_are_400s_too(client, document, option):
    body = json.dumps(request_body(ENDPOINTS[0], document)).encode()
    body = body[:-1] + b', "speculative_prefill": ' + option + b"}"
    error = await refused(client, ENDPOINTS[0], body, 400, headers={"content-type": "application/json"})
    assert error.param.startswith("speculative_prefill")


@pytest.mark.parametrize("path", ENDPOINTS)
async def test_reserved_fields_are_refused(client, pools, document, path):
    error = await refused(client, path, request_body(path, document, kv_transfer_params={"skim": 1}), 400)
    assert error.param == "kv_transfer_params"
    assert pools.generates == []


async def test_reserved_arguments_are_refused_behind_the_middleware_too(client, pools, document, monkeypatch):
    """The engine client refuses reserved arguments even if the middleware lets them through."""
    monkeypatch.setattr("router.http.body._RESERVED", ())
    monkeypatch.setattr("router.http.body.reserved_names", lambda names: ())
    for fields in ({"kv_transfer_params": {"a": 1}}, {"vllm_xargs": {"skim_positions": "0"}}):
        error = await refused(client, ENDPOINTS[0], request_body(ENDPOINTS[0], document, **fields), 400)
        assert "is reserved for the server" in error.message
    assert pools.generates == []


@pytest.mark.parametrize(
    ("path", "body", "names"),
    [
        ("/v1/completions", {"prompt": [5] * 4090, "max_tokens": 7}, ("4090", "7", str(MAX_MODEL_LEN))),
        ("/v1/completions", {"prompt": [5] * 4097, "max_tokens": 1}, ("4097", str(MAX_MODEL_LEN))),
        ("/v1/completions", {"prompt": [5], "max_tokens": 5000}, ("5000", str(MAX_MODEL_LEN))),
        ("/v1/completions", {"prompt": ""}, ("prompt",)),
        ("/v1/completions", {"prompt": []}, ("prompt",)),
        ("/v1/completions", {"prompt": [5, 99999]}, ("99999",)),
        ("/v1/completions", {"prompt": "x", "max_tokens": 0.5}, ("max_tokens",)),
        ("/v1/chat/completions", {"messages": "x"}, ("messages",)),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "top_p": 2}, ("top_p",)),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_wrong_request_is_a_400_before_any_engine_sees_it(client, pools, path, body, names, stream):
    error = await refused(client, path, {"model": MODEL_NAME, "stream": stream, **body}, 400)
    assert all(name in error.message for name in names)
    assert pools.selects == []
    assert pools.target_engine.running == 0


@pytest.mark.parametrize("stream", [False, True])
async def test_a_speculator_that_reads_less_than_the_target(use_pools, client, document, stream):
    pools = use_pools(speculator={"max_model_len": 500})
    error = await refused(client, ENDPOINTS[0], request_body(ENDPOINTS[0], document, stream=stream), 400)
    assert f"the prompt has {document.prompt_tokens} tokens and look_ahead is 8" in error.message
    assert "at most 500" in error.message
    dense = request_body(ENDPOINTS[0], document, stream=stream, speculative_prefill=False)
    await ask(client, ENDPOINTS[0], dense)
    assert pools.selects == []


async def test_no_adapter_and_no_other_model_is_served(client, pools, document):
    error = await refused(client, ENDPOINTS[0], request_body(ENDPOINTS[0], document) | {"model": "my-lora"}, 404)
    assert "my-lora" in error.message
    assert pools.generates == []


@pytest.mark.parametrize("body", [b"", b"{", b'{"model": "demo", "echo"', b"[]"])
async def test_a_malformed_body_is_vllms_to_refuse(client, body):
    error = await refused(client, ENDPOINTS[0], body, 400, headers={"content-type": "application/json"})
    assert "reserved" not in error.message


def raw_call(body, path=ENDPOINTS[0], leave=None):
    """scope, receive and send of a client that sends `body` and disconnects when the event `leave` is set."""
    scope = {
        "type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b"",
        "headers": [(b"content-type", b"application/json"), (b"host", b"router")], "http_version": "1.1",
        "asgi": {"version": "3.0", "spec_version": "2.3"}, "scheme": "http", "client": ("c", 1), "server": ("s", 80),
    }  # fmt: skip
    messages = [{"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}]
    sent = []

    async def receive():
        if messages:
            return messages.pop()
        if leave is not None:
            await leave.wait()
        return {"type": "http.disconnect"}

    async def send(message):
        sent.append(message)

    return scope, receive, send


@pytest.mark.parametrize("path", ENDPOINTS)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("slow", ["speculator", "prefill", "decode"])
async def test_a_client_that_leaves_frees_both_pools(served, use_pools, document, path, stream, slow):
    pools = use_pools(
        speculator={"latency_ms": 600_000} if slow == "speculator" else {},
        target={} if slow == "speculator" else {f"{slow}_ms": 600_000},
    )
    engine = pools.speculator_engine if slow == "speculator" else pools.target_engine
    leave = asyncio.Event()
    body = request_body(path, document, stream=stream)
    served_call = asyncio.create_task(served.app(*raw_call(body, path, leave)))
    await until(lambda: engine.running)
    leave.set()
    await asyncio.wait_for(served_call, 30)
    await until(lambda: not engine.running)
    assert engine.aborted == 1


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/tokenize"])
async def test_a_message_without_a_role_is_a_400(client, path):
    """Found by fuzzing: vLLM's schema allows such messages (harmony's `author`), its renderer does not."""
    body = {"model": MODEL_NAME, "messages": [{"author": {"role": "user", "name": None}}]}
    response = await client.post(path, json=body)
    assert response.status_code == 400
    assert response.json()["error"]["message"] == "message 0 has no role; give it one, such as user"


@pytest.mark.parametrize("kind", ["custom_tool_call", "item_reference", "computer_call_output"])
async def test_an_item_that_is_not_supported_is_named(client, kind):
    items = {
        "custom_tool_call": {"call_id": "c1", "name": "apply_patch", "input": "x"},
        "item_reference": {"id": "x"},
        "computer_call_output": {"call_id": "c1", "output": {"type": "computer_screenshot", "image_url": "data:,"}},
    }
    asked = [{"type": "message", "role": "user", "content": "hi"}, {"type": kind, **items[kind]}]
    response = await client.post("/v1/responses", json={"model": MODEL_NAME, "input": asked})
    assert response.status_code == 400
    assert f'an item of the type "{kind}" is not supported here' in response.json()["error"]["message"]


PYTHON = re.compile(r"'\w+' object|NoneType|KeyError|index out of range|__\w+__|unhashable|\bdict\b|subscriptable")
"""The words of Python's exceptions, which tell a client nothing."""


@pytest.mark.parametrize(
    "error",
    [
        KeyError("content"),
        KeyError(3),
        IndexError("list index out of range"),
        TypeError("'NoneType' object is not iterable"),
        AttributeError("'str' object has no attribute 'get'"),
    ],
)
async def test_no_sentence_is_made_of_a_python_exception(error):
    text = _problem_of(error)
    assert not PYTHON.search(text)
    assert text.endswith(("add it", "correct it"))


async def test_items_of_a_response_that_vllm_cannot_read_are_a_400(client):
    """Found by fuzzing: vLLM takes a tool search that stands before another item for a message."""
    search = {"type": "tool_search_call", "id": "1", "call_id": None, "arguments": {}, "execution": "server"}
    items = [{**search, "status": "incomplete", "created_by": "x"}, {"role": "user", "content": "x"}]
    response = await client.post("/v1/responses", json={"model": MODEL_NAME, "input": items})
    assert response.status_code == 400
    assert 'of the type "tool_search_call"' in response.json()["error"]["message"]


async def test_an_earlier_answer_without_content_is_a_400(client):
    """Found by fuzzing: vLLM takes the first content of such a message."""
    items = [{"type": "message", "id": "1", "role": "assistant", "status": "completed", "content": []}]
    error = await refused(client, "/v1/responses", {"model": MODEL_NAME, "input": items}, 400)
    assert "empty list" in error.message


@pytest.mark.parametrize("kind", [IndexError, OSError])
async def test_an_error_outside_of_the_pools_shows_nothing_of_its_inside(served, client, document, monkeypatch, kind):
    async def fail(*_, **__):
        raise kind("secret /root/path")

    monkeypatch.setattr(served.app.state.openai_serving_chat, "create_chat_completion", fail)
    error = await refused(client, ENDPOINTS[0], request_body(ENDPOINTS[0], document), 500)
    assert (error.type, error.message) == ("InternalServerError", INTERNAL)
