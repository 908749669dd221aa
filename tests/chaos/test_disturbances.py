"""No request fails, and no replica is replaced, while the clock is wrong or the disk slow or full.

The deployment is this module's own: after these jumps, timers of its Ray stand still for an hour.
"""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

import httpx
import pytest

from tests.chaos.conftest import BODY, await_answers, kill, replicas, serving
from tests.chaos.disturbance import JUMP_S, Disk, Disturbance, can_disturb, small_disk, variables
from tests.chaos.killed import Killed
from tests.chaos.lost_replicas import await_running, running_replicas
from tests.e2e.conftest import Served

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


def await_answer(client: httpx.Client) -> None:
    """Until the endpoint answers. A connection to a router that was killed breaks."""
    deadline, answered = time.monotonic() + 300, 0
    while answered != 200:
        assert time.monotonic() < deadline, f"the last answer has status {answered}"
        with suppress(httpx.TransportError):
            answered = client.post("/v1/chat/completions", json=BODY).status_code
        time.sleep(0.2)


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
    """Of the clock and the files of `served`; None without a compiler."""
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


def test_new_parts_are_used_after_the_clock_was_set_back_and_the_controller_died(
    served: Served, client: httpx.Client, disturb: Disturbance
) -> None:
    """Ray repeats no call to the dead controller meanwhile: those by which router and proxy learn of new replicas.

    `skim serve` says that the clock was set back.
    """
    killed = Killed(served, served.log.parent)
    with disturb.clock(-JUMP_S):
        killed.kill("ServeController")
        for pool in ("target", "router"):
            killed.kill(f"replica:{pool}")
            await_answer(client)
    assert "clock: it was set back" in served.log.read_text()


def test_all_files_are_slow(client: httpx.Client, disturb: Disturbance) -> None:
    goes_on(client, lambda: disturb.slow_files(AWAY_S))


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
