"""No prompt, API key, path or host leaves the router in a log record, a metric, a header or an error."""

import json
import logging
import socket
from types import SimpleNamespace

import httpx
import pytest

from router.vllm_front.app import ServedModel, build_openai_app
from skim_common.errors import EngineUnavailableError, SkimError
from tests.unit.router.admission.test_api_keys import entry, write
from tests.unit.router.conftest import MAX_MODEL_LEN, MODEL_NAME, MODELS, built_with
from tests.unit.router.endpoints.test_endpoints import ENDPOINTS, request_body
from tests.unit.router.endpoints.test_logs import logged  # noqa: F401

pytestmark = pytest.mark.asyncio(loop_scope="session")

PROMPT, KEY, WRONG_KEY = "xylophone-marker", "sk-key-marker", "sk-wrong-marker"
SECRETS = {
    "prompt": PROMPT,
    "key": KEY,
    "wrong key": WRONG_KEY,
    "path": str(MODELS.parent),
    "host": socket.gethostname(),
}


class Metrics:
    """Remembers every name and tag."""

    def __init__(self):
        self.text = ""

    def record(self, name, value, **tags):
        self.text += f"{name} {value} {tags}\n"


def leaks(text):
    return [what for what, marker in SECRETS.items() if marker in text]


@pytest.fixture
async def guarded(served, tmp_path, monkeypatch):
    """An app behind a key, over the dispatcher of `served`. metrics: what it records."""
    file = write(tmp_path / "keys.yaml", entry("team", KEY))
    folder, metrics = str(MODELS / "target"), Metrics()
    monkeypatch.setattr(served.dispatcher, "meter", metrics)
    model = ServedModel(folder, "target", (MODEL_NAME,), MAX_MODEL_LEN, {"dtype": "float32"})
    with built_with(served.dispatcher, api_keys_file=str(file)):
        app = await build_openai_app(served.dispatcher, model)
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://router", timeout=60) as client:
        yield SimpleNamespace(client=client, metrics=metrics, file=file)


async def test_nothing_leaks(guarded, pools, document, logged):  # noqa: F811
    headers = {"authorization": f"Bearer {KEY}"}
    seen, statuses = [], set()

    async def ask(path, body, headers=headers):
        response = await guarded.client.post(path, json=body, headers=headers)
        statuses.add(response.status_code)
        # An answer may repeat its prompt, and a 400 the value that it refuses; nothing else may.
        own = response.status_code in (200, 400)
        seen.append(str(response.headers) + (response.text.replace(PROMPT, "") if own else response.text))

    for path in ENDPOINTS:
        body = json.loads(json.dumps(request_body(path, document)).replace("code", PROMPT))
        assert PROMPT in json.dumps(body)
        for wrong in ({}, {"stream": True}, {"speculative_prefill": {"keep_rate": 7}}, {"temperature": PROMPT}):
            await ask(path, body | wrong)
        await ask(path, body | {"max_tokens": 10**6, "max_output_tokens": 10**6})
        await ask(path, body, {"authorization": f"Bearer {WRONG_KEY}"})
        await ask(path, body, headers | {"x": "y" * 40_000})
        for failure in (
            EngineUnavailableError("no replica is free"),
            SkimError("the pools disagree"),
            RuntimeError(f"open {MODELS} failed"),
        ):
            pools.generate_error = failure
            for stream in (False, True):
                await ask(path, body | {"stream": stream})
        pools.generate_error, pools.select_error = None, EngineUnavailableError("gone")
        await ask(path, body)
        pools.select_error = None
    write(guarded.file, {"name": "team", "sha256": [KEY]})
    await ask(ENDPOINTS[0], body)
    assert statuses == {200, 400, 401, 431, 500, 503}
    # The stack trace of an unforeseen error names files.
    traces = [line for line in logged if "Traceback" in line]
    records = "\n".join(line for line in logged if line not in traces)
    assert set(leaks("\n".join(traces))) == {"path"}
    for said in ("runs dense: gone", "the keys stay as they were"):
        assert said in records, "the expected records are logged"
    assert "skim_router_" in guarded.metrics.text
    assert {"logs": leaks(records), "metrics": leaks(guarded.metrics.text), "responses": leaks("".join(seen))} == {
        "logs": [],
        "metrics": [],
        "responses": [],
    }


async def test_a_leak_would_be_found(logged):  # noqa: F811
    """The control."""
    logging.getLogger("router.dispatch.dispatcher").warning("%s %s %s %s", PROMPT, KEY, MODELS, socket.gethostname())
    metrics = Metrics()
    metrics.record("skim_x", 1, key=WRONG_KEY)
    assert leaks("\n".join(logged)) == ["prompt", "key", "path", "host"]
    assert leaks(metrics.text) == ["wrong key"]
