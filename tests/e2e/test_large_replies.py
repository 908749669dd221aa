"""Requests whose replies would have up to 64 MiB, at random, against two target replicas: none of them is lost.

Each reply is complete, or a 400 that names the limit, and short requests are answered meanwhile. Mock engines.
"""

import asyncio
import random
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import ray
from ray.serve.context import _get_global_client

from cluster.serve.app import APP_NAME
from router.dispatch.sampling_limits import MAX_LOGPROBS
from tests.e2e.conftest import Served, serving
from tests.unit.conftest import MODELS

pytestmark = pytest.mark.nightly

REQUESTS = 40
AT_A_TIME = 4
CALL_S = 300
"""The limit of each call. Without it, a request that is forgotten would hang the test."""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    mock = {"engine": "mock", "cpus_per_replica": 0.1}
    settings = {
        "served_model_name": "skim-demo",
        "speculator": {"model": str(MODELS / "speculator"), **mock},
        "target": {"model": str(MODELS / "target"), "replicas": 2, **mock},
        "router": {"cpus": 0.1},
    }
    with serving(settings, tmp_path_factory.mktemp("large")) as served:
        try:
            served.join_ray()
            yield served
        finally:
            ray.shutdown()


def replica_ids() -> set[str]:
    """Of all replicas that run."""
    status = _get_global_client().get_serve_details()["applications"][APP_NAME]["deployments"]
    return {replica["replica_id"] for one in status.values() for replica in one["replicas"]}


def bodies() -> list[dict[str, Any]]:
    """Log probabilities of the prompt: 1 to 21 for each of 1,000 to 32,000 tokens."""
    rng = random.Random(5)
    return [
        {
            "model": "skim-demo",
            "prompt": [rng.randrange(20, 420) for _ in range(int(1000 * 32 ** rng.random()))],
            "prompt_logprobs": rng.choice([0, 1, 5, 20, 20, 20]),
            "max_tokens": 2,
            "ignore_eos": True,
        }
        for _ in range(REQUESTS)
    ]


async def test_no_replica_is_lost(served: Served) -> None:
    before, places, statuses, largest = replica_ids(), asyncio.Semaphore(AT_A_TIME), [], 0

    async def ask(client: httpx.AsyncClient, body: dict[str, Any]) -> None:
        nonlocal largest
        asked = len(body["prompt"]) * (body["prompt_logprobs"] + 1)
        async with places:
            answer = await client.post("/v1/completions", json=body)
        statuses.append(answer.status_code)
        largest = max(largest, len(answer.content))
        if asked + 2 > MAX_LOGPROBS:
            assert answer.status_code == 400
            assert f"the limit is {MAX_LOGPROBS}" in answer.json()["error"]["message"]
            return
        assert answer.status_code == 200, answer.text[:500]
        told = answer.json()["choices"][0]["prompt_logprobs"]
        assert len(told) == len(body["prompt"])
        assert {len(position) for position in told[1:]} <= {body["prompt_logprobs"] + 1, body["prompt_logprobs"]}

    async def ask_shortly(client: httpx.AsyncClient) -> None:
        while True:
            answer = await client.post("/v1/completions", json={"model": "skim-demo", "prompt": [5], "max_tokens": 1})
            assert answer.status_code == 200

    async with httpx.AsyncClient(base_url=served.url, timeout=CALL_S) as client:
        short = asyncio.create_task(ask_shortly(client))
        await asyncio.gather(*(ask(client, body) for body in bodies()))
        assert not short.done()
        short.cancel()
    assert {200, 400} == set(statuses)
    assert largest > 8 * 2**20  # more than a message between replicas holds by default
    assert replica_ids() == before
