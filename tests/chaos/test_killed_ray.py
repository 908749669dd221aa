"""The settings of the Ray that `skim serve` starts. Its HTTP proxy restarts when it dies."""

import time
from collections.abc import Callable

import httpx
import psutil

from tests.e2e.conftest import Served


def listening(port: int) -> list[psutil.Process]:
    """This user's processes that listen on the port."""
    connections = psutil.net_connections("tcp")
    found = {c.pid for c in connections if c.laddr.port == port and c.status == psutil.CONN_LISTEN and c.pid}
    return [psutil.Process(pid) for pid in found]


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


def test_the_proxy_is_for_this_machine_alone_and_comes_back(served: Served) -> None:
    assert answers(served.port)
    [proxy] = listening(served.port)
    addresses = {
        c.laddr.ip.removeprefix("::ffff:") for c in proxy.net_connections("tcp") if c.status == psutil.CONN_LISTEN
    }
    assert addresses == {"127.0.0.1"}
    proxy.kill()
    began = time.monotonic()
    assert until(lambda: answers(served.port)), "Serve starts another one"
    print("proxy back after", time.monotonic() - began)


def test_replicas_wait_behind_nothing(served: Served) -> None:
    """By default Ray starts its workers with niceness 15."""
    processes = with_descendants(served)
    running, pids = psutil.process_iter(["name", "nice"]), {process.pid for process in processes}
    nice = {p.info["nice"] for p in running if p.pid in pids and "ray::Serve" in p.info["name"]}
    assert nice == {processes[0].nice()}
