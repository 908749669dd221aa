"""A large answer to a call that was repeated long before. Ray ends a process that has dropped the call's reference.

In a process of its own, with a Ray of its own: a controller that answers its first call late, with as much as the state
of many replicas. Serve's client makes that call, in the way of Ray, of Skim, or of a proxy that Skim was sent to.
"""

import subprocess
import sys

import pytest

from tests.e2e.conftest import ROOT

SCRIPT = """
import asyncio, sys
from types import SimpleNamespace

import ray
from ray.serve._private.long_poll import LongPollClient, UpdatedObject

from actors import repeated_polls
from cluster.serve.proxy_polls import repeat_polls_of

repeated_polls.LIMIT_S = 0.5
way = sys.argv[1]
LATE_S, SIZE = 2.0, 300_000


@ray.remote(num_cpus=0, max_concurrency=10)
class Controller:
    calls = 0

    async def listen_for_change(self, known):
        self.calls += 1
        if self.calls > 1:
            await asyncio.sleep(60)
        await asyncio.sleep(LATE_S)
        return {"replicas": UpdatedObject(b"x" * SIZE, 1, 0.0)}


async def run():
    controller, seen = Controller.remote(), []
    await controller.__ray_ready__.remote()
    if way == "skim":
        repeated_polls.repeat_polls()
    client = LongPollClient(controller, {"replicas": seen.append}, asyncio.get_running_loop(), "test")
    await asyncio.sleep(0.2)
    if way == "proxy":
        repeat_polls_of(SimpleNamespace(long_poll_client=client))
    if way == "dropped":
        client._current_ref = None
    await asyncio.sleep(LATE_S + 1.0)
    print("polls", getattr(client, "polls", 1), flush=True)


ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level="error")
asyncio.run(run())
"""


def late_answer(way: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", SCRIPT, way]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("way", ["skim", "proxy"])
def test_the_process_stays(way: str) -> None:
    found = late_answer(way)
    assert found.returncode == 0, found.stderr
    assert int(found.stdout.split()[-1]) > 2, "the call was repeated"


def test_a_process_that_dropped_the_reference_ends() -> None:
    """Negative control."""
    found = late_answer("dropped")
    assert found.returncode != 0
    assert "ObjectUnknownOwner" in found.stderr
