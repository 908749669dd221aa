"""Questions about the same documents meet the caches that hold them: four replicas in each pool, two routers.

The engines are mocks, whose prefix caches count honestly. Each request has its own connection, so both routers serve.
"""

import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.conftest import ROOT, Served, skim_serve

pytestmark = pytest.mark.nightly

DOCUMENTS, QUESTIONS, DOCUMENT_TOKENS, QUESTION_TOKENS = 8, 3, 2000, 40
REPLICAS, ROUTERS = 4, 2


def settings(affinity: bool) -> dict[str, Any]:
    pools: dict[str, Any] = {
        pool: {
            "model": str(ROOT / "demo_models" / pool),
            "engine": "mock",
            "engine_options": {"cache_tokens": 200_000, "max_model_len": 4096},
            "replicas": REPLICAS,
            "cpus_per_replica": 0.1,
        }
        for pool in ("speculator", "target")
    }
    router = {"replicas": ROUTERS, "cpus": 0.1, "affinity": affinity}
    pools["target"]["engine_options"] = {**pools["target"]["engine_options"], "enable_prompt_tokens_details": True}
    return {"served_model_name": "skim-demo", **pools, "router": router}


def serve(folder: Path, affinity: bool) -> Served:
    config = folder / "mock.yaml"
    config.write_text(yaml.safe_dump(settings(affinity)))
    return skim_serve(config, folder)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    served = serve(tmp_path_factory.mktemp("serve"), affinity=True)
    try:
        served.await_ready()
        yield served.url
    finally:
        served.stop()


def tokens(name: str, count: int) -> list[int]:
    return random.Random(name).choices(range(10, 900), k=count)


def ask(url: str, document: int, question: int, speculative: bool) -> httpx.Response:
    prompt = tokens(f"document {document} {speculative}", DOCUMENT_TOKENS) + tokens(f"{question}", QUESTION_TOKENS)
    body = {"model": "skim-demo", "prompt": prompt, "max_tokens": 2}
    body["speculative_prefill"] = "always" if speculative else False
    return httpx.post(f"{url}/v1/completions", json=body, timeout=120).raise_for_status()


def shares(url: str) -> dict[str, float]:
    """Of the later questions: the share of the prompt that the target had cached, and that found its record."""
    cached, records = [], []
    for question in range(QUESTIONS):
        for document in range(DOCUMENTS):
            dense = ask(url, document, question, False).json()["usage"]
            speculative = ask(url, document, question, True)
            if question:
                cached.append((dense["prompt_tokens_details"].get("cached_tokens") or 0) / DOCUMENT_TOKENS)
                records.append(int(speculative.headers["x-skim-reused-tokens"]) > 0)
    return {"target": sum(cached) / len(cached), "speculator": sum(records) / len(records)}


def test_later_questions_meet_the_caches_of_the_first_ones(url: str) -> None:
    found = shares(url)
    assert found["target"] > 0.95, found
    assert found["speculator"] > 0.95, found


def test_any_router_shows_the_selection_that_one_of_them_holds(url: str) -> None:
    """Each request has its own connection, so requests and questions about them meet both routers."""
    answers = [ask(url, document, 0, True) for document in range(DOCUMENTS)]
    for answer in answers:
        name = answer.json()["id"]
        views = [httpx.get(f"{url}/v1/requests/{name}/selection", timeout=30) for _ in range(6)]
        kept = [view.raise_for_status().json()["kept_tokens"] for view in views]
        assert kept == [int(answer.headers["x-skim-kept-tokens"])] * 6
    assert httpx.get(f"{url}/v1/requests/nobody/selection", timeout=30).status_code == 404


def test_any_router_tells_the_metrics_of_all(url: str) -> None:
    """Each scrape has its own connection, so both routers answer. The numbers are those of all replicas."""

    def numbers() -> dict[str, float]:
        text = httpx.get(f"{url}/metrics", timeout=30).raise_for_status().text
        samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
        wanted = ("skim_target_started_total", "vllm:time_to_first_token_seconds_count", "vllm:prompt_tokens_total")
        return {name: sum(sample.value for sample in samples if sample.name == name) for name in wanted}

    before, sent = numbers(), [ask(url, document, 9, True) for document in range(DOCUMENTS)]
    tokens_sent = sum(answer.json()["usage"]["prompt_tokens"] for answer in sent)
    agreed = 0
    deadline = time.monotonic() + 60  # a pool's own counts are recorded every few seconds
    while agreed < 8:
        started, prompts, prompt_tokens = (now := numbers()).values()
        _, prompts_before, prompt_tokens_before = before.values()
        grown = (prompts - prompts_before, prompt_tokens - prompt_tokens_before)
        agreed = agreed + 1 if grown == (DOCUMENTS, tokens_sent) and started == prompts else 0
        assert time.monotonic() < deadline, (before, now, tokens_sent)
        time.sleep(0.3)
