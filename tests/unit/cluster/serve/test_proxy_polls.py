"""Serve's controller tells each proxy that it starts or finds to repeat its calls."""

import inspect
import pickle
import time
from types import SimpleNamespace

import pytest
from ray._common.utils import Timer, import_attr
from ray.serve._private import deployment_state, haproxy, proxy
from ray.serve._private.proxy_state import ActorProxyWrapper

from cluster.serve.app import SERVE_SWITCHES
from cluster.serve.proxy_polls import repeat_polls_of


@pytest.fixture
def told(monkeypatch):
    """What each proxy was told."""
    told = []
    proxy = SimpleNamespace(__ray_call__=SimpleNamespace(remote=lambda call: told.append((proxy, call))))
    monkeypatch.setattr(ActorProxyWrapper, "_get_or_create_proxy_actor", staticmethod(lambda *_, **__: proxy))
    return told


def proxy_of(wrapper):
    return wrapper("logging", http_options=1, grpc_options=2, name="p", node_id="n", node_ip_address="i", port=3)


def test_a_proxy_is_told_when_the_controller_has_its_handle(told, monkeypatch):
    monkeypatch.setattr(deployment_state, "time", time)
    monkeypatch.setattr(Timer, "time", Timer.time)
    import_attr(SERVE_SWITCHES["RAY_SERVE_CONTROLLER_CALLBACK_IMPORT_PATH"])()
    found = proxy_of(ActorProxyWrapper)
    assert told == [(found.actor_handle, repeat_polls_of)]
    assert pickle.loads(pickle.dumps(repeat_polls_of)) is repeat_polls_of


def test_without_the_hook_none_is_told(told):
    """Negative control."""
    proxy_of(ActorProxyWrapper)
    assert told == []


@pytest.mark.parametrize("module", [proxy, haproxy])
def test_both_kinds_of_proxies_have_the_client_and_the_call(module):
    assert inspect.getsource(module).count("self.long_poll_client = long_poll_client or LongPollClient(") == 1
    actor = module.ProxyActor if module is proxy else module.HAProxyManager
    assert hasattr(actor.__ray_metadata__.modified_class, "__ray_call__")
