"""Serve's controller asks replicas and proxies for their health also after the wall clock was set back."""

import time
from types import SimpleNamespace

import pytest
from ray._common.utils import Timer, import_attr
from ray.serve._private import deployment_state, proxy_state

from cluster.serve.app import SERVE_SWITCHES

HOUR_S = 3600.0
CREATE = vars(proxy_state.ActorProxyWrapper)["_get_or_create_proxy_actor"]


@pytest.fixture
def set_back(monkeypatch):
    """Sets the wall clock back by an hour. What the controller does when it starts is done, and undone afterwards."""
    wall = time.time
    monkeypatch.setattr(deployment_state, "time", time)
    monkeypatch.setattr(Timer, "time", Timer.time)
    monkeypatch.setattr(proxy_state.ActorProxyWrapper, "_get_or_create_proxy_actor", CREATE)
    import_attr(SERVE_SWITCHES["RAY_SERVE_CONTROLLER_CALLBACK_IMPORT_PATH"])()
    return lambda: monkeypatch.setattr(time, "time", lambda: wall() - HOUR_S)


def test_a_replica_that_was_asked_10_s_ago_is_asked_again(set_back) -> None:
    asked = SimpleNamespace(
        _health_check_ref=None,
        _last_health_check_time=deployment_state.time.time() - 10.0,
        health_check_period_s=2.0,
    )
    set_back()
    assert deployment_state.ActorReplicaWrapper._should_start_new_health_check(asked)


def test_a_proxy_too(set_back) -> None:
    timer = proxy_state.Timer()
    before = timer.time()
    set_back()
    assert 0.0 <= timer.time() - before < HOUR_S


def test_the_clock_begins_with_the_time_of_day_and_has_all_of_its_module(set_back) -> None:
    assert abs(deployment_state.time.time() - time.time()) < HOUR_S
    assert deployment_state.time.sleep is time.sleep
