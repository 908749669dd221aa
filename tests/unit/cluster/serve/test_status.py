"""What `skim serve` says while it runs, and when it ends by itself."""

import threading
from types import SimpleNamespace

import pytest

from actors.ray_hooks.ray_core import dead_ray_process, worker
from cluster.serve import status
from cluster.serve.ray_cluster import call_with_timeout
from cluster.serve.status import PartStatus, RayGoneError

FINE = [PartStatus("router", "router: healthy"), PartStatus("target", "target: healthy")]
DEAD = [FINE[0], PartStatus("target", "target: unhealthy: a replica died", "a replica died")]
FAILS = [FINE[0], PartStatus("target", "target: unhealthy: no model", "no model")]
GROWS = [FINE[0], PartStatus("target", "target: upscaling (1 running, 1 starting)")]


@pytest.fixture
def looks(monkeypatch):
    """Gives each look the next of these results, which may be errors, and then stops. Returns what was said."""
    stop, said = threading.Event(), []
    monkeypatch.setattr(status.ray, "is_initialized", lambda: True)
    monkeypatch.setattr(status, "dead_ray_process", lambda: None)

    def run(*results):
        left = iter(results)

        def look():
            result = next(left, None)
            if result is None:
                stop.set()
                return FINE
            if isinstance(result, Exception):
                raise result
            return result

        monkeypatch.setattr(status, "current_parts", look)
        status.watch(stop, said.append, 0.001)
        return said

    return run


def test_each_change_is_one_line(looks):
    assert looks(FINE, DEAD, DEAD, FAILS, FAILS, FINE, FINE, DEAD) == [
        "target: unhealthy: a replica died",
        "target: unhealthy: no model",
        "target is back",
        "target: unhealthy: a replica died",
        "target is back",
    ]


def test_a_pool_that_changes_its_size_is_no_news(looks):
    assert looks(FINE, GROWS, FINE) == []


def test_a_controller_that_is_away_is_said_once(looks):
    gone = TimeoutError()
    assert looks(FINE, gone, gone, FINE) == [
        "Serve: its controller does not answer; Ray restarts it",
        "Serve is back",
    ]


def test_a_dead_process_of_its_own_ray_ends_it(looks, monkeypatch):
    monkeypatch.setattr(status, "dead_ray_process", lambda: "raylet")
    with pytest.raises(RayGoneError, match="Ray has ended, because its process raylet has died"):
        looks(FINE)


@pytest.mark.parametrize("answers", [True, False])
def test_another_ray_is_gone_when_its_head_does_not_answer_for_long(looks, monkeypatch, answers):
    monkeypatch.setattr(status, "ray_answers", lambda: answers)
    results = FINE, *[TimeoutError()] * 10
    if answers:
        assert looks(*results) == ["Serve: its controller does not answer; Ray restarts it", "Serve is back"]
    else:
        with pytest.raises(RayGoneError, match="the Ray cluster does not answer any more"):
            looks(*results)


def test_the_end_of_the_connection_ends_it(looks, monkeypatch):
    monkeypatch.setattr(status.ray, "is_initialized", lambda: False)
    with pytest.raises(RayGoneError, match="does not answer any more"):
        looks(ConnectionError())


def test_a_deployment_that_someone_deletes_ends_it(looks, monkeypatch):
    monkeypatch.setattr(status, "call_with_timeout", lambda call, limit: None)
    with pytest.raises(RayGoneError, match="has been deleted"):
        looks()


@pytest.mark.parametrize(
    ("is_head", "dead", "found"), [(True, [("raylet", 1)], "raylet"), (True, [], None), (False, [("raylet", 1)], None)]
)
def test_only_the_processes_of_a_ray_that_was_started_here_count(monkeypatch, is_head, dead, found):
    node = SimpleNamespace(is_head=lambda: is_head, dead_processes=lambda: dead)
    monkeypatch.setattr(worker, "_global_node", node)
    assert dead_ray_process() == found


def test_a_call_with_a_timeout():
    assert call_with_timeout(lambda: 3, 60) == 3
    with pytest.raises(ZeroDivisionError):
        call_with_timeout(lambda: 1 // 0, 60)
    ended = threading.Event()
    with pytest.raises(TimeoutError):
        call_with_timeout(ended.wait, 0.01)
    ended.set()
