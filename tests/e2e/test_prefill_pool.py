"""A split target with tensor parallelism behind HTTP: prefill on one replica, decode on another, two ranks each."""

import json
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from ray import serve

from cluster.config.load import config_from_flags
from cluster.serve.app import APP_NAME
from cluster.serve.deployment import deployed
from demo_models.documents import make_document
from demo_models.ports import free_port
from tests.e2e.conftest import ROOT
from tests.reference.otlp_receiver import Receiver, otlp_receiver

pytest.importorskip("nixl", reason="KV blocks cross by NIXL, of the extra `split`")
pytestmark = pytest.mark.nightly

LONG = 96
"""Tokens of an answer that outlasts the drafter's read of the kept prompt, which begins late on a shared device."""


@pytest.fixture(scope="module")
def collector() -> Iterator[Receiver]:
    with otlp_receiver() as receiver:
        yield receiver


@pytest.fixture(scope="module")
def url(collector: Receiver, every_core: None) -> Iterator[str]:
    settings = {
        "target.topology": "split",
        "target.tensor_parallel": 2,
        "router.port": free_port(),
        "router.speculative_prefill": "always",
        "observability.traces": {"endpoint": collector.url},
        "target.engine_options.otlp_traces_endpoint": f"{collector.url}/v1/traces",
        "target.env.OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
    }
    config = config_from_flags(ROOT / "examples" / "demo.yaml", settings)
    with deployed(config, progress=lambda line: None) as url:
        wait_for_both_halves(url)
        yield url


def wait_for_both_halves(url: str) -> None:
    """The router uses the prefill half as soon as that answers it, perhaps after it answers requests itself."""
    body = {"model": "skim-demo", "max_tokens": 1, "speculative_prefill": False}
    deadline = time.monotonic() + 60
    seed = 100
    while counts("target")["transfers"] == 0:
        assert time.monotonic() < deadline, "the prefill half was not used"
        seed += 1
        messages = make_document(500, seed).messages
        httpx.post(f"{url}/v1/chat/completions", json={**body, "messages": messages}, timeout=60).raise_for_status()
        time.sleep(1.0)


def counts(pool: str) -> dict[str, Any]:
    """The counters of the pool's replica."""
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
        # Each rank transfers the blocks of its own heads. The engine reports it with a step, perhaps after the answer.
        deadline = time.monotonic() + 30
        while (after := counts("target"))["transfers"] < before["transfers"] + 2 and time.monotonic() < deadline:
            time.sleep(0.2)
        assert after["transfers"] - before["transfers"] == 2
        assert after["failed_transfers"] == 0
        crossed[name] = after["transferred_bytes"] - before["transferred_bytes"]
    print("bytes that crossed:", json.dumps(crossed))
    assert 0 < 4 * crossed["speculative"] < crossed["dense"]


def test_one_trace_follows_a_request_through_all_processes(url: str, collector: Receiver) -> None:
    """Two requests: the target reports the end of the first session in its next message to the speculator."""
    traces = [f"{seed:032x}" for seed in (1, 2)]
    for seed, trace in enumerate(traces, 10):
        body = {"model": "skim-demo", "messages": make_document(2000, seed).messages, "max_tokens": LONG}
        headers = {"traceparent": f"00-{trace}-00f067aa0ba902b7-01", "x-request-id": f"request-{seed}"}
        drafted = {"method": "remote", "adaptive": False}
        body |= {"temperature": 0, "ignore_eos": True, "speculative_prefill": {"keep_rate": 0.2}}
        httpx.post(
            f"{url}/v1/chat/completions", json={**body, "speculative_decode": drafted}, headers=headers, timeout=120
        )
    below = {
        "POST /v1/chat/completions": ("skim-router", "00f067aa0ba902b7"),
        "skim.router.select": ("skim-router", "POST /v1/chat/completions"),
        "skim.router.generate": ("skim-router", "POST /v1/chat/completions"),
        "skim.speculator.select": ("skim-speculator", "skim.router.select"),
        "skim.speculator.draft": ("skim-speculator", "skim.router.select"),
        "skim.target.prefill_leg": ("skim-prefill", "skim.router.generate"),
        "skim.target.decode_leg": ("skim-target", "skim.router.generate"),
    }
    # vLLM ends the span of each leg with the request.
    spans = collector.trace(traces[0], {*below, "llm_request"})
    names = {span.span_id: span.name for span in spans}
    ours = {s.name: (s.service, names.get(s.parent_id, s.parent_id)) for s in spans if s.name in below}
    assert ours == below
    assert len({span.instance for span in spans if span.name in below}) == 4
    assert {span.attributes["skim.request_id"] for span in spans if span.service.startswith("skim-")} == {"request-10"}
    engines = {names[span.parent_id] for span in spans if span.name == "llm_request"}
    assert engines <= {"skim.target.prefill_leg", "skim.target.decode_leg"}
    [draft] = [span for span in spans if span.name == "skim.speculator.draft"]
    assert 0 < draft.attributes["skim.accepted_drafts"] <= draft.attributes["skim.drafts"]
    told = " ".join(f"{span.name} {span.attributes}" for span in spans)
    words = {word for word in make_document(2000, 10).document.split() if len(word) > 5}
    assert "skim.kept_tokens" in told
    assert [word for word in words if word in told] == []
