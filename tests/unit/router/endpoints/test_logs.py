"""By default, the router and the services of the pools log no prompt and no answer."""

import logging
from collections.abc import Iterator

import pytest

from actors.pool_actor import reply_to_failure
from skim_common.errors import EngineUnavailableError
from tests.unit.router.conftest import MODEL_NAME
from tests.unit.router.endpoints.test_endpoints import ENDPOINTS, request_body

pytestmark = pytest.mark.asyncio(loop_scope="session")

SECRET = "passcode of the kettle"


class Collector(logging.Handler):
    """All log records as text, with their stack traces."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(logging.Formatter().format(record))


@pytest.fixture
def logged() -> Iterator[list[str]]:
    collector = Collector()
    # The loggers of vLLM and Serve do not propagate to the root logger.
    loggers = [logging.getLogger(name) for name in (None, "vllm", "ray.serve")]
    root_level = loggers[0].level
    loggers[0].setLevel(logging.INFO)
    for logger in loggers:
        logger.addHandler(collector)
    yield collector.lines
    for logger in loggers:
        logger.removeHandler(collector)
    loggers[0].setLevel(root_level)


@pytest.mark.parametrize("path", ENDPOINTS)
async def test_no_prompt_is_logged(client, pools, document, logged, path):
    body = request_body(path, document)
    field = next(name for name in ("prompt", "input", "messages") if name in body)
    good = [body, {**body, "stream": True}]
    broken = [
        {**body, "speculative_prefill": {"keep_rate": 7}},
        {**body, "temperature": document.document},
        {**body, field: {"role": document.document}},
        {**body, "max_tokens": 10**6, "max_output_tokens": 10**6},
    ]
    statuses = [(await client.post(path, json=one)).status_code for one in (*good, *broken)]
    assert statuses[:2] == [200, 200]
    assert all(400 <= status < 500 for status in statuses[2:])
    failures = (EngineUnavailableError("gone"), None), (None, RuntimeError("not foreseen"))
    for pools.select_error, pools.generate_error in failures:
        await client.post(path, json=body)
    text = "\n".join(logged)
    for said in ("runs dense: gone", "failed in the router", "RuntimeError: not foreseen"):
        assert said in text, "the expected records are logged"
    told = [word for word in set(document.document.split()) if len(word) > 5 and word in text]
    assert told == []


async def test_a_prompt_in_a_log_would_be_seen(logged):
    """The control: a prompt would be found in each of these loggers."""
    for name in ("router.dispatch.dispatcher", "speculator_service.drafting", "vllm.entrypoints", "ray.serve"):
        logging.getLogger(name).warning("prompt: %s", SECRET)
    reply_to_failure(RuntimeError(SECRET), "target")
    assert sum(SECRET in line for line in logged) == 5


async def test_records_of_a_request_name_it(client, pools, document, logged):
    pools.select_error = EngineUnavailableError("gone")
    body = {"model": MODEL_NAME, "prompt": document.prompt, "max_tokens": 2}
    await client.post("/v1/completions", json=body, headers={"x-request-id": "the-clients-own"})
    [dense] = [line for line in logged if "runs dense" in line]
    assert dense == "request cmpl-the-clients-own-0 runs dense: gone"
