"""A replica on several nodes: downloads on each of them, and the environment of its engine."""

import os
from types import SimpleNamespace

import pytest

from actors import multi_node as placement


class Fetch:
    """A Ray task that notes where it would run."""

    def __init__(self, calls, bundle=None):
        self._calls, self._bundle = calls, bundle

    def options(self, scheduling_strategy):
        return Fetch(self._calls, scheduling_strategy.placement_group_bundle_index)

    async def remote(self, names):
        self._calls.append((self._bundle, names))


@pytest.fixture
def fetched(monkeypatch):
    """(bundle, names) of each download. The group has two bundles on one node, and one on another."""
    calls = []
    monkeypatch.setattr(placement.ray, "remote", lambda num_cpus: lambda function: Fetch(calls))
    monkeypatch.setattr(placement, "nodes_of", lambda group: {0: "one", 1: "one", 2: "two"})
    return calls


async def test_each_node_downloads_hub_names_once(fetched):
    await placement.fetch_on_nodes(object(), ["owner/big@v1", "/models/drafts"])
    assert fetched == [(1, ["owner/big@v1"]), (2, ["owner/big@v1"])]


@pytest.mark.parametrize(("group", "models"), [(None, ["owner/big"]), (object(), ["/models/big"])])
async def test_otherwise_nothing_is_downloaded_here(fetched, group, models):
    await placement.fetch_on_nodes(group, models)
    assert fetched == []


def test_an_engine_with_ranks_elsewhere_knows_its_ray(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(placement.ray, "get_runtime_context", lambda: SimpleNamespace(gcs_address="10.0.0.1:6379"))
    with placement.ray_for_ranks(object()):
        assert os.environ["RAY_ADDRESS"] == "10.0.0.1:6379"
    with placement.ray_for_ranks(None):
        assert "RAY_ADDRESS" not in os.environ
