"""What Serve reports to the commands, without a cluster."""

from types import SimpleNamespace

import pytest

from cluster.commands import status, top
from cluster.serve import status as state


@pytest.fixture
def served(monkeypatch):
    """What Serve reports: applications by name, and the proxies' states by node; tests fill it."""
    reported = SimpleNamespace(applications={}, proxies={})
    for command in (status, top):
        monkeypatch.setattr(command, "join_ray", lambda address: None)
    monkeypatch.setattr(state, "placement_group_table", dict)
    monkeypatch.setattr(state, "last_failed_start", lambda app, pool: None)
    monkeypatch.setattr(state, "failed_probes", lambda app: {})
    monkeypatch.setattr(state.serve, "status", lambda: reported)
    return reported
