"""What the commands get without a cluster: what Serve reports, and models without weights."""

from types import SimpleNamespace

import pytest

from benchmarks.gpu.presets import configs, make_folder, preset
from cluster.serve import ray_cluster
from cluster.serve import status as state


@pytest.fixture
def served(monkeypatch):
    """What Serve reports: applications by name, and the proxies' states by node; tests fill it."""
    reported = SimpleNamespace(applications={}, proxies={})
    monkeypatch.setattr(ray_cluster, "join_ray", lambda address: None)
    monkeypatch.setattr(state, "placement_group_table", dict)
    monkeypatch.setattr(state, "last_failed_start", lambda app, pool: None)
    monkeypatch.setattr(state, "failed_probes", lambda app: {})
    monkeypatch.setattr(state.serve, "status", lambda: reported)
    return reported


@pytest.fixture(scope="session")
def pair(tmp_path_factory):
    """Folders of the shapes of Llama 3.1 8B and 3.2 1B, without weights."""
    folder = tmp_path_factory.mktemp("pair")
    target, speculator = configs(preset("8b"))
    return make_folder(target, folder / "target"), make_folder(speculator, folder / "speculator")
