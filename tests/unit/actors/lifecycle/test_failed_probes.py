"""The failed start probes of replicas in Ray's key-value store."""

from types import SimpleNamespace

import pytest

from actors.lifecycle import starts as module
from actors.lifecycle.starts import PROBES, failed_probes, note_failed_probe

TARGET, PREFILL, OTHER = (f"SERVE_REPLICA::{name}" for name in ("skim#target#a", "skim#prefill#b", "skim2#target#c"))


@pytest.fixture(autouse=True)
def store(kv_store):
    return kv_store


@pytest.fixture
def alive(monkeypatch):
    """The names of the actors that live."""
    names = {TARGET, PREFILL, OTHER}

    def get_actor(name, namespace):
        if namespace != "serve" or name not in names:
            raise ValueError(name)

    monkeypatch.setattr("ray.get_actor", get_actor)
    return names


async def failed(monkeypatch, actor, reason):
    monkeypatch.setattr(module, "READ_PERIOD_S", 0.0)
    context = SimpleNamespace(get_actor_name=lambda: actor)
    monkeypatch.setattr(module.ray, "get_runtime_context", lambda: context)
    await note_failed_probe(reason)


async def test_the_pools_of_an_application_that_failed(monkeypatch, alive):
    assert failed_probes("skim") == {}
    await failed(monkeypatch, TARGET, "one reason")
    await failed(monkeypatch, PREFILL, "another")
    await failed(monkeypatch, OTHER, "of another application")
    assert failed_probes("skim") == {"target": "one reason", "prefill": "another"}


async def test_a_failure_ends_with_its_replica(monkeypatch, alive, store):
    await failed(monkeypatch, TARGET, "one reason")
    alive.remove(TARGET)
    assert failed_probes("skim") == {}
    assert PROBES + TARGET not in store


async def test_outside_ray_nothing_is_noted(monkeypatch, store):
    monkeypatch.setattr(module.ray, "is_initialized", lambda: False)
    await note_failed_probe("a reason")
    assert store == {}
