"""A prompt that is read in windows is read by all replicas of the speculator's pool."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import ray
from ray import serve

from tests.e2e.conftest import ROOT, Served, serving
from tests.e2e.test_affinity import tokens

pytestmark = pytest.mark.nightly

REPLICAS = 3
OPTIONS = {"enabled": "always", "keep_rate": 0.2, "scoring": "heads", "read": "windows", "window_tokens": 256}


def settings() -> dict[str, Any]:
    pools = {
        pool: {
            "model": str(ROOT / "demo_models" / pool),
            "engine": "mock",
            "engine_options": {"max_model_len": 16384},
            "replicas": replicas,
            "cpus_per_replica": 0.1,
        }
        for pool, replicas in (("speculator", REPLICAS), ("target", 1))
    }
    pools["speculator"]["engine_options"]["head_profile"] = True
    return {"served_model_name": "skim-demo", **pools, "router": {"cpus": 0.1}}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(settings(), tmp_path_factory.mktemp("serve")) as served:
        try:
            served.join_ray()
            yield served
        finally:
            ray.shutdown()


def ask(served: Served, question: str) -> None:
    """About one document: its questions have one home in the pool. The mocks cache nothing."""
    text = "\n".join(" ".join(map(str, tokens(f"line {line}", 9))) for line in range(200))
    messages = [{"role": "user", "content": f"{text}\n\nWhich line has the number {question}?"}]
    body = {"model": "skim-demo", "messages": messages, "max_tokens": 2, "speculative_prefill": OPTIONS}
    answer = httpx.post(f"{served.url}/v1/chat/completions", json=body, timeout=120).raise_for_status()
    assert answer.headers["x-skim-mode"] == "speculative"


def windows_read() -> list[int]:
    """The windows that the replicas of the speculator's pool have read, the most first."""
    pool = serve.get_deployment_handle("speculator", "skim")
    return sorted((stats["started"] for stats in pool.broadcast("stats").results(timeout_s=30)), reverse=True)


def test_all_replicas_read_the_windows_of_one_prompt(served: Served) -> None:
    ask(served, "1")
    alone, *others = windows_read()
    assert alone > 10
    assert others == [0] * (REPLICAS - 1)  # until the home has learned of the others, which its first read lets it do
    for question in range(2, 30):
        ask(served, str(question))
        if min(windows_read()):
            break
    before = sum(windows_read()), min(windows_read())
    ask(served, "100")
    after = sum(windows_read()), min(windows_read())
    assert after[0] - before[0] == alone
    assert after[1] - before[1] >= 0.2 * alone
