"""The speculator drafts for the target, through Ray Serve; the answers do not change."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
import ray
from ray import serve

from cluster.serve.app import APP_NAME
from demo_models.documents import make_document
from tests.e2e.conftest import Served

DRAFTED = {"method": "remote", "adaptive": False}


@pytest.fixture(scope="module")
def client(demo_pair: Served) -> Iterator[httpx.Client]:
    """A client; this process joins the Ray of `skim serve`, to read the replicas' counters and to kill replicas."""
    demo_pair.join_ray()
    with httpx.Client(base_url=demo_pair.url, timeout=120) as http:
        yield http
    ray.shutdown()


def stats(pool: str) -> dict[str, Any]:
    counts: dict[str, Any] = serve.get_deployment_handle(pool, APP_NAME).stats.remote().result(timeout_s=60)
    return counts


def ask(
    client: httpx.Client, seed: int, decode: Any, tokens: int, *, ignore_eos: bool = True, read: str = "auto"
) -> httpx.Response:
    """A greedy request that by default ignores the EOS, so that there is something to draft."""
    body = {
        "model": "skim-demo",
        "messages": make_document(2000, seed).messages,
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": ignore_eos,
        "skip_special_tokens": False,
        "speculative_prefill": {"keep_rate": 0.2, "read": read},
        "speculative_decode": decode,
    }
    return client.post("/v1/chat/completions", json=body).raise_for_status()


def answer(client: httpx.Client, seed: int, decode: Any, tokens: int = 48, **more: Any) -> str:
    response = ask(client, seed, decode, tokens, **more)
    assert response.headers["x-skim-mode"] == "speculative", "another prompt has another answer"
    text: str = response.json()["choices"][0]["message"]["content"]
    return text


def test_drafted_answers_are_the_plain_ones(client: httpx.Client) -> None:
    before = stats("target")
    seeds = range(6)
    plain = [answer(client, seed, False) for seed in seeds]
    with ThreadPoolExecutor(6) as pool:
        drafted = list(pool.map(lambda seed: answer(client, seed, DRAFTED), seeds))
    assert drafted == plain
    after = stats("target")
    assert after["accepted"] > before["accepted"], "nothing was drafted, so nothing was shown"


def test_plain_requests_draft_nothing(client: httpx.Client) -> None:
    """Negative control: only drafting changes the counters that the other tests read."""
    before = stats("target")
    answer(client, 20, False)
    assert stats("target")["drafts"] == before["drafts"]


def test_nothing_is_asked_for_after_the_end_of_an_answer(client: httpx.Client) -> None:
    """The look-ahead tokens, which a whole read brings, cover these answers: an exchange would only delay them."""
    before = stats("target")
    for seed in range(60, 63):
        answer(client, seed, DRAFTED, ignore_eos=False, read="whole")
    after = stats("target")
    assert after["accepted"] > before["accepted"]
    assert after["chosen"] == before["chosen"], "how many drafts to ask for was decided after the end"


@pytest.mark.nightly
def test_drafting_resumes_after_the_speculator_died(client: httpx.Client) -> None:
    plain = answer(client, 30, False, tokens=400)
    before = stats("target")
    with ThreadPoolExecutor(1) as pool:
        streaming = pool.submit(answer, client, 30, DRAFTED, 400)
        _await(lambda: stats("target")["accepted"] > before["accepted"])
        for name in _replicas("speculator"):
            ray.kill(ray.get_actor(name, namespace="serve"), no_restart=True)
        assert streaming.result() == plain
    # The new replica is another process at another address: the next request drafts again.
    _await(lambda: ask(client, 32, False, 1).headers["x-skim-mode"] == "speculative")
    before = stats("target")
    assert answer(client, 31, DRAFTED) == answer(client, 31, False)
    assert stats("target")["accepted"] > before["accepted"]


def test_an_ended_request_leaves_no_session(client: httpx.Client) -> None:
    answer(client, 40, DRAFTED)
    # The target reports closed sessions in its next message.
    answer(client, 41, DRAFTED)
    assert stats("speculator")["sessions"] <= 1


def _replicas(pool: str) -> list[str]:
    return [a["name"] for a in ray.util.list_named_actors(all_namespaces=True) if f"#{pool}#" in a["name"]]


def _await(condition: Any) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def test_counts_are_prometheus_metrics(client: httpx.Client) -> None:
    answer(client, 50, DRAFTED)
    wanted = (
        "skim_router_requests_total",
        "skim_router_ttft_seconds_bucket",
        "skim_target_rounds_total",
        "skim_target_accepted_total",
        "skim_target_accepted_per_position_total",
        "skim_target_acceptance",
        "skim_speculator_opened_total",
        "skim_speculator_sessions",
    )
    _await(lambda: all(f"\n{name}" in client.get("/metrics").text for name in wanted))
