"""A pool whose starts fail: every request is answered meanwhile, and the pool comes back by itself once it can."""

import subprocess
import time

import httpx
import psutil
import pytest

from tests.chaos.conftest import BODY, await_answers, kill, replicas, target_folder
from tests.e2e.conftest import SKIM, Served

pytestmark = [pytest.mark.nightly, pytest.mark.usefixtures("on_its_ray")]


def status() -> tuple[int, str]:
    """Exit code and output of `skim status`."""
    ran = subprocess.run([SKIM, "status"], capture_output=True, text=True, timeout=60)
    return ran.returncode, ran.stdout + ran.stderr


def await_healthy() -> None:
    """One of two target replicas may answer while the other one still starts."""
    deadline = time.monotonic() + 120
    while (found := status())[0] != 0:
        assert time.monotonic() < deadline, found[1]


def kill_controller(served: Served) -> None:
    """Serve's memory of which pools have ever run goes with its controller."""
    [controller] = [
        process
        for process in psutil.Process(served.process.pid).children(recursive=True)
        if "ServeController" in process.name() + " ".join(process.cmdline())
    ]
    controller.kill()


def test_a_pool_comes_back_after_failed_starts_and_a_dead_controller(served: Served, client: httpx.Client) -> None:
    await_answers("target", 2, client)
    routers = replicas("router")
    folder = target_folder(served.log.parent)
    away = folder.rename(folder.with_name("away"))
    kill_controller(served)
    for name in replicas("target"):
        kill(name)
    deadline = time.monotonic() + 120
    while "target: " not in (told := status()[1]) or "does not exist" not in told:
        assert time.monotonic() < deadline, told
        answer = client.post("/v1/chat/completions", json=BODY)
        assert answer.status_code == 503, answer.text
        assert "retry-after" in answer.headers
        assert str(folder) not in answer.text
    assert status()[0] == 1
    away.rename(folder)
    await_answers("target", 2, client)
    await_healthy()
    assert replicas("router") == routers, "the new controller replaced a healthy replica"
