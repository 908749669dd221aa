"""The engine process of a pool dies by SIGKILL under requests: each request gets an answer, and the pool comes back."""

import itertools
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import psutil
import pytest

from demo_models.documents import make_document
from tests.e2e.conftest import Served

pytestmark = pytest.mark.nightly

CLIENTS = 4
BACK_S = 120


def ask(url: str, seed: int) -> httpx.Response:
    body: dict[str, Any] = {"model": "skim-demo", "messages": make_document(2000, seed).messages}
    body |= {"max_tokens": 8, "temperature": 0, "speculative_prefill": {"keep_rate": 0.2}}
    # Longer than any time limit of the router: a request that it forgot fails the test.
    return httpx.post(f"{url}/v1/chat/completions", json=body, timeout=120)


def replica(served: Served, pool: str) -> psutil.Process:
    """The pool's only replica."""
    processes = psutil.Process(served.process.pid).children(recursive=True)
    [found] = [process for process in processes if f"ServeReplica:skim:{pool}" in " ".join(process.cmdline())]
    return found


def engine(served: Served, pool: str) -> psutil.Process:
    """The engine core of the pool's only replica."""
    children = replica(served, pool).children(recursive=True)
    [core] = [child for child in children if "EngineCore" in " ".join(child.cmdline())]
    return core


@pytest.mark.parametrize("pool", ["target", "speculator"])
def test_the_engine_of_a_killed_replica_ends_even_if_it_was_stopped(demo_pair: Served, pool: str) -> None:
    """It would keep its memory, and the next replica would not have enough."""
    core = engine(demo_pair, pool)
    if pool == "speculator":
        core.suspend()
    replica(demo_pair, pool).kill()
    psutil.wait_procs([core], timeout=30)
    assert not core.is_running()
    deadline = time.monotonic() + BACK_S
    while ask(demo_pair.url, 0).headers.get("x-skim-mode") != "speculative":  # the tests after this one need both pools
        assert time.monotonic() < deadline
        time.sleep(0.2)


@pytest.mark.parametrize("pool", ["target", "speculator"])
def test_requests_are_answered_while_an_engine_comes_back(demo_pair: Served, pool: str) -> None:
    """Without a speculator requests run dense; without a target they wait, or get a 503."""
    assert ask(demo_pair.url, 0).headers["x-skim-mode"] == "speculative"
    killed = engine(demo_pair, pool)
    killed.kill()
    deadline, seeds = time.monotonic() + BACK_S, itertools.count(1)
    with ThreadPoolExecutor(CLIENTS) as clients:
        while True:
            asked = itertools.islice(seeds, CLIENTS)
            answers = list(clients.map(lambda seed: ask(demo_pair.url, seed), asked))
            assert {answer.status_code for answer in answers} <= ({200} if pool == "speculator" else {200, 503})
            assert all("retry-after" in answer.headers for answer in answers if answer.status_code == 503)
            if all(answer.headers.get("x-skim-mode") == "speculative" for answer in answers):
                break
            assert time.monotonic() < deadline, answers[-1].text
            time.sleep(0.2)
    document = make_document(2000, 1)
    assert document.is_right(ask(demo_pair.url, 1).json()["choices"][0]["message"]["content"])
    assert engine(demo_pair, pool).pid != killed.pid
