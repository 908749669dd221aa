"""A split target behind HTTP, with mock engines: one half reads each prompt, the other one decodes the answer."""

import time
from collections.abc import Iterator

import httpx
import pytest
import ray
from ray import serve

from cluster.serve.app import APP_NAME
from tests.e2e.conftest import Served

LIMIT_S = 60


@pytest.fixture(scope="module")
def client(slow_mocks: Served) -> Iterator[httpx.Client]:
    slow_mocks.join_ray()
    with httpx.Client(base_url=slow_mocks.url, timeout=LIMIT_S) as http:
        yield http
    ray.shutdown()


def started() -> tuple[int, int]:
    """The requests of the prefilling and of the decoding half."""
    prefill, target = (
        serve.get_deployment_handle(name, APP_NAME).stats.remote().result(timeout_s=LIMIT_S)["started"]
        for name in ("prefill", "target")
    )
    return prefill, target


def test_each_answer_takes_both_halves(client: httpx.Client) -> None:
    body = {"model": "skim-demo", "prompt": "the price of tea", "max_tokens": 4, "speculative_prefill": False}
    deadline = time.monotonic() + LIMIT_S
    while True:
        before = started()
        answer = client.post("/v1/completions", json=body).raise_for_status().json()
        assert answer["usage"]["completion_tokens"] == 4
        # The router uses the prefilling half as soon as that answers it, perhaps after it answers requests itself.
        after = started()
        if after[0] > before[0]:
            break
        assert time.monotonic() < deadline, "the prefilling half was not used"
    assert (after[0] - before[0], after[1] - before[1]) == (1, 1)
