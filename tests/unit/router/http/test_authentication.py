"""The whole app behind API keys: who gets in, what the request then knows, and what its key may use."""

import asyncio
from types import SimpleNamespace

import httpx
import pytest
import pytest_asyncio

from router.admission.api_keys import ApiKeys
from router.admission.ticket import OverloadedError
from router.http.middleware import KeyMiddleware
from router.vllm_front.app import ServedModel, build_openai_app
from skim_common.errors import EngineUnavailableError, InvalidRequestError
from tests.unit.router.admission.test_api_keys import entry, write
from tests.unit.router.conftest import MAX_MODEL_LEN, MODEL_NAME, MODELS, built_with, until
from tests.unit.router.endpoints.test_endpoints import ENDPOINTS, request_body
from tests.unit.router.error_kinds import kind_on

pytestmark = pytest.mark.asyncio(loop_scope="session")

BODY = {"model": MODEL_NAME, "prompt": "x", "max_tokens": 2}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def guarded(served, tmp_path_factory):
    """The dispatcher of `served` behind an app that asks for keys. file: the keys' file."""
    file = write(tmp_path_factory.mktemp("keys") / "keys.yaml", entry("team", "key-1"))
    folder, options = str(MODELS / "target"), {"dtype": "float32", "api_key": ["plain-key"]}
    model = ServedModel(folder, "target", (MODEL_NAME,), MAX_MODEL_LEN, options)
    with built_with(served.dispatcher, api_keys_file=str(file)):
        app = await build_openai_app(served.dispatcher, model)
    served.dispatcher.log.add_routes(app)
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://router", timeout=60) as client:
        yield SimpleNamespace(client=client, app=app, file=file)


def bearer(key):
    return {"authorization": f"Bearer {key}"}


async def status(guarded, headers, path="/v1/completions", method="POST"):
    return (await guarded.client.request(method, path, json=BODY, headers=headers)).status_code


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        (bearer("key-1"), 200),
        (bearer("plain-key"), 200),
        ({"authorization": "bearer key-1"}, 200),
        ({"x-api-key": "key-1"}, 200),
        ({}, 401),
        (bearer("key-2"), 401),
        (bearer("key-1\u00e9".encode("latin-1").decode("latin-1")), 401),
        ({"authorization": "Basic key-1"}, 401),
        ({"authorization": "key-1"}, 401),
        ({"authorization": "Bearer"}, 401),
    ],
)
async def test_who_gets_in(guarded, pools, headers, expected):
    assert await status(guarded, [(k, v.encode("latin-1")) for k, v in headers.items()]) == expected
    assert len(pools.generates) == (expected == 200)


async def test_every_path_of_the_app_is_guarded_but_health_and_metrics(guarded):
    """vLLM's own middleware guards /v1 only: a prompt could reach the pools through /invocations."""
    routes = {(method, route.path) for route in guarded.app.routes for method in getattr(route, "methods", None) or ()}
    assert ("POST", "/invocations") in routes
    for method, path in routes:
        allowed = path in ("/health", "/ping", "/metrics")
        assert (await status(guarded, {}, path, method) != 401) == allowed, path


async def test_the_refusal_has_the_form_of_openai(guarded):
    response = await guarded.client.post("/v1/completions", json=BODY)
    assert response.json()["error"] == {
        "message": "the API key is missing or unknown; send a valid one in the header Authorization: Bearer",
        "type": "AuthenticationError",
        "param": None,
        "code": 401,
    }
    assert response.headers["www-authenticate"] == "Bearer"


async def test_the_cache_of_an_isolated_key_is_its_own(guarded, pools):
    """No salt, and one that both keys send; the second key shares prefixes."""
    write(guarded.file, entry("team", "key-1", isolate_cache=True), entry("spy", "key-2"))
    for key in ("key-1", "key-2"):
        for salt in ({}, {"cache_salt": "mine"}) * 2:
            response = await guarded.client.post("/v1/completions", json=BODY | salt, headers=bearer(key))
            assert response.status_code == 200
    salts = [request.cache_salt for request in pools.generates]
    assert salts[:2] + salts[4:6] == salts[2:4] + salts[6:]
    assert salts[4] is None
    assert len(set(salts)) == 4


async def test_a_salt_of_another_key_or_of_skim_cannot_be_sent(guarded, pools):
    """Two clients, the second one with every salt that it has seen or can guess."""
    write(guarded.file, entry("window", "key-1", isolate_cache=True), entry("spy", "key-2"))
    await guarded.client.post("/v1/completions", json=BODY, headers=bearer("key-1"))
    [mine] = (request.cache_salt for request in pools.generates)
    for sent in ("window:", "window", ":", f"window:{mine}", mine, "team:"):
        await guarded.client.post("/v1/completions", json=BODY | {"cache_salt": sent}, headers=bearer("key-2"))
    spied = [request.cache_salt for request in pools.generates[1:]]
    assert len({mine, *spied}) == 7
    assert not any(salt.startswith("skim") for salt in (mine, *spied))


@pytest.mark.parametrize(
    ("limits", "priority", "expected"),
    [({}, -1, 400), ({}, 0, 200), ({}, 5, 200), ({"min_priority": -3}, -3, 200), ({"min_priority": 2}, 1, 400)],
)
@pytest.mark.parametrize("by_header", [False, True])
async def test_a_key_cannot_make_itself_more_urgent_than_its_entry_allows(
    guarded, pools, limits, priority, expected, by_header
):
    write(guarded.file, entry("team", "key-1", **limits))
    sent = ({}, {"x-vllm-priority": str(priority)}) if by_header else ({"priority": priority}, {})
    response = await guarded.client.post("/v1/completions", json=BODY | sent[0], headers=bearer("key-1") | sent[1])
    assert (response.status_code, [one.priority for one in pools.generates]) == (
        expected,
        [priority] if expected == 200 else [],
    )
    if expected == 400:
        least = limits.get("min_priority", 0)
        assert response.json()["error"]["message"].startswith(f"priority must be at least {least} with this API key")


@pytest.mark.parametrize(
    ("refusal", "status"),
    [
        (EngineUnavailableError("no free replica"), 503),
        (OverloadedError("wait", "busy", 3), 429),
        (InvalidRequestError("too long for this pool"), 400),
    ],
)
async def test_a_refused_prompt_costs_the_key_no_tokens(guarded, pools, refusal, status):
    name = f"refused-{status}"
    write(guarded.file, entry(name, "key-1", prompt_tokens_per_minute=1))
    body = BODY | {"prompt": "a prompt of more than one token"}

    async def answer():
        response = await guarded.client.post("/v1/completions", json=body, headers=bearer("key-1"))
        return response.status_code

    pools.generate_error = refusal
    assert [await answer() for _ in range(3)] == [status] * 3
    pools.generate_error = None
    assert [await answer() for _ in range(2)] == [200, 429]


async def test_a_prompt_that_does_not_fit_costs_the_key_no_tokens(guarded, pools):
    write(guarded.file, entry("long", "key-1", prompt_tokens_per_minute=1))
    tall = BODY | {"prompt": [[5] * 10, [5] * 10], "max_tokens": MAX_MODEL_LEN - 5}
    for body, status in (tall, 400), (tall, 400), (BODY, 200):
        response = await guarded.client.post("/v1/completions", json=body, headers=bearer("key-1"))
        assert response.status_code == status, response.text


async def test_an_answer_that_fails_after_its_first_token_costs_its_prompt(guarded, use_pools):
    write(guarded.file, entry("later", "key-1", prompt_tokens_per_minute=1))
    pools = use_pools()
    generate = pools.generate

    async def fails(request, admitted):
        async for output in generate(request, admitted):
            yield output
            raise EngineUnavailableError("the engine is dead")

    pools.generate = fails
    body = BODY | {"prompt": [5] * 10, "max_tokens": 50, "ignore_eos": True}
    codes = [
        (await guarded.client.post("/v1/completions", json=body, headers=bearer("key-1"))).status_code for _ in "12"
    ]
    assert codes == [503, 429]


@pytest.mark.parametrize("path", ENDPOINTS)
@pytest.mark.parametrize("stream", [False, True])
async def test_tokens_per_minute(guarded, pools, document, path, stream):
    name = f"limited{ENDPOINTS.index(path)}-{stream}"
    write(guarded.file, entry(name, "key-1", prompt_tokens_per_minute=10))
    body = request_body(path, document, stream=stream)
    assert (await guarded.client.post(path, json=body, headers=bearer("key-1"))).status_code == 200
    response = await guarded.client.post(path, json=body, headers=bearer("key-1"))
    error = response.json()["error"]
    assert (response.status_code, error["type"], error["code"]) == (429, kind_on(path, 429, "RateLimitError"), 429)
    assert "10 prompt tokens per minute" in error["message"]
    assert int(response.headers["retry-after"]) > 60
    assert len(pools.generates) == 1


async def test_prompts_that_arrived_together_are_counted(guarded, pools, document):
    """All have passed the middleware before the first is counted."""
    write(guarded.file, entry("together", "key-1", prompt_tokens_per_minute=1))
    body = BODY | {"prompt": document.prompt}
    calls = (guarded.client.post("/v1/completions", json=body, headers=bearer("key-1")) for _ in range(4))
    responses = await asyncio.gather(*calls)
    assert sorted(response.status_code for response in responses) == [200, 429, 429, 429]
    assert all(response.headers["retry-after"] for response in responses if response.status_code == 429)


async def test_requests_at_a_time(guarded, use_pools):
    write(guarded.file, entry("one", "key-1", max_ongoing_requests=1), entry("other", "key-2"))
    pools = use_pools()
    go_on, generate = asyncio.Event(), pools.generate

    async def held(request, admitted):
        pools.held = True
        await go_on.wait()
        async for output in generate(request):
            yield output

    pools.generate, pools.held = held, False
    first = asyncio.create_task(guarded.client.post("/v1/completions", json=BODY, headers=bearer("key-1")))
    await until(lambda: pools.held)
    assert await status(guarded, bearer("key-1")) == 429
    second = asyncio.create_task(guarded.client.post("/v1/completions", json=BODY, headers=bearer("key-2")))
    go_on.set()
    assert [(await one).status_code for one in (first, second)] == [200, 200]
    assert await status(guarded, bearer("key-1")) == 200


async def test_a_selection_is_shown_to_its_own_key_only(guarded, pools, document):
    write(guarded.file, entry("team", "key-1"), entry("spy", "key-2"))
    body = request_body("/v1/completions", document, speculative_prefill={"keep_rate": 0.5})
    view, seen = "/v1/requests/cmpl-chosen/selection", []
    for key in "key-1", "key-2":
        headers = bearer(key) | {"x-request-id": "chosen"}
        if key == "key-2":
            seen.append((await guarded.client.get(view, headers=bearer("key-2"))).status_code)
            body = body | {"prompt": document.prompt + " More."}
        await guarded.client.post("/v1/completions", json=body, headers=headers)
    first, second = [(await guarded.client.get(view, headers=bearer(key))).json() for key in ("key-1", "key-2")]
    assert seen == [404]
    assert first["prompt_tokens"] < second["prompt_tokens"]
    assert (await guarded.client.get(view, headers=bearer("plain-key"))).status_code == 404


async def test_the_pools_ids_are_not_the_clients(guarded, pools, document):
    """A session has the id of its selection: a client that could choose it could reach the session of another one."""
    body = request_body("/v1/completions", document, speculative_prefill="always")
    for _ in range(2):
        headers = bearer("plain-key") | {"x-request-id": "chosen"}
        response = await guarded.client.post("/v1/completions", json=body, headers=headers)
        assert response.json()["id"] == "cmpl-chosen"
    ids = [request.request_id for request in pools.selects]
    assert ids == [request.request_id for request in pools.generates]
    assert [one.partition("~")[0] for one in ids] == ["cmpl-chosen-0"] * 2
    assert len({one.partition("~")[2] for one in ids}) == 2
    assert all(len(one.partition("~")[2]) == 22 for one in ids)
    assert not any(one in str(response.headers) + response.text for one in ids)


async def test_a_refused_body_is_not_read(tmp_path):
    keys = ApiKeys(str(write(tmp_path / "keys.yaml", entry("team", "key-1"))))
    sent = []

    async def receive():
        raise AssertionError("the body was read")

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": []}
    await KeyMiddleware(None, keys)(scope, receive, send)
    assert sent[0]["status"] == 401


async def test_a_websocket_needs_a_key(tmp_path):
    keys = ApiKeys(str(write(tmp_path / "keys.yaml", entry("team", "key-1"))))
    sent, passed = [], []

    async def send(message):
        sent.append(message)

    async def app(scope, receive, send):
        passed.append(scope)

    for headers in [], [(b"authorization", b"Bearer key-1")]:
        scope = {"type": "websocket", "path": "/v1/realtime", "headers": headers}
        await KeyMiddleware(app, keys)(scope, None, send)
    assert (sent, len(passed)) == ([{"type": "websocket.close", "code": 1008, "reason": ""}], 1)
