"""How Ray is started and joined, how a command calls a deployment, and how it ends."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from ray import serve
from ray.exceptions import GetTimeoutError, RayTaskError
from ray.serve.exceptions import RayServeException

from cluster.serve import deployment, ray_cluster
from cluster.serve.ray_cluster import app_handle, as_skim_error, drain_connections
from skim_common.errors import SkimError


def remote_error():
    """As a proxy that cannot listen."""
    trace = "Traceback (most recent call last):\n  File 'x.py', line 3\nRuntimeError: the port 8000 is in use.\n"
    return RayTaskError("ready", trace, RuntimeError("the port 8000 is in use."))


@pytest.mark.parametrize(
    ("raised", "reason"),
    [
        (TimeoutError("HTTP proxies not available after 60s."), "HTTP proxies not available after 60s"),
        (GetTimeoutError("Get timed out"), "Get timed out"),
        (Exception("The current node timed out\nduring startup."), "The current node timed out"),
        (OSError(28, "No space left on device"), r"\[Errno 28\] No space left on device"),
        (remote_error(), "the port 8000 is in use"),
        (AssertionError(), "AssertionError"),
    ],
)
def test_what_ray_raises_is_one_sentence(raised, reason):
    with (
        pytest.raises(SkimError, match=f"^it did not start: {reason}; start again$") as told,
        as_skim_error("it did not start", "start again"),
    ):
        raise raised
    assert told.value.__cause__ is raised


def test_a_sentence_of_skim_stays_as_it_is():
    with pytest.raises(SkimError, match=r"^no such folder$"), as_skim_error("it did not start", "start again"):
        raise SkimError("no such folder")


def test_the_end_of_a_start_that_failed_leaves_ray_also_if_serve_is_dead(monkeypatch):
    left = []
    monkeypatch.setattr(deployment.ray, "is_initialized", lambda: True)
    monkeypatch.setattr(deployment.ray, "shutdown", lambda: left.append("ray"))
    monkeypatch.setattr(deployment, "ray_answers", lambda: True)
    monkeypatch.setattr(deployment, "drain_connections", lambda name: None)

    def delete(name):
        raise remote_error()

    monkeypatch.setattr(deployment.serve, "delete", delete)
    deployment._stop("skim")
    assert left == ["ray"]


class Handle(SimpleNamespace):
    """As ray.serve.handle.DeploymentHandle: a second `_init` is an error."""

    is_initialized = False

    def _init(self, **options: Any) -> None:
        assert not self.is_initialized
        self.is_initialized, self.options = True, options


@pytest.mark.parametrize("times", [1, 2])
def test_its_router_has_a_loop_of_its_own(monkeypatch, times):
    """Serve's client gives the same handle again."""
    handle = Handle()
    monkeypatch.setattr(serve, "get_app_handle", lambda name: handle)
    for _ in range(times):
        assert app_handle("skim").options == {"_run_router_in_separate_loop": True}


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
    monkeypatch.setattr(ray_cluster, "QUIET_S", 0.0)


def asked(monkeypatch, reply: Callable[[int], list[bool]]) -> int:
    routers = Routers(reply)
    monkeypatch.setattr(ray_cluster, "app_handle", lambda name: routers)
    drain_connections("skim")
    return routers.asked


def test_until_every_router_is_idle(monkeypatch):
    replies = [[True, True], [False, True], [False, False]]
    assert asked(monkeypatch, lambda number: replies[number - 1]) == 3


def test_clients_that_do_not_go_are_left(monkeypatch):
    monkeypatch.setattr(ray_cluster, "DRAIN_LIMIT_S", 0.0)
    assert asked(monkeypatch, lambda number: [True]) == 1


@pytest.mark.parametrize("error", [TimeoutError(), RayServeException("the application is gone")])
def test_routers_that_do_not_reply_are_left_alone(monkeypatch, error):
    def reply(number: int) -> list[bool]:
        raise error

    assert asked(monkeypatch, reply) == 1
