"""A split target with tensor parallelism behind HTTP: prefill on one replica, decode on another, two ranks each."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from ray import serve

from cluster.app import APP_NAME
from cluster.config import config_from_flags
from cluster.demo_document import make_document
from cluster.deployment import deployed
from cluster.preflight import free_port
from tests.e2e.conftest import ROOT

pytest.importorskip("nixl", reason="KV blocks cross by NIXL, of the extra `split`")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    settings = {"target.topology": "split", "target.tensor_parallel": 2, "router.port": free_port()}
    config = config_from_flags(ROOT / "examples" / "demo.yaml", settings)
    with deployed(config, progress=lambda line: None) as url:
        yield url


def counts(pool: str) -> dict[str, Any]:
    """What the pool's replica has counted."""
    found: dict[str, Any] = serve.get_deployment_handle(pool, APP_NAME).stats.remote().result()
    return found


def test_answers_are_right_and_fewer_bytes_cross_for_a_skimmed_prompt(url: str) -> None:
    crossed = {}
    for seed, (name, option) in enumerate({"dense": False, "speculative": {"keep_rate": 0.1}}.items()):
        document = make_document(2000, seed)
        before = counts("target")
        body = {"model": "skim-demo", "messages": document.messages, "max_tokens": 8, "temperature": 0}
        reply = httpx.post(f"{url}/v1/chat/completions", json={**body, "speculative_prefill": option}, timeout=120)
        assert document.is_right(reply.json()["choices"][0]["message"]["content"])
        assert reply.headers["x-skim-mode"] == name
        after = counts("target")
        # Each rank takes its own heads' share.
        assert after["transfers"] - before["transfers"] == 2
        assert after["failed_transfers"] == 0
        crossed[name] = after["transferred_bytes"] - before["transferred_bytes"]
    print("bytes that crossed:", json.dumps(crossed))
    assert 0 < 4 * crossed["speculative"] < crossed["dense"]
    assert counts("target")["accepted"] > 0
