"""No request fails, and no replica is replaced, while the clock is wrong or the disk slow or full."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx
import pytest

from tests.chaos.conftest import BODY, await_answers, kill, replicas
from tests.chaos.disturbance import JUMP_S, Disk, Disturbance
from tests.chaos.lost_replicas import await_running, running_replicas

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("on_its_ray")]

POOLS = ("speculator", "target", "router")
AWAY_S = 4.0
"""Two health checks of each replica."""


@contextmanager
def asking(client: httpx.Client, clients: int = 4) -> Iterator[list[str]]:
    """The answers that are none, to clients which ask without a pause, each at least twice."""
    ended, failed = threading.Event(), list[str]()

    def ask_on() -> None:
        count = 0
        while count < 2 or not ended.is_set():
            answer = client.post("/v1/chat/completions", json=BODY)
            failed.extend([answer.text] * (answer.status_code != 200))
            count += 1

    with ThreadPoolExecutor(clients) as pool:
        asked = [pool.submit(ask_on) for _ in range(clients)]
        try:
            yield failed
        finally:
            ended.set()
            for one in asked:
                one.result()


def goes_on(client: httpx.Client, act: Callable[[], None]) -> None:
    await_running(2)
    await_answers("target", 2, client)
    before = {name for pool in POOLS for name in replicas(pool)}
    with asking(client) as failed:
        act()
    assert failed == []
    assert {name for pool in POOLS for name in replicas(pool)} == before


@pytest.fixture
def disturb(disturbance: Disturbance | None) -> Disturbance:
    return disturbance or pytest.skip("no C compiler")


@pytest.mark.parametrize("jump", [JUMP_S, -JUMP_S])
def test_the_clock_jumps_by_an_hour_and_back(client: httpx.Client, disturb: Disturbance, jump: int) -> None:
    goes_on(client, lambda: disturb.clock_away(jump, AWAY_S))


def test_a_dead_replica_is_replaced_after_the_clock_was_set_back(client: httpx.Client, disturb: Disturbance) -> None:
    await_answers("target", 2, client)
    with disturb.clock(-JUMP_S):
        dead, other = running_replicas()
        kill(dead)
        deadline = time.monotonic() + 120
        while len(alive := {*running_replicas()} - {dead}) < 2:
            assert time.monotonic() < deadline, f"only {alive}, and {dead} is dead"
            time.sleep(0.2)
    assert other in alive


def test_all_files_are_slow(client: httpx.Client, disturb: Disturbance) -> None:
    goes_on(client, lambda: disturb.slow_files(AWAY_S))


def test_the_disk_is_full(client: httpx.Client, disk: Disk | None) -> None:
    if disk is None:
        pytest.skip("no right to mount a disk")
    goes_on(client, lambda: disk.full(AWAY_S))
