"""More requests than the deployment can serve, from two API keys: mock engines, whose answers are known."""

import asyncio
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
import yaml

from router.admission.api_keys import hash_of, new_key
from tests.e2e.conftest import Served, serving
from tests.unit.conftest import MODELS

pytestmark = pytest.mark.nightly

SHARES = {"large": 3.0, "small": 1.0}
PLACES = 12
CLIENTS = 12
"""Clients of each key: together twice as many as the router has places."""
SERVED = 64
"""The flood ends after so many answers, however long they take."""
CALL_S = 60
"""The limit of each call. Without it, a request that is forgotten would hang the test."""
PREFILL_MS = 100.0
QUESTIONS = [f"question {number} " + "word " * 40 for number in range(4)]
KEYS = {name: new_key() for name in SHARES}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One target that reads one prompt after the other. Only a full router refuses, whatever the waits are."""
    folder = tmp_path_factory.mktemp("flood")
    keys = [{"name": name, "sha256": [hash_of(key)], "share": SHARES[name]} for name, key in KEYS.items()]
    (folder / "keys.yaml").write_text(yaml.safe_dump({"keys": keys}))
    mock = {"engine": "mock", "cpus_per_replica": 0.1}
    options = {"prefill_ms": PREFILL_MS, "one_at_a_time": True}
    router = {"max_ongoing_requests": PLACES, "max_wait_s": None, "api_keys_file": "keys.yaml", "cpus": 0.1}
    settings = {
        "served_model_name": "skim-demo",
        "speculator": {"model": str(MODELS / "speculator"), **mock},
        "target": {"model": str(MODELS / "target"), "engine_options": options, **mock},
        "router": {**router, "speculative_prefill": False},
    }
    with serving(settings, folder) as served:
        yield served


async def ask(client: httpx.AsyncClient, key: str, question: str) -> httpx.Response:
    messages = [{"role": "user", "content": question}]
    body: dict[str, Any] = {"model": "skim-demo", "messages": messages, "max_tokens": 4, "ignore_eos": True}
    async with asyncio.timeout(CALL_S):
        headers = {"authorization": f"Bearer {KEYS[key]}"}
        return await client.post("/v1/chat/completions", json=body, headers=headers)


def content(answer: httpx.Response) -> str:
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["message"]["content"])


@dataclass
class Flood:
    """What the clients got. served: the number of answers by key; refused: all 429; wrong: all other answers."""

    answers: dict[str, str]
    served: Counter[str] = field(default_factory=Counter)
    refused: list[httpx.Response] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    async def ask_on(self, client: httpx.AsyncClient, key: str, number: int) -> None:
        """One client: asks until enough is served. It does not wait as long as a refusal says."""
        while self.served.total() < SERVED:
            question = QUESTIONS[number % len(QUESTIONS)]
            answer = await ask(client, key, question)
            if answer.status_code == 429:
                self.refused.append(answer)
                await asyncio.sleep(0.5)
            elif answer.status_code == 200 and content(answer) == self.answers[question]:
                self.served[key] += 1
            else:
                self.wrong.append(f"{answer.status_code} {answer.text}")


async def flood(url: str) -> Flood:
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=CALL_S, limits=limits) as client:
        quiet = {question: content(await ask(client, "small", question)) for question in QUESTIONS}
        found = Flood(quiet)
        clients = (found.ask_on(client, key, number) for number in range(CLIENTS) for key in SHARES)
        await asyncio.gather(*clients)
        for key in SHARES:
            assert {question: content(await ask(client, key, question)) for question in QUESTIONS} == quiet
        return found


async def test_a_flood_is_refused_in_words_and_shared_among_the_keys(served: Served) -> None:
    """Each accepted request has the whole answer of a quiet router. After the flood, all are served again."""
    found = await flood(served.url)
    assert found.wrong == []
    assert found.refused
    for refusal in found.refused:
        assert int(refusal.headers["retry-after"]) >= 1
        assert re.fullmatch(r"[^.\n]+(\.\d+ s[^.\n]*)?", refusal.json()["error"]["message"]), refusal.text
    # Each place of the queue is given by share, 3 to 1. A queue in the order of arrival would be 1 to 1.
    assert found.served["large"] > 1.25 * found.served["small"] > 5, found.served
