"""Ray's key-value store as a dict, for what a replica notes in it."""

import pytest

from actors.lifecycle import starts
from actors.ray_hooks import ray_core


@pytest.fixture
def kv_store(monkeypatch):
    """The store by key, in a process that is in Ray."""
    store = {}
    monkeypatch.setattr(starts.ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray_core, "_internal_kv_get", lambda key: store.get(key))
    monkeypatch.setattr(ray_core, "_internal_kv_put", lambda key, value, overwrite: store.update({key: value}))
    monkeypatch.setattr(ray_core, "_internal_kv_del", store.pop)
    keys = lambda prefix: [key.encode() for key in store if key.startswith(prefix)]  # noqa: E731
    monkeypatch.setattr(ray_core, "_internal_kv_list", keys)
    return store
