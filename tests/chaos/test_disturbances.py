"""No request fails, and no replica is replaced, while the disk is slow or full.

The deployment is this module's own: it starts with `tests.chaos.support.disturbance`.
"""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx
import pytest

from tests.chaos.conftest import BODY, await_answers, kill, replicas, serving
from tests.chaos.support.disturbance import Disk, Disturbance, can_disturb, small_disk, variables
from tests.chaos.support.lost_replicas import await_running
from tests.e2e.conftest import Served

pytestmark = [pytest.mark.nightly, pytest.mark.usefixtures("on_its_ray")]

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


@pytest.fixture(scope="module")
def disturbance(tmp_path_factory: pytest.TempPathFactory) -> Disturbance | None:
    """Of the files of `served`; None without a compiler."""
    return Disturbance(tmp_path_factory.mktemp("disturbance")) if can_disturb() else None


@pytest.fixture(scope="module")
def disk() -> Iterator[Disk | None]:
    """Where the Ray of `served` has its files; None without the right to mount one."""
    with small_disk() as mounted:
        yield mounted


@pytest.fixture(scope="module")
def served(
    tmp_path_factory: pytest.TempPathFactory, disturbance: Disturbance | None, disk: Disk | None
) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("disturbed"), **variables(disturbance, disk)) as served:
        yield served


def test_all_files_are_slow(client: httpx.Client, disturbance: Disturbance | None) -> None:
    if disturbance is None:
        pytest.skip("no C compiler")
    goes_on(client, lambda: disturbance.slow_files(AWAY_S))


def test_the_disk_is_full(client: httpx.Client, disk: Disk | None) -> None:
    if disk is None:
        pytest.skip("no right to mount a disk")
    goes_on(client, lambda: disk.full(AWAY_S))


def test_a_replica_dies_while_the_disk_is_full(client: httpx.Client, disk: Disk | None) -> None:
    """Its death is logged, and no line can be written."""
    if disk is None:
        pytest.skip("no right to mount a disk")
    await_running(2)
    await_answers("target", 2, client)
    with asking(client) as failed:
        disk.full(AWAY_S, lambda: kill(replicas("target")[0]))
        await_running(2)
    assert failed == []
