"""A replica dies during a request: retry on another replica, dense without a speculator, else a clean 503."""

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
import ray

from tests.chaos.conftest import BODY, await_answers, kill, replicas
from tests.chaos.support.killed import BACK_S, Killed
from tests.chaos.support.whole import await_whole
from tests.e2e.conftest import Served

pytestmark = pytest.mark.usefixtures("on_its_ray")


def in_flight(client: httpx.Client, count: int, stream: bool, pool: ThreadPoolExecutor) -> list[Future[httpx.Response]]:
    """`count` requests that wait for their first token on the target."""
    futures = [pool.submit(client.post, "/v1/chat/completions", json={**BODY, "stream": stream}) for _ in range(count)]
    threading.Event().wait(1.0)
    return futures


def busiest(pool: str) -> str:
    """The replica that runs most requests: the prompts begin alike, so perhaps one replica runs them all."""
    handles = {name: ray.get_actor(name, namespace="serve") for name in replicas(pool)}
    running = {name: ray.get(handle.get_num_ongoing_requests.remote()) for name, handle in handles.items()}
    assert max(running.values()) > 0
    return max(running, key=lambda name: running[name])


@pytest.mark.parametrize("stream", [pytest.param(False, marks=pytest.mark.nightly), True])
def test_requests_before_their_first_token_move_to_another_replica(client: httpx.Client, stream: bool) -> None:
    await_answers("target", 2, client)
    with ThreadPoolExecutor(4) as pool:
        requests = in_flight(client, 4, stream, pool)
        kill(busiest("target"))
        answers = [request.result() for request in requests]
    assert [a.status_code for a in answers] == [200] * 4
    assert all("error" not in a.text for a in answers)


@pytest.mark.parametrize("stream", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_without_any_replica_a_request_gets_one_clean_503(
    served: Served, tmp_path: Path, client: httpx.Client, stream: bool
) -> None:
    # No replica is still starting: it could be ready in time to answer.
    await_whole(killed := Killed(served, tmp_path), BACK_S)
    # The processes are found before and killed by signal: Ray may take longer to kill them than they take to answer.
    targets = killed.find("replica:target")
    assert len(targets) == 2
    with ThreadPoolExecutor(2) as pool:
        requests = in_flight(client, 2, stream, pool)
        for process in targets:
            process.kill()
        answers = [request.result() for request in requests]
    for answer in answers:
        assert answer.status_code == 503, answer.text
        assert answer.json()["error"]["type"] == "ServiceUnavailableError"
        assert "Traceback" not in answer.text
        assert "retry-after" in answer.headers


def test_a_dead_speculator_pool_means_dense(client: httpx.Client) -> None:
    await_answers("target", 2, client)
    speculative = client.post("/v1/chat/completions", json=BODY)
    assert speculative.headers["x-skim-mode"] == "speculative"
    for name in replicas("speculator"):
        kill(name)
    dense = client.post("/v1/chat/completions", json=BODY).raise_for_status()
    assert dense.headers["x-skim-mode"] == "dense"
    assert dense.headers["x-skim-reason"] in ("speculator-error", "speculator-timeout", "speculator-down")
