"""Before an application is deleted, its routers are asked to send their clients away until they are idle."""

from collections.abc import Callable

import pytest
from ray.serve.exceptions import RayServeException

from cluster.serve import ray_cluster as farewell
from cluster.serve.ray_cluster import drain_connections


class Routers:
    """A handle whose routers reply as given; asked: how often they were."""

    def __init__(self, reply: Callable[[int], list[bool]]) -> None:
        self.asked = 0
        self._reply = reply

    def broadcast(self, method: str) -> "Routers":
        assert method == "drain"
        self.asked += 1
        return self

    def results(self, *, timeout_s: float) -> list[bool]:
        return self._reply(self.asked)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr(farewell, "QUIET_S", 0.0)


def asked(monkeypatch, reply: Callable[[int], list[bool]]) -> int:
    routers = Routers(reply)
    monkeypatch.setattr(farewell, "app_handle", lambda name: routers)
    drain_connections("skim")
    return routers.asked


def test_until_every_router_is_idle(monkeypatch):
    replies = [[True, True], [False, True], [False, False]]
    assert asked(monkeypatch, lambda number: replies[number - 1]) == 3


def test_clients_that_do_not_go_are_left(monkeypatch):
    monkeypatch.setattr(farewell, "DRAIN_LIMIT_S", 0.0)
    assert asked(monkeypatch, lambda number: [True]) == 1


@pytest.mark.parametrize("error", [TimeoutError(), RayServeException("the application is gone")])
def test_routers_that_do_not_reply_are_left_alone(monkeypatch, error):
    def reply(number: int) -> list[bool]:
        raise error

    assert asked(monkeypatch, reply) == 1
